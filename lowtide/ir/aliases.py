"""Finds which values may share memory, which ops write, and which values see a write.

In: a Function, or an op in a block. Out: storage classes, freshness, privacy. Front ends record a
write as a `mutate`; every pass that moves, merges or removes an op, or stores a value, uses this
module.

    %y = torch.add(%x, %1)             fresh: memory of its own
    %v = torch.view(%y, %n)            one class: %y, %v, %z
    %z = mutate(%y) {"Tensor.relu_"}   seen by %v, if that is read later
    %c = torch.clone(%y)               fresh

Invariant: the results of an unknown op may share memory with all of its operands, and the op may
store its operands anywhere. `mutate` of an in-place activation returns its operand.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, free_values, walk

# what may write into a tensor
CHANGING: Final = ("mutate", "py.call", "py.call_method", "call_module")
_FRESH: Final = ("pointwise", "reduction", "contraction", "composite", "copy", "factory", "size")
_VIEW_AT_TIMES: Final = ("torch.einsum",)  # "ij->ji"
# ops without a record whose results never alias an operand
_FRESH_CALLS: Final = frozenset(
    f"{space}.{name}{dims}d"
    for space in ("torch", "F")
    for name in ("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_max_pool")
    for dims in (1, 2, 3)
) | {
    f"{space}.{name}"
    for space in ("torch", "Tensor")
    for name in ("sort", "argsort", "topk", "cumsum", "cumprod", "cummax", "cummin", "bernoulli")
}
# of ops without a block, those that keep nothing: what they give is all that knows of an operand
_STRUCTURE: Final = ("tuple.make", "tuple.get", "list.make", "list.get", "unpack", "cast", "use")
_WRITE_ANOTHER: Final = ("F.embedding", "F.embedding_bag")  # max_norm: they scale their weight
# block arguments match operands one to one, yields match results
_IN_ORDER: Final = ("section", "saved_product")
Groups: TypeAlias = Callable[[Op], Iterator[Sequence[Value]]]
_MODES: Final = ("set_grad_enabled", "set_autocast")  # for all that follows


def is_fresh(op: Op) -> bool:
    """Return whether the results of the op share no memory with its operands."""
    if op.name in _VIEW_AT_TIMES:
        return False
    return opdefs.has_kind(op.name, _FRESH) or op.attrs.get("target") in _FRESH_CALLS


def written_by(op: Op) -> Sequence[Value]:
    """Tensors, or what holds them, that an op without blocks may write into."""
    target = str(op.attrs.get("target", ""))
    if op.name == "mutate" and not target.startswith("torch._"):
        return op.operands[:1]
    if op.name in CHANGING or (op.name == "call_torch" and writes_another(target, _named(op))):
        return op.operands
    return [op.operands[k] for k in opdefs.STATISTICS.get(op.name, ())]


def writes_another(target: str, named: Iterable[str]) -> bool:
    """Return whether a call of PyTorch writes into something other than its first operand. Such a
    call is a `call_torch`. `named`: the keywords of the call."""
    return "out" in named or target in _WRITE_ANOTHER


def _named(op: Op) -> tuple[str, ...]:
    return cast("tuple[str, ...]", op.attrs.get("kwnames", ()))


@dataclass(frozen=True, slots=True)
class Statistics:
    """`values`: whose memory norms in training and counters may write. `apart`: those of them that
    each call finds to be apart in memory."""

    values: frozenset[Value] = frozenset()
    apart: frozenset[Value] = frozenset()


def counts(op: Op) -> bool:
    """Return whether the op is `x.add_(n)`, by which norms in training count their batches."""
    is_addition = op.name == "mutate" and op.attrs["target"] in ("Tensor.add_", "operator.iadd")
    return is_addition and [v.type for v in op.operands[1:]] == [t.INT]


def is_observable(block: Block, k: int) -> bool:
    """Return whether a later op could notice that op `k` of the block writes in place. It could not
    if the first operand was made in this block, under the same modes, in memory of its own, and no
    other value there shares that memory. A plain op may then replace op `k`."""
    x = block.ops[k].operands[0]
    made = next((i for i, op in enumerate(block.ops[:k]) if x in op.results), None)
    if made is None or not is_fresh(block.ops[made]):
        return True
    names = {x}
    for op in block.ops[made + 1 : k]:
        if any(map(_switches_modes, walk(Block([], [op])))):
            return True
        if names.isdisjoint(free_values([op])) or is_fresh(op):
            continue
        if not (op.name.startswith("torch.") or op.name in _STRUCTURE):
            return True  # it may keep it, or write into it
        names.update(r for r in op.results if holds_tensors(r))
    return not names.isdisjoint(v for v in free_values(block.ops[k + 1 :]) if v is not x)


def _switches_modes(op: Op) -> bool:
    """Return whether the op changes, for later ops, if gradients are recorded, or a default
    dtype."""
    target = str(op.attrs.get("target", op.attrs.get("name", "")))
    return any(mode in target for mode in _MODES)


def may_change(function: Function, writers: Iterable[Op] | None = None) -> frozenset[Value]:
    """Return the values whose memory some op may write into. `writers`: only these ops count."""
    ops = list(function.walk() if writers is None else writers)
    changed = [v for op in ops for v in written_by(op)]
    if not changed:
        return frozenset()
    classes = Classes(function.block)
    roots = {classes.root(v) for v in changed}
    return frozenset(v for v in classes.members() if classes.root(v) in roots)


def lent(function: Function) -> frozenset[Value]:
    """Return the values that may share memory with the caller's: arguments, and what a module
    has."""
    classes = Classes(function.block)
    roots = {classes.root(v) for v in function.params}
    return frozenset(v for v in classes.members() if classes.root(v) in roots)


def returned(function: Function) -> frozenset[Value]:
    """Return the values that may share memory with a result."""
    classes = Classes(function.block)
    roots = {classes.root(v) for v in function.block.terminator.operands}
    return frozenset(v for v in classes.members() if classes.root(v) in roots)


def is_apart(op: Op, changed: Container[Value]) -> bool:
    """Return whether each result of an op with blocks has memory of its own. It has not if it may
    share memory with another result. A result in `changed` must not share memory with what the
    blocks read from outside either."""
    classes = Classes(Block([], [op]))
    roots = [classes.root(r) for r in op.results if holds_tensors(r)]
    given = {classes.root(v) for v in free_values([op]) if holds_tensors(v)}
    written = (classes.root(r) for r in op.results if r in changed)
    return len({*roots}) == len(roots) and given.isdisjoint(written)


class Classes:
    """Storage classes of a block's values: disjoint sets of those that may share memory; or of what
    else `groups` says of an op."""

    def __init__(self, block: Block, groups: Groups | None = None) -> None:
        self._parent: dict[Value, Value] = {}
        self._groups = groups or _may_share
        self._block(block)

    def root(self, v: Value) -> Value:
        """Return the representative of the value's class."""
        parent = self._parent.setdefault(v, v)
        while parent is not v:
            grand = self._parent[parent]
            self._parent[v] = grand
            v, parent = parent, grand
        return v

    def members(self) -> Iterable[Value]:
        """Return all values that the classes know."""
        return list(self._parent)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            for inner in op.blocks:
                self._block(inner)
            for group in self._groups(op):
                self._unite(group)

    def _unite(self, values: Iterable[Value]) -> None:
        roots = [self.root(v) for v in values]
        for other in roots[1:]:
            self._parent[self.root(other)] = self.root(roots[0])


def _may_share(op: Op) -> Iterator[Sequence[Value]]:
    for group in groups(op):
        yield [v for v in group if holds_tensors(v)]


def groups(op: Op) -> Iterator[Sequence[Value]]:
    """Yield groups of values that may be one another, or a part, because of this op."""
    if op.name in _IN_ORDER:
        for inner in op.blocks:
            yield from zip(op.operands, inner.args, strict=False)
            yield from zip(op.results, inner.terminator.operands, strict=False)
        if op.name == "saved_product":  # its result is its operand
            yield [*op.operands, *op.results]
    elif op.name == "loop":
        (body,) = op.blocks
        carried = op.operands[2:], op.results, body.args[1:], body.terminator.operands[1:]
        yield from zip(*carried, strict=False)
    elif op.blocks:  # the first block of a `with` gives the results, of an `if` each
        for inner in op.blocks[: 1 if op.name == "with" else None]:
            yield from zip(op.results, inner.terminator.operands, strict=False)
        yield [*op.operands, *(v for inner in op.blocks for v in inner.args)]
    elif not is_fresh(op):
        yield [*op.operands, *op.results]


def holds_tensors(v: Value) -> bool:
    """Return whether the value is a tensor, or may contain one."""
    return v.type not in (t.INT, t.FLOAT, t.BOOL, t.STR, t.NONE)
