"""`tune=True`: any tiling gives the same results; the fastest is taken, and remembered."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide import config
from lowtide.codegen import tuned
from lowtide.codegen.executable import Executable
from lowtide.errors import BackendError
from lowtide.runtime import toolchain
from lowtide.texpr.expr import Program
from lowtide.tile.target import BLOCK_TILINGS, TILINGS
from lowtide.tools.programs import PROGRAMS


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Kernels are compiled once for all tests here."""
    path = tmp_path_factory.mktemp("cache")
    with config.override(cache_dir=str(path)):
        yield path


@pytest.fixture(autouse=True)
def _nothing_measured(cache: Path) -> None:
    shutil.rmtree(cache / "lowtide-1" / "tilings", ignore_errors=True)


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[list[str]]]:
    """From now on one tiling is the fastest; gives the lists of those that were measured."""
    measured: list[list[str]] = []

    def times(ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        measured.append(list(ways))
        for way in ways.values():
            way()
        return {name: 1.0 if name == taken[0] else 2.0 for name in ways}

    taken = [""]
    monkeypatch.setattr(tuned, "_times", times)

    def choose(tiling: str) -> list[list[str]]:
        taken[0] = tiling
        return measured

    return choose


def clouds(n: int, m: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(s, generator=g) for s in ((n, 3), (m, 3), (m, 40)))


def gaussian(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b


def running(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    out = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        out.append(h)
    return torch.stack(out)


def notes(fn: lt.ScriptFunction, *args: Tensor) -> str:
    return str(fn.explain(*args))


@pytest.mark.parametrize("tiling", TILINGS)
def test_values(tiling: str, take: Callable[[str], list[list[str]]]) -> None:
    """Sums longer than a tile, rows and columns that no tile divides, gradients."""
    take(tiling)
    given = [x.requires_grad_() for x in clouds(301, 455)]
    same = [x.detach().clone().requires_grad_() for x in given]
    got, want = lt.script(gaussian, tune=True)(*given), gaussian(*same)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    got.square().sum().backward()
    want.square().sum().backward()
    for g, w in zip(given, same, strict=True):
        torch.testing.assert_close(g.grad, w.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tiling", BLOCK_TILINGS)
def test_values_of_blocks(
    tiling: str, take: Callable[[str], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from tests.blocks.quick_interpreter import quicken

    quicken(monkeypatch)
    take(tiling)
    args = clouds(70, 90)
    with config.override(interpret_blocks=True):
        got = lt.script(gaussian, tune=True)(*args)
    torch.testing.assert_close(got, gaussian(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_tiling_can_be_planned(name: str) -> None:
    """`verify` holds each plan to reading nothing that is not whole; planning raises nothing."""
    program = PROGRAMS[name]
    made = lt.script(program.function)
    args = [x.to("meta") for x in program.make_inputs(*program.full)]
    usual = dict(made.stages(*args))["tensor expressions"]
    assert usual
    step = made.driver(tuple(args)).planned(args).plan.region(0)
    assert step is not None
    host = step.resolve(args).spec.host
    assert host is not None
    sizes = dict(zip(host.symbols, step.resolve(args).sizes, strict=True))
    for machine, tilings in (("cpu", TILINGS), ("interpreter", BLOCK_TILINGS)):
        for tiling in tilings:
            tuned.compile_program(
                host.program,
                symbols=host.symbols,
                scalars=host.scalars,
                hints=sizes,
                machine=machine,
                tiling=tiling,
            )


def test_a_recurrence(take: Callable[[str], list[list[str]]]) -> None:
    """Loops are measured as a whole."""
    measured = take("few registers")
    x, w = torch.randn(9, 33, 40), torch.randn(40, 40) * 0.1
    made = lt.script(running, tune=True)
    torch.testing.assert_close(made(x, w), running(x, w), rtol=1e-4, atol=1e-4)
    assert len(measured) == 1
    # where vectors are narrow, the cost model has taken this tiling itself
    is_another = "few registers" in measured[0]
    assert is_another or toolchain.target().vector_bytes < 64
    assert ('tiling "few registers", by measurement' in notes(made, x, w)) == is_another


def test_measured_once_for_sizes_of_a_class(take: Callable[[str], list[list[str]]]) -> None:
    measured = take("few rows")
    made = lt.script(gaussian, tune=True)
    for n in (500, 400, 501):
        made(*clouds(n, n))
    assert len(measured) == 1
    assert measured[0][0] == ""
    assert len(measured[0]) > 2
    made(*clouds(1200, 1200))
    assert len(measured) == 2
    assert 'tiling "few rows", by measurement' in notes(made, *clouds(500, 500))


def test_remembered_on_disk(take: Callable[[str], list[list[str]]], cache: Path) -> None:
    measured = take("few rows")
    args = clouds(301, 455)
    lt.script(gaussian, tune=True)(*args)
    again = lt.script(gaussian, tune=True)
    torch.testing.assert_close(again(*args), gaussian(*args), rtol=1e-4, atol=1e-4)
    assert len(measured) == 1
    assert 'tiling "few rows", by measurement' in notes(again, *args)
    (kept,) = cache.glob("lowtide-1/tilings/*.json")
    kept.write_text("{")
    lt.script(gaussian, tune=True)(*args)
    assert len(measured) == 2


@pytest.mark.parametrize("error", [AssertionError("no plan"), BackendError("refused")])
def test_remembered_but_not_to_be_had(
    error: Exception,
    take: Callable[[str], list[list[str]]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the planner or by the compiler: the others are measured, and that is remembered."""
    measured = take("few rows")
    args = clouds(301, 455)
    lt.script(gaussian, tune=True)(*args)
    real = tuned.compile_program

    def refuse() -> None:
        raise error

    def broken(program: Program, *, tiling: str, **asked: Any) -> Executable:
        made = real(program, tiling=tiling, **asked)
        if tiling == "few rows" and isinstance(error, AssertionError):
            raise error
        if tiling == "few rows":
            monkeypatch.setattr(made.first, "bound", refuse)
        return made

    monkeypatch.setattr(tuned, "compile_program", broken)
    torch.testing.assert_close(
        lt.script(gaussian, tune=True)(*args), gaussian(*args), rtol=1e-4, atol=1e-4
    )
    assert len(measured) == 2
    assert "few rows" not in measured[1]
    (kept,) = cache.glob("lowtide-1/tilings/*.json")
    assert kept.read_text() == '{"tiling": ""}'


def test_least_memory_of_those_that_can_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tuned.compile_program

    def broken(program: Program, *, tiling: str, **asked: Any) -> Executable:
        if tiling == "few rows":
            raise AssertionError("no plan")
        return real(program, tiling=tiling, **asked)

    monkeypatch.setattr(tuned, "compile_program", broken)
    with pytest.raises(lt.BudgetError, match="needs at least"):
        lt.script(gaussian, budget=1)(*clouds(301, 455))


def test_a_little_faster_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "_times", lambda ways: {n: 0.98 if n else 1.0 for n in ways})
    made = lt.script(gaussian, tune=True)
    args = clouds(301, 455)
    made(*args)
    assert "by measurement" not in notes(made, *args)


def test_the_predicted_peak_is_a_bound(take: Callable[[str], list[list[str]]]) -> None:
    """Before it is measured, and of what is chosen then."""
    take("many rows")
    args = clouds(2000, 3000)
    made, usual = lt.script(gaussian, tune=True), lt.script(gaussian)
    before = made.memory(*args).peak_bytes
    assert usual.memory(*args).peak_bytes <= before
    made(*args)
    assert made.memory(*args).peak_bytes <= before


def test_times_are_measured() -> None:
    """The real ones; `stages` shows them."""
    made = lt.script(gaussian, tune=True)
    args = clouds(301, 455)
    made(*args)
    (text,) = [text for name, text in made.stages(*args) if "tilings" in name]
    assert "usual" in text
    assert " ms " in text


@pytest.mark.parametrize("way", ["trace", "compile", "module", "decorator", "budget"])
def test_every_front_end_asks_for_it(way: str, take: Callable[[str], list[list[str]]]) -> None:
    measured = take("")
    args = clouds(301, 455)

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, b: Tensor) -> Tensor:
            return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b

    made = {
        "trace": lambda: lt.trace(gaussian, args, tune=True),
        "compile": lambda: lt.compile(gaussian, tune=True),
        "module": lambda: lt.script(Layer(), tune=True),
        "decorator": lambda: lt.script(tune=True)(gaussian),
        "budget": lambda: lt.script(gaussian, tune=True, budget="64MB"),
    }[way]()
    torch.testing.assert_close(made(*args), gaussian(*args), rtol=1e-4, atol=1e-4)
    assert measured


@pytest.mark.parametrize("tune", ["yes", 1, None])
def test_what_is_no_truth_value(tune: object) -> None:
    with pytest.raises(lt.LowtideError, match=r"tune=.* is neither True nor False"):
        lt.script(gaussian, tune=tune)  # pyright: ignore
