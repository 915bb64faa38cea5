"""What Python runs itself in a call of `lt.compile` that nobody has asked `memory()` about.

In: such a call. Out: the most bytes at once of the large tensors that it makes beside the captured
graphs, and which op makes the largest: no budget makes that smaller, and no graph knows of it.

    looker = Beside()
    with looker.on():
        compiled(x)         graphs run as ever; looker.peak_bytes, looker.largest

Each op of Python's takes some µs more meanwhile, so a few calls are looked at. What backward
passes and other threads take is not seen.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.frontend.dynamo.internals import is_capturing
from lowtide.memory.graph import in_backward
from lowtide.memory.leaves import tensors_in
from lowtide.memory.modes import LooksOn
from lowtide.memory.scopes.births import user_frame
from lowtide.memory.scopes.hidden import hide, hide_with_callees
from lowtide.memory.virtual import LARGE_BYTES, is_view
from lowtide.pipeline import listening
from lowtide.pipeline.compiled import Compiled

_OVERLOAD: Final[Any] = torch._ops.OpOverload  # pyright: ignore
_PLAIN: Final = torch.Tensor, torch.nn.Parameter  # else it is a compiler's, or of others


class Beside(LooksOn):
    """Of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = self._live_bytes = self._largest_bytes = 0
        self.largest = ""
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """Inside is the call."""
        with listening.afterwards(self._gave), self:
            yield

    def _gave(self, graph: Any, results: Any) -> None:
        if isinstance(graph, Compiled) and graph.options.budget_bytes is None:  # another object's
            self._see(graph.__name__, results)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        is_pythons = isinstance(func, _OVERLOAD) and not (
            listening.is_running() or is_capturing() or in_backward()
        )
        if is_pythons and not (is_view(func) or func._schema.is_mutable):
            self._see(func.overloadpacket.__name__, made)
        return made

    def _see(self, name: str, made: Any) -> None:
        for x in tensors_in(made):
            is_plain = type(x) in _PLAIN and x.layout is torch.strided and not x.is_nested
            if is_plain and not x.is_meta and x.nbytes >= LARGE_BYTES:
                self._take(name, x)

    def _take(self, name: str, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        key, nbytes = storage._cdata, x.nbytes  # pyright: ignore[reportPrivateUsage]
        if key in self._live:
            return

        def end(_: object) -> None:
            del self._live[key]
            self._live_bytes -= nbytes

        self._live[key] = weakref.ref(storage, end)
        self._live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        if nbytes > self._largest_bytes:
            self._largest_bytes = nbytes
            frame = user_frame(sys._getframe(3))  # pyright: ignore[reportPrivateUsage]
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}: " if frame else ""
            self.largest = f"{place}`{name}`"


hide(sys.modules[__name__])
hide_with_callees(Beside.__torch_dispatch__)
