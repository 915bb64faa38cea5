"""Buffers that are never alive at the same time share work memory; no nest reads what is gone."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.codegen.executable import Executable, compile_program
from lowtide.execute import backend
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Program
from lowtide.texpr.index import as_index
from lowtide.texpr.parser import parse_program
from lowtide.texpr.printer import sizes_of
from lowtide.tile.ir import Accumulate, Buffer, Fill, Kernel, Nest, Stmt, Store, Sweep, reached
from lowtide.tile.overlays import SHARED_BYTES, overlays
from tests.blocks.test_text import named
from tests.emit.test_kernels import HINTS, PROGRAMS
from tests.emit.test_tile_text import CASES
from tests.texts import Case

TILES = 2  # steps of each sweep, and of the grid


class Replay:
    """Runs the statements of a kernel. `owner`: by overlay, the buffer that was written last."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        sizes = {b.name: as_index(SHARED_BYTES) for b in kernel.buffers}
        self.shared = overlays(kernel, sizes)
        self.place = {b.name: k for k, o in enumerate(self.shared) for b in o.buffers}
        self.owner: dict[int, str] = {}

    def run(self) -> int:
        """Return how many buffers share memory."""
        self.body([*self.kernel.prologue], {})
        for _ in range(TILES):
            self.body(self.kernel.body, {})
        return sum(len(o.buffers) for o in self.shared if len(o.buffers) > 1)

    def body(self, body: Sequence[Stmt], steps: dict[Any, int]) -> None:
        for stmt in body:
            if isinstance(stmt, Sweep):
                for step in range(TILES):
                    self.body(stmt.body, {**steps, stmt.axis: step})
            elif isinstance(stmt, Fill):
                if stmt.empty is None:
                    self.write(stmt.buffer)
            else:
                self.nest(stmt, steps)

    def nest(self, nest: Nest, steps: dict[Any, int]) -> None:
        own = {w.buffer.name for w in nest.writes if not isinstance(w, Store)}
        for w in nest.writes:
            for node in reached(w.expr, nest.reads):
                if node in nest.reads:
                    self.read(nest.reads[node], own)
                elif isinstance(node, ex.Load) and node.source in self.kernel.values:
                    self.read(self.kernel.values[node.source], own)
        for w in nest.writes:
            if isinstance(w, Accumulate):
                is_first = w.first is not None and not any(steps[a] for a in w.first)
                if not is_first and not w.buffer.per_thread:
                    self.read(w.buffer, set())
        for w in nest.writes:
            if not isinstance(w, Store):
                self.write(w.buffer)

    def write(self, b: Buffer) -> None:
        for x in (b, b.twin):
            if x is not None:
                self.owner[self.place[x.name]] = x.name

    def read(self, b: Buffer, own: set[str]) -> None:
        """What the nest itself writes may have no value before it: its own sum, in registers."""
        if b.name not in own:
            assert self.owner[self.place[b.name]] == b.name, f"{b.name} is gone"


@contextmanager
def replayed() -> Generator[list[int]]:
    """A context in which each kernel is replayed; how many of its buffers share memory."""
    found: list[int] = []

    def compiled(program: Program, **options: Any) -> Executable:
        made = compile_program(program, **options)
        found.extend(replay(made))
        return made

    backend.use(compiled)
    try:
        yield found
    finally:
        backend.use(None)


def replay(made: Executable) -> list[int]:
    return [Replay(p).run() for kernels in made.kernels_by_head.values() for p in kernels.plans]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def layer(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return F.layer_norm(x + F.gelu(x @ w) @ u, (x.shape[-1],))


@pytest.mark.parametrize(
    ("fn", "shapes", "least"),
    [
        (layer, [(4, 100, 128), (128, 512), (512, 128)], 4),
        (attention, [(2, 70, 16)] * 3, 4),
    ],
)
def test_forward_and_backward(fn: Any, shapes: list[tuple[int, ...]], least: int) -> None:
    inputs = [torch.randn(s).requires_grad_() for s in shapes]
    with replayed() as found:
        made: Tensor = lt.script(fn)(*inputs)
        made.sum().backward()
    assert max(found) >= least, found
    torch.testing.assert_close(made, fn(*inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_of_the_golden_texts(name: str) -> None:
    sizes = [*HINTS]
    replay(compile_program(named(name), symbols=sizes, scalars=[], hints=HINTS))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_of_the_text_tests(case: Case) -> None:
    program = parse_program(case.before)
    if all(d.adds_to or n in program.inputs for n, d in program.defs.items()):
        pytest.skip("nothing is computed")
    hints = {a.name: max(a.low or 0, 64) for a in sizes_of(program)}
    every = [e for d in program.defs.values() for e in ex.walk(d.expr)]
    scalars = dict.fromkeys(e.name for e in every if isinstance(e, ex.Scalar))
    replay(compile_program(program, symbols=[*hints], scalars=[*scalars], hints=hints))


def test_hidden_units_before_and_after_their_activation_are_in_one_place() -> None:
    stages: Any = lt.script(layer).stages(
        torch.randn(400, 128), torch.randn(128, 512), torch.randn(512, 128)
    )
    text = next(text for title, text in stages if title == "C")
    (hidden,) = re.findall(r"float \*s_t4 = \(float \*\)(shared_\w+);", text)
    assert f"float *s_s5 = (float *){hidden};" in text
