"""`if`, `while` and `for`: decided now, unrolled, or walked by the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt


def branch(x):
    y = x * 2
    if y.sum() > 0:
        z = y + 1
    else:
        z = y.abs()
    return z * y


def early(x, flag: bool):
    if flag:
        return x + 1
    y = x * 2
    if y.max() > 1.5:
        return y
    return y - 1


def newton(a):
    x = a.clone()
    while (x * x - a).abs().max() > 1e-4:
        x = 0.5 * (x + a / x)
    return x


def over_rows(x):
    total = torch.zeros(x.shape[1])
    for row in x:
        total = total * 0.9 + row
    return total


def counted(x, n: int):
    for i in range(n):
        x = x * 0.5 + i
    return x


def collatz(n: int):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def nested(x, n: int):
    out: list[torch.Tensor] = []
    for i in range(n):
        y = x + i
        if y.mean() > 3:
            break
        for j in range(2):
            if (i + j) % 2 == 0:
                continue
            y = y * (j + 1)
        out.append(y)
    return torch.stack(out), len(out)


def item(x):
    n = int(x.sum().item())
    return x.repeat(2) * n + x.max().item()


def dynamic_shape(x):
    y = x[x > 0.5]
    return (y * 2).sum(), y.exp()


CASES: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (branch, [(torch.ones(40),), (-torch.ones(40),), (torch.ones(3),)]),
    (early, [(torch.rand(40), True), (torch.zeros(40), False), (torch.ones(40), False)]),
    (newton, [(torch.rand(40) + 1,), (torch.rand(50) * 100 + 1,)]),
    (over_rows, [(torch.rand(5, 40),), (torch.rand(40, 50),), (torch.rand(0, 40),)]),
    (counted, [(torch.rand(40), n) for n in (0, 1, 3, 40, 50)]),
    (collatz, [(6,), (27,), (1,)]),
    (nested, [(torch.rand(40), n) for n in (1, 3, 6, 40)]),
    (item, [(torch.rand(40),), (torch.rand(50),)]),
    (dynamic_shape, [(torch.rand(400),), (torch.rand(500),)]),
]


def check(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    elif isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            check(g, w)
    else:
        assert got == want
        assert type(got) is type(want)


@pytest.mark.parametrize(("fn", "calls"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_like_eager(fn: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    f = lt.script(fn)
    for args in calls:
        check(f(*args), fn(*args))
        check(f(*args), fn(*args))


def test_a_loop_compiles_its_body_once() -> None:
    f = lt.script(counted)
    f(torch.rand(40), 40)
    before = lt.cache_stats()
    check(f(torch.rand(45), 60), f(torch.rand(45), 60) * 0 + f(torch.rand(45), 60))
    assert (lt.cache_stats() - before).compiles == 0
    assert before.compiles > 0


def test_values_are_let_go() -> None:
    """Beside a loop that PyTorch walks, no more than a few of its tensors are alive."""
    import gc
    import weakref

    seen: list[weakref.ref[torch.Tensor]] = []
    real = torch.Tensor.__setitem__

    def spy(self: torch.Tensor, *args: Any) -> None:
        seen.append(weakref.ref(self))
        real(self, *args)

    def program(x, n: int):
        for _ in range(n):
            x = x * 0.5
            x[0] = 1.0
        return x

    f = lt.script(program)
    torch.Tensor.__setitem__ = spy  # type: ignore[method-assign]
    try:
        f(torch.rand(40), 50)
    finally:
        torch.Tensor.__setitem__ = real  # type: ignore[method-assign]
    gc.collect()
    assert sum(r() is not None for r in seen) <= 1


def work_list(g, xs: list[int]):
    n = 0
    for a in xs:
        if a >= g.size(0):
            continue
        n += 1
        xs.append(a + 1)
    return g * n, n


def test_a_count_that_a_branch_hands_on() -> None:
    f = lt.script(work_list)
    for start in ([0], [1, 2], []):
        got, want = list(start), list(start)
        check(f(torch.ones(3), got), work_list(torch.ones(3), want))
        assert got == want
