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
    """Each kernel for one of them, whichever its text says; `tests.blocks.cubins` does all."""
    kernels = list(kernels_of(CASES[name]))
    assert kernels
    for kernel in kernels:
        if kernel.key not in _seen:
            _seen.add(kernel.key)
            kernel.compiled([*SHARED_BYTES][zlib.crc32(kernel.text.encode()) % 3])


@pytest.mark.slow
def test_a_kernel_that_counts_in_64_bits() -> None:
    kernel = next(iter(kernels_of(CASES["kernel-sum"])))
    made = kernel.executable.cubin(kernel.name, 90, wide=True)
    assert made.code != kernel.compiled(90).code
