"""PyTorch's modules of attention are compiled as a whole, with gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


def explained(module: nn.Module, *args: Tensor) -> str:
    compiled = lt.compile(module)
    compiled(*args)
    return str(compiled.explain(*args))


class Decoded(nn.Module):
    """A decoder's layer: attention to itself under a causal mask, and to something else."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=batch_first)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        size = x.shape[1 if self.layer.self_attn.batch_first else 0]
        mask = torch.full((size, size), -torch.inf).triu(1)
        return self.layer(x, y, tgt_mask=mask)


class Weighted(nn.Module):
    """Attention whose weights are a result, with keys of another size and a padding mask."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(
            32, 4, dropout=0.0, kdim=32, vdim=20, batch_first=batch_first
        )

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        b, s = (y.shape[0], y.shape[1]) if self.inner.batch_first else (y.shape[1], y.shape[0])
        padding = torch.arange(s) >= torch.arange(b)[:, None] + s - b + 1
        return self.inner(x, y, y[..., :20], key_padding_mask=padding)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [Decoded, Weighted])
def test_results_and_gradients(kind: type[nn.Module], batch_first: bool) -> None:
    torch.manual_seed(0)
    module = kind(batch_first)
    shapes = [(3, 40, 32), (3, 50, 32)] if batch_first else [(40, 3, 32), (50, 3, 32)]
    args = [torch.randn(shape) for shape in shapes]
    found: list[list[Tensor]] = []
    for own in (copy.deepcopy(module), lt.compile(copy.deepcopy(module))):
        given = [x.clone().requires_grad_() for x in args]
        result = own(*given)
        results = [result] if isinstance(result, Tensor) else list(result)
        weights = [torch.linspace(-1, 1, x.numel()).view(x.shape) for x in results]
        leaves = [*given, *own.parameters()]
        found.append([*results, *torch.autograd.grad(results, leaves, weights)])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(
            got, want, rtol=1e-4, atol=1e-5 * float(want.detach().abs().max() + 1)
        )


def test_nothing_is_left_to_pytorch() -> None:
    module = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(3, 40, 32)
    assert "0 ops left to PyTorch" in explained(module, x)


def test_dropout_in_training_is_pytorchs() -> None:
    module = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    x = torch.randn(3, 40, 32)
    assert "multi_head_attention" in explained(module, x)
    assert "attention with dropout" in explained(module, x)
