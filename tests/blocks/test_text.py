"""The Triton text of kernels, printed without Triton."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lowtide.codegen.executable import Executable, compile_program
from lowtide.codegen.machines import CUDA
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.ir import dtypes as dt
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.expr import Def, Program
from lowtide.texpr.index import Axis, as_index, gather
from lowtide.texpr.index_ranges import clamp
from lowtide.texpr.printer import print_program
from lowtide.tile.printer import print_kernel
from tests.emit.test_kernels import HINTS, PROGRAMS, K, M, N


def compiled(program: Program) -> BlockKernels:
    found = planned(program).first
    assert isinstance(found, BlockKernels)
    return found


def planned(program: Program, machine: str = CUDA) -> Executable:
    return compile_program(program, symbols=list(HINTS), scalars=[], hints=HINTS, machine=machine)


def named(name: str) -> Program:
    b = Builder()
    b.program.outputs = [v.name for v in PROGRAMS[name](b)]
    return b.program


def made(name: str) -> BlockKernels:
    return compiled(named(name))


def scattered() -> Program:
    """out[n[i], k] += exp(g[i, k]), where out[m, k] begins as a sum."""
    (i, k), (y, z), j = (Axis("i", N), Axis("k", K)), (Axis("y", M), Axis("z", K)), Axis("j", N)
    sides = (ex.load(n, [as_index(j), as_index(a)], dt.f32) for n, a in (("g", z), ("w", y)))
    total = ex.reduce("sum", [j], ex.apply("maximum", [*sides], dt.f32), dt.f32)
    value = ex.apply("exp", [ex.load("g", [as_index(i), as_index(k)], dt.f32)], dt.f32)
    row = clamp(gather(ex.load("n", [as_index(i)], dt.i64)), M)
    place = ex.load("out", [row, as_index(k)], dt.f32)
    return Program(
        inputs={
            "g": ex.stored("g", (N, K), dt.f32),
            "w": ex.stored("w", (N, M), dt.f32),
            "n": ex.stored("n", (N,), dt.i64),
        },
        defs={
            "out": Def(name="out", axes=(y, z), expr=total),
            "same": Def(name="same", axes=(y, z), expr=ex.apply("neg", [total], dt.f32)),
            "add": Def(name="add", axes=(i, k), expr=ex.add_at(place, value)),
        },
        outputs=["out", "add", "same"],
    )


def test_what_is_made_of_nothing_is_on_the_machines_device() -> None:
    """A state of zeros before a loop, say: there is no tensor that tells where."""
    program = Program(
        defs={"t": Def(name="t", axes=(Axis("i", N),), expr=ex.const(0.0, dt.f32))}, outputs=["t"]
    )
    executable = planned(program, "cuda:1")
    found = executable.first
    assert found.device_of([]) == torch.device("cuda", 1)
    assert found.device_of([torch.zeros(1, device="meta")]) == torch.device("meta")
    assert "device = home" in executable.driver


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    found = made(name)
    golden(name, "\n\n".join([*map(print_kernel, found.plans), *(t.text for t in found.texts)]))


def test_scatter(golden: Callable[[str, str], None]) -> None:
    found = compiled(scattered())
    texts = [
        print_program(found.program),
        *map(print_kernel, found.plans),
        *(t.text for t in found.texts),
    ]
    golden("scatter", "\n\n".join([*texts, planned(scattered()).driver]))


def test_what_is_added_to_is_no_value() -> None:
    """What has the same formula must not be read from its memory."""
    defs = compiled(scattered()).normal.defs
    reads = [x for d in defs.values() for x in ex.loads(d.expr) if x.source == "out"]
    assert reads == [d.expr.place for d in defs.values() if isinstance(d.expr, ex.AddAt)]
    assert len(reads) == 1


def test_the_meaning_of_a_scatter() -> None:
    sizes = {"N": 50, "M": 40, "K": 7}
    g, w = torch.randn(50, 7), torch.randn(50, 40)
    n = torch.randint(0, 40, (50,))
    found = evaluate(scattered(), {"g": g, "w": w, "n": n}, sizes)
    begin = torch.maximum(g[:, None], w[:, :, None]).sum(0)
    torch.testing.assert_close(found["same"], -begin)
    torch.testing.assert_close(found["out"], begin.index_add(0, n, g.exp()))


def test_a_tensor_begins_in_a_kernel_of_its_own() -> None:
    """Even if each program would add to what it has stored itself."""
    (i, k), (y, z) = (Axis("i", N), Axis("k", K)), (Axis("y", N), Axis("z", K))
    here = [as_index(i), as_index(k)]
    add = ex.add_at(ex.load("out", here, dt.f32), ex.load("g", here, dt.f32))
    begin = ex.apply("neg", [ex.load("g", [as_index(y), as_index(z)], dt.f32)], dt.f32)
    program = Program(
        inputs={"g": ex.stored("g", (N, K), dt.f32)},
        defs={
            "out": Def(name="out", axes=(y, z), expr=begin),
            "add": Def(name="add", axes=(i, k), expr=add),
        },
        outputs=["out", "add"],
    )
    plans = compiled(program).plans
    assert [(p.outputs, p.adds) for p in plans] == [(["out"], {}), ([], {"add": "out"})]


def test_the_driver_allocates_launches_and_lets_go(golden: Callable[[str, str], None]) -> None:
    golden("chamfer_driver", planned(named("chamfer")).driver)
