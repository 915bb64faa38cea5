"""Ops on numbers, and the operators and builtins that take several kinds of values.

find("py.add").result([INT, FLOAT])  ==  FLOAT
find("math.sqrt").run(4)             ==  2.0
"""

from __future__ import annotations

import cmath
import collections
import math
import operator
from collections.abc import Sequence

import torch

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.python_ops.row import (
    OpDef,
    ResultType,
    Run,
    always,
    element,
    joined_list,
    lenient,
    of_tensors,
)
from lowtide.ir.types import ClassType, DictType, ListType, OptionalType, TupleType, Type


def _widest(operands: Sequence[Type]) -> Type | None:
    if not all(t.is_number(o) for o in operands):
        return None
    if t.FLOAT in operands:
        return t.FLOAT
    return t.NUMBER if t.NUMBER in operands else t.INT


def _arithmetic(operands: Sequence[Type]) -> Type | None:
    if t.COMPLEX in operands and all(o == t.COMPLEX or t.is_number(o) for o in operands):
        return t.COMPLEX
    return _widest(operands)


def _add(operands: Sequence[Type]) -> Type | None:
    match operands:
        case [t.STR, t.STR]:
            return t.STR
        case [TupleType(a), TupleType(b)]:
            return TupleType((*a, *b))
        case [ListType() | TupleType(), ListType() | TupleType()]:
            return joined_list(operands)
        case _:
            return _arithmetic(operands)


def _mul(operands: Sequence[Type]) -> Type | None:
    match operands:
        case [t.STR, n] | [n, t.STR] if t.is_number(n):
            return t.STR
        case [ListType() | TupleType() as xs, n] | [n, ListType() | TupleType() as xs]:
            return joined_list([xs]) if t.is_number(n) else None
        case _:
            return _arithmetic(operands)


def _mod(operands: Sequence[Type]) -> Type | None:
    return t.STR if operands[0] == t.STR else _arithmetic(operands)


def _truediv(operands: Sequence[Type]) -> Type | None:
    widest = _arithmetic(operands)
    return t.FLOAT if widest in (t.INT, t.NUMBER) else widest


def _pow(operands: Sequence[Type]) -> Type | None:
    widest = _arithmetic(operands)
    return t.NUMBER if widest == t.INT else widest  # 2 ** -1 is a float


def _bits(operands: Sequence[Type]) -> Type | None:
    if all(o == t.BOOL for o in operands):
        return t.BOOL
    if all(isinstance(o, DictType) for o in operands):
        return operands[0]  # `a | b` of two dicts
    return t.INT if all(o in (t.INT, t.BOOL, t.NUMBER) for o in operands) else None


def _invert(operands: Sequence[Type]) -> Type | None:
    return None if _bits(operands) is None else t.INT


def _ordered(operands: Sequence[Type]) -> Type | None:
    if all(t.is_number(o) for o in operands) or operands[0] == operands[1]:
        return t.BOOL
    sequences = all(isinstance(o, ListType | TupleType) for o in operands)
    return t.BOOL if sequences else None


def _equal(operands: Sequence[Type]) -> Type:
    """Return a bool, or a tensor where one is compared with a number or a tensor."""
    met = [o for o in operands if t.may_be_tensor(o) or o == t.COMPLEX or t.is_number(o)]
    vague = any(t.is_dynamic(o) and not t.may_be_tensor(o) for o in operands)
    if vague:
        others = [o for o in operands if t.is_dynamic(o) or isinstance(o, ClassType)]
        return t.ANY if len(met) + len(others) >= len(operands) else t.BOOL
    if len(met) < len(operands) or not any(map(t.may_be_tensor, operands)):
        return t.BOOL
    may_be_none = any(t.is_subtype(t.NONE, o) for o in operands)
    is_sure = t.TENSOR in operands and not may_be_none
    return t.TENSOR if is_sure else t.join(t.BOOL, t.TENSOR)


def _extremum(operands: Sequence[Type]) -> Type | None:
    if len(operands) == 1:
        return element(operands[0])
    kinds = set(operands)
    if len(kinds) == 1:
        return operands[0]
    if kinds <= {t.INT, t.BOOL}:
        return t.INT
    if any(all(isinstance(k, kind) for k in kinds) for kind in (ListType, TupleType)):
        return t.join_all(operands)
    return t.NUMBER if all(t.is_number(k) for k in kinds) else None


def _sum(operands: Sequence[Type]) -> Type | None:
    elem = element(operands[0])
    if elem == t.NEVER:
        return t.INT
    return None if elem is None else _arithmetic([t.INT, elem, *operands[1:]])


def _absolute(operands: Sequence[Type]) -> Type | None:
    return t.FLOAT if operands[0] == t.COMPLEX else _widest(operands)


def _round(operands: Sequence[Type]) -> Type | None:
    return t.INT if len(operands) == 1 else _widest(operands[:1])


def _divmod(operands: Sequence[Type]) -> Type | None:
    widest = _widest(operands)
    return None if widest is None else TupleType((widest, widest))


def _sized(operands: Sequence[Type]) -> Type | None:
    return None if element(operands[0]) is None else t.INT


def _length(operands: Sequence[Type]) -> Type | None:
    return None if lenient(_sized)(operands) is None else t.INT  # whatever it is of


def _contains(container: Sequence[object], item: object) -> bool:
    return item in container


def _range_len(start: int, stop: int, step: int) -> int:
    return len(range(start, stop, step))


def _bound(value: object, name: str) -> object:
    if value is UNBOUND:
        raise UnboundLocalError(
            f"cannot access local variable {name!r} where it is not associated with a value"
        )
    return value


def _member_of(value: object, name: str) -> object:
    if value is None or isinstance(value, complex | float | int):
        raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
    return value


def _having_member(operands: Sequence[Type]) -> Type:
    of = operands[0]
    if t.may_be_tensor(of):
        return t.TENSOR
    return of.elem if isinstance(of, OptionalType) else of


class _Unbound:
    def __repr__(self) -> str:
        return "<unbound>"


UNBOUND = _Unbound()  # what a variable holds that may not have been assigned yet

_OPERATORS: dict[str, tuple[Run, ResultType]] = {  # of a tensor, a tensor
    "add": (operator.add, _add),
    "sub": (operator.sub, _arithmetic),
    "mul": (operator.mul, _mul),
    "truediv": (operator.truediv, _truediv),
    "floordiv": (operator.floordiv, _widest),
    "mod": (operator.mod, _mod),
    "pow": (operator.pow, _pow),
    "lshift": (operator.lshift, _bits),
    "rshift": (operator.rshift, _bits),
    "and": (operator.and_, _bits),
    "or": (operator.or_, _bits),
    "xor": (operator.xor, _bits),
    "matmul": (operator.matmul, always(t.ANY)),
    "neg": (operator.neg, _arithmetic),
    "pos": (operator.pos, _arithmetic),
    "invert": (operator.invert, _invert),
    "abs": (abs, _absolute),
    "lt": (operator.lt, _ordered),
    "le": (operator.le, _ordered),
    "gt": (operator.gt, _ordered),
    "ge": (operator.ge, _ordered),
}


class _Sized:
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


def _checked_length(found: int) -> int:
    """Return what `len` makes of the result of a `__len__`, or raise its error."""
    return len(_Sized(found))


_OTHERS: dict[str, tuple[Run, ResultType]] = {
    "round": (round, _round),
    "divmod": (divmod, _divmod),
    "max": (max, _extremum),
    "min": (min, _extremum),
    "sum": (sum, _sum),
}

_ANYTHING: dict[str, tuple[Run, ResultType]] = {
    "py.len": (len, _length),
    "py.is": (operator.is_, always(t.BOOL)),
    "py.is_not": (operator.is_not, always(t.BOOL)),
    "py.not": (operator.not_, always(t.BOOL)),
    "py.bool": (bool, always(t.BOOL)),
    "py.int": (int, always(t.INT)),
    "py.index": (operator.index, always(t.INT)),
    "py.float": (float, always(t.FLOAT)),
    "py.complex": (complex, always(t.COMPLEX)),
    "py.real": (operator.attrgetter("real"), always(t.FLOAT)),
    "py.imag": (operator.attrgetter("imag"), always(t.FLOAT)),
    "py.contains": (_contains, always(t.BOOL)),
    "py.pow_mod": (pow, always(t.INT)),
    "py.range": (range, always(t.ANY)),
    "py.slice": (slice, always(t.SLICE)),
    **{
        f"py.slice_{part}": (operator.attrgetter(part), always(OptionalType(t.INT)))
        for part in ("start", "stop", "step")
    },
    "py.length": (_checked_length, always(t.INT)),
    "py.range_len": (_range_len, always(t.INT)),
    "py.device": (torch.device, always(t.DEVICE)),
    "py.device_type": (operator.attrgetter("type"), always(t.STR)),
    "py.device_index": (operator.attrgetter("index"), always(OptionalType(t.INT))),
    "py.is_floating_point": (operator.attrgetter("is_floating_point"), always(t.BOOL)),
    "py.is_complex": (operator.attrgetter("is_complex"), always(t.BOOL)),
    "py.is_signed": (operator.attrgetter("is_signed"), always(t.BOOL)),
    "py.itemsize": (operator.attrgetter("itemsize"), always(t.INT)),
    "py.ordered_dict": (collections.OrderedDict, lambda operands: operands[0]),
    "py.member_of": (_member_of, _having_member),
    "py.bound": (_bound, lambda operands: operands[0]),
}

MATH_FLOATS = (
    *("sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "hypot"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "degrees", "radians"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "gamma", "lgamma"),
    *("fabs", "fmod", "copysign", "ldexp", "dist", "fsum", "remainder"),
)
MATH_OF_INTS = ("gcd", "lcm", "isqrt", "factorial", "comb", "perm")
_MATH_INTS = ("floor", "ceil", "trunc", *MATH_OF_INTS)
_MATH_BOOLS = ("isnan", "isinf", "isfinite", "isclose")
_MATH_OTHERS: dict[str, Type] = {
    "modf": TupleType((t.FLOAT, t.FLOAT)),
    "frexp": TupleType((t.FLOAT, t.INT)),
}

_CMATH: dict[str, Type] = {
    **dict.fromkeys(("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "rect"), t.COMPLEX),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "tanh"), t.COMPLEX),
    **dict.fromkeys(("asinh", "acosh", "atanh"), t.COMPLEX),
    "phase": t.FLOAT,
    "polar": TupleType((t.FLOAT, t.FLOAT)),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "isclose"), t.BOOL),
}


def _product(operands: Sequence[Type]) -> Type:
    match operands[0]:
        case ListType(elem) if t.is_number(elem):
            return t.NUMBER
        case TupleType(elems) if all(map(t.is_number, elems)):
            return t.NUMBER
        case _:
            return t.ANY


# For some operands of the right types: 0, the negative, the infinite, the empty.
_RAISING = (
    *("int", "float", "complex", "index", "length", "round", "range", "pow_mod", "max", "min"),
    *("truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift"),
)


def _rows() -> list[OpDef]:
    rows = {f"py.{name}": (run, lenient(rule)) for name, (run, rule) in _OTHERS.items()}
    rows |= {f"py.{n}": (run, of_tensors(lenient(rule))) for n, (run, rule) in _OPERATORS.items()}
    rows |= {"py.eq": (operator.eq, _equal), "py.ne": (operator.ne, _equal)}
    rows |= _ANYTHING
    for names, result in ((MATH_FLOATS, t.FLOAT), (_MATH_INTS, t.INT), (_MATH_BOOLS, t.BOOL)):
        rows |= {f"math.{n}": (getattr(math, n), always(result)) for n in names}
    rows |= {f"math.{n}": (getattr(math, n), always(r)) for n, r in _MATH_OTHERS.items()}
    rows["math.prod"] = (math.prod, _product)
    rows |= {f"cmath.{n}": (getattr(cmath, n), always(r)) for n, r in _CMATH.items()}
    raising = [f"py.{name}" for name in _RAISING]
    raising += [name for name in rows if name.startswith(("math.", "cmath."))]
    effects = dict.fromkeys(raising, Effects.RAISES)
    return [
        OpDef(name=n, run=run, result=rule, effects=effects.get(n, Effects.NONE))
        for n, (run, rule) in rows.items()
    ]


ROWS = _rows()
