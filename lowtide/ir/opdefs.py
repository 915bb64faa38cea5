"""The table of ops on Python values, and the way to the records of torch ops.

In: an op's name. Out: what it computes (`run`), the type of its result, whether it may be moved.

    find("py.add").run(2, 3)            ==  5
    find("py.add").result([INT, FLOAT]) ==  FLOAT       None: Python would raise TypeError
    torch_record("torch.sum")                           the record of `lowtide.ops.registry`

Always holds: a pure op gives the same result for the same operands and changes none of them; a list
is never changed, `list.append(xs, v)` is a new list. A pure op may raise, as `py.floordiv` by 0
does.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch

from lowtide.ir import types as t
from lowtide.ir.signature import RecordLike
from lowtide.ir.types import ListType, OptionalType, TupleType, Type

ResultType = Callable[[Sequence[Type]], Type | None]
Run = Callable[..., object]

MAX_TRIPS = 2**63 - 1  # the trip count of a `while`


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """One op on Python values: the operands go positionally to `run`."""

    name: str
    run: Run
    result: ResultType


class Indexing:
    """How `torch.getitem` and the `mutate` of an item encode `x[a, b:c, None, ..., mask]`.

    Attribute `spec` is a tuple with one word per item, in order; after x, the operands are the
    items laid flat:

    | word       | operands                     | Python            |
    | ---------- | ---------------------------- | ----------------- |
    | "int"      | 1: an int                    | `x[i]`            |
    | "slice"    | 3: start, stop, step, each an int or None | `x[a:b]` |
    | "none"     | 0                            | `x[None]`         |
    | "ellipsis" | 0                            | `x[...]`          |
    | "tensor"   | 1: a Tensor (indices or mask) or a list or tuple of ints or bools | `x[mask]` |
    | "bool"     | 1: a bool                    | `x[True]`         |

        x[1:n, None, t]  →  torch.getitem(%x, %1, %n, %none, %t) {spec=("slice", "none", "tensor")}
        x[i] = v         →  mutate(%x, %i, %v)
                              {target="Tensor.__setitem__", kwnames=(), spec=("int",)}
    """

    ARITY: ClassVar = {"int": 1, "slice": 3, "none": 0, "ellipsis": 0, "tensor": 1, "bool": 1}

    @staticmethod
    def index(spec: Sequence[str], operands: Sequence[object]) -> object:
        """The Python index that a spec and its operands mean."""
        items: list[object] = []
        rest = list(operands)
        for word in spec:
            count = Indexing.ARITY[word]
            mine, rest = rest[:count], rest[count:]
            items.append(_index_item(word, mine))
        return tuple(items) if len(items) != 1 else items[0]


def _index_item(word: str, operands: list[object]) -> object:
    match word:
        case "slice":
            return slice(*operands)
        case "none":
            return None
        case "ellipsis":
            return Ellipsis
        case _:
            return operands[0]


def find(name: str) -> OpDef | None:
    """The op of this name on Python values, or None."""
    return _TABLE.get(name)


def all_defs() -> tuple[OpDef, ...]:
    """Every row of the table."""
    return tuple(_TABLE.values())


_records: Callable[[str], RecordLike] | None = None


def use_records(by_name: Callable[[str], RecordLike] | None) -> None:
    """Puts another table of torch ops in place of `lowtide.ops` (None: back again)."""
    global _records
    _records = by_name


def torch_record(op_name: str) -> RecordLike:
    """The record of the op printed as `torch.NAME`; raises KeyError.

    The table lies in a layer above this one, so it is looked up by name when first needed.
    """
    by_name = _records
    if by_name is None:
        importlib.import_module("lowtide.ops")
        registry = importlib.import_module("lowtide.ops.registry")
        by_name = cast("Callable[[str], RecordLike]", registry.by_name)
    return by_name(op_name.removeprefix("torch."))


_EFFECT_FREE = ("const", "undef", "tuple.make", "list.make", "unpack", "torch.getitem")
PURE_KINDS = ("pointwise", "reduction", "view", "contraction", "size")
REMOVABLE_KINDS = (*PURE_KINDS, "factory", "copy")


def is_pure(op_name: str) -> bool:
    """Whether equal operands give equal results and nothing else happens (see module text)."""
    if op_name in _EFFECT_FREE or op_name in _TABLE:
        return True
    return has_kind(op_name, PURE_KINDS)


def is_removable(op_name: str) -> bool:
    """Whether the op may go when its results are not used."""
    return is_pure(op_name) or has_kind(op_name, REMOVABLE_KINDS)


def is_python(op_name: str) -> bool:
    """Whether the op works on Python values only, so that constants can be folded through it."""
    return op_name in _TABLE


def has_kind(op_name: str, kinds: Sequence[str]) -> bool:
    """Whether the op is a torch op whose record is of one of these kinds."""
    if not op_name.startswith("torch."):
        return False
    try:
        return torch_record(op_name).kind in kinds
    except KeyError:
        return False


# --- types of results ---------------------------------------------------------------------------


def _always(result: Type) -> ResultType:
    return lambda _: result


def _lenient(rule: ResultType) -> ResultType:
    """Any gives Any; an Optional counts as its element, None being found out at run time."""

    def of(operands: Sequence[Type]) -> Type | None:
        plain = [o.elem if isinstance(o, OptionalType) else o for o in operands]
        return t.ANY if t.ANY in plain else rule(plain)

    return of


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
            return _joined_list(operands)
        case _:
            return _arithmetic(operands)


def _mul(operands: Sequence[Type]) -> Type | None:
    match operands:
        case [t.STR, n] | [n, t.STR] if t.is_number(n):
            return t.STR
        case [ListType() | TupleType() as xs, n] | [n, ListType() | TupleType() as xs]:
            return _joined_list([xs]) if t.is_number(n) else None
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
    return t.INT if all(o in (t.INT, t.BOOL, t.NUMBER) for o in operands) else None


def _ordered(operands: Sequence[Type]) -> Type | None:
    if all(t.is_number(o) for o in operands) or operands[0] == operands[1]:
        return t.BOOL
    sequences = all(isinstance(o, ListType | TupleType) for o in operands)
    return t.BOOL if sequences else None


def _element(type_: Type) -> Type | None:
    match type_:
        case ListType(elem):
            return elem
        case TupleType(elems) if elems:
            joined: Type | None = elems[0]
            for e in elems[1:]:
                joined = None if joined is None else t.join(joined, e)
            return joined
        case t.STR:
            return t.STR
        case _:
            return None


def _joined_list(operands: Sequence[Type]) -> Type | None:
    elems = [e for o in operands if o != TupleType(()) for e in [_element(o)]]
    joined: Type | None = elems[0] if elems else t.NEVER
    for e in elems[1:]:
        joined = None if joined is None or e is None else t.join(joined, e)
    return None if joined is None else ListType(joined)


def _get(operands: Sequence[Type]) -> Type | None:
    return _element(operands[0]) if operands[1] in (t.INT, t.BOOL, t.NUMBER) else None


def _slice(operands: Sequence[Type]) -> Type | None:
    return t.STR if operands[0] == t.STR else _joined_list(operands[:1])


def _extremum(operands: Sequence[Type]) -> Type | None:
    if len(operands) == 1:
        return _element(operands[0])
    if all(o == t.STR for o in operands):
        return t.STR
    kinds = set(operands)
    if kinds == {t.BOOL}:
        return t.BOOL
    return t.INT if kinds <= {t.INT, t.BOOL} else t.FLOAT if kinds == {t.FLOAT} else _numbers(kinds)


def _numbers(kinds: set[Type]) -> Type | None:
    return t.NUMBER if all(t.is_number(k) for k in kinds) else None


def _sum(operands: Sequence[Type]) -> Type | None:
    elem = _element(operands[0])
    return None if elem is None else _widest([t.INT, elem])


def _same(operands: Sequence[Type]) -> Type | None:
    return _widest(operands)


def _round(operands: Sequence[Type]) -> Type | None:
    return t.INT if len(operands) == 1 else _widest(operands[:1])


def _sized(operands: Sequence[Type]) -> Type | None:
    return t.INT if isinstance(operands[0], ListType | TupleType) or operands[0] == t.STR else None


def _grown(operands: Sequence[Type]) -> Type | None:
    xs, *_, value = operands
    if not isinstance(xs, ListType):
        return None
    joined = t.join(xs.elem, value)
    return None if joined is None else ListType(joined)


def _first(operands: Sequence[Type]) -> Type | None:
    return operands[0] if isinstance(operands[0], ListType) else None


def _listed(operands: Sequence[Type]) -> Type | None:
    return _joined_list(operands[:1])


# --- what they compute --------------------------------------------------------------------------


def _contains(container: list[object], item: object) -> bool:
    return item in container


def _set(xs: list[object], i: int, value: object) -> list[object]:
    new = list(xs)
    new[i] = value
    return new


def _insert(xs: list[object], i: int, value: object) -> list[object]:
    new = list(xs)
    new.insert(i, value)
    return new


def _without(xs: list[object], i: int) -> list[object]:
    new = list(xs)
    new.pop(i)
    return new


def _slice_of(xs: list[object], start: int | None, stop: int | None, step: int | None) -> object:
    return xs[start:stop:step]


def _range_len(start: int, stop: int, step: int) -> int:
    return len(range(start, stop, step))


def _get_of(xs: list[object], i: int) -> object:
    return xs[i]


def _reversed_list(xs: Sequence[object]) -> list[object]:
    return list(reversed(xs))


_ARITHMETIC: dict[str, tuple[Run, ResultType]] = {
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
    "neg": (operator.neg, _arithmetic),
    "pos": (operator.pos, _arithmetic),
    "invert": (operator.invert, lambda o: None if _bits(o) is None else t.INT),
    "abs": (abs, _same),
    "lt": (operator.lt, _ordered),
    "le": (operator.le, _ordered),
    "gt": (operator.gt, _ordered),
    "ge": (operator.ge, _ordered),
    "round": (round, _round),
    "max": (max, _extremum),
    "min": (min, _extremum),
    "sum": (sum, _sum),
    "len": (len, _sized),
}

_ANYTHING: dict[str, tuple[Run, ResultType]] = {
    "py.eq": (operator.eq, _always(t.BOOL)),
    "py.ne": (operator.ne, _always(t.BOOL)),
    "py.is": (operator.is_, _always(t.BOOL)),
    "py.is_not": (operator.is_not, _always(t.BOOL)),
    "py.not": (operator.not_, _always(t.BOOL)),
    "py.bool": (bool, _always(t.BOOL)),
    "py.int": (int, _always(t.INT)),
    "py.float": (float, _always(t.FLOAT)),
    "py.str": (str, _always(t.STR)),
    "py.contains": (_contains, _always(t.BOOL)),
    "py.range_len": (_range_len, _always(t.INT)),
    "py.device": (torch.device, _always(t.DEVICE)),
    "py.device_type": (operator.attrgetter("type"), _always(t.STR)),
    "py.device_index": (operator.attrgetter("index"), _always(OptionalType(t.INT))),
    "py.is_floating_point": (operator.attrgetter("is_floating_point"), _always(t.BOOL)),
    "py.itemsize": (operator.attrgetter("itemsize"), _always(t.INT)),
}

_LISTS: dict[str, tuple[Run, ResultType]] = {
    "list.get": (_get_of, _get),
    "list.slice": (_slice_of, _slice),
    "list.append": (lambda xs, v: [*xs, v], _grown),
    "list.extend": (lambda xs, ys: [*xs, *ys], _joined_list),
    "list.set": (_set, _grown),
    "list.insert": (_insert, _grown),
    "list.without": (_without, _first),
    "list.reversed": (_reversed_list, _listed),
    "list.sorted": (sorted, _listed),
    "list.of": (list, _listed),
    "list.index": (lambda xs, v: xs.index(v), _always(t.INT)),
    "list.count": (lambda xs, v: xs.count(v), _always(t.INT)),
}

_MATH_FLOATS = (
    *("sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "hypot"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "degrees", "radians"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "gamma", "lgamma"),
    *("fabs", "fmod", "copysign", "ldexp", "dist", "fsum"),
)
_MATH_INTS = ("floor", "ceil", "trunc", "gcd", "lcm", "isqrt", "factorial", "comb", "perm")
_MATH_BOOLS = ("isnan", "isinf", "isfinite", "isclose")


def _table() -> dict[str, OpDef]:
    rows = {f"py.{name}": (run, _lenient(rule)) for name, (run, rule) in _ARITHMETIC.items()}
    rows |= _ANYTHING
    rows |= {name: (run, _lenient(rule)) for name, (run, rule) in _LISTS.items()}
    for names, result in ((_MATH_FLOATS, t.FLOAT), (_MATH_INTS, t.INT), (_MATH_BOOLS, t.BOOL)):
        rows |= {f"math.{n}": (getattr(math, n), _always(result)) for n in names}
    return {n: OpDef(name=n, run=run, result=rule) for n, (run, rule) in rows.items()}


_TABLE = _table()
