"""Gradients at places that the data name, added up by the kernels: values, memory, and when not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import profiler

import lowtide as lt
from lowtide.api.explain import BackwardLine
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.execute.gradient import Gradient, Pass
from lowtide.tile import axes, program_sharing, strips
from tests.blocks.programs import looked_up, nearest, tied

pytestmark = pytest.mark.filterwarnings("error:.*is refused")

ATOMIC, STORED = "tl.atomic_add(", "aten::index_add_"


@pytest.fixture
def deterministic() -> Iterator[Callable[[bool], None]]:
    """Sets PyTorch's flag."""
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


def index(rows: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(-rows, rows, shape, dtype=dtype)


def gradients(fn: Any, given: Sequence[Tensor], wanted: Sequence[int]) -> list[Tensor]:
    """Of the result times numbers of its shape."""
    args = [x.detach().requires_grad_(k in wanted) for k, x in enumerate(given)]
    found = fn(*args)
    weights = torch.linspace(-1, 2, found.numel(), dtype=torch.float64, device=found.device)
    (found.double() * weights.reshape(found.shape)).sum().backward()
    return [g for k in wanted if (g := args[k].grad) is not None]


def check(
    fn: Any, given: Sequence[Tensor], wanted: Sequence[int] = (0,), near: float = 1e-4
) -> Any:
    """The gradients are those of eager mode in float64. Gives what is compiled."""
    compiled = lt.script(fn)
    doubles = [x.double() if x.is_floating_point() else x for x in given]
    want = gradients(fn, doubles, wanted)
    found = gradients(compiled, given, wanted)
    assert len(found) == len(want) == len(wanted)
    for k, g, w in zip(wanted, found, want, strict=True):
        assert (g.dtype, g.shape) == (given[k].dtype, given[k].shape)
        torch.testing.assert_close(g.double(), w, rtol=near, atol=near)
    return compiled


def atomics(made: Sequence[BlockKernels]) -> int:
    return sum(source.count(ATOMIC) for source in {x.source for x in made})


# -- values --


def pairs(table: Tensor, at: Tensor) -> Tensor:
    return (table[at[:, :1], at[:, 1:] % 40] ** 2).sum(1)


def gathered(table: Tensor, at: Tensor) -> Tensor:
    return torch.exp(table.gather(0, at[:, :1].abs().expand(-1, 40) % 100)).sum(1)


def projected(table: Tensor, at: Tensor) -> Tensor:
    return (table[at] * 2).sum(1) @ torch.ones(40, 36, dtype=table.dtype, device=table.device)


def turned(table: Tensor, at: Tensor) -> Tensor:
    return table.t()[3:, at[:, 0]].exp().sum(0)


def ordered(table: Tensor, at: Tensor) -> Tensor:
    """Places that turn out to be plain."""
    return table[torch.arange(70, device=table.device)] * 3 + at.sum()


@pytest.mark.parametrize("fn", [looked_up, pairs, gathered, projected, turned, ordered])
def test_values(fn: Callable[..., Tensor], made: list[BlockKernels], device: torch.device) -> None:
    torch.manual_seed(0)
    check(fn, [torch.randn(100, 40, device=device), index(100, 50, 7).to(device)])
    assert atomics(made), "nothing was added"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_dtypes_of_places(
    dtype: torch.dtype, made: list[BlockKernels], device: torch.device
) -> None:
    at = index(100, 50, 7, dtype=dtype).to(device)
    check(looked_up, [torch.randn(100, 40, device=device), at])
    assert atomics(made) == 1


@pytest.mark.parametrize("n", [0, 1, 2, 33])
@pytest.mark.parametrize("columns", [0, 1, 40])
def test_small_sizes(n: int, columns: int, device: torch.device) -> None:
    check(looked_up, [torch.randn(100, columns, device=device), index(100, n, 7).to(device)])


def test_no_place_at_all(device: torch.device) -> None:
    """Sizes that were not these when it was compiled."""
    compiled = lt.script(looked_up)
    for rows, n in ((100, 50), (100, 33), (90, 0), (0, 0)):
        table = torch.randn(rows, 40, device=device)
        at = index(max(rows, 1), n, 7).to(device)
        found, want = (gradients(fn, [table, at], [0]) for fn in (compiled, looked_up))
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)],
)
def test_one_place_for_all(dtype: torch.dtype, device: torch.device) -> None:
    """In half precision 1 is lost beside 4096; it is added up in float32."""
    table = torch.zeros(100, 3, dtype=dtype, device=device).requires_grad_()
    at = torch.full((1024, 4), 77, device=device)
    lt.script(looked_up)(table, at).sum().backward()
    assert table.grad is not None
    assert table.grad[77].tolist() == [4096.0] * 3
    assert not table.grad[:77].any()


def test_in_float64(made: list[BlockKernels], device: torch.device) -> None:
    table = torch.randn(100, 40, dtype=torch.float64, device=device)
    check(looked_up, [table, index(100, 50, 7).to(device)], near=1e-13)
    assert atomics(made) == 1


def test_a_table_that_lies_in_another_order(device: torch.device) -> None:
    table = torch.randn(40, 100, device=device).t()
    check(looked_up, [table, index(100, 50, 7).to(device)])
    check(tied, [table, index(100, 50, 7).to(device), index(100, 50, 2).to(device)], near=2e-3)


def test_scatters_and_a_product(made: list[BlockKernels], device: torch.device) -> None:
    table = torch.randn(100, 40, device=device)
    check(tied, [table, index(100, 50, 7).to(device), index(100, 50, 2).to(device)], near=2e-3)
    assert atomics(made) == 2


def two_tables(a: Tensor, b: Tensor, at: Tensor) -> Tensor:
    """Both gradients begin alike; one has more added to it."""
    return a[at].sum(1) * 2 + b[at[:, 0]] + b[at[:, 1]].exp()


def one_of_two(a: Tensor, b: Tensor, at: Tensor) -> Tensor:
    """Dense, both gradients are the same sum."""
    return (a[at].sum(1) @ torch.relu(a + b).t()).sum(1)


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("fn", [two_tables, one_of_two])
def test_wanted(fn: Callable[..., Tensor], wanted: tuple[int, ...], device: torch.device) -> None:
    torch.manual_seed(0)
    tables = [torch.randn(100, 40, device=device) for _ in range(2)]
    check(fn, [*tables, index(100, 50, 7).to(device)], wanted, near=2e-3)


def recurrent(table: Tensor, w: Tensor, at: Tensor) -> Tensor:
    h = table[0]
    for t in range(at.shape[0]):
        h = torch.tanh(h @ w * 0.1 + table[at[t, 0]])
    return h @ table.t()


def from_nothing(table: Tensor, w: Tensor, at: Tensor) -> Tensor:
    """The gradient of the table begins before the loop, as 0."""
    h = torch.zeros_like(w[0])
    for t in range(at.shape[0]):
        h = torch.tanh(h @ w * 0.1 + table[at[t, 0]])
    return h


def row_by_row(table: Tensor, w: Tensor, at: Tensor) -> Tensor:
    """What is dense of the gradient of the table is a value of the loop, as it is."""
    h = torch.zeros_like(w[0])
    for t in range(table.shape[0]):
        h = torch.tanh(h @ w * 0.1 + table[t])
    return h + table[at[:, 0]].exp().sum(0)


@pytest.mark.parametrize("fn", [recurrent, from_nothing, row_by_row])
def test_a_loop(fn: Callable[..., Tensor], made: list[BlockKernels], device: torch.device) -> None:
    given = torch.randn(100, 36, device=device), torch.randn(36, 36, device=device)
    compiled = check(fn, [*given, index(100, 70, 2).to(device)], (0, 1), near=2e-3)
    args = [given[0].requires_grad_(), given[1], index(100, 70, 2).to(device)]
    assert "loop" in str(compiled.explain(*args).regions[0].backward)
    assert atomics(made)


def classified(table: Tensor, at: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(table[at] @ table.t(), target)


def untied(table: Tensor, w: Tensor, at: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(table[at] @ w.t(), target)


def biased(bias: Tensor, q: Tensor, k: Tensor, v: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.softmax(q @ k.t() / 6 + bias[i[:, None] - j], -1) @ v


@pytest.fixture
def short_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows, for sizes that an interpreter can do."""
    monkeypatch.setattr(strips, "FEWEST", 32)
    monkeypatch.setattr(strips, "MOST", 32)
    monkeypatch.setattr(axes, "LONG", 32)
    monkeypatch.setattr(program_sharing, "MAX_HELD", 64)


def kernels(compiled: Any, *given: Tensor) -> list[str]:
    """Of the backward pass; those that add have a mark."""
    (region,) = compiled.explain(*given).regions
    assert region.backward is not None
    return [k.name + "+" * ("; adds to" in k.note) for k in region.backward.kernels]


@pytest.mark.usefixtures("short_strips")
def test_what_strips_have_added_up(made: list[BlockKernels]) -> None:
    """A gradient begins as that, and what is added to it then is known by then."""
    torch.manual_seed(0)
    at, target = index(90, 140), torch.randint(0, 90, (140,))
    table = torch.randn(90, 36) / 10
    compiled = check(classified, [table, at, target], near=1e-5)
    found = kernels(compiled, table.requires_grad_(), at, target)
    assert found == ["strip0.k0", "strip0.k1", "part1.k0+"]
    assert atomics(made) == 1


@pytest.mark.usefixtures("short_strips")
def test_what_is_added_behind_strips() -> None:
    """To a gradient that begins before them."""
    torch.manual_seed(0)
    at, target = index(90, 200), torch.randint(0, 90, (200,))
    given = [torch.randn(90, 36) / 10, torch.randn(90, 36) / 10, at, target]
    compiled = check(untied, given, (0, 1), near=1e-5)
    found = kernels(compiled, *(x.requires_grad_() for x in given[:2]), at, target)
    assert found[0] == "part0.k0"
    assert found[-1] == "part2.k0+"


@pytest.mark.usefixtures("short_strips")
def test_what_each_strip_adds(made: list[BlockKernels]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(n, *c) for n, c in ((150, ()), (320, (33,)), (300, (33,)), (300, (33,)))]
    at = index(75, 320), index(75, 300)
    compiled = check(biased, [*given, *at], range(4), near=1e-3)
    found = kernels(compiled, *(x.requires_grad_() for x in given), *at)
    assert any(k.startswith("strip") and k.endswith("+") for k in found)
    assert atomics(made) == 1


# -- PyTorch's flag --


def scatters(compiled: Any, *given: Tensor) -> tuple[int, int]:
    """By PyTorch, by kernels."""
    (region,) = compiled.explain(*given).regions
    assert isinstance(region.backward, BackwardLine)
    return region.backward.scatters, region.backward.adds


def test_the_flag_is_asked_at_each_call(
    deterministic: Callable[[bool], None], made: list[BlockKernels], device: torch.device
) -> None:
    compiled = lt.script(looked_up)
    given = [torch.randn(100, 40, device=device), index(100, 33, 2).to(device)]
    want = gradients(looked_up, given, [0])
    table = given[0].detach().requires_grad_()
    for is_on in (False, True, False, True):
        deterministic(is_on)
        made.clear()
        with profiler.profile() as profile:
            found = gradients(compiled, given, [0])
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        assert (STORED in {e.name for e in profile.function_events}) is is_on
        assert scatters(compiled, table, given[1]) == ((1, 0) if is_on else (0, 1))
        text = "scatters by PyTorch" if is_on else "scatters added by kernels"
        assert text in str(compiled.explain(table, given[1]))


def test_only_passes_of_the_same_flag_are_compared(
    deterministic: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes more memory, by the other flag, says nothing of whether a plan is outgrown."""
    found: list[Gradient] = []
    real = Gradient.backward

    def backward(self: Gradient, *given: Any) -> Pass:
        found.append(self)
        return real(self, *given)

    monkeypatch.setattr(Gradient, "backward", backward)
    compiled = lt.script(looked_up)
    for is_on in (True, False):
        deterministic(is_on)
        gradients(compiled, [torch.randn(100, 40), index(100, 33, 2)], [0])
    assert len(set(map(id, found))) == 1
    for is_on in (True, False):
        deterministic(is_on)
        (made,) = found[0].executables
        assert (ATOMIC in made.first.source) is not is_on


def test_without_scatters_the_flag_compiles_nothing(
    deterministic: Callable[[bool], None], made: list[BlockKernels], device: torch.device
) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin().sum(1)

    compiled = lt.script(f)
    gradients(compiled, [torch.randn(40, 50, device=device)], [0])
    before = len(made)
    assert before
    deterministic(True)
    gradients(compiled, [torch.randn(40, 50, device=device)], [0])
    assert len(made) == before


# -- memory --


def fake(*given: Tensor) -> list[Tensor]:
    with FakeTensorMode():
        return [
            torch.empty(x.shape, dtype=x.dtype, device="cuda", requires_grad=x.requires_grad)
            for x in given
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_values_nor_places_are_stored(
    dtype: torch.dtype, deterministic: Callable[[bool], None]
) -> None:
    n, k, rows, c = 6000, 7, 1000, 64
    table = torch.empty(rows, c, dtype=dtype).requires_grad_()
    given = fake(table, torch.empty(n, k, dtype=torch.int64))
    compiled = lt.script(looked_up)
    size = table.element_size()
    results = 2 * size * n * c  # what is called, and its cotangent
    wide = 0 if size == 4 else 4 * rows * c  # what is added up, beside what is handed out
    found = compiled.memory(*given)
    assert found.peak_bytes == results + wide + size * rows * c
    assert not [b for b in found.buffers if b.nbytes >= 4 * n * k * c]
    deterministic(True)
    stored = compiled.memory(*given)
    assert stored.peak_bytes >= results + (4 + 8) * n * k * c
    budget = lt.script(looked_up, budget=f"{results + wide + 2 * size * rows * c} B")
    with pytest.raises(lt.BudgetError):
        budget.memory(*given)
    deterministic(False)
    assert budget.memory(*given).peak_bytes == found.peak_bytes
    deterministic(True)  # a plan of one setting is none for the other
    with pytest.raises(lt.BudgetError):
        budget.memory(*given)


def test_what_was_summed_up_wide_ends_one_by_one() -> None:
    n, rows, c = 500, 1000, 64
    tables = [torch.empty(rows, c, dtype=torch.bfloat16).requires_grad_() for _ in range(2)]
    found = lt.script(two_tables).memory(*fake(*tables, torch.empty(n, 7, dtype=torch.int64)))
    narrow = 2 * rows * c
    assert found.peak_bytes == 2 * 2 * n * c + 2 * 2 * narrow + narrow


def test_pairs_and_no_scatter_of_pairs() -> None:
    """`min(1).values`: the gradient takes as much as points and results do."""
    x, y = (torch.empty(n, 3).requires_grad_() for n in (5000, 4000))
    found = lt.script(nearest).memory(*fake(x, y))
    assert found.peak_bytes < 20 * 4 * (5000 + 4000)
