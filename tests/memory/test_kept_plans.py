"""For which calls a plan of a budget is used again."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lowtide.budget.planned import call_key


def test_each_device_has_a_plan_of_its_own() -> None:
    with FakeTensorMode():
        gpus = [torch.empty(3, 4, device=f"cuda:{k}") for k in (0, 1)]
    keys = [call_key([x], True) for x in (torch.empty(3, 4), *gpus)]
    assert len(set(keys)) == 3
    assert call_key([torch.empty(3, 4, device="meta")], True) == keys[0]  # a dry run's
