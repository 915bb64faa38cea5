"""`torch.set_default_device` and `with torch.device(…)`: compiled code stays compiled, and makes
its tensors where PyTorch would."""

from __future__ import annotations

import pytest
import torch

import lowtide as lt


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(x.shape[0], dtype=x.dtype) * torch.ones(x.shape[0])


def distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, None] - y[None]).abs().sum(1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_kernels_run_under_a_default_device(device: str) -> None:
    compiled = lt.script(distances)
    x, y = torch.randn(30, requires_grad=True), torch.randn(20)
    expected = distances(x, y)
    (expected_grad,) = torch.autograd.grad(expected.sum(), x)
    before = lt.cache_stats()
    with torch.device(device):
        found = compiled(x, y)
        (grad,) = torch.autograd.grad(found.sum(), x)
        assert "1 kernel, 0 ops left to PyTorch" in str(compiled.explain(x, y))
    torch.testing.assert_close((found, grad), (expected, expected_grad))
    since = lt.cache_stats() - before
    assert since.calls_eager + since.regions_eager == 0


def test_a_factory_follows_the_default_device() -> None:
    compiled = lt.script(shifted)
    x = torch.randn(40)
    torch.testing.assert_close(compiled(x), shifted(x))
    with torch.device("meta"):
        with pytest.raises(RuntimeError, match="meta") as expected:
            shifted(x)
        with pytest.raises(RuntimeError, match="meta") as found:
            compiled(x)
        assert type(found.value) is type(expected.value)
        text = str(compiled.explain(x))
        assert "arange" in text
        assert "device meta" in text
    with torch.device("cpu"):
        torch.testing.assert_close(compiled(x), shifted(x))
    torch.testing.assert_close(compiled(x), shifted(x))


def test_the_process_default() -> None:
    compiled = lt.script(shifted)
    x = torch.randn(40)
    torch.set_default_device("cpu")
    try:
        before = lt.cache_stats()
        torch.testing.assert_close(compiled(x), shifted(x))
        assert (lt.cache_stats() - before).calls_eager == 0
    finally:
        torch.set_default_device(None)
