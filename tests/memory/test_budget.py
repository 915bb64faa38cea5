"""Budgets: kept, refused with what holds the memory, and without a difference in the results."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lowtide as lt
from lowtide.budget.search import path
from lowtide.errors import LowtideError
from lowtide.execute.driver import Driver
from lowtide.tools.programs import PROGRAMS
from tests.memory.calls import tensors
from tests.memory.cases import CASES, Block, Unet
from tests.memory.contract import assert_budget_kept, requested_bytes

ENTRIES = {
    "script": lambda budget: lt.script(rows, budget=budget),
    "decorator": lambda budget: lt.script(budget=budget)(rows),
    "trace": lambda budget: lt.trace(rows, (torch.rand(40, 30),), budget=budget),
    "compile": lambda budget: lt.compile(rows, budget=budget),
}


def rows(x):
    y = torch.sort(x * 2, -1).values
    return torch.cumsum(y, 1) + x


def case(name: str) -> Any:
    return next(c for c in CASES if c.name == name)


# -- nonsense --------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "budget", ["lots", 0, -1, "0MB", "\u0663MB", float("nan"), True, 1.5, b"1MB"]
)
def test_nonsense_is_refused(entry: str, budget: Any) -> None:
    with pytest.raises(LowtideError, match="write a number of bytes"):
        ENTRIES[entry](budget)


def test_sparse_tensors_are_pytorchs_whatever_the_budget() -> None:
    def doubled(x):
        return torch.sparse.sum(x * 2)

    x = torch.eye(40).to_sparse()
    for budget in (1000, "100MB"):
        limited = lt.script(doubled, budget=budget)
        with pytest.warns(RuntimeWarning, match="the budget is not enforced") as told:
            assert limited(x).item() == 80
        assert [w.filename for w in told] == [__file__]


# -- kept ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["script", "decorator", "trace"])
def test_every_front_end_keeps_to_it(entry: str) -> None:
    x = torch.rand(600, 700)
    free = lt.script(rows).memory(x).peak_bytes
    limited = ENTRIES[entry](free * 6 // 10)
    assert limited.memory(x).peak_bytes <= free * 6 // 10
    torch.testing.assert_close(limited(x), rows(x))


def test_graphs_that_dynamo_captures() -> None:
    x = torch.rand(600, 700)
    free = lt.script(rows).memory(x).peak_bytes
    torch.testing.assert_close(lt.compile(rows, budget=free * 6 // 10)(x), rows(x))
    with pytest.raises(Exception, match="needs at least"):
        lt.compile(rows, budget=1000)(x)


def reachable(compiled: Any, args: tuple[Any, ...]) -> list[int]:
    """What the plans on the path need, each of a smaller peak than those before it."""
    target = compiled.forward if isinstance(compiled, nn.Module) else compiled
    driver, values = target.resolve(target.bind(args, {}))
    found: list[int] = []
    peak = math.inf
    for plan in path(Driver(driver.function), values):
        if plan.peak_bytes <= peak:
            peak = plan.peak_bytes
            found.append(plan.peak_bytes)
    return found


def results(compiled: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> list[Tensor]:
    """Results, and gradients where there are leaves."""
    torch.manual_seed(3)
    for x in leaves:
        x.grad = None
    out = tensors(compiled(*args))
    if leaves:
        sum((o * o).sum() for o in out if o.requires_grad).backward()
    return [*(o.detach() for o in out), *(x.grad.clone() for x in leaves if x.grad is not None)]


SMALLER: dict[str, tuple[int, ...]] = {
    "ordered": (700, 600), "mixed": (700, 600), "cumulative": (700, 600), "block": (4, 200, 128),
}  # fmt: skip


# Whose plans take long to find: a budget in between is `test_a_trained_block_is_the_same`, which is
# what every run has of it.
ONLY_LEAST = {("block", True)}


def kept() -> list[Any]:
    """(name, with gradients): those whose kernels take long to plan with the long tests."""
    marks = {
        ("attention", True): pytest.mark.long,
        ("block", False): pytest.mark.long,
        ("unet", True): pytest.mark.slow,
        ("low_then_up", True): pytest.mark.long,
        ("block", True): pytest.mark.long,
    }
    names = ["ordered", "mixed", "attention", "low_then_up", "block", "unet", "cross_entropy"]
    return [pytest.param(n, g, marks=marks.get((n, g), ())) for n in names for g in (False, True)]


@pytest.mark.parametrize("name", ["attention", "nearest_centre"])
def test_tiles_are_made_smaller(name: str) -> None:
    """Where work memory holds the peak, and there is nothing to cut into chunks."""
    program = PROGRAMS[name]
    args = program.make_inputs(*program.quick)
    free = lt.script(program.function)
    least = min(reachable(free, args))
    assert least < free.memory(*args).peak_bytes // 2
    limited = lt.script(program.function, budget=least)
    assert limited.memory(*args).peak_bytes <= least
    torch.testing.assert_close(limited(*args), program.function(*args), rtol=1e-4, atol=1e-4)
    with pytest.raises(lt.BudgetError):
        lt.script(program.function, budget=least - 1)(*args)


@pytest.mark.parametrize(("name", "grad"), kept())
def test_every_budget_is_kept(name: str, grad: bool) -> None:
    chosen = case(name)
    torch.manual_seed(0)
    made: Any = chosen.make()
    args = (torch.rand(SMALLER[name]),) if name in SMALLER else chosen.inputs()
    leaves = [x for x in tensors(list(args)) if x.is_floating_point()] if grad else []
    for x in leaves:
        x.requires_grad_()
    free: Any = lt.script(made)
    if grad and isinstance(made, nn.Module):
        leaves += list(made.parameters())
    with torch.set_grad_enabled(grad):
        peaks = reachable(free, args)
        expected = results(free, args, leaves)
        for x in leaves:
            x.grad = None
        before = math.inf
        between = [] if (name, grad) in ONLY_LEAST else [peaks[len(peaks) // 2]]
        for budget in sorted({*between, min(peaks)}, reverse=True):
            for x in leaves:
                x.grad = None
            limited: Any = lt.script(made, budget=budget)
            peak = limited.memory(*args).peak_bytes
            assert peak <= min(budget, before)
            before = peak
            for got, want in zip(results(limited, args, leaves), expected, strict=True):
                torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("which", [pytest.param("third", marks=pytest.mark.long), "least"])
def test_what_is_asked_for_is_within_the_budget(which: str) -> None:
    torch.manual_seed(0)
    net, x = Unet(24), torch.rand(8, 3, 128, 128)
    with torch.no_grad():
        free: Any = lt.script(net)
        budget = free.memory(x).peak_bytes // 3
        if which == "least":
            with pytest.raises(lt.BudgetError) as refused:
                lt.script(net, budget=1)(x)
            budget = refused.value.least_bytes
        limited: Any = lt.script(net, budget=budget)
        limited(x)
        asked = requested_bytes(lambda: limited(x))
    assert_budget_kept(asked, budget, library_ops=True)


class Norms(nn.Module):
    """As libraries write it: layers that check what they are given, and change it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(16, 2, 1),
        )

    def forward(self, x):
        y = self.layers(x)
        y += 1
        return y.mul_(2)


@pytest.mark.parametrize("trains", [False, True])
def test_branches_that_are_decided_and_writes_into_temporaries_part_no_chunks(trains: bool) -> None:
    torch.manual_seed(0)
    net, x = Norms().eval(), torch.rand(8, 3, 64, 64)
    with torch.set_grad_enabled(trains):
        free: Any = lt.script(net)
        budget = free.memory(x).peak_bytes // 2
        limited: Any = lt.script(net, budget=budget)
        assert limited.memory(x).peak_bytes <= budget
        leaves = list(net.parameters()) if trains else []
        want, got = (results(f, (x,), leaves) for f in (net, limited))
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_what_is_written_into_an_input_is_written_once() -> None:
    def f(x, y):
        h = torch.sort(x * 2, -1).values
        y.add_(h)
        return torch.cumsum(h, 1) + y

    x, y = torch.rand(600, 700), torch.rand(600, 700)
    free = lt.script(f).memory(x, y).peak_bytes
    limited, mine = lt.script(f, budget=free * 9 // 10), y.clone()
    torch.testing.assert_close(limited(x, mine), f(x, y))
    torch.testing.assert_close(mine, y)


def test_results_of_chunks_are_not_changed_later() -> None:
    """Autograd forbids it of what its own functions give."""

    def f(x):
        h = torch.sort(x * 2, -1).values
        total = torch.cumsum(h, 0)
        h[:, 0] = 3
        return total + h

    x = torch.rand(600, 700, requires_grad=True)
    free = lt.script(f).memory(x).peak_bytes
    for share in (9, 7, 5):
        try:
            got = lt.script(f, budget=free * share // 10)(x)
        except lt.BudgetError:
            break
        torch.testing.assert_close(got, f(x))
        mine, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (got, f(x)))
        torch.testing.assert_close(mine, theirs)


def test_a_view_of_a_result_sees_what_is_written_later() -> None:
    def f(x):
        h = torch.sort(x * 2, -1).values
        part = h[:, :10]
        total = torch.cumsum(h, 0)  # where chunks end
        h.mul_(3)
        return total.sum(), part + 0

    x = torch.rand(600, 700)
    free = lt.script(f).memory(x).peak_bytes
    for share in (9, 7, 5):
        limited = lt.script(f, budget=free * share // 10)
        try:
            got = limited(x)
        except lt.BudgetError:
            break
        for mine, theirs in zip(got, f(x), strict=True):
            torch.testing.assert_close(mine, theirs)


# -- refused ---------------------------------------------------------------------------------------


def test_what_cannot_be_reached_is_refused_before_it_runs(capsys: Any) -> None:
    def f(x):
        print("runs")
        return torch.cumsum(x * 2, 0)

    limited = lt.script(f, budget=100_000)
    x = torch.rand(500, 400)
    with pytest.raises(lt.BudgetError) as refused:
        limited(x)
    assert capsys.readouterr().out == ""
    error = refused.value
    assert error.budget_bytes == 100_000
    assert error.least_bytes >= 800_000
    assert "test_budget.py:" in str(error)
    assert f"{error.least_bytes:,}" in str(error)
    torch.testing.assert_close(lt.script(f, budget=error.least_bytes)(x), torch.cumsum(x * 2, 0))
    with pytest.raises(lt.BudgetError):
        lt.script(f, budget=error.least_bytes - 1)(x)


def test_a_small_input_fits_where_a_large_one_does_not() -> None:
    limited = lt.script(rows, budget="1MB")
    x = torch.rand(40, 30)
    torch.testing.assert_close(limited(x), rows(x))
    with pytest.raises(lt.BudgetError):
        limited(torch.rand(1000, 1000))


# -- training --------------------------------------------------------------------------------------


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 512)
        self.down = nn.Linear(512, 64)

    def forward(self, x):
        h = F.dropout(F.gelu(self.up(x)), 0.4, self.training)
        return self.down(torch.sort(h, -1).values) + x


@pytest.mark.parametrize("fraction", [0.95, 0.8, 0.6])
def test_masks_are_the_same(fraction: float) -> None:
    torch.manual_seed(0)
    net, x = Dropped(), torch.rand(900, 64)
    free: Any = lt.script(net)
    peaks = reachable(free, (x,))
    budget = max(int(peaks[0] * fraction), min(peaks))
    leaves = list(net.parameters())
    expected = results(free, (x,), leaves)
    for p in leaves:
        p.grad = None
    limited: Any = lt.script(net, budget=budget)
    for got, want in zip(results(limited, (x,), leaves), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


class Sorts(TorchDispatchMode):
    """Counts what is sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.sort.default:
            self.rows += args[0].shape[0]
        return func(*args, **(kwargs or {}))


def test_chunks_that_are_kept_are_not_run_again() -> None:
    x = torch.rand(800, 300, requires_grad=True)
    free = lt.script(rows)
    driver, values = free.resolve(free.bind((x,), {}))
    plans = list(path(Driver(driver.function), values))
    expected = torch.autograd.grad(rows(x).square().sum(), x)[0]
    seen: set[int] = set()
    for plan in plans:
        section = next((op for op in plan.driver.function.block.ops if op.name == "section"), None)
        if section is None or "kept" not in section.attrs:
            continue
        kept, chunks = section.attrs["kept"], section.attrs["chunks"]
        seen.add(kept)
        with Sorts() as sorts:
            loss = plan.driver(values).square().sum()
            (got,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(got, expected)
        assert sorts.rows == pytest.approx(800 * (2 - kept / chunks), abs=chunks)
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)
    assert len(seen) > 1


def test_gradients_of_gradients() -> None:
    def f(x, w):
        return torch.cumsum(torch.tanh(x @ w), 1)

    x = torch.rand(300, 40, dtype=torch.float64, requires_grad=True)
    w = torch.rand(40, 300, dtype=torch.float64, requires_grad=True)
    budget = reachable(lt.script(f), (x, w))[-1]
    limited = lt.script(f, budget=budget)

    def twice(g: Any) -> Tensor:
        (first,) = torch.autograd.grad(g(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad((first * first).sum(), w)[0]

    torch.testing.assert_close(twice(limited), twice(f))


def test_a_trained_block_is_the_same() -> None:
    torch.manual_seed(0)
    x = torch.rand(8, 96, 64)
    nets = []
    for limit in (None, 0.7):
        torch.manual_seed(1)
        net = Block(64, 4)
        free: Any = lt.script(net)
        budget = None if limit is None else int(free.memory(x).peak_bytes * limit)
        compiled: Any = lt.script(net, budget=budget)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (compiled(x) ** 2).mean().backward()
            optimizer.step()
        nets.append(net)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# -- what decides a branch is what a plan is kept by ----------------------------------------------


def by_dtype(x, dtype):
    h = torch.sort(x * 2, -1).values
    return h + 1 if dtype == torch.float32 else h - 1


def by_gradients(x, _):
    h = torch.sort(x * 2, -1).values
    return torch.cumsum(h + 1, 1) if h.requires_grad else h - 1


def by_identity(x, y):
    h = torch.sort(x * 2, -1).values + y
    return h + 1 if x is y else h - 1


def by_number(x, n):
    h = torch.sort(x * 2, -1).values
    return h + 1 if isinstance(n, float) else h - 1


def by_none(x, y=None):
    h = torch.sort(x * 2, -1).values
    return h - 1 if y is None else h + y


X = torch.rand(600, 700)


@pytest.mark.parametrize(
    ("program", "seconds"),
    [
        (by_dtype, [torch.float32, torch.float64]),
        (by_gradients, [None]),
        (by_identity, [X, X + 1]),
        (by_number, [1, 1.0]),
        (by_none, [None, X]),
    ],
)
@pytest.mark.parametrize("share", [10, 9, 7])
def test_a_branch_that_another_call_decides_otherwise(
    program: Any, seconds: list[Any], share: int
) -> None:
    xs = (X, X.clone().requires_grad_()) if program is by_gradients else (X,)
    free = max(lt.script(program).memory(x, y).peak_bytes for x in xs for y in seconds)
    kept = 0
    for order in (seconds, seconds[::-1]):
        limited = lt.script(program, budget=free * share // 10)
        for x, second in itertools.product(xs, order):
            with contextlib.suppress(lt.BudgetError):
                torch.testing.assert_close(limited(x, second), program(x, second))
                kept += 1
    assert kept >= len(xs)


def ordered(x: Tensor) -> Tensor:
    s, order = torch.sort(x * 2 + 1, -1)
    return (torch.cumsum(s, -1) * torch.gather(x.sigmoid(), 1, order)).mean(-1)


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
@pytest.mark.parametrize("grad", [False, True])
def test_a_plan_is_predicted_as_it_was_found(entry: Any, grad: bool) -> None:
    """By `memory()`, whichever front end: the arena keeps nothing warm then."""
    x = torch.rand(1000, 600, requires_grad=grad)
    with pytest.raises(lt.BudgetError) as refused:
        entry(ordered, budget=1)(x)
    torch.compiler.reset()
    limited: Any = entry(ordered, budget=refused.value.least_bytes)
    limited(x)
    assert limited.memory(x).peak_bytes == refused.value.least_bytes


def chosen(x: Tensor) -> Tensor:
    width = int(x.max() * 0) + 70
    return torch.sort(F.interpolate(x[None] * 2, size=width)).values.cumsum(0)


def test_a_budget_that_the_data_decide_is_said_not_to_be_kept() -> None:
    x = torch.rand(300, 400)
    limited: Any = lt.script(chosen, budget="64MB")
    with pytest.warns(RuntimeWarning, match="the budget is not enforced: .*data") as told:
        found = limited(x)
    torch.testing.assert_close(found, chosen(x))
    assert "test_budget.py" in str(told[0].message)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limited(x)
        limited(torch.rand(200, 400))
        lt.script(ordered, budget="64MB")(x)


def as_often_as_it_says(x: Tensor) -> Tensor:
    h = torch.sort(x, -1).values
    y = h[torch.repeat_interleave(x[:, 0].long().clamp(min=1))]
    return (y @ y.t()).exp().sum(0)


@pytest.mark.parametrize("grad", [False, True])
def test_what_lies_before_a_size_that_the_data_decide_is_planned(grad: bool) -> None:
    x = torch.rand(500, 64, requires_grad=grad)
    free: Any = lt.script(as_often_as_it_says)
    peak_bytes = free.memory(x).peak_bytes
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(as_often_as_it_says, budget=1)(x)
    assert refused.value.least_bytes < peak_bytes
    limited: Any = lt.script(as_often_as_it_says, budget=refused.value.least_bytes)
    with pytest.warns(RuntimeWarning, match="the budget is not enforced: .*data"):
        found = limited(x)
    torch.testing.assert_close(found, free(x))


@pytest.mark.parametrize("share", [0.85, 0.75, 0.7])
def test_parametrized_weights_count(share: float) -> None:
    """Each call computes them before the program begins."""

    def net() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.utils.parametrizations.weight_norm(nn.Linear(256, 256)) for _ in range(2)]
        return nn.Sequential(layers[0], nn.ReLU(), layers[1])

    x = torch.randn(2048, 256)
    budget = int(share * lt.script(net()).memory(x).peak_bytes)
    compiled = lt.script(net(), budget=budget)
    assert compiled.memory(x).peak_bytes <= budget
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(net(), budget="1MB").memory(x)
    least = refused.value.least_bytes
    assert lt.script(net(), budget=least).memory(x).peak_bytes <= least
