"""What a compiled kernel holds has the dtype that its text counts on, at each value.

Triton's interpreter cannot show this: what it lacks is PyTorch's there, with dtypes of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lowtide.codegen.triton import pointwise as pw
from lowtide.codegen.triton.block_axes import Dims
from lowtide.codegen.triton.body import Body
from lowtide.runtime import block_kernels
from lowtide.runtime.cubins import CompiledKernel, compile_form
from lowtide.texpr.expr import Expr
from tests.blocks.cubins import Kernel, kernels_of
from tests.blocks.programs import CASES, Case


def extremes(x: Tensor) -> tuple[Tensor, ...]:
    """Bytes wrap round, of sums and extremes too."""
    low, high = x.amin(1), x.amax(1)
    return (high - low - 200).float(), (x.amax() + 100).float(), (high + low).argmax(), x.argmin(1)


def totals(x: Tensor) -> tuple[Tensor, ...]:
    found = x.sum(1, dtype=torch.uint8), x.prod(1, dtype=torch.uint8), x.sum(1), x.prod(0)
    return *(y.float() * 2 for y in found), (x > 3).sum(1), (x > 3).any(1).float()


def bytes_of(n: int, m: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randint(0, 256, (n, m), dtype=torch.uint8),)


MORE = {
    "extremes": Case(fn=extremes, more=bytes_of(40, 70), grad=False),
    "extremes-long": Case(fn=extremes, more=bytes_of(40, 3000), grad=False),
    "totals": Case(fn=totals, more=bytes_of(40, 70), grad=False),
}


class Known(Exception):
    """A kernel's text has become Triton's IR; what follows is not asked for."""


@pytest.fixture
def asserted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value's dtype is part of the text."""
    real = Body.value

    def value(self: Body, e: Expr, dims: Dims) -> str:
        is_new = (e, dims) not in self.known
        name = real(self, e, dims)
        if is_new:
            self.lines.append(f"tl.static_assert({name}.dtype == {pw.type_of(e.dtype)})")
        return name

    monkeypatch.setattr(Body, "value", value)


def read(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as Triton's IR: there dtypes are known."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    def stop(*_: object, **__: object) -> None:
        raise Known

    monkeypatch.setattr(CUDABackend, "make_ttir", staticmethod(stop))
    parameters = kernel.executable.parameters()[kernel.name]
    function = block_kernels.load(kernel.executable.source, interpreted=False)[kernel.name]
    made = CompiledKernel(function, parameters)
    given = [1] * len(parameters.types(wide=False))
    form = made.form(torch.device("cuda"), False, given, (16,) * parameters.widths)
    with pytest.raises(Known):
        compile_form(function, parameters, form, GPUTarget("cuda", 90, 32))


@pytest.mark.usefixtures("asserted")
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_dtypes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in kernels_of({**CASES, **MORE}[name], 90):
        read(kernel, monkeypatch)
