"""Dead code elimination: removes unused ops, and unused results of `if` and `loop`.

In, out: a Function. Invariant: ops that raise, print, write or draw random numbers stay. An op
that may raise also stays if the user's program never reads its result (`use`).

    %a: Tensor = torch.exp(%x)
    %b: Tensor = torch.add(%x, %x, %1)   →   %b: Tensor = torch.add(%x, %x, %1)
    return(%b)                               return(%b)

A carried value that the body yields unchanged is replaced by its value before the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir.core import Block, Function, Op, Value, clone, walk
from lowtide.ir.effects import Effects
from lowtide.passes.ir_queries import Makers, makers_of

_TYPED: Final = ("tuple.make", "list.make", "dict.make", "loop", "yield", "return")


def eliminate_dead_code(fn: Function) -> Function:
    """Return the function without ops that have no effect on what it returns or does."""
    result = clone(fn)
    makers = makers_of(result)
    lasting = {op for op in result.walk() if _is_lasting(op, makers)}
    while True:
        typed = Counter(v for op in result.walk() if op.name in _TYPED for v in op.operands)
        _forward_unchanged(result.block, {}, typed)
        used = _used_values(result.block, lasting)
        if not _sweep(result.block, used, lasting):
            return result


def keep_what_raises(fn: Function) -> Function:
    """Return the function with a `use` of unread values whose op may raise.

    `eliminate_dead_code` leaves these ops in place. In a chain of such ops only the last one is
    marked. Run this on a program as it was written: other passes leave values unread that they
    compute elsewhere.
    """
    result = clone(fn)
    makers = makers_of(result)
    lasting = {op for op in result.walk() if _is_lasting(op, makers)}
    places = set(_items_run_over(result, makers))
    raising = {op for op in result.walk() if opdefs.may_raise(op, makers)} - lasting - places
    while True:
        used = _used_values(result.block, lasting)
        unread = {
            op for op in raising if op.results and not op.blocks and used.isdisjoint(op.results)
        }
        if not unread:
            return result
        needed = _used_values(result.block, lasting | raising)
        last = {op for op in unread if needed.isdisjoint(op.results)}
        _put_uses(result.block, last or unread)  # all of those that read each other in turns
        lasting = {op for op in result.walk() if _is_lasting(op, makers)}


def _items_run_over(fn: Function, makers: Makers) -> Iterator[Op]:
    """Yield the ops `xs[i]`, with `i` the step of a loop of at most `len(xs)` steps which changes
    no list."""
    for loop in fn.walk():
        if loop.name != "loop" or opdefs.effects_of(loop, makers) & Effects.MUTATES:
            continue
        step, within = loop.blocks[0].args[0], set(_lists_measured(loop.operands[0], makers))
        for op in walk(loop.blocks[0]):
            if op.name == "list.get" and op.operands[1] is step and op.operands[0] in within:
                yield op


def _lists_measured(length: Value, makers: Makers) -> Iterator[Value]:
    """Yield the lists `xs` and `ys` of `min(len(xs), len(ys))`."""
    maker = makers.get(length)
    if maker is not None and maker.name == "py.len":
        yield maker.operands[0]
    elif maker is not None and maker.name == "py.min":
        for value in maker.operands:
            yield from _lists_measured(value, makers)


def _put_uses(block: Block, ops: Set[Op]) -> None:
    """Puts a `use` behind each of these ops."""
    kept: list[Op] = []
    for op in block.ops:
        for inner in op.blocks:
            _put_uses(inner, ops)
        kept.append(op)
        if op in ops:
            kept.append(Op(name="use", operands=op.results[:1], loc=op.loc))
    block.ops = kept


def _is_lasting(op: Op, makers: Makers) -> bool:
    """Return whether the op must run even if nothing reads its results."""
    endless = op.name == "loop" and _may_be_endless(op)
    return endless or not opdefs.is_removable(op, makers)


def _may_be_endless(op: Op) -> bool:
    """Return whether the loop may run forever. Only a `for` may be removed."""
    block = op.blocks[0]
    condition = block.terminator.operands[0]
    return not any(o.name == "const" and condition in o.results for o in block.ops)


def _used_values(block: Block, lasting: Set[Op]) -> set[Value]:
    """Return the values that the result or an op with an effect needs, found from the end
    backwards."""
    used: set[Value] = set()
    _mark(block, used, set(block.terminator.operands), lasting)
    return used


def _mark(block: Block, used: set[Value], wanted: set[Value], lasting: Set[Op]) -> None:
    used |= wanted
    for op in reversed(block.ops):
        if op is block.terminator or not (op in lasting or any(r in used for r in op.results)):
            continue
        if op.name == "loop":
            _mark_loop(op, used, lasting)
        elif op.name == "if":
            used.add(op.operands[0])
            for inner in op.blocks:
                ends = zip(op.results, inner.terminator.operands, strict=True)
                _mark(inner, used, {v for r, v in ends if r in used}, lasting)
        elif op.name == "with":
            used.update(op.operands)
            for inner in reversed(op.blocks):
                _mark(inner, used, set(inner.terminator.operands), lasting)
        else:
            used.update(op.operands)


def _mark_loop(op: Op, used: set[Value], lasting: Set[Op]) -> None:
    (block,) = op.blocks
    used.update(op.operands[:2])
    condition, *yielded = block.terminator.operands
    needed = {condition}
    while True:
        before = len(used)
        for result, arg, value in zip(op.results, block.args[1:], yielded, strict=True):
            if result in used or arg in used:
                needed.add(value)
        _mark(block, used, needed, lasting)
        if len(used) == before:
            break
    for result, arg, value in zip(op.results, block.args[1:], op.operands[2:], strict=True):
        if result in used or arg in used:
            used.add(value)


def _sweep(block: Block, used: set[Value], lasting: Set[Op]) -> bool:
    """Remove unused ops. Return whether there were any."""
    changed = False
    kept: list[Op] = []
    for op in block.ops:
        is_needed = op is block.terminator or op in lasting or any(r in used for r in op.results)
        if not is_needed:
            changed = True
            continue
        if op.name == "if":
            changed |= _shrink_if(op, used)
        elif op.name == "loop":
            changed |= _shrink_loop(op, used)
        for inner in op.blocks:
            changed |= _sweep(inner, used, lasting)
        kept.append(op)
    block.ops = kept
    return changed


def _shrink_if(op: Op, used: set[Value]) -> bool:
    keep = [r in used for r in op.results]
    op.results = _only(op.results, keep)
    for inner in op.blocks:
        inner.terminator.operands = _only(inner.terminator.operands, keep)
    return not all(keep)


def _shrink_loop(op: Op, used: set[Value]) -> bool:
    (block,) = op.blocks
    keep = [r in used or a in used for r, a in zip(op.results, block.args[1:], strict=True)]
    op.results = _only(op.results, keep)
    op.operands = [*op.operands[:2], *_only(op.operands[2:], keep)]
    block.args = [block.args[0], *_only(block.args[1:], keep)]
    end = block.terminator
    end.operands = [end.operands[0], *_only(end.operands[1:], keep)]
    return not all(keep)


def _only(values: list[Value], keep: list[bool]) -> list[Value]:
    return [v for v, k in zip(values, keep, strict=True) if k]


def _forward_unchanged(block: Block, stand_ins: dict[Value, Value], typed: Counter[Value]) -> None:
    """Replace results of loops that carry a value unchanged. `typed`: how often a value's type is
    part of, or equal to, that of another one."""
    empty: set[Value] = set()  # `[]`, of whose type is known only what goes in
    for op in block.ops:
        if op.name == "list.make" and not op.operands:
            empty.update(op.results)
        op.operands = [stand_ins.get(v, v) for v in op.operands]
        if op.name == "loop":
            inner = op.blocks[0]
            yielded = inner.terminator.operands[1:]
            rows = zip(op.operands[2:], inner.args[1:], yielded, op.results, strict=True)
            for before, arg, after, result in rows:
                may_widen = before in empty and typed[before] == 1  # by this loop
                if arg is after and (before.type == result.type or may_widen):
                    before.type = result.type
                    stand_ins[arg] = stand_ins[result] = before
        for inner in op.blocks:
            _forward_unchanged(inner, stand_ins, typed)
        if op.name == "if":
            then, otherwise = (b.terminator.operands for b in op.blocks)
            for a, b, result in zip(then, otherwise, op.results, strict=True):
                if a is b and a.type == result.type and not _made_inside(a, op):
                    stand_ins[result] = a


def _made_inside(value: Value, op: Op) -> bool:
    return any(value in o.results for block in op.blocks for o in walk(block))
