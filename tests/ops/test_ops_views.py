"""Views, indexing, joins, conversions, factories and sizes: lowering evaluated = eager."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from against_eager import check, floats, ints, title

import lowtide as lt

X = floats(6, 8, 5)
IDX = torch.tensor([0, -1, 3, 2])
IDX2 = torch.tensor([[1], [2]])

VIEWS: list[tuple[Any, ...]] = [
    *(("reshape", floats(6, 8), s) for s in ([-1], [48], [8, 6], [6, -1], [3, 2, 8], [6, 2, 4],
      [2, -1, 2], [6, 1, 8, 1], [7, 7], [-1, -1], [2, 3, 4, 2], [1, 48], [12, 4])),
    ("reshape", floats(6, 8, 5), [-1, 5]),
    ("reshape", floats(6, 8, 5), [6, 40]),
    ("reshape", floats(6, 8, 5), [8, 6, 5]),
    ("reshape", floats(0, 6), [0]),
    ("reshape", floats(), [1, 1]),
    ("reshape", floats(1, 1), []),
    ("reshape", floats(6, 8).t(), [-1]),
    ("view", floats(6, 8), [8, 6]),
    ("view_as", floats(6, 8), floats(48)),
    ("flatten", X), ("flatten", X, 1), ("flatten", X, 0, 1), ("flatten", X, 2, 1),
    ("flatten", floats()),
    ("ravel", X),
    ("unflatten", X, 1, [2, 4]), ("unflatten", X, 0, [-1, 3]), ("unflatten", X, 0, [4, 2]),
    ("squeeze", floats(1, 6, 1)), ("squeeze", floats(1, 6, 1), [0]),
    ("squeeze", floats(1, 6, 1), [0, -1]), ("squeeze", floats(1, 6, 1), [1]),
    ("squeeze", floats(1, 6, 1), 5), ("squeeze", floats()),
    *(("unsqueeze", floats(6, 7), d) for d in (0, 1, 2, -1, -3, 3)),
    ("unsqueeze", floats(), 0),
    ("expand", floats(6, 1), [6, 7]), ("expand", floats(6, 1), [-1, 7]),
    ("expand", floats(6, 1), [3, 6, 7]), ("expand", floats(6), [3, -1]),
    ("expand", floats(6), [7]), ("expand", floats(1, 6), [0, 6]), ("expand", floats(6), [-1, 6]),
    ("broadcast_to", floats(6, 1), [3, 6, 7]),
    ("expand_as", floats(6, 1), floats(6, 7)),
    ("broadcast_tensors", [floats(6, 1), floats(7)]),
    ("permute", X, [2, 0, 1]), ("permute", X, [-1, 0, 1]), ("permute", X, [0, 0, 1]),
    ("transpose", X, 0, -1), ("transpose", X, 0, 3), ("transpose", floats(), 0, 0),
    ("t", floats(6, 7)), ("t", floats(6)), ("t", X),
    ("T", floats(6, 7)), ("mT", X), ("movedim", X, [0], [2]), ("movedim", X, [0, 1], [1, 2]),
    ("movedim", X, [-1], [0]),
    ("flip", X, [0, 2]), ("fliplr", X), ("flipud", X),
    ("roll", X, [2]), ("roll", X, [2], [1]), ("roll", X, [-3, 12], [0, 1]),
    ("roll", X, [1, 2], [0, 0]),
    ("repeat", floats(6, 7), [2, 1]), ("repeat", floats(6), [2, 3]), ("repeat", floats(6, 7), [2]),
    ("repeat", floats(6), [0, 2]),
    ("tile", floats(6, 7), [2]), ("tile", floats(6), [2, 2]),
    ("repeat_interleave", floats(6, 7), 3, 1), ("repeat_interleave", floats(6, 7), 2),
    ("Tensor.unfold", floats(9, 6), 0, 3, 2), ("Tensor.unfold", floats(9, 6), 1, 6, 1),
    ("Tensor.unfold", floats(9, 6), 1, 7, 1),
    *(("diagonal", floats(6, 8), k) for k in (0, 1, -1, 5, 9, -9)),
    ("diagonal", X, 0, 0, 2), ("diagonal", X, 1, 2, 1),
    ("select", X, 1, 3), ("select", X, -1, -2), ("select", X, 1, 8),
    ("narrow", X, 1, 2, 4), ("narrow", X, 0, -2, 1), ("narrow", X, 1, 5, 4), ("narrow", X, 1, 2, 0),
    *(("split", X, s, d) for s in (1, 2, 3, 6, 9) for d in (0, -1)),
    ("split", X, [2, 4]), ("split", X, [1, 7], 1), ("split", X, [1, 6], 1), ("split", X, [0, 6]),
    *(("chunk", floats(n, 4), k) for n in (1, 3, 6, 7, 8, 12) for k in (1, 2, 3, 4, 5, 7)),
    ("chunk", floats(7, 4), 4, 1),
    ("unbind", floats(3, 6)), ("unbind", floats(3, 6), 1),
]  # fmt: skip


@pytest.mark.parametrize("case", VIEWS, ids=title)
def test_view(case: tuple[Any, ...]) -> None:
    check(*case)


S = "slice"
GETITEM: list[tuple[Any, ...]] = [
    (("int",), 2), (("int",), -1), (("int",), 6), (("int",), -7), (("int", "int", "int"), 1, 2, 3),
    *(((S,), *s) for s in ((None, None, None), (1, None, None), (None, -1, None), (2, 5, None),
      (None, None, 2), (1, None, 3), (-3, -1, None), (4, 2, None), (0, 100, None), (-100, 3, None),
      (7, None, None), (None, None, -1), (5, None, 2), (None, 6, None), (6, None, None))),
    ((S, "int"), None, None, None, 3), (("int", S), 3, 1, 4, 2),
    (("none",),), ((S, "none"), None, None, None), (("ellipsis", "none"),),
    (("ellipsis", "int"), 2), (("ellipsis", S), 1, 3, None), (("int", "ellipsis", "int"), 1, 2),
    (("int",) * 4, 1, 1, 1, 1),
    (("none", "int", "none", S), 2, 0, 3, None),
    (("tensor",), IDX), (("tensor",), IDX2), (("tensor",), IDX.int()),
    (("tensor", "tensor"), IDX, IDX2), ((S, "tensor"), 1, 3, None, IDX),
    ((S, "tensor", "tensor"), None, None, None, IDX, IDX2),
    (("tensor", S, "tensor"), IDX, None, 5, None, IDX2),
    (("tensor", "none", "tensor"), IDX, IDX2), (("tensor", "int"), IDX, 3),
    (("int", S, "tensor"), 3, None, None, None, IDX), (("ellipsis", "tensor"), IDX),
    (("tensor", "ellipsis", "tensor"), IDX, IDX2),
    (("tensor", S, "tensor"), torch.tensor(2), None, None, None, IDX),
    (("tensor",), torch.tensor([0, 6])),
    (("tensor",), torch.tensor([0, -7])), (("tensor", "tensor"), IDX, torch.tensor([1, 2])),
    (("tensor",), torch.zeros(0, dtype=torch.int64)),
]  # fmt: skip


@pytest.mark.parametrize("case", GETITEM, ids=title)
def test_getitem(case: tuple[Any, ...]) -> None:
    check("getitem", case[0], X, *case[1:])


@pytest.mark.parametrize(
    "case",
    [(("tensor",), torch.ones(6, dtype=torch.bool)), (("int",), True),
     (("tensor",), torch.ones(6, dtype=torch.uint8)), (("tensor",), torch.tensor(-2)),
     (("tensor", S), torch.tensor(1), None, 3, None)],
    ids=title,
)  # fmt: skip
def test_getitem_left_to_pytorch(case: tuple[Any, ...]) -> None:
    check("getitem", case[0], X, *case[1:], left=True)


GATHERS: list[tuple[Any, ...]] = [
    ("index_select", X, 1, torch.tensor([3, 0, 7])),
    ("index_select", X, 0, torch.tensor([3, 0, 6])),
    ("index_select", X, 0, torch.tensor([3, 0, -1])),
    ("index_select", X, -1, torch.tensor([3, 0]).int()),
    ("gather", floats(6, 8), 1, ints(6, 3, low=0, high=8)),
    ("gather", floats(6, 8), 0, ints(2, 8, low=0, high=6)),
    ("gather", floats(6, 8), 0, ints(7, 5, low=0, high=6)),
    ("gather", floats(6, 8), 1, ints(7, 5, low=0, high=6)),
    ("gather", floats(6, 8), 1, torch.full((6, 1), 8)),
    ("gather", floats(6, 8), 1, torch.full((6, 1), -1)),
    ("take_along_dim", floats(6, 8), ints(6, 3, low=0, high=8), 1),
    ("take_along_dim", floats(6, 8), ints(1, 3, low=0, high=8), 1),
    ("take_along_dim", floats(6, 8), ints(6, 3, low=-8, high=8), 1),
    ("embedding", ints(3, 2, low=0, high=9), floats(9, 6)),
    ("embedding", torch.tensor([9]), floats(9, 6)),
    ("embedding", torch.tensor([-1]), floats(9, 6)),
    ("one_hot", ints(3, 2, low=0, high=9), 9),
    ("one_hot", torch.tensor([3]), 3),
]


@pytest.mark.parametrize("case", GATHERS, ids=title)
def test_gather(case: tuple[Any, ...]) -> None:
    check(*case)


JOINS: list[tuple[Any, ...]] = [
    ("cat", [floats(6, 7), floats(2, 7), floats(9, 7)]),
    ("cat", [floats(6, 7), floats(6, 1)], 1),
    ("cat", [floats(6, 7), floats(6, 1)], -1),
    ("cat", [floats(6), floats(0)]), ("cat", [floats(0), floats(2, 6)]),
    ("cat", [floats(0, 6), floats(2, 6)]), ("cat", [floats(0), floats(0)]),
    ("cat", [floats(6), ints(6)]), ("cat", [floats(6).half(), ints(6)]),
    ("cat", [floats(6, 7), floats(5, 6)]), ("cat", [floats(6, 7), floats(6)]),
    ("cat", [floats(), floats()]), ("cat", []),
    ("stack", [floats(6, 7), floats(6, 7), floats(6, 7)]),
    ("stack", [floats(6, 7), floats(6, 7)], 1), ("stack", [floats(6, 7), floats(6, 7)], -1),
    ("stack", [floats(), floats()]), ("stack", [floats(6), floats(7)]),
    ("stack", [floats(6), ints(6)]),
    ("hstack", [floats(6), floats(7)]), ("hstack", [floats(6, 2), floats(6, 7)]),
    ("vstack", [floats(6), floats(6)]), ("vstack", [floats(6), floats(2, 6)]),
    *(("pad", floats(2, 6, 7), p) for p in ((1, 2), (0, 3), (2, 0), (1, 2, 3, 4), (-1, 2), (-1, -2),
      (1, 1, 0, 0, 2, 2), (0, 0), (1, 2, 3), (-8, 0))),
    ("pad", floats(2, 6, 7), (1, 2), "constant", 3.5),
    ("pad", floats(2, 6, 7), (1, 2), "constant", -math.inf),
    ("pad", ints(6), (1, 2), "constant", 3),
    *(("pad", floats(2, 6, 7), p, mode) for mode in ("reflect", "replicate", "circular")
      for p in ((1, 2), (5, 6), (0, 3), (7, 7), (8, 0), (1, 2, 2, 1))),
    *(("pad", floats(1, 2, 6, 7), (2, 1, 3, 4), mode)
      for mode in ("reflect", "replicate", "circular")),
    *((name, floats(6, 8), k) for name in ("tril", "triu") for k in (0, 1, -1, 3, -9, 9)),
    ("tril", floats(2, 6, 8)), ("tril", floats(6)),
    ("tril", torch.ones(6, 6, dtype=torch.bool)),
    ("diag_embed", floats(2, 6)), ("diag_embed", floats(6), 1), ("diag_embed", floats(6), -2),
    ("diag", floats(6)), ("diag", floats(6, 7), 1),
    ("meshgrid", [floats(6), floats(7)], "ij"), ("meshgrid", [floats(6), floats(7)], "xy"),
    ("meshgrid", [floats(6), floats(7), floats(2)], "xy"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", JOINS, ids=title)
def test_join(case: tuple[Any, ...]) -> None:
    check(*case)


F64, BF16 = torch.float64, torch.bfloat16
OTHERS: list[tuple[Any, ...]] = [
    *(("to.dtype", v, d) for v in (floats(6), ints(6), torch.tensor([0.5, -1.5, 2.0, 0.0]))
      for d in (torch.float32, F64, BF16, torch.float16, torch.int64, torch.int32, torch.bool)),
    ("to.other", ints(6), floats(2)), ("to.device", ints(6), "cpu", torch.float32),
    ("to.device", ints(6), None, torch.float32), ("to.device", ints(6), torch.device("cpu")),
    ("type_as", ints(6), floats(2)),
    *((f"Tensor.{n}", floats(6)) for n in ("float", "double", "half", "bfloat16", "int", "long",
      "bool")),
    ("contiguous", floats(6)), ("clone", floats(6)), ("detach", floats(6)),
    ("dropout", floats(6), 0.5, False), ("dropout", floats(6), 0.0),
    ("zeros", [6, 7]), ("ones", [6, 7]), ("zeros", [6], torch.int64), ("ones", []),
    ("zeros", [-1]),
    ("zeros_like", floats(6, 7)), ("ones_like", ints(6)), ("ones_like", ints(6), BF16),
    ("new_zeros", ints(6), [3, 2]), ("new_ones", floats(6), [3], torch.bool),
    ("full", [6], 2), ("full", [6], 2.5), ("full", [6], True), ("full", [6, 7], 2, F64),
    ("full", [3], 2.7, torch.int64), ("full", [3], 2, torch.bool),
    ("full_like", ints(6), 2), ("full_like", floats(6), 2), ("full_like", floats(6), math.nan),
    ("new_full", ints(6), [3], 7),
    *(("arange.end", n) for n in (0, 1, 7, 7.5, 0.0, -1)),
    ("arange.end", 7, torch.float32), ("arange.end", 7, BF16),
    *(("arange", *a) for a in ((2, 9), (2, 9, 3), (9, 2, -2), (0, 1, 0.1), (0.5, 3.7, 0.4), (3, 3),
      (2, 9, 0), (9, 2), (1.0, 0.0, -0.3))),
    *(("linspace", *a) for a in ((0, 1, 7), (-3.5, 2, 6), (1, 0, 5), (0, 1, 1), (0, 1, 0),
    (0, 1, 2))),
    ("linspace", 0, 1, 7, F64),
    *((f"tri{half}_indices", n, n, by if half == "u" else -by)
      for half in "ul" for n in (1, 2, 7, 40, 1000) for by in (0, 1, 3)),
    ("triu_indices", 6, 6, 1, torch.int32), ("tril_indices", 0, 0), ("triu_indices", -1, -1),
    ("eye", 6), ("eye", 6, 3), ("eye", 3, 6, torch.int64),
    ("shape", X), ("size", X), ("size.dim", X, 1), ("size.dim", X, -1), ("size.dim", X, 3),
    ("dim", X), ("numel", X), ("numel", floats()), ("len", X), ("len", floats()), ("dtype", X),
    ("device", X), ("is_floating_point", X), ("is_complex", X), ("element_size", X.double()),
    ("broadcast_shapes", [(6, 1), (7,)]),
]  # fmt: skip


@pytest.mark.parametrize("case", OTHERS, ids=title)
def test_other(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.parametrize(
    "case",
    [
        ("view.dtype", floats(6), torch.int32),
        ("dropout", floats(6)),
        ("one_hot", torch.tensor([1, 0]), -1),
        ("embedding", torch.tensor([1]), floats(9, 6), 0),
        ("reshape", floats(0, 6), [0, -1]),
    ],
    ids=title,
)
def test_left_to_pytorch(case: tuple[Any, ...]) -> None:
    check(*case, may_leave=True)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(8, 64, 4, 64).transpose(1, 2) * 2


def test_a_shape_of_numbers_makes_the_sizes_constants() -> None:
    """With symbols, each index would be divided by the old sizes."""
    stages = dict(lt.script(heads).stages(torch.empty(8, 64, 256, device="meta")))
    assert "//" not in stages["tensor expressions"]
    fn = lt.script(heads)
    for shape in ((8, 64, 256), (8, 256, 64), (64, 8, 256)):
        x = torch.rand(shape)
        assert torch.equal(fn(x), heads(x))
