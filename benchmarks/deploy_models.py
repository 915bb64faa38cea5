"""The programs that `benchmarks.deploy` exports: for each name, what makes it, and its calls.

The first call is the example of the export; later ones have other values or sizes. If the program
has state, they are its steps.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import model_zoo, pattern_zoo
from examples.deploy.c.export import example, nms
from examples.deploy.gpt2.export import Model as GPT
from lowtide.tools.programs import PROGRAMS


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """`make`: the function or module; `calls`: arguments, the example's first. `sizes`: of
    `lt.export_c`."""

    make: Callable[[], Callable[..., Any]]
    calls: Callable[[], list[tuple[Any, ...]]]
    sizes: Mapping[str, int] | None = None


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    d = (a[:, None] - b).square().sum(-1)
    return d.min(1).values.mean() + d.min(0).values.mean()


def kmeans(x: Tensor, c: Tensor, tol: float) -> Tensor:
    shift = torch.full((), float("inf"))
    steps = 0
    while shift > tol and steps < 50:
        nearest = (x[:, None] - c).square().sum(-1).argmin(1)
        sums = torch.zeros_like(c).index_add(0, nearest, x)
        counts = torch.zeros(c.shape[0]).index_add(0, nearest, torch.ones(x.shape[0]))
        new = sums / counts.clamp(min=1)[:, None]
        shift = (new - c).abs().max()
        c = new
        steps += 1
    return c


class BasicBlock(nn.Module):
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(made), nn.BatchNorm2d(made)
        self.down = None
        if stride > 1:
            down = nn.Conv2d(given, made, 1, stride, bias=False)
            self.down = nn.Sequential(down, nn.BatchNorm2d(made))

    def forward(self, x: Tensor) -> Tensor:
        y = self.nb(self.b(F.relu(self.na(self.a(x)))))
        if self.down is not None:
            x = self.down(x)
        return F.relu(x + y)


def resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2, 1), BasicBlock(64, 64, 1), BasicBlock(64, 64, 1)]
    for width in (128, 256, 512):
        layers += [BasicBlock(width // 2, width, 2), BasicBlock(width, width, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Inverted(nn.Module):
    """A bottleneck of MobileNetV2."""

    def __init__(self, given: int, made: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = given * factor
        self.is_residual = stride == 1 and given == made
        self.layers = nn.Sequential(
            nn.Conv2d(given, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, made, 1, bias=False), nn.BatchNorm2d(made),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


def mobilenet() -> nn.Module:
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)]
    width = 32
    for factor, made, count, stride in rows:
        for k in range(count):
            layers.append(Inverted(width, made, stride if k == 0 else 1, factor))
            width = made
    layers += [nn.Conv2d(width, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(1000, 64), nn.Linear(128, 12)
        self.lstm = nn.LSTM(64, 64, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.words(x))[0]).argmax(-1)


class Scores(GPT):
    def forward(self, token: Tensor) -> Tensor:
        return self.scores(token)


def detector() -> nn.Module:
    """The voice detector of the package silero-vad, which takes and returns its state."""
    found = importlib.util.find_spec("silero_vad")
    assert found is not None
    assert found.origin is not None, "pip install silero-vad"
    file = Path(found.origin).parent / "data" / "silero_vad.jit"
    return torch.jit.load(str(file))._model.eval()


def _zoo(name: str, *others: tuple[Tensor, ...], **sizes: int) -> Deployed:
    """A model of the zoo. `sizes`: dims that are constants, as x0 for x.shape[0]."""
    model = model_zoo.MODELS[name]

    def made() -> nn.Module:
        return model.make().eval()

    return Deployed(
        make=made,
        calls=lambda: [model.inputs(), model.inputs(), *others],
        sizes={f"{k[:-1]}.shape[{k[-1]}]": n for k, n in sizes.items()} or None,
    )


def _image(make: Callable[[], nn.Module]) -> Deployed:
    def made() -> nn.Module:
        model = make().eval()
        for m in model.modules():  # as after training
            if isinstance(m, nn.BatchNorm2d):
                nn.init.uniform_(m.weight, 0.5, 1.5)
                nn.init.normal_(m.running_mean, 0, 0.1)
                nn.init.uniform_(m.running_var, 0.5, 1.5)
        return model

    return Deployed(make=made, calls=lambda: [(torch.randn(1, 3, 224, 224),) for _ in range(2)])


def _points(n: int, m: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 3), torch.rand(m, 3)


MODELS: Mapping[str, Deployed] = {
    "chamfer, 2000 × 1500": Deployed(
        make=lambda: chamfer,
        calls=lambda: [_points(2000, 1500), _points(1, 1), _points(33, 700), _points(700, 2)],
    ),
    "boxes and NMS, 500": Deployed(
        make=lambda: nms, calls=lambda: [example(n) for n in (500, 0, 1, 2, 33, 700)]
    ),
    "k-means, 2000 × 40": Deployed(
        make=lambda: kmeans,
        calls=lambda: [(*_points(n, m), 1e-3) for n, m in ((2000, 40), (40, 1), (300, 33))],
    ),
    "ResNet-18, 224 × 224": _image(resnet18),
    "MobileNetV2, 224 × 224": _image(mobilenet),
    "U-Net": _zoo("U-Net", (torch.randn(2, 3, 48, 80),)),
    "U-Net of fixed size": _zoo("U-Net", x2=64, x3=64),
    "ViT": _zoo("ViT"),
    "ViT of fixed size": _zoo("ViT", x2=64, x3=64),
    "BERT, 4 layers": _zoo("BERT"),
    "BERT of fixed size": _zoo("BERT", tokens1=128),
    "GPT-2, 4 layers, a token": Deployed(
        make=lambda: Scores(1000, 256, 8, 4, 128).eval(),
        calls=lambda: [(torch.tensor(k * 37 % 1000),) for k in range(100)],
    ),
    "conformer": _zoo("conformer", (torch.randn(4, 77, 128),)),
    "LSTM tagger": Deployed(
        make=lambda: Tagger().eval(),
        calls=lambda: [(torch.randint(0, 1000, (1, n)),) for n in (40, 90, 1)],
    ),
    "voice detector, a frame": Deployed(
        make=detector,
        calls=lambda: [(torch.randn(1, 576) / 4, torch.randn(2, 1, 128)) for _ in range(9)],
    ),
}


def _program(name: str) -> Deployed:
    program = PROGRAMS[name]
    seeds = (0, 1)
    return Deployed(
        make=lambda: program.function,
        calls=lambda: [
            program.make_inputs(*(min(n, 300) for n in program.quick), seed=k) for k in seeds
        ],
    )


# Programs over pairs: the examples of the package, and those after reports of users.
PAIRS: Mapping[str, Deployed] = {
    **{name: _program(name) for name in PROGRAMS},
    **{
        p.name: Deployed(make=lambda p=p: p.call, calls=lambda p=p: [p.inputs(), p.inputs()])
        for p in pattern_zoo.PATTERNS
    },
}
