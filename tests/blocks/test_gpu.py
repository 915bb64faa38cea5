"""What only a GPU can show: memory, profiles, CUDA graphs, streams, devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.runtime.graphs import FEWEST, Graphs
from tests.blocks.programs import kernel_sum, looked_up

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
ROUNDED = 512  # bytes to which PyTorch's allocator rounds


def inputs(device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    sizes = (300, 3), (200, 3), (200, 64)
    x, y, b = (torch.randn(s).to(device) for s in sizes)
    return x, y, b


def near(found: Any, want: Any) -> None:
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)


def test_predicted_memory_is_what_the_allocator_hands_out() -> None:
    compiled, given = lt.script(kernel_sum), inputs()
    compiled(*given)
    predicted = compiled.memory(*given)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = compiled(*given)
    peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"] - before
    assert predicted.peak_bytes <= peak <= predicted.peak_bytes + 8 * ROUNDED
    del found


def test_the_last_value_of_a_loop_is_kept_alone() -> None:
    """The states of all steps, in which it lies, go with the loop."""
    compiled, u = lt.script(stepped), torch.randn(96, 96, device="cuda") * 0.1
    x, h = torch.randn(12, 400, 96, device="cuda"), torch.randn(400, 96, device="cuda")
    for _ in range(3):  # a recording takes two blocks of its own
        compiled(x, u, h)
    before = torch.cuda.memory_allocated()
    found = compiled(x, u, h)
    assert (
        torch.cuda.memory_allocated() - before == found.nbytes == found.untyped_storage().nbytes()
    )


def test_a_profile_has_the_peak_of_the_device() -> None:
    compiled, given = lt.script(kernel_sum), inputs()
    compiled(*given)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with lt.profile() as found:
        compiled(*given)
    torch.cuda.synchronize()
    assert found.peaks["cuda:0"] == torch.cuda.max_memory_allocated() - before


def test_a_cuda_graph_of_a_call() -> None:
    compiled, (x, y, b) = lt.script(kernel_sum), inputs()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            compiled(x, y, b)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(x, y, b)
    x.copy_(torch.randn_like(x))
    graph.replay()
    near(found, kernel_sum(x, y, b))


def stepped(x: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ u)
    return h


def test_loops_that_repeat() -> None:
    """They become CUDA graphs of our own; other sizes and values between them."""
    compiled, u = lt.script(stepped), torch.randn(96, 96, device="cuda") * 0.1
    given = [
        (torch.randn(12, n, 96, device="cuda"), u, torch.randn(n, 96, device="cuda"))
        for n in (160, 40)
    ]
    for _ in range(4):
        for x, u, h in given:
            near(compiled(x, u, h), stepped(x, u, h))
            x.normal_()


def test_a_recording_that_fails() -> None:
    """What it was to launch runs, and so do PyTorch's random numbers."""
    graphs, device, calls = Graphs(), torch.device("cuda", 0), []

    def launch() -> None:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()  # which CUDA refuses now
        calls.append(1)

    torch.manual_seed(0)
    torch.rand(3, device=device)
    torch.cuda.synchronize()
    state = torch.cuda.get_rng_state()
    held = torch.cuda.default_generators[0].graphsafe_get_state()  # as a user's graph has it
    for _ in range(3):
        graphs.launch("same", device, FEWEST, launch)
    assert len(calls) == 3
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.rand(3, device=device).shape == (3,)
    torch.manual_seed(3)
    assert held.initial_seed() == 3


def test_the_current_stream() -> None:
    compiled, (x, y, b) = lt.script(kernel_sum), inputs()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = compiled(x * 2, y, b)
    torch.cuda.current_stream().wait_stream(stream)
    near(found, kernel_sum(x * 2, y, b))


def test_deterministic_scatters() -> None:
    compiled = lt.script(looked_up)
    table = torch.randn(50, 40, device="cuda", requires_grad=True)
    index = torch.randint(0, 50, (300, 7), device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        found = [torch.autograd.grad(compiled(table, index).sum(), table)[0] for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, found[0]) for x in found)
    near(found[0], torch.autograd.grad(looked_up(table, index).sum(), table)[0])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current_one() -> None:
    compiled = lt.script(kernel_sum)
    for device in ("cuda:1", "cuda:0"):
        given = inputs(device)
        found = compiled(*given)
        assert found.device == given[0].device
        near(found, kernel_sum(*given))
