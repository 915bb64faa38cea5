"""Grammar of model code: layers, norms, convolutions, activations, residuals, attention, gates.

In: a `Drawing`. Out: one more statement of its sketch, about a value that it has: rows `[B, C]`,
sequences `[B, T, C]`, lines `[B, C, T]` or images `[B, C, H, W]`. `begin` draws the arguments.

    x0 = torch.randn(B, T, 16)
    v0 = self.p0(x0)                  self.p0 = nn.Linear(16, 32)
    v1 = F.gelu(v0)
    v2 = v1 + v0
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.activations import IN_PLACE, LAYERS, PLAIN
from tests.fuzz.drawing import Drawing, Dropped, floats
from tests.fuzz.loops import Node

Rule = Callable[[Drawing], None]
WIDTHS = (1, 4, 5, 6, 8, 12, 16, 17, 24, 31, 33)


def begin(d: Drawing) -> None:
    """The arguments of a model."""
    d.dtype = d.r.choices(["torch.float32", "torch.float64", "torch.bfloat16"], [16, 1, 1.2])[0]
    cast = "" if d.dtype == "torch.float32" else f".to({d.dtype})"
    grad = d.one_of(["none", "leaf", "leaf", "made"])
    c = d.one_of(WIDTHS)
    kind = d.r.choices(["rows", "sequence", "line", "image", "tokens"], [3, 5, 1.5, 3, 2])[0]
    scale = d.r.choices(["", " * 3", " + 2", " * 100"], [8, 1, 1, 0.5])[0]
    if kind == "tokens":
        d.give("torch.randint(0, 11, (B, T))")
        p = d.part(f"nn.Embedding(11, {c}{d.one_of(['', ', padding_idx=0'])})")
        d.let(f"self.{p}(x0)")
        if d.chance(0.5):
            p = d.part(f"nn.Embedding(64, {c})")
            d.let(f"v0 + self.{p}(torch.arange(x0.shape[1]))")
        return
    dims = {
        "rows": f"B, {c}",
        "sequence": f"B, T, {c}",
        "line": f"B, {c}, T + 3",
        "image": f"B, {c}, {d.one_of([5, 6, 7, 8])}, T + 4",
    }[kind]
    recipe = f"torch.randn({dims}){scale}"
    recipe = f"({recipe}){cast}" if scale and cast else recipe + cast
    if kind == "image" and d.chance(0.3):
        recipe = f"({recipe}).to(memory_format=torch.channels_last)"
    if kind == "sequence" and d.chance(0.15):
        recipe = f"({recipe}).transpose(0, 1).contiguous().transpose(0, 1)"
    d.give(recipe, grad)
    if d.chance(0.3):
        d.give(f"torch.randn({dims}){cast}", d.one_of(["none", "leaf"]))
    if d.chance(0.15):
        d.give("torch.randint(0, 4, (B,))")


def linear(d: Drawing) -> None:
    x = d.pick(floats(2, 3))
    bias = d.one_of(["", "", ", bias=False"])
    width = d.one_of([d[x].shape[-1], *WIDTHS])
    d.let(f"self.{d.part(f'nn.Linear({d[x].shape[-1]}, {width}{bias})')}({x})")


def linear_by_hand(d: Drawing) -> None:
    x = d.pick(floats(2, 3))
    c, width = d[x].shape[-1], d.one_of(WIDTHS)
    w = d.part(f"torch.randn({width}, {c}) * 0.3", "parameter")
    b = d.part(f"torch.zeros({width})", "parameter")
    d.let(
        d.one_of(
            [
                f"F.linear({x}, self.{w}, self.{b})",
                f"{x} @ self.{w}.t() + self.{b}",
                f"torch.matmul({x}, self.{w}.transpose(0, 1))",
                f"torch.einsum('...c,oc->...o', {x}, self.{w}) + self.{b}",
            ]
        )
    )


def conv(d: Drawing) -> None:
    x = d.pick(floats(3, 4))
    c, rank = d[x].shape[1], d[x].dim() - 2
    groups = d.one_of([1, 1, c, *(g for g in (2, 3, 4) if c % g == 0)])
    out = groups * d.one_of([1, 2, 3, max(1, 8 // groups)])
    k = d.one_of([1, 2, 3, 3, 5])
    more = d.one_of(["", f", padding={k // 2}", f", stride=2, padding={k // 2}", ", dilation=2"])
    bias = d.one_of(["", "", ", bias=False"])
    name = f"nn.Conv{rank}d"
    if d.chance(0.1):
        name, groups = f"nn.ConvTranspose{rank}d", 1
        more = d.one_of(["", ", stride=2"])
    p = d.part(f"{name}({c}, {out}, {k}{more}, groups={groups}{bias})")
    d.let(f"self.{p}({x})")


def norm(d: Drawing) -> None:
    x = d.pick(floats(2, 3, 4))
    last, c, rank = d[x].shape[-1], d[x].shape[1], d[x].dim()
    affine = d.one_of(["", "", ", elementwise_affine=False"])
    layers = [f"nn.LayerNorm({last}{affine})", f"nn.RMSNorm({last}{affine})"]
    if rank >= 3:
        groups = d.one_of([g for g in (1, 2, 3, 4, c) if c % g == 0])
        layers += [f"nn.GroupNorm({groups}, {c})"]
        layers += [f"nn.InstanceNorm{rank - 2}d({c}{d.one_of(['', ', affine=True'])})"]
        layers += [f"nn.LayerNorm({list(d[x].shape[2:])})"] if rank == 4 else []
    more = d.one_of(["", "", "", ", momentum=0.3", ", track_running_stats=False", ", affine=False"])
    layers += [f"nn.BatchNorm{max(1, rank - 2)}d({c}{more})"] * 2
    d.let(f"self.{d.part(d.one_of(layers))}({x})")


def norm_by_hand(d: Drawing) -> None:
    x = d.pick(floats(2, 3, 4))
    dim = d.one_of([-1, -1, -1, 1, 0])
    if d.chance(0.4):
        w = f" * self.{d.part(f'torch.ones({d[x].shape[-1]})', 'parameter')}"
    else:
        w = ""
    d.let(
        d.one_of(
            [
                f"({x} - {x}.mean({dim}, keepdim=True)) / ({x}.var({dim}, keepdim=True, "
                f"unbiased=False) + 1e-5).sqrt(){w}",
                f"({x} - {x}.mean({dim}, keepdim=True)) / ({x}.std({dim}, keepdim=True) + 1e-3){w}",
                f"{x} * torch.rsqrt({x}.pow(2).mean({dim}, keepdim=True) + 1e-6){w}",
                f"F.normalize({x}, dim={dim})",
                f"{x} / {x}.norm(dim={dim}, keepdim=True).clamp(min=1e-6)",
                f"F.layer_norm({x}, {x}.shape[-1:])",
            ]
        )
    )


def activation(d: Drawing) -> None:
    x = d.pick(floats())
    match d.r.randint(0, 4):
        case 0 | 1:
            d.let(d.one_of(PLAIN).format(x=x))
        case 2:
            d.let(d.one_of(IN_PLACE).format(x=x))
        case 3:
            d.do(d.one_of(IN_PLACE).format(x=x))
        case _:
            d.let(f"self.{d.part(d.one_of(LAYERS))}({x})")


def residual(d: Drawing) -> None:
    x = d.pick(floats())
    y = d.pick(lambda t: t.is_floating_point() and t.shape == d[x].shape)
    match d.r.randint(0, 7):
        case 0:
            d.do(f"{x} = {x} + {y}")
        case 1:
            d.do(f"{x} += {y}")
        case 2:
            d.let(f"{x}.add_({y}, alpha=0.5)")
        case _:
            d.let(
                d.one_of(
                    [
                        f"{x} + {y}",
                        f"{x} * 0.5 + {y}",
                        f"torch.add({x}, {y}, alpha=2)",
                        f"{x} - {y}",
                        f"({x} + {y}) / math.sqrt(2)",
                        f"torch.lerp({x}, {y}, 0.25)",
                        f"torch.cat([{x}, {y}], dim=-1)",
                        f"{x} * {y}",
                        f"torch.maximum({x}, {y})",
                        f"{y} + F.dropout({x}, 0.1, {d.train})",
                        f"torch.stack([{x}, {y}]).mean(0)",
                    ]
                )
            )


def gate(d: Drawing) -> None:
    x = d.pick(lambda t: floats()(t) and t.dim() >= 2 and t.shape[-1] % 2 == 0)
    if d.chance(0.3):
        d.let(f"F.glu({x}, dim=-1)")
        return
    a, b = d.lets(2, f"{x}.chunk(2, dim=-1)")
    d.let(
        d.one_of(
            [
                f"{a} * torch.sigmoid({b})",
                f"F.silu({a}) * {b}",
                f"F.gelu({a}) * {b}",
                f"torch.tanh({a}) * torch.sigmoid({b})",
                f"F.relu({a}) * {b}",
                f"torch.cat([-{b}, {a}], dim=-1)",
                f"{a} * {b}.softmax(-1)",
            ]
        )
    )


def layers(d: Drawing) -> None:
    x = d.pick(floats(2, 3))
    c, width = d[x].shape[-1], d.one_of(WIDTHS)
    inner = [
        d.one_of(["nn.Identity()", f"nn.LayerNorm({c})", f"nn.RMSNorm({c})"]),
        f"nn.Linear({c}, {width})",
        d.one_of(LAYERS),
        d.one_of(["nn.Dropout(0.1)", "nn.Identity()", f"nn.LayerNorm({width})", d.one_of(LAYERS)]),
        f"nn.Linear({width}, {c})",
    ]
    drop = d.r.randint(0, 3)
    block = f"nn.Sequential({', '.join(inner[1:] if drop else inner)})"
    how = d.r.randint(0, 5)
    if how == 0:
        p = d.part(f"nn.ModuleList([{', '.join([block] * d.r.randint(1, 3))}])")
        v = d.let(f"{x} * 1")
        i = f"layer{d.serial}"
        step = d.one_of([f"{v} = {v} + {i}({v})", f"{v} = {i}({v})", f"{v} = {i}({v}) * 0.5 + {x}"])
        d.add(Node(text=f"for {i} in self.{p}:", inside=(Node(text=step),)))
        return
    p = d.part(block)
    if how == 1:
        d.let(f"checkpoint(self.{p}, {x}, use_reentrant=False)")
    elif how == 2:
        d.let(f"self.{p}(self.{p}({x}))")
    elif how == 3:
        d.let(f"self.{p}({x}) + self.{p}({x} * 0.5)")
    else:
        d.let(d.one_of([f"self.{p}({x})", f"{x} + self.{p}({x})", f"self.{p}({x}) * 0.5 + {x}"]))


def conv_layers(d: Drawing) -> None:
    x = d.pick(floats(4))
    c, width = d[x].shape[1], d.one_of([2, 4, 6, 8])
    stem = d.one_of(
        [f"nn.Conv2d({c}, {width}, 3, padding=1, bias=False)", f"nn.Conv2d({c}, {width}, 1)"]
    )
    after = d.one_of([f"nn.BatchNorm2d({width})", f"nn.GroupNorm(2, {width})", "nn.Identity()"])
    back = d.one_of(
        [
            f"nn.Conv2d({width}, {c}, 3, padding=1)",
            f"nn.Conv2d({width}, {width}, 3, padding=1, groups={width})",
        ]
    )
    p = d.part(f"nn.Sequential({stem}, {after}, {d.one_of(LAYERS[:9])}, {back})")
    d.let(
        d.one_of(
            [
                f"self.{p}({x})",
                f"{x} + self.{p}({x})",
                f"F.relu(self.{p}({x}) + {x})",
                f"F.relu({x} + self.{p}({x}), inplace=True)",
            ]
        )
    )


def shared(d: Drawing) -> None:
    """A submodule that is there is called once more."""
    if not d.parts:
        raise Dropped
    d.let(f"self.p{d.r.randrange(len(d.parts))}({d.pick(floats())})")


def attention(d: Drawing) -> None:
    x = d.pick(floats(3))
    c = d[x].shape[-1]
    heads = d.one_of([h for h in (1, 1, 2, 3, 4) if c % h == 0])
    each = c // heads
    if d.chance(0.12):
        p = d.part(f"nn.MultiheadAttention({c}, {heads}, batch_first=True)")
        d.let(f"self.{p}({x}, {x}, {x}, need_weights=False)[0]")
        return
    p = d.part(f"nn.Linear({c}, {3 * c})")
    q, k, v = d.lets(
        3, d.one_of([f"self.{p}({x}).chunk(3, dim=-1)", f"self.{p}({x}).split({c}, dim=-1)"])
    )
    if heads > 1 or d.chance(0.3):
        shape = f"{x}.shape[0], {x}.shape[1], {heads}, {each}"
        q, k, v = (d.let(f"{n}.view({shape}).transpose(1, 2)") for n in (q, k, v))
        merge = f".transpose(1, 2).reshape({x}.shape[0], {x}.shape[1], {c})"
    else:
        merge = ""
    if d.chance(0.3):
        more = d.one_of(["", ", is_causal=True", ", scale=0.3"])
        d.let(f"F.scaled_dot_product_attention({q}, {k}, {v}{more}){merge}")
        return
    s = d.let(
        d.one_of(
            [
                f"{q} @ {k}.transpose(-2, -1) / math.sqrt({each})",
                f"torch.matmul({q} * {each**-0.5:.4f}, {k}.transpose(-1, -2))",
                f"torch.einsum('...id,...jd->...ij', {q}, {k})",
            ]
        )
    )
    if d.chance(0.5):
        ones = f"torch.ones({x}.shape[1], {x}.shape[1], dtype=torch.bool)"
        s = d.let(
            d.one_of(
                [
                    f"{s}.masked_fill({ones}.triu(1), float('-inf'))",
                    f"{s}.masked_fill(~{ones}.tril(), -1e9)",
                    f"torch.where({ones}.tril(), {s}, torch.finfo({s}.dtype).min)",
                    f"{s}.masked_fill_({ones}.triu(1), -10000.0)",
                ]
            )
        )
    a = d.let(
        d.one_of(
            [
                f"{s}.softmax(dim=-1)",
                f"F.softmax({s}, -1)",
                f"torch.softmax({s}, -1)",
                f"F.dropout(F.softmax({s}, dim=-1), 0.2, {d.train})",
            ]
        )
    )
    d.let(f"({a} @ {v}){merge}" if merge else f"torch.bmm({a}, {v})")


def pooling(d: Drawing) -> None:
    x = d.pick(floats(3, 4))
    if d[x].dim() == 4:
        d.let(
            d.one_of(
                [
                    f"F.max_pool2d({x}, 2)",
                    f"F.avg_pool2d({x}, 2)",
                    f"F.max_pool2d({x}, 3, 2, 1)",
                    f"F.adaptive_avg_pool2d({x}, 1)",
                    f"{x}.mean((2, 3))",
                    f"{x}.flatten(2).transpose(1, 2)",
                    f"{x}.amax((-2, -1))",
                    f"F.interpolate({x}, scale_factor=2)",
                    f"{x}.permute(0, 2, 3, 1)",
                    f"F.adaptive_avg_pool2d({x}, 1).flatten(1)",
                    f"F.pad({x}, (1, 0, 2, 1))",
                    f"F.avg_pool2d({x}, 3, 1, 1)",
                    f"{x} * {x}.mean((2, 3), keepdim=True).sigmoid()",
                ]
            )
        )
        return
    d.let(
        d.one_of(
            [
                f"{x}.mean(1)",
                f"{x}.amax(1)",
                f"{x}[:, -1]",
                f"{x}[:, 0]",
                f"{x}.max(dim=1).values",
                f"{x}.sum(1) / {x}.shape[1]",
                f"{x}.transpose(1, 2)",
                f"F.avg_pool1d({x}, 2)",
                f"F.max_pool1d({x}, 2)",
                f"{x}.flatten(0, 1)",
                f"{x}.reshape({x}.shape[0], -1)",
                f"F.adaptive_avg_pool1d({x}, 1).squeeze(-1)",
                f"{x}.roll(1, 1)",
                f"{x}.flip(1)",
                f"F.pad({x}, (0, 0, 1, 1))",
                f"{x}.cumsum(1)",
                f"torch.logsumexp({x}, dim=1)",
                f"{x}.unfold(1, 2, 1)",
                f"{x}[:, 1:] - {x}[:, :-1]",
                f"{x}.unsqueeze(1)",
                f"{x}.permute(1, 0, 2)",
                f"{x}.mean(1, keepdim=True).expand_as({x})",
                f"{x}.std(dim=1)",
                f"{x}.repeat_interleave(2, dim=1)",
            ]
        )
    )


def mask(d: Drawing) -> None:
    x = d.pick(floats(2, 3))
    m = d.let(
        d.one_of(
            [
                f"{x} > 0",
                f"{x}.abs() < 0.7",
                f"{x}.sum(-1, keepdim=True) > 0",
                f"torch.arange({x}.shape[1]) < {x}.shape[1] // 2",
            ]
        )
    )
    wide = d[m].dim() == 1 and d[x].dim() == 3
    m = f"{m}[:, None]" if wide else m
    d.let(
        d.one_of(
            [
                f"{x}.masked_fill({m}, 0.0)",
                f"torch.where({m}, {x}, -{x})",
                f"{x} * {m}",
                f"torch.where({m}, {x}, 0.0).sum(-1)",
                f"{x}.masked_fill(~({m}), -1.0)",
                f"{x}.tril()",
                f"({x} * {m}).sum(1) / ({m}).expand_as({x}).sum(1).clamp(min=1)",
                f"{x}.triu(1)",
                f"{x}.masked_fill_({m}, 0.5)",
                f"torch.where({m}, {x}.exp(), 1.0)",
            ]
        )
    )


def dropout(d: Drawing) -> None:
    x = d.pick(floats())
    match d.r.randint(0, 4):
        case 0:
            p = d.part(f"nn.Dropout({d.one_of([0.1, 0.5])})")
            d.let(f"self.{p}({x})")
            d.let(f"self.{p}({x})")
        case 1:
            d.let(f"F.dropout({x}, 0.5) - F.dropout({x}, 0.5)")
        case 2:
            d.let(
                f"{x} * torch.bernoulli(torch.full({x}.shape[:1], 0.5)).reshape("
                f"-1, *[1] * ({x}.dim() - 1))"
            )
        case 3:
            d.let(
                f"F.dropout1d({x}, 0.4, {d.train})"
                if d[x].dim() == 3
                else f"F.dropout2d({x}, 0.4, {d.train})"
                if d[x].dim() == 4
                else f"F.alpha_dropout({x}, 0.3, {d.train})"
            )
        case _:
            d.let(f"F.dropout({x}, 0.3, {d.one_of([str(d.train), 'True'])})")


def detached(d: Drawing) -> None:
    x = d.pick(floats())
    d.let(
        d.one_of(
            [
                f"{x} + (torch.round({x}) - {x}).detach()",
                f"{x}.detach()",
                f"{x} * {x}.detach().sigmoid()",
                f"{x} - {x}.detach().mean()",
                f"({x} - {x}.detach()).pow(2)",
                f"{x}.detach().clone() + {x}",
                f"{x} / {x}.detach().abs().amax().clamp(min=1e-3)",
                f"{x}.data * 2",
            ]
        )
    )


def buffer(d: Drawing) -> None:
    x = d.pick(floats(2, 3))
    c = d[x].shape[-1]
    if d.chance(0.3):
        p = d.part("torch.zeros((), dtype=torch.long)", "buffer")
        d.do(d.one_of([f"self.{p} += 1", f"self.{p}.add_(2)"]))
        d.let(f"{x} * (1 - 0.5 ** self.{p})")
        return
    p = d.part(f"torch.zeros({c})", "buffer")
    mean = f"{x}.detach().reshape(-1, {c}).mean(0)"
    d.do(
        d.one_of(
            [
                f"self.{p}.mul_(0.9).add_({mean}, alpha=0.1)",
                f"self.{p}.copy_({mean})",
                f"self.{p} += {mean}",
                f"self.{p}.lerp_({mean}, 0.2)",
                f"self.{p}[0] += {mean}[0]",
            ]
        )
    )
    d.let(d.one_of([f"{x} - self.{p}", f"{x} * (1 + self.{p})", f"self.{p}.clone()"]))


def blocks(d: Drawing) -> None:
    """A few rules under autocast, no_grad or enable_grad."""
    head = d.one_of(
        [
            "with torch.no_grad():",
            "with torch.autocast('cpu', dtype=torch.bfloat16):",
            "with torch.enable_grad():",
            "with torch.autocast('cpu', dtype=torch.bfloat16):",
        ]
    )
    with d.block(head):
        for _ in range(d.r.randint(1, 3)):
            rule = d.one_of([linear, activation, residual, linear_by_hand, norm, gate, layers])
            try:
                rule(d)
            except Dropped:
                continue


def loss(d: Drawing) -> None:
    x = d.pick(floats(2, 3))
    c = d[x].shape[-1]
    labels = f"torch.arange({x}.shape[0]) % {c}"
    if d[x].dim() == 3:
        labels = f"(torch.arange({x}.shape[0] * {x}.shape[1]) % {c})"
        x = f"{x}.reshape(-1, {c})"
    d.let(
        d.one_of(
            [
                f"F.cross_entropy({x}, {labels})",
                f"F.mse_loss({x}, torch.ones_like({x}))",
                f"F.cross_entropy({x}, {labels}, label_smoothing=0.1)",
                f"F.nll_loss(F.log_softmax({x}, -1), {labels})",
                f"F.smooth_l1_loss({x}, {x} * 0)",
                f"-F.log_softmax({x}, -1).gather(1, ({labels})[:, None]).mean()",
                f"F.binary_cross_entropy_with_logits({x}, ({x} > 0).to({x}.dtype))",
                f"F.cross_entropy({x}, {labels}, reduction='none')",
                f"{x}.pow(2).mean()",
                f"F.kl_div(F.log_softmax({x}, -1), F.softmax({x}.detach(), -1), reduction='sum')",
            ]
        )
    )


GRAMMAR: list[tuple[float, Rule]] = [
    (3, linear),
    (1, linear_by_hand),
    (3, conv),
    (3, norm),
    (2, norm_by_hand),
    (4, activation),
    (3, residual),
    (1.5, gate),
    (2.5, layers),
    (1.5, conv_layers),
    (1, shared),
    (2, attention),
    (2.5, pooling),
    (1.5, mask),
    (1.5, dropout),
    (1, detached),
    (1.2, buffer),
    (1.2, blocks),
    (0.8, loss),
]
