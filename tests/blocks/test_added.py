"""`index_add` and `scatter_add` by kernels: values, memory, and when they are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import profiler

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels

pytestmark = pytest.mark.filterwarnings("error:.*is refused")

ATOMIC = "tl.atomic_add("


@pytest.fixture
def deterministic() -> Iterator[Callable[[bool], None]]:
    """Sets PyTorch's flag."""
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


def index(rows: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, rows, shape, dtype=dtype)


def wide(x: Tensor) -> Tensor:
    return x.detach().double() if x.is_floating_point() else x


def results(fn: Any, given: Sequence[Any], wanted: Sequence[int]) -> list[Tensor]:
    """The value, and its gradients times numbers of its shape."""
    args = [x.detach() if isinstance(x, Tensor) else x for x in given]
    for k in wanted:
        args[k].requires_grad_()
    found = fn(*args)
    if not wanted:
        return [found]
    weights = torch.linspace(-1, 2, found.numel(), dtype=torch.float64, device=found.device)
    (found.double() * weights.reshape(found.shape)).sum().backward()
    return [found.detach(), *(g for k in wanted if (g := args[k].grad) is not None)]


def check(fn: Any, given: Sequence[Any], wanted: Sequence[int] = (), near: float = 1e-5) -> Any:
    """As eager mode in float64. Gives what is compiled."""
    compiled = lt.script(fn)
    exact = [wide(x) if isinstance(x, Tensor) else x for x in given]
    for how in {(), tuple(wanted)}:
        found, want = results(compiled, given, how), results(fn, exact, how)
        assert len(found) == len(want) == len(how) + 1
        like = [results(fn, given, ())[0], *(given[k] for k in how)]
        for g, w, x in zip(found, want, like, strict=True):
            assert (g.dtype, g.shape) == (x.dtype, x.shape)
            torch.testing.assert_close(wide(g), wide(w), rtol=near, atol=near)
    return compiled


def atomics(made: Sequence[BlockKernels]) -> int:
    return sum(source.count(ATOMIC) for source in {x.source for x in made})


# -- values --


def plain(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_add(0, i, v)


def fused(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return torch.index_add(x * 2, 0, i, torch.exp(v) * v.sum(1, keepdim=True))


def subtracted(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_add(-2, i, v.sin(), alpha=-1.5)


def read_at_once(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """The next region."""
    y = x.index_add(0, i, v.exp())
    return torch.relu(y) + y[:1] * y.sum()


def twice(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_add(0, i, v).index_add(0, i, v * v)


def beside(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """Two sums of one region."""
    a, b = x.index_add(0, i, v), torch.zeros_like(x).index_add(0, i, v.cos())
    return a * b


def messages(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """What is read at places is added at others."""
    gate = torch.sigmoid((x[i] * v).sum(1, keepdim=True))
    return torch.zeros_like(x).index_add(0, i.flip(0), gate * x[i])


def in_steps(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.sin()
    for k in range(3):
        y = y.index_add(0, i, v * k) * 0.5
    return y


def behind_steps(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    h = torch.zeros_like(v[0])
    for t in range(v.shape[0]):
        h = torch.tanh(h + v[t])
    return x.index_add(0, i, v * h)


def before_steps(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """A loop that does not read it, of the same region."""
    y = x.index_add(0, i, v)
    h = torch.zeros_like(v[0])
    for t in range(v.shape[0]):
        h = torch.tanh(h + v[t])
    return y + h


def chosen(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x
    if x.shape[0] > 10:
        y = x.index_add(0, i, v)
    return y * 2


FUNCTIONS = [
    plain, fused, subtracted, read_at_once, twice, beside, messages, in_steps, behind_steps,
    before_steps, chosen,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_slices(fn: Any, made: list[BlockKernels], device: torch.device) -> None:
    torch.manual_seed(0)
    x, v = torch.randn(20, 40, device=device), torch.randn(90, 40, device=device)
    check(fn, [x, index(20, 90).to(device), v], (0, 2), near=1e-4)
    assert atomics(made), "nothing was added"


def scaled(x: Tensor, i: Tensor, v: Tensor, by: float, times: int) -> Tensor:
    return x.index_add(0, i, v, alpha=by) * x.index_add(1, i, v.t(), alpha=times)


def test_numbers_of_the_call(made: list[BlockKernels], device: torch.device) -> None:
    x, v = torch.randn(20, 20, device=device), torch.randn(90, 20, device=device)
    check(scaled, [x, index(20, 90).to(device), v, 0.25, 300], (0, 2), near=1e-3)
    assert atomics(made)


def test_a_cotangent_that_is_expanded(device: torch.device) -> None:
    i = index(20, 90).to(device)
    x, v = (torch.randn(n, 40, device=device).requires_grad_() for n in (20, 90))
    found, want = (
        torch.autograd.grad(fn(x, i, v).sum(), (x, v)) for fn in (lt.script(plain), plain)
    )
    torch.testing.assert_close(found, want)


def elements(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.scatter_add(0, i, v * v)


def along_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return torch.scatter_add(x.exp(), -1, i % x.shape[1], v.cos() + 1)


@pytest.mark.parametrize("fn", [elements, along_rows])
def test_elements(fn: Any, made: list[BlockKernels], device: torch.device) -> None:
    torch.manual_seed(0)
    x, v = torch.randn(50, 40, device=device), torch.randn(50, 36, device=device)
    check(fn, [x, index(50, 50, 36).to(device), v], (0, 2))
    assert atomics(made)


def test_a_part_of_the_source(made: list[BlockKernels], device: torch.device) -> None:
    """The index is smaller; where gradients are recorded, that is PyTorch's error."""
    given = [torch.randn(s, device=device) for s in ((20, 40), (36, 50))]
    at = index(20, 33, 38).to(device)
    check(elements, [given[0], at, given[1]])
    assert atomics(made) == 1
    with pytest.raises(RuntimeError):
        results(lt.script(elements), [given[0], at, given[1]], (2,))


@pytest.mark.parametrize("n", [0, 1, 2, 33])
@pytest.mark.parametrize("columns", [0, 1, 40])
@pytest.mark.parametrize("rows", [1, 20])
def test_small_sizes(n: int, columns: int, rows: int, device: torch.device) -> None:
    x, v = torch.randn(rows, columns, device=device), torch.randn(n, columns, device=device)
    check(fused, [x, index(rows, n).to(device), v], (0, 2))
    check(elements, [x, index(rows, n, min(n, columns)).to(device), v[:, :n]], (0, 2))


def test_sizes_that_were_not_these_when_it_was_compiled(device: torch.device) -> None:
    compiled = lt.script(fused)
    for rows, n in ((20, 90), (30, 70), (1, 50), (20, 0), (0, 0)):
        x, v = torch.randn(rows, 40, device=device), torch.randn(n, 40, device=device)
        i = index(max(rows, 1), n).to(device)
        for found, want in zip(
            results(compiled, [x, i, v], (0, 2)), results(fused, [x, i, v], (0, 2)), strict=True
        ):
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


def vectors(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return x.index_add(0, i, v), x.scatter_add(0, i, v)


def test_vectors(device: torch.device) -> None:
    x, v, i = torch.randn(20, device=device), torch.randn(90, device=device), index(20, 90)
    for y in lt.script(vectors)(x, i.to(device), v):
        torch.testing.assert_close(y, x.index_add(0, i.to(device), v), rtol=1e-5, atol=1e-5)


def test_what_lies_in_another_order(device: torch.device) -> None:
    x, v = torch.randn(40, 20, device=device).t(), torch.randn(40, 180, device=device).t()[::2]
    given = [x, index(20, 180).to(device)[::2], v]
    check(fused, given, (0, 2), near=1e-4)
    assert lt.script(plain)(*given).stride() == plain(*given).stride()


def in_the_middle(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_add(1, i, v.exp())


def test_channels_last(made: list[BlockKernels], device: torch.device) -> None:
    x = torch.randn(3, 20, 5, 4, device=device).to(memory_format=torch.channels_last)
    v = torch.randn(3, 50, 5, 4, device=device).to(memory_format=torch.channels_last)
    given = [x, index(20, 50).to(device), v]
    check(in_the_middle, given, (0, 2))
    assert lt.script(in_the_middle)(*given).stride() == in_the_middle(*given).stride()
    assert atomics(made)


def test_one_place_for_all(device: torch.device) -> None:
    i = torch.full((4096,), 7, device=device)
    y = lt.script(plain)(torch.zeros(20, 3, device=device), i, torch.ones(4096, 3, device=device))
    assert y[7].tolist() == [4096.0] * 3
    assert y.sum() == 3 * 4096


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_dtypes_of_places(
    dtype: torch.dtype, made: list[BlockKernels], device: torch.device
) -> None:
    x, v = torch.randn(20, 40, device=device), torch.randn(90, 40, device=device)
    check(plain, [x, index(20, 90, dtype=dtype).to(device), v], (0, 2))
    assert atomics(made)


def test_in_float64(made: list[BlockKernels], device: torch.device) -> None:
    x, v = torch.randn(2, 90, 40, dtype=torch.float64, device=device)
    check(fused, [x[:20], index(20, 90).to(device), v], (0, 2), near=1e-12)
    assert atomics(made)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers(dtype: torch.dtype, made: list[BlockKernels], device: torch.device) -> None:
    """Sums of these are the same in any order, also where they leave their range."""
    x = torch.full((20, 40), torch.iinfo(dtype).max, dtype=dtype, device=device)
    i, v = index(20, 90).to(device), torch.randint(-99, 99, (90, 40), dtype=dtype).to(device)
    assert torch.equal(lt.script(plain)(x, i, v), plain(x, i, v))
    assert atomics(made) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.bool])
def test_left_to_pytorch(
    dtype: torch.dtype, made: list[BlockKernels], device: torch.device
) -> None:
    x, v = torch.ones(20, 40, device=device).to(dtype), torch.ones(90, 40, device=device).to(dtype)
    i = torch.arange(90, device=device) % 20
    assert torch.equal(lt.script(plain)(x, i, v), plain(x, i, v))
    assert not atomics(made)


def written(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out.index_add_(0, i, v.exp(), alpha=2)
    return out.relu() + x


def written_twice(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """The second write is another region's."""
    y = x * 2
    y.index_add_(0, i, v.sin())
    y.index_add_(0, i, v)
    y *= 3
    return y


def written_elements(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_add_(0, i[:, None].expand(v.shape[0], 40), v * v)


@pytest.mark.parametrize("fn", [written, written_twice, written_elements])
def test_into_what_the_region_made(fn: Any, made: list[BlockKernels], device: torch.device) -> None:
    torch.manual_seed(0)
    x, v = torch.randn(20, 40, device=device), torch.randn(90, 40, device=device)
    wanted = (2,) if fn is written_elements else (0, 2)
    check(fn, [x, index(20, 90).to(device), v], wanted, near=1e-4)
    assert atomics(made)


def into_a_view(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x * 1
    y[1:].index_add_(0, i % 19, v)
    return y


def seen_by_a_view(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    first = y[0]
    y.index_add_(0, i, v)
    return y, first


def into_an_argument(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x.index_add_(0, i, v.exp())
    return x * 2


def into_itself(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = v * 1
    return y.index_add_(0, i, y)


def test_into_itself_is_pytorchs_error() -> None:
    v = torch.randn(20, 40)
    with pytest.raises(RuntimeError):
        lt.script(into_itself)(v, torch.arange(20), v)


@pytest.mark.parametrize("fn", [into_a_view, seen_by_a_view, into_an_argument])
def test_other_writes_are_pytorchs(fn: Any, made: list[BlockKernels], device: torch.device) -> None:
    x, v = torch.randn(20, 40, device=device), torch.randn(90, 40, device=device)
    i = index(20, 90).to(device)
    mine, theirs = x.clone(), x.clone()
    found, want = lt.script(fn)(mine, i, v), fn(theirs, i, v)
    torch.testing.assert_close((found, mine), (want, theirs), rtol=1e-5, atol=1e-5)
    assert not atomics(made)


def kept(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What is added to is written over later, and what it was made of lives on."""
    y = x * 1
    z = y.index_add(0, i, v)
    y += 1
    z *= 2
    return y, z


def test_writes(device: torch.device) -> None:
    given = [torch.randn(20, 40, device=device), index(20, 90).to(device)]
    v = torch.randn(90, 40, device=device)
    for found, want in zip(lt.script(kept)(*given, v), kept(*given, v), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


def own_rows(x: Tensor, i: Tensor) -> Tensor:
    """It must not lie over what is added."""
    y = x.exp()
    return y.index_add(0, i, y[: i.shape[0]] * y.sum())


def test_what_is_added_is_of_what_is_added_to(device: torch.device) -> None:
    check(own_rows, [torch.randn(30, 40, device=device), index(30, 20).to(device)], (0,), near=1e-4)


# -- gradients --


@pytest.mark.parametrize("wanted", [(0,), (2,), (0, 2)])
@pytest.mark.parametrize("fn", [fused, beside, messages, read_at_once])
def test_wanted(fn: Any, wanted: tuple[int, ...], device: torch.device) -> None:
    torch.manual_seed(0)
    x, v = torch.randn(20, 40, device=device), torch.randn(90, 40, device=device)
    check(fn, [x, index(20, 90).to(device), v], wanted, near=2e-3)


def test_the_gradient_of_a_gradient(device: torch.device) -> None:
    i = index(5, 9).to(device)

    def total(fn: Any, x: Tensor, v: Tensor) -> list[Tensor]:
        y = fn(x, i, v)
        (g,) = torch.autograd.grad((y**3).sum(), v, create_graph=True)
        return list(torch.autograd.grad(g.sum(), (x, v)))

    x, v = (torch.randn(n, 4, device=device).requires_grad_() for n in (5, 9))
    torch.testing.assert_close(total(lt.script(fused), x, v), total(fused, x, v))


# -- places out of bounds --


@pytest.mark.parametrize("place", [-1, 20, 1 << 40])
@pytest.mark.parametrize("records", [False, True])
def test_out_of_bounds(place: int, records: bool) -> None:
    """PyTorch's own error: kernels add within bounds, to memory that is let go."""
    x, v = torch.randn(20, 40), torch.randn(90, 40).requires_grad_(records)
    i = index(20, 90)
    compiled = lt.script(fused)
    compiled(x, i, v)
    i[50] = place
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(x, i, v)
    with pytest.raises(RuntimeError):
        lt.script(elements)(x, i[:, None], v[:, :1])


@pytest.mark.parametrize("shape", [(90, 39), (91, 40), (90, 1), (90,)])
def test_shapes_that_do_not_fit(shape: tuple[int, ...]) -> None:
    compiled = lt.script(plain)
    compiled(torch.randn(20, 40), index(20, 90), torch.randn(90, 40))
    with pytest.raises((RuntimeError, IndexError)):
        compiled(torch.randn(20, 40), index(20, 90), torch.randn(shape))


# -- PyTorch's flag, and the CPU --


def test_the_flag_is_asked_at_each_call(
    deterministic: Callable[[bool], None], made: list[BlockKernels], device: torch.device
) -> None:
    x, v = torch.randn(20, 40, device=device), torch.randn(90, 40, device=device)
    given = [x, index(20, 90).to(device), v]
    compiled, want = lt.script(fused), fused(*given)
    for is_on in (False, True, False, True):
        deterministic(is_on)
        made.clear()
        with profiler.profile() as profile:
            found = compiled(*given)
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        assert ("aten::index_add" in {e.name for e in profile.function_events}) is is_on
        text = str(compiled.explain(*given))
        assert ("adds to" in text) is not is_on
        assert ("which PyTorch does in a fixed order" in text) is is_on


def test_the_flag_of_the_backward_pass(
    deterministic: Callable[[bool], None], device: torch.device
) -> None:
    x, v = (torch.randn(n, 40, device=device).requires_grad_() for n in (20, 90))
    i = index(20, 90).to(device)
    want = torch.autograd.grad(messages(x, i, v).square().sum(), (x, v))
    for forward, back in ((True, False), (False, True)):
        deterministic(forward)
        y = lt.script(messages)(x, i, v)
        deterministic(back)
        found = torch.autograd.grad(y.square().sum(), (x, v))
        torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)


def test_without_additions_the_flag_compiles_nothing(
    deterministic: Callable[[bool], None], made: list[BlockKernels], device: torch.device
) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin().sum(1)

    compiled = lt.script(f)
    compiled(torch.randn(40, 50, device=device))
    before = len(made)
    deterministic(True)
    compiled(torch.randn(40, 50, device=device))
    assert len(made) == before > 0


# -- memory --


def fake(*given: Tensor) -> list[Tensor]:
    with FakeTensorMode():
        return [
            torch.empty(x.shape, dtype=x.dtype, device="cuda", requires_grad=x.requires_grad)
            for x in given
        ]


@pytest.mark.parametrize("records", [False, True])
def test_what_is_added_is_not_stored(records: bool, deterministic: Callable[[bool], None]) -> None:
    rows, n, c = 1000, 9000, 64
    x, v = torch.empty(rows, c), torch.empty(n, c).requires_grad_(records)
    given = fake(x, torch.empty(n, dtype=torch.int64), v)

    def summed(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return x.index_add(0, i, torch.exp(v) * v)

    compiled = lt.script(summed)
    result, gradient = 4 * rows * c, 4 * n * c * records
    found = compiled.memory(*given)
    assert found.peak_bytes <= 2 * result + gradient + 4096
    deterministic(True)
    assert compiled.memory(*given).peak_bytes >= result + 4 * n * c
    budget = lt.script(summed, budget=f"{2 * result + gradient + 4096} B")
    with pytest.raises(lt.BudgetError):
        budget.memory(*given)
    deterministic(False)
    assert budget.memory(*given).peak_bytes == found.peak_bytes
