"""Modules that have changed: seen at the next call, and `explain()` says what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class Net(nn.Module):
    depth: lt.Final[int]
    __constants__ = ("mode",)

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.blocks = nn.ModuleList([nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())])
        self.register_buffer("offset", None)
        self.depth = 2
        self.mode = "sum"
        self.gain = 2
        self.names: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.fc(x)) * self.gain
        for block in self.blocks:
            x = block(x)
        if self.offset is not None:
            x = x + self.offset
        if self.mode == "mean":
            x = x / self.depth
        return x + len(self.names)


def made() -> tuple[Net, Any, Tensor]:
    net = Net().eval()
    compiled = lt.script(net)
    x = torch.rand(3, 4)
    agree(net, compiled, x)
    return net, compiled, x


def agree(net: nn.Module, compiled: Any, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))


def facts_of(compiled: Any, x: Tensor) -> list[str]:
    with torch.no_grad():
        e = compiled.explain(x)
    return [fact for again in e.to_dict()["compiled_again"] for fact in again["facts"]]


def set_constant(net: Net) -> None:
    net.mode = "mean"


def set_final(net: Net) -> None:
    net.mode, net.depth = "mean", 3


def set_offset(net: Net) -> None:
    net.offset = torch.ones(4)


def set_gain(net: Net) -> None:
    net.gain = 2.5


def replace_head(net: Net) -> None:
    net.act = nn.Tanh()


def replace_layer(net: Net) -> None:
    net.fc = nn.Linear(4, 4)


def replace_element(net: Net) -> None:
    net.blocks[0] = nn.Sigmoid()


def replace_inner(net: Net) -> None:
    net.blocks[1][0] = nn.Linear(4, 4, bias=False)


def append(net: Net) -> None:
    net.blocks.append(nn.ReLU())


def remove(net: Net) -> None:
    del net.blocks[0]


def reorder(net: Net) -> None:
    held = net.blocks[1]._modules
    held["0"] = held.pop("0")


def hook(net: Net) -> None:
    net.fc.register_forward_hook(doubled)


def doubled(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


CHANGES = {
    set_constant: ["`self.mode` was 'sum', is 'mean'"],
    set_offset: ["`self.offset` was None, is not None"],
    set_gain: ["type of `self.gain` was int, is float"],
    replace_head: ["`self.act` was ReLU, is Tanh"],
    replace_layer: ["`self.fc` was one Linear, is another Linear"],
    replace_element: ["`self.blocks.0` was Tanh, is Sigmoid"],
    replace_inner: ["`self.blocks.1.0` was one Linear, is another Linear"],
    append: ["`self.blocks.2` was not there, is ReLU"],
    hook: ["the hooks of `self.fc` have changed"],
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_of_the_original_is_seen_and_told(change: Any) -> None:
    net, compiled, x = made()
    assert facts_of(compiled, x) == []
    change(net)
    agree(net, compiled, x)
    assert facts_of(compiled, x) == CHANGES[change]


@pytest.mark.parametrize("change", [set_final, remove, reorder])
def test_other_changes_are_seen(change: Any) -> None:
    net, compiled, x = made()
    change(net)
    agree(net, compiled, x)
    assert facts_of(compiled, x)


def test_the_compiled_module_has_the_submodules_of_the_original() -> None:
    net, compiled, x = made()
    net.fc = nn.Linear(4, 4, bias=False)
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert compiled.state_dict().keys() == net.state_dict().keys()
    assert compiled.fc.weight is net.fc.weight
    agree(net, compiled, x)
    torch.testing.assert_close(compiled.fc(x), net.fc(x))
    del net.blocks[1]
    assert len(compiled.blocks) == 1
    net.extra = nn.ReLU()
    assert dict(compiled.named_children()).keys() == dict(net.named_children()).keys()


def test_a_submodule_of_a_submodule_that_was_compiled_before() -> None:
    net, compiled, x = made()
    head = compiled.blocks[1]
    agree(net.blocks[1], head, x)
    net.blocks[1][1] = nn.ReLU()
    agree(net.blocks[1], head, x)
    agree(net, compiled, x)


def test_train_and_eval_compile_nothing() -> None:
    net, compiled, x = made()
    net.train()
    agree(net, compiled, x)
    assert facts_of(compiled, x) == []


class OfTheClass(nn.Module):
    cache = None
    gain = 2
    mode = "sum"

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is not None:
            x = x + self.cache
        return x * self.gain if self.mode == "sum" else x


def test_what_the_class_gives_until_the_module_has_its_own() -> None:
    net, x = OfTheClass(), torch.rand(3)
    compiled = lt.script(net)
    agree(net, compiled, x)
    net.cache = torch.ones(3)
    agree(net, compiled, x)
    net.gain = 5
    agree(net, compiled, x)
    net.mode = "mean"
    agree(net, compiled, x)
    del net.cache, net.mode
    agree(net, compiled, x)


class Asking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "extra"):
            x = x + 1
        return x * getattr(self, "gain", 2)


def test_attributes_that_appear_and_go() -> None:
    net, x = Asking(), torch.rand(3)
    compiled = lt.script(net)
    agree(net, compiled, x)
    net.extra = True
    agree(net, compiled, x)
    assert facts_of(compiled, x) == ["whether `self.extra` exists was False, is True"]
    net.gain = 5
    agree(net, compiled, x)
    del net.extra
    agree(net, compiled, x)
    del net.gain
    agree(net, compiled, x)


class Still:
    def area(self) -> float:
        return 0.0


class Round(Still):
    def area(self) -> float:
        return 4.0


class OfKinds(nn.Module):
    """Asks only of what type its attributes are, and reads none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = Still()
        self.number: object = 1
        self.weight: Tensor | None = torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.number, int):
            x = x + 10
        if self.weight is not None:
            x = x + 100
        return x + self.shape.area()


def test_what_only_its_type_was_asked_of_is_seen_when_it_changes() -> None:
    module = OfKinds()
    compiled, x = lt.script(module), torch.zeros(1)
    assert compiled(x).item() == 110
    module.shape = Round()
    assert compiled(x).item() == 114
    module.number = "s"
    assert compiled(x).item() == 104
    module.weight = None
    assert compiled(x).item() == 4
    (again,) = compiled.explain(x).compiled_again
    assert again.facts == ("type of `self.weight` was Tensor, is NoneType",)


def test_parts_are_found_by_their_classes() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2)))
    made = lt.script(net)

    def set_up(part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)

    made.apply(set_up)
    assert torch.equal(net[0].weight, torch.ones(2, 2))
    for part in made.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()
    x = torch.ones(3, 2)
    torch.testing.assert_close(made(x), net[1](x * 2))
    assert isinstance(made, lt.ScriptModule)
    assert not isinstance(made[0], nn.BatchNorm1d)
