"""Ops that PyTorch's library does: lowerings where there is none equal eager."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from against_eager import check, floats, ints, ops_of_kind, title

from lowtide import config
from lowtide.ops.library import LIBRARY
from lowtide.ops.registry import lookup

INF = math.inf


@pytest.fixture(autouse=True)
def no_library() -> Iterator[None]:
    with config.override(kernels_only=True):
        yield


def with_nan(x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[::5] = math.nan
    x.view(-1)[1::7] = -INF
    return x


POOLS: list[tuple[Any, ...]] = [
    ("max_pool1d", floats(2, 3, 9), 3), ("max_pool1d", floats(3, 9), [2], 1),
    ("max_pool1d", with_nan(floats(2, 3, 11)), 3, 2, 1, 2), ("max_pool1d", floats(2, 3, 2), 3),
    ("max_pool2d", floats(2, 3, 9, 7), 2), ("max_pool2d", floats(3, 9, 7), [3, 2], [2, 1], [1, 0]),
    ("max_pool2d", with_nan(floats(2, 3, 8, 9)), 3, 2, 1, 1, True),
    ("max_pool2d", -floats(2, 3, 6, 6).abs(), 3, 2, 1), ("max_pool2d", floats(2, 3, 6, 6), 2, 2, 2),
    ("max_pool2d", floats(2, 3, 6, 6).double(), 2), ("max_pool2d", floats(2, 3, 6, 7), 2, 3, 0, 2),
    ("max_pool3d", floats(2, 3, 5, 6, 7), 2), ("max_pool3d", floats(3, 5, 6, 7), 3, 2, 1, 1, True),
    ("avg_pool1d", floats(2, 3, 9), 3), ("avg_pool1d", floats(3, 9), 4, 3, 2, True, False),
    ("avg_pool1d", floats(3, 8), 3, 2, 1, True),
    ("avg_pool1d", floats(3, 8), 3, 2, 1, False, False),
    ("avg_pool2d", floats(2, 3, 9, 7), [3, 2]), ("avg_pool2d", floats(2, 3, 9, 7), 3, 2, 1, True),
    ("avg_pool2d", floats(2, 3, 9, 7), 3, 2, 1, True, False),
    ("avg_pool2d", floats(2, 3, 9, 7), 3, 2, 1, False, True, 5),
    ("avg_pool2d", floats(2, 3, 9, 7), 3, 2, 2), ("avg_pool3d", floats(2, 3, 5, 6, 7), 2, 2, 1),
    ("avg_pool3d", floats(2, 3, 2, 6, 7), 3, 2, 1),
    ("adaptive_avg_pool1d", floats(2, 3, 9), 3), ("adaptive_avg_pool1d", floats(3, 9), 4),
    ("adaptive_avg_pool2d", floats(2, 3, 9, 7), 1),
    ("adaptive_avg_pool2d", floats(3, 9, 7), (3, None)),
    ("adaptive_avg_pool2d", with_nan(floats(2, 3, 5, 6)), (7, 4)),
    ("adaptive_avg_pool3d", floats(2, 3, 5, 6, 7), (1, 3, 2)),
    ("adaptive_max_pool1d", floats(2, 3, 9), 1),
    ("adaptive_max_pool2d", floats(2, 3, 9, 7), (3, 4)),
    ("adaptive_max_pool2d", with_nan(floats(2, 3, 5, 6)), (1, 4)),
]  # fmt: skip


@pytest.mark.parametrize("case", POOLS, ids=title)
def test_pooling(case: tuple[Any, ...]) -> None:
    check(*case)


def test_places_and_half_precision_are_left_to_pytorch() -> None:
    check("max_pool2d", floats(2, 3, 6, 6).half(), 2, left=True)
    check("max_pool2d", torch.ones(1, 3, 6, 6, dtype=torch.int64), 2, left=True)


E = 6
QUERY, KEYS = floats(5, 2, E), floats(7, 2, E)
PACKED = (floats(3 * E, E), floats(3 * E), None, None, False, 0.0, floats(E, E), floats(E), False)
CAUSAL = torch.full((5, 5), -INF).triu(1)
HIDDEN = torch.zeros(2, 7, dtype=torch.bool)
HIDDEN[1, 4:] = True
APART = (True, floats(E, E), floats(E, 4), floats(E, 3))


@pytest.mark.parametrize("case", [
    (QUERY, KEYS, KEYS, E, 3, *PACKED),
    (QUERY, KEYS, KEYS, E, 2, *PACKED, None, False),
    (QUERY, KEYS, KEYS, E, 2, *PACKED, HIDDEN, False),
    (QUERY, KEYS, KEYS, E, 2, *PACKED, HIDDEN, True, floats(4, 5, 7)),
    (QUERY, KEYS, KEYS, E, 2, *PACKED, HIDDEN.float(), False, floats(5, 7)),
    (QUERY, QUERY, QUERY, E, 2, *PACKED, None, False, CAUSAL, False, *[None] * 5, True, True),
    (QUERY, QUERY, QUERY, E, 2, *PACKED, None, True, CAUSAL < 0, False, *[None] * 5, False),
    (QUERY[:, 0], KEYS[:, 0], KEYS[:, 0], E, 3, *PACKED, HIDDEN[1], True),
    (QUERY, KEYS[..., :4], KEYS[..., :3], E, 2, None, None, *PACKED[2:], None, False, None, *APART),
    (QUERY, KEYS, KEYS, E, 4, *PACKED),
], ids=[
    "weights", "plain", "padding", "both-masks", "float-padding", "causal", "bool-mask",
    "one-sequence", "separate", "heads-that-do-not-divide",
])  # fmt: skip
def test_multi_head_attention(case: tuple[Any, ...]) -> None:
    check("multi_head_attention", *case, rtol=1e-5, atol=1e-5)


def test_dropout_is_left_to_pytorch() -> None:
    training = (*PACKED[:5], 0.5, *PACKED[6:8], True)
    check("multi_head_attention", QUERY, KEYS, KEYS, E, 2, *training, left=True)


RESAMPLED: list[tuple[Any, ...]] = [
    ("conv_transpose1d", floats(2, 6, 9), floats(6, 4, 3)),
    ("conv_transpose1d", floats(6, 9), floats(6, 2, 3), floats(6), 3, 2, 1, 3, 2),
    ("conv_transpose2d", floats(2, 6, 7, 5), floats(6, 3, 2, 2), floats(3), 2),
    ("conv_transpose2d", with_nan(floats(1, 2, 7, 5)), floats(2, 3, 3, 1), None, [2, 1], [1, 0]),
    ("conv_transpose2d", floats(1, 6, 5, 5), floats(6, 1, 3, 3), None, 2, 1, 1, 6),
    ("conv_transpose2d", floats(1, 6, 5, 5), floats(5, 1, 3, 3)),
    ("conv_transpose2d", floats(1, 2, 5, 5), floats(2, 1, 3, 3), None, 1, 0, 1),
    ("conv_transpose3d", floats(1, 2, 3, 4, 5), floats(2, 3, 2, 1, 3), floats(3), 2, 0, [1, 0, 1]),
    ("interpolate", floats(2, 3, 7), None, 2.0), ("interpolate", floats(2, 3, 7, 5), None, 3.0),
    ("interpolate", floats(2, 3, 7, 5), [4, 9]), ("interpolate", floats(2, 3, 7, 5), None, 1.5),
    ("interpolate", floats(2, 3, 7, 5), None, [0.5, 2.0]),
    ("interpolate", floats(1, 2, 3, 4, 5), 6),
    ("interpolate", floats(2, 3, 7), None, 2.0, "linear"),
    ("interpolate", floats(2, 3, 7, 5), None, 2.0, "bilinear"),
    ("interpolate", floats(2, 3, 7, 5), None, 2.0, "bilinear", True),
    ("interpolate", floats(2, 3, 7, 5), [3, 11], None, "bilinear", False),
    ("interpolate", floats(2, 3, 7, 5), [1, 5], None, "bilinear", True),
    ("interpolate", floats(2, 3, 7, 5), None, 1.3, "bilinear", False, True),
    ("interpolate", floats(1, 2, 3, 4, 5), None, 2.0, "trilinear"),
    ("interpolate", floats(2, 3, 7, 5), None, None), ("interpolate", floats(2, 3, 7), 0),
    ("pixel_shuffle", floats(2, 12, 7, 5), 2), ("pixel_shuffle", floats(2, 10, 7, 5), 2),
    ("pixel_unshuffle", floats(2, 3, 6, 9), 3), ("pixel_unshuffle", floats(2, 3, 6, 8), 3),
]  # fmt: skip


@pytest.mark.parametrize("case", RESAMPLED, ids=title)
def test_resampling(case: tuple[Any, ...]) -> None:
    check(*case, rtol=1e-5, atol=1e-5)


def test_resampling_that_is_left_to_pytorch() -> None:
    check("interpolate", floats(2, 3, 7, 5), None, 2.0, "bicubic", left=True)
    check("conv_transpose1d", floats(2, 6, 1), floats(6, 4, 2), None, 1, 1, left=True)


def layers(gates: int, inputs: int, size: int, count: int, ways: int, biases: bool) -> list[Any]:
    found: list[Any] = []
    for k in range(count * ways):
        width = inputs if k < ways else ways * size
        found += [floats(gates * size, width), floats(gates * size, size)]
        found += [floats(gates * size), floats(gates * size)] if biases else []
    return found


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize(
    ("count", "ways", "biases", "batch_first"),
    [(1, 1, True, False), (1, 2, False, True), (2, 1, True, True), (2, 2, True, False)],
)
def test_recurrent_layers(
    name: str, count: int, ways: int, biases: bool, batch_first: bool
) -> None:
    weights = layers({"lstm": 4, "gru": 3}.get(name, 1), 3, 5, count, ways, biases)
    states = [floats(count * ways, 2, 5) for _ in range(2)]
    x = floats(2, 6, 3) if batch_first else floats(6, 2, 3)
    form = (biases, count, 0.5, False, ways == 2, batch_first)
    hx = states if name == "lstm" else states[0]
    check(name, x, hx, weights, *form, rtol=1e-5, atol=1e-5)


def test_recurrent_layers_of_other_forms_are_left_to_pytorch() -> None:
    x, h, c = floats(6, 2, 3), floats(1, 2, 4), floats(1, 2, 5)
    projected = [floats(20, 3), floats(20, 4), floats(4, 5)]
    check("lstm", x, [h, c], projected, False, 1, 0.0, False, False, False, left=True)
    weights = layers(3, 3, 5, 2, 1, False)
    check("gru", x, floats(2, 2, 5), weights, False, 2, 0.5, True, False, False, left=True)
    check("gru", x, floats(2, 3, 5), weights, False, 2, 0.0, False, False, False, left=True)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("operands", [
    (floats(6, 7), 0), (floats(2, 6, 7), -1), (with_nan(floats(13)), 0), (floats(), 0),
    (floats(6, 7).double(), 1), (floats(6, 7).bfloat16(), 1), (ints(3, 6), 1),
    (ints(6, 2) > 0, 0), (floats(6), 0, torch.float64), (ints(6), 0, torch.float32),
    (floats(6), 1), (torch.tensor([-0.0, -0.0]), 0),
], ids=title)  # fmt: skip
def test_running(name: str, operands: tuple[Any, ...]) -> None:
    check(name, *operands)


def test_with_a_library_it_does_them() -> None:
    with config.override(kernels_only=False):
        check("conv_transpose1d", floats(2, 6, 9), floats(6, 4, 3), left=True)
    assert all(r.kind == LIBRARY for r in lookup("F.interpolate"))
    assert len(ops_of_kind(LIBRARY)) > 12


@pytest.mark.parametrize("case", POOLS[:6], ids=title)
def test_pools_are_kernels_beside_a_library_too(case: tuple[Any, ...]) -> None:
    with config.override(kernels_only=False):
        check(*case)
