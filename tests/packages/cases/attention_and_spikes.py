"""Packages of attention, codebooks, spikes, tables and losses."""

# pyright: basic
from __future__ import annotations

from typing import Any

import torch

from tests.packages.support import Check, case, with_gradients


def _both(check: Check, name: str, made: Any, example: Any, other: Any) -> None:
    """Scripted, and traced and then run on another size, with gradients."""
    check(f"{name} scripted", lambda: with_gradients(torch.jit.script(made()), other.clone()))
    check(
        f"{name} traced",
        lambda: with_gradients(torch.jit.trace(made().eval(), example), other.clone()),
    )


@case("vit-pytorch", what="vision transformers, whose shapes are written with einops")
def vit_pytorch(check: Check) -> None:
    from vit_pytorch import ViT
    from vit_pytorch.cait import CaiT
    from vit_pytorch.simple_vit import SimpleViT

    sizes = {"image_size": 16, "patch_size": 8, "num_classes": 5, "dim": 16, "mlp_dim": 24}
    images, others = torch.randn(2, 3, 16, 16), torch.randn(3, 3, 16, 16)
    _both(check, "ViT", lambda: ViT(**sizes, depth=1, heads=2), images, others)
    _both(check, "SimpleViT", lambda: SimpleViT(**sizes, depth=1, heads=2), images, others)
    _both(check, "CaiT", lambda: CaiT(**sizes, depth=1, cls_depth=1, heads=2), images, others)


@case("linformer", what="attention with keys and values projected to a few")
def linformer(check: Check) -> None:
    from linformer import Linformer

    def made() -> Any:
        return Linformer(dim=8, seq_len=12, depth=1, heads=2, k=4)

    _both(check, "Linformer", made, torch.randn(2, 12, 8), torch.randn(3, 12, 8))


@case("snntorch", what="spiking neurons, with a surrogate gradient of their own")
def snntorch(check: Check) -> None:
    import snntorch as snn

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 6)
            self.leaky = snn.Leaky(beta=0.9)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            memory = torch.zeros_like(self.fc(x[0]))
            spikes = []
            for t in range(5):
                spike, memory = self.leaky(self.fc(x[t]), memory)
                spikes.append(spike)
            return torch.stack(spikes)

    _both(check, "Leaky", Net, torch.randn(5, 2, 4), torch.randn(5, 3, 4))


@case("pytorch-tabnet", what="attentive steps over the columns of a table")
def pytorch_tabnet(check: Check) -> None:
    from pytorch_tabnet.tab_network import TabNet

    def made() -> Any:
        groups = torch.eye(6)
        return TabNet(6, 2, n_d=4, n_a=4, n_steps=2, group_attention_matrix=groups).eval()

    _both(check, "TabNet", made, torch.randn(8, 6), torch.randn(5, 6))


@case("torch-dct", what="cosine transforms by FFT")
def torch_dct(check: Check) -> None:
    import torch_dct as dct

    for name in ("dct", "idct", "dct_2d"):
        transform = getattr(dct, name)
        check(
            f"{name} traced",
            lambda f=transform: torch.jit.trace(f, torch.rand(3, 8, 10))(torch.rand(4, 8, 12)),
        )


@case("pytorch-msssim", what="structural similarity of images")
def pytorch_msssim(check: Check) -> None:
    from pytorch_msssim import SSIM

    a, b = torch.rand(2, 3, 24, 24), torch.rand(2, 3, 24, 24)
    check(
        "SSIM scripted",
        lambda: with_gradients(torch.jit.script(SSIM(data_range=1.0)), a.clone(), b.clone()),
    )
    check(
        "SSIM traced",
        lambda: with_gradients(torch.jit.trace(SSIM(data_range=1.0), (a, b)), b.clone(), a.clone()),
    )
