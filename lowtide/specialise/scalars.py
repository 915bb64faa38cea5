"""Abstract evaluation of ops on Python values: arithmetic on sizes, comparisons, lists.

In: an op of `ir.opdefs` and abstract operands. Out: an abstract result.

    py.mul(s0, 2) -> 2*s0          py.lt(s0, 33) -> False          list.get([s0, 4], 1) -> 4
    math.sqrt(s0) -> $c0           a runtime float, computed by Python itself before the kernels run

A number that index arithmetic can express stays an Index. Any other number becomes a derived symbol
or runtime float, which the host computes with the op's own Python function, so that its meaning is
Python's. `Host.decide` answers a comparison that the ranges leave open, and may split the
signature.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

from lowtide.ir import types as t
from lowtide.ir.core import Op
from lowtide.ir.opdefs import find
from lowtide.ir.python_ops.row import OpDef
from lowtide.specialise import varying
from lowtide.specialise.abstract import (
    OPAQUE,
    Abs,
    Map,
    Origin,
    Pending,
    Ragged,
    Seq,
    concrete,
    constant,
    holds_list,
    is_constant,
    is_dynamic,
    is_int,
    tensors_in,
    wrapped,
)
from lowtide.texpr.build import NeedConst, Unsupported, Val, differ, symbols, varies
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv, mod, nonnegative


class Host(Protocol):
    """The members of the specialiser that are used here."""

    def decide(self, index: Index) -> bool | None:
        """Return whether index >= 0; None if only the run knows."""
        ...

    def ask(self, index: Index) -> bool | None:
        """Return whether index >= 0, on whatever branch is traced."""
        ...

    def truth(self, x: Abs) -> Abs | None:
        """bool(x) of a tensor, in a loop that is lifted."""
        ...

    def derive_int(self, origin: Origin) -> Abs: ...
    def derive_float(self, origin: Origin) -> Abs: ...


def evaluate(host: Host, op: Op, definition: OpDef, operands: Sequence[Abs]) -> Abs:
    """Return the abstract result. Raises Unsupported if only the run can compute it."""
    nested = any(isinstance(x.value, Seq) and any(map(holds_list, x.value.elems)) for x in operands)
    rule = _RULES.get(op.name)
    is_identity = rule in (_is, _is_not) and any(isinstance(x.value, Seq | Map) for x in operands)
    if all(is_constant(x) for x in operands) and not (nested or is_identity):
        return _folded(definition, operands)
    if rule is not None:
        result = rule(host, *operands)
        if result is not None:
            return result
    if any(isinstance(x.value, Pending) for x in operands):
        raise Unsupported("what a loop has collected is read as a list")
    if any(isinstance(x.value, Ragged) for x in operands):
        raise Unsupported("a number of steps that is another one in each iteration")
    layout = _SEQUENCES.get(op.name)
    if layout is not None and isinstance(operands[0].value, Seq):
        return _on_sequence(definition, layout, operands)
    if nested and all(is_constant(x) for x in operands):
        found = _folded(definition, operands)
        if holds_list(found):
            raise Unsupported("gives lists that are held in another list")
        return found
    return _derived(host, op, definition, operands)


def _folded(definition: OpDef, operands: Sequence[Abs]) -> Abs:
    try:
        return constant(definition.run(*map(concrete, operands)))
    except Exception as error:
        raise Unsupported(f"raises {type(error).__name__}") from error


# ---- sequences --------------------------------------------------------------------------------

# How operands reach the Python function: s a sequence, i a constant number or None, v any value.
_SEQUENCES: Final = {
    "list.get": "si", "list.slice": "siii", "list.reversed": "s", "list.of": "s",
    "py.tuple": "s", "py.iter": "s", "iter.whole": "s", "py.len": "s", "py.mul": "si",
}  # fmt: skip
_CHANGES: Final = {
    "list.append": "sv", "list.extend": "ss", "list.insert": "siv", "list.pop": "si",
    "list.set": "siv", "list.set_slice": "siiis", "list.delete": "si", "list.clear": "s",
    "list.delete_slice": "siii", "list.reverse": "s", "list.repeat": "si",
}  # fmt: skip


def changed_list(op_name: str, operands: Sequence[Abs]) -> tuple[list[Abs], Abs]:
    """Return the elements of a list after an op that changes it, and the op's result."""
    layout = _CHANGES.get(op_name)
    definition = find(op_name)
    if layout is None or definition is None:
        raise Unsupported("a list is changed by a value that is known only at run time")
    args = _arguments(layout, operands)
    try:
        result = definition.run(*args)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise Unsupported(f"raises {type(error).__name__}") from error
    return args[0], wrapped(result)


def _on_sequence(definition: OpDef, layout: str, operands: Sequence[Abs]) -> Abs:
    """Runs the op's own function on sequences of abstract values."""
    args = _arguments(layout, operands)
    whole = operands[0].value
    try:
        found = wrapped(definition.run(*args))
        if isinstance(found.value, Seq) and isinstance(whole, Seq) and whole.kind is torch.Size:
            zeros = definition.run(torch.Size([0] * len(whole.elems)), *args[1:])
            return Abs(Seq(type(zeros), found.value.elems))
        return found
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise Unsupported(f"raises {type(error).__name__}") from error


def _arguments(layout: str, operands: Sequence[Abs]) -> list[Any]:
    args: list[Any] = []
    for kind, x in zip(layout, operands, strict=False):
        if kind == "s":
            args.append(_elements(x))
        elif kind == "v":
            args.append(x)
        else:
            args.append(_constant_number(x))
    return args


def _elements(x: Abs) -> list[Abs] | tuple[Abs, ...]:
    if not isinstance(x.value, Seq):
        raise Unsupported("a sequence that is known only at run time")
    return list(x.value.elems) if x.value.kind is list else x.value.elems


def _constant_number(x: Abs) -> Any:
    if isinstance(x.value, Index):
        raise NeedConst(symbols(x.value))
    if not is_constant(x):
        raise Unsupported("a position that is known only at run time")
    return x.value


# ---- numbers ----------------------------------------------------------------------------------


def _index(x: Abs) -> Index | None:
    return as_index(x.value) if isinstance(x.value, int | Index) else None


def _known(index: Index) -> Abs:
    number = index.const
    return Abs(index if number is None else number)


def _arithmetic(
    fn: Callable[[Index, Index], Index | None], name: str = ""
) -> Callable[..., Abs | None]:
    """Return the result of an arithmetic op. `name`: of the function in kernels, if they have
    it."""

    def rule(host: Host, a: Abs, b: Abs) -> Abs | None:
        x, y = _index(a), _index(b)
        if x is None or y is None:
            return varying.of_integers(name, a, b) if name else None
        found = fn(x, y)
        return None if found is None else _known(found)

    return rule


def _floordiv(x: Index, y: Index) -> Index | None:
    return floordiv(x, y) if nonnegative(y - 1) else None


def _mod(x: Index, y: Index) -> Index | None:
    return mod(x, y) if nonnegative(y - 1) else None


def _power(x: Index, y: Index) -> Index | None:
    n = y.const
    if n is None or not 0 <= n <= 8:
        return None
    total = as_index(1)
    for _ in range(n):
        total = total * x
    return total


def _concatenated(host: Host, a: Abs, b: Abs) -> Abs | None:
    """Two sequences, or two numbers."""
    if isinstance(a.value, Seq) and isinstance(b.value, Seq):
        kinds = a.value.kind, b.value.kind
        kind = tuple if torch.Size not in kinds else type(operator.add(torch.Size(()), ()))
        return Abs(Seq(list if list in kinds else kind, (*a.value.elems, *b.value.elems)))
    return _arithmetic(lambda x, y: x + y, "add")(host, a, b)


def _negated(host: Host, a: Abs) -> Abs | None:
    x = _index(a)
    return None if x is None else _known(-x)


def _absolute(host: Host, a: Abs) -> Abs | None:
    x = _index(a)
    if x is None:
        return None
    positive = host.decide(x)
    return varying.absolute(x) if positive is None else _known(x if positive else -x)


def _same_int(host: Host, a: Abs) -> Abs | None:
    return a if isinstance(a.value, Index) else None


# ---- comparisons ------------------------------------------------------------------------------


def _truth(known: bool | None) -> Abs | None:
    return None if known is None else Abs(known)


def _compare(difference: Callable[[Index, Index], Index], name: str) -> Callable[..., Abs | None]:
    def rule(host: Host, a: Abs, b: Abs) -> Abs | None:
        x, y = _index(a), _index(b)
        if x is None or y is None:
            return varying.of_integers(name, a, b)
        far = difference(x, y)
        return _truth(host.decide(far)) or varying.not_negative(far)

    return rule


def _equal(host: Host, a: Abs, b: Abs) -> bool | None:
    x, y = _index(a), _index(b)
    if x is not None and y is not None:
        if x is y:
            return True
        if differ(x, y):
            return False
        above = host.decide(x - y - 1)
        if above is None or above:
            return None if above is None else False
        below = host.decide(y - x - 1)
        return None if below is None else not below
    if isinstance(a.value, Seq) and isinstance(b.value, Seq):
        return _equal_sequences(host, a.value, b.value)
    if is_constant(a) and is_constant(b):
        return bool(concrete(a) == concrete(b))
    if a.value is OPAQUE or b.value is OPAQUE:
        return None  # a str of a size, say
    plain = [v.value for v in (a, b) if is_constant(v)]
    if any(v is None or isinstance(v, str | torch.dtype | torch.device) for v in plain):
        return None if tensors_in(a) or tensors_in(b) else False
    return None


def _equal_sequences(host: Host, a: Seq, b: Seq) -> bool | None:
    if (a.kind is list) != (b.kind is list) or len(a.elems) != len(b.elems):
        return False
    for x, y in zip(a.elems, b.elems, strict=True):
        same = _equal(host, x, y)
        if same is not True:
            return same
    return True


def _eq(host: Host, a: Abs, b: Abs) -> Abs | None:
    x, y = _index(a), _index(b)
    same = _truth(_equal(host, a, b)) or varying.of_integers("eq", a, b)
    return varying.equal(x, y) if same is None and x is not None and y is not None else same


def _ne(host: Host, a: Abs, b: Abs) -> Abs | None:
    same = _eq(host, a, b)
    return None if same is None else _negation(same)


def _negation(known: Abs) -> Abs:
    if isinstance(known.value, Expr):
        return Abs(varying.negated(known.value))
    return Abs(not known.value)


def _is(host: Host, a: Abs, b: Abs) -> Abs | None:
    """Return `x is y` for None and other constants. Two lists of the caller's may be one list, so
    others stay open."""
    for x, y in ((a, b), (b, a)):
        if x.value is None and y.value is not OPAQUE:
            return Abs(y.value is None)
    if isinstance(a.value, Seq | Map) or isinstance(b.value, Seq | Map):
        if a is b:
            return Abs(True)
        raise Unsupported("compares the identity of two lists")
    return None


def _is_not(host: Host, a: Abs, b: Abs) -> Abs | None:
    same = _is(host, a, b)
    return None if same is None else Abs(not same.value)


def _bool(host: Host, a: Abs) -> Abs | None:
    if isinstance(a.value, Val):
        return host.truth(a)
    if varying.truth(a) is not None:
        return a
    if isinstance(a.value, Seq | Map):
        return Abs(bool(a.value.elems))
    return _ne(host, a, Abs(0)) if is_int(a) else None


def _not(host: Host, a: Abs) -> Abs | None:
    known = _bool(host, a)
    return None if known is None else _negation(known)


def _contains(host: Host, xs: Abs, item: Abs) -> Abs | None:
    if isinstance(xs.value, Map) and is_constant(item):
        return Abs(concrete(item) in xs.value.keys)
    if not isinstance(xs.value, Seq):
        return None
    for x in xs.value.elems:
        same = _equal(host, x, item)
        if same is not False:
            return _truth(same)
    return Abs(False)


def _extremum(sign: int) -> Callable[..., Abs | None]:
    def rule(host: Host, *xs: Abs) -> Abs | None:
        if len(xs) == 1:
            if not isinstance(xs[0].value, Seq):
                return None
            xs = xs[0].value.elems
        best: Abs | None = None
        for x in xs:
            index = _index(x)
            if index is None:
                return None
            if best is None:
                best = x
                continue
            top = _index(best)
            assert top is not None
            keeps = host.decide((top - index) * sign)
            if keeps is None:
                return varying.extremum(top, index, sign, host.ask) if len(xs) == 2 else None
            best = best if keeps else x
        return best

    return rule


def _sum(host: Host, xs: Abs) -> Abs | None:
    if not isinstance(xs.value, Seq):
        return None
    total = as_index(0)
    for x in xs.value.elems:
        index = _index(x)
        if index is None:
            return None
        total = total + index
    return _known(total)


def _range_len(host: Host, start: Abs, stop: Abs, step: Abs) -> Abs | None:
    low, high, by = _index(start), _index(stop), _index(step)
    if low is None or high is None or by is None or not by.const:
        return None
    way, stride = (high - low, by.const) if by.const > 0 else (low - high, -by.const)
    count = floordiv(way + (stride - 1), stride)
    some = host.decide(way)
    if some is None:
        return Abs(Ragged(count)) if varies(way) else None
    return _known(count) if some else Abs(0)


def _size(host: Host, xs: Abs) -> Abs | None:
    return Abs(Seq(torch.Size, tuple(_elements(xs))))


def _numel(host: Host, xs: Abs) -> Abs | None:
    if not (isinstance(xs.value, Seq) and xs.value.kind is torch.Size):
        return None
    found = Abs(1)
    for x in xs.value.elems:
        found = _product(host, found, x)
        if found is None:
            return None
    return found


def _len(host: Host, xs: Abs) -> Abs | None:
    return Abs(len(xs.value.elems)) if isinstance(xs.value, Seq | Map) else None


def _iterated(host: Host, xs: Abs) -> Abs | None:
    """Return `list(d)`: a dict's keys."""
    if isinstance(xs.value, Map):
        return Abs(Seq(list, tuple(map(constant, xs.value.keys))))
    return None


def _bound(host: Host, a: Abs, name: Abs) -> Abs | None:
    """Return the value of a variable that may be unbound: if it has one here, it has one in every
    run."""
    return a if isinstance(a.value, Val | Index | Expr | Seq | Map) else None


_product = _arithmetic(lambda x, y: x * y, "mul")
_RULES: Final[dict[str, Callable[..., Abs | None]]] = {
    "py.add": _concatenated,
    "py.sub": _arithmetic(lambda x, y: x - y, "sub"),
    "py.mul": _product,
    "py.floordiv": _arithmetic(_floordiv),
    "py.mod": _arithmetic(_mod),
    "py.pow": _arithmetic(_power),
    "py.neg": _negated,
    "py.pos": _same_int,
    "py.int": _same_int,
    "py.index": _same_int,
    "py.abs": _absolute,
    "py.lt": _compare(lambda x, y: y - x - 1, "lt"),
    "py.le": _compare(lambda x, y: y - x, "le"),
    "py.gt": _compare(lambda x, y: x - y - 1, "gt"),
    "py.ge": _compare(lambda x, y: x - y, "ge"),
    "py.eq": _eq,
    "py.ne": _ne,
    "py.is": _is,
    "py.is_not": _is_not,
    "py.bool": _bool,
    "py.not": _not,
    "py.contains": _contains,
    "py.len": _len,
    "list.of": _iterated,
    "list.size": _size,
    "list.numel": _numel,
    "py.iter": _iterated,
    "iter.whole": _iterated,
    "py.max": _extremum(1),
    "py.min": _extremum(-1),
    "py.sum": _sum,
    "py.range_len": _range_len,
    "py.bound": _bound,
}


# ---- what the host computes -------------------------------------------------------------------


def _derived(host: Host, op: Op, definition: OpDef, operands: Sequence[Abs]) -> Abs:
    """Return a number that the op's own function gives before the kernels run."""
    if any(tensors_in(x) for x in operands):
        raise Unsupported("it needs the values of a tensor")
    if any(varying.has_axis(x) for x in operands):
        found = varying.by_kernels(op, operands, host.decide)
        if found is not None:
            return found
    origin = Origin(definition.run, tuple(operands), op.name)
    return derived(host, op, origin)


def derived(host: Host, op: Op, origin: Origin) -> Abs:
    """Return a number of the op's result type that `origin` makes at run time."""
    result = op.result.type
    if result == t.FLOAT:
        return host.derive_float(origin)
    dynamic = any(is_dynamic(x) for x in origin.operands)
    if result == t.INT and not dynamic and not any(x.value is OPAQUE for x in origin.operands):
        return host.derive_int(origin)
    return Abs(OPAQUE, origin, dynamic=dynamic)
