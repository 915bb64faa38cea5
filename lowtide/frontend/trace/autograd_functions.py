"""Calls of `torch.autograd.Function`s in a recorded program.

In: a class derived from `torch.autograd.Function`, what its `apply` is called with, and how it is
run. Out: its result, and one op in the recorder; what its `forward` calls is not recorded, for its
gradient is another one.

    y = Spike.apply(x, 2.0)     →  %1: Tensor = py.call(%x, 2.0) {target="net.Spike.apply"}
    z = Step.apply(net, x)      →  %2: Tensor = py.call(%x) {target="functools.partial"}

Under `torch.no_grad()` what `forward` calls is recorded, with a warning: such a program has no
Python in it, and can be saved.

Invariant: an argument that the program has no constant for (a module, a function) is kept as the
object that it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from lowtide import function_apply
from lowtide.frontend.trace.encode import encode, is_encodable, plain
from lowtide.frontend.trace.places import here
from lowtide.frontend.trace.recorder import Recorder
from lowtide.function_apply import Call
from lowtide.ir import python_objects
from lowtide.torch_private.autograd import BackwardHookFunction
from lowtide.torch_private.pytree import tensors_in


def is_recorded(cls: type) -> bool:
    """Return whether a call of the class is one op. Calls of Lowtide's own are recorded op by
    op."""
    return not cls.__module__.startswith("lowtide.")


def warn_of_backward(recorder: Recorder, cls: type) -> None:
    """Says that the gradient of a call that is seen through is that of its forward."""
    what = f"{cls.__name__}.apply is recorded without its backward, as gradients are off"
    recorder.warn_frozen(what, here(recorder.stop), "lt.trace with gradients on, to train it")


def record_apply(
    recorder: Recorder,
    call: Call,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    run: Callable[..., Any],
) -> Any:
    """Record `cls.apply(*args, **kwargs)`. `run` computes it, unrecorded."""
    place, cls = here(recorder.stop), call.cls
    given = call.positional(args, kwargs)
    if given is None:
        what = f"{cls.__name__}.forward has a parameter that is only a keyword"
        raise recorder.error(place, f"{what}, which is not recorded", "a parameter with a place")
    if cls is BackwardHookFunction:
        what, remedy = "a module's backward hook is not recorded", "lt.script(module), or no hook"
        raise recorder.error(place, what, remedy)
    kept = {k: a for k, a in enumerate(given) if not is_encodable(a)}
    if any(map(_holds_tensors, kept.values())):
        what = f"a function that {cls.__name__}.apply is given holds a tensor of the traced run"
        raise recorder.error(place, f"{what}, which cannot be recorded", "an argument")
    recorder.builder.loc = place.loc
    values = [encode(recorder, a) for k, a in enumerate(given) if k not in kept]
    target = _applied(cls, tuple((k, _Same(a)) for k, a in kept.items()))
    result = run(*map(plain, given))
    if call.may_differ(given, result):
        what = f"{cls.__name__}.apply was looked up before lt.trace began"
        remedy = f"{cls.__name__}.apply(...) at the call"
        raise recorder.error(place, f"{what}, so its results are not seen", remedy)
    recorder.python_call(python_objects.name_of(target), values, result)
    return result


def _holds_tensors(x: object) -> bool:
    cells = x.__closure__ or () if isinstance(x, FunctionType) else ()
    return any(tensors_in(cell.cell_contents) for cell in cells)


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """An object that equals itself only, and a function that one made by the same `def`."""

    obj: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[int, ...]:
        if not isinstance(self.obj, FunctionType):
            return (id(self.obj),)
        cells = [cell.cell_contents for cell in self.obj.__closure__ or ()]
        return tuple(map(id, (self.obj.__code__, *cells, *(self.obj.__defaults__ or ()))))


@functools.cache
def _applied(cls: Any, kept: tuple[tuple[int, _Same], ...]) -> Callable[..., Any]:
    """Return one object for each class, and what it is always given, to be named."""
    if not kept:
        return function_apply.without_layers(cls.apply)
    return functools.partial(_apply_with, cls, {k: same.obj for k, same in kept})


def _apply_with(cls: Any, kept: dict[int, Any], *args: Any) -> Any:
    """Return `cls.apply` with these arguments at these places."""
    rest = iter(args)
    return cls.apply(*(kept[k] if k in kept else next(rest) for k in range(len(kept) + len(args))))
