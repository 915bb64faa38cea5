"""`memory()` of what `lt.compile` gave calls Python: afterwards its objects are what they were."""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import lowtide as lt
from lowtide.memory import left_behind, reached


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "error", message=".*tensors without values", category=RuntimeWarning
        )
        yield


def losses(make: Callable[[nn.Module], Any], asks: bool) -> list[float]:
    """Of three steps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    step = lt.compile(make(nn.Linear(64, 64)))
    x = torch.rand(128, 64)
    if asks:
        step.memory(x)  # pyright: ignore
    return [float(step(x)) for _ in range(3)]


def stepping(net: nn.Module, kind: Any, **options: Any) -> Any:
    optimizer = kind(net.parameters(), 1e-3, **options)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def stepping_in_hooks(net: nn.Module) -> Any:
    optimizers = {p: torch.optim.SGD([p], 1e-3, momentum=0.9) for p in net.parameters()}

    def hook(p: Tensor) -> None:
        optimizers[p].step()  # pyright: ignore
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(hook)

    def step(x: Tensor) -> Tensor:
        loss = net(x).square().sum()
        loss.backward()
        return loss.detach()

    return step


@pytest.mark.parametrize(
    "make",
    [
        lambda net: stepping(net, torch.optim.SGD, momentum=0.9),
        lambda net: stepping(net, torch.optim.AdamW),
        stepping_in_hooks,
        lambda net: stepping(net, torch.optim.Adafactor),
    ],
    ids=["sgd", "adamw", "hooks", "adafactor"],
)
def test_a_step_within_trains_as_if_nobody_had_asked(make: Any) -> None:
    assert losses(make, True) == losses(make, False)


def test_gradients_are_what_they_were() -> None:
    net = nn.Linear(4, 4)

    def step(x: Tensor) -> None:
        net.zero_grad()
        net(x).sum().backward()

    compiled: Any = lt.compile(step)
    compiled.memory(torch.rand(3, 4))
    assert net.weight.grad is None
    before = net.weight.grad = torch.ones(4, 4)
    compiled.memory(torch.rand(3, 4))
    assert net.weight.grad is before
    assert torch.equal(before, torch.ones(4, 4))


def test_attributes_items_and_lists_are_what_they_were() -> None:
    class State:
        def __init__(self) -> None:
            self.last = torch.ones(8)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("mean", torch.ones(8))
            self.state, self.cache = State(), {"k": torch.ones(8)}
            self.all: list[Tensor] = [torch.ones(8)]
            self.recent: deque[Tensor] = deque([torch.ones(8)], maxlen=2)
            self.count = 0

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            self.mean = 0.9 * self.mean + y.mean(0)
            self.state.last = y.sum(0)
            self.cache["k"], self.cache["new"] = y[0] + 1, y[1] * 2
            self.all.append(y.exp())
            self.recent.append(y.sin())
            self.count += 1
            return y

    net = Net()
    compiled: Any = lt.compile(net)
    with torch.no_grad():
        compiled.memory(torch.rand(3, 8))
    kept = [net.mean, net.state.last, net.cache["k"], *net.all, *net.recent]
    assert len(kept) == 5
    assert "new" not in net.cache
    for x in kept:
        assert torch.equal(x, torch.ones(8))
    assert net.count == 1  # what Python counts it has counted


HELD: Any = None


def test_variables_are_what_they_were() -> None:
    held = torch.ones(8)

    def step(x: Tensor) -> Tensor:
        nonlocal held
        global HELD, HELD_SINCE
        held = held + x
        HELD = HELD_SINCE = held * 2
        return held.exp()

    compiled: Any = lt.compile(step)
    compiled.memory(torch.rand(8))
    assert torch.equal(held, torch.ones(8))
    assert HELD is None
    assert "HELD_SINCE" not in globals()


SEEN: list[Any] = []


class SeesGradients(torch.autograd.Function):
    latest: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        SEEN.append(cotangents[0].sum(0))
        SeesGradients.latest = cotangents[0] + 1
        return cotangents[0] * 2


def test_what_a_backward_pass_of_the_users_keeps_is_what_it_was() -> None:
    def program(x: Tensor) -> Tensor:
        return cast("Tensor", SeesGradients.apply(x.sin())).cumsum(0)

    x = torch.rand(64, 32, requires_grad=True)
    compiled: Any = lt.compile(program)
    compiled.memory(x)
    assert SEEN == []
    assert SeesGradients.latest is None
    program(x).sum().backward()
    assert [s.shape for s in SEEN] == [(32,)]


HIDDEN: list[Any] = []


def test_a_global_that_was_there_stays() -> None:
    @torch._dynamo.disable
    def keep(x: Tensor) -> Tensor:
        globals()["HID" + "DEN"].append(x + 1)
        return x * 2

    compiled: Any = lt.compile(lambda x: keep(x) * 2)
    with pytest.raises(RuntimeWarning, match="without values"):
        compiled.memory(torch.rand(300, 400))
    assert len(globals()["HID" + "DEN"]) == 1


def test_what_nobody_finds_is_told() -> None:
    @torch._dynamo.disable
    def keep(x: Tensor) -> Tensor:
        vars(nn)["lowtide_test"] = y = x + 1
        return y

    compiled: Any = lt.compile(lambda x: keep(x) * 2)
    with pytest.raises(RuntimeWarning, match="without values"):
        compiled.memory(torch.rand(300, 400))
    del vars(nn)["lowtide_test"]


def test_a_graph_of_the_callers_is_left_alone() -> None:
    w = torch.rand(50, 60, requires_grad=True)
    h, outer = (w * 2).exp(), (w + 1).exp()

    def f(x: Tensor) -> Tensor:
        y = x * outer
        torch._dynamo.graph_break()
        return y.cumsum(0)

    compiled: Any = lt.compile(f)
    plan = compiled.memory(h)
    assert "exp backward" not in str(plan)
    assert w.grad is None
    assert not any(x.grad_fn.metadata for x in (h, outer))  # pyright: ignore
    compiled(h).sum().backward()
    found, w.grad = w.grad, None
    ((w * 2).exp() * (w + 1).exp()).cumsum(0).sum().backward()
    torch.testing.assert_close(found, w.grad)


def test_a_result_of_the_callers_ends_the_backward_pass() -> None:
    w = torch.rand(50, 60, requires_grad=True)
    h = w.exp()
    compiled: Any = lt.compile(lambda x: (h, x * 2))
    compiled.memory(torch.rand(5, 6, requires_grad=True))
    h.sum().backward()
    torch.testing.assert_close(w.grad, w.exp().detach())


def _carried(detach: bool) -> tuple[Any, dict[str, Any]]:
    net, state = nn.Linear(8, 8), {"h": torch.zeros(4, 8)}

    def step(x: Tensor) -> Tensor:
        before = state["h"].detach() if detach else state["h"]
        state["h"] = torch.tanh(net(x) + before)
        return state["h"]

    return step, state


@pytest.mark.parametrize("detach", [False, True])
def test_a_hidden_state_keeps_its_graph(detach: bool) -> None:
    step, state = _carried(detach)
    compiled: Any = lt.compile(step)
    x = torch.rand(4, 8)
    y = compiled(x)
    compiled.memory(x)
    assert state["h"] is y
    y.sum().backward()
    compiled.memory(x)
    if detach:
        compiled(x).sum().backward()


def test_a_hidden_state_in_a_tuple_keeps_its_graph() -> None:
    """Where nothing can stand for it."""
    net, state = nn.Linear(8, 8), {"h": (torch.zeros(4, 8), 1)}

    def step(x: Tensor) -> Tensor:
        state["h"] = torch.tanh(net(x) + state["h"][0]), 1
        return state["h"][0]

    compiled: Any = lt.compile(step)
    x = torch.rand(4, 8)
    y = compiled(x)
    assert any("was there before" in note for note in compiled.memory(x).notes)
    assert state["h"][0] is y
    y.sum().backward()
    found, net.weight.grad = net.weight.grad, None
    torch.tanh(net(x)).sum().backward()
    torch.testing.assert_close(found, net.weight.grad)


def test_slots_classes_sets_and_data_are_what_they_were() -> None:
    class Kept:
        __slots__ = ("value",)
        latest: Any = 0

        def __init__(self) -> None:
            self.value = torch.ones(3)

        def take(self, x: Tensor) -> None:
            self.value = x * 2
            Kept.latest = x + 1

    kept, seen = Kept(), {torch.ones(2)}
    weight = torch.ones(8, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        seen.add(x * 3)
        kept.take(x)
        weight.data = weight.data * 0.9
        return (x * weight).sum()

    compiled: Any = lt.compile(step)
    compiled.memory(torch.rand(8))
    assert [x.numel() for x in seen] == [2]
    assert Kept.latest == 0
    assert torch.equal(kept.value, torch.ones(3))
    assert torch.equal(weight, torch.ones(8))


def test_an_exception_is_the_users_and_all_is_back() -> None:
    net = nn.Linear(300, 400)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step(x: Tensor) -> None:
        net(x).sum().backward()
        optimizer.step()
        raise KeyError("mine")

    compiled: Any = lt.compile(step)
    with pytest.raises(KeyError, match="mine"):
        compiled.memory(torch.rand(500, 300))
    assert net.weight.grad is None
    assert not optimizer.state


def test_nothing_is_left_of_large_ones_either() -> None:
    @torch._dynamo.disable
    def doubled(x: Tensor) -> Tensor:
        return x.exp() * 2

    compiled: Any = lt.compile(lambda x: doubled(x * 1.5) + 1)
    compiled.memory(torch.randn(900, 900, requires_grad=True))


def test_where_too_much_is_reached_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [[k] for k in range(50)]
    compiled: Any = lt.compile(lambda x: x * len(many))
    assert not any("objects" in note for note in compiled.memory(torch.rand(3)).notes)
    for module in (reached, left_behind):
        monkeypatch.setattr(module, "MOST", 20)
    assert any("objects" in note for note in compiled.memory(torch.rand(3)).notes)


def test_draws_of_python_and_what_requires_gradients_are_the_same() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))

    def step(x: Tensor) -> Tensor:
        net[1].weight.requires_grad_(not net[1].weight.requires_grad)
        return net(x) * random.random()

    compiled: Any = lt.compile(step)
    random.seed(0)
    expected = random.random()
    random.seed(0)
    compiled.memory(torch.rand(3, 5))
    assert random.random() == expected
    assert net[1].weight.requires_grad
    assert torch.isfinite(compiled(torch.rand(3, 5))).all()
