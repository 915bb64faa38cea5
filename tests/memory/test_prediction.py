"""What `memory()` says and what a run asks for: the contract of `contract.py`, over the table in
`cases`.

A few of it are fast; of the others one in `EACH` runs every time, with gradients if it has any, and
the rest are long tests.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.memory.calls import Call
from tests.memory.cases import CASES, Case
from tests.memory.contract import assert_within_contract, leaves_ops

FAST = {
    "products_under_autocast",
    "pointwise", "transposed", "pairs", "low_then_up", "cross_entropy", "cumulative", "ordered",
    "smallest_k", "convolved_1d", "branch", "collected", "block", "unet",
}  # fmt: skip

EACH = 3


def variants() -> list[Any]:
    found: list[Any] = []
    for index, case in enumerate(CASES):
        for grad in (False, True) if case.grad else (False,):
            marks = [] if case.name in FAST else [pytest.mark.slow]
            if case.name not in FAST and not (grad == case.grad and index % EACH == 0):
                marks.append(pytest.mark.long)
            name = f"{case.name}-{'grad' if grad else 'plain'}"
            found.append(pytest.param(case, grad, id=name, marks=marks))
    return found


def test_there_are_enough() -> None:
    assert len({c.name for c in CASES}) >= 60


@pytest.mark.parametrize(("case", "grad"), variants())
def test_the_peak_is_as_predicted(case: Case, grad: bool) -> None:
    call = Call(case, grad)
    plan = call.predicted()
    library_ops = leaves_ops(plan)
    assert_within_contract(call.asked(), plan.peak_bytes, library_ops=library_ops, detail=plan)


def test_meta_and_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def f(x, w):
        return torch.relu(x @ w).sum(1)

    compiled = lt.script(f)
    real = torch.rand(300, 200, requires_grad=True), torch.rand(200, 400, requires_grad=True)
    known = compiled.memory(*real)
    meta = [torch.empty(x.shape, device="meta", requires_grad=True) for x in real]
    assert compiled.memory(*meta).peak_bytes == known.peak_bytes
    with FakeTensorMode():
        fake = [torch.empty(x.shape, requires_grad=True) for x in real]
    assert compiled.memory(*fake).peak_bytes == known.peak_bytes


@pytest.mark.parametrize("grad", [False, True])
def test_meta_and_fake_tensors_for_a_module(grad: bool) -> None:
    """What stands for an operand is not counted, as the operand is not."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    compiled: Any = lt.script(torch.nn.Linear(30, 40))
    with torch.set_grad_enabled(grad):
        known = compiled.memory(torch.rand(500, 30)).peak_bytes
        assert compiled.memory(torch.empty(500, 30, device="meta")).peak_bytes == known
        with FakeTensorMode():
            fake = torch.empty(500, 30)
        assert compiled.memory(fake).peak_bytes == known


def test_the_formula_is_the_peak() -> None:
    def f(x, y):
        return torch.cumsum(x[:, None] * y[None], 0).exp()

    plan = lt.script(f).memory(torch.rand(700), torch.rand(900))
    symbols = {s: int(name.endswith("x.shape[0]")) for s, name in plan.sizes.items()}
    sizes = {s: 700 if is_x else 900 for s, is_x in symbols.items()}
    assert eval(plan.formula, {}, sizes) == plan.peak_bytes
    assert {"x.shape[0]", "y.shape[0]"} == set(plan.sizes.values())


def test_a_formula_has_no_arithmetic_on_numbers() -> None:
    """The width 64 of the layers is no size of the input."""
    layers = [torch.nn.Linear(36, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10)]
    plan = lt.script(torch.nn.Sequential(*layers)).memory(torch.rand(5000, 36))
    assert re.fullmatch(r"\d+\*s0 \+ \d+", plan.formula)
    assert eval(plan.formula, {}, {"s0": 5000}) == plan.peak_bytes


def test_the_peak_of_training_has_lines() -> None:
    def f(x):
        y = torch.cumsum(x * 2, 0)
        return (y * y).sum()

    x = torch.rand(600, 500, requires_grad=True)
    with torch.no_grad():
        inference = lt.script(f).memory(x)
    plan = lt.script(f).memory(x)
    assert plan.peak_bytes > inference.peak_bytes
    assert any("backward" in b.name for b in plan.buffers)
    assert {b.loc.line for b in plan.buffers if b.kind != "arena"} - {0}


def test_gradients_that_are_there_are_not_counted_again() -> None:
    def f(x):
        return torch.cumsum(x, 0)

    x = torch.rand(600, 500, requires_grad=True)
    fresh = lt.script(f).memory(x).peak_bytes
    x.grad = torch.zeros_like(x)
    assert lt.script(f).memory(x).peak_bytes == fresh


def test_what_data_decide_is_bounded() -> None:
    def f(x):
        return torch.cumsum(x[x > 0], 0)

    plan = lt.script(f).memory(torch.rand(1000, 100))
    assert any("largest" in n for n in plan.notes)
    assert plan.peak_bytes >= 2 * 400_000


def some_columns(x, n):
    return torch.cumsum(x[:, : int(n.max())], 0)


def some_rows(x, n):
    return torch.cumsum(x.narrow(0, 0, n[0].item()), 0)


@pytest.mark.parametrize("f", [some_columns, some_rows])
def test_a_part_whose_bounds_the_data_decide_counts_as_the_whole(f: Any) -> None:
    plan = lt.script(f).memory(torch.rand(1000, 100), torch.tensor([20, 30]))
    assert any("counted as the largest" in n for n in plan.notes)
    assert 400_000 <= plan.peak_bytes < 500_000
    assert not plan.fails


def test_counts_are_as_many_as_asked_for() -> None:
    def degrees(x, e):
        n = torch.bincount(e, minlength=x.shape[0])
        return torch.cumsum(x / n.clamp(min=1)[:, None], 0)

    plan = lt.script(degrees).memory(torch.rand(1000, 100), torch.randint(0, 1000, (9000,)))
    assert any("the result of `bincount` is counted" in n for n in plan.notes)
    assert plan.peak_bytes >= 2 * 400_000


def test_work_memory_of_one_kernel_does_for_the_next() -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 512), torch.nn.GELU(),
        torch.nn.Linear(512, 10),
    )  # fmt: skip
    x = torch.rand(320, 128, requires_grad=True)
    assert lt.script(net).memory(x).peak_bytes < 9_000_000


def test_a_number_asked_for_inside_does_not_end_it() -> None:
    def f(x):  # PyTorch runs covariances of bfloat16
        return torch.cumsum(torch.cov(x), 0)

    n = 1000
    plan = lt.script(f).memory(torch.empty(n, n, dtype=torch.bfloat16, device="meta"))
    assert any("reads a number from the data" in note for note in plan.notes)
    assert not any("nothing after it" in note for note in plan.notes)
    assert plan.peak_bytes > 2 * 2 * n * n


def test_what_is_gathered_is_scattered_once() -> None:
    def messages(x, w, u, source, target):
        h = torch.relu(x @ w)
        m = torch.tanh(h[source] @ u)
        return torch.zeros_like(h).index_add(0, target, m)

    torch.manual_seed(0)
    edges = [torch.randint(0, 400, (3000,)) for _ in range(2)]
    given = [torch.randn(400, 40), torch.randn(40, 40), torch.randn(40, 40)]
    mine = [x.clone().requires_grad_() for x in given]
    theirs = [x.clone().requires_grad_() for x in given]
    compiled = lt.script(messages)
    assert compiled.memory(*mine, *edges).peak_bytes < 10_000_000
    compiled(*mine, *edges).square().sum().backward()
    messages(*theirs, *edges).square().sum().backward()
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-2)


def coupled(x: Tensor, s: Tensor, order: Tensor) -> Tensor:
    """A layer of a flow: what it gives is put into another order."""
    return torch.cat([x[:, 3:] * s.exp(), x[:, :3]], -1)[:, order].sin()


def test_what_is_reordered_is_not_scattered_to_all_it_was_made_of() -> None:
    x, s = torch.randn(60_000, 6), torch.randn(60_000, 3)
    mine, theirs = ([v.clone().requires_grad_() for v in (x, s)] for _ in range(2))
    compiled, order = lt.script(coupled), torch.randperm(6)
    assert compiled.memory(*mine, order).peak_bytes < 5 * x.nbytes
    compiled(*mine, order).square().sum().backward()
    coupled(*theirs, order).square().sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-3)


def test_the_first_call_lets_its_tensors_go() -> None:
    import gc
    import weakref

    def f(x):
        return torch.cumsum(x * 2, 0) * 3

    compiled = lt.script(f)
    gc.collect()
    gc.disable()
    try:
        x = torch.rand(50, 40)
        ref = weakref.ref(x)
        compiled(x)
        del x
        assert ref() is None
    finally:
        gc.enable()


def test_tuples_that_are_sometimes_none() -> None:
    def now_and_then(x, w):
        state = None
        for t in range(x.shape[0]):
            h, c = (x[t], x[t]) if state is None else state
            h, c = torch.tanh(h @ w + c), c * 0.5 + h
            state = (h, c) if t % 4 != 3 else None
        return x.sum() if state is None else state[0] + state[1]

    torch.manual_seed(0)
    args = torch.rand(39, 4, 6), torch.rand(6, 6) * 0.3
    compiled = lt.script(now_and_then, budget="50MB")
    torch.testing.assert_close(compiled(*args), now_and_then(*args))


_seen_sizes: list[int] = []


@lt.ignore
def _seen(x: Tensor) -> Any:
    _seen_sizes.append(x.numel())
    return x * 2


def _in_a_context(x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        y = _seen(x)
        z = y.to(y.dtype) + 1
    return z.exp()


def test_python_in_a_context_is_not_called_by_a_prediction() -> None:
    compiled, x = lt.script(_in_a_context), torch.rand(1000)
    assert compiled.memory(x).peak_bytes >= 0
    assert not _seen_sizes
    torch.testing.assert_close(compiled(x), _in_a_context(x))


@lt.ignore
def _drawn(x: Tensor) -> None:
    pass


@lt.ignore
def _factor(x: Tensor) -> int:
    return 3


@lt.ignore
def _doubled(x: Tensor) -> Tensor:
    return x * 2


def _with_python(x: Tensor) -> Tensor:
    _drawn(x)
    y = torch.cumsum(x, 0)
    return torch.cumsum(y * _factor(x), 0)


def _given_by_python(x: Tensor) -> Tensor:
    y = torch.cumsum(x, 0)
    return torch.cumsum(_doubled(y), 0)


def test_what_python_takes_is_said_not_to_be_counted() -> None:
    x = torch.empty(1000, 200, device="meta")
    plan = lt.script(_with_python).memory(x)
    line = _with_python.__code__.co_firstlineno
    for name, at in {"_drawn": line + 1, "_factor": line + 3}.items():
        (note,) = (n for n in plan.notes if name in n)
        assert f"test_prediction.py:{at}" in note
        assert note.endswith("allocates is not counted")
    assert plan.peak_bytes >= 2 * 800_000


def test_after_tensors_of_python_nothing_is_counted() -> None:
    plan = lt.script(_given_by_python).memory(torch.empty(1000, 200, device="meta"))
    (note,) = (n for n in plan.notes if "_doubled" in n)
    assert f"test_prediction.py:{_given_by_python.__code__.co_firstlineno + 2}" in note
    assert note.endswith("nothing after it is counted")
    assert 800_000 <= plan.peak_bytes < 1_000_000


def put_twice(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """Two gradients of `v`, of which the second is added to the first in place."""
    return x.clone().index_put_((i,), v).index_put_((i,), v, accumulate=True)


@pytest.mark.parametrize("compile", [lt.script, lt.compile])
def test_gradients_are_added_in_place(compile: Any) -> None:
    x, v = torch.rand(100, 500, requires_grad=True), torch.rand(600, 500, requires_grad=True)
    peak = compile(put_twice).memory(x, torch.randint(0, 100, (600,)), v).peak_bytes
    assert 2 * v.nbytes + 3 * x.nbytes <= peak < 2.3 * v.nbytes + 3 * x.nbytes


def cumulated(x: Tensor) -> Tensor:
    return torch.cumprod(x.exp(), 1)


def test_what_the_data_decide_in_a_gradient_is_said() -> None:
    x = torch.rand(100, 500, requires_grad=True)
    (note,) = (n for n in lt.script(cumulated).memory(x).notes if "zeros" in n)
    assert f"test_prediction.py:{cumulated.__code__.co_firstlineno + 1}" in note
    with torch.no_grad():
        assert not any("zeros" in n for n in lt.script(cumulated).memory(x).notes)


@pytest.mark.parametrize(
    ("kind", "x"),
    [
        ("sparse_coo", torch.rand(50, 40).to_sparse()),
        ("quantized", torch.quantize_per_tensor(torch.rand(50, 40), 0.1, 0, torch.quint8)),
        ("nested", torch.nested.nested_tensor([torch.rand(50, 40)] * 2)),
    ],
)
def test_of_what_is_not_dense_nothing_is_counted(kind: str, x: Tensor) -> None:
    plan = lt.script(cumulated).memory(x)
    assert plan.peak_bytes == 0
    assert any(n.startswith(f"a {kind} tensor") for n in plan.notes)
