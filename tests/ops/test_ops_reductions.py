"""Reductions and norms: lowering evaluated = eager."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from against_eager import check, floats, ints, sample, title

BF16, F16 = torch.bfloat16, torch.float16
DTYPES = [
    torch.float32, torch.float64, BF16, F16, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip
INF, NAN = math.inf, math.nan
DIMS: list[Any] = [None, [0], [1], [-1], [0, 2], [-2, -1], [0, 1, 2]]
WITH_DIMS = ["sum", "amax", "amin", "any", "all", "mean", "nansum", "nanmean", "var", "std"]
WITH_NAN = torch.tensor([[1.0, NAN, 3.0, -INF, 2.0], [INF, 1.0, -1.0, 0.0, 7.0]])


@pytest.mark.parametrize("dtype", DTYPES, ids=title)
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "any", "all", "mean", "var", "std",
                                  "nansum", "nanmean", "count_nonzero", "max", "min", "argmax",
                                  "argmin"])  # fmt: skip
def test_whole(name: str, dtype: torch.dtype) -> None:
    left = not dtype.is_floating_point and name in ("nansum", "nanmean")
    left = left or (dtype is torch.uint8 and name in ("any", "all"))
    check(name, sample(dtype, 3, 7), may_leave=left)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS, ids=title)
@pytest.mark.parametrize("name", WITH_DIMS)
def test_dims(name: str, dim: Any, keepdim: bool) -> None:
    x = floats(6, 3, 7)
    if name in ("amax", "amin") and dim is None:
        dim = ()
    if name in ("var", "std"):
        check(name, x, dim, None, keepdim)
    else:
        check(name, x, dim, keepdim)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1, 2])
@pytest.mark.parametrize("name", ["prod", "max.dim", "min.dim", "argmax", "argmin"])
def test_one_dim(name: str, dim: int, keepdim: bool) -> None:
    check(name, floats(6, 7), dim, keepdim)
    check(name, torch.randperm(42).reshape(6, 7), dim, keepdim)


@pytest.mark.parametrize("name", ["amax", "amin", "sum", "mean", "nansum", "nanmean", "var"])
def test_special_numbers(name: str) -> None:
    check(name, WITH_NAN, [1])
    check(name, WITH_NAN, [0])


@pytest.mark.parametrize("name", ["max.dim", "min.dim", "argmax", "argmin"])
def test_special_numbers_by_index(name: str) -> None:
    check(name, WITH_NAN, 1)
    check(name, torch.tensor([1.0, 3.0, 3.0, 1.0, 1.0]), 0)


CASES: list[tuple[Any, ...]] = [
    ("sum", floats(6, 7), None, False, torch.float64),
    ("sum", ints(6, 7), [1], False, torch.float32),
    ("sum", floats(6, 7), [0], False, torch.int64),
    ("sum", floats(6, 7).bfloat16(), [1], True, torch.float32),
    ("sum", floats(6, 7), []),
    ("sum", floats(0, 6)),
    ("sum", floats(6, 0), [1]),
    ("sum", floats()),
    ("sum", floats(), [0]),
    ("sum", floats(), [-1], True),
    ("sum", floats(6, 7), [2]),
    ("sum", floats(6, 7), [0, 0]),
    ("prod", ints(4, 3), 1),
    ("prod", floats(6, 0), 1),
    ("prod", floats(6, 7), None, False, torch.float64),
    ("mean", floats(0, 6)),
    ("mean", floats(6, 7), [1], True, torch.float64),
    ("mean", ints(6, 7), [1], True, torch.float32),
    ("mean", ints(6, 7)),
    ("max", floats(0)),
    ("max.dim", floats(6, 0), 1),
    ("max.dim", floats(6, 0), 0),
    ("max.dim", floats(), 0),
    ("argmax", floats(6, 7), None, True),
    ("argmax", floats(0)),
    ("argmin", ints(2, 3, 6), None),
    ("aminmax", floats(6, 7)),
    ("aminmax", floats(6, 7), 1, True),
    ("count_nonzero", ints(6, 7), [1]),
    ("any", ints(6, 7), [0], True),
    ("var", floats(6, 7), [1], True),
    ("var", floats(6, 7), [1], False),
    ("var", floats(6, 7), [1], None, True, 0),
    ("var", floats(6, 7), None, None, False, 2),
    ("var", floats(6, 1), [1]),
    ("var", floats(6, 7), [1], None, False, 0.5),
    ("std", floats(6, 7).bfloat16(), [1]),
    ("var.unbiased", floats(6, 7), False),
    ("std.unbiased", floats(6, 7), True),
    ("var_mean", floats(6, 7), [1]),
    ("std_mean", floats(6, 7), [0], None, True, 0),
    ("var_mean", floats(6, 7).half()),
    ("var", floats(6, 7) + 1000.0, [1]),
    ("logsumexp", floats(6, 7), [1]),
    ("logsumexp", floats(6, 7), [0, 1], True),
    ("logsumexp", torch.tensor([[-INF, -INF], [INF, 1.0], [NAN, 1.0]]), [1]),
    ("logsumexp", floats(6, 7).bfloat16(), [1]),
    ("logsumexp", floats(6, 7) * 100, [1]),
    *(("norm", floats(6, 7), p) for p in ("fro", 0, 1, 2, 3, 2.5, INF, -INF)),
    *(("norm", floats(6, 7), p, [1]) for p in ("fro", 0, 1, 2, 3, INF, -INF)),
    ("norm", floats(6, 7), 2, [0, 1], True),
    ("norm", floats(6, 7).bfloat16()),
    ("norm", ints(6, 7)),
    *(("linalg.vector_norm", floats(6, 7), p, [1], True) for p in (0, 1, 2, 3, INF, -INF)),
    ("linalg.vector_norm", floats(6, 7)),
    ("linalg.vector_norm", floats(6, 7), 2, None, False, torch.float64),
    ("linalg.norm", floats(6, 7)),
    ("linalg.norm", floats(6, 7), None, [1]),
    ("linalg.norm", floats(6, 7), 1, [1]),
    ("linalg.norm", floats(6, 7), "fro"),
    ("linalg.norm", floats(2, 6, 7), None, None, True),
    ("normalize", floats(6, 7)),
    ("normalize", floats(6, 7), 1.0, 0),
    ("normalize", torch.zeros(6, 7)),
    ("normalize", floats(6), 2.0, 0),
    ("trace", floats(6, 7)),
    ("trace", ints(6, 6)),
]


@pytest.mark.parametrize("case", CASES, ids=title)
def test_case(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.parametrize(
    "case",
    [
        ("linalg.norm", floats(6, 7), 2),
        ("norm", floats(6, 7), "nuc"),
        ("any", torch.ones(6, dtype=torch.uint8)),
        ("nansum", ints(6)),
    ],
    ids=title,
)
def test_left_to_pytorch(case: tuple[Any, ...]) -> None:
    check(*case, left=True)
