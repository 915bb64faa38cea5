"""What is predicted of convolutions with many channels, or with few that oneDNN pads, beside peaks
that were measured, resident, on an AMD EPYC (Zen 5) with torch 2.13 and two threads.

Deep layers have small images and large weights, of which oneDNN makes copies in its own layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt
from lowtide.memory import convolution

LAST = torch.channels_last
conv3 = partial(nn.Conv2d, kernel_size=3, padding=1)
spread = partial(nn.Conv2d, kernel_size=3, padding=2, dilation=2)
grouped = partial(nn.Conv2d, kernel_size=3, padding=1, groups=4)
up2 = partial(nn.ConvTranspose2d, kernel_size=2, stride=2)
up1 = partial(nn.ConvTranspose2d, kernel_size=3, padding=1)

# layer, size of 8 images, channels, made, format: peak of a training step, and of a call without
MEASURED = [
    (conv3, 4, 512, 512, None, 19_554_304, 9_801_728),
    (conv3, 4, 512, 512, LAST, 28_868_608, 9_375_744),
    (conv3, 8, 256, 256, None, 6_148_096, 3_276_800),
    (spread, 4, 512, 512, None, 29_577_216, 9_830_400),
    (spread, 4, 512, 512, LAST, 29_548_544, 9_474_048),
    (grouped, 4, 512, 512, None, 5_300_224, 2_736_128),
    (grouped, 4, 512, 512, LAST, 7_700_480, 2_306_048),
    (up1, 4, 512, 512, None, 19_521_536, 10_067_968),
    (up1, 64, 12, 20, None, 12_992_512, 10_244_096),
    (up2, 4, 512, 512, LAST, 14_725_120, 5_115_904),
    (up2, 64, 12, 20, None, 41_308_160, 31_162_368),
    (conv3, 96, 12, 12, None, 19_951_616, None),
    (conv3, 96, 9, 16, None, 21_434_368, None),
]
AGREE_BYTES = 150_000


@pytest.fixture(autouse=True)
def as_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(convolution, "has_wide_vectors", lambda: True)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: "-".join(map(str, row[1:5])))
def test_what_was_measured_is_predicted(row: tuple[Any, ...]) -> None:
    make, size, channels, made, memory_format, step_bytes, call_bytes = row
    layer, x = make(channels, made), torch.empty(8, channels, size, size)
    if memory_format is not None:
        layer, x = (v.to(memory_format=memory_format) for v in (layer, x))
    compiled: Any = lt.script(layer)
    with torch.no_grad():
        _agrees(compiled.memory(x).peak_bytes, call_bytes)
    _agrees(compiled.memory(x.requires_grad_()).peak_bytes, step_bytes)


def _agrees(predicted: int, measured: int | None) -> None:
    if measured is not None:
        assert measured <= predicted + AGREE_BYTES
        assert predicted <= 1.1 * measured + 8_000_000
