"""Results alias what they alias in eager PyTorch, and mutation is seen where it is seen there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt


def same(x):
    return x


def view(x):
    return x.t()


def view_of_result(x):
    y = x * 2
    return y, y.t(), y[0]


def lone_view(x):
    return (x * 2).t()


def overlapping(x):
    y = x * 2
    return y[:, :3], y[:, 1:]


def whole_and_parts(x):
    y = x.exp()
    return y.t(), y[0], y.view(-1)


def expanded(x):
    y = x * 2
    return y.expand(3, *y.shape), y[1]


def fresh(x):
    return x.clone(), x + 0, x.clone()


def noop_to(x):
    return x.to(torch.float32), x.reshape(x.shape), x.contiguous()


def split(x):
    a, b = x.chunk(2)
    return a, b, x.chunk(2)


def like(x, y):
    z = y * 2
    return x.expand_as(z[:1] + x)


def add_in_place(x):
    x += 1
    return x * 2


def set_item(x):
    y = x + 1
    y[0] = 5
    return y


def through_view(x):
    y = x * 2
    row = y[1]
    z = y.sum()
    row += 10
    return y, z, y.sum(), row


def two_views(x):
    y = x * 2
    a = y[0]
    b = y[0]
    a += 1
    return b, a


def read_before_write(x):
    y = x.exp()
    x.add_(1)
    return y + x


def view_of_input(x):
    v = x[0]
    x.mul_(2)
    w = v + 1
    return v, w


def masked(x):
    x[x > 0.5] = 0
    return x + 1


def reshaped(x):
    y = (x * 2).t()
    z = y.reshape(-1)
    z += 1
    return y, z


def in_loop(x, n: int):
    out = torch.zeros(n, x.shape[0])
    for i in range(n):
        out[i] = x * i
    return out


def lone_halves(x):
    a, b = (x * 2).chunk(2, 1)
    return a, b


PROGRAMS: list[Callable[..., Any]] = [
    same, view, view_of_result, lone_view, overlapping, whole_and_parts, expanded, fresh,
    noop_to, split, add_in_place, set_item, through_view, two_views, read_before_write,
    view_of_input, masked, reshaped,
]  # fmt: skip


def tensors(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else [t for e in x for t in tensors(e)]


def storages(xs: list[torch.Tensor]) -> list[int]:
    """Which tensors share memory: the number of the first that has the same storage."""
    keys = [x.untyped_storage().data_ptr() for x in xs]
    return [keys.index(k) for k in keys]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(40, 50), (4, 6), (64, 40)])
def test_like_eager(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    f = lt.script(fn)
    for _ in range(2):
        x = torch.rand(shape)
        other = x.clone()
        got, want = tensors(f(x)), tensors(fn(other))
        assert torch.equal(x, other)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
        if fn is not lone_view:
            assert storages([x, *got]) == storages([other, *want])
        assert [g is x for g in got] == [w is other for w in want]


def test_gradients_of_overlapping_views() -> None:
    x = torch.rand(4, 6, requires_grad=True)
    a, b = lt.script(overlapping)(x)
    (got,) = torch.autograd.grad(a.sum() + 3 * b.sum(), x)
    assert got[0].tolist() == [2, 8, 8, 6, 6, 6]


def part(x):
    return (x * 2)[:, :2], (x + 1).T[1], (x * 3).diagonal(), (x * 4).expand(3, *x.shape)


def test_parts_lie_as_in_pytorch() -> None:
    for fn in (lone_halves, part):
        x = torch.rand(5, 5) if fn is part else torch.rand(40, 50)
        for got, want in zip(lt.script(fn)(x), fn(x), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want)


def test_a_part_of_an_earlier_region_lies_as_in_pytorch() -> None:
    def halves(x):
        y = x * 2
        z = torch.linalg.inv(x)  # PyTorch's: a region ends here
        return {"left": y[:, :3], "rest": [z + 1, y[:, 3:]]}

    x = torch.rand(5, 5) + torch.eye(5)
    got, want = lt.script(halves)(x), halves(x)
    assert got["left"].stride() == want["left"].stride()
    assert got["rest"][1].untyped_storage().data_ptr() == got["left"].untyped_storage().data_ptr()


def test_parts_of_a_size_that_varies_lie_as_in_pytorch() -> None:
    def fn(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        _, k, v = torch.nn.functional.linear(x, weight).chunk(3, dim=-1)
        return k, v

    k, v = lt.script(fn)(torch.rand(64, 12), torch.rand(36, 12))
    assert (k.stride(), k.storage_offset()) == ((36, 1), 12)
    assert (v.stride(), v.storage_offset()) == ((36, 1), 24)
    assert k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()


def test_a_small_part_of_much_lies_alone() -> None:
    def last(x):
        return (x * 2)[:, -1]

    got = lt.script(last)(torch.rand(40, 500))
    assert got.is_contiguous()
    assert got.untyped_storage().nbytes() == 160


def test_what_tells_how_a_part_lies() -> None:
    def told(x):
        part = (x * 2)[:, 1:3]
        return part.as_strided((3,), (1,)), (x * 2)[:, :2].view(torch.int32), part.stride()

    x = torch.rand(5, 4)
    compiled = lt.script(told)
    for got, want in zip(compiled(x)[:2], told(x)[:2], strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    assert compiled(x)[2] == told(x)[2]


def flat_turned(x):
    return (x * 2).t().view(-1)


def flat_part(x):
    return (x * 2)[:, :2].view(-1)


def flat_expanded(x):
    return (x * 2).expand(3, x.shape[0], x.shape[1]).view(-1)


def flat_halves(x):
    return torch.cat([x, x]).T.unflatten(1, (2, x.shape[0])).transpose(1, 2).view(-1)


@pytest.mark.parametrize("fn", [flat_turned, flat_part, flat_expanded, flat_halves])
def test_a_view_that_would_copy_raises(fn: Callable[[Tensor], Tensor]) -> None:
    for x in (torch.rand(5, 4), torch.rand(50, 40)):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            fn(x)
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            lt.script(fn)(x)


def test_mutating_a_result_shows_in_its_views() -> None:
    y, t, row = lt.script(view_of_result)(torch.rand(40, 50))
    y.zero_()
    assert not t.any()
    assert not row.any()


def test_expand_as_of_what_is_not_stored() -> None:
    x, y = torch.rand(50), torch.rand(40, 50)
    assert torch.equal(lt.script(like)(x, y), like(x, y))


@pytest.mark.parametrize("n", [3, 40])
def test_a_loop_that_fills(n: int) -> None:
    x = torch.rand(50)
    torch.testing.assert_close(lt.script(in_loop)(x, n), in_loop(x, n))


def test_results_do_not_share_memory_between_calls() -> None:
    f = lt.script(fresh)
    x = torch.rand(40)
    a = f(x)[0]
    kept = a.clone()
    f(x + 1)
    assert torch.equal(a, kept)


def rows_written(x: Tensor) -> Any:
    y = x * 2
    a, b = y
    a.mul_(3)
    return y, a, b


def written_before_rows_are_read(x: Tensor) -> Any:
    y = x * 2
    a, b = y
    y[0] = 5.0
    return a, b, a + b


def lone_row(x: Tensor) -> Any:
    (a,) = x * 2
    return a


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("f", [rows_written, written_before_rows_are_read, lone_row])
def test_rows_that_a_tensor_is_unpacked_to(f: Callable[..., Any], rows: int, wants: bool) -> None:
    """They are views of it; gradients forbid to write into them, and the number must fit."""
    x = torch.rand(rows, 4).requires_grad_(wants)
    try:
        want: Any = f(x)
    except (ValueError, RuntimeError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            lt.script(f)(x)
        return
    got: Any = lt.script(f)(x)
    torch.testing.assert_close(got, want)
    if f is not lone_row:
        assert [r.data_ptr() - got[0].data_ptr() for r in got[:2]] == [
            r.data_ptr() - want[0].data_ptr() for r in want[:2]
        ]
