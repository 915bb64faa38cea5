"""Prints a HostProgram as Python: a driver that computes sizes, takes memory and launches.

    def run(tensors, sizes, numbers):
        x, = tensors
        s0, = sizes
        t2 = empty((s0,), torch.float32)
        run_k0(pack_k0(pool, threads, work.address, x.data_ptr(), t2.data_ptr(), s0))
        return [t2]

Allocations and launches differ between CPU and GPU: a `Dialect` writes their lines.
"""

from __future__ import annotations

import keyword
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from lowtide.codegen.host.program import (
    BEGUN,
    MUCH_BYTES,
    Dense,
    Fill,
    Free,
    HostProgram,
    Launch,
    Loop,
    Offset,
    Over,
    Own,
    Place,
    Row,
    Size,
    Statement,
    Take,
    View,
    Work,
    names_in,
    reads,
)
from lowtide.ir.dtypes import DType
from lowtide.runtime.steps import Launch as StepLaunch
from lowtide.runtime.steps import Moving, Slot, Steps, behind
from lowtide.texpr.index import Index
from lowtide.tile.matmul import LEAST_POINTS, Matmul, Matrix

# The inputs of a region that records no gradients may require them, as in `x.detach() @ y`.
MATMUL: Final = torch.no_grad()(torch.matmul)
ADDMM: Final = torch.no_grad()(torch.addmm)
_BEGUN_SLOT: Final = "Moving(first=0, base=1, stride=0, shift=0, rows=1, level={level})"


class Dialect(ABC):
    """Writes the lines that differ between CPU and GPU. Kernel names are Python identifiers."""

    chooses = True  # whether a product runs by the faster of kernel and library

    @abstractmethod
    def opening(self, program: HostProgram) -> Iterator[str]:
        """Lines at the beginning, after the parameters are unpacked."""

    @abstractmethod
    def take(self, name: str, statement: Take) -> str:
        """Return the line that allocates an uninitialised tensor."""

    @abstractmethod
    def over(self, statement: Over, of: str, is_input: bool) -> str:
        """Return the line that makes a tensor in the memory of another one."""

    @abstractmethod
    def work(self, found: Sequence[Index], in_loop: bool) -> str:
        """Return the line that allocates work memory for all threads. `in_loop`: launches of a loop
        use it, and later steps may read what an earlier step left there."""

    @abstractmethod
    def launch(self, launch: Launch, name: str, work: str) -> str:
        """Return the lines that launch a kernel."""

    def product(self, m: Matmul, dtypes: Mapping[str, DType]) -> str:
        """Return the line that computes a product by PyTorch's library. `dtypes`: of tensors."""
        return product_text(m)

    @abstractmethod
    def step(self, launch: Launch, name: str, work: str, slots: str, sizes: str) -> str:
        """Return the text of a `runtime.steps.Launch`. `slots`: tensors, sizes and numbers, in
        order. `sizes`: a dict of the sizes in the first step."""

    @abstractmethod
    def run(self, steps: str, tensors: str) -> str:
        """Return the text that runs a loop and returns the number of steps that ran. `tensors`: the
        list of tensors that the slots refer to."""

    @abstractmethod
    def scope(self, program: HostProgram) -> dict[str, Any]:
        """Objects that these lines refer to by name, except kernels."""

    @abstractmethod
    def own(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return the text that copies a part of a tensor to memory of its own."""


def scope_of(program: HostProgram, dialect: Dialect) -> dict[str, Any]:
    """Return the objects that the text refers to by name, except kernels."""

    def own(x: Tensor) -> Tensor:
        if x.untyped_storage().nbytes() - x.nbytes < MUCH_BYTES:
            return x
        return dialect.own(x.shape, x).copy_(x)

    return {
        "torch": torch, "matmul": MATMUL, "addmm": ADDMM, "own": own, "clamp": clamp,
        "behind": behind, "row_slot": row_slot, "Moving": Moving, "Launch": StepLaunch,
        "Steps": Steps,
        **dialect.scope(program),
    }  # fmt: skip


def python_text(program: HostProgram, dialect: Dialect) -> str:
    """Return Python source of `run(tensors, sizes, numbers) -> list[Tensor]`."""
    return _Printer(program, dialect).text()


def name_of(name: str) -> str:
    """Return the Python identifier for a name."""
    plain = name.replace(".", "_")
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def whole_name(place: Place) -> str:
    """Return the name of the tensor at a place; a launch outside loops has no rows."""
    assert isinstance(place, str), "a row of a loop outside of one"
    return name_of(place)


def python_tuple(parts: Iterable[Index]) -> str:
    """Return the text of a tuple of sizes."""
    texts = list(map(str, parts))
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def clamp(number: int, extent: int) -> int:
    """Return the index clamped to [0, extent)."""
    return min(max(number, 0), extent - 1)


def row_slot(
    base: Slot,
    row_bytes: int,
    begin: int,
    by: int,
    first_trip: int,
    shift: int,
    rows: int,
    level: int,
    first: Slot | None = None,
) -> Moving:
    """Return the slot of a `Row`: at the first step `first`, else its row of the stack."""
    base, stride = behind(base, row_bytes * begin), row_bytes * by
    first = behind(base, stride * (first_trip % rows)) if first is None else first
    return Moving(first=first, base=base, stride=stride, shift=shift, rows=rows, level=level)


class _Printer:
    def __init__(self, program: HostProgram, dialect: Dialect) -> None:
        self.program = program
        self.dialect = dialect
        self.loops: list[Loop] = []
        self.sizes = dict.fromkeys(program.sizes)  # defined so far
        self.in_loops = {n for s in program.body if isinstance(s, Loop) for n in reads(s)}
        self.dtypes = {n: x.dtype for n, x in program.inputs.items()}

    def text(self) -> str:
        lines = ["def run(tensors, sizes, numbers):"]
        given = (
            (map(name_of, self.program.inputs), "tensors"),
            (self.program.sizes, "sizes"),
            (self.program.numbers, "numbers"),
        )
        for names, source in given:
            if text := ", ".join(names):
                lines.append(f"    {text}, = {source}")
        lines += [f"    {line}" for line in self.dialect.opening(self.program)]
        for statement in self.program.body:
            lines += [f"    {line}" for line in self.statement(statement)]
        results = ", ".join(map(name_of, self.program.results))
        return "\n".join([*lines, f"    return [{results}]"]) + "\n"

    def statement(self, statement: Statement) -> Iterator[str]:
        if isinstance(statement, Take | Over | View):
            self.dtypes[statement.name] = statement.tensor.dtype
        match statement:
            case Size(name=name, index=index):
                self.sizes[name] = None
                yield f"{name} = {index}"
            case Take(name=name):
                yield f"{name_of(name)} = {self.dialect.take(name_of(name), statement)}"
            case Over(name=name, of=of):
                is_input = of in self.program.inputs
                yield f"{name_of(name)} = {self.dialect.over(statement, name_of(of), is_input)}"
            case Work(name=name, thread_bytes=found):
                yield f"{name_of(name)} = {self.dialect.work(found, name in self.in_loops)}"
            case Fill(name=name, value=value):
                yield f"{name_of(name)}.fill_({_number(value)})"
            case Dense(name=name, of=of):
                yield f"{name_of(name)} = {name_of(of)}.contiguous()"
            case View(name=name, of=of, index=index):
                yield f"{name_of(name)} = {name_of(of)}[{index}]"
            case Own(name=name):
                yield f"{name_of(name)} = own({name_of(name)})"
            case Launch():
                yield from self.launch(statement)
            case Matmul():
                yield self.dialect.product(statement, self.dtypes)
            case Loop():
                yield from self.outer_loop(statement)
            case Free(names=names):
                yield f"del {', '.join(map(name_of, names))}"

    def launch(self, launch: Launch) -> Iterator[str]:
        name, work = name_of(launch.kernel), name_of(launch.work)
        text = self.dialect.launch(launch, name, work)
        if launch.instead is None or not self.dialect.chooses:
            yield text
        else:
            yield from choice_lines(name, launch.instead, text)

    # -- loops: tables of launches, whose slots say how their arguments change with the steps --

    def outer_loop(self, loop: Loop) -> Iterator[str]:
        yield from self.steps_of(loop)
        tensors = ", ".join(dict.fromkeys(map(name_of, _tensors(loop))))
        run = self.dialect.run(self.table(loop), f"[{tensors}]")
        yield f"{loop.ran} = {run}" if loop.ran else run
        if loop.ran:
            self.sizes[loop.ran] = None

    def steps_of(self, loop: Loop) -> Iterator[str]:
        """Yield for each loop the number of trips, the first trip, and the slot of its step."""
        step, level = loop.step, len(self.loops)
        yield f"trips_{step} = {loop.trips}"
        yield f"first_{step} = {f'trips_{step} - 1' if loop.reverse else '0'}"
        yield (
            f"slot_{step} = row_slot(0, 1, {loop.begin}, {loop.by}, first_{step}, 0, "
            f"max(trips_{step}, 1), {level})"
        )
        self.sizes[step] = None
        self.loops.append(loop)
        for inner in loop.body:
            if isinstance(inner, Loop):
                yield from self.steps_of(inner)
        self.loops.pop()

    def table(self, loop: Loop) -> str:
        level = len(self.loops)
        self.loops.append(loop)
        rows = [
            self.table(inner) if isinstance(inner, Loop) else self.step(inner)
            for inner in loop.body
        ]
        until = f", until={self.place(loop.until)}" if loop.until else ""
        self.loops.pop()
        inside = "".join(f"\n        {row}," for row in rows)
        return (
            f"Steps(launches=[{inside}\n    ], trips=trips_{loop.step}, reverse={loop.reverse}, "
            f"level={level}{until})"
        )

    def step(self, launch: Launch) -> str:
        slots = [
            *map(self.place, launch.tensors),
            *map(self.size, launch.sizes),
            *launch.numbers,
        ]
        sizes = ", ".join(f"{n!r}: {n}" for n in self.sizes)
        work, name = name_of(launch.work), name_of(launch.kernel)
        return self.dialect.step(launch, name, work, ", ".join(slots), f"{{{sizes}}}")

    def size(self, name: str) -> str:
        if name == BEGUN:
            return _BEGUN_SLOT.format(level=len(self.loops) - 1)
        steps = [loop.step for loop in self.loops]
        return f"slot_{name}" if name in steps else name

    def place(self, place: Place) -> str:
        match place:
            case str():
                return f"{name_of(place)}.data_ptr()"
            case Offset(of=of, nbytes=nbytes):
                return f"behind({self.place(of)}, {nbytes})"
            case Row(of=of, step=step, shift=shift, rows=rows, row_bytes=row_bytes, first=first):
                level = [loop.step for loop in self.loops].index(step)
                loop = self.loops[level]
                first_text = "" if first is None else f", {self.place(first)}"
                return (
                    f"row_slot({self.place(of)}, {row_bytes}, {loop.begin}, {loop.by}, "
                    f"first_{step}, {shift}, {rows}, {level}{first_text})"
                )


def choice_lines(name: str, m: Matmul, launch: str) -> list[str]:
    """Return the lines that run PyTorch's matrix product or the kernel, whichever was faster at
    such sizes."""
    sizes = python_tuple(dict.fromkeys((*m.left.sizes, m.right.sizes[-1])))
    device = f"{name_of(m.left.source)}.device"
    return [
        f"if {m.points} < {LEAST_POINTS}:",
        f"    {launch}",
        "else:",
        f"    choice_{name}.run({sizes}, {device}, lambda: {launch},",
        f"        lambda: {product_text(m)})",
    ]


def product_text(m: Matmul) -> str:
    """Return the call of PyTorch for a product."""
    left, right, *bias = (
        _strided(x, f" + {name_of(x.source)}.storage_offset()") for x in m.operands
    )
    result = _strided(m.result, "")
    if bias:
        return f"addmm({bias[0]}, {left}, {right}, out={result})"
    return f"matmul({left}, {right}, out={result})"


def _strided(x: Matrix, base: str) -> str:
    sizes, strides = python_tuple(x.sizes), python_tuple(x.strides)
    return f"{name_of(x.source)}.as_strided({sizes}, {strides}, {x.offset}{base})"


def _number(value: float) -> str:
    return f'float("{value!r}")' if value in (float("inf"), float("-inf")) else repr(value)


def _tensors(loop: Loop) -> Iterator[str]:
    for inner in loop.body:
        if isinstance(inner, Loop):
            yield from _tensors(inner)
        else:
            for place in inner.tensors:
                yield from names_in(place)
