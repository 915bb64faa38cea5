"""nn.Modules: layers, submodules, containers, entry points, constants, hooks, inheritance."""

from typing import Any, Dict, Final, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.language import jit
from tests.language.support import call, module_program, via


def _x() -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(2, 6)


def _image() -> Tensor:
    return torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


@module_program(args=lambda: (_x(),))
class TwoLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 4)
        self.b = nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


@module_program(args=lambda: (_x(),))
class UnannotatedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x):
        x = x + self.a(x)
        return x, x.mean()


@module_program(
    make=lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1)), args=lambda: (_x(),)
)
class SequentialItself(nn.Module):
    pass


@module_program(args=lambda: (_image(),))
class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv(x)))
        x = torch.flatten(x, 1)
        return F.log_softmax(self.fc(x), dim=1)


@module_program(
    calls=lambda: [(_image(),), via("eval"), (_image(),), via("train"), (_image() * 2,)]
)
class BatchNormTrainEval(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x) * 2


@module_program(calls=lambda: [(_x(),), via("eval"), (_x(),), via("train", True), (_x(),)])
class TrainingFlag(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, bool]:
        if self.training:
            return x * 2, self.training
        else:
            return x, self.training


@module_program(calls=lambda: [(_x(),), via("eval"), (_x(),)])
class DropoutLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.none = nn.Dropout(0.0)
        self.some = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.none(x)
        if not self.training:
            x = self.some(x)
        return F.dropout(x, p=0.3, training=False)


@module_program(args=lambda: (torch.tensor([[1, 2, 0], [4, 4, 3]]),))
class EmbeddingAndNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4, padding_idx=0)
        self.norm = nn.LayerNorm(4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.embed(ids)).sum(dim=1)


@module_program(args=lambda: (torch.linspace(-1, 1, 30).reshape(5, 2, 3),))
class LstmLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[Tensor, Tensor]]:
        out, (h, c) = self.lstm(x)
        return out, (h, c)


@module_program(args=lambda: (torch.linspace(-1, 1, 30).reshape(2, 5, 3),))
class GruLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        out, h = self.gru(x)
        return out[:, -1] + torch.cat([h[0], h[1]], dim=1)


@module_program(args=lambda: (torch.linspace(-1, 1, 48).reshape(3, 2, 8),))
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        return self.attn(x, x, x, need_weights=True)


@module_program(args=lambda: (_x(),))
class ListLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@module_program(args=lambda: (_x(),))
class ListEnumerateAndZip(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(6), nn.Identity(), nn.LayerNorm(6)])

    def forward(self, x: Tensor) -> List[Tensor]:
        out: List[Tensor] = []
        for i, layer in enumerate(self.layers):
            x = layer(x) * i
            out.append(x)
        for layer, norm in zip(self.layers, self.norms):
            x = norm(layer(x))
        out.append(x)
        return out


@module_program(args=lambda: (_x(),))
class ListIndexedAndSliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        x = self.layers[1](x) + len(self.layers)
        return self.layers[-1](x)


@module_program(args=lambda: (_x(),))
class SequentialLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tuple[Tensor, List[Tensor]]:
        steps: List[Tensor] = []
        y = x
        for layer in self.net:
            y = layer(y)
            steps.append(y)
        return self.net(x), steps


@module_program(calls=lambda: [(_x(), "a"), (_x(), "b"), (_x(), "c")])
class DictLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(6, 2), "b": nn.Linear(6, 3)})

    def forward(self, x: Tensor, which: str) -> Dict[str, Tensor]:
        out: Dict[str, Tensor] = {}
        for name, head in self.heads.items():
            if name == which:
                out[name] = head(x) * 2
            else:
                out[name] = head(x)
        for head in self.heads.values():
            out["sum"] = head(x).sum()
        for name in self.heads:
            out[name + "!"] = x.mean()
        return out


@module_program(args=lambda: (_x(),))
class DictByKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"in": nn.Linear(6, 4), "out": nn.Linear(4, 2)})

    def forward(self, x: Tensor) -> Tensor:
        if "in" in self.parts:
            x = self.parts["in"](x)
        return self.parts["out"](x)


@module_program(args=lambda: (_x(),))
class ParameterLists(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.full((6,), float(i))) for i in range(3)])
        self.table = nn.ParameterDict({"bias": nn.Parameter(torch.ones(6))})

    def forward(self, x: Tensor) -> Tensor:
        for s in self.scales:
            x = x * s + 1
        return x + self.table["bias"]


@module_program(args=lambda: (_x(),))
class ParametersInLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 36).reshape(6, 6))
        self.bias = nn.Parameter(torch.zeros(6))
        self.register_parameter("gate", None)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = torch.tanh(x @ self.weight[:, : i + 4] @ self.weight[: i + 4] + self.bias)
        if self.gate is not None:
            x = x * self.gate
        return x


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x

    def cube(self, x: Tensor, by: float = 1.0) -> Tensor:
        return self.forward(x) * x * by


@module_program(args=lambda: (_x(),))
class CallsSubmoduleMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.square = Square()

    def forward(self, x: Tensor) -> Tensor:
        return self.square(x) + self.square.cube(x) + self.square.cube(x, by=2.0) + self.own(x, 3)

    def own(self, x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = self.square.forward(x)
        return x


@module_program(
    calls=lambda: [(_x(),), via("encode", _x()), via("decode", torch.ones(2, 3), 2)],
    torchscript=False,
)
class SeveralEntryPoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, 3)
        self.dec = nn.Linear(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))

    @jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.enc(x))

    @jit.export
    def decode(self, z: Tensor, n: int = 1) -> Tensor:
        return self.dec(z) * n


@module_program(args=lambda: (_x(),))
class IgnoredMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 2)

    @jit.ignore
    def python_only(self, x: Tensor) -> Tensor:
        values = {float(v): None for v in x.flatten().tolist()}
        return x * len(values) + sum(map(bool, "ab"))

    def forward(self, x: Tensor) -> Tensor:
        return self.python_only(self.fc(x)) + 1


@module_program(calls=lambda: [(_x(),), (_x(), 1)])
class UnusedMethod(nn.Module):
    @jit.unused
    def never(self, x: Tensor) -> Tensor:
        return x.map_of_no_such_method(lambda v: eval("v"))

    def forward(self, x: Tensor, n: int = 0) -> Tensor:
        if n > 5:
            return self.never(x)
        return x * 2


@module_program(args=lambda: (_x(),))
class ConstantsByName(nn.Module):
    __constants__ = ["factor", "label", "sizes"]

    def __init__(self):
        super().__init__()
        self.factor = 2.5
        self.label = "x"
        self.sizes = [1, 2]

    def forward(self, x: Tensor) -> Tuple[Tensor, str]:
        for s in self.sizes:
            x = x * s
        return x * self.factor, self.label


@module_program(args=lambda: (_x(),))
class ConstantsFinal(nn.Module):
    factor: Final[int]
    use_bias: jit.Final[bool]

    def __init__(self, factor: int = 3):
        super().__init__()
        self.factor = factor
        self.use_bias = False

    def forward(self, x: Tensor) -> Tensor:
        if self.use_bias:
            x = x + self.bias
        return x * self.factor


@module_program(args=lambda: (_x(),))
class NoneSubmodule(nn.Module):
    def __init__(self, proj: Optional[nn.Module] = None):
        super().__init__()
        self.proj = proj
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if self.proj is not None:
            x = self.proj(x)
        return self.fc(x)


@module_program(args=lambda: (_x(),), torchscript=False)
class ClassAttributeConstant(nn.Module):
    scale = 4
    names = ("a", "b")

    def forward(self, x: Tensor) -> Tuple[Tensor, str]:
        return x * self.scale, self.names[1]


class Base(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.fc(x))

    def activate(self, x: Tensor) -> Tensor:
        return torch.relu(x)


@module_program(args=lambda: (_x(),))
class OverridesMethod(Base):
    def __init__(self):
        super().__init__(6)

    def activate(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


@module_program(args=lambda: (_x(),), torchscript=False)
class CallsSuperForward(Base):
    def __init__(self):
        super().__init__(6)
        self.out = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(super().forward(x))


@module_program(args=lambda: (_x(),), torchscript=False)
class CallsSuperMethod(Base):
    def __init__(self):
        super().__init__(6)

    def activate(self, x: Tensor) -> Tensor:
        return super(CallsSuperMethod, self).activate(x) + Base.activate(self, x)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@module_program(args=lambda: (_x().requires_grad_(),), grad=True)
class SharedSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Shared()
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


@module_program(args=lambda: (torch.tensor([0, 3, 1]),), grad=True)
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embed(ids))


@module_program(
    calls=lambda: [(_x(),), (_x(), 3), call(_x(), scale=0.5), call(x=_x(), n=2, flip=True)]
)
class DefaultsAndKeywords(nn.Module):
    def forward(self, x: Tensor, n: int = 1, scale: float = 2.0, flip: bool = False) -> Tensor:
        y = x * n * scale
        if flip:
            y = -y
        return y


class Result(NamedTuple):
    logits: Tensor
    hidden: List[Tensor]
    loss: Optional[Tensor] = None


@module_program(calls=lambda: [(_x(),), (_x(), torch.tensor([0, 2]))])
class ReturnsNamedTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor, target: Optional[Tensor] = None) -> Result:
        y = self.fc(x)
        if target is not None:
            return Result(y, [x, y], F.cross_entropy(y, target))
        return Result(y, [x, y])


@module_program(args=lambda: ({"x": _x(), "mask": torch.tensor([True, False])},))
class TakesDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        y = self.fc(batch["x"])
        y = y.masked_fill(~batch["mask"].unsqueeze(1), 0.0)
        batch["y"] = y
        return {"out": y, "n": batch["mask"].sum()}


@module_program(args=lambda: (_x(),))
class PropertyOnModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self._gain = 2.0

    @property
    def gain(self) -> float:
        return self._gain * 2

    @property
    def weight_norm(self) -> Tensor:
        return self.fc.weight.norm()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.gain / self.weight_norm


def _pre_hook(self, args: Tuple[Tensor]) -> Tuple[Tensor]:
    return (args[0] * 2,)


def _hook(self, args: Tuple[Tensor], out: Tensor) -> Tensor:
    return out + args[0].sum()


def _with_hooks() -> nn.Module:
    m = Shared()
    m.register_forward_pre_hook(_pre_hook)
    m.register_forward_hook(_hook)
    return m


@module_program(make=_with_hooks, args=lambda: (_x(),))
class HooksOnModule(nn.Module):
    pass


@module_program(args=lambda: (_x(),))
class HooksOnSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _with_hooks()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 3


@module_program(args=lambda: (_x(),))
class FunctionAttribute(nn.Module):
    def __init__(self, activation=torch.relu):
        super().__init__()
        self.activation = activation
        self.other = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x) + self.other(x)


@jit.interface
class Transform:
    def forward(self, input: Tensor) -> Tensor:
        pass


@module_program(calls=lambda: [(_x(), 0), (_x(), 2)])
class InterfaceIndexed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)])

    def forward(self, x: Tensor, i: int) -> Tensor:
        layer: Transform = self.layers[i]
        return layer.forward(x)


@module_program(args=lambda: (_x(),))
class HasattrBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "scale"):
            x = x * self.scale
        if hasattr(self, "missing"):
            x = self.missing(x)
        return x


@module_program(args=lambda: (_x(),), torchscript=False)
class ReadsParameterFacts(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tuple[Tensor, int, bool]:
        n = 0
        for p in self.parameters():
            n += p.numel()
        for name, p in self.named_parameters():
            n += len(name)
        return self.fc(x), n, self.fc.bias is not None


@module_program(args=lambda: (_x(),))
class ReadsSubmoduleAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.norm = nn.LayerNorm(3, eps=0.5)

    def forward(self, x: Tensor) -> Tuple[Tensor, int, float, int]:
        y = F.linear(x, self.fc.weight, self.fc.bias)
        return y, self.fc.in_features, self.norm.eps, self.fc.weight.shape[0]


@module_program(args=lambda: (_x().requires_grad_(),), grad=True)
class GradientsOfParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if bool(h.sum() > 100):
            h = h * 0
        for _ in range(2):
            h = torch.tanh(h)
        return self.b(h)


@module_program(args=lambda: (torch.ones(2, 3), 4))
class ModuleWithoutParameters(nn.Module):
    def forward(self, x: Tensor, n: int) -> List[Tensor]:
        return [x[:, i % 3] * i for i in range(n)]


class Chooser(nn.Module):
    def __init__(self, kinds: List[str]):
        super().__init__()
        layers = []
        for k in kinds:
            layers.append(nn.ReLU() if k == "relu" else nn.Linear(6, 6))
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@module_program(args=lambda: (_x(),))
class NestedContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.ModuleDict({"c": Chooser(["relu", "fc"]), "n": nn.LayerNorm(6)}) for _ in range(2)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block["n"](block["c"](x))
        return x


@module_program(args=lambda: (torch.linspace(-1, 1, 24).reshape(2, 3, 4),))
class ManyLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm1d(4)
        self.gn = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose1d(4, 3, 2, stride=2)
        self.pool = nn.AdaptiveAvgPool1d(2)
        self.act = nn.PReLU()
        self.bi = nn.Bilinear(2, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.gn(self.bn(self.conv(x))))
        y = self.pool(self.up(y))
        return self.bi(y, y)


class _TwoWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(4, 4)
        self.wide = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.ways = nn.ModuleDict({"narrow": nn.Linear(4, 2), "wide": nn.Linear(4, 3)})


@module_program(
    calls=lambda: [(torch.ones(2, 4), True), (torch.ones(2, 4), False)], grad=True,
    torchscript=False,
)  # fmt: skip
class ModuleChosenByAFlag(_TwoWays):
    def forward(self, x: Tensor, wide: bool) -> Tensor:
        layer = self.wide if wide else self.narrow
        return layer(x) + layer(x * 2)


@module_program(
    calls=lambda: [(torch.ones(2, 4),), (torch.zeros(2, 4),)], torchscript=False
)  # fmt: skip
class ModuleChosenByStatements(_TwoWays):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 3:
            layer = self.wide
            act = torch.relu
        else:
            layer = self.narrow
            act = torch.tanh
        return act(layer(x))


@module_program(
    calls=lambda: [(torch.ones(2, 4), ["wide", "narrow"]), (torch.ones(2, 4), ["none"])],
    raises=KeyError, torchscript=False,
)  # fmt: skip
class ModuleChosenByAKey(_TwoWays):
    def forward(self, x: Tensor, names: List[str]) -> List[Tensor]:
        return [self.ways[name](x) for name in names]


class _Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = 3.0

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)

    def doubled(self, x: Tensor) -> Tensor:
        return self.fc(x) * 2


@module_program(args=lambda: (torch.ones(2, 4),), torchscript=False)
class DelegatesAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.doubled(x) + self.fc(x) * self.scale


@module_program(
    calls=lambda: [(torch.ones(2),), (torch.ones(2), torch.ones(2)), ()], raises=IndexError,
    torchscript=False,
)  # fmt: skip
class ForwardOfAnyNumber(nn.Module):
    def forward(self, *xs: Tensor) -> Tensor:
        total = xs[0] * len(xs)
        for x in xs[1:]:
            total = total + x
        return total + sum([x.sum() for x in xs])


@module_program(args=lambda: (torch.ones(2), 2), torchscript=False)
class HandsOnAnyNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ForwardOfAnyNumber()

    def forward(self, x: Tensor, n: int) -> Tensor:
        parts = [x * i for i in range(1, 3)]
        return self.inner(*parts) + self.inner(x, x)
