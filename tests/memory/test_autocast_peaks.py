"""Under autocast a call takes what is predicted, and keeps to a budget.

Forward within the block, backward outside of it. All programs run in a process of their own, in
whose heap nothing else has left holes; some also within the least budget that they can keep.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.memory.measure import can_measure_resident, measure_peak

NOISE_BYTES = 400_000
ROOM_BYTES = 2_000_000
pytestmark = pytest.mark.skipif(not can_measure_resident(), reason="needs Linux's /proc")


class Last(nn.Module):
    def __init__(self, layers: nn.LSTM) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0]


def convolutions() -> nn.Module:
    first, second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(32), nn.ReLU(), second)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "recurrent": (lambda: Last(nn.LSTM(64, 96, batch_first=True)), (50, 100, 64)),
    "both ways": (lambda: Last(nn.LSTM(64, 96, bidirectional=True)), (120, 50, 64)),
    "layers": (lambda: Last(nn.LSTM(64, 64, 3, dropout=0.3)), (200, 64, 64)),
    "of one": (lambda: Last(nn.LSTM(32, 64)), (1500, 1, 32)),
    "convolutions": (convolutions, (6, 3, 96, 96)),
    "perceptron": (perceptron, (8000, 96)),
}
BUDGETED = {"recurrent", "convolutions", "perceptron"}


def peaks(name: str, grad: bool) -> list[tuple[int, int]]:
    """Measured and predicted, without a budget, and maybe within the least."""
    torch.manual_seed(0)
    make, shape = PROGRAMS[name]
    model = make()
    x = torch.randn(shape, requires_grad=grad)
    leaves = [x, *model.parameters()]

    def found(compiled: Any) -> tuple[int, int]:
        def run() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                result = compiled(x)
            if grad:
                result.backward(torch.ones_like(result))

        with torch.autocast("cpu", torch.bfloat16):
            predicted = compiled.memory(x).peak_bytes
        run()
        measured: list[int] = []
        for _ in range(2):
            for leaf in leaves:
                leaf.grad = None
            measured.append(measure_peak(run, release=lt.empty_cache)[0].peak_bytes)
        return min(measured), predicted

    with torch.set_grad_enabled(grad):
        each = [found(lt.script(model))]
        if name not in BUDGETED or not grad:
            return each
        try:
            with torch.autocast("cpu", torch.bfloat16):
                lt.script(model, budget=1)(x)
        except lt.BudgetError as refused:
            least = refused.least_bytes
        each.append(found(lt.script(model, budget=least)))
        assert each[1][1] <= least
    return each


@pytest.fixture(scope="module")
def measured() -> dict[str, list[tuple[int, int]]]:
    command = [sys.executable, "-m", "tests.memory.test_autocast_peaks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_is_as_predicted(name: str, grad: bool, measured: dict[str, Any]) -> None:
    for taken, predicted in measured[f"{name} {grad}"]:
        assert taken <= predicted + NOISE_BYTES
        assert predicted <= 1.1 * taken + ROOM_BYTES


if __name__ == "__main__":
    import tests.memory.conftest  # noqa: F401  (what is freed is unmapped at once)
    from tests.quickly import compile_quickly

    compile_quickly()
    print(json.dumps({f"{n} {grad}": peaks(n, grad) for n in PROGRAMS for grad in (False, True)}))
