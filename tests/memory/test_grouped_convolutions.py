"""What is predicted within convolutions by groups, transposed ones, ones of volumes and of
bfloat16, beside what was measured, resident, on an AMD EPYC (Zen 5) with torch 2.13.

oneDNN has kernels for some of these; others it does by columns, a group of an image per thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lowtide.memory import convolution

ROOM_BYTES = 8_000_000
NOISE_BYTES = 300_000
F32, BF16 = torch.float32, torch.bfloat16
LAST, PLAIN = True, False

# threads, dtype, channels_last, transposed, images, channels, made, groups, kernel, stride, bytes
# beyond the result of the forward pass, and of the gradients
MEASURED = [
    (2, F32, PLAIN, False, (8, 64, 64), 32, 24, 4, 7, 1, 3_000_000, 12_680_000),
    (2, F32, PLAIN, False, (8, 64, 64), 24, 12, 2, 5, 1, 1_690_000, 9_810_000),
    (2, F32, PLAIN, False, (16, 96, 96), 9, 3, 3, 7, 1, 1_620_000, 10_470_000),
    (1, F32, PLAIN, False, (16, 112, 112), 9, 9, 9, 5, 2, 14_050_000, 12_710_000),
    (2, BF16, PLAIN, False, (8, 128, 128), 6, 6, 3, 5, 1, 1_650_000, 6_480_000),
    (2, F32, LAST, False, (16, 28, 28), 64, 128, 64, 7, 1, 2_950_000, 2_990_000),
    (2, F32, PLAIN, False, (8, 16, 16, 16), 32, 32, 32, 3, 1, 8_100_000, 3_840_000),
    (1, F32, PLAIN, True, (8, 112, 112), 4, 4, 4, 3, 1, 17_510_000, 12_840_000),
    (1, F32, PLAIN, True, (1, 96, 96), 4, 64, 4, 3, 1, 7_470_000, 5_180_000),
    (1, F32, PLAIN, True, (8, 8000), 12, 1, 1, 3, 1, 11_770_000, 3_910_000),
    (2, F32, PLAIN, True, (3, 112, 112), 1, 2, 1, 3, 2, 2_010_000, None),
    (2, BF16, PLAIN, True, (8, 24, 24, 24), 16, 3, 1, 3, 1, 13_250_000, 4_340_000),
    (2, BF16, PLAIN, True, (2, 8000), 32, 16, 1, 2, 2, 1_920_000, 4_010_000),
    (2, BF16, PLAIN, True, (16, 56, 56), 3, 24, 1, 3, 1, 8_490_000, 5_270_000),
    (2, BF16, LAST, True, (2, 128, 128), 16, 32, 4, 3, 1, 3_810_000, 3_970_000),
    (2, BF16, PLAIN, False, (2, 56, 56), 256, 64, 2, 3, 1, 3_220_000, 6_300_000),
    (1, BF16, PLAIN, False, (4, 56, 56), 256, 64, 4, 3, 1, None, 10_150_000),
    (2, BF16, PLAIN, False, (4, 56, 56), 256, 256, 8, 3, 1, None, 16_250_000),
    (1, BF16, LAST, False, (1, 128, 128), 96, 6, 1, 3, 1, 0, 3_650_000),
    (2, F32, LAST, False, (4, 64, 50), 128, 128, 128, 7, 1, 0, 6_300_000),
    (1, F32, LAST, False, (4, 64, 50), 128, 128, 128, 1, 1, None, 13_210_000),
    (1, F32, LAST, False, (8, 8, 8, 8), 256, 96, 1, 1, 1, 3_960_000, 3_870_000),
]


@pytest.fixture(autouse=True)
def as_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With its vectors; the number of threads is put back."""
    monkeypatch.setattr(convolution, "has_wide_vectors", lambda: True)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: "-".join(map(str, row[1:10])))
def test_what_was_measured_is_predicted(row: tuple[Any, ...]) -> None:
    threads, dtype, last, transposed, images, channels, made, groups, k, stride, call, step = row
    if dtype is BF16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN takes no bfloat16 here")
    torch.set_num_threads(threads)
    n, *sizes = images
    dims, kernel = len(sizes), [k] * len(sizes)
    x = torch.empty(n, channels, *sizes, dtype=dtype, device="meta")
    if last:
        x = x.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    shape = (channels, made // groups) if transposed else (made, channels // groups)
    w = torch.empty(*shape, *kernel, dtype=dtype, device="meta")
    padding = 0 if k == 2 else k // 2
    further = stride - 1 if transposed and k == 3 else 0
    options = ([stride] * dims, [padding] * dims, [1] * dims, transposed, [further] * dims, groups)
    func = torch.ops.aten.convolution.default
    args = (x, w, None, *options)
    y = convolution.as_it_lies(func, args, func(*args))
    _agrees(convolution.forward_scratch(args, y), call)
    given = (y, x, w, None, *options, (True, True, True))
    _agrees(convolution.backward_scratch(given, None), step)


def _agrees(predicted: int, measured: int | None) -> None:
    if measured is not None:
        assert measured <= predicted + NOISE_BYTES
        assert predicted <= 1.1 * measured + ROOM_BYTES


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
def test_volumes_lie_as_pytorchs(kernel: int, threads: int) -> None:
    """PyTorch's own convolutions of volumes, of one thread, give contiguous ones."""
    torch.set_num_threads(threads)
    x = torch.rand(2, 4, 6, 6, 6).to(memory_format=torch.channels_last_3d)
    w = torch.rand(3, 4, *[kernel] * 3)
    func = torch.ops.aten.convolution.default
    options = (None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
    want = func(x, w, *options)
    metas = [torch.empty_like(v, device="meta") for v in (x, w)]
    args = (*metas, *options)
    assert convolution.as_it_lies(func, args, func(*args)).stride() == want.stride()
