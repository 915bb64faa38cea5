"""The compiled module as an nn.Module, the class style, freezing, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt

X = torch.linspace(-1, 1, 12).view(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList([nn.Linear(2, 2)])
        self.scale = 2

    def forward(self, x):
        x = self.fc2(torch.relu(self.bn(self.fc1(x)))) * self.scale
        for block in self.blocks:
            x = block(x)
        return x


def pair() -> tuple[Net, Any]:
    torch.manual_seed(0)
    module = Net()
    return copy.deepcopy(module), lt.script(module)


def same(a: Any, b: Any, x: torch.Tensor = X) -> None:
    with torch.no_grad():
        torch.testing.assert_close(a(x), b(x))


def test_is_a_module() -> None:
    eager, compiled = pair()
    assert isinstance(compiled, lt.ScriptModule)
    assert isinstance(compiled, nn.Module)
    assert isinstance(compiled.fc1, lt.ScriptModule)
    assert lt.script(compiled) is compiled
    assert list(compiled.state_dict()) == list(eager.state_dict())
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in eager.named_modules()]
    assert compiled.original_name == "Net"
    assert "original_name=Linear" in repr(compiled)
    assert repr(compiled).startswith("ScriptModule(\n  original_name=Net")
    assert compiled.fc1.weight is compiled.__lowtide_root__.fc1.weight
    assert compiled.fc1.in_features == 4
    same(compiled.fc1, eager.fc1)


def test_training_equals_eager() -> None:
    eager, compiled = pair()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, compiled)]
    x = torch.randn(6, 4)  # no row lies in the middle of the others, where relu has its kink
    for _ in range(5):
        losses = []
        for module, optimizer in zip((eager, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            loss = (module(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1])
    for a, b in zip(eager.state_dict().values(), compiled.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    same(eager.eval(), compiled.eval())


def test_state_dict_round_trip() -> None:
    eager, compiled = pair()
    other = Net()
    compiled.load_state_dict(other.state_dict())
    same(compiled.eval(), other.eval())
    eager.load_state_dict(compiled.state_dict())
    same(compiled, eager.eval())


def test_dtype_and_requires_grad() -> None:
    eager, compiled = pair()
    compiled.eval(), eager.eval()
    same(compiled, eager)
    compiled.to(torch.float64), eager.double()
    same(compiled, eager, X.double())
    compiled.float().requires_grad_(False)
    assert not any(p.requires_grad for p in compiled.parameters())
    before = lt.cache_stats()
    compiled(X)  # no gradients, so compiled even where they are on
    assert (lt.cache_stats() - before).calls_eager == 0


def test_apply_reaches_every_module() -> None:
    _, compiled = pair()

    def zero(module: nn.Module) -> None:
        if hasattr(module, "weight"):
            nn.init.zeros_(module.weight)

    compiled.apply(zero)
    assert not any(p.any() for n, p in compiled.named_parameters() if n.endswith("weight"))


def test_deepcopy_is_of_its_own() -> None:
    _, compiled = pair()
    twin = copy.deepcopy(compiled.eval())
    same(twin, compiled)
    with torch.no_grad():
        twin.fc1.weight.zero_()
        twin.scale = 9
        assert not torch.equal(twin(X), compiled(X))
    assert compiled.scale == 2
    assert isinstance(twin, lt.ScriptModule)


def test_a_pickle_carries_the_program() -> None:
    _, compiled = pair()
    loaded = pickle.loads(pickle.dumps(compiled.eval()))
    same(loaded, compiled)
    assert loaded.state_dict().keys() == compiled.state_dict().keys()


def test_containers_stay_containers() -> None:
    compiled = lt.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert len(compiled) == 3
    assert [m.original_name for m in compiled] == ["Linear", "ReLU", "Linear"]
    assert compiled[0] is next(iter(compiled))
    same(compiled[0], compiled.__lowtide_root__[0])
    same(compiled[:2], compiled.__lowtide_root__[:2])
    assert len(pair()[1].blocks) == 1
    blocks = lt.script(nn.ModuleDict({"a": nn.Linear(1, 1)}))
    assert list(blocks.keys()) == ["a"]
    assert "a" in blocks
    assert blocks["a"] is blocks.items()[0][1]


def test_attributes_go_to_the_root() -> None:
    _, compiled = pair()
    root = compiled.__lowtide_root__
    compiled.scale = 5
    assert root.scale == 5
    root.scale = 6
    assert compiled.scale == 6
    compiled.extra = torch.ones(2)
    assert torch.equal(root.extra, torch.ones(2))
    compiled.register_buffer("more", torch.ones(3))
    assert "more" in root.state_dict()
    del compiled.extra
    with pytest.raises(AttributeError, match="extra"):
        compiled.extra  # noqa: B018


def test_a_replaced_submodule_is_compiled_again() -> None:
    eager, compiled = pair()
    compiled.eval()
    same(compiled, eager.eval())
    new = nn.Linear(4, 8)
    compiled.fc1, eager.fc1 = new, new
    same(compiled, eager)
    assert isinstance(compiled.fc1, lt.ScriptModule)


def test_what_can_be_asked() -> None:
    _, compiled = pair()
    compiled.eval()
    assert "fc1.weight" in compiled.graph.captures
    assert "linear" in compiled.code
    with torch.no_grad():
        explained = compiled.explain(X)
        assert explained.plain == ""
        assert compiled.memory(X.to("meta")).peak_bytes > 0
        assert compiled.stages(X)[0][0] == "ir"
    assert compiled.explain(X).plain == ""
    assert "backward" in str(compiled.explain(X))


def test_explain_changes_nothing() -> None:
    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.rnn = 0, nn.GRU(4, 4)
            self.rnn.register_forward_hook(lambda *_: None, with_kwargs=True)

        def forward(self, x):
            self.n += 1
            y, h = self.rnn(x * self.n)
            return torch.relu(y) + h

    module = State()
    compiled = lt.script(module)
    with torch.no_grad():
        explained = str(compiled.explain(X))
    assert module.n == 0
    assert "attr.set" in explained


class Styled(lt.ScriptModule):
    __constants__ = ["n"]  # noqa: RUF012

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.fc = nn.Linear(4, 4)
        self.sizes = lt.Attribute([], list[int])
        self.calls = 0

    @lt.script_method
    def forward(self, x):
        for _ in range(self.n):
            x = self.helper(x)
        for size in self.sizes:
            x = x + size
        return x

    @lt.script_method
    def helper(self, x):
        return torch.relu(self.fc(x))

    @lt.script_method
    def count(self, k: int) -> int:
        self.calls += k
        return self.calls

    def plain(self, x):
        return [v for v in x if len(v) > 2]


def test_class_style() -> None:
    net = Styled(3)
    assert isinstance(net, lt.ScriptModule)
    with torch.no_grad():
        expected = X
        for _ in range(3):
            expected = torch.relu(net.fc(expected))
        torch.testing.assert_close(net(X), expected)
        torch.testing.assert_close(net.helper(X), torch.relu(net.fc(X)))
        net.sizes = [1, 2]
        torch.testing.assert_close(net(X), expected + 3)
    assert (net.count(2), net.count(3), net.calls) == (2, 5, 5)
    assert len(net.plain(X)) == 3
    assert "torch.relu" in str(net.graph)
    assert len(list(net.parameters())) == 2
    net(X).sum().backward()
    assert net.fc.weight.grad is not None


def test_class_style_copies_and_nests() -> None:
    net = Styled(1)
    same(net, net)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.fc.weight.zero_()
        assert not torch.equal(twin(X), net(X))
    outer = lt.script(nn.Sequential(net, nn.Linear(4, 2)))
    same(outer, outer.__lowtide_root__)
    assert outer[0] is net
    assert repr(net).startswith("Styled(")


def test_class_style_with_plain_forward() -> None:
    class Plain(lt.ScriptModule):
        def forward(self, x):
            return {"x": x}

    assert set(Plain()(X)) == {"x"}


def test_freeze() -> None:
    eager, compiled = pair()
    frozen = lt.freeze(compiled, preserved_attrs=["scale"])
    eager.eval()
    same(frozen, eager)
    assert not list(frozen.parameters())
    assert not frozen.training
    assert compiled.training
    assert not any("training" in path for path in frozen.graph.captures)
    with torch.no_grad():
        compiled.fc1.weight.zero_()
        frozen.scale = 3
        eager.scale = 3
    same(frozen, eager)
    x = X.clone().requires_grad_()
    frozen(x).sum().backward()
    assert x.grad is not None


def test_fixed_programs_need_no_source() -> None:
    from lowtide.api.script_module import wrap

    _, compiled = pair()
    program = compiled.eval().graph
    tree = nn.Module()
    for name in ("fc1", "bn", "fc2", "blocks"):
        setattr(tree, name, copy.deepcopy(getattr(compiled.__lowtide_root__, name)))
    tree.scale = 2
    loaded = wrap(tree.eval(), {"forward": program})
    same(loaded, compiled)
    loaded(X).sum().backward()
    compiled(X).sum().backward()
    torch.testing.assert_close(loaded.fc1.weight.grad, compiled.fc1.weight.grad)
    with torch.autocast("cpu"):
        assert loaded(X).dtype == torch.bfloat16


# --- what is refused ---------------------------------------------------------------------------


class Misspelt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(X)

    def forward(self, x):
        return x + self.wieght


class PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class NewAttribute(nn.Module):
    def forward(self, x):
        self.fresh = x
        return x


class AssignsModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        self.a = self.b
        return x


@pytest.mark.parametrize(
    ("make", "words", "line"),
    [
        (Misspelt, r"no attribute 'wieght'[\s\S]*`weight`", "x + self.wieght"),
        (PlainList, r"'layers' is a list[\s\S]*nn\.ModuleList", "in self.layers"),
        (NewAttribute, "no attribute 'fresh'", "self.fresh = x"),
        (AssignsModule, "is assigned to 'a'", "self.a = self.b"),
    ],
)
def test_refusals_show_the_line(make: type[nn.Module], words: str, line: str) -> None:
    with pytest.raises(lt.CompileError, match=words) as caught:
        lt.script(make())
    assert line in str(caught.value)
    assert "^" in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torch_jit() -> None:
    old = torch.jit.script(nn.Linear(4, 4))
    traced = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.rand(2, 4))
    outer = nn.Sequential(old, nn.ReLU(), traced)
    compiled = lt.script(outer)
    same(compiled, outer)
    assert list(compiled.state_dict()) == list(outer.state_dict())
    outer[2] = torch.jit.trace(nn.Linear(4, 4), torch.rand(2, 4))
    same(compiled, outer)
    file = io.BytesIO()
    lt.save(compiled, file)
    same(lt.load(file.getvalue()), outer)


@lt.ignore
def left_alone(x: torch.Tensor) -> int:
    return len(list(v for v in x if bool(v > 0)))  # noqa: C400


@lt.script
def calls_ignored(x):
    return x * left_alone(x)


def test_ignored_function_in_a_function() -> None:
    x = torch.tensor([1.0, -1.0, 2.0])
    assert torch.equal(calls_ignored(x), x * 2)
    assert "py.call" in str(calls_ignored.graph)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self.table = {"a": 1}

    def forward(self, x):
        self.seen.append(x)
        self.table["b"] = len(self.seen)
        for name, n in self.table.items():
            x = x + n * len(name)
        return torch.stack(self.seen).sum(0) + x


def test_list_and_dict_attributes_are_changed_in_place() -> None:
    module, eager = Lists(), Lists()
    compiled = lt.script(module)
    for _ in range(3):
        same(compiled, eager)
    assert len(module.seen) == len(eager.seen)
    assert module.table == eager.table


class SetsLate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.late = x
        return x


class ReadsLate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.late


@pytest.mark.parametrize("cls", [SetsLate, ReadsLate])
def test_an_attribute_that_is_not_there(cls: type[nn.Module]) -> None:
    with pytest.raises(lt.CompileError) as caught:
        lt.script(cls())
    assert f"a module ({cls.__name__}) has no attribute 'late'" in str(caught.value)
    assert f"write instead: `self.late = …` in {cls.__name__}.__init__" in str(caught.value)


def _two(x: torch.Tensor, n: int) -> torch.Tensor:
    return x + n


def _unknown_keyword(x: torch.Tensor) -> torch.Tensor:
    return _two(x, k=2)  # pyright: ignore[reportCallIssue]


def test_an_unknown_keyword_is_named_where_another_argument_is_missing_too() -> None:
    with pytest.raises(lt.CompileError, match=r"unexpected keyword argument 'k'.*'n'"):
        lt.script(_unknown_keyword)(torch.ones(1))


def test_python_speaks_of_a_compiled_module_by_the_users_class() -> None:
    compiled = lt.script(Net())
    with pytest.raises(TypeError, match="object of type 'Net' has no len"):
        len(compiled)
    with pytest.raises(TypeError, match="'Net' object is not subscriptable"):
        compiled[0]
