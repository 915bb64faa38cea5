"""What scopes do to CUDA tensors; every test is skipped where there is no GPU."""

from __future__ import annotations

import gc

import pytest
import torch

import lowtide as lt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def an_empty_cache() -> None:
    """What earlier tests left to the collector does not go meanwhile."""
    torch.cuda.init()  # before, there are no statistics
    gc.collect()
    torch.cuda.empty_cache()


def allocated() -> int:
    """What was asked of PyTorch's allocator and not given back, in bytes: what it hands out may be
    more, as it takes blocks that it has and does not split off little."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def of_bytes(count: int) -> torch.Tensor:
    return torch.ones(count, dtype=torch.uint8, device="cuda")


def test_allocator_statistics_fall_at_the_scopes_end() -> None:
    before, handed_out = allocated(), torch.cuda.memory_allocated()
    kept: list[torch.Tensor] = []
    with lt.dispose_scope() as scope:
        kept += [of_bytes(8 * MIB) for _ in range(8)]
        result = scope.move_to_outer(kept[0][:MIB].clone())
        assert allocated() - before == 65 * MIB
    assert allocated() - before == MIB
    assert all(lt.is_disposed(t) for t in kept)
    lt.dispose(result)
    assert allocated() == before
    assert torch.cuda.memory_allocated() == handed_out


def test_a_loop_that_keeps_its_tensors_has_the_peak_of_one_step() -> None:
    kept: list[torch.Tensor] = []
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(20):
        with lt.dispose_scope():
            kept.append(of_bytes(16 * MIB) + 1)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert peak - before == 32 * MIB
    assert allocated() == before


def test_what_backward_needs_stays_until_backward() -> None:
    before = allocated()
    leaf = torch.ones(MIB, device="cuda", requires_grad=True)
    with lt.dispose_scope() as scope:
        hidden = leaf * 2
        loss = scope.detach(hidden.exp().sum())
    held = allocated() - before
    assert held >= 8 * MIB  # leaf and what exp saved
    loss.backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, 2 * torch.full_like(leaf, 2).exp())
    del loss, leaf
    assert allocated() == before


def test_what_hooks_make_is_the_scopes() -> None:
    """They run on a thread of PyTorch's engine; a compiled function's own tensors there are not."""
    leaf = torch.ones(MIB, device="cuda", requires_grad=True)

    @lt.script
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).exp()

    made: list[torch.Tensor] = []
    leaf.register_hook(lambda grad: made.extend((grad.square(), compiled(grad.detach()))))
    compiled(leaf).sum().backward()
    made.clear()
    before = allocated()
    with lt.dispose_scope() as scope:
        compiled(leaf).sum().backward()
        assert all(map(scope.contains, made))
    assert all(map(lt.is_disposed, made))
    assert allocated() == before
    compiled(leaf).sum().backward()  # nothing of its own ended with the scope


def test_a_tensor_in_use_on_another_stream_keeps_its_values() -> None:
    """`record_stream` is the allocator's promise, and it holds for what a scope disposes too."""
    side = torch.cuda.Stream()
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    with lt.dispose_scope():
        values = of_bytes(64 * MIB)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            total += values.sum()
        values.record_stream(side)
    assert lt.is_disposed(values)
    overwriting = [torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert total.item() == 64 * MIB
    del overwriting


def test_pinned_memory_and_copies_that_run_on() -> None:
    with lt.dispose_scope() as scope:
        pinned = torch.arange(MIB, dtype=torch.float32).pin_memory()
        moved = scope.detach(pinned.to("cuda", non_blocking=True))
    assert lt.is_disposed(pinned)
    others = [torch.zeros(MIB).pin_memory() for _ in range(4)]  # the block is not used again yet
    torch.testing.assert_close(moved.cpu(), torch.arange(MIB, dtype=torch.float32))
    del others


def test_a_graph_of_cuda_is_replayed_after_the_scope() -> None:
    """Its tensors lie in a pool of its own, which a handle that ends does not take from it."""
    source = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with lt.dispose_scope() as scope:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            (source * 2).sum()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            hidden = source * 2
            result = scope.detach(hidden + 1)
    assert lt.is_disposed(hidden)
    for value in (1.0, 5.0):
        source.fill_(value)
        graph.replay()
        assert result.tolist() == [value * 2 + 1] * 1024


def test_a_disposed_tensor_raises_in_every_direction() -> None:
    with lt.dispose_scope():
        gone = of_bytes(16)
    for use in (
        lambda: gone.cpu(),
        lambda: torch.tensor(gone),
        lambda: torch.from_dlpack(gone),
        lambda: gone.__cuda_array_interface__,
        lambda: torch.ones(16, device="cuda") + gone,
        lambda: gone.record_stream(torch.cuda.current_stream()),
        lambda: torch.cat([of_bytes(1), gone]),
    ):
        with pytest.raises(lt.DisposedTensorError):
            use()


def test_autocast_and_a_gradient_scaler_in_scopes() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    data = torch.randn(32, 64, device="cuda")
    sizes: list[int] = []
    for _ in range(4):
        with lt.dispose_scope():
            with torch.autocast("cuda", torch.float16):
                loss = layer(data).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert lt.is_disposed(loss)
        sizes.append(allocated())
    assert sizes[1] == sizes[2] == sizes[3]
