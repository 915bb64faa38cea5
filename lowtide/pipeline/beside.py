"""What Python runs itself in a call of `lt.compile` that nobody has asked `memory()` about.

In: such a call. Out: the bytes of the large tensors that it makes beside the captured graphs, and
which op makes the largest: no budget makes that smaller, and no graph knows of it.

    looker = Beside()
    with looker.on():
        compiled(x)         graphs run as ever; looker.nbytes, looker.largest

Each op of Python's takes some µs more meanwhile, so a few calls are looked at. Hooks of a backward
pass that comes later, and what other threads run, are not seen.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.frontend.dynamo.internals import is_capturing
from lowtide.memory.leaves import tensors_in
from lowtide.memory.scopes.births import user_frame
from lowtide.memory.scopes.hidden import hide, hide_with_callees
from lowtide.memory.virtual import LARGE_BYTES, is_view
from lowtide.pipeline import listening
from lowtide.pipeline.compiled import Compiled

_OVERLOAD: Final[Any] = torch._ops.OpOverload  # pyright: ignore
_PLAIN: Final = torch.Tensor, torch.nn.Parameter  # else it is a compiler's, or of others


class Beside(TorchDispatchMode):
    """Of one call. `budget_bytes`: graphs with another one, or with none, are other objects'."""

    looks_on = True  # what is compiled runs under it as ever

    def __init__(self, budget_bytes: int) -> None:
        super().__init__()
        self._budget_bytes = budget_bytes
        self.nbytes = self._most_bytes = 0
        self.largest = ""

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """Inside is the call."""
        with listening.afterwards(self._gave), self:
            yield

    def _gave(self, graph: Any, results: Any) -> None:
        if isinstance(graph, Compiled) and graph.options.budget_bytes != self._budget_bytes:
            self._see(graph.__name__, results)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in `promised`

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Captured code runs under this mode."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        is_others = listening.is_running() or is_capturing() or not isinstance(func, _OVERLOAD)
        if not (is_others or is_view(func) or func._schema.is_mutable):
            self._see(func.overloadpacket.__name__, made)
        return made

    def _see(self, name: str, made: Any) -> None:
        sizes = [x.nbytes for x in tensors_in(made) if type(x) in _PLAIN and not x.is_meta]
        large = [nbytes for nbytes in sizes if nbytes >= LARGE_BYTES]
        self.nbytes += sum(large)
        if large and max(large) > self._most_bytes:
            self._most_bytes = max(large)
            frame = user_frame(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}: " if frame else ""
            self.largest = f"{place}`{name}`"


hide(sys.modules[__name__])
hide_with_callees(Beside.__torch_dispatch__)
