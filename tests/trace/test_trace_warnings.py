"""What is frozen is told, with the line; what `check_trace` finds."""

from __future__ import annotations

import itertools
import linecache
import math
import random
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import same
from torch import nn

import lowtide as lt

R = torch.rand


def branch(x):
    if x.sum() > -1:
        return x + 1
    return x - 1


def item(x):
    return x * x.max().item()


def to_int(x):
    return x[: int(x.sum() * 0) + 1]


def to_float(x):
    return x * float(x[0])


def to_list(x):
    return x * x.tolist()[0]


def array(x):
    return x + torch.from_numpy(x.numpy()).sum()


def iterate(x):
    return sum(row * 2 for row in x)


def unpacked(x):
    a, b, c = x
    return a + b + c


def length(x):
    return x * len(x)


def index(x):
    return [1, 2, 3][x.int()[0] * 0] * x


def compare_size(x):
    if x.shape[0] > 2:
        return x * 2
    return x


def int_of_size(x):
    return x * int(x.shape[0] / 2)


def text_of_size(x):
    return x * len(f"{x.shape[0]}")


def sqrt_of_size(x):
    return x / math.sqrt(x.shape[0])


def equal(x):
    return x if torch.equal(x, x) else -x


def seeded(x):
    torch.manual_seed(3)
    return x * 2


def told(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lt.trace(fn, *args, **kwargs)
    return "\n".join(str(w.message) for w in caught)


FROZEN: list[tuple[Callable[..., Any], str, str]] = [
    (branch, "`bool` of a tensor is frozen as True", "if x.sum() > -1:"),
    (item, "`.item()` of a tensor is frozen as ", "return x * x.max().item()"),
    (to_int, "`int` of a tensor is frozen as 0", "return x[: int(x.sum() * 0) + 1]"),
    (to_float, "`float` of a tensor is frozen as ", "return x * float(x[0])"),
    (to_list, "`.tolist()` of a tensor is frozen", "return x * x.tolist()[0]"),
    (array, "`.numpy()` of a tensor is frozen", "return x + torch.from_numpy(x.numpy()).sum()"),
    (iterate, "iterating over a tensor is frozen as 3 steps", "return sum(row * 2 for row in x)"),
    (unpacked, "iterating over a tensor is frozen as 3 steps", "a, b, c = x"),
    (length, "`len` of a tensor is frozen as 3", "return x * len(x)"),
    (index, "a tensor used as an index of Python's is frozen as 0", "return [1, 2, 3]"),
    (compare_size, "the comparison of a size, 3 > 2, is frozen as True", "if x.shape[0] > 2:"),
    (int_of_size, "`int` of a size (or a number from sizes) is frozen as 1", "return x * int("),
    (text_of_size, "the text of a size (or a number from sizes) is frozen as 3", "return x * len"),
    (sqrt_of_size, "`float` of a size, as in math.sqrt(n), is frozen as 3.0", "return x / math"),
    (equal, "`equal` of two tensors is frozen as True", "return x if torch.equal(x, x)"),
    (seeded, "`torch.manual_seed` inside a traced function is not", "torch.manual_seed(3)"),
]


@pytest.mark.parametrize(("fn", "what", "line"), FROZEN, ids=lambda v: getattr(v, "__name__", ""))
def test_frozen(fn: Callable[..., Any], what: str, line: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = lt.trace(fn, R(3))
    told = caught[0]
    assert told.category is lt.TracerWarning
    text = str(told.message)
    assert what in text
    assert linecache.getline(__file__, told.lineno).strip().startswith(line)
    assert re.search(rf"^{re.escape(__file__)}:{told.lineno}: ", text)
    assert linecache.getline(__file__, told.lineno).strip() in text
    assert "x.shape[0]" in text or "lt.script(" in text
    if fn is not array:
        x = R(3)
        if fn in (item, to_float, to_list):
            assert traced(x).shape == x.shape
        else:
            same(traced(x), fn(x))


def test_iteration_keeps_its_number_of_steps() -> None:
    with pytest.warns(lt.TracerWarning):
        traced = lt.trace(unpacked, R(3))
    with pytest.raises(ValueError, match="values to unpack"):
        traced(R(4))


def test_nothing_is_said_of_constants() -> None:
    limit = torch.tensor(2.0)

    def fn(x):
        inner = torch.tensor(3)
        assert x.shape[0] == 3
        return x * limit.item() + int(inner) + float(limit)

    lt.trace(fn, R(3))


def test_parameters_that_are_read_are_told_of() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x * self.scale.item()

    with pytest.warns(lt.TracerWarning, match=r"\.item\(\)"):
        lt.trace(Scaled(), R(3))


def test_torch_jits_filters_apply() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        lt.trace(branch, R(3))


def test_check_inputs_of_other_sizes() -> None:
    def fn(x):
        return x.sum() * (1.0 / x.shape[0])

    text = told(fn, R(4), check_inputs=[(R(5),)])
    assert re.search(r"const \{value=0.25\}.* becomes .*value=0.2\}", text)
    assert "the recorded program of fn() differs from the function: the result is off by" in text


def test_check_finds_a_size_that_became_a_constant() -> None:
    def fn(x):
        return x * (1.0 / x.shape[0])

    with pytest.warns(lt.TracerWarning, match=r"keeps a size .*test_trace_warnings.py:\d+: "):
        lt.trace(fn, R(4))


def test_loop_over_a_size() -> None:
    def fn(x):
        for _ in range(x.shape[0]):
            x = x + 1
        return x

    with pytest.warns(lt.TracerWarning, match="keeps a size of its example inputs"):
        lt.trace(fn, R(4))


def test_loop_over_another_size() -> None:
    def columns(x):
        total = x[:, 0] * 0
        for i in range(x.shape[1]):
            total = total + x[:, i]
        return total

    def inner(x, y):
        total = x[:, :1] @ y[:1]
        for i in range(1, y.shape[0]):
            total = total + x[:, i : i + 1] @ y[i : i + 1]
        return total

    with pytest.warns(lt.TracerWarning, match="keeps a size of its example inputs"):
        lt.trace(columns, (torch.rand(3, 5),))
    with pytest.warns(lt.TracerWarning, match="keeps a size of its example inputs"):
        lt.trace(inner, (torch.rand(3, 5), torch.rand(5, 4)))


@pytest.mark.filterwarnings("error")
def test_sizes_that_the_function_asks_for() -> None:
    linear = torch.nn.Linear(5, 5)

    def fn(x, mask):
        y, z = linear(x).unbind(-2)
        return (y + z) * mask[: x.shape[0], None]

    lt.trace(fn, (torch.rand(5, 2, 5), torch.rand(7)))


def test_python_randomness() -> None:
    def fn(x):
        return x * random.random()

    text = told(fn, R(4))
    assert "records a different program when it runs again" in text
    assert "the function itself returns different results each time" in text


def test_difference_is_measured() -> None:
    steps = itertools.count()

    def fn(x):
        return {"a": x, "b": x + next(steps) * 0.5}

    text = told(fn, R(4))
    assert "the result['b'] is off by up to 0.5 (check_tolerance=1e-05)" in text


def test_no_check() -> None:
    steps = itertools.count()

    def fn(x):
        return x + next(steps)

    lt.trace(fn, R(4), check_trace=False)
    assert next(steps) == 1


def test_the_check_leaves_no_mark() -> None:
    def fn(x):
        x.add_(1)
        return torch.rand(2) + x

    torch.manual_seed(0)
    torch.rand(2)
    expected = torch.get_rng_state()
    torch.manual_seed(0)
    x = torch.zeros(2)
    with pytest.warns(lt.TracerWarning, match="random"):
        lt.trace(fn, x)
    assert torch.equal(torch.get_rng_state(), expected)
    assert x.tolist() == [1, 1]


def test_dropout_in_training() -> None:
    with pytest.warns(lt.TracerWarning, match=r"did you forget \.eval\(\)"):
        lt.trace(nn.Dropout(), R(4))


@pytest.mark.parametrize("outer", [torch.no_grad, torch.enable_grad])
def test_enable_grad_inside(outer: Callable[[], Any]) -> None:
    def fn(x):
        with torch.enable_grad():
            return x * 2

    def within(x):
        with torch.no_grad():
            y = x * 3
            with torch.enable_grad():
                return y + x * 2

    with outer():
        assert "torch.enable_grad inside a traced function is not recorded" in told(fn, R(4))
        assert ("enable_grad" in told(within, R(4))) == (not torch.is_grad_enabled())


def test_a_hook_inside() -> None:
    def fn(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 10)
        return y.sin()

    x = R(4).requires_grad_()
    assert "a hook of a tensor inside a traced function is not recorded" in told(fn, x)


def test_threads_do_not_see_each_other() -> None:
    seen: list[bool] = []
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(k: int) -> None:
        def fn(x):
            start.wait()
            for _ in range(20):
                x = x * k + 1
            seen.append(lt.is_tracing())
            return x

        try:
            traced = lt.trace(fn, R(3), check_trace=False)
            x = R(5)
            same(traced(x), _twenty(x, k))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert seen == [True] * 4
    assert not lt.is_tracing()


def _twenty(x: torch.Tensor, k: int) -> torch.Tensor:
    for _ in range(20):
        x = x * k + 1
    return x


class Running(nn.Module):
    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.writes = writes

    def forward(self, x):
        mean = self.mean * 0.9 + x.mean(0)
        if self.writes:
            self.mean.copy_(mean)
        else:
            self.mean = mean
        return x - mean


def test_an_assigned_buffer_is_told() -> None:
    assigned = nn.Sequential(Running(writes=False))
    with pytest.warns(
        lt.TracerWarning, match=r"warnings.py:\d+: .*`0\.mean` is not recorded.* mean\.copy_"
    ):
        lt.trace(assigned, R(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", lt.TracerWarning)
        lt.trace(nn.Sequential(Running(writes=True)), R(4, 3), check_trace=False)
