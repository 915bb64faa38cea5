"""The gradient of each op: its lowering differentiated = PyTorch's, at ties, NaN and infinity too.

By the reference evaluator, in float64; `test_gradient_programs.py` does it with compiled kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.ops.registry import all_records
from tests.grad.against_autograd import compare

INF, NAN = math.inf, math.nan
F64 = torch.float64
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, -2.5, 3.0, -3.0, 6.0, 100.0, -100.0, INF, -INF, NAN],
    dtype=F64,
)
# what PyTorch itself refuses for floats, or wants in another form
ODD = frozenset(
    {"heaviside", "glu", "prelu", "one_hot", "clamp", "Tensor.where", "masked_fill", "where"}
)
SIMPLE = [
    r.name
    for r in all_records()
    if r.kind == "pointwise"
    and r.lower is not None
    and r.name not in ODD
    and "bitwise" not in r.name
    and r.name != "invert"
    and all(p.type.split("|")[0] == "Tensor" for p in r.params if repr(p.default) == "REQUIRED")
]


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(len(shape)))


def required(name: str) -> int:
    record = next(r for r in all_records() if r.name == name)
    return sum(1 for p in record.params if repr(p.default) == "REQUIRED")


def check(name: str, *operands: Any) -> None:
    wrong = compare(name, *operands)
    assert not wrong or wrong.startswith("left"), wrong


@pytest.mark.parametrize("values", ["normal", "special"])
@pytest.mark.parametrize("name", SIMPLE)
def test_pointwise(name: str, values: str) -> None:
    count = required(name)
    if values == "normal":
        check(name, *(torch.roll(randn(40), k) for k in range(count)))
    elif count == 2:
        pairs = list(itertools.product(SPECIAL.tolist(), repeat=2))
        check(name, *(torch.tensor(c, dtype=F64) for c in zip(*pairs, strict=True)))
    else:
        # PyTorch's scalar code, for what is left of a vector, differs at NaN
        unsure = SPECIAL.signbit() & (SPECIAL == 0) & (name == "logit")
        whole = SPECIAL[~unsure].repeat(32)
        check(name, *(torch.roll(whole, k) for k in range(count)))


# ---- how the numbers are chosen -----------------------------------------------------------------


def ties(*shape: int) -> Tensor:
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(1)).to(F64)


def with_nan(*shape: int) -> Tensor:
    x = randn(*shape)
    x.view(-1)[::7] = NAN
    return x


def with_inf(*shape: int) -> Tensor:
    x = randn(*shape)
    x.view(-1)[1::5], x.view(-1)[3::11] = INF, -INF
    return x


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=F64)


Make = Callable[..., Tensor]
MAKERS: list[Make] = [randn, ties, with_nan, with_inf, zeros]
REDUCTIONS = ["sum", "mean", "nansum", "amax", "amin", "std", "var"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", [*REDUCTIONS, "logsumexp", "max", "min", "max.dim", "min.dim"])
def test_reductions(name: str, make: Make) -> None:
    if name in REDUCTIONS or name in ("max", "min"):
        check(name, make(6, 7))
    if name not in ("max", "min"):
        check(name, make(6, 7), 1)
        check(name, make(6, 7), 0, True)


@pytest.mark.parametrize("make", MAKERS)
def test_products_of_all(make: Make) -> None:
    check("prod", make(6, 7) * 0.5)
    check("prod", make(6, 7), 1)
    check("aminmax", make(6, 7))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, INF])
def test_norms(p: float, make: Make) -> None:
    check("norm", make(6, 7), p, 1)
    check("linalg.vector_norm", make(6, 7), p)
    check("cdist", make(6, 3), make(5, 3), p)


# op · shapes of tensors, or other operands
OTHERS: list[tuple[str, tuple[Any, ...]]] = [
    ("var_mean", ((6, 7), 1)), ("std_mean", ((6, 7), 1)), ("softmax", ((6, 7), 1)),
    ("log_softmax", ((6, 7), 0)), ("softmin", ((6, 7), 1)),
    ("layer_norm", ((6, 7), [7], (7,), (7,))), ("rms_norm", ((6, 7), [7], (7,))),
    ("group_norm", ((3, 6, 5), 2, (6,), (6,))), ("instance_norm", ((3, 6, 5),)),
    ("normalize", ((6, 7),)), ("pairwise_distance", ((6, 7), (6, 7))),
    ("cosine_similarity", ((6, 7), (6, 7))), ("mse_loss", ((6, 7), (6, 7))),
    ("l1_loss", ((6, 7), (6, 7))), ("smooth_l1_loss", ((6, 7), (6, 7))),
    ("huber_loss", ((6, 7), (6, 7))), ("binary_cross_entropy_with_logits", ((6, 7), (6, 7))),
    ("scaled_dot_product_attention", ((2, 6, 5), (2, 7, 5), (2, 7, 5))),
    ("matmul", ((6, 5), (5, 7))), ("matmul", ((2, 6, 5), (5,))), ("linear", ((6, 5), (7, 5), (7,))),
    ("addmm", ((6, 7), (6, 5), (5, 7))), ("tensordot", ((6, 5), (5, 7), 1)),
    ("kron", ((6, 5), (2, 3))), ("outer", ((6,), (7,))), ("clamp", ((6, 7), -0.5, 1.0)),
    ("clamp", ((6, 7), (6, 7), (6, 7))), ("clamp_min", ((6, 7), 0.0)),
    ("clamp_max", ((6, 7), (7,))), ("lerp", ((6, 7), (6, 7), (6, 7))),
    ("lerp", ((6, 7), (6, 7), 0.3)), ("addcmul", ((6, 7), (6, 7), (6, 7))),
    ("addcdiv", ((6, 7), (6, 7), (6, 7))), ("prelu", ((6, 7), (7,))), ("prelu", ((6, 7), (1,))),
    ("glu", ((6, 8),)), ("gelu", ((6, 7),)), ("gelu", ((6, 7), "tanh")), ("pow", ((6, 7), 2)),
    ("pow", ((6, 7), 0)), ("pow", ((6, 7), 3)), ("pow", ((6, 7), 0.5)), ("pow", ((6, 7), -1)),
    ("pow", ((6, 7), 2.5)), ("pow", (2.0, (6, 7))), ("threshold", ((6, 7), 0.5, 2.0)),
    ("leaky_relu", ((6, 7),)), ("softplus", ((6, 7),)), ("nan_to_num", ((6, 7),)),
    ("sinc", ((6, 7),)), ("logaddexp", ((6, 7), (7,))), ("logaddexp2", ((6, 7), (6, 1))),
    ("hypot", ((6, 7), (7,))), ("xlogy", ((6, 7), (6, 1))), ("xlogy", ((6, 7), 2.0)),
    ("xlogy", (2.0, (6, 7))), ("xlogy", (0.0, (6, 7))), ("logit", ((6, 7),)),
    ("nanmean", ((6, 7),)), ("nanmean", ((6, 7), 1)), ("nanmean", ((6, 7), 0, True)),
    ("kl_div", ((6, 7), (6, 7))), ("kl_div", ((6, 7), (6, 7), None, None, "sum", True)),
]  # fmt: skip


@pytest.mark.parametrize("name", ["smooth_l1_loss", "huber_loss", "l1_loss", "mse_loss"])
def test_losses_infinitely_far_apart(name: str) -> None:
    check(name, with_inf(6, 7), ties(6, 7))


def test_a_narrow_loss_at_nan_and_at_0() -> None:
    x = torch.tensor([math.nan, 0.0, 1.0, -2.0, math.inf])
    check("smooth_l1_loss", x, torch.zeros(5), None, None, "sum", 0.0)


@pytest.mark.parametrize("eps", [0.5, 3.0, 100.0])
def test_norms_below_their_limit(eps: float) -> None:
    x, y = randn(6, 7), randn(6, 7).roll(1)
    check("cosine_similarity", x, y, 1, eps)
    check("normalize", x, 2.0, 1, eps)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("name", "operands"), OTHERS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_others(name: str, operands: tuple[Any, ...], make: Make) -> None:
    check(name, *(make(*x) if isinstance(x, tuple) else x for x in operands))


OWN = ["logaddexp", "logaddexp2", "hypot", "xlogy", "logit", "nanmean", "kl_div"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", [*OWN, "binary_cross_entropy"])
def test_kernels_have_them(name: str, make: Make) -> None:
    operands = (make(6, 7), make(6, 7).roll(1))[: required(name)]
    if name == "binary_cross_entropy":
        operands = tuple(x.nan_to_num().abs().clamp(max=1.0) for x in operands)
    assert not compare(name, *operands)


@pytest.mark.parametrize("name", ["elu", "celu", "selu"])
def test_small_slopes_keep_their_digits(name: str) -> None:
    x = torch.tensor([-20.0, -30.0, -60.0, -80.0, -5.0], dtype=F64, requires_grad=True)
    fn = getattr(F, name)
    (want,) = torch.autograd.grad(fn(x).sum(), x)
    (got,) = torch.autograd.grad(lt.trace(fn, (x,))(x).sum(), x)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0.0)


def of_logits(x: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, torch.zeros_like(x))


def of_weighted_logits(x: Tensor) -> Tensor:
    y, p = (x > -25.0).to(x.dtype) * 0.3, torch.tensor([2.0, 0.5, 3.0, 1.5], dtype=x.dtype)
    return F.binary_cross_entropy_with_logits(x, y, y + 1, pos_weight=p, reduction="sum")


@pytest.mark.parametrize("fn", [of_logits, of_weighted_logits], ids=lambda fn: fn.__name__)
def test_confident_logits_keep_their_digits(fn: Callable[[Tensor], Tensor]) -> None:
    """The slope at -30 is sigmoid(-30), not the difference of 1 and of nearly 1."""
    x = torch.tensor([-30.0, -40.0, 3.0, -26.0], dtype=F64, requires_grad=True)
    (want,) = torch.autograd.grad(fn(x), x)
    (got,) = torch.autograd.grad(lt.script(fn)(x), x)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=0.0)


def not_finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 1.0, -1.0) * x


def of_a_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, 3)


@pytest.mark.parametrize("fn", [not_finite, of_a_norm])
def test_zero_times_a_nan_is_nan(fn: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([0.0, NAN, 1.0, INF, -1.0, -INF, 2.0], requires_grad=True)
    (want,) = torch.autograd.grad(fn(x).sum(), x)
    (got,) = torch.autograd.grad(lt.script(fn)(x).sum(), x)
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.5, 0.6])
def test_logit_held_to_a_range(eps: float) -> None:
    """Of NaN PyTorch's gradient is 0 in whole vectors, NaN in the elements after them."""
    x = torch.tensor([0.0, 0.1, 0.25, 0.5, 0.9, 1.0, -0.5, 1.5, INF, -INF], dtype=F64)
    assert not compare("logit", x, eps)


def test_cross_entropy_at_its_ends() -> None:
    ends = torch.tensor([0.0, 1.0, 1e-13, 1 - 1e-13, 0.3], dtype=F64)
    x, y = (t.flatten() for t in torch.meshgrid(ends, ends, indexing="ij"))
    assert not compare("binary_cross_entropy", x, y, None, None, None, "sum")
    assert not compare("binary_cross_entropy", x, y)


def test_nothing_but_nan_has_a_mean_without_a_slope() -> None:
    x = randn(6, 7)
    x[2], x[4, 3] = NAN, INF
    assert not compare("nanmean", x, 1)


# ---- changes of index ---------------------------------------------------------------------------

WHERE = torch.tensor([0, 3, 3, 5, 1, 0, 2, 5, 5])
INDICES: list[tuple[Any, ...]] = [
    ("index_select", (6, 7), 0, WHERE), ("embedding", WHERE, (6, 7)),
    ("gather", (6, 7), 0, torch.randint(6, (4, 7), generator=torch.Generator().manual_seed(0))),
    ("take_along_dim", (6, 7), torch.tensor([[0, 6], [1, 1]] * 3), 1),
    ("take_along_dim", (6, 7), torch.tensor([[0, -1], [-7, 1]] * 3), 1),
    ("getitem", ("tensor",), (6, 7), WHERE),
    ("getitem", ("slice", "tensor"), (6, 7), None, None, None, WHERE),
    ("getitem", ("slice", "int"), (6, 7), 1, None, 2, -1),
    ("getitem", ("tensor", "tensor"), (6, 7), WHERE, WHERE),
    ("cat", [(6, 7), (3, 7)], 0), ("cat", [(6, 7), (6, 2), (6, 9)], 1),
    ("stack", [(6, 7), (6, 7)], 1),
    ("hstack", [(6, 7), (6, 5)]), ("vstack", [(6, 7), (7,)]), ("pad", (6, 7), [1, 2]),
    ("pad", (6, 7), [1, 2, -1, 3], "constant", 2.0), ("pad", (6, 7), [-1, 0]),
    ("pad", (2, 6, 7), [1, 2], "reflect"), ("pad", (2, 6, 7), [1, 2], "replicate"),
    ("pad", (2, 6, 7), [1, 2], "circular"), ("tril", (6, 7)), ("triu", (6, 7), 1), ("diag", (6, 7)),
    ("diag", (6,)), ("diag_embed", (6, 7)), ("diagonal", (6, 7), 1), ("flip", (6, 7), [0, 1]),
    ("roll", (6, 7), [2], [0]), ("roll", (6, 7), [-3, 1], [0, 1]), ("roll", (6, 7), [3]),
    ("repeat", (6, 7), [2, 3]), ("repeat", (6, 7), [2, 1, 1]), ("tile", (6, 7), [2]),
    ("repeat_interleave", (6, 7), 3, 1), ("repeat_interleave", (6, 7), 2),
    ("Tensor.unfold", (6, 7), 0, 3, 1), ("Tensor.unfold", (6, 7), 1, 3, 2),
    ("Tensor.unfold", (6, 7), 1, 2, 3), ("Tensor.unfold", (6, 7), 0, 6, 1),
    ("reshape", (6, 7), [7, 6]), ("reshape", (6, 7), [-1]), ("reshape", (6, 10), [3, 20]),
    ("reshape", (6, 10), [12, 5]), ("reshape", (8, 9, 10), [6, 12, 10]),
    ("reshape", (8, 9, 10), [10, 8, 9]), ("flatten", (5, 6, 7)), ("unflatten", (6, 12), 1, [3, 4]),
    ("permute", (5, 6, 7), [2, 0, 1]), ("transpose", (6, 7), 0, 1),
    ("movedim", (5, 6, 7), [0], [2]),
    ("expand", (6, 1), [6, 5]), ("expand", (6, 7), [3, 6, 7]), ("squeeze", (6, 1, 7)),
    ("unsqueeze", (6, 7), 1), ("split", (6, 7), 2), ("chunk", (6, 7), 3, 1), ("unbind", (6, 7)),
    ("narrow", (6, 7), 0, 1, 3), ("select", (6, 7), 1, -1), ("to.dtype", (6, 7), torch.float32),
    ("Tensor.half", (6, 7)), ("trace", (6, 7)), ("einsum", "bij,bkj->bik", [(2, 6, 5), (2, 7, 5)]),
    ("meshgrid", [(6,), (7,)]), ("broadcast_tensors", [(6, 7), (7,)]),
    ("nll_loss", (6, 7), torch.tensor([0, 6, 3, 3, 1, 2])),
    ("cross_entropy", (6, 7), torch.tensor([0, 6, 3, 3, 1, 2])),
    ("cross_entropy", (6, 7, 5), WHERE[:6, None].expand(6, 5), None, None, -100, None, "sum", 0.1),
]  # fmt: skip


def _made(x: Any) -> Any:
    if isinstance(x, tuple) and x and all(isinstance(n, int) for n in x):
        return randn(*x)
    return [_made(v) for v in x] if isinstance(x, list) and x and isinstance(x[0], tuple) else x


@pytest.mark.parametrize("case", INDICES, ids=lambda c: c[0])
def test_indices(case: tuple[Any, ...]) -> None:
    check(case[0], *map(_made, case[1:]))


@pytest.mark.parametrize("cotangent", [1.0, INF, NAN])
@pytest.mark.parametrize("order", [2.0, INF])
def test_norms_multiply_by_what_is_handed_in(order: float, cotangent: float) -> None:
    rows = [[1.0, 2.0, NAN], [3.0, 3.0, 1.0], [0.0, 0.0, 0.0], [-2.0, 1.0, 2.0], [INF, 1.0, 2.0]]

    def norms(x: Tensor, order: float) -> Tensor:
        return torch.linalg.vector_norm(x, order, dim=-1)

    found: list[Tensor] = []
    for f in (lt.script(norms), norms):
        x = torch.tensor(rows, requires_grad=True)
        y = f(x, order)
        y.backward(torch.full_like(y, cotangent))
        assert x.grad is not None
        found.append(x.grad)
    torch.testing.assert_close(*found, equal_nan=True)
