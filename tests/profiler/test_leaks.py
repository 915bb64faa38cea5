"""Leaks between steps: the usual patterns, and who holds what they leave."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.tools.profiler.leaks import Leak
from tests.profiler.programs import Block, line_of

CACHE: dict[int, torch.Tensor] = {}


_LOSSES = "losses: " + "list["  # in two parts, for the line that asks is in the function, too


@pytest.fixture(autouse=True, scope="module")
def heap_of_earlier_modules() -> None:
    """Who refers to a leak is asked of all objects here, those of this module among them."""
    gc.unfreeze()


def leaks_of(step: Callable[[int], object], steps: int = 4) -> list[Leak]:
    with lt.profile() as prof:
        for number in range(steps):
            step(number)
            prof.step()
    return prof.leaks()


def the_leak(leaks: list[Leak], source: str) -> Leak:
    found = [leak for leak in leaks if leak.source == source]
    assert found, [str(leak) for leak in leaks]
    return found[0]


def test_steps_that_leave_nothing() -> None:
    model = Block()
    optimizer = torch.optim.Adam(model.parameters())

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(torch.rand(4, 32)).sum().backward()
        optimizer.step()

    assert leaks_of(step) == []


def test_a_list_of_losses_that_keeps_their_graphs() -> None:
    model = Block()
    losses: list[torch.Tensor] = []

    def step(_: int) -> None:
        hidden = model.inner(torch.rand(10, 32))
        losses.append(model.last(hidden).sum())

    leaks = leaks_of(step)
    loss = the_leak(leaks, line_of(step, "losses.append"))
    assert any("list" in text and "`losses`" in text for text in loss.holders), str(loss)
    # The hidden layer has no Python object any more: only the graph knows it.
    hidden = the_leak(leaks, line_of(step, "hidden = "))
    graph = next(text for text in hidden.holders if "saved for backward by" in text)
    assert "graph hangs on list" in graph
    assert "`losses`" in graph
    assert loss.steps == (0, 1, 2)
    assert loss.count >= 3
    line = line_of(test_a_list_of_losses_that_keeps_their_graphs, _LOSSES).rpartition(":")[2]
    assert f"test_leaks.py:{line})" in " ".join(loss.holders)


def test_a_sum_of_losses() -> None:
    model = Block()
    total = torch.zeros(())

    def step(_: int) -> None:
        nonlocal total
        total = total + model(torch.rand(5, 32)).sum()

    leaks = leaks_of(step)
    assert any("saved for backward by" in text for leak in leaks for text in leak.holders)
    assert any("`total`" in text for leak in leaks for text in leak.holders)


def test_a_closure() -> None:
    def make_step() -> Callable[[int], None]:
        seen: list[torch.Tensor] = []

        def step(_: int) -> None:
            seen.append(torch.ones(50))

        return step

    step = make_step()
    leak = the_leak(leaks_of(step), line_of(make_step, "seen.append"))
    assert (leak.nbytes, leak.count) == (600, 3)
    assert "closure `seen` of" in leak.holders[0]


def test_an_attribute_of_a_module() -> None:
    class Recorder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.history: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.history.append(x.exp())
            return x

    model = Recorder()
    leaks = leaks_of(lambda _: model(torch.ones(5)))
    leak = the_leak(leaks, line_of(Recorder.forward, "self.history.append"))
    assert leak.holders == (f"list attribute `history` of {Recorder.__qualname__}",)
    assert leak.module == "Recorder"


def test_a_global_cache() -> None:
    def step(number: int) -> None:
        CACHE[number] = torch.ones(20, 20)

    try:
        leak = the_leak(leaks_of(step), line_of(step, "CACHE[number]"))
    finally:
        CACHE.clear()
    assert leak.holders[0].startswith("dict `CACHE` of ")
    assert "(test_leaks.py:" in leak.holders[0]
    assert (leak.shape, leak.dtype) == ((20, 20), "float32")


def test_a_traceback() -> None:
    errors: list[Exception] = []

    def fails(batch: torch.Tensor) -> None:
        activations = batch * 2
        raise ValueError(len(activations))

    def step(_: int) -> None:
        try:
            fails(torch.ones(30))
        except ValueError as error:
            errors.append(error)

    leak = the_leak(leaks_of(step), line_of(fails, "activations = "))
    assert "local `activations` of" in leak.holders[0]
    assert "kept by the traceback of ValueError" in leak.holders[0]
    assert "list" in leak.holders[0]
    assert "`errors`" in leak.holders[0]
    # A cycle of frame and exception would keep everything until the next collection.
    errors.clear()


def test_something_kept_once_after_the_first_step() -> None:
    kept: list[torch.Tensor] = []

    def step(number: int) -> None:
        if number == 1:
            kept.append(torch.ones(64))

    (leak,) = leaks_of(step, steps=5)
    assert leak.steps == (1,)
    assert "step 1" in str(leak)


def test_what_is_replaced_each_step_is_no_leak() -> None:
    state: dict[str, Any] = {}

    def step(_: int) -> None:
        state["last"] = torch.ones(64)

    assert leaks_of(step) == []


def test_while_it_runs() -> None:
    kept: list[torch.Tensor] = []
    with lt.profile() as prof:
        for _ in range(3):
            kept.append(torch.ones(10))
            prof.step()
        assert [leak.count for leak in prof.leaks()] == [2]
        kept.clear()
        prof.step()
        assert prof.leaks() == []


def test_steps_must_be_marked() -> None:
    with lt.profile() as prof:
        prof.step()
    with pytest.raises(lt.LowtideError, match=r"prof\.step\(\)"):
        prof.leaks()


def test_the_profile_itself_holds_nothing() -> None:
    import weakref

    with lt.profile() as prof:
        tensor = torch.ones(1000)
        prof.step()
        prof.step()
    prof.live_at_peak()
    prof.leaks()
    ref = weakref.ref(tensor)
    del tensor
    assert ref() is None
    assert prof.live_at_peak()[0].holders == ()


def test_who_holds_what_is_live_at_the_peak() -> None:
    class Holder:
        pass

    holder: Any = Holder()
    with lt.profile() as prof:
        holder.weights = torch.ones(1000)
        mine = holder.weights + 1
    by_op = {one.op: one.holders for one in prof.live_at_peak() if one.nbytes == 4000}
    assert by_op["aten::ones"] == ("attribute `weights` of " + Holder.__qualname__,)
    assert any("local `mine` of test_who_holds" in text for text in by_op["aten::add"])
    del mine


def test_a_disposed_handle_holds_nothing() -> None:
    with lt.profile() as prof:
        scope = lt.dispose_scope()
        scope.__enter__()
        handle = torch.ones(1000)
    assert any("`handle`" in text for text in prof.live_at_peak()[0].holders)
    scope.__exit__(None, None, None)
    assert prof.live_at_peak()[0].holders == ()
    assert handle is not None


def test_a_reference_cycle() -> None:
    class Node:
        other: Any = None
        batch: Any = None

    def step(_: int) -> None:
        one, two = Node(), Node()
        one.other, two.other = two, one
        one.batch = torch.ones(40)

    gc.collect()
    gc.disable()
    try:
        leak = the_leak(leaks_of(step), line_of(step, "torch.ones"))
    finally:
        gc.enable()
    assert leak.holders[0].startswith("a reference cycle that waits for the garbage collector: ")
    assert leak.holders[0].endswith(f"attribute `batch` of {Node.__qualname__}")


def test_what_was_freed_after_the_end() -> None:
    kept: list[torch.Tensor] = []

    def step(_: int) -> None:
        kept.append(torch.ones(40))

    with lt.profile() as prof:
        for number in range(3):
            step(number)
            prof.step()
    kept.clear()
    assert prof.leaks()[0].holders == ("nothing: freed since the profile ended",)


def test_a_numpy_array() -> None:
    history: list[Any] = []

    def step(_: int) -> None:
        history.append(torch.ones(40).numpy())

    leak = the_leak(leaks_of(step), line_of(step, "history.append"))
    assert any(text.startswith("NumPy array in ") and "`history`" in text for text in leak.holders)


def test_a_default_argument() -> None:
    def step(_: int, kept: list[torch.Tensor] = []) -> None:  # noqa: B006
        kept.append(torch.ones(40))

    leak = the_leak(leaks_of(step), line_of(step, "kept.append"))
    assert leak.holders == (f"list default argument of {step.__qualname__}",)


def test_functions_made_in_each_step_are_told_with_what_holds_them() -> None:
    hooks: list[Callable[[], torch.Tensor]] = []

    def step(_: int) -> None:
        batch = torch.ones(40)
        hooks.append(lambda: batch)

    leak = the_leak(leaks_of(step), line_of(step, "batch = "))
    assert "closure `batch` of " in leak.holders[0]
    assert "held by list" in leak.holders[0]
    assert "`hooks`" in leak.holders[0]


def test_one_line_that_leaks_in_two_ways() -> None:
    log: list[torch.Tensor] = []
    table: dict[int, torch.Tensor] = {}

    def step(number: int) -> None:
        log.append(torch.ones(40)), table.update({number: torch.ones(50)})

    text = str(the_leak(leaks_of(step), line_of(step, "log.append")))
    assert "`log`" in text
    assert "`table`" in text
