"""Pointwise ops: lowering evaluated = eager, over dtypes, broadcasting, sizes, NaN, infinity."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from against_eager import check, floats, ints, ops_of_kind, sample, title

from lowtide.ops.registry import by_name

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
I64, I32, U8, BOOL = torch.int64, torch.int32, torch.uint8, torch.bool
DTYPES = [F32, F64, BF16, F16, I64, I32, U8, BOOL]
INF, NAN = math.inf, math.nan

UNARY = [r.name for r in ops_of_kind("pointwise") if r.signature.startswith("(self: Tensor) ->")]
ACTIVATIONS = [
    r.name
    for r in ops_of_kind("pointwise")
    if r.signature.startswith("(input: Tensor") and r.name not in ("glu", "prelu", "threshold")
]
BINARY = [
    "add", "sub", "mul", "div", "lt", "le", "gt", "ge", "eq", "ne", "maximum", "minimum", "fmax",
    "fmin", "max.other", "min.other", "pow", "floor_divide", "remainder", "fmod", "atan2", "xlogy",
    "hypot", "copysign", "logaddexp", "logaddexp2", "logical_and", "logical_or", "logical_xor",
    "heaviside", "bitwise_and", "bitwise_or", "bitwise_xor",
]  # fmt: skip
INTEGER_DIVISIONS = {"floor_divide", "remainder", "fmod"}
# What PyTorch computes and Lowtide leaves to it, by op: the dtypes.
LEFT: dict[str, set[torch.dtype]] = {
    "sign": {BOOL},
    "sgn": {BOOL},
    "square": {BOOL},
    "positive": {BOOL},
    "abs": {BOOL},
    "clamp": {BOOL},
    "pow": {I64, I32, U8},
    "relu": {BOOL},
    "relu6": {BOOL},
    "heaviside": {BOOL},
    "copysign": {I64, I32, U8, BOOL},
    "softsign": {I64, I32, U8},
    "tanhshrink": {I64, I32, U8},
    "hardtanh": {I64, I32},
}
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 100.0, -100.0, INF, -INF, NAN])


def _left(name: str, dtype: torch.dtype) -> bool:
    if name in INTEGER_DIVISIONS and not dtype.is_floating_point:
        return True
    return dtype in LEFT.get(name, ())


@pytest.mark.parametrize("dtype", DTYPES, ids=title)
@pytest.mark.parametrize("name", UNARY + ACTIVATIONS)
def test_unary(name: str, dtype: torch.dtype) -> None:
    # PyTorch rounds tanhshrink's tanh to half precision first, and so loses most of the difference.
    in_double = name == "tanhshrink"
    check(name, sample(dtype, 2, 7), may_leave=_left(name, dtype), in_double=in_double)


@pytest.mark.parametrize("name", UNARY + ACTIVATIONS)
def test_unary_of_special_numbers(name: str) -> None:
    if name != "gelu":  # PyTorch's vector loop gives NaN for infinity in f32, not in f64
        check(name, SPECIAL)
    check(name, SPECIAL.double())


@pytest.mark.parametrize("dtype", DTYPES, ids=title)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: torch.dtype) -> None:
    check(name, sample(dtype, 3, 1), sample(dtype, 7), may_leave=_left(name, dtype))


@pytest.mark.parametrize("name", [n for n in BINARY if "bitwise" not in n])
def test_binary_of_special_numbers(name: str) -> None:
    if name in ("floor_divide", "remainder"):
        pytest.skip("the last bit of torch's own vector and scalar loops differs here")
    check(name, SPECIAL, SPECIAL[:, None])


PROMOTION: list[Any] = [
    *(torch.ones(6, dtype=d) for d in (F32, BF16, F64, I64, I32, U8, BOOL)),
    *(torch.ones((), dtype=d) for d in (F64, BF16, I64, BOOL)),
    2, 2.5, True,
]  # fmt: skip


@pytest.mark.parametrize(
    ("x", "y"),
    [p for p in itertools.product(PROMOTION, PROMOTION) if isinstance(p[0], torch.Tensor)],
    ids=title,
)
def test_promotion(x: Any, y: Any) -> None:
    check("add", x, y)
    check("eq", x, y)
    check("div", x, y)
    check("where", torch.tensor([True, False, True, True, False, False]), x, y)


@pytest.mark.parametrize(("x", "y"), [(2, 0), (2.5, 0), (True, 1), (2, 3), (2.5, 3)], ids=title)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "lt", "ge", "eq"])
def test_number_first(name: str, x: Any, y: int) -> None:
    tensor = [floats(6), ints(6), floats(2, 6), floats(6).bfloat16()][y]
    check(name, x, tensor, may_leave=name == "pow" and not tensor.is_floating_point())


CASES: list[tuple[Any, ...]] = [
    ("add", floats(3, 6), floats(6), 2),
    ("add", ints(3, 6), ints(6), 2.5),
    ("add", ints(3, 6), ints(6), 3),
    ("sub", floats(3, 6), 2, 0.5),
    ("rsub", floats(6), 2.0, 2),
    ("add", floats(0, 6), floats(6)),
    ("add", floats(1, 6), floats(7, 1)),
    ("add", floats(3, 6), floats(4)),
    ("add", floats(7, 6), floats(8, 6)),
    *(("pow", floats(6).abs(), p) for p in (0, 1, 2, 3, 4, 5, 0.5, -0.5, -1, -2, 1.7, 2.0)),
    *(("pow", ints(6), p) for p in (0, 1, 2, 3, 4, 5, -1, 2.5)),
    ("pow", floats(6), True),
    ("pow", 2.0, floats(6)),
    ("pow", floats(6).abs(), ints(6)),
    ("div", ints(8), 3, "floor"),
    ("div", ints(8), 3, "trunc"),
    ("div", ints(8), -3, "trunc"),
    ("div", ints(8).int(), -3, "floor"),
    ("div", floats(8), floats(8), "floor"),
    ("div", floats(8), floats(8), "trunc"),
    ("floor_divide", ints(8), 3),
    ("floor_divide", ints(8), -3),
    ("remainder", ints(8), 3),
    ("remainder", ints(8), -3),
    ("fmod", ints(8), 3),
    ("fmod", ints(8), -3),
    ("remainder", floats(8), -0.7),
    ("fmod", floats(8), 0.7),
    ("clamp", floats(8), -0.5, 0.5),
    ("clamp", floats(8), None, 0.5),
    ("clamp", floats(8), 0.5, None),
    ("clamp", floats(8), 0.5, -0.5),
    ("clamp", ints(8), -2, 2),
    ("clamp", ints(8), 0.5, 2),
    ("clamp", floats(8), floats(8), floats(3, 8)),
    ("clamp", floats(8), floats(8), None),
    ("clamp", SPECIAL, -1, 1),
    ("clamp", SPECIAL, NAN, 1),
    ("clamp", floats(8), None, None),
    ("clamp_min", floats(8), 0),
    ("clamp_max", floats(8), floats(8)),
    ("where", floats(8) > 0, floats(8), floats(3, 1)),
    ("where", floats(8) > 0, 1.0, 0),
    ("where", floats(8) > 0, ints(8), 0.5),
    ("Tensor.where", floats(8), floats(8) > 0, floats(8)),
    ("masked_fill", floats(3, 8), floats(8) > 0, -INF),
    ("masked_fill", floats(8), floats(3, 8) > 0, torch.tensor(2.0)),
    ("masked_fill", ints(8), floats(8) > 0, 3),
    ("masked_fill", floats(8).bfloat16(), floats(8) > 0, 3),
    ("masked_fill", floats(8), floats(8) > 0, floats(8)),
    ("lerp", floats(8), floats(8), 0.3),
    ("lerp", floats(8), floats(8), 0.9),
    ("lerp", floats(8), floats(8), floats(3, 8)),
    ("lerp", floats(8).half(), floats(8).half(), 0.9),
    ("addcmul", floats(8), floats(8), floats(3, 8), 0.5),
    ("addcmul", ints(8), ints(8), ints(8), 2),
    ("addcdiv", floats(8), floats(8), floats(3, 8), 0.5),
    ("nan_to_num", SPECIAL),
    ("nan_to_num", SPECIAL, 1.0, 2.0, 3.0),
    ("nan_to_num", SPECIAL.bfloat16()),
    ("nan_to_num", ints(8)),
    ("isclose", SPECIAL, SPECIAL),
    ("isclose", SPECIAL, SPECIAL, 1e-5, 1e-8, True),
    ("isclose", floats(8), floats(8), 0.5, 0.1),
    ("logit", torch.rand(8), 0.1),
    ("bitwise_and", ints(8), 3),
    ("bitwise_left_shift", ints(8), 3),
    ("bitwise_right_shift", ints(8), 2),
    ("bitwise_and", floats(8), 3),
    ("xlogy", floats(8), 2.5),
    ("leaky_relu", floats(8), 0.2),
    ("elu", floats(8), 0.7),
    ("celu", floats(8), 0.7),
    ("hardtanh", floats(8), -0.3, 0.6),
    ("threshold", floats(8), 0.1, 20.0),
    ("softplus", floats(8) * 20, 2.0, 5.0),
    ("hardshrink", floats(8), 0.3),
    ("softshrink", floats(8), 0.3),
    ("gelu", floats(8), "tanh"),
    ("gelu", floats(8).bfloat16(), "tanh"),
    ("glu", floats(3, 8)),
    ("glu", floats(6, 3), 0),
    ("glu", floats(3, 7)),
    ("prelu", floats(2, 3, 6), floats(3)),
    ("prelu", floats(2, 6), floats(1)),
    ("add", floats(), floats()),
    ("relu", floats()),
    ("add", floats(6, dtype=F32), torch.tensor(1.5, dtype=F64)),
    ("add", floats(6).bfloat16(), 0.1),
    ("mul", ints(6), torch.tensor(1.5, dtype=F64)),
    ("add", torch.ones(6, dtype=U8), 1),
]


@pytest.mark.parametrize("case", CASES, ids=title)
def test_case(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.parametrize(
    "case",
    [
        ("relu", floats(8), True),
        ("round", floats(8), 2),
        ("floor_divide", ints(8), torch.full((8,), 3)),
        ("clamp", floats(8), floats(8), 1.0),
        ("pow", ints(8), torch.full((8,), 3)),
        ("where", torch.ones(8, dtype=U8), floats(8), 0.0),
        ("bitwise_left_shift", ints(8), ints(8)),
    ],
    ids=title,
)
def test_left_to_pytorch(case: tuple[Any, ...]) -> None:
    check(*case, left=True)


def test_records_say_what_they_are() -> None:
    assert by_name("add").params[2].keyword_only
    assert by_name("clamp").params[1].optional
