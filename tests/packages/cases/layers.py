"""Packages of layers and tensor notation."""

# pyright: basic
from __future__ import annotations

from typing import Any

import torch

from tests.packages.support import Check, case, trained, with_gradients


@case(
    "einops", what="Rearrange, Reduce, EinMix: scripted, traced, trained; the functions in a script"
)
def einops(check: Check) -> None:
    from einops import rearrange
    from einops.layers.torch import EinMix, Rearrange, Reduce

    def net() -> Any:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 6, kernel_size=3),
            Reduce("b c (h h2) (w w2) -> b c h w", "max", h2=2, w2=2),
            Rearrange("b c h w -> b (c h w)"),
            torch.nn.Linear(6 * 4 * 4, 12),
            torch.nn.ReLU(),
            Rearrange("b (c1 c2) -> b c1 c2", c1=3),
            EinMix("b c1 c2 -> b c1 k", weight_shape="c2 k", bias_shape="k", c2=4, k=5),
            Reduce("b ... -> b", "mean"),
        )

    def scripted() -> Any:
        module = torch.jit.script(net())
        return [with_gradients(module, torch.rand(n, 3, 10, 10)) for n in (1, 2, 5)]

    def traced() -> Any:
        module = torch.jit.trace(net(), torch.rand(4, 3, 10, 10))
        return [module(torch.rand(n, 3, 10, 10)) for n in (4, 2)]

    def one(pattern: str, **sizes: int) -> Any:
        return torch.jit.script(Rearrange(pattern, **sizes))(torch.rand(2, 6, 4))

    check("scripted net", scripted)
    check("traced net", traced)
    check("training", lambda: trained(torch.jit.script(net()), [(torch.rand(3, 3, 10, 10),)] * 3))
    check("Rearrange alone", lambda: one("b (h w) c -> b c h w", h=2))
    check(
        "Reduce alone", lambda: torch.jit.script(Reduce("b h c -> b c", "sum"))(torch.rand(2, 3, 4))
    )

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(8, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            q = rearrange(q, "b n (h d) -> b h n d", h=2)
            k = rearrange(k, "b n (h d) -> b h n d", h=2)
            v = rearrange(v, "b n (h d) -> b h n d", h=2)
            mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
            return rearrange(mixed, "b h n d -> b n (h d)")

    def attention() -> Any:
        return with_gradients(
            torch.jit.trace(Attention(), torch.rand(2, 5, 8)), torch.rand(2, 5, 8)
        )

    check("functions in a trace", attention)


@case("x-transformers", what="a decoder with its scripted softclamp; the same, traced")
def x_transformers(check: Check) -> None:
    from x_transformers import Decoder, Encoder, TransformerWrapper
    from x_transformers.attend import softclamp

    def model(**options: Any) -> Any:
        layers = Decoder(dim=16, depth=2, heads=2, **options)
        return TransformerWrapper(num_tokens=11, max_seq_len=16, attn_layers=layers).eval()

    ids = torch.arange(12).reshape(2, 6) % 11
    check("softclamp", lambda: with_gradients(softclamp, torch.randn(4, 5), 3.0, parameters=[]))
    check("softclamped logits", lambda: with_gradients(model(attn_softclamp_logits=True), ids))
    check("traced", lambda: torch.jit.trace(model(), ids)(ids + 0))
    check(
        "traced encoder",
        lambda: torch.jit.trace(
            Encoder(dim=16, depth=1, heads=2, attn_flash=False).eval(), torch.rand(2, 5, 16)
        )(torch.rand(2, 5, 16)),
    )


@case("entmax", what="sparsemax and entmax15 in traced modules; their bisections scripted")
def entmax(check: Check) -> None:
    from entmax import Entmax15, Sparsemax, sparsemax

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sparsemax(self.fc(x), dim=-1)

    check("sparsemax of a layer", lambda: with_gradients(Net(), torch.randn(3, 6)))
    check("traced", lambda: torch.jit.trace(Net(), torch.randn(3, 6))(torch.randn(3, 6)))
    for cls in (Sparsemax, Entmax15):
        check(
            f"{cls.__name__} traced",
            lambda cls=cls: torch.jit.trace(cls(dim=-1), torch.randn(3, 6))(torch.randn(3, 6)),
        )


@case(
    "torchmetrics",
    what="metrics scripted, as its own tests do: forward of a state made by add_state",
)
def torchmetrics(check: Check) -> None:
    from torchmetrics import MeanSquaredError
    from torchmetrics.classification import MulticlassAccuracy
    from torchmetrics.functional import mean_squared_error, pairwise_cosine_similarity

    a, b = torch.rand(8), torch.rand(8)

    def metric(made: Any, *args: Any) -> Any:
        scripted = torch.jit.script(made)
        made.update(*args)
        return [made.compute(), isinstance(scripted, torch.nn.Module)]

    check("MeanSquaredError", lambda: metric(MeanSquaredError(), a, b))
    check(
        "MulticlassAccuracy",
        lambda: metric(
            MulticlassAccuracy(3), torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 1, 1])
        ),
    )
    check("mean_squared_error traced", lambda: torch.jit.trace(mean_squared_error, (a, b))(b, a))
    check(
        "pairwise_cosine_similarity traced",
        lambda: torch.jit.trace(pairwise_cosine_similarity, (torch.rand(4, 3), torch.rand(5, 3)))(
            torch.rand(6, 3), torch.rand(2, 3)
        ),
    )


@case("pytorch-metric-learning", what="losses in a trace")
def pytorch_metric_learning(check: Check) -> None:
    from pytorch_metric_learning import distances, losses

    distance = distances.LpDistance()
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    loss = losses.NormalizedSoftmaxLoss(3, 4)
    check(
        "LpDistance traced",
        lambda: torch.jit.trace(lambda x: distance(x), torch.rand(5, 3))(torch.rand(7, 3)),
    )
    check(
        "NormalizedSoftmaxLoss traced",
        lambda: torch.jit.trace(lambda x: loss(x, labels), torch.rand(6, 4))(torch.rand(6, 4)),
    )


@case("pytorch-crf", module="torchcrf", what="a CRF scripted and traced: likelihood, gradients")
def pytorch_crf(check: Check) -> None:
    from torchcrf import CRF

    def crf() -> Any:
        return CRF(4, batch_first=True)

    tags = torch.tensor([[0, 1, 3], [2, 0, 1]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    check(
        "traced",
        lambda: with_gradients(
            torch.jit.trace(crf(), (torch.rand(2, 3, 4), tags, mask)),
            torch.rand(2, 3, 4),
            tags,
            mask,
        ),
    )
    check(
        "scripted", lambda: with_gradients(torch.jit.script(crf()), torch.rand(2, 3, 4), tags, mask)
    )


@case("normflows", what="flows: log_prob scripted through forward_kld, traced")
def normflows(check: Check) -> None:
    import normflows as nf

    def flow() -> Any:
        base = nf.distributions.base.DiagGaussian(2)
        layers: list[Any] = []
        for _ in range(2):
            layers.append(nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 8, 2], init_zeros=False)))
            layers.append(nf.flows.Permute(2, mode="swap"))
        return nf.NormalizingFlow(base, layers)

    class LogProb(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = flow()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.flow.log_prob(x)

    check(
        "forward_kld traced",
        lambda: with_gradients(torch.jit.trace(LogProb(), torch.rand(5, 2)), torch.rand(7, 2)),
    )
    check(
        "MLP scripted",
        lambda: with_gradients(torch.jit.script(nf.nets.MLP([2, 8, 2])), torch.rand(5, 2)),
    )
