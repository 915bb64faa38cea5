"""The programs that `benchmarks.deploy` exports: for each name, what makes it and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import model_zoo

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    d = (a[:, None] - b).square().sum(-1)
    return d.min(1).values.mean() + d.min(0).values.mean()


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    order = scores.argsort(descending=True)
    b = boxes[order]
    area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    low, high = torch.maximum(b[:, None, :2], b[:, :2]), torch.minimum(b[:, None, 2:], b[:, 2:])
    sides = (high - low).clamp(min=0)
    inter = sides[..., 0] * sides[..., 1]
    iou = inter / (area[:, None] + area - inter)
    keep = torch.ones(boxes.shape[0], dtype=torch.bool)
    for i in range(boxes.shape[0]):
        if bool(keep[i]):
            keep[i + 1 :] &= iou[i, i + 1 :] <= threshold
    return order[keep]


def kmeans(x: Tensor, c: Tensor, tol: float) -> Tensor:
    shift = torch.full((), float("inf"))
    while shift > tol:
        nearest = (x[:, None] - c).square().sum(-1).argmin(1)
        sums = torch.zeros_like(c).index_add(0, nearest, x)
        counts = torch.zeros(c.shape[0]).index_add(0, nearest, torch.ones(x.shape[0]))
        new = sums / counts.clamp(min=1)[:, None]
        shift = (new - c).abs().max()
        c = new
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


def _boxes(n: int) -> tuple[Tensor, Tensor, float]:
    corner = torch.rand(n, 2)
    return torch.cat([corner, corner + torch.rand(n, 2) / 2], 1), torch.rand(n), 0.4


def _zoo(name: str) -> Callable[[], Made]:
    return lambda: (model_zoo.MODELS[name].make().eval(), model_zoo.MODELS[name].inputs())


def _image(make: Callable[[], nn.Module]) -> Callable[[], Made]:
    return lambda: (make().eval(), (torch.randn(1, 3, 224, 224),))


MODELS: Mapping[str, Callable[[], Made]] = {
    "chamfer, 2000 × 1500": lambda: (chamfer, (torch.rand(2000, 3), torch.rand(1500, 3))),
    "boxes and NMS, 500": lambda: (nms, _boxes(500)),
    "k-means, 2000 × 40": lambda: (kmeans, (torch.rand(2000, 3), torch.rand(40, 3), 1e-3)),
    "ResNet-18, 224 × 224": _image(resnet18),
    "MobileNetV2, 224 × 224": _image(mobilenet),
    **{name: _zoo(name) for name in ("U-Net", "ViT", "BERT", "conformer")},
    "LSTM tagger": lambda: (Tagger().eval(), (torch.randint(0, 1000, (1, 40)),)),
}
