"""`lt.compile`: what PyTorch captures gives what eager PyTorch gives, gradients too."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.api import compile
from lowtide.api.compile import PlainGraph
from lowtide.diagnostics import faults
from lowtide.tools.programs import PROGRAMS
from lowtide.torch_private.graph_capture import register


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with faults.strict():
        yield
    torch._dynamo.reset()


def same(f: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any) -> Any:
    """Compares a compiled call with an eager one, on clones; gives the compiled object."""
    compiled = lt.compile(copy.deepcopy(f), dynamic=dynamic)
    mine, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    torch.manual_seed(1)
    expected = f(*theirs[0], **theirs[1])
    torch.manual_seed(1)
    found = compiled(*mine[0], **mine[1])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine, theirs)  # what is changed in place
    if isinstance(f, nn.Module):
        torch.testing.assert_close(compiled.state_dict(), dict(_marked(f)))
    return compiled


def _marked(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in module.state_dict().items():
        yield f"_orig_mod.{name}", value


X = torch.linspace(-2, 3, 40 * 8).view(40, 8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, *, scale: float = 0.5) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v


torch.manual_seed(0)  # of the weights
MODULES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)), (X,)),
    "conv": (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        (X.view(2, 2, 8, 10),),
    ),
    "attention": (Attention(), (X.view(2, 20, 8),)),
    "lstm": (nn.LSTM(8, 5), (X.view(20, 2, 8),)),
    "embedding": (nn.Sequential(nn.Embedding(9, 4), nn.Dropout(0.5)), (torch.arange(8),)),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, training: bool) -> None:
    module, args = copy.deepcopy(MODULES[name])
    with torch.no_grad():
        same(module.train(training), *args)


def test_nested_inputs_and_outputs() -> None:
    def f(x: torch.Tensor, more: dict[str, Any], *, n: int = 3) -> dict[str, Any]:
        a, (b, c) = more["a"], more["pair"]
        values, places = (x + a).sort(1)
        return {"sum": torch.stack([b, c]).sum(0) * n, "sorted": (values, [places]), "none": None}

    same(f, X, {"a": torch.ones(8), "pair": (X, X * 2)}, n=4)


def test_changes_in_place() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        view = x.view(20, -1)
        view[1:3, ::2] = y
        view[view > 1] = 0.5
        x += 1
        z = x * 2
        z.clamp_(max=3)
        return z + F.relu(view.sum(), inplace=True)

    same(f, X.clone(), torch.zeros(8))


def test_new_sizes_compile_nothing() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        halves = x.view(x.shape[0] * 2, -1)
        return (halves[: x.shape[0]] * len(x) + w).relu().sum(1)

    compiled = same(f, torch.rand(64, 8), torch.rand(4), dynamic=True)
    before = lt.cache_stats()
    for n in (66, 100, 330):
        x, w = torch.rand(n, 8), torch.rand(4)
        torch.testing.assert_close(compiled(x, w), f(x, w))
    assert (lt.cache_stats() - before).compiles == 0
    assert (lt.cache_stats() - before).regions_eager == 0


def test_a_branch_on_data_makes_several_graphs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        return y.exp().sum() if y.sum() > 0 else y.sin().sum()

    compiled = same(f, X)
    graphs = lt.explain_compiled(compiled, X)
    assert len(graphs) == 2
    assert all(not isinstance(g, PlainGraph) and len(g.kernels) == 1 for g in graphs)
    torch.testing.assert_close(compiled(-X * 9), f(-X * 9))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        lt.compile(lambda x: x + 1 if x.sum() > 0 else x, fullgraph=True)(X)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


def test_gradients() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = (x * x).sum() + w.sum()
        return (Doubled.apply(x) @ w).tanh() * scale

    compiled = lt.compile(f)
    grads: list[tuple[torch.Tensor, ...]] = []
    for g in (f, compiled):
        # small values: where tanh is flat, its slope is all rounding, eager's too
        x, w = (X * 0.05).requires_grad_(), torch.ones(8, 2).requires_grad_()
        grads.append(torch.autograd.grad(g(x, w).sum(), (x, w)))
    torch.testing.assert_close(grads[1], grads[0])
    assert torch.is_grad_enabled()


def test_training_is_as_eager() -> None:
    def train(wrap: Callable[[Any], Any]) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
        run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.05)
        losses: list[float] = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.mse_loss(run(X), X.sin().sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train(lambda model: model)
    assert train(lt.compile) == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]


def test_what_changes_the_state_of_pytorch_stays_with_pytorch() -> None:
    mapped = same(lambda x: torch.vmap(lambda row: row.sin().sum())(x), X)
    (graph,) = lt.explain_compiled(mapped, X)
    assert isinstance(graph, PlainGraph)
    assert "changes the state" in str(graph) or "torch.func" in str(graph)


def test_a_graph_that_pytorch_runs_keeps_to_no_budget_and_says_so_once() -> None:
    compiled: Any = lt.compile(lambda x: torch.vmap(lambda row: row.sin().sum())(x), budget="1MB")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compiled.memory(X)  # no call of the user's
    told = "the budget is not enforced, because PyTorch runs it uncompiled"
    with pytest.warns(RuntimeWarning, match=told) as seen:
        compiled(X)
    assert [w.filename for w in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compiled(X)


def test_a_budget_of_what_is_captured_in_no_graph_is_said_to_be_of_nothing() -> None:
    class Looped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = x.sin()
                torch._dynamo.graph_break()
            return x

    compiled: Any = lt.compile(Looped(), budget="100MB")
    with pytest.warns(RuntimeWarning, match="captured no graph: .* budget is not enforced") as told:
        compiled(torch.rand(1024, 512))
    assert told[0].filename == __file__


def test_conditions_on_tensors_and_custom_operators() -> None:
    @torch.library.custom_op("lowtide_tests::halve", mutates_args=())
    def halve(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    halve.register_fake(torch.empty_like)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        return halve(y * 2) + 1

    same(f, X)


def test_an_error_restores_the_mode_and_keeps_its_type() -> None:
    @lt.compile
    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x[index] * 2

    torch.testing.assert_close(f(X, torch.tensor([1, 2])), X[1:3] * 2)
    with pytest.raises(IndexError):
        f(X, torch.tensor([1, 99]))
    assert torch.is_grad_enabled()


def test_by_name_and_after_a_reset() -> None:
    register(compile.backend)
    for _ in range(2):
        assert torch.compile(lambda x: x + 1, backend="lowtide")(X).equal(X + 1)
        torch._dynamo.reset()
    with pytest.raises(Exception, match="unknown option 'speed'"):
        torch.compile(lambda x: x + 2, backend="lowtide", options={"speed": 1})(X)


def test_options() -> None:
    with pytest.raises(lt.LowtideError, match="tune='yes'"):
        lt.compile(lambda x: x, tune="yes")  # pyright: ignore
    add = lt.compile(dynamic=False)(lambda x: x + 1)
    assert add(X).equal(X + 1)


def test_a_call_without_a_graph_is_explained_by_a_note() -> None:
    assert str(lt.explain_compiled(lt.compile(lambda x: 3), X)).startswith("note: PyTorch captured")


def sine_sums(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    return (y[:, None] - y[None]).abs().sum(1)


def test_while_a_scope_watches_the_lines_are_the_users() -> None:
    with lt.dispose_scope():
        (graph,) = lt.explain_compiled(lt.compile(sine_sums), X)
    text = str(graph)
    assert text.startswith("sine_sums: 1 kernel")
    assert "watch.py" not in text
    first = sine_sums.__code__.co_firstlineno
    lines = {int(line) for line in re.findall(r"test_compile.py:(\d+)", text)}
    assert lines == {first + 1, first + 2}


def test_a_fault_is_survived_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide.frontend.dynamo import convert

    def fail(module: object) -> Any:
        raise KeyError("a fault")

    monkeypatch.setattr(convert, "convert", fail)
    compiled = lt.compile(lambda x: x * 3)
    with faults.strict(False), pytest.warns(RuntimeWarning, match="a captured graph.*a fault"):
        assert compiled(X).equal(X * 3)
    assert "a fault" in str(lt.explain_compiled(compiled, X)[0])


@pytest.mark.parametrize("name", ["boxes", "chamfer"])
def test_programs_of_pairs_are_one_kernel(name: str) -> None:
    program = PROGRAMS[name]
    args = program.make_inputs(*program.quick)
    (graph,) = lt.explain_compiled(same(program.function, *args), *args)
    assert not isinstance(graph, PlainGraph)
    assert len(graph.kernels) == 1
    assert not graph.torch_ops
    outputs = sum(x.nbytes for x in _tensors(program.function(*args)))
    assert graph.peak_bytes < outputs + (2 << 20)  # in whole pages


def _tensors(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def resized(x: Tensor, y: Tensor) -> Tensor:
    y = F.interpolate(F.avg_pool2d(y, 2), size=x.shape[-2:], mode="bilinear", align_corners=False)
    y = (x + y).flatten(2).sort(-1).values.cumsum(-1)
    return y.reshape(x.shape[:2] + (-1,)) * 2  # noqa: RUF005


def test_sizes_that_python_puts_together_are_known() -> None:
    """`torch.Size` of symbols: what follows is compiled, predicted and kept to a budget."""
    small, large = torch.rand(2, 3, 60, 61), torch.rand(2, 3, 90, 81)
    compiled: Any = lt.compile(resized)
    for x in (small, large):
        torch.testing.assert_close(compiled(x, x), resized(x, x))
    plan = compiled.memory(large, large)
    assert plan.peak_bytes >= 3 * large.nbytes
    assert not any("not counted" in note or "nothing after" in note for note in plan.notes)
