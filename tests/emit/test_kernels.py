"""The C text of kernels, printed without a compiler, for registers of 64 and of 32 bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowtide.codegen.c.kernel import kernel_text
from lowtide.codegen.c.module import module_text, without_names
from lowtide.ir import dtypes as dt
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, Size, as_index
from lowtide.texpr.normalise import normalise
from lowtide.tile.arrange import Arrangement
from lowtide.tile.group import group
from lowtide.tile.ir import Kernel
from lowtide.tile.items import memory_strides
from lowtide.tile.plan import plan
from lowtide.tile.printer import print_kernel
from lowtide.tile.schedule import schedule
from lowtide.tile.target import Target

HINTS = {"N": 1000, "M": 900, "K": 500}
N, M, K = (as_index(Size(name, 33)) for name in HINTS)


def tensor(b: Builder, name: str, *shape: Index | int) -> Val:
    strides: list[Index] = []
    step = as_index(1)
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * size
    return b.input(name, shape, strides, dt.f32)


def distances(b: Builder) -> Val:
    x, y = tensor(b, "x", N, 3), tensor(b, "y", M, 3)

    def square(i: tuple[Index, ...], c: Index) -> object:
        d = b.apply("sub", b.load(x, (i[0], c)), b.load(y, (i[1], c)))
        return b.apply("mul", d, d)

    return b.tensor(
        (N, M),
        dt.f32,
        lambda i: b.reduce("sum", (3,), lambda k: square(i, k[0])),  # type: ignore[arg-type,return-value]
    )


def chamfer(b: Builder) -> list[Val]:
    d = distances(b)
    rows = b.tensor((N,), dt.f32, lambda i: b.reduce("min", (M,), lambda k: b.load(d, (*i, *k))))
    columns = b.tensor((M,), dt.f32, lambda i: b.reduce("min", (N,), lambda k: b.load(d, (*k, *i))))
    return [rows, columns]


def nearest(b: Builder) -> list[Val]:
    d = distances(b)
    return [
        b.tensor((N,), dt.i64, lambda i: b.reduce("argmin", (M,), lambda k: b.load(d, (*i, *k))))
    ]


def product(b: Builder) -> list[Val]:
    x, y = tensor(b, "x", N, K), tensor(b, "y", K, M)

    def body(i: tuple[Index, ...]) -> object:
        return b.reduce(
            "sum", (K,), lambda k: b.apply("mul", b.load(x, (i[0], *k)), b.load(y, (*k, i[1])))
        )

    return [b.tensor((N, M), dt.f32, body)]  # type: ignore[arg-type]


def softmax(b: Builder) -> list[Val]:
    x = tensor(b, "x", N, M)
    top = b.tensor((N, 1), dt.f32, lambda i: b.reduce("max", (M,), lambda k: b.load(x, (i[0], *k))))
    e = b.tensor(
        (N, M),
        dt.f32,
        lambda i: b.apply("exp", b.apply("sub", b.load(x, i), b.load(top, (i[0], 0)))),
    )
    total = b.tensor(
        (N, 1), dt.f32, lambda i: b.reduce("sum", (M,), lambda k: b.load(e, (i[0], *k)))
    )
    return [
        b.tensor((N, M), dt.f32, lambda i: b.apply("div", b.load(e, i), b.load(total, (i[0], 0))))
    ]


PROGRAMS: dict[str, Callable[[Builder], list[Val]]] = {
    "chamfer": chamfer,
    "nearest": nearest,
    "product": product,
    "softmax": softmax,
}


def planned(name: str, vector_bytes: int) -> tuple[Kernel, Program, Target]:
    """The kernel without a schedule, and what it was made from and for."""
    b = Builder()
    b.program.outputs = [v.name for v in PROGRAMS[name](b)]
    normal = normalise(b.program, HINTS)
    target = Target(
        vector_bytes=vector_bytes, accumulators=24 if vector_bytes == 64 else 12, threads=2
    )
    (only,) = group(normal, HINTS, 2)
    stores = [n for n in only.defs if n in normal.outputs]
    kernel = plan(
        Arrangement(only, stores, normal.inputs, normal.defs, HINTS, target, "k0", frozenset())
    )
    return kernel, normal, target


def text_of(name: str, vector_bytes: int) -> tuple[str, str]:
    """The tile program, and the whole C file."""
    kernel, normal, target = planned(name, vector_bytes)
    strides = memory_strides(normal.inputs, normal.defs)
    memory = {n: i.dtype for n, i in normal.inputs.items()}
    memory.update({n: d.dtype for n, d in normal.defs.items()})
    kernel = schedule(kernel, HINTS, target, strides)
    printed = kernel_text(kernel, memory, strides)
    return f"{print_kernel(kernel)}\n\n{printed.text}", module_text(
        [printed], kernel.lanes, vector_bytes
    )


@pytest.mark.parametrize("vector_bytes", [64, 32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernel_text(name: str, vector_bytes: int, golden: Callable[[str, str], None]) -> None:
    text, source = text_of(name, vector_bytes)
    golden(f"kernel_{name}_{vector_bytes}", text)
    assert "#include" not in source
    assert text_of(name, vector_bytes)[1] == source


def test_kernels_that_differ_in_names_are_one_source() -> None:
    first = "k3_task(k3); float *p_x0 = s_a + l_i; p_x0[z_n] = e_a_last * (float)0x1.8p+0;"
    second = "k12_task(k12); float *p_y = s_carry + l_j; p_y[z_m] = e_carry_last * (float)0x1.8p+0;"
    same = without_names(first, "k3")
    assert same == without_names(second, "k12") != without_names(first[:-2], "k3")
    assert "kernel_task(kernel)" in same
