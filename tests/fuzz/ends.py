"""Grammar of numbers at the ends of their range: extremes, signed zeros, NaN, all integer dtypes.

In: a `Drawing`. Out: one more statement of its sketch.

    x0 = torch.tensor([math.nan, math.inf, -0.0, …])     from a list of special numbers
    x1 = torch.randn(N, 4) * 1e30                        scaled so that squares overflow
    v0 = x0.clamp(min=0)
    v1 = (x1 * x1).sum(1)
"""

from __future__ import annotations

import torch

from tests.fuzz.drawing import Drawing, floats
from tests.fuzz.models import Rule

INTS = ("torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64")
FLOATS = (
    "torch.float32",
    "torch.float32",
    "torch.float32",
    "torch.float64",
    "torch.float16",
    "torch.bfloat16",
)
SPECIAL = "math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0"


def begin(d: Drawing) -> None:
    """Two or three arguments of one shape."""
    dims = d.one_of(["N, 4", "N, 7", "N, 16", "N, 33", "3, N, 5", "N", "2 * N"])
    for _ in range(d.r.randint(2, 3)):
        if d.chance(0.45):
            _integers(d, dims)
        else:
            _floats(d, dims)


def _integers(d: Drawing, dims: str) -> None:
    if d.chance(0.15):
        d.give(f"torch.randint(0, 2, ({dims},)).bool()")
        return
    dtype = d.one_of(INTS)
    info = torch.iinfo(eval(dtype))
    near = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, 0, 1, 2, 3, 7]
    near += [-1, -2, -7] if info.min else []
    if d.chance(0.5):
        d.give(f"torch.tensor({near}, dtype={dtype})[torch.randint(0, {len(near)}, ({dims},))]")
    else:
        low = -9 if info.min else 0
        d.give(f"torch.randint({low}, 10, ({dims},)).to({dtype})")


def _floats(d: Drawing, dims: str) -> None:
    dtype = d.one_of(FLOATS)
    info = torch.finfo(eval(dtype))
    grad = d.one_of(["none", "leaf"])
    root = info.max**0.5
    match d.r.randint(0, 5):
        case 0:
            more = f"{info.max}, {-info.max}, {info.tiny}, {info.eps}, {info.max / 4}"
            d.give(
                f"torch.tensor([{SPECIAL}, {more}], dtype={dtype})"
                f"[torch.randint(0, 15, ({dims},))]",
                grad,
            )
        case 1:
            scale = d.one_of([root, root / 4, info.max / 8, info.max / 300])
            d.give(f"torch.randn({dims}).to({dtype}) * {scale:.4g}", grad)
        case 2:
            scale = d.one_of([1 / root, info.tiny * 3, 4 / root])
            d.give(f"torch.randn({dims}).to({dtype}) * {scale:.4g}", grad)
        case 3:
            offset = d.one_of([100, 1000, 1e5]) if dtype != "torch.float16" else 100
            d.give(f"torch.randn({dims}).to({dtype}) + {offset}", grad)
        case 4:
            d.give(f"(torch.randint(-12, 13, ({dims},)) / 4).to({dtype})", grad)
        case _:
            d.give(f"torch.randn({dims}).to({dtype})", grad)


def _whole(t: torch.Tensor) -> bool:
    return not t.is_floating_point() and t.numel() > 0


def whole(d: Drawing) -> None:
    """Integers: what wraps, divides, shifts, compares."""
    x, y = d.pick(_whole), d.pick(_whole)
    n = d.one_of([1, 2, 3, 5, 7, 100, 200, 255, -1, -3])
    d.let(
        d.one_of(
            [
                f"{x} + {n}",
                f"{x} * {n}",
                f"{x} - {y}",
                f"{x} * {y}",
                f"-{x}",
                f"{x}.abs()",
                f"{x} // {n}",
                f"{x} % {n}",
                f"torch.remainder({x}, {n})",
                f"torch.fmod({x}, {n})",
                f"{x} // {y}.clamp(min=1)",
                f"{x} % {y}.clamp(min=2)",
                f"{x} / {n}",
                f"{x} / {y}",
                f"torch.div({x}, {n}, rounding_mode='trunc')",
                f"{x} << 1",
                f"{x} >> 1",
                f"{x} & {y}",
                f"{x} | {y}",
                f"{x} ^ {y}",
                f"~{x}",
                f"{x} + {n} > {x}",
                f"torch.maximum({x} + 1, {x})",
                f"-{x} < 0",
                f"{x} == {y}",
                f"{x}.sum()",
                f"{x}.sum(0)",
                f"{x}.prod(-1)",
                f"{x}.amax()",
                f"{x}.cumsum(0)",
                f"{x}.float().mean()",
                f"{x}.max(0)[1]",
                f"{x} * 0.5",
                f"{x} + 1.5",
                f"torch.floor_divide({x}, {n})",
                f"{x}.pow(2)",
                f"{x} ** 3",
                f"{x}.bitwise_not()",
                f"torch.where({x} > {y}, {x}, {y})",
                f"{x}.clamp(-3, 3)",
                f"{x}.sign()",
                f"{x} > {n}",
                f"{x}.sort(-1)[0]",
                f"{x}.any(-1)",
                f"{x}.argmax(-1)",
                f"{x}.float().var()",
                f"torch.full_like({x}, 200) + {x}" if n > 0 else f"{x}.bool()",
                f"{x} - 5",
                f"5 - {x}",
                f"torch.zeros_like({x}) - 5",
                f"{x}.unique().shape[0] + {x}",
                f"{x}.square()",
                f"torch.gcd({x}, {y})",
                f"{x}.logical_not()",
                f"{x}.count_nonzero()",
                f"100 // {y}.clamp(1)",
            ]
        )
    )


def real(d: Drawing) -> None:
    """Floats: what overflows, vanishes, or is NaN."""
    x = d.pick(floats())
    y = d.one_of(d.names(floats()))
    c = d.one_of(["0.5", "1000.0", "1e-3", "3.0", "7", "-2", "1e10", "255.0"])
    d.let(
        d.one_of(
            [
                f"{x} * {c}",
                f"{x} / {c}",
                f"{x} + {y}",
                f"{x} - {y}",
                f"{x} * {y}",
                f"{x} / {y}",
                f"torch.maximum({x}, {y})",
                f"torch.minimum({x}, {y})",
                f"{x} == {y}",
                f"{x} < {y}",
                f"torch.fmax({x}, {y})",
                f"{x}.clamp(-1, 1)",
                f"{x}.relu()",
                f"torch.sign({x})",
                f"{x}.exp()",
                f"{x}.abs().log()",
                f"{x}.abs().sqrt()",
                f"{x}.rsqrt()",
                f"1 / {x}",
                f"torch.copysign({x}, {y})",
                f"{x}.isnan()",
                f"{x}.isfinite()",
                f"torch.signbit({x})",
                f"{x}.nan_to_num()",
                f"{x}.nan_to_num(1.0, 2.0, -3.0)",
                f"{x}.tanh()",
                f"{x}.sigmoid()",
                f"F.softplus({x})",
                f"torch.log1p({x}.abs())",
                f"torch.expm1({x})",
                f"{x}.floor()",
                f"{x}.round()",
                f"{x}.trunc()",
                f"torch.remainder({x}, {c})",
                f"torch.fmod({x}, {c})",
                f"{x} // {c}",
                f"{x} % {c}",
                f"{x} ** 2",
                f"{x} ** 0.5",
                f"{x} ** -1",
                f"{x} ** 3",
                f"torch.hypot({x}, {y})",
                f"torch.atan2({x}, {y})",
                f"{x}.sin()",
                f"{x} * 0",
                f"{x} - {x}",
                f"{x} / {x}",
                f"{x} + 0.0",
                f"-{x}",
                f"{x} * 1.0",
                f"0.0 - {x}",
                f"{x} * -1",
                f"torch.where({x} > 0, {x}, {y} * 0)",
                f"torch.heaviside({x}, {y})",
                f"{x}.frac()",
                f"torch.logaddexp({x}, {y})",
                f"F.gelu({x})",
                f"{x}.reciprocal()",
                f"torch.xlogy({x}, {y})",
                f"torch.erf({x})",
                f"{x}.sinh()",
                f"{x}.logit(1e-3)",
                f"{x} * {x} - {y} * {y}",
            ]
        )
    )


def reduced(d: Drawing) -> None:
    """Factors in sums, norms, spreads and softmax, over numbers at the ends."""
    x = d.pick(floats(1, 2, 3))
    dim = d.one_of([-1, -1, 0])
    c = d.one_of(["1000.0", "1e-3", "3.0", "7", "1e10", f"{x}.shape[0]"])
    k = f"{x}.abs().amax({dim}, keepdim=True)"
    d.let(
        d.one_of(
            [
                f"({x} / {c}).sum({dim})",
                f"({x} * {c}).sum({dim})",
                f"({x} * {c}).mean({dim})",
                f"{k} * (({x} / {k}) ** 2).sum({dim}, keepdim=True).sqrt()",
                f"({x} / {k}).sum({dim})",
                f"{x}.var({dim})",
                f"{x}.std({dim})",
                f"{x}.var({dim}, unbiased=False)",
                f"{x}.sum()",
                f"{x}.norm(dim={dim})",
                f"{x}.pow(2).sum({dim}).sqrt()",
                f"{x}.mean({dim})",
                f"{x}.softmax({dim})",
                f"{x}.log_softmax({dim})",
                f"torch.logsumexp({x}, {dim})",
                f"{x}.amax({dim})",
                f"{x}.max({dim})[1]",
                f"{x}.argmin({dim})",
                f"{x}.prod({dim})",
                f"{x}.cumsum({dim})",
                f"({x} - {x}.amax({dim}, keepdim=True)).exp().sum({dim})",
                f"{x}.nansum({dim})",
                f"{x}.sort({dim})[0]",
                f"{x}.cummax({dim})[0]",
                f"{x}.cumprod({dim})",
                f"torch.linalg.vector_norm({x}, dim={dim})",
                f"{x}.norm(p=1, dim={dim})",
                f"{x}.median()",
                f"F.layer_norm({x}, {x}.shape[-1:])",
                f"F.normalize({x}, dim={dim})",
                f"{x}.any({dim})",
                f"({x} * {x}).mean({dim}) - {x}.mean({dim}) ** 2",
                f"{x}.aminmax(dim={dim})[0]",
                f"(2 * {x}).sum({dim}) / 2",
                f"(-{x}).sum({dim})",
                f"{x}.count_nonzero({dim})",
                f"torch.var_mean({x}, {dim})[0]",
                f"{x}.abs().sum({dim}, keepdim=True) * {x}",
                f"F.softmin({x}, dim={dim})",
                f"{x}.argsort({dim})",
                f"{x}.norm(p=float('inf'), dim={dim})",
            ]
        )
    )


def cast(d: Drawing) -> None:
    """From one type to another."""
    x = d.pick(lambda t: t.numel() > 0)
    dtype = d.one_of([*INTS, *FLOATS, "torch.bool"])
    source = d[x]
    if source.is_floating_point() and dtype in INTS:  # what does not fit is undefined in C
        text = f"{x}.nan_to_num(0, 1, -1).clamp(0, 100).to({dtype})"
    else:
        text = d.one_of([f"{x}.to({dtype})", f"{x}.to(dtype={dtype})", f"{x}.type({dtype})"])
    d.let(text)


def mixed(d: Drawing) -> None:
    """Operands of different types."""
    x, y = d.pick(lambda t: t.numel() > 0), d.pick(lambda t: t.numel() > 0)
    d.let(
        d.one_of(
            [
                f"{x} + {y}",
                f"{x} * {y}",
                f"{x} < {y}",
                f"torch.where({x} > 0, {x}, {y})",
                f"{x} == {y}",
                f"torch.stack([{x}, {y}])",
                f"torch.cat([{x}, {y}])",
                f"{x} - {y}",
                f"torch.maximum({x}, {y})",
                f"{x} + True",
                f"{x} * 2.5",
                f"torch.result_type({x}, {y}) == {x}.dtype, {x}",
                f"torch.full(({x}.shape[0],), 200, dtype=torch.uint8) + 100",
                f"{x}.clamp(max=2)",
                f"torch.masked_fill({x}, {y} > 0, 1)",
                f"torch.full_like({x}, 3) * {y}",
                f"{x} / {y}",
            ]
        )
    )


def cuts(d: Drawing) -> None:
    x = d.pick(lambda t: t.dim() > 0 and t.numel() > 0)
    d.let(
        d.one_of(
            [
                f"{x}[0]",
                f"{x}[1:]",
                f"{x}[..., ::2]",
                f"{x}.t()",
                f"{x}.flatten()",
                f"{x}.flip(0)",
                f"{x}[{x} > 0]",
                f"{x}.unsqueeze(-1)",
            ]
        )
    )


GRAMMAR: list[tuple[float, Rule]] = [
    (3, whole),
    (4, real),
    (4, reduced),
    (1.5, cast),
    (1.5, mixed),
    (0.5, cuts),
]
