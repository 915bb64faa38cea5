"""Runs of ops that are computed again as a whole, where no axis cuts the program.

Batch norm in training needs all of its batch. What it writes, it may write only once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.pipeline.budget import search
from tests.memory.nets import Down


class Net(nn.Module):
    """Convolutions, each with a norm over the batch; `more` is called in the middle."""

    def __init__(self, momentum: float = 0.1, p: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8, momentum=momentum)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.norm3 = nn.BatchNorm2d(8)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        x = F.dropout(x, self.p, self.training)
        x = torch.relu_(self.norm2(self.second(x)))
        x = F.dropout(x, self.p, self.training)
        return torch.relu(self.norm3(self.third(x))).mean((2, 3))
