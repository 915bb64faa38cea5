"""Matrix products of a loop that do not depend on what it carries are computed before it, in one.

In, out: a Function. Always holds: the loop changes no tensor, cannot end early, and what is moved
is pure; a loop of no iterations computes nothing before it either.

                                            %ps: List[Tensor] = list.make()
                                            loop(%n, %true)
                                              block(%j: int):
    loop(%n, %true, %h)                         %a: Tensor = torch.getitem(%x, %j) {spec=("int",)}
      block(%i: int, %h.1: Tensor):             %b: Tensor = torch.matmul(%a, %w)
        %a = torch.getitem(%x, %i)              list.append(%ps, %b)
        %b = torch.matmul(%a, %w)     ->        yield(%true)
        ...                                 %p = if(n > 0): torch.stack(%ps)
                                            loop(%n, %true, %h)
                                              block(%i: int, %h.1: Tensor):
                                                %b = torch.getitem(%p, %i) {spec=("int",)}

The loop before is then lifted (`pipeline.lifting`): one product. (XLA and Halide know the same as
loop-invariant code motion of a widened value.)
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone, clone_op, free_values

_PRODUCTS = ("torch.matmul", "torch.mm", "torch.linear")
_HARMLESS = ("const", "tuple.make", "tuple.get", "unpack", "cast", "list.append", "yield")


def hoist_products(fn: Function) -> Function:
    """The function with products of all iterations in front of their loops."""
    result = clone(fn)
    _block(result.block, {})
    return result


def _block(block: Block, made_by: dict[Value, Op]) -> None:
    made_by.update((r, op) for op in block.ops for r in op.results)
    ops: list[Op] = []
    for op in block.ops:
        for inner in op.blocks:
            _block(inner, made_by)
        if op.name == "loop":
            ops.extend(_prelude(op, made_by))
        ops.append(op)
    block.ops = ops


def _is_true(v: Value, made_by: dict[Value, Op]) -> bool:
    op = made_by.get(v)
    return op is not None and op.name == "const" and op.attrs["value"] is True


def _is_pure(op: Op) -> bool:
    return not op.blocks and (op.name in _HARMLESS or opdefs.has_kind(op.name, opdefs.PURE_KINDS))


def _prelude(loop: Op, made_by: dict[Value, Op]) -> list[Op]:
    """Ops to stand before the loop; its products are replaced by reads of what these make."""
    (block,) = loop.blocks
    carries = len(block.args) > 1
    ends = (loop.operands[1], block.terminator.operands[0])
    if not carries or not all(_is_true(v, made_by) for v in ends):
        return []
    if not all(_is_pure(op) or op.name.startswith(("py.", "list.get")) for op in block.ops):
        return []
    fixed: dict[Value, Op | None] = {block.args[0]: None}
    bound = set(block.args[1:])
    made = {r for op in block.ops for r in op.results}
    found: list[Op] = []
    for op in block.ops:
        movable = op.name != "list.append" and _is_pure(op) and op is not block.terminator
        if movable and all(v in fixed or v not in (bound | made) for v in op.operands):
            fixed.update((r, op) for r in op.results)
            if op.name in _PRODUCTS and _varies(op, block.args[0], fixed):
                found.append(op)
    return [p for op in found for p in _moved(loop, op, fixed)]


def _varies(op: Op, index: Value, fixed: dict[Value, Op | None]) -> bool:
    """Whether its first operand is `x[i]` of a tensor from outside, and nothing else asks for i."""
    first = fixed.get(op.operands[0])
    if first is None or first.name != "torch.getitem" or first.attrs["spec"] != ("int",):
        return False
    if first.operands[1] is not index or first.operands[0] in fixed:
        return False
    needed = _needed(op.operands[1:], fixed)
    return all(index not in n.operands for n in needed) and index not in op.operands


def _needed(values: Sequence[Value], fixed: dict[Value, Op | None]) -> list[Op]:
    """The ops of the body that these come from, in order."""
    ops: dict[Op, None] = {}
    for v in values:
        op = fixed.get(v)
        if op is not None:
            ops.update(dict.fromkeys(_needed(op.operands, fixed)))
            ops[op] = None
    return list(ops)


def _moved(loop: Op, op: Op, fixed: dict[Value, Op | None]) -> list[Op]:
    (block,) = loop.blocks
    trips, true, loc = loop.operands[0], loop.operands[1], op.loc

    def new(name: str, operands: list[Value], type_: t.Type, **attrs: object) -> Op:
        result = [Value("", type_)]
        return Op(name=name, operands=operands, attrs=attrs, results=result, loc=loc)

    tensors = new("list.make", [], t.ListType(t.TENSOR))
    index = Value("j", t.INT)
    mapping = {block.args[0]: index}
    body = [clone_op(n, mapping) for n in [*_needed(op.operands, fixed), op]]
    append = new("list.append", [tensors.result, mapping[op.result]], t.NONE)
    before = Op(
        name="loop",
        operands=[trips, true],
        blocks=[Block([index], [*body, append, Op(name="yield", operands=[true], loc=loc)])],
        loc=loc,
    )
    zero = new("const", [], t.INT, value=0)
    some = new("py.gt", [trips, zero.result], t.BOOL)
    stack = new("torch.stack", [tensors.result, zero.result], t.TENSOR)
    none = new("undef", [], t.TENSOR)
    rows = new("if", [some.result], t.TENSOR)
    for choice in (stack, none):
        end = Op(name="yield", operands=[choice.result], loc=loc)
        rows.blocks.append(Block([], [choice, end]))
    op.name, op.attrs = "torch.getitem", {"spec": ("int",)}
    op.operands = [rows.result, block.args[0]]
    block.ops = [op, *(o for o in block.ops if o is not op)]
    _drop_unused(block)
    return [tensors, before, zero, some, rows]


def _drop_unused(block: Block) -> None:
    kept: list[Op] = []
    for op in reversed(block.ops):
        used = set(free_values(kept))
        if (
            not op.results
            or any(r in used for r in op.results)
            or not _is_pure(op)
            or op.name == "list.append"
        ):
            kept.insert(0, op)
    block.ops = kept
