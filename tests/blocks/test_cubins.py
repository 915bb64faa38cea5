"""Kernels for GPUs are compiled for sm_80, sm_90 and sm_100; no GPU is needed for that."""

from __future__ import annotations

import pytest

from lowtide.runtime import block_kernels
from lowtide.runtime.cubins import SHARED_BYTES
from tests.blocks.cubins import kernels_of
from tests.blocks.programs import CASES

_seen: set[object] = set()


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("name", CASES)
def test_cubins(name: str, capability: int) -> None:
    """Each kernel, planned for such a GPU, once; within the shared memory that it has."""
    kernels = list(kernels_of(CASES[name], capability))
    assert kernels
    for kernel in kernels:
        if (kernel.key, capability) not in _seen:
            _seen.add((kernel.key, capability))
            kernel.compiled(capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("name", ["attention", "conv-products", "loss"])
def test_products_in_tf32(name: str, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch's switch asks for takes other units, and other places in shared memory."""
    kernels = [k for k in kernels_of(CASES[name], capability) if "lt_dot(" in k.text]
    assert kernels
    exact = kernels[0].compiled(capability)
    monkeypatch.setattr(block_kernels, "precision", lambda: "tf32")
    made = [kernel.compiled(capability) for kernel in kernels]
    assert made[0].code != exact.code


@pytest.mark.slow
def test_a_kernel_that_counts_in_64_bits() -> None:
    kernel = next(iter(kernels_of(CASES["kernel-sum"], 90)))
    made = kernel.executable.cubin(kernel.name, 90, wide=True)
    assert made.code != kernel.compiled(90).code
