"""A norm without running statistics has None in their place, which other ops may have, too."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt


def test_a_budget_is_found() -> None:
    """Its last convolution of 16 channels ends what is cut along the batch, and has no bias."""
    conv = partial(nn.Conv2d, kernel_size=3, padding=1)
    net = nn.Sequential(
        *(conv(3, 16, bias=False), nn.InstanceNorm2d(16), nn.Hardswish(), nn.Conv2d(16, 16, 1)),
        *(nn.ReLU(inplace=True), conv(16, 16, bias=False), nn.BatchNorm2d(16), conv(16, 8)),
    )
    x = torch.randn(4, 3, 48, 48)
    want = net(x).detach()
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(net, budget=1)(x)
    limited: Any = lt.script(net, budget=refused.value.least_bytes)
    torch.testing.assert_close(limited(x).detach(), want)
