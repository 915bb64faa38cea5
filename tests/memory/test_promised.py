"""What `memory()` has told of a call of several graphs, later calls hold; nothing else changes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

import lowtide as lt
from lowtide.runtime import heap, libc
from tests.memory.contract import assert_budget_kept, assert_within_contract
from tests.memory.graph_programs import (
    PROGRAMS,
    Net,
    Step,
    between,
    budgets,
    cumulated,
    in_a_loop,
    measured,
    outside,
    outside_too,
    two,
    with_hook,
    written,
)

pytestmark = pytest.mark.long  # plans of many parts; `test_budget` has some of each


@pytest.fixture
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def square() -> Tensor:
    return torch.rand(1024, 1024, requires_grad=True)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_kept(program: Any) -> None:
    x = square()
    predicted, asked = measured(lt.compile(program), [x], x)
    assert_within_contract(asked, predicted, library_ops=False)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("make", "options"), [(Net, {"scales": {"one": 2.0}}), (Step, {})])
def test_it_is_kept_by_modules(make: Any, options: dict[str, Any]) -> None:
    net, x = make(), torch.rand(2048, 512)
    predicted, asked = measured(lt.compile(net), list(net.parameters()), x, **options)
    assert_within_contract(asked, predicted, library_ops=False)


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # asks for it
@pytest.mark.parametrize("program", [two, outside_too], ids=lambda program: program.__name__)
def test_budgets_are_kept(program: Any) -> None:
    x = square()
    least, half = budgets(program, x)
    for budget, asks in ((least, True), (half, True), (half, False)):
        if program is outside_too and not asks:
            continue  # what Python runs outside is seen by nobody
        torch._dynamo.reset()
        predicted, asked = measured(lt.compile(program, budget=budget), [x], x, asks=asks)
        assert predicted <= budget
        assert_budget_kept(asked, budget, library_ops=False)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_it_is_kept_with_hooks(is_compiled: bool, stays: bool) -> None:
    """Gradients go after each step, or stay."""
    x = square()
    hook: Any = lt.compile(cumulated) if is_compiled else cumulated
    compiled = lt.compile(with_hook, budget=30 * x.nbytes // 4)
    predicted, asked = measured(compiled, [] if stays else [x], x, hook)
    assert_within_contract(asked, predicted, library_ops=False)


def _guards(monkeypatch: pytest.MonkeyPatch) -> list[heap.Guard]:
    """Those that calls are made under."""
    made: list[heap.Guard] = []
    before = heap.trimming

    def trimming(guard: Any) -> Any:
        made.append(guard)
        return before(guard)

    monkeypatch.setattr(heap, "trimming", trimming)
    return made


def test_only_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    if not libc.keeps_holes():
        pytest.skip("no holes of this C library are known")
    made = _guards(monkeypatch)
    compiled: Any = lt.compile(in_a_loop)
    x = torch.rand(512, 1024)
    compiled(x)
    assert not made
    compiled.memory(torch.empty(512, 1024, device="meta"))
    compiled(torch.rand(300, 1024))
    assert not made
    compiled(x)
    assert len(made) == 1


def test_results_and_graphs_stay_the_same() -> None:
    for program in PROGRAMS:
        torch._dynamo.reset()
        compiled: Any = lt.compile(program)
        x = torch.rand(512, 1024, requires_grad=True)
        compiled(x).sum().backward()
        before, x.grad = x.grad, None
        compiled.memory(x)
        counters.clear()
        for _ in range(2):
            x.grad = None
            result = compiled(x)
            torch.testing.assert_close(result, program(x))
            result.sum().backward()
            torch.testing.assert_close(x.grad, before)
        assert not counters["stats"], f"{program.__name__} was captured anew"


def test_draws_stay_the_same() -> None:
    def dropped(x: Tensor) -> Tensor:
        y = outside(torch.dropout(x, 0.5, True))
        return torch.dropout(y, 0.5, True) * 2

    compiled: Any = lt.compile(dropped)
    x = torch.rand(512, 1024)
    torch.manual_seed(0)
    before = compiled(x)
    compiled.memory(x)
    torch.manual_seed(0)
    assert torch.equal(compiled(x), before)


def test_graphs_are_compiled_still() -> None:
    compiled: Any = lt.compile(between)
    x = torch.rand(512, 1024)
    compiled.memory(x)
    compiled(x)
    before = lt.cache_stats()
    with lt.dispose_scope():
        compiled(x)
    assert (lt.cache_stats() - before).calls_eager == 0


def test_to_pytorch_it_is_what_it_was() -> None:
    compiled: Any = lt.compile(written)
    x = torch.rand(512, 1024)
    again = torch.compile(compiled, backend="eager")
    torch.testing.assert_close(again(x), written(x))
    compiled.memory(x)
    torch.testing.assert_close(again(x), written(x))
    torch.testing.assert_close(torch.compiler.disable(compiled)(x), written(x))


def test_a_mode_of_the_users_sees_every_op() -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    compiled: Any = lt.compile(between)
    x = torch.rand(512, 1024)
    compiled.memory(x)
    with Seen() as seen:
        compiled(x)
    assert {"cumsum", "mul", "exp", "_softmax"} <= {*seen.names}


def test_errors_are_the_users_and_end_it() -> None:
    fails = False

    @torch._dynamo.disable
    def maybe(x: Tensor) -> Tensor:
        if fails:
            raise KeyError("mine")
        return (x + 1).sin() * x

    compiled: Any = lt.compile(lambda x: maybe(x * 2) + 1)
    x = torch.rand(512, 1024)
    compiled.memory(x)
    fails = True
    with pytest.raises(KeyError, match="mine"):
        compiled(x)
    assert heap.trimmer() is None
    fails = False
    torch.testing.assert_close(compiled(x), maybe(x * 2) + 1)


def test_within_what_is_compiled_again() -> None:
    inner: Any = lt.compile(between)
    x = torch.rand(512, 1024)
    inner.memory(x)
    outer: Any = lt.compile(lambda x: inner(x + 1) * 2)
    torch.testing.assert_close(outer(x), between(x + 1) * 2)
    outer.memory(x)
    torch.testing.assert_close(outer(x), between(x + 1) * 2)


def test_is_the_function_still() -> None:
    compiled: Any = lt.compile(written)
    assert compiled.__name__ == "written"
    assert compiled.__module__ == written.__module__
    assert compiled.__doc__ == written.__doc__


def test_the_same_call_written_otherwise_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    if not libc.keeps_holes():
        pytest.skip("no holes of this C library are known")

    def both(x: Tensor, scale: float = 2.0, *, mode: str = "a") -> Tensor:
        return outside(x * scale) + (mode == "a")

    made = _guards(monkeypatch)
    compiled: Any = lt.compile(both)
    x = torch.rand(512, 1024)
    compiled.memory(x, mode="a", scale=2.0)
    for k, call in enumerate(
        [
            lambda: compiled(x),
            lambda: compiled(x, 2.0),
            lambda: compiled(scale=2.0, mode="a", x=x),
            lambda: compiled(x, mode="a"),
        ]
    ):
        call()
        assert len(made) == k + 1
    compiled(x, mode="b")
    assert len(made) == 4


def test_arguments_of_any_kind_are_taken_still() -> None:
    compiled: Any = lt.compile(lambda x, _: outside(x * 2) + 1)
    x = torch.rand(512, 1024)
    compiled.memory(x, None)
    itself: list[Any] = [1]
    itself.append(itself)
    others = [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]),
        {x: 1},
        itself,
        {1, 2},
        object(),
        [0] * 1000,
    ]
    for other in others:
        torch.testing.assert_close(compiled(x, other), outside(x * 2) + 1)


def test_a_tensor_that_is_a_key_is_let_go() -> None:
    compiled: Any = lt.compile(lambda x, _: outside(x * 2) + 1)
    x, key = torch.rand(512, 1024), torch.rand(3)
    alive = weakref.ref(key)
    compiled.memory(x, {key: 1})
    del key
    torch._dynamo.reset()
    gc.collect()
    assert alive() is None


@lt.script
def _pairs(x, y):
    return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1)).sum(1)


def test_scripted_functions_stay_compiled_within() -> None:
    @torch._dynamo.disable
    def plain(x: Tensor) -> Tensor:
        return torch.softmax(x + 1, 1).sum(1) + _pairs(x[:, :3], x[:, 3:6])

    compiled: Any = lt.compile(lambda x: plain(x * 2).exp() + x.sum(1))
    x = torch.rand(3000, 128)
    expected = compiled(x)
    assert compiled.memory(x).peak_bytes < 20_000_000  # all pairs are 108 MB
    before = lt.cache_stats()
    torch.testing.assert_close(compiled(x), expected)
    assert (lt.cache_stats() - before).calls_eager == 0


def test_a_graph_within_a_budget_keeps_to_the_whole_call() -> None:
    asked: list[object] = []

    class Outer(heap.Guard):
        def check(self, op: object = None, known_bytes: int = 0) -> None:
            asked.append((op, known_bytes))

    outer = Outer(most_bytes=1, growths={})
    with heap.trimming(outer):
        inner = heap.Trimmer(most_bytes=1 << 40, growth_bytes=7)
        with heap.trimming(inner), heap.trimming(inner):
            inner.check("op")
    assert asked == [("op", 7)]
    assert heap.trimmer() is None


def test_nodes_that_are_older_than_the_call_are_left_alone() -> None:
    x = torch.rand(512, 1024, requires_grad=True)
    h = x.exp()
    compiled: Any = lt.compile(in_a_loop)
    compiled.memory(h)
    compiled(h)
    assert not h.grad_fn.metadata  # pyright: ignore[reportOptionalMemberAccess]
