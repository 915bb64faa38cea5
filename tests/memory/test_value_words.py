"""Plans and explanations speak of the user's ops, parameters and lines."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

import lowtide as lt
from lowtide.errors import Loc

INTERNAL = re.compile(r"\b(ct_\w+|s[vi]\d+_\w+|t\d+\w*|x\d+)\b")
HERE = Path(__file__).name


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.fc = nn.Linear(8, 4)

    def forward(self, i, x):
        return torch.tanh(self.fc(self.table(i) + x)).sum()


def test_buffers_of_training_have_words_and_lines() -> None:
    net = lt.script(Net())
    plan = net.memory(torch.zeros(60, dtype=torch.long), torch.rand(60, 8, requires_grad=True))
    assert not INTERNAL.search(str(plan).partition("\n")[2])
    ours = [b for b in plan.buffers if b.kind != "gradient"]
    assert ours
    assert all(HERE in str(b.loc) for b in ours), str(plan)


def test_explanations_have_words_and_lines() -> None:
    net = lt.script(Net())
    told = str(net.explain(torch.zeros(60, dtype=torch.long), torch.rand(60, 8)))
    assert not INTERNAL.search(told), told
    assert "gradient of self.fc.weight" in told
    assert "linear.py" not in told


def test_a_place_in_a_package_is_that_of_the_users_call() -> None:
    inside = nn.Linear.forward.__code__.co_filename
    call = Loc(file=__file__, line=3)
    assert Loc(file=inside, line=9, caller=call).of_user() is call
    alone = Loc(file=inside, line=9)
    assert alone.of_user() is alone
    assert alone.shown() == "torch/nn/modules/linear.py:9"
