"""`max_batch_size`, and sizes as users write them."""

from __future__ import annotations

import math
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import lowtide as lt
from lowtide.memory.sizes import budget_bytes
from lowtide.tools.profiler.batch import largest


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512MB", 512 * 10**6),
        ("2GiB", 2 << 30),
        (7, 7),
        (np.int64(7), 7),
        (5e8, 500_000_000),
        (np.float32(1024), 1024),
        ("1.5 kB", 1500),
        (" 10 MiB ", 10 << 20),
    ],
)
def test_sizes(text: str | int, count: int) -> None:
    assert budget_bytes(text) == count


@pytest.mark.parametrize(
    "nonsense",
    ["lots", "", "MB", "-1MB", 0, -5, "0", math.nan, math.inf, 0.5, -1e6, True, None, []],
)
def test_nonsense_sizes(nonsense: Any) -> None:
    with pytest.raises(lt.LowtideError, match="budget="):
        budget_bytes(nonsense)


@pytest.mark.parametrize("most", [1, 5, 63, 64, 65, 999, 10**6])
@pytest.mark.parametrize("power", [1, 2, 0.5])
def test_the_search(most: int, power: float) -> None:
    calls: list[int] = []

    def peak(n: int) -> float:
        calls.append(n)
        return 10 + n**power

    found = largest(peak, 10 + most, 5000)
    assert found == max((n for n in range(5001) if n == 0 or n**power <= most), default=0)
    assert len(calls) == len(set(calls)) <= 40


def test_the_search_with_steps_out_of_memory() -> None:
    assert largest(lambda n: math.inf if n > 77 else 1.0, 10, 1000) == 77
    assert largest(lambda n: 1.0, 10, 1000) == 1000
    assert largest(lambda n: 11.0, 10, 1000) == 0


def test_a_step_of_known_bytes() -> None:
    def step(batch: torch.Tensor) -> None:
        batch.exp()

    # Batch and result: 2 × n × 1000 × 4 bytes.
    size = lt.max_batch_size(step, lambda n: torch.ones(n, 1000), 8000 * 37 + 4000)
    assert size == 37


def test_training_leaves_everything_as_it_was() -> None:
    torch.manual_seed(3)
    random.seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout())
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        random.random()

    step(torch.rand(4, 8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moments = {k: v["exp_avg"].clone() for k, v in optimizer.state_dict()["state"].items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    states = torch.get_rng_state(), random.getstate()
    assert lt.max_batch_size(step, lambda n: torch.rand(n + 1, 8), "20kB", limit=64) > 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for key, state in optimizer.state_dict()["state"].items():
        assert torch.equal(state["exp_avg"], moments[key])
    assert all(map(torch.equal, grads, (parameter.grad for parameter in model.parameters())))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_state_that_is_named() -> None:
    class Hidden:
        __slots__ = ("layer",)

    hidden = Hidden()
    hidden.layer = torch.nn.Linear(2, 2)  # type: ignore[attr-defined]
    before = hidden.layer.weight.clone()  # type: ignore[attr-defined]

    def step(batch: torch.Tensor, by: Any = hidden) -> None:
        with torch.no_grad():
            by.layer.weight += 1

    lt.max_batch_size(step, lambda n: torch.ones(n), "1kB", limit=4, keep=[hidden.layer])  # type: ignore[attr-defined]
    assert torch.equal(hidden.layer.weight, before)  # type: ignore[attr-defined]


def test_running_out_of_memory_is_too_large() -> None:
    def step(batch: torch.Tensor) -> None:
        if len(batch) > 21:
            raise torch.OutOfMemoryError("out of memory")

    assert lt.max_batch_size(step, lambda n: torch.ones(n), "1GB") == 21


def test_other_errors_come_through() -> None:
    def step(batch: torch.Tensor) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        lt.max_batch_size(step, lambda n: torch.ones(n), "1GB")


def test_nothing_fits() -> None:
    assert lt.max_batch_size(lambda batch: None, lambda n: torch.ones(n, 1000), 100) == 0


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_nonsense_limits(limit: Any) -> None:
    with pytest.raises(lt.LowtideError, match="limit="):
        lt.max_batch_size(lambda batch: None, torch.ones, 100, limit=limit)


@pytest.mark.parametrize(
    ("step", "make_batch", "said"),
    [
        (7, torch.ones, "step is of type int"),
        (lambda batch: None, "ones", "make_batch is of type str"),
        (lambda batch, target: None, torch.ones, "step is called with a batch alone"),
        (
            lambda batch: None,
            lambda: None,
            "make_batch is called with how many samples",
        ),
    ],
)
def test_what_takes_no_single_argument_is_refused(step: Any, make_batch: Any, said: str) -> None:
    with pytest.raises(lt.LowtideError, match=said):
        lt.max_batch_size(step, make_batch, 100)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_what_the_arena_and_threads_hold_is_counted() -> None:
    compiled = lt.script(_doubled)
    row_bytes = 64 * 4

    def step(batch: torch.Tensor) -> None:
        compiled(batch)  # from 1 MiB in the arena

    budget = 2 * row_bytes * 10_000
    size = lt.max_batch_size(step, lambda n: torch.ones(n, 64), budget + row_bytes)
    assert size == 10_000

    def on_a_thread(batch: torch.Tensor) -> None:
        thread = threading.Thread(target=lambda: batch.exp())
        thread.start()
        thread.join()

    assert lt.max_batch_size(on_a_thread, lambda n: torch.ones(n, 64), 2 * row_bytes * 30) == 30


def test_what_is_kept_needs_a_state() -> None:
    with pytest.raises(lt.LowtideError, match="keep has a int"):
        lt.max_batch_size(lambda batch: None, torch.ones, 100, keep=[3])


def test_random_numbers_of_gpus_that_are_not_used_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask several GPUs for their state starts them all, which PyTorch warns of."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            lt.max_batch_size(lambda x: x * 2, lambda n: torch.rand(n, 1000), "1MB", limit=9) == 9
        )
