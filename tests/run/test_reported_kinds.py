"""Programs of the kinds that public reports say other compilers get wrong; exact in each mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.run.names_and_writes import MODES, agree

Results = tuple[Tensor, ...]


def rows_move_down(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    return x


def written_and_mirrored(x: Tensor) -> Tensor:
    x.index_put_((torch.arange(x.shape[0]),), x * 2)
    x.add_(x.flip(0))
    return x


def lists_of_tensors(x: Tensor) -> Tensor:
    torch._foreach_add_([x], [x.flip(0)])
    return x


def copied_before_the_change(x: Tensor) -> Tensor:
    saved = torch.zeros_like(x)
    saved[:, :] = x[:, :]
    x.add_(1)
    return saved * 2


def read_as_other_bits(x: Tensor) -> Tensor:
    bits = x.view(torch.int32) * 2
    x[:, 1] = 2
    return bits.view(torch.float32)


def scattered_into(x: Tensor) -> Results:
    changed = torch.slice_scatter(x, x[:1] + 5, 0, 1, 2)
    x.copy_(changed)
    return changed, x * 1


def names_of_one_memory(x: Tensor) -> Results:
    x_again = F.dropout(x, 0.5, training=False)
    x_again += 1
    same = x.contiguous().to(torch.float32)
    same *= 2
    copy = x.to(torch.float32, copy=True)
    copy.zero_()
    part = x.reshape(-1)
    part -= 3
    return x * 1, copy


def other_shapes_under_no_grad(x: Tensor) -> Results:
    joined, turned, data, sized = torch.empty(0), x * 2, x * 3, torch.empty(0)
    with torch.no_grad():
        torch.cat([x, x], out=joined)
        turned.t_()
        turned.unsqueeze_(0)
        data.data = data.data[:2] + 1
        sized.resize_(2, 2).fill_(3.0)
    return joined * x[0], turned * 2, data * 1, sized


def bytes_of_negatives(x: Tensor) -> Results:
    return (x * 4).byte(), (x * 4).to(torch.int8), (x * 4).to(torch.uint8) + 1


def truths_of_bytes(x: Tensor) -> Results:
    b = (x.abs() * 9).to(torch.uint8)
    return b.any() * 200 + 100, b.all(), -b, (b + 200).to(torch.int16), torch.cat([-b, b]).sum()


def far_shifts(x: Tensor) -> Results:
    i = (x * 1000).long()
    return i << 63, i >> 63, i << torch.full_like(i, 70), i >> torch.full_like(i, 70)


def quotients_just_below(x: Tensor) -> Results:
    a, b = torch.tensor([1.0, 0.5, 6.0, -1.0]), torch.tensor([0.1, 0.1, 0.2, 0.1])
    return a // b, torch.div(a, b, rounding_mode="floor"), a % b, x // 0.1, x % -0.3


def scalars_of_halves(x: Tensor) -> Results:
    h = x.bfloat16()
    return torch.fmod(h, 1.7), torch.remainder(h, 1.7), h > 1.7, h + 0.1, h.clamp(-0.7, 0.7)


def halves_that_overflow(x: Tensor) -> Results:
    y = (x * 900).half() * 300
    return y.isinf(), torch.where(y.isinf(), torch.zeros_like(y), y), (y.float() == y).all()


def extremes_of_bytes(x: Tensor) -> Results:
    b = (x * 40).to(torch.int8).flatten()
    return b.min(), b.max(), b.argmin(), b.argmax(), b.amax(), (b > 0).int().argmax()


def softmin_of_bytes(x: Tensor) -> Results:
    b = x.abs().mul(3).to(torch.uint8)
    return F.softmin(b, 0, dtype=torch.float64), F.softmin(x, 1, dtype=torch.float64)


def as_many_results_as_dims(x: Tensor) -> Results:
    i = x.abs().mul(3).long()
    return *torch.unravel_index(i, (5, 4, 3)), torch.unravel_index(i, (60,))[0]


PROGRAMS = [
    rows_move_down, written_and_mirrored, lists_of_tensors, copied_before_the_change,
    read_as_other_bits, scattered_into, names_of_one_memory, other_shapes_under_no_grad,
    bytes_of_negatives, truths_of_bytes, far_shifts, quotients_just_below, scalars_of_halves,
    halves_that_overflow, extremes_of_bytes, softmin_of_bytes, as_many_results_as_dims,
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_is_as_in_pytorch(fn: Callable[..., Any], mode: str) -> None:
    def arguments() -> tuple[Tensor]:
        return (torch.randn(6, 8, generator=torch.Generator().manual_seed(0)),)

    agree(fn, arguments, mode)
