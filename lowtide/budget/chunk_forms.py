"""Rewrites ops that cannot be cut along an axis into equal ones that can.

The ops are between the op that makes a value of pairs and the op of PyTorch's that reads it.

In: an `Outer`, the range of these ops. Out: the block's ops. Values stay the same to the bit.

    d = cdist(x, x)               v = x[...]                  one operand is cut, the other whole
                                  d = cdist(x, v)
    d.fill_diagonal_(0)     →     e = d.masked_fill(r == c, 0)        r: [N, 1], c: [N], positions
    torch.triu(d, 1)              d.masked_fill(c - 1 < r, 0)
    torch.eye(n)                  (r == c) * 1.0
    torch.zeros_like(d)           d is cut: no rewriting, see `independence`
    d[rows, columns] = v          e = put_in_part(d, rows, columns, v, r, c, …)
    m.scatter_(1, i, 1.0)         torch.scatter(m, 1, i, 1.0)

Positions are small operands of the section, so that a chunk reads those of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import torch

from lowtide.budget.outer import Outer
from lowtide.ir import types as t
from lowtide.ir.aliases import is_observable
from lowtide.ir.core import Block, Op, Value, walk

PUT: Final = "torch.put_in_part"
_WRITES: Final = {
    "Tensor.fill_diagonal_": "fill_diagonal", "Tensor.triu_": "triu", "Tensor.tril_": "tril",
}  # fmt: skip
_PUTS: Final = ("index_put", "index_put_", "index_fill", "index_fill_", "__setitem__")
_PLAIN: Final = {"torch.triu": "triu", "torch.tril": "tril", "torch.eye": "eye"}


def puts_at_places(op: Op) -> bool:
    """Return whether the op writes at indices that tensors name, out of place or in place."""
    name = str(op.attrs.get("target", "")).rpartition(".")[2]
    if op.name not in ("mutate", "call_torch") or name not in _PUTS:
        return False
    return name != "__setitem__" or "tensor" in cast("tuple[str, ...]", op.attrs["spec"])


def in_chunk_form(outer: Outer, ops: list[Op], begin: int, end: int, least: int) -> None:
    """Rewrite `ops[begin:end]` in place, and later scatters; see the module's text. `least`: bytes
    of what is rewritten."""
    maker = _Maker()
    block, k, stop = Block([], ops), begin, end
    while k < len(ops):
        op = ops[k]
        x = outer.known.get(op.results[0]) if op.results else None
        is_wanted = k < stop or _is_scatter(op)
        if is_wanted and isinstance(x, torch.Tensor) and x.nbytes >= least:
            is_write = op.name == "mutate"
            made = [] if is_write and _is_known_otherwise(block, k) else _instead(outer, maker, op)
            if made:
                later = ops[k + 1 :]
                ops[k:] = [
                    *made,
                    *(_renamed(later, op.operands[0], op.result) if is_write else later),
                ]
                k, stop = k + len(made) - 1, stop + len(made) - 1
        k += 1
    ops[begin:begin] = maker.first


def _instead(outer: Outer, maker: _Maker, op: Op) -> list[Op]:
    """Return the ops to take for this one; none if it stays."""
    if puts_at_places(op):
        return maker.put(outer, op)
    if _is_scatter(op):
        return _scattered(op)
    kind = _WRITES.get(str(op.attrs["target"])) if op.name == "mutate" else _PLAIN.get(op.name)
    x = outer.known[op.results[0]]
    given = [outer.known.get(v) for v in op.operands]
    if kind is None:
        return maker.with_copies_of_names(op) if op.name != "mutate" else []
    if op.attrs.get("kwnames") or x.dim() != 2 or not outer.on_host:
        return []
    if kind == "eye":
        return maker.eye(op, x) if given[5] is False and given[2] in (None, torch.bool) else []
    if kind == "fill_diagonal":
        value = op.operands[1] if len(op.operands) == 2 else None
        is_number = value is not None and value.type in (t.FLOAT, t.INT) and x.is_floating_point()
        return maker.filled(op, x, "torch.eq", 0, value) if is_number else []
    offset = given[1] if len(given) > 1 else 0
    if type(offset) is not int or x.dtype == torch.bool:
        return []
    return maker.filled(op, x, "torch.lt" if kind == "triu" else "torch.gt", offset, None)


def _is_known_otherwise(block: Block, k: int) -> bool:
    """Return whether the tensor that op `k` writes has other names, or is read in other blocks."""
    x = block.ops[k].operands[0]
    nested = (inner for op in block.ops[k + 1 :] for b in op.blocks for inner in walk(b))
    return is_observable(block, k) or any(x in op.operands for op in nested)


def _renamed(ops: Sequence[Op], old: Value, new: Value) -> list[Op]:
    return [
        replace(op, operands=[new if v is old else v for v in op.operands])
        if old in op.operands
        else op
        for op in ops
    ]


def _is_scatter(op: Op) -> bool:
    return op.name == "mutate" and op.attrs.get("target") == "Tensor.scatter_"


def _scattered(op: Op) -> list[Op]:
    """Return the scatter that makes another tensor; none for another kind of scatter."""
    if op.attrs.get("kwnames") or len(op.operands) != 4:
        return []
    type_ = op.operands[3].type
    if type_ not in (t.TENSOR, t.FLOAT, t.INT, t.BOOL):
        return []
    name = "torch.scatter.src" if type_ == t.TENSOR else "torch.scatter.value"
    return [replace(op, name=name, attrs={})]


def _written(outer: Outer, op: Op) -> tuple[list[Value | None], Value, bool] | None:
    """Return the indices of a write into a matrix (None: all of a dim), the value, and whether it
    adds; None for another kind of write."""
    x, known = outer.known[op.operands[0]], [outer.known.get(v) for v in op.operands]
    name = str(op.attrs["target"]).rpartition(".")[2]
    place, adds, at = len(known) - 1, False, list[Value | None]()
    if op.attrs.get("kwnames") not in (None, (), ("accumulate",)) or x.dim() != 2:
        return None
    if name == "__setitem__":
        at = _subscripts(op, known)
    elif name.startswith("index_fill"):
        at = [op.operands[2], None] if known[1] in (0, -2) else [None, op.operands[2]]
    else:
        place, adds = 2, known[3] if len(known) > 3 else False
        made = (o for o in outer.ops if op.operands[1] in o.results and o.name.endswith(".make"))
        at = [v for o in made for v in o.operands]
    at += [None] * (2 - len(at))
    indices: list[Any] = [outer.known.get(v) for v in at if v is not None]
    if len(at) != 2 or not indices or not all(map(_is_index, indices)) or type(adds) is not bool:
        return None
    value, most = known[place], max(i.dim() for i in indices) if len(indices) == 2 else 0
    if isinstance(value, torch.Tensor):
        is_fit = value.dtype == x.dtype and value.dim() <= most
    else:
        is_fit = isinstance(value, int | float)
    return (at, op.operands[place], adds) if is_fit else None


def _subscripts(op: Op, known: Sequence[Any]) -> list[Value | None]:
    """Return the index of each dim that `x[…] = v` names, None for `:`; none for another kind."""
    at, k = list[Value | None](), 1
    for word in cast("tuple[str, ...]", op.attrs["spec"]):
        if word not in ("tensor", "slice"):
            return []
        if word == "slice" and any(v is not None for v in known[k : k + 3]):
            return []
        at.append(op.operands[k] if word == "tensor" else None)
        k += 1 if word == "tensor" else 3
    return at


def _is_index(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype == torch.int64


class _Maker:
    """Makes ops. `first`: those that stand in front of all others."""

    def __init__(self) -> None:
        self.first: list[Op] = []
        self._positions: dict[tuple[int, bool, int], Value] = {}

    def with_copies_of_names(self, op: Op) -> list[Op]:
        """Return an op that reads no tensor twice, after views of those that it does; none if it
        reads each once."""
        operands, seen = list[Value](), set[Value]()
        for v in op.operands:
            if v in seen and v.type == t.TENSOR:
                view = Value(v.name, t.TENSOR)
                attrs: dict[str, Any] = {"spec": ("ellipsis",)}
                getitem = Op(name="torch.getitem", operands=[v], attrs=attrs, results=[view])
                self.first.append(replace(getitem, loc=op.loc))
                v = view
            seen.add(v)
            operands.append(v)
        return [replace(op, operands=operands)] if operands != op.operands else []

    def put(self, outer: Outer, op: Op) -> list[Op]:
        """Return the op that writes into a part of a matrix; none for another kind of write."""
        found = _written(outer, op)
        if found is None or not outer.on_host:
            return []
        at, value, adds = found
        sizes = outer.known[op.operands[0]].shape
        places = [self._at(n, k == 0, 0, op) for k, n in enumerate(sizes)]
        indices = [self._const(None, op) if v is None else v for v in at]
        numbers = [self._const(n, op) for n in (*sizes, adds)]
        operands = [op.operands[0], *indices, value, *places, *numbers]
        return [Op(name=PUT, operands=operands, results=op.results, loc=op.loc)]

    def eye(self, op: Op, x: torch.Tensor) -> list[Op]:
        """Return the ops that make the same as `torch.eye`."""
        rows, columns = (self._at(x.shape[k], k == 0, 0, op) for k in (0, 1))
        if x.dtype == torch.bool:
            return [replace(op, name="torch.eq", operands=[rows, columns])]
        is_on = Value("", t.TENSOR)
        made = [replace(op, name="torch.eq", operands=[rows, columns], results=[is_on])]
        return [*made, replace(op, name="torch.mul", operands=[is_on, self._const(1.0, op)])]

    def filled(
        self, op: Op, x: torch.Tensor, by: str, offset: int, value: Value | None
    ) -> list[Op]:
        """Return the ops that write a value, 0 if None, where `by` holds for column - offset and
        row."""
        rows, columns = self._at(x.shape[0], True, 0, op), self._at(x.shape[1], False, offset, op)
        value = value or self._const(0, op)
        mask = Value("", t.TENSOR)
        compare = Op(name=by, operands=[columns, rows], results=[mask], loc=op.loc)
        operands = [op.operands[0], mask, value]
        fill = Op(name="torch.masked_fill", operands=operands, results=op.results, loc=op.loc)
        return [compare, fill]

    def _at(self, size: int, is_row: bool, offset: int, like: Op) -> Value:
        """Return the positions in a dim, less an offset: [N, 1] of rows, [N] of columns."""
        key = size, is_row, offset
        if key not in self._positions:
            numbers: list[Any] = [-offset, size - offset, 1, torch.int64, None, "cpu", False, None]
            operands = [self._const(n, like) for n in numbers]
            found = self._made("torch.arange", operands, like)
            if is_row:
                found = self._made("torch.unsqueeze", [found, self._const(1, like)], like)
            self._positions[key] = found
        return self._positions[key]

    def _made(self, name: str, operands: list[Value], like: Op) -> Value:
        result = Value("", t.TENSOR)
        self.first.append(Op(name=name, operands=operands, results=[result], loc=like.loc))
        return result

    def _const(self, value: Any, like: Op) -> Value:
        type_ = t.type_of(value)
        assert type_ is not None
        made = Value("", type_)
        self.first.append(Op(name="const", attrs={"value": value}, results=[made], loc=like.loc))
        return made
