"""Loops that carry something: one kernel sequence for any number of steps, gradients included."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.execute import backend
from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.autodiff import isolated
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.index import Axis, as_index
from tests.loops import recurrences as r
from tests.memory.contract import assert_within_contract, requested_bytes

IDS = [fn.__name__ for fn in r.PROGRAMS]


def results(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def check(got: Any, want: Any, within: float = 1e-4) -> None:
    for g, w in zip(results(got), results(want), strict=True):
        torch.testing.assert_close(g, w, rtol=within, atol=within)


def leaves(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a.clone().requires_grad_(a.is_floating_point()) for a in arguments]


def gradients(fn: Any, arguments: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """Of all results, each weighted by other numbers."""
    given = leaves(arguments)
    found = results(fn(*given))
    weights = [torch.linspace(-1, 1, y.numel()).reshape(y.shape) for y in found]
    wanted = [a for a in given if a.requires_grad]
    return torch.autograd.grad(found, wanted, weights, allow_unused=True)


@pytest.mark.parametrize("fn", r.PROGRAMS, ids=IDS)
def test_like_eager(fn: r.Program) -> None:
    torch.manual_seed(0)
    f = lt.script(fn)
    for n, b, i, h in ((40, 6, 5, 36), (33, 2, 7, 4), (3, 3, 7, 4)):
        arguments = r.arguments(fn, n, b, i, h)
        before = [a.clone() for a in arguments]
        check(f(*arguments), fn(*arguments))
        check(tuple(arguments), tuple(before), 0)


@pytest.mark.parametrize("fn", r.PROGRAMS, ids=IDS)
def test_gradients_like_eager(fn: r.Program) -> None:
    torch.manual_seed(0)
    f = lt.script(fn)
    for n, b, i, h in ((35, 6, 5, 36), (4, 3, 7, 4)):
        arguments = r.arguments(fn, n, b, i, h)
        for got, want in zip(gradients(f, arguments), gradients(fn, arguments), strict=True):
            if want is None:
                assert got is None or not got.any()
            else:
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("fn", [r.lstm, r.gru, r.rnn, r.filtered, r.viterbi_score])
def test_any_number_of_steps_is_one_program(fn: r.Program) -> None:
    f = lt.script(fn)
    f(*r.arguments(fn, 40, 6, 5, 36))
    before = lt.cache_stats()
    for n in (33, 41, 200):
        f(*r.arguments(fn, n, 6, 5, 36))
    assert (lt.cache_stats() - before).compiles == 0


@pytest.mark.parametrize("fn", r.PROGRAMS, ids=IDS)
def test_meaning(fn: r.Program) -> None:
    """What the front end and lifting make of a program, by the reference evaluator."""

    class Meaning:
        stages = ()

        def __init__(self, program: Any, symbols: Any, scalars: Any, hints: Any) -> None:
            del hints
            self.program, self.names, self.scalars = program, symbols, scalars

        def write(self) -> None:
            """There is no text."""

        def __call__(self, tensors: Any, sizes: Any, numbers: Any) -> list[torch.Tensor]:
            found = evaluate(
                self.program,
                dict(zip(self.program.inputs, tensors, strict=True)),
                dict(zip(self.names, sizes, strict=True)),
                dict(zip(self.scalars, numbers, strict=True)),
            )
            return [found[n] for n in (*self.program.outputs, *self.program.checks)]

    torch.manual_seed(0)
    arguments = r.arguments(fn, 6, 2, 3, 4)
    backend.use(lambda program, **about: Meaning(program, **about))
    try:
        check(lt.script(fn)(*arguments), fn(*arguments))
    finally:
        backend.use(None)


def test_gradcheck() -> None:
    f = lt.script(r.gru)
    arguments = [a.double().requires_grad_() for a in r.arguments(r.gru, 5, 2, 3, 3)]
    assert torch.autograd.gradcheck(f, arguments)


def test_explained() -> None:
    text = str(lt.script(r.lstm).explain(*leaves(r.arguments(r.lstm, 40, 6, 5, 36))))
    assert "once for each of s0 steps" in text
    assert text.count("PyTorch  ") == 0


def test_states_that_nobody_needs_take_two_slots() -> None:
    arguments = r.arguments(r.rnn, 100, 64, 128, 128)
    f = lt.script(r.rnn)
    state, projected = 64 * 128 * 4, 100 * 64 * 128 * 4
    assert f.memory(*arguments).peak_bytes < projected + 8 * state + 4 * 2**20


def test_memory_is_predicted() -> None:
    arguments = r.arguments(r.lstm, 300, 64, 128, 128)
    f = lt.script(r.lstm)
    f(*arguments)
    predicted = f.memory(*arguments).peak_bytes
    assert_within_contract(requested_bytes(lambda: f(*arguments)), predicted, library_ops=False)


def test_results_are_tensors_of_their_own() -> None:
    def states(x, h):
        out = []
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h)
            out.append(h)
        return torch.stack(out), torch.stack(out), h

    f = lt.script(states)
    a, b, h = f(torch.randn(40, 5), torch.randn(5))
    storages = {t.untyped_storage().data_ptr() for t in (a, b, h)}
    assert len(storages) == 3
    want = h.clone()
    a.zero_()
    assert torch.equal(b[-1], want)
    assert torch.equal(h, want)


def test_backward_after_a_result_was_changed() -> None:
    arguments = r.arguments(r.batch_first, 40, 3, 5, 6)

    def changed(fn: Any) -> list[torch.Tensor]:
        given = leaves(arguments)
        y = fn(*given)
        loss = (y * y).sum()
        with torch.no_grad():
            y.detach().mul_(1)  # the same values, but PyTorch cannot know
        loss.backward()
        return [g.grad for g in given if g.grad is not None]

    with pytest.raises(RuntimeError):
        changed(r.batch_first)
    with pytest.raises(RuntimeError):
        changed(lt.script(r.batch_first))


def test_a_part_has_the_axes_of_its_definition_in_order() -> None:
    """The step of a loop is the first of them, whatever the axes are called."""
    i10, i9, k = Axis("i10", as_index(6)), Axis("i9", as_index(4)), Axis("k", as_index(5))
    read = ex.load("x", [as_index(i10), as_index(i9), as_index(k)], dtypes.f32)
    total = ex.reduce("sum", [k], read, dtypes.f32)
    d = ex.Def(
        name="y", axes=(i10, i9), expr=ex.apply("tanh", (total,), dtypes.f32), loc=None, op=""
    )
    part, _ = isolated(d)
    assert part.axes == (i10, i9)


@pytest.mark.parametrize("dims", range(3, 7))
def test_a_norm_of_what_is_carried(dims: int) -> None:
    """Wherever in the numbering of axes it falls."""

    def normed(x, h):
        for t in range(x.shape[0]):
            h = torch.sin(torch.nn.functional.layer_norm(h, (h.shape[-1],)) * x[t])
        return h

    arguments = [torch.rand(40, *[2] * (dims - 2), 5), torch.rand(*[2] * (dims - 2), 5)]
    f = lt.script(normed)
    with faults.strict():
        found = gradients(f, arguments)
    for got, want in zip(found, gradients(normed, arguments), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_each_of_several_loops_is_a_scan() -> None:
    """However many there are: what is too much for one backward pass begins the next region."""

    def both_ways(x, w, u, v, h):
        ends = []
        for _ in range(2):
            rows, back = [], []
            n = x.shape[0]
            s = h
            for t in range(n):
                s = torch.nn.functional.layer_norm(torch.tanh(x[t] @ w + s @ u), (40,))
                rows.append(torch.sigmoid(s * x[t] + s))
            z = h
            for t in range(n):
                z = torch.nn.functional.layer_norm(torch.tanh(x[n - 1 - t] @ w + z @ v), (40,))
                back.append(torch.sigmoid(z * x[n - 1 - t] + z))
            x = torch.stack(rows) + torch.stack(back).flip(0)
            ends += [s, z]
        return x, ends

    torch.manual_seed(0)
    shapes = ((20, 6, 40), (40, 40), (40, 40), (40, 40), (6, 40))
    arguments = [torch.rand(*shape, dtype=torch.float64) * 0.5 for shape in shapes]
    f = lt.script(both_ways)

    def total(fn, x, w, u, v, h):
        y, ends = fn(x, w, u, v, h)
        return y * sum(e.cos().mean() for e in ends)

    found: list[Any] = []
    for fn in (f, both_ways):
        given = [a.clone().requires_grad_() for a in arguments]
        with faults.strict():
            total(fn, *given).sum().backward()
        found.append([g.grad for g in given])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)
    told = f.explain(*(a.requires_grad_() for a in arguments)).to_dict()
    assert not [line for line in told["torch"] if line["op"] in ("loop", "getitem")]


def _steps_of_backward(f: Any, *arguments: torch.Tensor) -> dict[str, str]:
    return {n: text for n, text in f.stages(*arguments) if n.startswith("backward")}


def test_gates_are_read_as_one_value_after_the_loop() -> None:
    """The gradients of an LSTM's weights are one product each, not one for each gate."""
    arguments = r.arguments(r.lstm, 40, 6, 5, 36)
    given = [a.requires_grad_() for a in arguments]
    found = _steps_of_backward(lt.script(r.lstm), *given)
    texts = [text for n, text in found.items() if n.endswith("part2.normal form")]
    sums = [line for text in texts for line in text.splitlines() if "= sum[" in line]
    assert texts
    read = [set(re.findall(r"(\w+)\[", line.partition("= sum[")[2])) for line in sums]
    assert any(name.startswith("ct_") or "_parts" in name for name in set.intersection(*read))
    assert len(sums) <= 4  # of x, both weights and the bias


def test_what_a_step_needs_in_several_nests_is_computed_once() -> None:
    def normed(x, w, u, h):
        for t in range(x.shape[0]):
            s = torch.sigmoid(x[t] @ w + h @ u)
            h = torch.nn.functional.layer_norm(torch.exp(s) * torch.tanh(s), (48,))
        return h

    f = lt.script(normed)
    torch.manual_seed(0)
    x, w, u, h = (torch.randn(n) * 0.1 for n in ((40, 36, 7), (7, 48), (48, 48), (36, 48)))
    check(f(x, w, u, h), normed(x, w, u, h))
    (text,) = [t for n, t in f.stages(x, w, u, h) if n.startswith("loop") and n.endswith(".C")]
    body = text[text.index("_task(") :]
    assert body.count("exp_f32(") <= 2  # whole vectors, and what is left of them
