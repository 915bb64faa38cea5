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


def test_calls_that_differ_have_plans_of_their_own() -> None:
    x = torch.ones(3, 4)
    recorded = torch.ones(3, 4, requires_grad=True)
    with_gradient = torch.ones(3, 4, requires_grad=True)
    with_gradient.grad = torch.zeros(3, 4)
    sparse = torch.eye(3).to_sparse()
    calls = [
        [x], [x.t()], [x.double()], [recorded], [with_gradient], [sparse], [sparse.double()],
        [(x,)], [[x]], [{"a": x}], [{"b": x}], [1], [True], [1.0], [0.0], [-0.0], ["1"], [None],
    ]  # fmt: skip
    assert len({call_key(args, True) for args in calls}) == len(calls)
    assert call_key([float("nan")], True) == call_key([float("nan")], True)
    assert call_key([0.0], False) == call_key([-0.0], False)
