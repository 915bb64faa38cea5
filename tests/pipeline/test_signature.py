"""What compiles anew, and what does not."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def compiles(call: Callable[[], Any]) -> int:
    before = lt.cache_stats()
    call()
    return (lt.cache_stats() - before).compiles


def pairs(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1).min(1).values


def test_a_new_size_compiles_nothing() -> None:
    f = lt.script(pairs)
    x, y = torch.rand(50, 3), torch.rand(70, 3)
    assert compiles(lambda: close(f(x, y), pairs(x, y))) == 1
    for n, m in ((50, 71), (99, 70), (33, 34), (1000, 40)):
        x, y = torch.rand(n, 3), torch.rand(m, 3)
        assert compiles(lambda x=x, y=y: close(f(x, y), pairs(x, y))) == 0
    x, y = torch.rand(50, 4), torch.rand(70, 4)  # a small size is a constant
    assert compiles(lambda: close(f(x, y), pairs(x, y))) == 1
    x = torch.rand(60, 4)  # equal sizes share a symbol
    assert compiles(lambda: close(f(x, x), pairs(x, x))) == 1
    assert compiles(lambda: close(f(x[:40], x[20:]), pairs(x[:40], x[20:]))) == 0


def heads(x, w):
    b, n, _ = x.shape
    return (x @ w).view(b, n, 3, 4, -1).square().sum(2)


def test_what_cancels_in_a_shape_stays_a_symbol() -> None:
    f, w = lt.script(heads), torch.rand(16, 96)
    counts: list[int] = []
    for n in (100, 90, 70, 128):
        x = torch.rand(3, n, 16)
        counts.append(compiles(lambda x=x: close(f(x, w), heads(x, w))))
    assert counts == [1, 0, 0, 0]


def test_small_sizes_down_to_none() -> None:
    f = lt.script(pairs)
    for n, m in ((1, 1), (1, 40), (40, 1), (2, 3), (0, 40)):
        x, y = torch.rand(n, 3), torch.rand(m, 3)
        close(f(x, y), pairs(x, y))


def test_many_small_sizes_become_any_size() -> None:
    f = lt.script(pairs)
    y = torch.rand(70, 3)
    counts: list[int] = []
    for n in (7, 8, 9, 10, 30, 5, 100, 7, 70):
        x = torch.rand(n, 3)
        counts.append(compiles(lambda x=x: close(f(x, y), pairs(x, y))))
    assert counts == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    for n in range(5):
        x = torch.rand(n, 3)
        close(f(x, y), pairs(x, y))


def test_a_small_size_that_varies_beside_one_that_does_not() -> None:
    def crossed(x, y):
        return x + y, x.sum(0), torch.stack([x[0], y[0]])

    f = lt.script(crossed)
    for n in (5, 6, 7, 8, 9, 12, 20):
        x = torch.rand(n, 8)
        y = torch.rand(n, 8)
        close(f(x, y), crossed(x, y))


def suppressed(scores, limit: float):
    kept = torch.jit.annotate(list[torch.Tensor], [])
    order = scores.argsort()
    while order.numel() > 0:
        kept.append(order[0])
        rest = order[1:]
        order = rest[(scores[rest] - scores[order[0]]).abs() * 2 > limit]
    return torch.stack(kept)


def test_a_list_as_long_as_the_data_say_compiles_nothing() -> None:
    f = lt.script(suppressed)
    torch.manual_seed(0)
    counts: list[int] = []
    for n in (30, 31, 29, 28, 27, 26, 25):
        scores = torch.rand(n)
        counts.append(compiles(lambda s=scores: close(f(s, 0.1), suppressed(s, 0.1))))
    assert sum(counts) < 20  # sizes up to one, and which are equal


def rescaled(x, rates: list[float]):
    for rate in rates:
        x = x * rate
    return x


def test_steps_of_a_loop_over_numbers_compile_nothing() -> None:
    f = lt.script(rescaled)
    x = torch.rand(50)
    for n, most in ((80, 3), (40, 2), (81, 0)):
        rates = [1 + k / n for k in range(n)]
        assert compiles(lambda r=rates: close(f(x, r), rescaled(x, r))) <= most


def scaled(x, s: float, n: int):
    return x * s + n


def test_numbers_compile_nothing() -> None:
    f = lt.script(scaled)
    x = torch.rand(50)
    assert compiles(lambda: close(f(x, 0.5, 3), scaled(x, 0.5, 3))) == 1
    for s, n in ((0.25, 4), (-1.0, -7), (float("inf"), 0), (0.0, 100), (1e30, 1)):
        assert compiles(lambda s=s, n=n: close(f(x, s, n), scaled(x, s, n))) == 0
    assert compiles(lambda: close(f(x, 2, 3), scaled(x, 2, 3))) == 1  # an int is another type
    assert torch.isnan(f(x, float("nan"), 1)).all()


def strided(x):
    return x * 2 + 1


def test_strides_are_symbols() -> None:
    f = lt.script(strided)
    base = torch.rand(80, 90)
    assert compiles(lambda: close(f(base[:, :50]), strided(base[:, :50]))) == 1
    assert compiles(lambda: close(f(base[:, :40]), strided(base[:, :40]))) == 0
    assert compiles(lambda: close(f(base[:, ::2]), strided(base[:, ::2]))) == 1
    assert compiles(lambda: close(f(base.t()), strided(base.t()))) == 1
    row = torch.rand(1, 90).expand(80, 90)
    assert compiles(lambda: close(f(row), strided(row))) == 1


def test_dtypes_and_default_dtype() -> None:
    f = lt.script(strided)
    x = torch.arange(40)
    assert f(x).dtype is torch.int64
    assert f(x.to(torch.float64)).dtype is torch.float64

    def halves(x):
        return x / 2

    g = lt.script(halves)
    assert g(x).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert g(x).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert g(x).dtype is torch.float32


def first(x, n: int):
    return (x[:n] * 2).sum(0)


def test_an_int_that_is_a_size_is_escalated_once() -> None:
    f = lt.script(first)
    x = torch.rand(100, 3)
    close(f(x, 50), first(x, 50))
    close(f(x, 60), first(x, 60))
    close(f(x, 5), first(x, 5))
    close(f(x, 500), first(x, 500))
    close(f(x, -3), first(x, -3))
    assert compiles(lambda: close(f(x, 50), first(x, 50))) == 0


def zeros(n: int, m: int):
    return torch.zeros(n, m) + 1


def test_sizes_of_factories() -> None:
    f = lt.script(zeros)
    for n, m in ((40, 50), (3, 4), (40, 40), (0, 1), (100, 7)):
        assert torch.equal(f(n, m), zeros(n, m))


def eps(x, e: float):
    return torch.logit(x, e)


def test_a_float_that_must_be_constant() -> None:
    f = lt.script(eps)
    x = torch.rand(50)
    for e in (1e-3, 1e-2):
        close(f(x, e), eps(x, e))


def test_many_signatures_end_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    import lowtide.execute.region as region

    monkeypatch.setattr(region, "MAX_CLASSES", 3)
    f = lt.script(strided)
    for n in range(8):
        close(f(torch.ones(n)), strided(torch.ones(n)))


def test_the_cache_of_exact_sizes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    import lowtide.execute.region as region

    monkeypatch.setattr(region, "MAX_EXACT", 3)
    f = lt.script(strided)
    f(torch.ones(40))
    assert (
        compiles(lambda: [close(f(torch.ones(n)), torch.ones(n) * 3) for n in range(40, 50)]) == 0
    )


def branchy(x):
    if x.shape[0] > 100:
        y = x * 2
    else:
        y = x * 3
    n = max(x.shape[0], x.shape[1])
    return y + n


def test_a_question_about_sizes_splits_the_signature() -> None:
    f = lt.script(branchy)
    for n, m in ((50, 60), (60, 50), (200, 50), (200, 300), (101, 101)):
        x = torch.rand(n, m)
        close(f(x), branchy(x))
    before = lt.cache_stats()
    for n, m in ((51, 61), (61, 52), (201, 51), (201, 301)):
        x = torch.rand(n, m)
        close(f(x), branchy(x))
    assert (lt.cache_stats() - before).compiles == 0


def arithmetic(x, n: int, s: float):
    k = n // 3 + n % 4 + abs(n) - (n << 1) + n**2
    r = (s + n) ** 0.5 / 2
    return x * k + r, k, r, n / 2, -n


def test_arithmetic_on_numbers_is_pythons() -> None:
    f = lt.script(arithmetic)
    x = torch.rand(40)
    for n, s in ((7, 0.5), (0, 1.5), (-5, 9.0), (2**20, 3.0)):
        got, want = f(x, n, s), arithmetic(x, n, s)
        close(got[0], want[0])
        assert got[1:] == want[1:]
        assert [type(v) for v in got] == [type(v) for v in want]


def divides(x, n: int, m: int):
    return x * (n // m)


def test_errors_of_arithmetic_are_pythons() -> None:
    f = lt.script(divides)
    x = torch.rand(40)
    close(f(x, 7, 2), divides(x, 7, 2))
    with pytest.raises(ZeroDivisionError) as caught:
        f(x, 7, 0)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "return x * (n // m)"


def lists(xs: list[torch.Tensor], dims: tuple[int, int]):
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total.sum(dims[0]), len(xs), xs


def test_lists_and_tuples() -> None:
    f = lt.script(lists)
    for k in (1, 2, 4):
        xs = [torch.rand(40, 50) for _ in range(k)]
        got, want = f(xs, (1, 0)), lists(xs, (1, 0))
        close(got[0], want[0])
        assert got[1] == k
        assert got[2] is xs


def keywords(x, *, scale: float = 2.0, bias=None):
    y = x * scale
    if bias is not None:
        y = y + bias
    return y


def test_keywords_defaults_and_none() -> None:
    f = lt.script(keywords)
    x = torch.rand(40)
    close(f(x), keywords(x))
    close(f(x, scale=3.0), keywords(x, scale=3.0))
    close(f(x, bias=x), keywords(x, bias=x))
    close(f(x=x, bias=x), keywords(x, bias=x))
    with pytest.raises(TypeError):
        f(x, 3.0)
    with pytest.raises(TypeError):
        f()


def by_float(b: dict[float, int], c: dict[str, dict[str, torch.Tensor]], x):
    n = 0
    for v in b.values():
        n += v
    for inner in c.values():
        for y in inner.values():
            x = x + y
    return x * n


def test_dicts_with_keys_that_are_floats() -> None:
    f = lt.script(by_float)
    x = torch.rand(3)
    for b in ({0.1: 5, 1.5: 7}, {0.1: 6}, {}):
        c = {"m": {"w": torch.ones(3)}}
        close(f(b, c, x), by_float(b, c, x))
