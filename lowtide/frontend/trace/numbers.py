"""Ints and floats that remember which size they were computed from.

In: a number of the run and its value in the recorded program. Out: an `int` or `float` that behaves
as a plain one; results of Python's operators on it are recorded, and traced too.

    n = x.shape[0]            TracedInt(4), %n = list.get(%shape, 0)
    y.view(n * 2, -1)         %1 = py.mul(%n, 2)
    scale = n ** -0.5         TracedFloat, %2 = py.pow(%n, -0.5)

Where Python makes a plain number of one (`int(n)`, `math.sqrt(n)`, a comparison), the way back is
lost: the result is a constant, and a `TracerWarning` says so. `range(n)` and `len(x)` are lost
without Python telling us. A function of `functools.lru_cache` runs again for a size, whatever it
gave for its number before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from lowtide.cpython import frame_at
from lowtide.frontend.trace.cached_calls import is_cached_call
from lowtide.ir import opdefs
from lowtide.ir.core import Value


class NumberRecorder(Protocol):
    """The interface of the recorder for numbers."""

    def is_live(self) -> bool:
        """Return whether the run of these numbers is still going on."""
        ...

    def number_op(self, name: str, operands: list[Any], result: Any) -> Any:
        """Record an op on numbers; return `result` as a traced number."""
        ...

    def number_frozen(self, what: str, *, in_library: bool) -> None:
        """Warn that a number became a constant. `in_library`: in PyTorch's code, too."""
        ...


class Traced:
    """The common part of both kinds."""

    traced_recorder: NumberRecorder
    traced_value: Value

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self

    def __reduce__(self) -> Any:
        number = plain_number(self)
        return (type(number), (number,))


class TracedInt(Traced, int):
    """An int computed from sizes."""


class TracedFloat(Traced, float):
    """A float computed from sizes."""


def traced_number(number: float, recorder: NumberRecorder, value: Value) -> Any:
    """Return the traced number; a bool stays a plain bool."""
    if type(number) is int:
        made: TracedInt | TracedFloat = TracedInt(number)
    elif type(number) is float:
        made = TracedFloat(number)
    else:
        return number
    made.traced_recorder = recorder
    made.traced_value = value
    return made


def plain_number(x: Any) -> Any:
    """Return the number as a plain one."""
    if isinstance(x, TracedInt):
        return int.__int__(x)
    return float.__float__(x) if isinstance(x, TracedFloat) else x


def _recorded(name: str, operands: list[Any]) -> Any:
    """Compute an op on numbers, and record it while the run goes on."""
    definition = opdefs.find(name)
    assert definition is not None
    result = definition.run(*map(plain_number, operands))
    for x in operands:
        if isinstance(x, Traced) and x.traced_recorder.is_live():
            return x.traced_recorder.number_op(name, operands, result)
    return result


def _freeze(x: Any, what: str, *, in_library: bool = False) -> None:
    if isinstance(x, Traced) and x.traced_recorder.is_live():
        x.traced_recorder.number_frozen(what, in_library=in_library)


def _binary(op: str, swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return _recorded(op, [other, self] if swapped else [self, other])

    return method


def _unary(op: str) -> Callable[[Any], Any]:
    return lambda self: _recorded(op, [self])


def _comparison(name: str, sign: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        a, b = plain_number(self), plain_number(other)
        result = getattr(a, name)(b)
        if result is NotImplemented:  # an int before a float
            result = getattr(float(a), name)(b)
        _freeze(self, f"the comparison of a size, {a} {sign} {b}, is frozen as {result}")
        return result

    return method


def _bool(self: Any) -> bool:
    result = bool(plain_number(self))
    _freeze(self, f"`bool` of a size is frozen as {result}")
    return result


def _int(self: Any) -> int:
    result = int(plain_number(self))
    _freeze(self, f"`int` of a size (or a number from sizes) is frozen as {result}")
    return result


def _float(self: Any) -> float:
    result = float(plain_number(self))
    _freeze(
        self, f"`float` of a size, as in math.sqrt(n), is frozen as {result}: n ** 0.5 would not be"
    )
    return result


def _text(self: Any) -> str:
    text = repr(plain_number(self))
    _freeze(self, f"the text of a size (or a number from sizes) is frozen as {text}")
    return text


def _format(self: Any, spec: str) -> str:
    text = format(plain_number(self), spec)
    _freeze(self, f"the text of a size (or a number from sizes) is frozen as {text}")
    return text


def _hash(self: Any) -> int:
    """Return the hash of the number. For a cached function, a size equals no other key."""
    is_live = isinstance(self, Traced) and self.traced_recorder.is_live()
    if is_live and is_cached_call(frame_at(1)):
        return object.__hash__(self)
    return hash(plain_number(self))


def _round(self: Any, digits: int | None = None) -> Any:
    return _recorded("py.round", [self] if digits is None else [self, digits])


def _divmod(self: Any, other: Any) -> Any:
    return (self // other, self % other)


def _itself(self: Any) -> Any:
    return self


_BINARY: Final = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
    "lshift", "rshift", "and", "or", "xor",
)  # fmt: skip
_COMPARISONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _fill(kind: type, base: type) -> None:
    for name in _BINARY:
        if hasattr(base, f"__{name}__"):
            setattr(kind, f"__{name}__", _binary(f"py.{name}", False))
            setattr(kind, f"__r{name}__", _binary(f"py.{name}", True))
    for name in ("neg", "pos", "abs", "invert"):
        if hasattr(base, f"__{name}__"):
            setattr(kind, f"__{name}__", _unary(f"py.{name}"))
    for name, sign in _COMPARISONS.items():
        setattr(kind, f"__{name}__", _comparison(f"__{name}__", sign))
    for name in ("floor", "ceil", "trunc"):
        assert hasattr(math, name)
        setattr(kind, f"__{name}__", _itself if base is int else _unary(f"math.{name}"))
    others: dict[str, Any] = {
        "hash": _hash, "bool": _bool, "int": _int, "float": _float,
        "round": _round, "divmod": _divmod, "str": _text, "repr": _text, "format": _format,
    }  # fmt: skip
    for name, method in others.items():
        setattr(kind, f"__{name}__", method)


_fill(TracedInt, int)
_fill(TracedFloat, float)
