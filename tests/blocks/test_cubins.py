"""Kernels for GPUs are compiled for sm_80, sm_90 and sm_100; no GPU is needed for that."""

from __future__ import annotations

import zlib

import pytest

from lowtide.runtime.cubins import SHARED_BYTES
from tests.blocks.cubins import kernels_of
from tests.blocks.programs import CASES

_seen: set[object] = set()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cubins(name: str) -> None:
    """Each program for one of them, whichever its name says; `tests.blocks.cubins` does all."""
    capability = [*SHARED_BYTES][zlib.crc32(name.encode()) % 3]
    kernels = list(kernels_of(CASES[name], capability))
    assert kernels
    for kernel in kernels:
        if (kernel.key, capability) not in _seen:
            _seen.add((kernel.key, capability))
            kernel.compiled(capability)


@pytest.mark.slow
def test_a_kernel_that_counts_in_64_bits() -> None:
    kernel = next(iter(kernels_of(CASES["kernel-sum"], 90)))
    made = kernel.executable.cubin(kernel.name, 90, wide=True)
    assert made.code != kernel.compiled(90).code
