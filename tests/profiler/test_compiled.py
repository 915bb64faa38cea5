"""Lowtide's own compiled functions, and torch.compile's, under a profile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import lowtide as lt
from lowtide.runtime import arena
from tests.profiler.programs import line_of, row_of, similarity


class _Mode(TorchFunctionMode):
    """A user's, which wants to see each op."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_compiled_function_is_one_operator_with_its_arena_bytes() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return compiled(x, x)

    compiled = lt.script(similarity)
    x = torch.rand(40, 600)
    expected = call(x)
    with lt.profile() as prof:
        result = call(x)
    assert torch.equal(result, expected)
    row = row_of(prof, "lowtide::similarity")
    assert row.calls == 1
    assert row.self_bytes >= result.nbytes
    assert row.source == line_of(call, "compiled(x, x)")
    assert prof.peak_bytes < 40 * 600 * 600  # it was compiled: no tensor of pairs
    assert all(r.op != "aten::sub" for r in prof.rows())
    live = prof.live_at_peak()
    assert live[0].op == "lowtide::similarity"
    assert live[0].nbytes >= result.nbytes


def test_what_generated_code_calls_is_at_the_users_line() -> None:
    def sorted_and_not(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).sum() + torch.sort(x * 2)[0].sum()

    compiled = lt.script(sorted_and_not)
    x = torch.rand(50, 50, requires_grad=True)
    compiled(x).backward()
    with lt.profile() as prof:
        compiled(x).backward()
    assert prof.rows()
    assert not any("<lowtide" in (row.source or "") for row in prof.rows())


def test_what_the_arena_gets_back_is_freed() -> None:
    compiled = lt.script(similarity)
    x = torch.rand(40, 600)
    compiled(x, x)
    with lt.profile() as prof:
        for _ in range(3):
            result = compiled(x, x)
        del result
        gc.collect()
        torch.ones(10)
    one_bytes = 600 * 600 * 8
    assert prof.peak_bytes < 3 * one_bytes
    assert row_of(prof, "lowtide::similarity").calls == 3


def test_other_modes_still_make_it_plain_python() -> None:
    compiled = lt.script(similarity)
    x = torch.rand(8, 40)
    with lt.profile() as prof, _Mode():
        compiled(x, x)
    assert row_of(prof, "aten::sub").calls == 1


def test_a_default_device_does_not() -> None:
    compiled = lt.script(similarity)
    x = torch.rand(8, 40)
    with lt.profile() as prof, torch.device("cpu"):
        compiled(x, x)
    assert row_of(prof, "lowtide::similarity").calls == 1


class _Similarity(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return similarity(x, x)


@pytest.mark.parametrize("way", ["script", "trace"])
def test_modules_and_traced_functions_are_operators_too(way: str) -> None:
    x = torch.rand(40, 600)
    module = _Similarity()
    compiled = lt.script(module) if way == "script" else lt.trace(module, (x,))
    compiled(x)
    with lt.profile() as prof:
        compiled(x)
    assert prof.peak_bytes < 40 * 600 * 600
    assert all(r.op != "aten::sub" for r in prof.rows())
    assert [r.calls for r in prof.rows() if r.op.startswith("lowtide::")] == [1]


def test_memory_stats_are_of_all_programs_together() -> None:
    one, two = lt.script(similarity), lt.script(_doubled)
    lt.empty_cache()
    before = lt.memory_stats()
    results = [one(torch.rand(40, 600), torch.rand(40, 600)), two(torch.rand(1 << 20))]
    during = lt.memory_stats()
    nbytes = sum(result.nbytes for result in results)
    assert during.in_use_bytes >= before.in_use_bytes + nbytes
    assert during.misses >= before.misses + 2
    assert during.peak_in_use_bytes >= during.in_use_bytes
    assert during.reserved_bytes >= during.in_use_bytes
    assert during.cap_bytes > 0
    del results
    gc.collect()
    cached = lt.memory_stats()
    assert cached.cached_bytes > 0
    two(torch.rand(1 << 20))
    assert lt.memory_stats().hits > cached.hits
    lt.empty_cache()
    after = lt.memory_stats()
    assert after.cached_bytes == 0
    assert after.trims > before.trims
    assert "trims" in str(after)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_the_arenas_observer_is_gone_afterwards() -> None:
    seen: list[int] = []
    with lt.profile():
        pass
    arena.set_observer(lambda address, nbytes: seen.append(nbytes))
    try:
        block = arena.scratch(3 << 20)
        del block
    finally:
        arena.set_observer(None)
    assert seen == [3 << 20, -(3 << 20)]


@pytest.mark.slow
def test_torch_compile_keeps_what_it_has_compiled() -> None:
    import torch._dynamo

    def graphs() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).sin()

    def call(x: torch.Tensor) -> torch.Tensor:
        return compiled(x)

    compiled = torch.compile(f, backend="eager")
    x = torch.rand(1000)
    expected = compiled(x)
    before = graphs()
    with lt.profile() as prof:
        result = call(x)
        fresh = torch.compile(lambda x: x.cos() * 3, backend="eager")
        fresh(x)
    assert torch.equal(result, expected)
    assert graphs() == before + 1  # the fresh one
    compiled(x)
    fresh(x)
    assert graphs() == before + 1
    assert {row.source for row in prof.rows() if row.op == "aten::sin"} == {
        line_of(call, "return compiled")
    }


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, slope: float) -> torch.Tensor:
        ctx.slope = slope
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        return g * ctx.slope, None


exp = Exp.apply


@pytest.mark.parametrize("compiled", [lt.compile, torch.compile(backend="eager")])
def test_an_autograd_function_in_a_first_call(compiled: Callable[..., Any]) -> None:
    """Dynamo, which stops at the Function, does not look into what the profiler puts around it."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return Exp.apply(x * 2, 3.0) + exp(x, 2.0) * 2

    x = torch.randn(3, requires_grad=True)
    with lt.profile():
        y = compiled(f)(x)
        y.sum().backward()
    torch.testing.assert_close(y, f(x))
    assert torch.equal(x.grad, torch.full((3,), 10.0))
