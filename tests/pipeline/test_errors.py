"""What goes wrong in the user's program goes wrong as in eager PyTorch, with the user's line."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.execute import backend


def mismatch(x, y):
    z = x * 2
    return z + y


def flat(x, n: int):
    return (x + 1).reshape(n, 7)


def rows(x, i):
    return x[i] * 2


def row(x, n: int):
    return x[n] * 2


def raises(x):
    if x.sum() > 0:
        raise ValueError("positive")
    return x + 1


def asserts(x, n: int):
    assert n > 3, "too small"
    return x * n


def bad_dim(x):
    return x.sum(5)


CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (mismatch, (torch.rand(40), torch.rand(50))),
    (mismatch, (torch.rand(3), torch.rand(4))),
    (flat, (torch.rand(40), 6)),
    (flat, (torch.rand(41), 50)),
    (rows, (torch.rand(40, 3), torch.tensor([0, 40]))),
    (rows, (torch.rand(40, 3), torch.tensor([0, -41]))),
    (row, (torch.rand(40, 3), 40)),
    (row, (torch.rand(40, 3), -41)),
    (raises, (torch.ones(40),)),
    (asserts, (torch.rand(40), 2)),
    (bad_dim, (torch.rand(40),)),
]


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_the_error_is_eagers(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with pytest.raises(Exception) as eager:
        fn(*args)
    for _ in range(2):
        with pytest.raises(type(eager.value)) as ours:
            lt.script(fn)(*args)
        assert str(ours.value).splitlines()[:1] == str(eager.value).splitlines()[:1]
        *_, last = traceback.extract_tb(ours.value.__traceback__)
        assert (last.filename, last.name) == (__file__, fn.__name__)


def inner(x, n: int):
    if n > 3:
        raise ValueError("too big")
    return x + n


def middle(x, n: int):
    return inner(x * 2, n)


@lt.script
def outer(x, n: int):
    y = middle(x, n)
    return y + 1


def test_tracebacks_go_through_the_users_own_lines() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="too big") as caught:
            outer(torch.rand(40), 5)
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [f.name for f in frames[-3:]] == ["outer", "middle", "inner"]
        assert [f.line for f in frames[-3:]] == [
            "y = middle(x, n)",
            "return inner(x * 2, n)",
            'raise ValueError("too big")',
        ]
        assert not any("driver.py" in f.filename for f in frames)


def test_an_error_keeps_no_tensor() -> None:
    """Not even until the next garbage collection."""
    f = lt.script(raises)

    def given() -> weakref.ref[torch.Tensor]:
        x = torch.rand(40)
        with pytest.raises(ValueError):
            f(x)
        return weakref.ref(x)

    given()
    gc.collect()
    gc.disable()
    try:
        assert given()() is None
    finally:
        gc.enable()


def test_good_after_bad() -> None:
    f = lt.script(rows)
    x = torch.rand(40, 3)
    with pytest.raises(IndexError):
        f(x, torch.tensor([0, 40]))
    assert torch.equal(f(x, torch.tensor([0, 39])), rows(x, torch.tensor([0, 39])))
    assert torch.equal(f(x, torch.tensor([0, -1])), rows(x, torch.tensor([0, -1])))


def test_what_is_not_compiled() -> None:
    with pytest.raises(lt.CompileError):
        lt.script(len)
    with pytest.raises(lt.CompileError, match="argument `x`"):
        lt.script(bad_dim)(torch)  # a module
    with pytest.raises(lt.CompileError, match="has no attribute 'sum'"):
        lt.script(bad_dim)({})


def test_an_internal_fault_is_survived_with_one_warning() -> None:
    def broken(*_: object, **__: object) -> Any:
        raise AssertionError("a bug of ours")

    f = lt.script(mismatch)
    x = torch.rand(40)
    backend.use(broken)
    with faults.strict(False):
        with pytest.warns(RuntimeWarning, match="a bug of ours"):
            assert torch.equal(f(x, x), mismatch(x, x))
        assert torch.equal(f(x, x), mismatch(x, x))
    with pytest.raises(AssertionError):
        lt.script(mismatch)(x, x)


def test_a_backend_error_is_the_users_to_see() -> None:
    def failing(*_: object, **__: object) -> Any:
        raise lt.BackendError("cc failed", "words", "/tmp/kept.c")

    backend.use(failing)
    with faults.strict(False), pytest.raises(lt.BackendError, match="kept"):
        lt.script(mismatch)(torch.rand(40), torch.rand(40))


@pytest.mark.filterwarnings("error")
def test_complex_constants_are_pytorchs() -> None:
    def turned(a, b):
        return torch.exp(1j * (a * b)), (a + 1j).abs() * 2

    a, b = torch.rand(4), torch.rand(4)
    for got, want in zip(lt.script(turned)(a, b), turned(a, b), strict=True):
        torch.testing.assert_close(got, want)
