"""A loop whose steps do nothing once a flag is set ends when the flag is set.

In, out: a Function. Invariant: the same steps run in the same order, without the idle ones.

    %h, %done = loop(%n, %true, %h0, %false):     %h, %done = loop(%n, %true, %h0, %false):
      block(%t, %h1, %done1):                       block(%t, %h1, %done1):
        %go = py.not(%done1)                          %h2 = torch.tanh(%h1)
        %h3, %done3 = if(%go):                        %done2 = …
          block():                           →        %go = py.not(%done2)
            %h2 = torch.tanh(%h1)                     yield(%go, %h2, %done2)
            %done2 = …
            yield(%h2, %done2)
          block():
            yield(%h1, %done1)
        yield(%true, %h3, %done3)

The `if` stays unless the flag is known to be unset before the first step. A flag that is a tensor
is converted to bool only if there is another step, since the conversion may raise.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.passes.constants import fold_constants
from lowtide.passes.ir_queries import Makers, constant, copied_ops, make_constant, makers_of
from lowtide.passes.run import only_with


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """Steps do something while the truth of the carried value `place` is `wanted`; `condition`:
    that of the `if`, which then is `answer`."""

    place: int
    wanted: bool
    condition: Value
    answer: bool


@only_with("loop")
def end_early(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    _end(result.block, makers_of(result))
    return fold_constants(result)


def _end(block: Block, makers: Makers) -> None:
    for op in block.ops:
        for inner in op.blocks:
            _end(inner, makers)
        flag = _flag(op, makers) if op.name == "loop" else None
        if flag is not None:
            op.blocks[0] = _ended(op, flag, makers)


def _flag(loop: Op, makers: Makers) -> _Flag | None:
    (body,) = loop.blocks
    if constant(body.terminator.operands[0], makers) is not True:
        return None
    choices = [op for op in body.ops if op.name == "if"]
    if len(choices) != 1:
        return None
    (choice,) = choices
    others = [op for op in body.ops[:-1] if op is not choice]
    if any(op.blocks or not opdefs.is_removable(op, makers) for op in others):
        return None
    found = _truth_of(choice.operands[0], body, makers)
    for answer, idle in zip((True, False), reversed(choice.blocks), strict=True):
        if found is not None and _is_idle(body, choice, idle):
            place, same = found
            return _Flag(
                place=place, wanted=answer == same, condition=choice.operands[0], answer=answer
            )
    return None


def _truth_of(condition: Value, body: Block, makers: Makers) -> tuple[int, bool] | None:
    """Return the index of the carried value whose truth is the condition, and False if it is
    negated. None if the condition is anything else."""
    same = True
    while condition not in body.args:
        maker = makers.get(condition)
        if maker is None or maker.name not in ("py.not", "py.bool"):
            return None
        same = same is not (maker.name == "py.not")
        (condition,) = maker.operands
    return body.args.index(condition), same


def _is_idle(body: Block, choice: Op, idle: Block) -> bool:
    """Return whether this branch does nothing, and leaves all values that the loop carries
    unchanged."""
    if any(op.name != "const" for op in idle.ops[:-1]):
        return False
    left = dict(zip(choice.results, idle.terminator.operands, strict=True))
    yields = body.terminator.operands[1:]
    return all(left.get(y, y) is a for y, a in zip(yields, body.args[1:], strict=True))


def _ended(loop: Op, flag: _Flag, makers: Makers) -> Block:
    (body,) = loop.blocks
    init = constant(loop.operands[flag.place + 1], makers)
    is_known = init is None or isinstance(init, bool | int)
    begins = is_known and bool(init) is flag.wanted
    args = [Value(a.name, a.type) for a in body.args]
    mapping = dict(zip(body.args, args, strict=True))
    head: list[Op] = []
    arg = body.args[flag.place]
    if begins and arg.type == t.BOOL:
        mapping[arg] = Value("", t.BOOL)
        head.append(make_constant(mapping[arg], flag.wanted, loop))
    known = {flag.condition: flag.answer} if begins else {}
    *ops, end = copied_ops(body, mapping, known)
    left = end.operands[flag.place]
    if left.type == t.BOOL:
        condition, going = _condition(left, flag.wanted, loop)
    else:
        condition, going = _condition_if_more(left, flag.wanted, loop, args[0])
    end.operands[0] = going
    return Block(args, [*head, *ops, *condition, end])


def _condition(value: Value, wanted: bool, loop: Op) -> tuple[list[Op], Value]:
    """Return an op and its result: True if the truth of the value is `wanted`."""
    found = Value("", t.BOOL)
    name = "py.bool" if wanted else "py.not"
    return [Op(name=name, operands=[value], results=[found], loc=loop.loc)], found


def _condition_if_more(value: Value, wanted: bool, loop: Op, step: Value) -> tuple[list[Op], Value]:
    one, after, more, none = (Value("", kind) for kind in (t.INT, t.INT, t.BOOL, t.BOOL))
    going = Value("", t.BOOL)
    condition, found = _condition(value, wanted, loop)
    yes = Block([], [*condition, Op(name="yield", operands=[found], loc=loop.loc)])
    no = Block([], [make_constant(none, False, loop)])
    no.ops.append(Op(name="yield", operands=[none], loc=loop.loc))
    ops = [
        make_constant(one, 1, loop),
        Op(name="py.add", operands=[step, one], results=[after], loc=loop.loc),
        Op(name="py.lt", operands=[after, loop.operands[0]], results=[more], loc=loop.loc),
        Op(name="if", operands=[more], results=[going], blocks=[yes, no], loc=loop.loc),
    ]
    return ops, going
