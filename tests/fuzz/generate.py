"""Random expressions of single PyTorch ops, drawn from a seed.

    generate(17)     a `Program`, always the same one

Each statement is drawn and tried at the first sizes. It is drawn again if eager PyTorch rejects it,
its result is too large, or most of its numbers are NaN. The text has sizes only as `x.shape[d]`, so
that the program is valid for any sizes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import torch

from tests.fuzz.judge import Blurred, Judge
from tests.fuzz.program import DTYPES, Dim, Input, Line, Program, Sizes

MOST_ELEMENTS = 120_000
LARGE = (33, 34, 37, 48, 49, 63, 64, 65, 80, 100, 127, 150)
LARGER = (193, 257, 289, 300, 385, 400, 577)
SMALL = (0, 1, 2, 3, 5, 16, 17, 31, 32)
FLOATS = ("f32", "f64", "bf16", "f16")
INTS = ("i64", "i32", "u8")
Draft = list[Line] | None


def generate(seed: int) -> Program:
    """The program of a seed."""
    return _Draw(seed).program()


class _Draw:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.r = random.Random(seed)
        names = ["N", "M", "K"]
        first = dict(zip(names, self.r.sample(LARGE, 3), strict=True))
        self.first: Sizes = first
        self.serial = 0
        self.lines: list[Line] = []
        self.main = self.r.choices(["f32", "f64", "bf16", "f16"], [12, 2, 1.5, 1.5])[0]
        self.smooth = self.r.random() < 0.4  # normal numbers, no jumps
        self.salt = self.r.choice([0, 0, 0, 3, 20])
        self.inputs: list[Input] = []

    # -- the whole --

    def program(self) -> Program:
        self._make_inputs()
        generator = torch.Generator().manual_seed(self.seed)
        self.judge = Judge(
            {i.name: i.make(self.first, generator) for i in self.inputs}, noisy_runs=1
        )
        wanted = self.r.choice([1, 2, 3, 4, 5, 6, 8, 10])
        for _ in range(wanted * 6):
            if len(self.lines) >= wanted:
                break
            self._statement()
        used = {u for line in self.lines for u in line.uses}
        made = [t for line in self.lines for t in line.targets]
        loose = [t for t in made if t not in used]
        extra = [t for t in made if t in used and self.r.random() < 0.2]
        return Program(
            seed=self.seed,
            inputs=tuple(self.inputs),
            lines=tuple(self.lines),
            outputs=tuple(loose + extra) or (self.inputs[0].name,),
            runs=self._runs(),
        )

    def _runs(self) -> tuple[Sizes, ...]:
        r = self.r
        runs: list[Sizes] = [self.first]
        order = r.sample(LARGER, 3)
        second = {n: order[k] if r.random() < 0.6 else v
                  for k, (n, v) in enumerate(self.first.items())}  # fmt: skip
        runs.append(second)
        runs.append(dict(zip(self.first, r.sample(LARGE[:6], 3), strict=True)))
        if r.random() < 0.4:
            runs.append({n: r.choice(SMALL) if r.random() < 0.6 else v
                         for n, v in self.first.items()})  # fmt: skip
        return tuple(runs)

    def _make_inputs(self) -> None:
        shapes: list[tuple[Dim, ...]] = [
            ("N",), ("M",), ("N", "M"), ("M", "K"), ("N", "K"), ("K", "M"), ("N", 3), ("M", 3),
            ("N", 4), (2, "N", 5), (3, "N", "M"), ("M", 1), (1, "N"), ("N", 17), ("K", 31), (5,),
            (), ("N", "N"), (2, "M", "K"), ("K", 2),
        ]  # fmt: skip
        for _ in range(self.r.choice([1, 2, 2, 3, 3, 4])):
            self._add(self.r.choice(shapes))
        if self.r.random() < 0.3 and len(self.inputs) > 0:
            below = self.r.choice([d for i in self.inputs for d in i.dims] or [3])
            shape = self.r.choice([("N",), ("K",), ("M", 3), (5,)])
            self._add(shape, dtype="i64", values="index", below=below,
                      negative=self.r.random() < 0.3)  # fmt: skip

    def _add(self, dims: tuple[Dim, ...], dtype: str = "", **fields: object) -> None:
        r = self.r
        if not dtype:
            dtype = self.main if r.random() < 0.75 else r.choice([*FLOATS, *INTS, "bool"])
        layouts = ["contiguous"] * 5
        if len(dims) >= 2:
            layouts += ["transposed", "expanded", "inner"]
        if len(dims) >= 1:
            layouts += ["strided"]
        chosen = {"values": "normal" if self.smooth else "grid", **fields}
        self.inputs.append(
            Input(name=f"x{len(self.inputs)}", dims=dims, dtype=dtype, layout=r.choice(layouts),
                  salt=self.salt if dtype in FLOATS else 0, **chosen)  # type: ignore[arg-type]
        )  # fmt: skip

    # -- one statement --

    def _statement(self) -> None:
        draft = self.r.choices(*_WEIGHTED)[0](self)
        if draft is None:
            return
        saved = dict(self.judge.eager), dict(self.judge.truth), dict(self.judge.noisy[0])
        exact = set(self.judge.exact)
        try:
            for line in draft:
                self.judge.step(line)
            if all(self._sensible(t) for line in draft for t in line.targets):
                self.lines.extend(draft)
                return
        except Blurred:
            pass
        except Exception as error:
            if not isinstance(error, (RuntimeError, IndexError, TypeError, ValueError)):
                raise
        self.judge.eager, self.judge.truth, self.judge.noisy[0] = saved
        self.judge.exact = exact

    def _sensible(self, name: str) -> bool:
        x = self.judge.eager[name]
        if x.numel() > MOST_ELEMENTS or x.numel() == 0 or x.dtype not in DTYPES.values():
            return False
        if not x.is_floating_point():
            return True
        finite = x[x.isfinite()]
        if finite.numel() < 0.4 * x.numel():
            return False
        return float(finite.abs().max()) < (3e4 if x.dtype is torch.float16 else 1e6)

    def line(
        self, text: str, *uses: str, sharp: bool = False, inner: bool = False, targets: int = 1
    ) -> list[Line]:
        """Statements; `first |> second of _` are two, so that each rounds by itself."""
        lines: list[Line] = []
        before = ""
        *inside, last = text.split(" |> ")
        for part in inside:
            lines.append(self._one(part, before, uses, sharp, inner, 1))
            before = lines[-1].targets[0]
        return [*lines, self._one(last, before, uses, sharp, inner, targets)]

    def _one(
        self, text: str, before: str, uses: tuple[str, ...], sharp: bool, inner: bool, count: int
    ) -> Line:
        names = tuple(f"v{self.serial + k}" for k in range(count))
        self.serial += count
        text = re.sub(r"\b_\b", before, text)
        given = [u for u in dict.fromkeys([*uses, before]) if u]
        unique = tuple(u for u in given if re.search(rf"\b{u}\b", text))
        return Line(
            targets=names, text=text, uses=unique, sharp=unique if sharp else (), inner=inner
        )

    # -- choosing --

    def tensor(self, name: str) -> torch.Tensor:
        return self.judge.eager[name]

    def names(self) -> list[str]:
        return list(self.judge.eager)

    def any(self, test: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """A value, later ones more often; "" if none fits."""
        fitting = [n for n in self.names() if test(self.tensor(n))]
        if not fitting:
            return ""
        return self.r.choices(fitting, [1 + 2 * k for k in range(len(fitting))])[0]

    def float(self) -> str:
        return self.any(lambda t: t.is_floating_point())

    def exact(self, test: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        fitting = [n for n in self.names() if n in self.judge.exact and test(self.tensor(n))]
        return self.r.choice(fitting) if fitting else ""

    def partner(self, a: str, test: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """A value that broadcasts with `a`."""
        shape = self.tensor(a).shape

        def fits(t: torch.Tensor) -> bool:
            pairs = zip(reversed(t.shape), reversed(shape), strict=False)
            return test(t) and all(m == n or 1 in (m, n) for m, n in pairs)

        return self.any(fits)

    def dim(self, name: str) -> int:
        n = self.tensor(name).dim()
        return self.r.randrange(-n, n) if n else 0

    def pick(self, *texts: str) -> str:
        return self.r.choice(texts)


# ---- statements -------------------------------------------------------------------------------


def _unary(d: _Draw) -> Draft:
    x = d.float()
    if not x:
        return None
    text = d.pick(
        "-{x}.abs() |> torch.exp(_)", "torch.tanh({x})", "torch.sigmoid({x})", "torch.erf({x})",
        "{x}.abs()", "-{x}", "{x} * {x}", "{x}.square()", "torch.relu({x})", "F.gelu({x})",
        "F.softplus({x})", "{x}.abs() |> torch.sqrt(_)", "torch.log1p({x}.abs())", "torch.sin({x})",
        "torch.cos({x})", "{x} * {x} + 1 |> torch.rsqrt(_)", "{x}.abs() + 1 |> 1 / _",
        "F.silu({x})", "{x}.clamp(-1, 2)", "{x}.clamp(min=0)", "{x} ** 2", "{x} ** 3",
        "2 * {x} - 1", "F.leaky_relu({x}, 0.1)", "torch.nan_to_num({x}, 0.5, 3.0, -3.0)",
        "{x} * 0.5 |> torch.exp(_)",
        "torch.expm1({x} * 0.25)", "{x}.abs() + 0.5 |> torch.log(_)", "torch.atan({x})", "{x} / 3",
        "torch.where({x} > 0, {x}, {x} * 0)", "F.elu({x})", "F.hardtanh({x})", "0.5 - {x}",
    )  # fmt: skip
    return d.line(text.format(x=x), x, inner=True)


def _sharp_unary(d: _Draw) -> Draft:
    x = d.exact()
    if not x:
        return None
    if d.tensor(x).is_floating_point():
        text = d.pick(
            "torch.floor({x})", "torch.ceil({x})", "torch.round({x})", "torch.trunc({x})",
            "torch.sign({x})", "{x} > 0", "{x} != {x}", "torch.isnan({x})", "torch.isfinite({x})",
            "{x} // 2", "{x} % 3", "torch.isinf({x})",
            "torch.nan_to_num({x}, 0, 2, -2).to(torch.int64)",
            "torch.nan_to_num({x}, 0, 2, -2).to(torch.int32)", "torch.fmod({x}, 2)", "{x} <= -0.5",
            "torch.nan_to_num({x}, 0, 2, 0).abs().to(torch.uint8)", "{x}.bool()", "{x} == 0.25",
        )  # fmt: skip
    elif d.tensor(x).dtype is torch.bool:
        text = d.pick("~{x}", "{x}.to(torch.int64)", "{x}.to(torch.float32)", "{x}.logical_not()",
                      "{x}.to(torch.uint8)", "{x} * 2", "{x} == False")  # fmt: skip
    else:
        text = d.pick(
            "{x} // 3", "{x} % 4", "{x}.abs()", "{x} * 3 - 1", "~{x}", "{x}.to(torch.float32)",
            "{x}.to(torch.float64)", "{x} > 2", "{x}.clamp(0, 5)", "{x}.bool()", "{x} & 6",
            "{x} | 1", "{x} ^ 5", "{x}.to(torch.uint8)", "{x}.to(torch.int32)", "{x}.sign()",
            "{x} << 2", "{x} >> 1", "{x} / 4", "{x}.to(torch.bfloat16)", "{x} ** 2",
            "torch.fmod({x}, 3)", "-{x}",
        )  # fmt: skip
    return d.line(text.format(x=x), x, sharp=True)


def _binary(d: _Draw) -> Draft:
    a = d.any(lambda t: t.dtype is not torch.bool)
    b = d.partner(a, lambda t: t.dtype is not torch.bool) if a else ""
    if not b:
        return None
    text = d.pick(
        "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} + {b}", "{a} * {b}", "torch.maximum({a}, {b})",
        "torch.minimum({a}, {b})", "{b}.abs() + 1 |> {a} / _", "torch.add({a}, {b}, alpha=2)",
        "{a} * 0.5 |> {b} - _", "torch.min({a}, {b})", "torch.lerp({a}, {b}, 0.25)",
        "torch.fmin({a}, {b})", "torch.fmax({a}, {b})", "torch.hypot({a}, {b})",
    )  # fmt: skip
    return d.line(text.format(a=a, b=b), a, b, inner=True)


def _sharp_binary(d: _Draw) -> Draft:
    a = d.exact()
    b = d.partner(a) if a else ""
    if not b or b not in d.judge.exact:
        return None
    both_bits = not d.tensor(a).is_floating_point() and not d.tensor(b).is_floating_point()
    texts = ["{a} < {b}", "{a} >= {b}", "{a} == {b}", "{a} != {b}", "torch.logical_and({a}, {b})",
             "torch.logical_or({a}, {b})", "torch.logical_xor({a}, {b})"]  # fmt: skip
    if both_bits:
        texts += ["{a} & {b}", "{a} | {b}", "{a} ^ {b}"] * 2
    elif d.tensor(a).dtype is not torch.bool and d.tensor(b).dtype is not torch.bool:
        texts += ["torch.remainder({a}, {b}.abs() + 1)", "{a} // ({b}.abs() + 1)"]
    return d.line(d.r.choice(texts).format(a=a, b=b), a, b, sharp=True)


def _where(d: _Draw) -> Draft:
    c = d.any(lambda t: t.dtype is torch.bool)
    a = d.partner(c) if c else ""
    b = d.partner(a) if a else ""
    if not b:
        return None
    text = d.pick(
        "torch.where({c}, {a}, {b})", "torch.where({c}, {a}, 0)", "{a}.masked_fill({c}, 1.5)",
        "{a} * {c}", "torch.where({c}, 1.0, {b})",
    )  # fmt: skip
    return d.line(text.format(a=a, b=b, c=c), a, b, c)


def _pair(d: _Draw) -> Draft:
    a, b = d.any(lambda t: t.dim() in (1, 2)), d.any(lambda t: t.dim() in (1, 2))
    if not a or not b or d.tensor(a).dim() != d.tensor(b).dim():
        return None
    if d.tensor(a).dtype is torch.bool or d.tensor(b).dtype is torch.bool:
        return None
    if d.tensor(a).dim() == 1:
        text = d.pick(
            "{a}[:, None] - {b}[None, :]", "{a}[:, None] * {b}", "{a}[:, None] + {b}[None]",
            "torch.minimum({a}[:, None], {b})", "({a}[:, None] - {b}).abs()",
        )  # fmt: skip
        return d.line(text.format(a=a, b=b), a, b, inner=True)
    if d.tensor(a).shape[1] != d.tensor(b).shape[1]:
        return None
    text = d.pick(
        "{a}[:, None, :] - {b}[None, :, :] |> (_ ** 2) |> _.sum(-1)",
        "{a}[:, None, :] - {b}[None, :, :] |> _.abs().sum(-1)",
        "({a}[:, None, :] - {b}[None, :, :]).abs().amax(-1)",
        "{a}[:, None] * {b}[None] |> _.sum(2)",
        "{a}.unsqueeze(1) + {b}.unsqueeze(0) |> _.mean(-1)",
        "torch.maximum({a}[:, None], {b}[None]).sum(dim=0)",
        "{a}[:, None, :] - {b}[None, :, :] |> _.square() |> _.sum(-1) |> _.sqrt()",
        "torch.cdist({a}, {b}, compute_mode='donot_use_mm_for_euclid_dist')",
    )  # fmt: skip
    if "cdist" in text and not all(d.tensor(x).is_floating_point() for x in (a, b)):
        return None
    return d.line(text.format(a=a, b=b), a, b, inner=True)


def _dims(d: _Draw, x: str) -> str:
    n = d.tensor(x).dim()
    if n >= 2 and d.r.random() < 0.3:
        chosen = d.r.sample(range(n), d.r.randint(1, n))
        return f"({', '.join(str(k - n if d.r.random() < 0.3 else k) for k in chosen)},)"
    return str(d.dim(x))


def _reduction(d: _Draw) -> Draft:
    x = d.any(lambda t: t.dtype is not torch.bool)
    if not x:
        return None
    dims = _dims(d, x)
    one = str(d.dim(x))
    keep = d.pick("", "", ", keepdim=True")
    texts = ["{x}.sum({dims}{keep})"] * 3 + ["{x}.amax({dims}{keep})", "{x}.amin({dims}{keep})"] * 2
    texts += ["{x}.sum()", "{x}.max()", "{x}.min()"]
    # Of numbers at the ends, the order decides whether a product vanishes before it overflows.
    texts += ["{x}.prod({one}{keep})"] * (not d.salt)
    if d.tensor(x).is_floating_point():
        texts += [
            "{x}.mean({dims}{keep})", "torch.logsumexp({x}, {dims}{keep})", "{x}.var({dims}{keep})",
            "{x}.std({one}{keep})", "torch.softmax({x}, {one})", "torch.log_softmax({x}, {one})",
            "torch.softmax({x}, {one})", "{x}.norm(dim={one}{keep})",
            "{x}.norm(dim={one}, keepdim=True) |> _.clamp_min(1e-6) |> {x} / _",
            "{x}.mean({one}, keepdim=True) |> {x} - _",
            "{x}.abs().sum({one}, keepdim=True) |> _ + 1 |> {x} / _",
            "{x}.amax({one}, keepdim=True) |> {x} - _", "{x}.mean()", "torch.nansum({x}, {one})",
            "F.layer_norm({x}, ({x}.shape[-1],))",
            "{x}.amax({one}, keepdim=True) |> {x} - _ |> torch.exp(_) |> _.sum({one})",
        ]  # fmt: skip
    if d.tensor(x).dim() == 0:
        return None
    return d.line(d.r.choice(texts).format(x=x, dims=dims, one=one, keep=keep), x, inner=True)


def _sharp_reduction(d: _Draw) -> Draft:
    x = d.exact(lambda t: t.dim() > 0)
    if not x:
        return None
    t = d.tensor(x)
    one, dims, keep = str(d.dim(x)), _dims(d, x), d.pick("", ", keepdim=True")
    if t.dtype is torch.bool:
        text = d.pick(
            "{x}.any({one}{keep})", "{x}.all({one}{keep})", "{x}.sum({dims}{keep})", "{x}.any()",
            "{x}.all()", "{x}.sum()", "{x}.float().mean({one})", "{x}.any({dims})",
        )  # fmt: skip
        return d.line(text.format(x=x, one=one, keep=keep, dims=dims), x, sharp=True)
    if d.r.random() < 0.3:
        text = d.pick("{x}.min({one}{keep})", "{x}.max({one}{keep})")
        return d.line(text.format(x=x, one=one, keep=keep), x, sharp=True, targets=2)
    text = d.pick("{x}.argmin({one}{keep})", "{x}.argmax({one}{keep})", "({x} > 1).sum({dims})",
                  "({x} < 0).any({one})", "torch.count_nonzero({x}, {one})", "{x}.argmin()",
                  "({x} >= 0).all({one})", "{x}.argmax()", "({x}.abs() < 1).sum()",
                  "{x}.any({one})", "{x}.all({one})")  # fmt: skip
    return d.line(text.format(x=x, one=one, keep=keep, dims=dims), x, sharp=True)


def _product(d: _Draw) -> Draft:
    a = d.any(lambda t: t.dim() >= 1 and t.dtype is not torch.bool)
    b = d.any(lambda t: t.dim() >= 1 and t.dtype is d.tensor(a).dtype) if a else ""
    if not b:
        return None
    m, n = d.tensor(a).dim(), d.tensor(b).dim()
    texts = ["{a} @ {b}", "torch.matmul({a}, {b})"]
    if m >= 2:
        texts.append("{a}.transpose(-1, -2) @ {b}")
    if n >= 2:
        texts += ["{a} @ {b}.transpose(-2, -1)"] * 2
        texts.append("{a} @ {b}.transpose(-2, -1) |> torch.softmax(_, -1)")
    if m == n == 2:
        texts += ["torch.einsum('ij,kj->ik', {a}, {b})", "torch.einsum('ij,ik->jk', {a}, {b})",
                  "torch.einsum('ij,ij->i', {a}, {b})"]  # fmt: skip
        if d.tensor(a).is_floating_point():
            texts += ["{a} @ {b}.t() |> -_.abs() |> torch.exp(_)", "F.linear({a}, {b})"]
    if m == n == 1:
        texts += ["torch.outer({a}, {b})", "torch.dot({a}, {b})"]
    if m == n == 3:
        texts += ["torch.einsum('bij,bkj->bik', {a}, {b})", "torch.bmm({a}, {b}.transpose(1, 2))"]
    return d.line(d.r.choice(texts).format(a=a, b=b), a, b, inner=True)


def _view(d: _Draw) -> Draft:
    x = d.any(lambda t: t.dim() >= 1)
    if not x:
        return None
    n = d.tensor(x).dim()
    k, j = d.dim(x), d.dim(x)
    colons = ":, " * (k % n)
    texts = [
        "{x}.flip({k})", "{x}.transpose({k}, {j})", "{x}[{c}1:]", "{x}[{c}:-1]", "{x}[{c}::2]",
        "{x}[{c}None]", "{x}[{c}-1]", "{x}[{c}0]", "{x}[..., 1]", "{x}[{c}1:5]",
        "{x}.unsqueeze({k})", "{x}.reshape(-1)", "{x}.flatten()", "torch.roll({x}, 1, {k})",
        "torch.roll({x}, -2, {k})", "{x}.reshape({x}.shape[0], -1)", "{x}.chunk(2, {k})[0]",
        "{x}.chunk(3, {k})[-1]", "{x}[2]", "torch.cat([{x}, {x}], {k})",
        "torch.stack([{x}, {x}], {k})", "F.pad({x}, (1, 2))", "{x}.contiguous()",
        "{x}.repeat_interleave(2, {k})", "{x}[{c}2::3]", "{x}.narrow({k}, 1, 2)",
        "{x}.unfold({k}, 3, 1)", "{x}.unfold({k}, 3, 2).sum(-1)",
        "torch.cat([{x}[{c}1:], {x}[{c}:1]], {k})",
        "torch.cat([{x}, {x} * 2], {k})", "{x}.movedim({k}, {j})",
    ]  # fmt: skip
    if d.tensor(x).is_floating_point():
        texts += ["F.pad({x}, (2, 0), value=0.5)", "F.pad({x}, (-1, 1))"]
    if n >= 2:
        texts += [
            "torch.tril({x})", "torch.triu({x}, 1)", "{x}.diagonal()", "{x}.mT",
            "{x}.diagonal(1, 0, 1)", "{x}.permute({p})", "{x}.reshape({x}.shape[-1], -1)",
            "{x}.reshape(-1, {x}.shape[-1])", "{x}.permute({p}).reshape(-1)",
            "{x}.transpose(-1, -2).reshape({x}.shape)", "{x}.flatten(0, 1)", "{x}.view(-1)",
        ]  # fmt: skip
    if d.tensor(x).shape[0] % 4 == 0:
        texts.append("{x}.reshape(4, -1)")
    if 1 in d.tensor(x).shape:
        texts += ["{x}.squeeze()"]
    p = ", ".join(map(str, d.r.sample(range(n), n)))
    return d.line(d.r.choice(texts).format(x=x, k=k, j=j, c=colons, p=p), x)


def _join(d: _Draw) -> Draft:
    a, b = d.any(lambda t: t.dim() >= 1), d.any(lambda t: t.dim() >= 1)
    if not a or not b or d.tensor(a).dim() != d.tensor(b).dim():
        return None
    text = d.pick("torch.cat([{a}, {b}], {k})", "torch.stack([{a}, {b}], {k})",
                  "torch.cat(({b}, {a}, {b}), {k})")  # fmt: skip
    return d.line(text.format(a=a, b=b, k=d.dim(a)), a, b)


def _gather(d: _Draw) -> Draft:
    indices = [i.name for i in d.inputs if i.values == "index"]
    x = d.any(lambda t: t.dim() >= 1)
    if not indices or not x:
        return None
    i = d.r.choice(indices)
    k = d.dim(x)
    colons = ":, " * (k % d.tensor(x).dim())
    text = d.pick("{x}[{c}{i}]", "{x}[{i}]", "torch.index_select({x}, {k}, {i})", "{x}[..., {i}]",
                  "torch.gather({x}, {k}, {i})", "torch.take_along_dim({x}, {i}, {k})")  # fmt: skip
    if "gather" in text or "take" in text:
        shape = d.tensor(x).shape
        if d.tensor(i).dim() != len(shape):
            return None
    return d.line(text.format(x=x, i=i, k=k, c=colons), x, i)


def _argsel(d: _Draw) -> Draft:
    """A row chosen by argmin, and one-hot sums."""
    x = d.exact(lambda t: t.dim() == 2 and t.dtype is not torch.bool)
    if not x:
        return None
    text = d.pick(
        "{x}[{x}.argmin(0)[0]]", "{x}[:, {x}.argmax(1)[:1]]",
        "torch.gather({x}, 1, {x}.argmin(1, keepdim=True))",
        "({x} == {x}.amax(1, keepdim=True)).sum(0)",
        "torch.where({x} == {x}.amin(0, keepdim=True), {x}, 0).sum(1)",
    )  # fmt: skip
    return d.line(text.format(x=x), x, sharp=True)


def _convert(d: _Draw) -> Draft:
    x = d.any()
    to = d.pick("torch.float32", "torch.float64", "torch.bfloat16", "torch.float16")
    return d.line(f"{x}.to({to})", x)


def _broadcast(d: _Draw) -> Draft:
    x = d.any(lambda t: t.dim() >= 1)
    if not x:
        return None
    n = d.tensor(x).dim()
    text = d.pick(
        "{x}.expand(3, {minus})", "{x}.unsqueeze(1).expand({first}, 4, {rest})",
        "{x}.repeat(2, {ones})", "torch.ones_like({x}) * 2", "{x} + torch.arange({x}.shape[-1])",
        "{x} * torch.arange({x}.shape[0]).reshape(-1, {ones_less})",
        "torch.arange({x}.shape[0])[:, None] < torch.arange(7)",
        "torch.zeros({x}.shape[0], 2) + 1", "{x} + torch.eye({x}.shape[-1])",
    )  # fmt: skip
    minus = ", ".join(["-1"] * n)
    rest = ", ".join(["-1"] * (n - 1))
    ones = ", ".join(["1"] * (n - 1))
    text = text.format(x=x, minus=minus, first="-1", rest=rest, ones=ones or "1", ones_less=ones)
    return d.line(text.replace(", )", ")"), x)


_TABLE: list[tuple[Callable[[_Draw], Draft], float]] = [
    (_unary, 5), (_sharp_unary, 4), (_binary, 7), (_sharp_binary, 3), (_where, 3), (_pair, 5),
    (_reduction, 8), (_sharp_reduction, 5), (_product, 5), (_view, 7), (_join, 2), (_gather, 2),
    (_argsel, 1), (_convert, 1.5), (_broadcast, 2),
]  # fmt: skip
_WEIGHTED = ([f for f, _ in _TABLE], [w for _, w in _TABLE])
