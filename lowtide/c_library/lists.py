"""Prints lists that loops and branches fill as C.

In: ops on a list that grows in a loop or branch. Out: memory for as many elements as it may get,
and a count.

    keep = []                    int64_t z_r3 = 0;  p_4: memory for v0 elements
    for i in range(n): …
        keep.append(k)           memcpy(p_4 + z_r3++ * 8, …)
    torch.tensor(keep)           int64 [z_r3] in a copy of p_4

The elements are numbers of one kind, or tensors of one type and size. How many there may be is the
number of steps of the loops around each `append`: a function is printed again once that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from lowtide.c_library import composed, tensor_ops
from lowtide.c_library.inlined import Inlined
from lowtide.c_library.values import (
    Again,
    Growth,
    Refused,
    Rows,
    Tensor,
    c_int,
    c_real,
    c_truth,
    is_bool,
    is_float,
    is_int,
    of_torch,
)
from lowtide.codegen.host.c_driver import CTYPES
from lowtide.ir import dtypes
from lowtide.ir.core import Op
from lowtide.ir.dtypes import DType
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import nonnegative


class Lists(Inlined):
    """See the module's text. `growths`: what earlier rounds have found about lists."""

    growths: dict[Op, Growth | None]

    def grown_list(self, op: Op, given: Sequence[object]) -> Rows | None:
        """Return a new list if it is one that grows in a loop or branch."""
        growth = self.growths.get(op)
        if growth is None:
            return None
        whole = tensor_ops.memory(self.frame, growth.dtype, (growth.most, *growth.shape))
        count = self.frame.variable(0, growth.most, is_small=True)
        self.lines += [
            tensor_ops.declared(whole),
            f"int64_t {c_int(count)[1:-1]} = 0; (void){c_int(count)};",
        ]
        made = Rows(op=op, whole=whole, count=count, kind=growth.kind, level=len(self.trips))
        self.rows.append(made)
        for x in given:
            self.append(made, x)
        return made

    def grows(self, made_by: Op, made_in: int, items: Sequence[object], x: object) -> None:
        """Raise Again for a list of which an element is added in a loop or branch."""
        like = next(iter([*items, x]))
        kind, dtype, shape = _kind(like)
        if any(n is not self.frame.most(n) for n in shape):
            raise Refused("adds tensors of a size that the data decide to a list")
        found = as_index(len(items)) + self.steps(made_in)
        raise Again(growths={made_by: Growth(kind=kind, dtype=dtype, shape=shape, most=found)})

    def steps(self, level: int) -> Index:
        """Return how often what is printed now runs for each time of an outer level."""
        found = as_index(1)
        for n in self.trips[level:]:
            if n is None:
                raise Refused("fills a list in a loop without a bound; write `for i in range(n)`")
            found = found * n
        return found

    def append(self, rows: Rows, x: object) -> None:
        """Print `rows.append(x)`."""
        kind, dtype, shape = _kind(x)
        if kind != rows.kind or dtype is not rows.whole.dtype or shape != rows.whole.shape[1:]:
            raise Refused("adds an element of another type or size to a list")
        rows.added = rows.added + self.steps(rows.level)
        at = self.element(rows, c_int(rows.count))
        self.store(rows, at, x)
        self.lines.append(f"{c_int(rows.count)[1:-1]}++;")

    def store(self, rows: Rows, at: str, x: object) -> None:
        self.frame.touch(rows.whole)
        if isinstance(x, Tensor):
            self.frame.touch(x)
            rows.families.append(x.family)
            self.lines.append(f"memcpy({at}, {x.at}, {c_int(self.size(rows))});")
            return
        text = {"int": c_int, "float": c_real, "bool": c_truth}[rows.kind](x)
        ctype = {"int": "int64_t", "float": "double", "bool": "uint8_t"}[rows.kind]
        self.lines.append(f"*({ctype} *)(void *)({at}) = {text};")

    def element(self, rows: Rows, place: str) -> str:
        return f"{rows.whole.at} + {place} * {c_int(self.size(rows))}"

    def size(self, rows: Rows) -> Index:
        """Return the bytes of an element."""
        return product(rows.whole.shape[1:]) * rows.whole.dtype.itemsize

    def check_growths(self) -> None:
        """Raise Again if a list may get more elements than it has room for."""
        found: dict[Op, Growth | None] = {}
        for rows in self.rows:
            growth = self.growths[rows.op]
            assert growth is not None
            if not nonnegative(growth.most - rows.added):
                found[rows.op] = replace(growth, most=rows.added)
        if found:
            raise Again(growths=found)

    # -- reading --

    def length(self, rows: Rows) -> Index:
        """Return the number of elements now."""
        return self.numbers.int_of(c_int(rows.count), 0, rows.whole.shape[0])

    def of_rows(self, op: Op, given: Sequence[Any]) -> list[object] | None:
        """Print an op whose first operand is such a list."""
        rows: Rows = given[0]
        name = op.name.removeprefix("torch.")
        if op.name == "call_torch":
            name = str(op.attrs["target"]).rpartition(".")[2]
        match name:
            case "list.append":
                self.append(rows, given[1])
                return [None for _ in op.results]
            case "py.len":
                return [self.length(rows)]
            case "py.bool" | "py.not":
                sign = "!=" if name == "py.bool" else "=="
                return [self.numbers.truth_of(f"{c_int(rows.count)} {sign} 0")]
            case "list.get":
                return [self.loaded(rows, self.place(rows, given[1], op))]
            case "list.set":
                self.store(rows, self.place(rows, given[1], op), given[2])
                return [None for _ in op.results]
            case "list.pop" if len(given) == 1:
                at = self.place(rows, -1, op)
                found = self.loaded(rows, at)
                self.lines.append(f"{c_int(rows.count)[1:-1]}--;")
                return [found]
            case "list.clear":
                self.lines.append(f"{c_int(rows.count)[1:-1]} = 0;")
                return [None for _ in op.results]
            case "stack" | "cat" | "concat" | "vstack" if rows.kind == "tensor":
                return [self.joined_rows(rows, name, op, given[1:])]
            case "tensor" | "as_tensor" if rows.kind != "tensor":
                return [self.as_tensor(rows, op, given[1:])]
            case _:
                return None

    def place(self, rows: Rows, index: object, op: Op) -> str:
        """Print the check of an index; return the address of the element."""
        if not is_int(index):
            raise Refused("has an index that is no int")
        name = self.frame.fresh("i_")
        count = c_int(rows.count)
        self.lines += [
            f"int64_t {name} = {c_int(index)};",
            f"{name} += {name} < 0 ? {count} : 0;",
            f"if ({name} < 0 || {name} >= {count}) "
            f"{self.raises(op.loc, 'IndexError: list index out of range')}",
        ]
        return self.element(rows, name)

    def loaded(self, rows: Rows, at: str) -> object:
        self.frame.touch(rows.whole)
        if rows.kind == "tensor":
            made = tensor_ops.memory(self.frame, rows.whole.dtype, rows.whole.shape[1:])
            self.lines += [
                tensor_ops.declared(made),
                f"memcpy({made.at}, {at}, {c_int(self.size(rows))});",
            ]
            return replace(made, writable=False)
        if rows.kind == "int":
            return self.numbers.int_of(f"*(const int64_t *)(const void *)({at})")
        if rows.kind == "float":
            return self.numbers.real_of(f"*(const double *)(const void *)({at})")
        return self.numbers.truth_of(f"*(const uint8_t *)(const void *)({at})")

    def whole_of(self, rows: Rows) -> Tensor:
        """Return a copy of all elements as a tensor."""
        n = self.length(rows)
        made = tensor_ops.memory(self.frame, rows.whole.dtype, rows.whole.shape)
        self.frame.touch(rows.whole)
        self.lines += [
            tensor_ops.declared(made),
            f"memcpy({made.at}, {rows.whole.at}, {c_int(n * self.size(rows))});",
        ]
        return replace(made, shape=(n, *rows.whole.shape[1:]))

    def joined_rows(self, rows: Rows, name: str, op: Op, rest: Sequence[Any]) -> Tensor:
        """Return the elements stacked or joined."""
        dim = rest[0] if rest else 0
        if type(dim) is not int or len(rest) > 1:
            raise Refused("needs a constant for `dim`")
        empty = self.raises(op.loc, f"RuntimeError: {name} of an empty list")
        self.lines.append(f"if (!{c_int(rows.count)}) {empty}")
        made = self.whole_of(rows)
        if name == "vstack" and len(made.shape) == 2:
            return made
        if name == "stack":
            return made if not dim else self.inlined(composed.stacked, [made, dim])
        rank = len(made.shape) - 1
        if not rank or not -rank <= dim < rank:
            raise Refused("joins tensors without dims")
        if dim % rank == 0:
            return replace(made, shape=(made.shape[0] * made.shape[1], *made.shape[2:]))
        return self.inlined(composed.concatenated, [made, dim % rank])

    def as_tensor(self, rows: Rows, op: Op, rest: Sequence[Any]) -> Tensor:
        """Return the numbers as a tensor."""
        dtype = next((x for x in rest if isinstance(x, torch.dtype)), _USUAL[rows.kind])
        if not any(isinstance(x, torch.dtype) for x in rest) and rows.kind != "float":
            empty = self.raises(
                op.loc, "an empty list has no dtype; write torch.tensor(x, dtype=…)"
            )
            self.lines.append(f"if (!{c_int(rows.count)}) {empty}")
        made = self.whole_of(rows)
        if made.dtype.torch is dtype:
            return made
        return self.inlined(composed.converted, [made, dtype])

    # -- tensors of numbers --

    def of_numbers(self, op: Op, given: Sequence[Any]) -> Tensor | None:
        """Return `torch.tensor` of a number or of lists of numbers; None if it is another op."""
        if op.attrs.get("target") not in ("torch.tensor", "torch.as_tensor"):
            return None
        flat: list[object] = []
        shape = _shape(given[0], flat)
        if shape is None or not flat:
            return None
        kinds = {_kind(x)[0] for x in flat}
        kind = next(k for k in ("float", "int", "bool") if k in kinds)
        dtype = next((x for x in given[1:] if isinstance(x, torch.dtype)), _USUAL[kind])
        stored = of_torch(dtype)
        if stored is None or stored.name in ("f16", "bf16"):
            raise Refused(f"gives a tensor of {dtype}")
        made = tensor_ops.memory(self.frame, stored, [as_index(n) for n in shape])
        text = {"int": c_int, "float": c_real, "bool": c_truth}[kind]
        if dtype is torch.bool:
            text = c_truth
        at = f"(({CTYPES[stored.name]} *)(void *){made.at})"
        self.lines.append(tensor_ops.declared(made))
        self.lines += [f"{at}[{k}] = ({CTYPES[stored.name]}){text(x)};" for k, x in enumerate(flat)]
        self.frame.touch(made)
        return made


_USUAL = {"int": torch.int64, "float": torch.float32, "bool": torch.bool}


def _shape(x: object, flat: list[object]) -> tuple[int, ...] | None:
    """Return the sizes of nested lists of numbers, which are added to `flat`; None for others."""
    if is_bool(x) or is_int(x) or is_float(x):
        flat.append(x)
        return ()
    if not isinstance(x, list | tuple):
        return None
    elems = cast("Sequence[object]", x)
    shapes = {_shape(e, flat) for e in elems}
    if len(shapes) != 1 or None in shapes:
        return None
    return (len(elems), *cast("tuple[int, ...]", shapes.pop()))


def _kind(x: object) -> tuple[str, DType, tuple[Index, ...]]:
    if isinstance(x, Tensor):
        return "tensor", x.dtype, x.shape
    if is_bool(x):
        return "bool", dtypes.boolean, ()
    if is_int(x):
        return "int", dtypes.i64, ()
    if is_float(x):
        return "float", dtypes.f64, ()
    raise Refused("adds what is neither a tensor nor a number to a list")
