"""Runs an op's lowering through the reference evaluator and compares it with eager PyTorch.

Sizes of at least `symbolic_from` become symbols, equal sizes one symbol, as in the pipeline;
`NeedConst` makes symbols constants and lowers again. `LOWTIDE_TEST_KERNELS=cpu` runs compiled
kernels instead of the evaluator (minutes, since each case is compiled), `=interpreter` those of a
GPU in Triton's interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from lowtide.ir.dtypes import from_torch
from lowtide.ops.registry import OpRecord, all_records, by_name
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder, NeedConst, ShapeError, Unsupported, Val
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.index import Index, Size, as_index
from lowtide.texpr.sizes import evaluate as evaluate_size

SYMBOLIC_FROM = 5
NEVER = 1 << 30
KERNELS = os.environ.get("LOWTIDE_TEST_KERNELS", "")


class Lowered:
    """The abstract result of one lowering, and how to make it concrete."""

    def __init__(self, record: OpRecord, operands: list[Any], symbolic_from: int) -> None:
        constants: set[str] = set()
        while True:
            self.b = Builder()
            self.inputs: dict[str, torch.Tensor] = {}
            self.sizes: dict[str, int] = {}
            self.symbolic_from = symbolic_from
            self.constants = constants
            self.symbols: dict[int, Size] = {}
            try:
                assert record.lower is not None, f"{record.name} has no lower"
                self.result = record.lower(self.b, *(self.abstract(x) for x in operands))
                return
            except NeedConst as need:
                if need.symbols <= constants:
                    raise AssertionError("asked again for a constant") from need
                constants |= need.symbols

    def size(self, n: int) -> Index | int:
        name = f"s{n}"
        if n < self.symbolic_from or name in self.constants:
            return n
        self.sizes[name] = n
        if n not in self.symbols:
            self.symbols[n] = Size(name, self.symbolic_from)
        return as_index(self.symbols[n])

    def abstract(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            dtype = from_torch(x.dtype)
            assert dtype is not None
            name = f"x{len(self.inputs)}"
            self.inputs[name] = x
            return self.b.input(
                name, [self.size(n) for n in x.shape], [self.size(n) for n in x.stride()], dtype
            )
        if isinstance(x, list | tuple):
            return [self.abstract(v) for v in x]
        return x

    def concrete(self) -> Any:
        values = compiled(self) if KERNELS else evaluate(self.b.program, self.inputs, self.sizes)
        for left, right, message in self.b.program.equalities:
            if evaluate_size(left, self.sizes) != evaluate_size(right, self.sizes):
                raise ShapeError(message)
        for name in self.b.program.checks:
            if not bool(values[name]):
                raise IndexError(name)

        def of(r: Any) -> Any:
            if isinstance(r, Val):
                shape = [evaluate_size(as_index(s), self.sizes) for s in r.shape]
                value = values[r.name]
                assert list(value.shape) == shape
                assert value.dtype is r.dtype.torch
                return value
            if isinstance(r, list | tuple):
                return [of(v) for v in r]
            if isinstance(r, Index):
                return evaluate_size(r, self.sizes)
            if isinstance(r, ex.Expr):
                raise AssertionError("an expression is not a result")
            return r

        return of(self.result)


def compiled(lowered: Lowered) -> dict[str, torch.Tensor]:
    """What `evaluate` gives, by compiled kernels: the results, the inputs, and the checks."""
    from lowtide.codegen.executable import compile_program

    program, sizes = lowered.b.program, lowered.sizes
    program.outputs = [n for n in dict.fromkeys(_names(lowered.result)) if n in program.defs]
    if not program.outputs and not program.checks:
        return dict(lowered.inputs)
    run = compile_program(program, symbols=list(sizes), scalars=[], hints=sizes, machine=KERNELS)
    got = run([lowered.inputs[n] for n in program.inputs], list(sizes.values()), [])
    return {**lowered.inputs, **dict(zip([*program.outputs, *program.checks], got, strict=True))}


def _names(result: Any) -> Iterator[str]:
    if isinstance(result, Val):
        yield result.name
    elif isinstance(result, list | tuple):
        for r in result:
            yield from _names(r)


def complete(record: OpRecord, operands: list[Any]) -> list[Any]:
    """The operands given, then the defaults."""
    if record.name == "getitem":
        return operands
    return operands + [p.default for p in record.params[len(operands) :]]


def check(
    name: str,
    *operands: Any,
    left: bool = False,
    may_leave: bool = False,
    in_double: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Lowering equals eager, with constant sizes and with symbolic ones; where eager raises, the
    lowering gives no value. `left`: the case must be left to PyTorch; `may_leave`: it may be.
    `in_double`: the truth is eager on f64, rounded, where eager itself rounds within the op."""
    record = by_name(name)
    full = complete(record, list(operands))
    try:
        expected, error = record.eager(*full), None
    except Exception as raised:
        expected, error = None, raised
    for symbolic_from in (NEVER, SYMBOLIC_FROM):
        try:
            got = Lowered(record, full, symbolic_from).concrete()
        except Unsupported as why:
            if error is not None or left or may_leave:
                continue
            raise AssertionError(f"left to PyTorch: {why}") from why
        except (ShapeError, IndexError):
            if error is not None:
                continue
            raise
        if error is not None:
            raise AssertionError(f"eager raises {error!r}, lowering gives {got}")
        assert not left, "is lowered"
        if in_double and isinstance(got, torch.Tensor) and got.is_floating_point():
            expected = record.eager(*_in_double(full)).to(got.dtype)
        compare(got, expected, rtol, atol)


def _in_double(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.double()
    return [_in_double(v) for v in x] if isinstance(x, list | tuple) else x


def compare(got: Any, expected: Any, rtol: float | None, atol: float | None) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor), f"{got} is not a tensor"
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            compare(g, e, rtol, atol)
    else:
        assert got == expected


# ---- samples ----------------------------------------------------------------------------------

_generator = torch.Generator().manual_seed(0)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers from a fixed seed."""
    return torch.randn(shape, generator=_generator, dtype=torch.float64).to(dtype)


def ints(*shape: int, low: int = -6, high: int = 7) -> torch.Tensor:
    """Small i64 numbers from a fixed seed."""
    return torch.randint(low, high, shape, generator=_generator)


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers of any dtype."""
    if dtype.is_floating_point:
        return floats(*shape, dtype=dtype)
    return ints(*shape, low=-6 if dtype.is_signed else 0).to(dtype)


def ops_of_kind(kind: str) -> list[OpRecord]:
    """All records of a kind."""
    return [r for r in all_records() if r.kind == kind]


def title(value: Any) -> str:
    """A short name of a test's operand."""
    if isinstance(value, torch.Tensor):
        return f"{_short(value.dtype)}{list(value.shape)}".replace(" ", "")
    if isinstance(value, torch.dtype):
        return _short(value)
    if isinstance(value, tuple | list):
        return "-".join(title(v) for v in value)
    return str(value).replace("torch.", "")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
