"""What compiled methods compute: attributes, containers, inheritance, hooks, assigned state."""

from __future__ import annotations

import copy
from typing import Any, Dict, Final, List, Optional  # noqa: UP035

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt


def check(module: nn.Module, *inputs: Any, calls: int = 2) -> lt.ScriptModule:
    """Compiled = eager over several calls, state included."""
    other = copy.deepcopy(module)
    compiled = lt.script(module)
    with torch.no_grad():
        for call in range(calls):
            torch.manual_seed(call)
            found = compiled(*copy.deepcopy(inputs))
            torch.manual_seed(call)
            torch.testing.assert_close(found, other(*copy.deepcopy(inputs)))
    for (name, a), b in zip(module.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    return compiled


X = torch.linspace(-1, 1, 12).view(3, 4)


class Attributes(nn.Module):
    rate = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("shift", torch.ones(4))
        self.register_parameter("none", None)
        self.count, self.factor, self.flag, self.mode = 3, 1.5, True, "relu"
        self.shape, self.steps = (3, 4), [1, 2]
        self.dtype = torch.float32
        self.act = F.relu

    def forward(self, x):
        x = self.fc(x) * self.scale + self.shift * self.rate
        if self.none is not None:
            x = x + self.none
        if self.flag and self.mode == "relu":
            x = self.act(x)
        for step in self.steps:
            x = x + step
        return x.view(self.shape).to(self.dtype) * self.count * self.factor


def test_attributes() -> None:
    check(Attributes(), X)


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", 5), ("factor", 0.25), ("flag", False), ("mode", "none"), ("shape", (4, 3)),
     ("steps", [5, 6, 7]), ("count", 2.5), ("act", torch.tanh),
     ("none", nn.Parameter(torch.ones(4))), ("scale", nn.Parameter(torch.zeros(4))),
     ("dtype", torch.float64)],
)  # fmt: skip
def test_attributes_are_read_at_call_time(name: str, value: Any) -> None:
    module = Attributes()
    compiled = lt.script(module)
    with torch.no_grad():
        before = compiled(X)
        torch.testing.assert_close(before, module(X))
        setattr(compiled, name, value)
        assert getattr(module, name) is value
        torch.testing.assert_close(compiled(X), module(X))
        assert compiled(X).shape != before.shape or not torch.equal(compiled(X), before)


def test_a_number_that_changes_compiles_nothing() -> None:
    module = Attributes()
    compiled = lt.script(module)
    with torch.no_grad():
        compiled(X), setattr(module, "count", 17), compiled(X)
        before = lt.cache_stats()
        for k in range(40, 60):
            module.count, module.factor = k, k / 7
            torch.testing.assert_close(compiled(X), module(X))
        assert (lt.cache_stats() - before).compiles == 0


class Constants(nn.Module):
    __constants__ = ["depth"]  # noqa: RUF012
    bias: Final[bool]

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.depth, self.bias = 2, bias
        if bias:
            self.extra = nn.Linear(4, 4)

    def forward(self, x):
        if self.bias:
            x = self.extra(x)
        return x * self.depth


@pytest.mark.parametrize("bias", [True, False])
def test_constants_decide_while_compiling(bias: bool) -> None:
    compiled = check(Constants(bias), X)
    assert not any(op.name == "if" for op in compiled.graph.walk())
    compiled.depth = 7
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), compiled.__lowtide_root__(X))


class MayLack(nn.Module):
    def __init__(self, has: bool) -> None:
        super().__init__()
        self.has = has
        if has:
            self.extra = nn.Linear(4, 4)

    def forward(self, x):
        return self.extra(x) if self.has else x + 1


@pytest.mark.parametrize("has", [True, False])
def test_a_bool_guards_what_is_not_there(has: bool) -> None:
    check(MayLack(has), X)


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.acts = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.scales = nn.ParameterList([torch.ones(4) * k for k in range(1, 3)])
        self.named = nn.ParameterDict({"a": torch.ones(4), "b": torch.zeros(4)})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for i, layer in enumerate(self.layers):
            x = x + i * layer(x)
        for layer, scale in zip(self.layers, self.scales):  # noqa: B905
            x = layer(x) * scale
        for name, act in self.acts.items():
            x = act(x) if name == "relu" else x + act(x)
        for name in self.acts:
            x = x + len(name)
        for act in self.acts.values():
            x = act(x)
        for layer in reversed(self.layers):
            x = layer(x)
        for layer in self.layers[1:3]:
            x = layer(x)
        if "relu" in self.acts and "gelu" not in self.acts.keys():  # noqa: SIM118
            x = self.acts["relu"](x)
        x = self.layers[-1](x) + self.layers[0](x) * len(self.layers) + len(self.seq)
        x = self.seq[0](x) + self.seq(x) + self.seq[1:](x)
        x = x + self.named["a"] + self.scales[1] + sum([p * 1 for p in self.scales])
        return torch.stack([layer(x) for layer in self.layers])


def test_containers() -> None:
    check(Containers(), X)


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        total = x.sum()
        for p in self.parameters():
            total = total + p.sum()
        for name, p in self.named_parameters():
            total = total + p.sum() * len(name)
        for name, p in self.named_buffers():
            total = total + p.sum() * len(name)
        for child in self.children():
            x = child(x)
        for name, _ in self.named_modules():
            total = total + len(name)
        return x + total


def test_listing_modules_and_parameters() -> None:
    check(Listing().eval(), X)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.helper(self.fc(x))

    def helper(self, x):
        return x + 1

    @property
    def width(self) -> int:
        return self.fc.out_features

    @staticmethod
    def double(x):
        return x * 2

    @classmethod
    def triple(cls, x):
        return x * 3


class Derived(Base):
    def forward(self, x):
        old_style = super(Derived, self).helper(x)  # noqa: UP008
        return super().forward(self.double(x)) * self.width + old_style

    def helper(self, x):
        return self.triple(super().helper(x)) - 1


def test_inheritance_properties_and_static_methods() -> None:
    check(Derived(), X)
    check(nn.Sequential(Derived(), Base(), nn.Sequential(Derived())), X)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(4, 4)
        self.c = nn.Linear(4, 4)
        self.c.weight = self.a.weight

    def forward(self, x):
        return self.a(x) + self.b(x) + self.c(x)


def test_shared_modules_and_tied_weights() -> None:
    compiled = check(Shared(), X)
    assert [p for p in compiled.graph.captures if "weight" in p] == ["a.weight"]
    compiled.c.weight = nn.Parameter(torch.zeros(4, 4))  # no longer tied
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), compiled.__lowtide_root__(X))


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.bn(x))
        return x + 1 if self.training else x


def test_train_and_eval_are_read_at_call_time() -> None:
    module = Modes()
    other = copy.deepcopy(module)
    compiled = lt.script(module)
    for mode in (True, False, True):
        compiled.train(mode)
        other.train(mode)
        assert compiled.training is mode is module.training is compiled.bn.training
        with torch.no_grad():
            for seed in range(2):
                torch.manual_seed(seed)
                found = compiled(X)
                torch.manual_seed(seed)
                torch.testing.assert_close(found, other(X))
    torch.testing.assert_close(module.bn.running_mean, other.bn.running_mean)
    assert module.bn.num_batches_tracked == 4


class Counter(nn.Module):
    hidden: Optional[Tensor]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.total, self.hidden, self.last = 0, 0.0, None, "none"
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        self.total = self.total + 0.5
        self.steps += 1
        self.seen = self.seen * 0.9 + x.mean(0) * 0.1
        if self.hidden is None:
            self.hidden = x * 2
        else:
            self.hidden = self.hidden + x
        self.last = "some" if self.calls > 1 else "one"
        return self.hidden * self.calls + self.total + self.seen


def test_assigned_attributes() -> None:
    module = Counter()
    compiled = check(module, X, calls=4)
    assert (compiled.calls, compiled.total, compiled.last) == (4, 2.0, "some")
    assert "seen" in module._buffers
    assert module.steps == 4
    assert "attr.set" in str(compiled.graph)
    compiled.hidden = None
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), X * 2 * 5 + 2.5 + compiled.seen)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x):
        before = self.count * 2
        self.count.add_(1)
        self.count[0] = 7
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return before.sum() + self.count * 2 + self.mean.sum()


def test_buffers_changed_in_place() -> None:
    check(InPlace(), X, calls=3)


def bump(module: nn.Module, x: Tensor) -> Tensor:
    module.calls += 1
    return x + module.calls


class ByHelper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.calls = 0
        self.calls = 10

    def forward(self, x, n: int):
        for _ in range(n):
            x = bump(self, x)
            if x.sum() > 100:
                x = bump(self.inner, x)
        return x


def test_assignment_in_helpers_and_loops() -> None:
    compiled = check(ByHelper(), X, 3, calls=3)
    assert (compiled.calls, compiled.inner.calls) == (19, 9)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.other(self.fc(x))


def double_input(module, args):
    return (args[0] * 2,)


def add_one(module, args, output):
    return output + args[0] + 1


def only_look(module, args, output):
    assert output.dim() == 2


def with_keywords(module, args, kwargs, output):
    return output * 3


def test_hooks_of_submodules() -> None:
    module = Hooked()
    module.fc.register_forward_pre_hook(double_input)
    module.fc.register_forward_hook(add_one)
    module.fc.register_forward_hook(only_look)
    module.other.register_forward_hook(with_keywords, with_kwargs=True)
    compiled = check(module, X)
    assert [op.attrs["why"] for op in compiled.graph.walk() if op.name == "call_module"] == [
        "a hook registered with with_kwargs=True"
    ]


def test_hooks_registered_and_removed_later() -> None:
    module = Hooked()
    compiled = lt.script(module)

    def same() -> None:
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), module(X))

    same()
    handle = module.fc.register_forward_hook(add_one)
    same()
    handle.remove()
    same()
    outer = compiled.register_forward_hook(add_one)
    same()  # shared with the root
    outer.remove()
    compiled.fc.register_forward_pre_hook(double_input)
    same()


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.log = nn.Linear(4, 4), []

    def forward(self, x):
        if self.training:
            self.note(x, 3)
            return self.left_out(x)
        return self.fc(x) + self.number(x)

    @lt.ignore
    def note(self, x, n: int) -> None:
        self.log.append((x.shape, n))

    @torch.jit.ignore
    def number(self, x) -> int:
        return len(list(x))

    @lt.unused
    def left_out(self, x):
        yield x

    @lt.export
    def encode(self, x, n: int = 2):
        return self.helper(x) * n

    def helper(self, x):
        return self.fc(x) + 1

    def not_compiled(self, x):
        return x


def test_export_ignore_unused() -> None:
    module = Marked().eval()
    compiled = check(module, X)
    with torch.no_grad():
        torch.testing.assert_close(compiled.encode(X), module.encode(X))
        torch.testing.assert_close(compiled.encode(X, n=5), module.encode(X, 5))
        torch.testing.assert_close(compiled.helper(X), module.helper(X))
    assert compiled.number(X) == 3
    assert "linear" in str(compiled.encode.graph)
    with pytest.raises(AttributeError, match=r"@lt\.export"):
        compiled.not_compiled(X)
    compiled.train()
    with pytest.raises(NotImplementedError, match="unused"), torch.no_grad():
        compiled(X)
    assert module.log == [((3, 4), 3)]


class CallCounter:
    def __init__(self) -> None:
        self.count: int = 0

    @lt.unused
    def left_out(self, n: int) -> int:
        return next(k for k in range(n))

    def calls_left_out(self) -> int:
        return self.left_out(n=3)


class HasCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter = CallCounter()

    def forward(self, x):
        self.counter.count += 1
        return self.counter.calls_left_out() if self.training else x * self.counter.count


def test_unused_method_of_an_object_raises_where_it_is_called() -> None:
    compiled = lt.script(HasCounter().eval())
    torch.testing.assert_close(compiled(X), X)
    compiled.train()
    with pytest.raises(NotImplementedError, match=r"CallCounter\.left_out\(\) is marked as unused"):
        compiled(X)


@lt.ignore
def outside(x: Tensor) -> Tensor:
    return torch.tensor(sorted(x.flatten().tolist()))


class Scaling:
    rate = 2

    @lt.ignore
    def __call__(self, x: Tensor) -> Tensor:
        return torch.tensor([v * self.rate for v in x.flatten().tolist()])


scaling = Scaling()


class CallsScaling(nn.Module):
    def forward(self, x):
        return scaling(x) + 1


def test_object_whose_call_is_ignored_is_called_by_python() -> None:
    compiled = check(CallsScaling(), X)
    scaling.rate = 3
    torch.testing.assert_close(compiled(X), X.flatten() * 3 + 1)


class CallsIgnored(nn.Module):
    def forward(self, x):
        return outside(x * 2) + 1


def test_ignored_function() -> None:
    check(CallsIgnored(), X)


class Typed(nn.Module):
    sizes: List[int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.sizes = []
        self.extra = lt.Attribute([], List[Tensor])  # noqa: UP006
        self.names: Dict[str, int] = {}  # noqa: UP006

    def forward(self, x):
        for n in self.sizes:
            x = x + n
        for e in self.extra:
            x = x * e
        return x


def test_declared_types_of_empty_lists() -> None:
    module = Typed()
    compiled = lt.script(module)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), X)
        module.sizes, module.extra = [1, 2], [X]
        torch.testing.assert_close(compiled(X), (X + 3) * X)


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, mask: Optional[Tensor] = None, *, scale: float = 1.0):  # noqa: UP045
        y = self.fc(x) * scale
        return y if mask is None else y * mask


def test_arguments() -> None:
    module = Takes()
    compiled = lt.script(module)
    with torch.no_grad():
        for args, kwargs in (
            ((X,), {}), ((X, X), {}), ((X,), {"scale": 3.0}), ((), {"x": X, "mask": X}),
        ):  # fmt: skip
            torch.testing.assert_close(compiled(*args, **kwargs), module(*args, **kwargs))
    with pytest.raises(TypeError, match="missing"):
        compiled()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, n: int):
        for i, layer in enumerate(self.layers):
            if i == n:
                break
            if x.sum() > 1:
                return layer(x)
            x = layer(x)
        return x


@pytest.mark.parametrize("n", [0, 1, 5])
def test_breaks_and_returns_in_unrolled_loops(n: int) -> None:
    check(Branches(), X, n)
    check(Branches(), X + 1, n)


class Isinstance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.maybe = None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * 2 if isinstance(layer, nn.Linear) else layer(x)
        if self.maybe is None and self.layers is not None and hasattr(self, "layers"):
            x = x + 1
        return getattr(self, "layers")(x) + getattr(self, "nothing", 3)  # noqa: B009


def test_isinstance_hasattr_getattr() -> None:
    check(Isinstance(), X)


def test_a_deep_model() -> None:
    module = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(60)])
    compiled = lt.script(module)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X))


@lt.interface
class Layer:
    def forward(self, x: Tensor) -> Tensor: ...


class UsesInterface(nn.Module):
    layer: Layer

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) + self.layer.forward(x)


def test_interfaces_and_explicit_forward() -> None:
    check(UsesInterface(), X)


class FirstLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])

    @property
    def first(self):
        return self.layers[0]

    def forward(self, x):
        return self.first(x) + self.first.weight.sum()


def test_a_property_that_is_a_submodule() -> None:
    check(FirstLayer(), X)


class OwnAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class OwnLSTM(nn.LSTM):
    pass


class ByForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = OwnLSTM(4, 4)

    def forward(self, x):
        y, (h, c) = self.rnn.forward(x)
        return self.rnn(y)[0] + h + c


def test_subclasses_of_torch_modules() -> None:
    check(OwnAttention(4, 2), X[None])
    check(ByForward(), X[None])
    check(nn.Sequential(OwnLSTM(4, 4)), X[None])


class SideEffect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 1

    def forward(self, x):
        before = self.n
        self.grow()
        return x * before + self.n

    @lt.ignore
    def grow(self) -> None:
        self.n *= 3


def test_an_ignored_method_that_assigns() -> None:
    assert check(SideEffect(), X, calls=3).n == 27


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "change",
    [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal,
     nn.utils.weight_norm, nn.utils.spectral_norm],
)  # fmt: skip
def test_parametrized_modules(change: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(change(nn.Linear(4, 4)), nn.ReLU()).eval()
    compiled = lt.script(module)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X))
        for p in module.parameters():
            p.mul_(2)
        torch.testing.assert_close(compiled(X), module(X))


class Pruned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, n: int):
        while x.sum() < n:
            x = x + self.fc(x).abs() + 1
        return x


def test_a_loop_on_data() -> None:
    check(Pruned(), X, 40)


def test_warnings_are_given() -> None:
    module = nn.InstanceNorm1d(4)
    compiled = lt.script(module)
    with torch.no_grad(), pytest.warns(UserWarning, match="num_features"):
        torch.testing.assert_close(compiled(torch.ones(2, 3, 6)), torch.zeros(2, 3, 6))


class KeepsItsNorm(nn.Module):
    """A backbone whose statistics stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.modes: list[bool] = []

    def train(self, mode: bool = True) -> KeepsItsNorm:
        super().train(mode)
        self.norm.eval()
        self.modes.append(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        return {k: v for k, v in found.items() if "running" not in k}

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def test_methods_of_nn_module_that_the_class_overrides() -> None:
    x = torch.arange(6.0).view(2, 3)
    for whole in (KeepsItsNorm(), nn.Sequential(KeepsItsNorm())):
        made = lt.script(whole)
        inner = made if isinstance(whole, KeepsItsNorm) else made[0]
        assert made.train() is made
        assert inner.modes == [True]
        assert made.training
        assert not inner.norm.training
        torch.testing.assert_close(made(x), x / (1 + 1e-5) ** 0.5)
        made.eval()
        assert inner.modes == [True, False]
        assert not any("running" in name for name in inner.state_dict())
        copied = copy.deepcopy(made).train()
        assert (copied if isinstance(whole, KeepsItsNorm) else copied[0]).modes[-1]
        assert inner.modes == [True, False]
