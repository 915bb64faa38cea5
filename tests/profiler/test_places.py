"""Where an operator was called: line, module, phase, on all threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from tests.profiler.programs import Block, line_of, row_of, similarity


def test_lines_of_operators_and_methods() -> None:
    x = torch.rand(8, 8)
    with lt.profile() as prof:
        similarity(x, x)
    assert row_of(prof, "aten::sub").source == line_of(similarity, "difference = ")
    assert row_of(prof, "aten::abs").source == line_of(similarity, "near = ")
    assert row_of(prof, "aten::sum").source == line_of(similarity, "return near")


def test_many_lines_one_after_another() -> None:
    def work(x: torch.Tensor) -> None:
        for _ in range(200):
            a = x + 1
            b = a.mul(2)
            c = torch.sub(b, a)
            c.neg_()

    x = torch.rand(16)
    with lt.profile() as prof:
        work(x)
    for op, text in (("add", "a = x"), ("mul", "b = a"), ("sub", "c = torch"), ("neg_", "c.neg_")):
        row = row_of(prof, f"aten::{op}")
        assert (row.calls, row.source) == (200, line_of(work, text))


def test_modules_have_dotted_paths() -> None:
    model = Block()
    with lt.profile() as prof:
        model(torch.rand(5, 32))
    modules = {(row.op, row.module) for row in prof.rows()}
    assert ("aten::linear", "Block.inner.0") in modules
    assert ("aten::relu", "Block.inner.1") in modules
    assert ("aten::linear", "Block.last") in modules
    assert ("aten::square", "Block") in modules
    assert ("aten::rand", "") in modules


def test_a_module_that_raises_is_left() -> None:
    class Bad(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    with lt.profile() as prof:
        try:
            Bad()(torch.ones(3))
        except ValueError:
            torch.zeros(7)
    assert row_of(prof, "aten::zeros").module == ""


def test_backward_belongs_to_the_line_of_the_forward() -> None:
    def step(model: Block, x: torch.Tensor) -> None:
        loss = model(x).exp().sum()
        loss.backward()

    model, x = Block(), torch.rand(20, 32)
    with lt.profile() as prof:
        step(model, x)
    exp = row_of(prof, "ExpBackward0")
    assert (exp.phase, exp.source) == ("backward", line_of(step, "loss = "))
    assert row_of(prof, "ReluBackward0").module == "Block.inner.1"
    assert row_of(prof, "PowBackward0").source == line_of(Block.forward, "return self.last")
    linear = [row for row in prof.rows() if row.op == "AddmmBackward0"]
    assert {row.module for row in linear} == {"Block.inner.0", "Block.last"}
    assert row_of(prof, "AccumulateGrad").source == line_of(step, "loss.backward")
    assert row_of(prof, "aten::exp").phase == "forward"


def test_the_optimizer_is_a_phase() -> None:
    def update(optimizer: Any) -> None:
        optimizer.step()

    model = Block()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, 32)).sum().backward()
    with lt.profile() as prof:
        update(optimizer)
    rows = [row for row in prof.rows() if row.self_bytes]
    assert rows
    assert {row.phase for row in rows} == {"optimizer"}
    assert {row.source for row in rows} == {line_of(update, "optimizer.step()")}


class Doubled(torch.autograd.Function):
    """Code of the user's inside the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """2 x."""
        return x.mul(2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """Its gradient, and a large tensor beside."""
        big = torch.ones(5000)
        return grads[0] * big[0] * 2


def test_lines_inside_a_custom_backward() -> None:
    x = torch.rand(10, requires_grad=True)
    with lt.profile() as prof:
        Doubled.apply(x).sum().backward()
    row = row_of(prof, "aten::ones")
    assert (row.phase, row.source) == ("backward", line_of(Doubled.backward, "big = "))
    assert row_of(prof, "aten::mul", line_of(Doubled.forward, "return")).phase == "forward"


def test_recomputing_in_a_checkpoint_keeps_its_lines() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin()

    x = torch.rand(100, requires_grad=True)
    with lt.profile() as prof:
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    place = line_of(layer, "return")
    assert row_of(prof, "aten::exp", place, "forward").calls == 1
    assert row_of(prof, "aten::exp", place, "backward").calls == 1


def test_threads_are_followed_and_their_threads() -> None:
    def work() -> None:
        torch.ones(3000).exp()

    def parent() -> None:
        child = threading.Thread(target=work)
        child.start()
        child.join()

    with lt.profile() as prof:
        thread = threading.Thread(target=parent)
        thread.start()
        thread.join()
    assert not prof.remarks
    assert row_of(prof, "aten::exp").source == line_of(work, "torch.ones")
    assert prof.peak_bytes == 2 * 3000 * 4


def test_threads_at_once_do_not_mix() -> None:
    def one(x: torch.Tensor) -> None:
        for _ in range(100):
            x.exp()

    def other(x: torch.Tensor) -> None:
        for _ in range(100):
            x.sin()

    x = torch.rand(100)
    with lt.profile() as prof:
        threads = [threading.Thread(target=work, args=(x,)) for work in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert row_of(prof, "aten::exp").calls == 100
    assert row_of(prof, "aten::exp").source == line_of(one, "x.exp")
    assert row_of(prof, "aten::sin").source == line_of(other, "x.sin")


def test_backward_on_a_thread() -> None:
    def work() -> None:
        x = torch.rand(1000, requires_grad=True)
        x.exp().sum().backward()

    with lt.profile() as prof:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert row_of(prof, "ExpBackward0").source == line_of(work, "x.exp()")


def test_calls_that_no_mode_sees_are_not_given_to_the_line_before() -> None:
    def work() -> None:
        torch.ones(2000)
        torch.Tensor(3000)
        torch.UntypedStorage(50_000)

    with lt.profile() as prof:
        work()
    assert row_of(prof, "aten::ones").source == line_of(work, "torch.ones")
    assert row_of(prof, "aten::empty").self_bytes == 12_000
    assert row_of(prof, "aten::empty").source == ""
    assert row_of(prof, "(outside operators)").source == ""


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_a_function_of_torch_jit_has_its_line() -> None:
    def traced(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    def work(x: torch.Tensor) -> None:
        y = x.exp()
        scripted(y)

    scripted = torch.jit.trace(traced, torch.ones(3))
    with lt.profile() as prof:
        work(torch.ones(100))
    rows = [row for row in prof.rows() if row.source == line_of(work, "scripted(y)")]
    assert sum(row.self_bytes for row in rows) == 400
