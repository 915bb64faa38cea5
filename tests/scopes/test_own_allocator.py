"""What a scope takes from a device's own allocator is given back when it ends, not later.

There is no GPU for most who run this, and memory of the CPU is malloc's; so a device is made whose
allocator counts. It is made for a whole process: these functions run in one of their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lowtide as lt

KIB = 1 << 10
ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import gc, sys
from tests.scopes.test_own_allocator import PARTS
gc.disable()
PARTS[sys.argv[1]]()
"""


def of_bytes(count: int) -> torch.Tensor:
    return torch.ones(count, dtype=torch.uint8, device="counted")


def statistics_fall_at_the_end() -> None:
    from tests.scopes.counted_device import allocated_bytes

    kept: list[torch.Tensor] = []
    with lt.dispose_scope() as scope:
        kept += [of_bytes(8 * KIB) for _ in range(8)]
        result = scope.move_to_outer(kept[0] + 1)
        assert allocated_bytes() == 72 * KIB
    assert all(lt.is_disposed(t) for t in kept)
    assert allocated_bytes() == 8 * KIB
    assert result.cpu().tolist() == [2] * 8 * KIB
    lt.dispose(result)
    assert allocated_bytes() == 0


def a_loop_that_keeps_its_tensors_has_the_peak_of_one_step() -> None:
    from tests.scopes.counted_device import allocated_bytes, peak_bytes

    kept: list[torch.Tensor] = []
    for _ in range(20):
        with lt.dispose_scope():
            kept.append(of_bytes(16 * KIB) + 1)
    assert peak_bytes() == 32 * KIB
    assert allocated_bytes() == 0


def an_alias_and_a_cycle() -> None:
    from tests.scopes.counted_device import allocated_bytes

    with lt.dispose_scope() as scope:
        cycle: list[object] = [of_bytes(KIB)]
        cycle.append(cycle)
        shared = of_bytes(KIB)
        alias = scope.detach(lt.alias(shared))
    assert lt.is_disposed(shared)
    assert allocated_bytes() == KIB
    assert alias.cpu().sum() == KIB
    del alias
    assert allocated_bytes() == 0


def what_backward_needs_stays_until_backward() -> None:
    from tests.scopes.counted_device import allocated_bytes

    leaf = torch.ones(KIB, device="counted", requires_grad=True)
    with lt.dispose_scope() as scope:
        hidden = leaf * 2
        retained = (hidden * 1).exp()
        retained.retain_grad()
        loss = scope.detach(retained.sum())
    assert lt.is_disposed(hidden)
    assert allocated_bytes() == 8 * KIB + 4  # the leaf, what exp saved, the loss
    loss.backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.cpu(), 2 * torch.full((KIB,), 2.0).exp())
    del loss, leaf
    with lt.dispose_scope():
        pass  # lets go of what had `retain_grad`
    assert allocated_bytes() == 0


def by_hand_at_once() -> None:
    """After `retain_grad`, too, where C++ holds the handle weakly."""
    from tests.scopes.counted_device import allocated_bytes

    leaf = torch.ones(KIB, device="counted", requires_grad=True)
    plain, retained = leaf * 2, leaf * 3
    retained.retain_grad()
    assert allocated_bytes() == 12 * KIB
    lt.dispose(plain, retained)
    assert allocated_bytes() == 4 * KIB
    lt.dispose(leaf)
    assert allocated_bytes() == 0


def training_takes_the_same_at_each_step() -> None:
    from tests.scopes.counted_device import allocated_bytes

    weight = torch.ones(KIB, device="counted", requires_grad=True)
    optimizer = torch.optim.Adam([weight], foreach=False)
    losses: list[torch.Tensor] = []
    sizes: list[int] = []
    for _ in range(4):
        with lt.dispose_scope():
            losses.append((weight * weight).sum())
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        sizes.append(allocated_bytes())
    assert all(lt.is_disposed(loss) for loss in losses)
    assert sizes == [12 * KIB] * 4  # the weight and two moments


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part
    for part in (
        statistics_fall_at_the_end, a_loop_that_keeps_its_tensors_has_the_peak_of_one_step,
        an_alias_and_a_cycle, by_hand_at_once, what_backward_needs_stays_until_backward,
        training_takes_the_same_at_each_step,
    )
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_devices_own_allocator_has_its_memory_back(part: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, part],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
