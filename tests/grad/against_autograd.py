"""The gradient of one op's lowering, by the reference evaluator, against PyTorch's own.

In: an op's name and operands. Sizes of 5 and more are symbols, as in the pipeline.
"""

from __future__ import annotations

from typing import Any

import torch

from lowtide.ir.dtypes import from_torch
from lowtide.ops.gradients import left_to_torch
from lowtide.ops.registry import OpRecord, by_name
from lowtide.texpr.autodiff import Backward, backward, differentiated, given_name
from lowtide.texpr.build import Builder, NeedConst, Unsupported, Val
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.index import Index, Size, as_index, row_major

SYMBOLIC_FROM = 5
Tensor = torch.Tensor


class LoweredGradient:
    """One op lowered on its own, with the gradients of all float operands."""

    def __init__(self, record: OpRecord, operands: list[Any]) -> None:
        self.constants: set[str] = set()
        while True:
            self.b = Builder()
            self.inputs: dict[str, Tensor] = {}
            self.sizes: dict[str, int] = {}
            self.symbols: dict[int, Size] = {}
            try:
                assert record.lower is not None
                self.b.op = record.name
                result = record.lower(self.b, *(self._abstract(x) for x in operands))
                break
            except NeedConst as need:
                if need.symbols <= self.constants:
                    raise AssertionError("asked again for a constant") from need
                self.constants |= need.symbols
        self.results = [v for v in _flat(result) if isinstance(v, Val)]

    def _size(self, n: int) -> Index | int:
        name = f"s{n}"
        if n < SYMBOLIC_FROM or name in self.constants:
            return n
        self.sizes[name] = n
        return as_index(self.symbols.setdefault(n, Size(name, SYMBOLIC_FROM)))

    def _abstract(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            dtype = from_torch(x.dtype)
            assert dtype is not None
            name = f"x{len(self.inputs)}"
            self.inputs[name] = x.detach()
            strides = x.contiguous().stride()
            return self.b.input(
                name, [self._size(n) for n in x.shape], [self._size(n) for n in strides], dtype
            )
        if isinstance(x, list | tuple):
            return [self._abstract(v) for v in x]
        return x

    def gradients(self, wanted: list[str], cotangents: list[Tensor | None]) -> list[Tensor | None]:
        """Of each wanted input; `cotangents` of each result, in order."""
        program = self.b.program
        names = [v.name for v in self.results]
        program.outputs = [n for n in names if n in program.defs]
        diff = differentiated(program, wanted)
        given = {
            n: g for n, g in zip(names, cotangents, strict=True)
            if g is not None and diff.carries(n) and n in program.defs
        }  # fmt: skip
        made = backward(diff, wanted, {n: row_major(diff.shape(n)) for n in given})
        tensors = {**self.inputs, **{given_name(n): g for n, g in given.items()}}
        values = evaluate(made.program, tensors, self.sizes)
        return [self._gradient(n, made, values) for n in wanted]

    def _gradient(self, name: str, made: Backward, values: dict[str, Tensor]) -> Tensor | None:
        if name not in made.gradients:
            return None
        output = made.gradients[name]
        total = values[output].clone() if output else torch.zeros_like(self.inputs[name])
        for s in made.scatters:
            if s.input == name:
                total.view(-1).index_add_(
                    0, values[s.index].reshape(-1), values[s.values].reshape(-1).to(total.dtype)
                )
        return total


def _flat(x: Any) -> list[Any]:
    return [y for v in x for y in _flat(v)] if isinstance(x, list | tuple) else [x]


def complete(record: OpRecord, operands: list[Any]) -> list[Any]:
    """The operands given, then the defaults."""
    if record.name == "getitem":
        return operands
    return operands + [p.default for p in record.params[len(operands) :]]


def compare(name: str, *operands: Any) -> str:
    """ "" if the gradients are PyTorch's, "left" if the op is PyTorch's, else what differs."""
    record = by_name(name)
    full = complete(record, list(operands))
    leaves = [t for t in _flat(full) if isinstance(t, Tensor) and t.is_floating_point()]
    if left_to_torch(name, full, [_has_float(x) for x in full]):
        return "left"
    for t in leaves:
        t.requires_grad_()
    results = [r for r in _flat(list(_sequence(record.eager(*full)))) if isinstance(r, Tensor)]
    torch.manual_seed(0)
    cotangents = [torch.randn_like(r) if r.requires_grad else None for r in results]
    pairs = [(r, g) for r, g in zip(results, cotangents, strict=True) if g is not None]
    want: list[Tensor | None] = [None] * len(leaves)
    if pairs:
        want = list(torch.autograd.grad(
            [r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True
        ))  # fmt: skip
    for t in leaves:
        t.requires_grad_(False)
    try:
        lowered = LoweredGradient(record, full)
        names = [n for n, x in lowered.inputs.items() if x.is_floating_point()]
        got = lowered.gradients(names, cotangents)
    except Unsupported as why:
        return f"left: {why}"
    return "; ".join(filter(None, map(_difference, names, got, want)))


def _sequence(r: Any) -> Any:
    return r if isinstance(r, list | tuple) else [r]


def _has_float(x: Any) -> bool:
    return any(isinstance(t, Tensor) and t.is_floating_point() for t in _flat(x))


def _difference(name: str, got: Tensor | None, want: Tensor | None) -> str:
    if got is None or want is None:
        return "" if got is want else f"{name}: {got} for {want}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
    except AssertionError as error:
        shown = f"got {got.flatten()[:16]} want {want.flatten()[:16]}"
        return f"{name}: {str(error).splitlines()[0]} {shown}"
    return ""
