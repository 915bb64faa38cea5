"""A `while` loop over an induction variable becomes a loop with a known number of steps.

In, out: a Function. Invariant: the number of steps is the same; the bound is loop invariant.

    %go: bool = py.lt(%a, %n)                      %x = loop(%range_len, %true, …)
    %x = loop(%endless, %go, %a, …)          →       block(%i, %k, …):
      block(%i, %k, …):                                …
        %more: int = py.add(%k, %2)                    yield(%true, %more, …)
        %next: bool = py.lt(%more, %n)
        yield(%next, %more, …)

The first step may be unconditional: `while True`, left by `if k >= n: break`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.passes.evolution import evolution, number_of
from lowtide.passes.ir_queries import (
    Changes,
    Makers,
    changes_in,
    constant,
    drop,
    make_constant,
    makers_of,
    may_change,
)
from lowtide.passes.run import only_with

# comparison: (which way the counter runs, what to add to the bound for where a range would end)
_TESTS: Final = {"py.lt": (1, 0), "py.le": (1, 1), "py.gt": (-1, 0), "py.ge": (-1, -1)}
_UNEQUAL: Final = "py.ne"
_FLIPPED: Final = {
    "py.lt": "py.gt", "py.gt": "py.lt", "py.le": "py.ge", "py.ge": "py.le", "py.ne": "py.ne",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counter:
    """The first test is of `start`, or there is none; each step adds `step`, which is not 0, and
    the loop goes on as long as `test`, a comparison, holds with `bound`; `hoisted`: what makes the
    bound in each step anew."""

    start: Value | int
    step: int
    test: str
    bound: Value | int
    is_tested_first: bool
    hoisted: tuple[Op, ...]


@only_with("loop")
def count_loops(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    makers = makers_of(result)
    _count(result.block, makers, changes_in(result, makers))
    return result


def _count(block: Block, makers: Makers, changes: Changes) -> None:
    kept: list[Op] = []
    for op in block.ops:
        counter = _counter(op, makers, changes) if op.name == "loop" else None
        if counter is not None:
            kept += _counted(op, counter)
        for inner in op.blocks:
            _count(inner, makers, changes)
        kept.append(op)
    block.ops = kept


def _counter(loop: Op, makers: Makers, changes: Changes) -> _Counter | None:
    """Return the counter of a loop of this form, else None."""
    trips, going = loop.operands[:2]
    (body,) = loop.blocks
    endless = constant(trips, makers)
    if not isinstance(endless, int) or endless < opdefs.MAX_TRIPS:
        return None
    goes_on = makers.get(body.terminator.operands[0])
    for test, after, limit in _sides(goes_on):
        bound = _known(limit, makers)
        hoisted: list[Op] = []
        if isinstance(bound, Value) and not _hoist(bound, loop, makers, changes, hoisted):
            continue
        for start, step in _steps(loop, after, makers):
            if not _ends(test, step):
                continue
            tests = (
                (name, *(_known(v, makers) for v in xs)) for name, *xs in _sides(makers.get(going))
            )
            is_tested = (test, start, bound) in list(tests)
            if is_tested or constant(going, makers) is True:
                drop(body, set(hoisted))
                return _Counter(
                    start=start,
                    step=step,
                    test=test,
                    bound=bound,
                    is_tested_first=is_tested,
                    hoisted=tuple(hoisted),
                )
    return None


def _hoist(value: Value, loop: Op, makers: Makers, changes: Changes, ops: list[Op]) -> bool:
    """Return whether the value is the same in all steps. The ops of a step that make it go to
    `ops`."""
    (body,) = loop.blocks
    maker = makers.get(value)
    if maker is None or maker not in body.ops:
        return value not in body.args
    sizes = [v for v in maker.operands if v in makers and makers[v].name == "torch.shape"]
    may_go = (
        opdefs.is_shareable(maker, makers, sizes)
        and not opdefs.has_kind(maker.name, ("pointwise",))
        and not may_change(maker, changes)
    )
    inner = maker.operands
    if may_go and all(_hoist(v, loop, makers, changes, ops) for v in inner) and maker not in ops:
        ops.append(maker)
    return may_go and maker in ops


def _ends(test: str, step: int) -> bool:
    """Return whether a counter with this step comes to the bound."""
    return abs(step) == 1 if test == _UNEQUAL else step * _TESTS[test][0] > 0


def _known(value: Value, makers: Makers) -> Value | int:
    """Return the value of a constant, else the value itself."""
    found = number_of(value, makers)
    return value if found is None else found


def _sides(op: Op | None) -> Iterator[tuple[str, Value, Value]]:
    """Yield the comparison of ints by an op, as written and with the sides exchanged."""
    if op is not None and op.name in _FLIPPED and all(v.type == t.INT for v in op.operands):
        a, b = op.operands
        yield op.name, a, b
        yield _FLIPPED[op.name], b, a


def _steps(loop: Op, after: Value, makers: Makers) -> Iterator[tuple[Value | int, int]]:
    """Yield the ways to count `after`: its value before the first step, and the difference per
    step."""
    (body,) = loop.blocks
    ahead = evolution(after, body.args[0], makers).ahead
    if ahead is not None:  # the number of the step, and more
        yield ahead - 1, 1
    yielded = body.terminator.operands[1:]
    for init, arg, value in zip(loop.operands[2:], body.args[1:], yielded, strict=True):
        if value is not after or arg.type != t.INT:
            continue
        if step := evolution(after, arg, makers).ahead:
            yield _known(init, makers), step


def _counted(loop: Op, counter: _Counter) -> list[Op]:
    """Makes the loop a counted one; gives the ops that count."""
    ops = list(counter.hoisted)

    def known(value: int) -> Value:
        ops.append(make_constant(Value("", t.INT), value, loop))
        return ops[-1].result

    def number(name: str, *operands: Value) -> Value:
        ops.append(Op(name=name, operands=list(operands), results=[Value("", t.INT)], loc=loop.loc))
        return ops[-1].result

    start, stop = (known(v) if isinstance(v, int) else v for v in (counter.start, counter.bound))
    if counter.test == _UNEQUAL:
        ops += _until_equal(loop, counter, start, stop)
        return [*ops, *_with_trips(loop, ops[-1].result)]
    beyond = _TESTS[counter.test][1]
    stop = number("py.add", stop, known(beyond)) if beyond else stop
    trips = number("py.range_len", start, stop, known(counter.step))
    if not counter.is_tested_first:
        trips = number("py.max", trips, known(1))
    return [*ops, *_with_trips(loop, trips)]


def _until_equal(loop: Op, counter: _Counter, start: Value, stop: Value) -> list[Op]:
    """Return the number of steps from `start` to `stop`. A counter beyond `stop` never comes to
    it."""
    least, far, comes, trips = (Value("", t.INT) for _ in range(4))
    comes.type = t.BOOL
    ends = [stop, start] if counter.step > 0 else [start, stop]
    ahead = Block([], [Op(name="yield", operands=[far], loc=loop.loc)])
    gone_by = Block([], [Op(name="yield", operands=[loop.operands[0]], loc=loop.loc)])
    return [
        make_constant(least, 0 if counter.is_tested_first else 1, loop),
        Op(name="py.sub", operands=ends, results=[far], loc=loop.loc),
        Op(name="py.ge", operands=[far, least], results=[comes], loc=loop.loc),
        Op(name="if", operands=[comes], results=[trips], blocks=[ahead, gone_by], loc=loop.loc),
    ]


def _with_trips(loop: Op, trips: Value) -> list[Op]:
    """Makes it a counted loop; gives what comes before."""
    going, continues = Value("", t.BOOL), Value("", t.BOOL)
    loop.operands[:2] = [trips, going]
    (body,) = loop.blocks
    body.terminator.operands[0] = continues
    body.ops.insert(0, make_constant(continues, True, loop))
    return [make_constant(going, True, loop)]
