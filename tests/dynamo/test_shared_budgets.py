"""A budget of `lt.compile` is of the call: the graphs that PyTorch captures share it."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import lowtide as lt
from lowtide.pipeline.budget.allowance import shares_below
from lowtide.pipeline.shares import best
from tests.memory.graph_programs import hooked, in_a_loop

pytestmark = pytest.mark.long  # plans of many parts; `test_budget` has some of each

Program = Callable[[Tensor], Tensor]
SIZE = 512, 256


def two(x: Tensor) -> Tensor:
    y = x.sin().cumsum(0)
    torch._dynamo.graph_break()
    return y.tanh().cumsum(0)


def one(x: Tensor) -> Tensor:
    return x.sin().cumsum(0).tanh()


def three(x: Tensor) -> Tensor:
    y = (x.sin() * x).softmax(1)
    torch._dynamo.graph_break()
    z = torch.cumsum(y @ y.T, 0)
    torch._dynamo.graph_break()
    return z.tanh() @ y.cumsum(0)


def small_first(x: Tensor) -> Tensor:
    y = x[:8].sin().cumsum(0)
    torch._dynamo.graph_break()
    return (x.cumsum(0).tanh() * y.sum(0)).cumsum(0).tanh()


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return two(x)


PROGRAMS = two, three, small_first


def fresh(program: Program, budget: int | str | None = None) -> Any:
    """Compiled anew: PyTorch limits how often that is done to one function."""
    torch._dynamo.reset()
    return lt.compile(program, budget=budget)


def given(grad: bool) -> Tensor:
    return torch.rand(SIZE, requires_grad=grad)


def least_of(program: Program, x: Tensor) -> int:
    with pytest.raises(lt.BudgetError) as refused:
        fresh(program, 1000).memory(x)
    return refused.value.least_bytes


def results(compiled: Program, x: Tensor) -> list[Tensor]:
    y = compiled(x)
    found = [y.detach().clone()]
    if x.requires_grad:
        found += torch.autograd.grad(y, x, torch.ones_like(y))
    return found


def quietly(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return call()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_every_budget_from_the_least_on_is_kept(program: Program, grad: bool) -> None:
    x = given(grad)
    free = fresh(program)
    most, expected = free.memory(x).peak_bytes, results(free, x)
    least = least_of(program, x)
    assert least < most
    before = 0
    for budget in sorted({least, (2 * least + most) // 3, (least + most) // 2, most - 1, most}):
        compiled = fresh(program, budget)
        peak = compiled.memory(x).peak_bytes
        assert before <= peak <= budget  # a smaller one never gives a larger peak
        for found, known in zip(quietly(lambda c=compiled: results(c, x)), expected, strict=True):
            worst = 1e-4 * known.abs().max().item()
            torch.testing.assert_close(found, known, rtol=1e-4, atol=worst)
        before = peak
    assert peak > least or program is not two  # whose graphs can do with less in many ways


def test_one_that_is_too_small_is_refused_before_anything_is_run() -> None:
    x = given(True)
    least = least_of(two, x)
    calls: list[int] = []

    def counted(x: Tensor) -> Tensor:
        y = two(x)
        torch._dynamo.graph_break()
        calls.append(1)
        return y

    with pytest.raises(lt.BudgetError, match=r"counted\(\) needs at least [\d,]+ bytes") as refused:
        (compiled := fresh(counted, least // 2)).memory(x)
    assert "test_shared_budgets.py" in "\n".join(refused.value.holders)
    del calls[:]
    with pytest.raises(lt.BudgetError) as again:
        compiled(x)
    assert not calls
    assert again.value.least_bytes == refused.value.least_bytes
    compiled = fresh(counted, refused.value.least_bytes)
    assert compiled.memory(x).peak_bytes == refused.value.least_bytes
    with pytest.raises(lt.BudgetError):  # one graph alone tells
        fresh(two, x.nbytes)(x)


def test_where_nobody_asks_each_has_half_of_what_is_left() -> None:
    x = given(False)
    both = fresh(two).memory(x).peak_bytes
    expected = two(x)
    compiled = fresh(two, least_of(two, x))
    with pytest.warns(RuntimeWarning, match="captured 2 graphs of one call, .* memory()") as told:
        torch.testing.assert_close(compiled(x), expected)
    assert told[0].filename == __file__
    for _ in range(2):
        torch.testing.assert_close(quietly(lambda: compiled(x)), expected)
    roomy = fresh(two, 4 * both)
    torch.testing.assert_close(quietly(lambda: roomy(x)), expected)
    assert all("times, one after another" not in str(g) for g in lt.explain_compiled(roomy, x))


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_one_graph_has_all_of_it(asks: bool, grad: bool) -> None:
    x = given(grad)
    most = fresh(one).memory(x).peak_bytes
    for budget in (least_of(one, x), most):
        compiled = fresh(one, budget)
        if asks:
            assert compiled.memory(x).peak_bytes <= budget
        quietly(lambda c=compiled: results(c, x))
        (graph,) = lt.explain_compiled(compiled, x)
        assert budget / 2 < graph.peak_bytes <= budget


@pytest.mark.parametrize("asks", [False, True])
def test_one_graph_with_python_beside_it_has_all_of_it(asks: bool) -> None:
    said: list[str] = []

    def talking(x: Tensor) -> Tensor:
        said.append("before")
        torch._dynamo.graph_break()
        return one(x)

    x = given(True)
    budget = fresh(one).memory(x).peak_bytes
    with pytest.raises(lt.BudgetError):
        fresh(talking, least_of(one, x) - 1).memory(x)
    compiled = fresh(talking, budget)
    if asks:
        assert budget / 2 < compiled.memory(x).peak_bytes <= budget
    for _ in range(2):  # nobody knows before the first call
        quietly(lambda: results(compiled, x))
    (graph,) = lt.explain_compiled(compiled, x)
    assert budget / 2 < graph.peak_bytes <= budget


def test_what_was_told_of_one_mode_is_not_of_another() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(256, 512), nn.Linear(512, 256)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                x = torch.cat([x, x, x, x])
            x = self.first(x).softmax(1)
            torch._dynamo.graph_break()
            return self.second(x).softmax(1)

    x, model = given(False), Model()
    with torch.no_grad():
        torch._dynamo.reset()
        budget = lt.compile(model.eval()).memory(x).peak_bytes
        torch._dynamo.reset()
        compiled: Any = lt.compile(model, budget=budget)
        with pytest.raises(lt.BudgetError):
            compiled.train().memory(x)
        with pytest.raises(lt.BudgetError):
            compiled(x)
        compiled.eval()
        quietly(lambda: compiled(x))
        compiled.memory(x)
        with pytest.raises(lt.BudgetError):
            compiled.train().memory(x=x)
        with pytest.raises(lt.BudgetError):
            compiled(x=x)


class Holder:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_what_was_told_of_one_object_is_not_of_another() -> None:
    def held(holder: Holder) -> Tensor:
        return two(holder.x)

    small, large = Holder(torch.rand(8, 256)), Holder(given(False))
    least = least_of(two, large.x)
    compiled = fresh(held, least - 1)
    with pytest.raises(lt.BudgetError):
        compiled.memory(large)
    torch.testing.assert_close(quietly(lambda: compiled(small)), held(small))
    compiled.memory(small)
    with pytest.raises(lt.BudgetError):
        compiled(large)


def test_a_call_within_a_call_of_the_same_is_a_part_of_it() -> None:
    @torch._dynamo.disable
    def again(x: Tensor, depth: int) -> Tensor:
        return compiled(x, depth - 1) if depth else x

    def deep(x: Tensor, depth: int) -> Tensor:
        y = again(x.sin().cumsum(0).tanh(), depth)
        return y.cumsum(0).tanh()

    x = given(False)
    torch._dynamo.reset()
    compiled: Any = lt.compile(deep, budget="1GB")
    expected = compiled(x, 2)
    torch._dynamo.reset()
    compiled = lt.compile(deep, budget=5 * x.nbytes)
    assert compiled.memory(x, 2).peak_bytes <= 5 * x.nbytes
    torch.testing.assert_close(quietly(lambda: compiled(x, 2)), expected)


def test_nothing_is_held_after_memory_was_asked() -> None:
    x = given(False)
    compiled = fresh(two, 10**9)
    compiled.memory(x)
    alive = weakref.ref(x)
    gc.disable()
    try:
        del x
        assert alive() is None
    finally:
        gc.enable()


def test_a_module_that_is_one_graph_has_all_of_it() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.Softmax(1), nn.Linear(512, 8))
    x = torch.rand(SIZE)
    torch._dynamo.reset()
    most = lt.compile(model).memory(x).peak_bytes
    torch._dynamo.reset()
    compiled: Any = lt.compile(model, budget=most)
    quietly(lambda: compiled(x))
    assert most / 2 < compiled.memory(x).peak_bytes <= most


def test_what_python_runs_counts_and_cannot_be_shared() -> None:
    x = given(False)
    taken = fresh(in_a_loop).memory(x).peak_bytes
    with pytest.raises(lt.BudgetError) as refused:
        fresh(in_a_loop, taken - 1).memory(x)
    assert refused.value.least_bytes <= taken
    compiled = fresh(in_a_loop, taken)
    assert compiled.memory(x).peak_bytes <= taken
    torch.testing.assert_close(quietly(lambda: compiled(x)), in_a_loop(x))


@torch._dynamo.disable
def large_products(x: Tensor) -> Tensor:
    return x @ torch.rand(x.shape[1], 4 * x.shape[1])


inner = lt.compile(lambda x: x.repeat(4, 1).sin())


@torch._dynamo.disable
def another(x: Tensor) -> Tensor:
    return inner(x)[: x.shape[0]].sin()


@torch._dynamo.disable
def again_and_again(x: Tensor) -> Tensor:
    for _ in range(50):
        x = (x * 1.01).clamp(max=3)
    return x


def with_python(by_python: Program) -> Program:
    return lambda x: by_python(x.sin()).cumsum(0)


@pytest.mark.parametrize(("by_python", "name"), [(large_products, "mm"), (another, "graph")])
def test_where_nobody_asks_what_python_runs_is_told(by_python: Program, name: str) -> None:
    x = torch.rand(1024, 512)
    program = with_python(by_python)
    peak = fresh(program).memory(x).peak_bytes
    compiled = fresh(program, peak * 2 // 3)
    told = f"captured 2 graphs of one call, and Python runs .*test_shared_budgets.*{name}.*`, …"
    with pytest.warns(RuntimeWarning, match=told):
        compiled(x)


@pytest.mark.parametrize("by_python", [large_products, another, again_and_again])
def test_what_is_gone_again_counts_no_more(by_python: Program) -> None:
    x = torch.rand(1024, 512)
    program = with_python(by_python)
    compiled = fresh(program, 2 * fresh(program).memory(x).peak_bytes)
    for _ in range(3):
        torch.testing.assert_close(quietly(lambda: compiled(x)).shape, program(x).shape)


def test_what_another_object_takes_counts() -> None:
    x = torch.rand(1024, 512)
    peak = fresh(one).memory(x.repeat(4, 1)).peak_bytes
    torch._dynamo.reset()
    other = lt.compile(one, budget=peak)

    @torch._dynamo.disable
    def call(x: Tensor) -> Tensor:
        return other(x.repeat(4, 1))[: x.shape[0]].clone()

    compiled = lt.compile(with_python(call), budget=peak)
    with pytest.warns(RuntimeWarning, match="which may together take"):
        compiled(x)


def test_a_backward_pass_within_the_call_is_not_pythons() -> None:
    weight = nn.Linear(256, 256)

    def step(x: Tensor) -> Tensor:
        loss = weight(x).tanh().cumsum(0).square().mean()
        loss.backward()
        return loss.detach()

    x = torch.rand(4096, 256)
    compiled = fresh(step, fresh(step).memory(x).peak_bytes * 3 // 2)
    for _ in range(2):
        quietly(lambda: compiled(x))


def test_sparse_tensors_of_pythons_are_let_through() -> None:
    @torch._dynamo.disable
    def sparse(x: Tensor) -> Tensor:
        return torch.sparse.mm(x.to_sparse(), x.T)

    x = torch.rand(1024, 512)
    compiled = fresh(with_python(sparse), "1GB")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), with_python(sparse)(x))


def test_what_is_refused_without_gradients_is_not_with_them() -> None:
    weight = torch.rand(SIZE, requires_grad=True)

    def first_takes_more(x: Tensor, w: Tensor) -> Tensor:
        y = (x * w).cumsum(0)
        torch._dynamo.graph_break()
        return y.tanh() if w.grad is not None else (x @ w.T).exp() @ (w @ x.T).exp() @ y

    x = given(False)
    weight.grad = torch.zeros(SIZE)
    enough = fresh(first_takes_more).memory(x, weight).peak_bytes
    compiled = fresh(first_takes_more, enough)
    weight.grad = None
    with pytest.raises(lt.BudgetError):
        compiled.memory(x, weight)
    with pytest.raises(lt.BudgetError):
        compiled(x, weight)
    weight.grad = torch.zeros(SIZE)
    torch.testing.assert_close(compiled(x, weight), first_takes_more(x, weight))


def test_a_hook_counts() -> None:
    x = given(True)
    most, least = fresh(hooked).memory(x).peak_bytes, least_of(hooked, x)
    compiled = fresh(hooked, (most + least) // 2)
    assert compiled.memory(x).peak_bytes <= (most + least) // 2
    expected = results(hooked, x)
    for found, known in zip(results(compiled, x), expected, strict=True):
        torch.testing.assert_close(found, known)


def test_functions_that_python_calls_are_parts_of_the_call() -> None:
    def outer(x: Tensor) -> Tensor:
        for _ in range(2):
            x = one(x)
            torch._dynamo.graph_break()
        return x

    x = given(False)
    most = fresh(outer).memory(x).peak_bytes
    compiled = fresh(outer, most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        torch.testing.assert_close(compiled(x), outer(x))
        graphs = lt.explain_compiled(compiled, x)
    assert len(graphs) == 2
    assert sum(g.peak_bytes for g in graphs) <= 2 * most


def test_a_compiled_function_within_another_keeps_to_its_own() -> None:
    x = given(False)
    least = least_of(one, x)
    torch._dynamo.reset()
    inner = lt.compile(one, budget=least)

    @torch._dynamo.disable
    def call(x: Tensor) -> Tensor:
        return inner(x)

    def outer(x: Tensor) -> Tensor:
        return call(x.sin()).tanh()

    compiled = lt.compile(outer, budget="1GB")
    torch.testing.assert_close(quietly(lambda: compiled(x)), outer(x))
    assert compiled.memory(x).peak_bytes < 10**9
    (graph,) = lt.explain_compiled(inner, x)
    assert graph.peak_bytes <= least


def test_a_function_that_does_otherwise_when_it_is_called_again() -> None:
    x = given(False)
    names = ["a", "b"]

    def popping(x: Tensor) -> Tensor:
        y = two(x)
        torch._dynamo.graph_break()
        names.pop()
        return y

    compiled = fresh(popping, fresh(two).memory(x).peak_bytes - 1)
    plan = compiled.memory(x)
    assert any("does not do the same" in note for note in plan.notes)
    names[:] = ["a", "b"]
    torch.testing.assert_close(compiled(x), two(x))
    assert names == ["a"]


def test_numbers_of_the_data_decide() -> None:
    def branch(x: Tensor) -> Tensor:
        y = x.sin().cumsum(0)
        return y.tanh().cumsum(0) if y.sum() > 0 else y.cos()

    x = given(False)
    least = least_of(branch, x)
    with pytest.raises(lt.BudgetError) as again:
        fresh(branch, least - 1).memory(x)
    assert again.value.least_bytes == least
    compiled = fresh(branch, least)
    assert any("Python asks the data for numbers" in note for note in compiled.memory(x).notes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        torch.testing.assert_close(compiled(x), branch(x))


class CopiesItself(Twice):
    def __deepcopy__(self, memo: dict[int, Any]) -> CopiesItself:
        return CopiesItself()


COPIES = copy.deepcopy, copy.copy, lambda c: pickle.loads(pickle.dumps(c))


@pytest.mark.parametrize("make", [Twice, CopiesItself])
@pytest.mark.parametrize("copied", COPIES)
def test_copies_have_the_budget(copied: Callable[[Any], Any], make: type[nn.Module]) -> None:
    x = given(True)
    least = least_of(make(), x)
    made = copied(fresh(make(), least))
    assert made.memory(x).peak_bytes == least
    torch.testing.assert_close(quietly(lambda: made(x)), two(x))
    with pytest.raises(lt.BudgetError):
        copied(copied(fresh(make(), least // 2))).memory(x)
    assert copied(fresh(make())).memory(x).peak_bytes > least


def test_by_name_the_budget_is_of_each_graph() -> None:
    x = given(False)
    torch._dynamo.reset()
    options: Any = {"budget": 2 * least_of(one, x)}
    torch._dynamo.reset()
    compiled = torch.compile(two, backend="lowtide", options=options)
    torch.testing.assert_close(quietly(lambda: compiled(x)), two(x))


@pytest.mark.parametrize("most", [0, 1, 10**5, 3 * 10**7, 10**8])
def test_the_best_share_is_the_first_that_is_kept(most: int) -> None:
    shares = shares_below(10**8)
    tried: list[int] = []

    def peak_of(share: int) -> int:
        tried.append(share)
        return max(share, 10)

    found = best(shares, most, peak_of)
    kept = [s for s in shares if max(s, 10) <= most]
    assert found == (kept[0] if kept else shares[-1])
    assert len(tried) == len(set(tried)) <= (6 if kept else len(shares))


def test_the_least_peak_is_not_always_that_of_the_least_share() -> None:
    peaks = {8: 90, 4: 70, 2: 80, 0: 75}
    assert best([*peaks], 60, peaks.__getitem__) == 4
    assert best([*peaks], 72, peaks.__getitem__) == 4
