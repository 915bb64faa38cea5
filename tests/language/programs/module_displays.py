"""Tuples and lists of modules and functions, written where they are used."""

from typing import List

import torch
from torch import Tensor, nn

from tests.language.support import module_program


def _x() -> Tensor:
    return torch.linspace(-1, 1, 6).reshape(2, 3)


class _Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.more = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])

    def double(self, x: Tensor) -> Tensor:
        return x * 2


@module_program(args=lambda: (_x(),), torchscript=False)
class DisplaysInLoops(_Three):
    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = layer(x)
        for i, layer in enumerate([self.a, *self.more, self.c]):
            x = layer(x) * (i + 1)
        for layer, k in zip((self.a, self.b), (1, 2)):
            x = layer(x) + k
        for layer in reversed([self.b, self.c]):
            x = layer(x)
        return x + sum(layer.weight.sum() for layer in (self.a, self.b))


@module_program(args=lambda: (_x(),), torchscript=False)
class PairsWithModules(_Three):
    def forward(self, x: Tensor) -> List[Tensor]:
        outs = []
        for name, layer, act in (("a", self.a, torch.tanh), ("b", self.b, None)):
            x = layer(x)
            if act is not None:
                x = act(x)
            if name == "a":
                outs.append(x)
        for f in (self.double, torch.relu, lambda v: v - 1, self.c):
            x = f(x)
        return [*outs, x]


@module_program(calls=lambda: [(_x(), 0), (_x(), 1), (_x(), -1)], torchscript=False)
class DisplaysByName(_Three):
    def both(self):
        return self.a, self.b

    def forward(self, x: Tensor, k: int) -> Tensor:
        layers = [self.a, self.b]
        for layer in layers + list(self.more):
            x = layer(x)
        for layer in [layer for layer in self.more]:
            x = layer(x)
        first, second = self.both()
        return second(first(x)) + layers[k](x) * len(layers) + (self.c,)[0](x)


@module_program(calls=lambda: [(_x(),), (-_x(),)], torchscript=False)
class DisplayThatIsLeftEarly(_Three):
    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c):
            if x.sum() > 0.25:
                break
            x = layer(x) + 0.1
        else:
            x = x + 1
        return x


@module_program(args=lambda: (_x(),), torchscript=False)
class NamesThatStepsMake(_Three):
    def forward(self, x: Tensor) -> Tensor:
        for i in range(2):
            x = getattr(self, "abc"[i])(x)
            for name in ["b", "c"]:
                x = torch.tanh(getattr(self, name)(x))
        return x


@module_program(args=lambda: (_x(), 2), refused=True, torchscript=False)
class NamesOfManySteps(_Three):
    def forward(self, x: Tensor, n: int) -> Tensor:
        for i in range(n):
            x = getattr(self, "abc"[i])(x)  # refused
        return x


@module_program(args=lambda: (_x(),), refused=True, torchscript=False)
class DisplayThatGrows(_Three):
    def forward(self, x: Tensor) -> Tensor:
        layers = [self.a]
        layers.append(self.b)  # refused
        for layer in layers:
            x = layer(x)
        return x


@module_program(args=lambda: (_x(),), refused=True, torchscript=False)
class DisplayThatIsReturned(_Three):
    def forward(self, x: Tensor):
        return [self.a, x]  # refused
