"""Strings of a call, looked up among the keys and constants that a module was made with."""

from typing import Any, Final, List, Tuple

import torch
from torch import Tensor, nn

from tests.language.support import module_program


class _Adapters(nn.Module):
    suffixes: Final[Tuple[str, str]] = ("en", "fr")

    def __init__(self):
        super().__init__()
        self.adapters = nn.ModuleDict({"fr": nn.Linear(2, 2), "de": nn.Linear(2, 2)})
        self.scales = nn.ParameterDict({"fr": nn.Parameter(torch.ones(2))})
        self.nothing = nn.ModuleDict()
        self.names = ["fr", "it"]
        self.counts = {"de": 1}


@module_program(calls=lambda: [("fr",), ("en",), ("de",), ("",)], torchscript=False)
class InContainers(_Adapters):
    def forward(self, k: str) -> List[bool]:
        among = [k in self.adapters, k not in self.adapters, k in self.scales, k in self.nothing]
        return among + [k in self.names, k not in self.counts, k in self.suffixes]


@module_program(calls=lambda: [("fr",), ("en",), ("de",)], torchscript=False)
class InKeys(_Adapters):
    def forward(self, k: str) -> List[bool]:
        among = [k in self.adapters.keys(), k not in self.adapters.keys(), k in self.scales.keys()]
        return among + [k in list(self.adapters.keys()), k in self.counts.keys()]


@module_program(calls=lambda: [(torch.ones(2), "de"), (torch.ones(2), "it")], raises=KeyError)
class AppliesTheOneNamed(_Adapters):
    def forward(self, x: Tensor, k: str) -> Tensor:
        if k not in self.adapters:
            raise KeyError("no adapter")
        for name, adapter in self.adapters.items():
            if name == k:
                x = adapter(x)
        return x


@module_program(calls=lambda: [("fr",), (3,), (None,)], torchscript=False)
class LooksUpAnything(_Adapters):
    def forward(self, k: Any) -> bool:
        return k in self.adapters


@module_program(args=lambda: (torch.ones(2),), torchscript=False)
class ModuleAmongModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
        self.other = nn.ReLU()

    def forward(self, x: Tensor) -> Tuple[bool, bool]:
        return self.layers[1] in self.layers, self.other in self.layers


@module_program(args=lambda: ("fr",), refused=True, torchscript=False)
class StringAmongModules(_Adapters):
    def forward(self, k: str) -> bool:
        return k in self.adapters.values()  # refused


def _x() -> Tensor:
    return torch.linspace(-1, 1, 4)


class _Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])


@module_program(
    calls=lambda: [(_x(), True), (_x(), False), (_x(), torch.tensor(1))],
    torchscript=False,
)  # fmt: skip
class ModuleAtWhatIsLikeAnInt(_Two):
    def forward(self, x: Tensor, k: Any) -> Tensor:
        return self.layers[k](x)


@module_program(
    calls=lambda: [(torch.ones(2), [0, 0.5], 0), (torch.ones(2), [0, 0.5], 1)], raises=TypeError,
    torchscript=False,
)  # fmt: skip
class ModuleAtAnElement(_Two):
    def forward(self, x: Tensor, places: List[Any], k: int) -> Tensor:
        return self.layers[places[k]](x)


@module_program(args=lambda: (torch.ones(2), 1), refused=True, torchscript=False)
class ModuleAtAFloat(_Two):
    def forward(self, x: Tensor, k: int) -> Tensor:
        return self.layers[k + 0.5](x)  # refused
