"""Contractions, normalisation, attention, distances and losses: lowering evaluated = eager."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from against_eager import check, floats, ints, title

INF = math.inf
BF16, F16 = torch.bfloat16, torch.float16
W8 = floats(8)

CONTRACTIONS: list[tuple[Any, ...]] = [
    *(("matmul", floats(*a), floats(*b)) for a, b in (
        ((6,), (6,)), ((6, 7), (7,)), ((6,), (6, 7)), ((6, 7), (7, 8)), ((2, 6, 7), (7, 8)),
        ((6, 7), (2, 7, 8)), ((2, 6, 7), (2, 7, 8)), ((3, 1, 6, 7), (2, 7, 8)), ((2, 6, 7), (7,)),
        ((7,), (2, 7, 8)), ((6, 7), (6, 8)), ((6, 0), (0, 7)), ((0, 6), (6, 7)), ((1, 6), (6, 1)),
        ((), (6,)), ((2, 6, 7), (3, 7, 8)))),
    ("matmul", ints(6, 7), ints(7, 3)), ("matmul", ints(6, 7).int(), ints(7, 3).int()),
    ("matmul", floats(6, 7), floats(7, 3).double()), ("matmul", floats(6, 7), ints(7, 3)),
    ("matmul", floats(6, 7).bfloat16(), floats(7, 3).bfloat16()),
    ("matmul", floats(6, 7).half(), floats(7, 3).half()),
    ("matmul", floats(6, 7).double(), floats(7, 3).double()),
    ("mm", floats(6, 7), floats(7, 3)), ("mm", floats(6, 7), floats(7)),
    ("bmm", floats(2, 6, 7), floats(2, 7, 3)), ("bmm", floats(2, 6, 7), floats(1, 7, 3)),
    ("mv", floats(6, 7), floats(7)), ("dot", floats(6), floats(6)), ("dot", floats(6), floats(7)),
    ("outer", floats(6), floats(7)), ("inner", floats(6, 7), floats(3, 7)),
    ("inner", floats(6), floats(6)), ("inner", floats(6), floats()),
    ("linear", floats(6, 7), floats(3, 7)), ("linear", floats(6, 7), floats(3, 7), floats(3)),
    ("linear", floats(2, 6, 7), floats(3, 7), floats(3)),
    ("linear", floats(7), floats(3, 7), floats(3)),
    ("linear", floats(6, 7).bfloat16(), floats(3, 7).bfloat16(), floats(3).bfloat16()),
    ("linear", floats(6, 8), floats(3, 7)), ("linear", floats(6, 7), floats(3, 7), floats(4)),
    ("addmm", floats(8), floats(6, 7), floats(7, 8)),
    ("addmm", floats(6, 8), floats(6, 7), floats(7, 8), 0.5, 2.0),
    ("addmm", torch.full((8,), math.nan), floats(6, 7), floats(7, 8), 0.0, 2.0),
    ("addmm", floats(2, 6, 8), floats(6, 7), floats(7, 8)),
    ("baddbmm", floats(2, 6, 8), floats(2, 6, 7), floats(2, 7, 8)),
    ("baddbmm", floats(8), floats(2, 6, 7), floats(2, 7, 8), 2, 0.5),
    ("addmv", floats(6), floats(6, 7), floats(7)),
    ("tensordot", floats(6, 7, 3), floats(7, 3, 8)),
    ("tensordot", floats(6, 7, 3), floats(7, 3, 8), 0),
    ("tensordot", floats(6, 7, 3), floats(3, 6, 8), ([0, 2], [1, 0])),
    ("tensordot", floats(6, 7), floats(6, 7), ([0], [1])),
    ("kron", floats(2, 3), floats(6, 7)), ("kron", floats(6), floats(2, 3)),
]  # fmt: skip


CONVOLUTIONS: list[tuple[Any, ...]] = [
    ("conv1d", floats(2, 6, 9), floats(7, 6, 3)),
    ("conv1d", floats(2, 6, 9), floats(7, 6, 3), floats(7), 2, 1),
    ("conv1d", floats(6, 9), floats(7, 6, 3), floats(7), [3], [2], [2]),
    ("conv1d", floats(2, 6, 9), floats(4, 3, 2), floats(4), 1, 1, 1, 2),
    ("conv1d", floats(2, 6, 9), floats(6, 1, 3), None, 1, 1, 1, 6),
    ("conv1d", floats(1, 1, 9), floats(7, 1, 9)), ("conv1d", floats(1, 1, 8), floats(7, 1, 9)),
    ("conv1d", floats(2, 6, 9), floats(7, 5, 3)), ("conv1d", floats(2, 6, 9), floats(7, 6, 3), W8),
    ("conv1d", floats(2, 6, 9).double(), floats(7, 6, 3).double(), None, 1, "valid"),
    ("conv2d", floats(2, 6, 9, 7), floats(5, 6, 3, 2), floats(5), [2, 1], [1, 0]),
    ("conv2d", floats(6, 9, 7), floats(5, 6, 3, 3), floats(5), 1, 1, [2, 1]),
    ("conv2d", floats(2, 6, 9, 7), floats(6, 3, 3, 3), floats(6), 1, 1, 1, 2),
    ("conv3d", floats(2, 3, 5, 6, 7), floats(4, 3, 2, 3, 2), floats(4), 1, [1, 0, 1]),
]  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=title)
def test_convolution_of_little_work(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.parametrize("case", [
    ("conv1d", floats(2, 64, 99), floats(64, 64, 9)), ("conv1d", floats(2, 6, 9), floats(7, 6, 3),
    None, 1, "same"), ("conv1d", floats(2, 6, 9).half(), floats(7, 6, 3).half()),
], ids=title)  # fmt: skip
def test_convolution_left_to_pytorch(case: tuple[Any, ...]) -> None:
    check(*case, left=True)


@pytest.mark.parametrize("case", CONTRACTIONS, ids=title)
def test_contraction(case: tuple[Any, ...]) -> None:
    check(*case)


EINSUMS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(6, 7), (7, 8)]),
    ("ij,jk", [(6, 7), (7, 8)]),
    ("bij,bkj->bik", [(2, 6, 7), (2, 8, 7)]),
    ("bhid,bhjd->bhij", [(2, 3, 6, 8), (2, 3, 7, 8)]),
    ("ii", [(6, 6)]),
    ("ij->", [(6, 7)]),
    ("ij->j", [(6, 7)]),
    ("i,j->ij", [(6,), (7,)]),
    ("i,i", [(6,), (6,)]),
    ("...ij,...jk->...ik", [(3, 1, 6, 7), (2, 7, 8)]),
    ("...ij,...jk", [(2, 6, 7), (7, 8)]),
    ("i...,i...->...", [(6, 7), (6, 7)]),
    ("ij,jk,kl->il", [(6, 7), (7, 8), (8, 5)]),
    ("ij,ik,il->jkl", [(6, 2), (6, 3), (6, 4)]),
    ("bn,anm,bm->ba", [(2, 6), (3, 6, 7), (2, 7)]),
    ("iij,j->i", [(6, 6, 7), (7,)]),
    ("ij,ij->ij", [(6, 1), (6, 7)]),
    (" i j , j k -> k i ", [(6, 7), (7, 8)]),
    ("Ij,jK->KI", [(6, 7), (7, 8)]),
    ("ij,jk->ik", [(6, 7), (8, 7)]),
    ("ij->ijk", [(6, 7)]),
    ("ij->ii", [(6, 7)]),
    ("ijk->ij", [(6, 7)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EINSUMS, ids=title)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    check("einsum", equation, [floats(*s) for s in shapes])


def test_einsum_left_to_pytorch() -> None:
    check("einsum", "...ij->ij", [floats(2, 6, 7)], left=True)
    for view in ("ba", "ij->ji", "ii->i"):
        check("einsum", view, [floats(6, 6)], left=True)


@pytest.mark.parametrize("lead", [(), (9,), (3, 5), (0,), (2, 1)], ids=title)
@pytest.mark.parametrize("bias", [False, True])
def test_bilinear(lead: tuple[int, ...], bias: bool) -> None:
    operands = [floats(*lead, 6), floats(*lead, 7), floats(5, 6, 7)]
    check("bilinear", *operands, floats(5) if bias else None)


def test_bilinear_of_other_sizes_is_an_error_of_pytorch() -> None:
    check("bilinear", floats(3, 1), floats(3, 7), floats(5, 6, 7), left=True)
    check("bilinear", floats(3, 6), floats(4, 7), floats(5, 6, 7), left=True)
    check("bilinear", floats(3, 6), floats(3, 7), floats(5, 6, 7), floats(1), left=True)


X = floats(2, 6, 5, 7)
W, B = floats(6), floats(6)
MASKED = torch.tensor([[-INF, 1.0, 2.0], [-INF, -INF, -INF], [math.nan, 1.0, 2.0]])
NORMS: list[tuple[Any, ...]] = [
    *((name, floats(6, 7), d) for name in ("softmax", "log_softmax") for d in (0, 1, -1, 2)),
    ("softmax", floats(), 0), ("softmax", MASKED, 1), ("log_softmax", MASKED, 1),
    ("softmax", floats(6, 7).bfloat16(), 1), ("softmax", floats(6, 7) * 100, 1),
    ("softmax", ints(6, 7), 1, torch.float32), ("softmax", ints(6, 7), 1),
    ("softmax", floats(6, 7).half(), 1, torch.float32),
    ("F.softmax", floats(6, 7), 1), ("F.log_softmax", floats(6, 7), 1),
    ("softmin", floats(6, 7), 1),
    ("layer_norm", floats(6, 7), [7]), ("layer_norm", floats(6, 7), [7], floats(7), floats(7)),
    ("layer_norm", floats(2, 6, 7), [6, 7], floats(6, 7), floats(6, 7), 1e-3),
    ("layer_norm", floats(6, 7), [7], floats(7)), ("layer_norm", floats(6, 7), [6]),
    ("layer_norm", floats(6, 7).bfloat16(), [7], floats(7).bfloat16(), floats(7).bfloat16()),
    ("rms_norm", floats(6, 7), [7]), ("rms_norm", floats(6, 7), [7], floats(7), 1e-3),
    ("rms_norm", floats(6, 7).double(), [7], floats(7).double()),
    ("batch_norm", X, floats(6), floats(6).abs(), W, B),
    ("batch_norm", X, floats(6), floats(6).abs()),
    ("batch_norm", floats(5, 6), floats(6), floats(6).abs(), W, B, False, 0.1, 1e-3),
    ("batch_norm", X, floats(5), floats(5).abs()),
    ("batch_norm", X, None, None, W, B, True),
    ("batch_norm", floats(5, 6), None, None, None, B, True),
    ("group_norm", X, 3, W, B), ("group_norm", X, 6), ("group_norm", X, 1, W, B, 1e-3),
    ("group_norm", X, 4, W, B), ("group_norm", floats(5, 6), 2, W, B),
    ("instance_norm", X), ("instance_norm", X, None, None, W, B),
    ("instance_norm", X, floats(6), floats(6).abs(), W, B, False),
    ("cdist", floats(6, 3), floats(7, 3)), ("cdist", floats(2, 6, 3), floats(7, 3)),
    *(("cdist", floats(6, 3), floats(7, 3), p) for p in (0.0, 1.0, 2.0, 3.0, 0.5, INF)),
    ("cdist", floats(6, 3).double(), floats(7, 3).double()), ("cdist", floats(6, 3), floats(7, 4)),
    ("pairwise_distance", floats(6, 7), floats(6, 7)),
    ("pairwise_distance", floats(6, 7), floats(7), 1.0),
    ("pairwise_distance", floats(6, 7), floats(6, 7), 2.0, 1e-6, True),
    ("cosine_similarity", floats(6, 7), floats(6, 7)),
    ("cosine_similarity", floats(6, 7), floats(6, 7), 0),
    ("cosine_similarity", floats(6, 1, 7), floats(5, 7), -1),
    ("cosine_similarity", torch.zeros(6, 7), floats(6, 7)),
]  # fmt: skip


@pytest.mark.parametrize("case", NORMS, ids=title)
def test_norm(case: tuple[Any, ...]) -> None:
    check(*case)


def _qkv(*dims: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    batch, (q, k, d, v) = dims[:-4], dims[-4:]
    return [floats(*batch, q, d, dtype=dtype), floats(*batch, k, d, dtype=dtype),
            floats(*batch, k, v, dtype=dtype)]  # fmt: skip


ROW_OFF = torch.ones(6, 7, dtype=torch.bool).index_fill(0, torch.tensor([2]), False)
ATTENTION: list[tuple[Any, ...]] = [
    (*_qkv(6, 7, 8, 8),), (*_qkv(2, 3, 6, 7, 8, 5),), (*_qkv(2, 3, 6, 7, 8, 8), None, 0.0, True),
    (*_qkv(2, 3, 7, 6, 8, 8), None, 0.0, True), (*_qkv(2, 3, 6, 7, 8, 8), floats(6, 7)),
    (*_qkv(2, 3, 6, 7, 8, 8), floats(6, 7) > 0), (*_qkv(2, 3, 6, 7, 8, 8), ROW_OFF),
    (*_qkv(2, 3, 6, 7, 8, 8), floats(2, 1, 6, 7)), (*_qkv(2, 3, 6, 7, 8, 8), None, 0.0, False, 0.3),
    (*_qkv(2, 6, 7, 8, 8, dtype=BF16),), (*_qkv(2, 3, 6, 7, 8, 8), floats(1, 7) > 0),
]  # fmt: skip


@pytest.mark.parametrize("case", ATTENTION, ids=title)
def test_attention(case: tuple[Any, ...]) -> None:
    check("scaled_dot_product_attention", *case, in_double=case[0].dtype is BF16)


REDUCTIONS = ("mean", "sum", "none")
P, Q = torch.rand(6, 7) * 0.9 + 0.05, torch.rand(6, 7)
CLASS = torch.tensor([0, 2, 6, 3, 3, 1])
IGNORED = torch.tensor([0, -100, 6, 3, -100, 1])
LOSSES: list[tuple[Any, ...]] = [
    *((n, floats(6, 7), floats(6, 7), None, None, r)
      for n in ("mse_loss", "l1_loss", "smooth_l1_loss")
      for r in REDUCTIONS),
    *(("huber_loss", floats(6, 7) * 2, floats(6, 7), r, 0.7) for r in REDUCTIONS),
    ("smooth_l1_loss", floats(6, 7), floats(6, 7), None, None, "mean", 0.3),
    ("smooth_l1_loss", floats(6, 7), floats(6, 7), None, None, "mean", 0.0),
    ("mse_loss", floats(6).bfloat16(), floats(6).bfloat16()),
    *(("binary_cross_entropy", P, Q, None, None, None, r) for r in REDUCTIONS),
    ("binary_cross_entropy", P, Q, torch.rand(6, 7)), ("binary_cross_entropy", P - 0.5, Q),
    ("binary_cross_entropy", P, Q + 0.5), ("binary_cross_entropy", P * math.nan, Q),
    ("binary_cross_entropy", torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])),
    *(("binary_cross_entropy_with_logits", floats(6, 7), Q, None, None, None, r)
      for r in REDUCTIONS),
    ("binary_cross_entropy_with_logits", floats(6, 7), Q, torch.rand(7)),
    ("binary_cross_entropy_with_logits", floats(6, 7), Q, torch.rand(7), None, None, "mean",
      torch.rand(7)),
    ("binary_cross_entropy_with_logits", floats(6, 7), floats(7)),
    *(("kl_div", P.log(), Q, None, None, r) for r in (*REDUCTIONS, "batchmean")),
    ("kl_div", P.log(), torch.tensor([0.0] * 7)),
    ("kl_div", P.log(), Q.log(), None, None, "sum", True),
    *(("nll_loss", P.log(), t, w, None, -100, None, r) for r in REDUCTIONS for t in (CLASS, IGNORED)
      for w in (None, torch.rand(7))),
    *(("cross_entropy", floats(6, 7), t, w, None, -100, None, r, s) for r in REDUCTIONS
      for t in (CLASS, IGNORED) for w in (None, torch.rand(7)) for s in (0.0, 0.1)),
    ("cross_entropy", floats(6, 7), CLASS, None, None, 3),
    ("cross_entropy", floats(2, 7, 5), ints(2, 5, low=0, high=7)),
    ("cross_entropy", floats(2, 7, 5, 6), ints(2, 5, 6, low=0, high=7), torch.rand(7)),
    ("cross_entropy", floats(7), torch.tensor(3)),
    ("cross_entropy", floats(6, 7), torch.full((6,), 7)),
    ("cross_entropy", floats(6, 7), CLASS[:5]),
    ("cross_entropy", floats(6, 7), torch.full((6,), -100)),
    ("cross_entropy", floats(6, 7).bfloat16(), CLASS),
    *(("cross_entropy", floats(6, 7), Q, w, None, -100, None, r, s) for r in REDUCTIONS
      for w in (None, torch.rand(7)) for s in (0.0, 0.1)),
    ("cross_entropy", floats(2, 7, 5), torch.rand(2, 7, 5)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("case", LOSSES, ids=title)
def test_loss(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.parametrize(
    "case",
    [
        ("scaled_dot_product_attention", *_qkv(6, 7, 8, 8), None, 0.1),
        ("F.softmax", floats(6, 7)),
        ("matmul", torch.ones(6, 6, dtype=torch.bool), torch.ones(6, 6, dtype=torch.bool)),
    ],
    ids=title,
)
def test_left_to_pytorch(case: tuple[Any, ...]) -> None:
    check(*case, left=True)
