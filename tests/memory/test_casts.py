"""Autocast's casts on meta tensors are those of PyTorch on the CPU; its tables know every op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.memory import casts

CAST = torch.ops.aten._to_copy.default
Calls = Mapping[str, Callable[[dict[str, Tensor]], Any]]

LOWER: Calls = {
    "mm": lambda t: torch.mm(t["x"], t["y"]),
    "matmul": lambda t: t["x"] @ t["y"],
    "matmul of a vector": lambda t: t["x"] @ t["v"],
    "matmul of halves": lambda t: t["x"].bfloat16() @ t["y"],
    "matmul of doubles": lambda t: t["x"].double() @ t["y"].double(),
    "bmm": lambda t: torch.bmm(t["s"], t["s"]),
    "addmm": lambda t: torch.addmm(t["x"], t["x"], t["y"]),
    "addbmm": lambda t: torch.addbmm(t["x"], t["s"], t["s"]),
    "baddbmm": lambda t: torch.baddbmm(t["s"], t["s"], t["s"]),
    "vecdot": lambda t: torch.linalg.vecdot(t["x"], t["y"]),
    "linear": lambda t: F.linear(t["x"], t["w"], t["v"]),
    "linear without a bias": lambda t: F.linear(t["x"], t["w"]),
    "a weight twice": lambda t: F.linear(F.linear(t["x"], t["w"]), t["w"]),
    "prelu": lambda t: F.prelu(t["x"], t["v"]),
    "conv1d": lambda t: F.conv1d(t["s"], t["s"]),
    "conv1d, same": lambda t: F.conv1d(t["s"], t["s"][:, :, :3], padding="same"),
    "conv2d": lambda t: F.conv2d(t["i"], t["i"]),
    "conv2d, same": lambda t: F.conv2d(t["i"], t["i"][..., :3, :3], padding="same"),
    "conv3d": lambda t: F.conv3d(t["i"][None], t["i"][None]),
    "conv_tbc": lambda t: torch.conv_tbc(t["s"], t["s"], t["v"]),
    "conv_transpose1d": lambda t: F.conv_transpose1d(t["s"], t["s"]),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t["i"], t["i"]),
    "conv_transpose3d": lambda t: F.conv_transpose3d(t["i"][None], t["i"][:, None]),
    "einsum": lambda t: torch.einsum("ij,kj->ik", t["x"], t["y"]),
}
FLOAT32: Calls = {
    "avg_pool3d": lambda t: F.avg_pool3d(t["i"].bfloat16(), 2),
    "binary_cross_entropy": lambda t: F.binary_cross_entropy(t["p"].bfloat16(), t["p"].bfloat16()),
    "grid_sample": lambda t: F.grid_sample(
        t["i"].bfloat16(), t["g"].bfloat16(), align_corners=True
    ),
    "mse_loss": lambda t: F.mse_loss(t["x"].bfloat16(), t["y"]),
    "smooth_l1_loss": lambda t: F.smooth_l1_loss(t["x"].bfloat16(), t["y"].bfloat16()),
    "huber_loss": lambda t: F.huber_loss(t["x"].bfloat16(), t["y"].bfloat16()),
    "cosine_embedding_loss": lambda t: F.cosine_embedding_loss(
        t["x"].bfloat16(), t["y"].bfloat16(), torch.ones_like(t["v"])
    ),
    "kl_div": lambda t: F.kl_div(t["x"].bfloat16(), t["p"].bfloat16(), reduction="batchmean"),
    "nll_loss": lambda t: F.nll_loss(t["x"].bfloat16(), t["n"]),
    "multilabel_margin_loss": lambda t: F.multilabel_margin_loss(
        t["x"].bfloat16(), torch.zeros_like(t["x"], dtype=torch.int64)
    ),
    "poisson_nll_loss": lambda t: F.poisson_nll_loss(t["x"].bfloat16(), t["p"].bfloat16()),
    "hinge_embedding_loss": lambda t: F.hinge_embedding_loss(t["x"].bfloat16(), t["y"].bfloat16()),
    "margin_ranking_loss": lambda t: F.margin_ranking_loss(
        t["v"].bfloat16(), t["v"].bfloat16(), t["v"].bfloat16()
    ),
    "cdist": lambda t: torch.cdist(t["x"].bfloat16(), t["y"].bfloat16()),
    "renorm": lambda t: torch.renorm(t["x"].bfloat16(), 2, 0, 1.0),
    "trace": lambda t: torch.trace(t["x"].bfloat16()),
    "cholesky": lambda t: torch.linalg.cholesky_ex(t["x"].bfloat16())[0],
    "inv": lambda t: torch.linalg.inv_ex(t["x"].bfloat16())[0],
    "svdvals": lambda t: torch.linalg.svdvals(t["x"].bfloat16()),
    "fft": lambda t: torch.fft.fft(t["x"].bfloat16()),
    "rfft": lambda t: torch.fft.rfft(t["x"].bfloat16()),
    "stft": lambda t: torch.stft(
        t["x"].bfloat16(), 4, window=torch.ones_like(t["v"])[:4], return_complex=True
    ),
}
WIDEST: Calls = {
    "cat": lambda t: torch.cat([t["x"], t["y"].bfloat16()]),
    "cat of halves": lambda t: torch.cat([t["x"].bfloat16(), t["y"].bfloat16()]),
    "stack": lambda t: torch.stack([t["x"].bfloat16(), t["y"]]),
    "index_copy": lambda t: torch.index_copy(t["x"], 0, t["n"], t["y"].bfloat16()),
}
OTHERS: Calls = {  # with no kernel of autocast on the CPU: nothing is cast, or promotion does it
    "sum": lambda t: t["x"].bfloat16().sum(),
    "softmax": lambda t: torch.softmax(t["x"].bfloat16(), -1),
    "layer_norm": lambda t: F.layer_norm(t["x"].bfloat16(), (8,)),
    "exp": lambda t: t["x"].bfloat16().exp(),
    "add": lambda t: t["x"].bfloat16() + t["y"],
}
CALLS: Calls = {**LOWER, **FLOAT32, **WIDEST, **OTHERS}

IN_FLOAT32 = (
    "_grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d adaptive_max_pool3d "
    "avg_pool3d binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky "
    "cholesky_inverse cholesky_solve cosine_embedding_loss cross_entropy_loss ctc_loss "
    "fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 "
    "fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn "
    "fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler grid_sampler_2d "
    "grid_sampler_3d hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky "
    "linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh "
    "linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank "
    "linalg_matrix_sqrth "  # since PyTorch 2.14
    "linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve "
    "lu_solve margin_ranking_loss max_pool3d max_unpool2d max_unpool3d mse_loss "
    "multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward nanquantile "
    "nll_loss nll_loss2d orgqr ormqr pinverse poisson_nll_loss polar prod qr quantile "
    "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d "
    "smooth_l1_loss soft_margin_loss stft svd trace triangular_solve triplet_margin_loss "
    "view_as_complex"
)


class Seen(TorchDispatchMode):
    """The casts: from which dtype to which, of which form."""

    def __init__(self) -> None:
        super().__init__()
        self.casts: list[tuple[torch.dtype, torch.dtype, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is CAST and args[0].dtype is not result.dtype:
            self.casts.append((args[0].dtype, result.dtype, tuple(result.shape)))
        return result


def operands(device: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    square = torch.eye(8) + 0.1 * torch.rand(8, 8)
    made = {
        "x": square, "y": square.clone(), "p": torch.rand(8, 8) * 0.8 + 0.1,
        "w": torch.rand(8, 8).requires_grad_(), "v": torch.rand(8), "n": torch.arange(8),
        "s": torch.rand(8, 8, 8), "i": torch.rand(2, 2, 8, 8), "g": torch.rand(2, 3, 3, 2),
    }  # fmt: skip
    return {k: v.detach().to(device).requires_grad_(v.requires_grad) for k, v in made.items()}


def dtypes(result: Any) -> list[torch.dtype]:
    found = result if isinstance(result, tuple | list) else [result]
    return [x.dtype for x in found]


def seen(call: Any, device: str) -> tuple[list[torch.dtype], list[Any]]:
    tensors, mode = operands(device), Seen()
    inside = casts.Casts("cpu").on() if device == "meta" else contextlib.nullcontext()
    with inside, torch.autocast("cpu", torch.bfloat16), mode:
        result = call(tensors)
    return dtypes(result), sorted(mode.casts, key=str)  # of one op, in any order


def test_there_are_enough() -> None:
    assert len(CALLS) >= 40


@pytest.mark.parametrize("name", CALLS)
def test_as_pytorch_casts(name: str) -> None:
    assert seen(CALLS[name], "meta") == seen(CALLS[name], "cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_tables_are_of_ops_that_have_kernels(device: str) -> None:
    tables = casts._LOWER[device] | casts._WIDEST[device]
    if device == "cuda":
        tables |= casts._BY_DTYPE | casts._WITH_DTYPE.keys()
    assert tables <= casts._kernels(device)
    assert not casts._LOWER[device] & casts._WIDEST[device]


def test_what_is_in_no_table_is_meant_to_run_in_float32() -> None:
    """An op that another PyTorch casts has to be put into a table, or here."""
    tables = casts._LOWER["cpu"] | casts._WIDEST["cpu"]
    packets = {name.partition(".")[0] for name in casts._kernels("cpu") - tables}
    assert packets <= set(IN_FLOAT32.split())


@pytest.mark.parametrize(("calls", "dtype"), [(LOWER, torch.bfloat16), (WIDEST, torch.float32)])
def test_the_calls_are_of_their_kind(calls: Calls, dtype: torch.dtype) -> None:
    found = {name: seen(call, "meta")[0] for name, call in calls.items()}
    others = {name for name, kinds in found.items() if kinds != [dtype]}
    assert others <= {"matmul of doubles", "cat of halves"}
