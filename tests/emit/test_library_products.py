"""Products by PyTorch's library inside a region: results, gradients, and whose a product is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide import config
from lowtide.codegen import rates as measured_rates
from lowtide.codegen.host.parser import parse_host
from lowtide.codegen.host.printer import print_host
from lowtide.diagnostics import faults
from lowtide.errors import LowtideError
from lowtide.runtime import facts, rates
from lowtide.runtime.rates import Rates
from lowtide.texpr.library import Product, whole_of
from lowtide.texpr.parser import parse_program


def feed_forward(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return x + F.gelu(F.layer_norm(x, (96,)) @ w) @ v


def heads(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    q, k = ((x @ u).view(4, 40, 4, -1).transpose(1, 2) for u in (w, v.t()))
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ k


def turned(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).transpose(1, 2) * 2 + (x.transpose(1, 2).mean(-1) @ w)[:, :, None]


def twice(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x)
    return y @ w, (y @ w).relu() @ v


PROGRAMS = [feed_forward, heads, turned, twice]


@pytest.fixture
def by_library() -> Iterator[None]:
    with config.override(products="library"):
        yield


def operands(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    found = [torch.randn(4, 40, 96), torch.randn(96, 128) / 10, torch.randn(128, 96) / 12]
    return [x.to(dtype).requires_grad_() for x in found]


def flat(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_results_and_gradients(
    fn: Callable[..., Any], dtype: torch.dtype, by_library: None
) -> None:
    given, wide = operands(dtype), operands(torch.float64)
    with faults.strict():
        found = flat(lt.script(fn)(*given))
        got = torch.autograd.grad([x.sin().sum() for x in found], given, allow_unused=True)
    expected = flat(fn(*wide))
    want = torch.autograd.grad([x.sin().sum() for x in expected], wide, allow_unused=True)
    tolerance = 1e-4 if dtype is torch.float32 else 1e-11
    for a, b in zip([*found, *got], [*expected, *want], strict=True):
        if b is not None:
            torch.testing.assert_close(a, b.to(dtype), rtol=tolerance, atol=tolerance)


def test_the_host_program_calls_it(by_library: None) -> None:
    x, w, v = (t.detach() for t in operands(torch.float32))
    stages: Any = lt.script(feed_forward).stages(x, w, v)
    (text,) = [t for name, t in stages if name == "host program"]
    assert text.count("matmul(") == 2
    assert print_host(parse_host(text)) == text
    assert "by torch.matmul" in str(lt.script(feed_forward).explain(x, w, v))


def test_pairs_are_not_stored(by_library: None) -> None:
    def pairs(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(x @ y.t()).sum(1)

    stages: Any = lt.script(pairs).stages(torch.rand(900, 8), torch.rand(800, 8))
    (text,) = [t for name, t in stages if name == "host program"]
    assert "matmul(" not in text


def of_one_layer(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Attention whose queries, keys and values are thirds of one layer's result."""
    b, n, _ = x.shape
    q, k, v = (x @ w + bias).view(b, n, 3, 4, -1).permute(2, 0, 3, 1, 4)
    return torch.softmax(q @ k.transpose(-2, -1) / 6, -1) @ v


def of_two_thirds(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    b, n, _ = x.shape
    q, k, _ = (x @ w + bias).view(b, n, 3, 4, -1).permute(2, 0, 3, 1, 4)
    return q @ k.transpose(-2, -1)


@pytest.mark.parametrize(("fn", "is_whole"), [(of_one_layer, True), (of_two_thirds, False)])
def test_operands_that_are_parts_of_one_value(
    fn: Callable[..., Tensor], is_whole: bool, by_library: None
) -> None:
    """They are read in place: one kernel adds the bias to all of it, and none copies heads."""
    torch.manual_seed(0)
    sizes = ((4, 32, 32), (32, 384), (384,))
    given = [(torch.randn(s) / 4).requires_grad_() for s in sizes]
    found = lt.script(fn)(*given)
    got = torch.autograd.grad(found.sin().sum(), given)
    wide = [x.detach().double().requires_grad_() for x in given]
    want = torch.autograd.grad(fn(*wide).sin().sum(), wide)
    for a, b in zip([found, *got], [fn(*wide), *want], strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-4)
    stages: Any = lt.script(fn).stages(*(x.detach() for x in given))
    (text,) = [t for name, t in stages if name == "host program"]
    assert ("[(4, 4, 32, 32), (12288, 32, 384, 1), 0]" in text) == is_whole


PART = """\
input t: f32[4, 32, 384] strides (12288, 384, 1)
input x: f32[{of_x}] strides ({steps})
y[b:4, h:4, i:32, c:32]: f32 = add(t[b, i, 32*h + c + 128], {x})
output y
"""


@pytest.mark.parametrize(
    ("of_x", "steps", "x", "is_part"),
    [
        ("384", "1", "x[32*h + c + 128]", True),
        ("256", "1", "x[32*h + c + 128]", False),  # the last third has no bias
        ("4, 32", "32, 1", "x[h, c]", False),
        ("384", "1", "x[32*h + c]", False),
        ("4, 32, 384", "12288, 384, 1", "x[b, i, 32*h + c]", False),
    ],
)
def test_the_value_of_which_an_operand_is_a_part(
    of_x: str, steps: str, x: str, is_part: bool
) -> None:
    program = parse_program(PART.format(of_x=of_x, steps=steps, x=x))
    found = whole_of(program.defs["y"].expr, lambda name: program.inputs[name].shape)
    assert (found is not None) == is_part
    if found is not None:
        assert [a.extent.const for a in found.axes] == [4, 32, 384]


def entropy(h: Tensor, w: Tensor) -> Tensor:
    logp = (h @ w.t()).log_softmax(-1)
    return -(logp.exp() * logp).sum(-1).mean()


def test_logits_are_not_stored_when_the_backward_pass_recomputes_them(by_library: None) -> None:
    h, w = torch.randn(190, 64, requires_grad=True), torch.randn(16_000, 64, requires_grad=True)
    plan = lt.script(entropy).memory(h, w)
    assert plan.peak_bytes < 4 * w.numel() + 4 * 190 * 16_000 // 2


def product(rows: int, columns: int, terms: int, extra_bytes: int = 0) -> Product:
    return Product(
        dtype="f32", batch=1, rows=rows, columns=columns, terms=terms, extra_bytes=extra_bytes
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose library does large products twice as fast, and thin ones half as fast."""
    library, kernels = {"f32 large": 100.0, "f32 thin": 10.0}, {"f32 large": 50.0, "f32 thin": 20.0}
    monkeypatch.setattr(rates, "_current", {})
    rates.use(Rates(library=library, kernels=kernels, bytes_per_ns=10.0))
    with config.override(products=""):
        yield


def test_the_faster_one_is_chosen(measured: None) -> None:
    assert rates.is_librarys(product(512, 512, 512))
    assert not rates.is_librarys(product(8, 2048, 2048))
    assert rates.is_librarys(product(512, 512, 128, extra_bytes=4 << 20))  # a kernel stores as much
    assert not rates.is_librarys(product(512, 512, 512, extra_bytes=1 << 27))
    assert not rates.is_librarys(product(16, 16, 16))
    assert not rates.is_librarys(product(160, 160, 160))  # of a class that was not measured


@pytest.mark.parametrize(
    "damaged",
    [{}, {"library f32 large": "fast"}, {"library f32 large": "-1", "bytes_per_ns": "3"},
     {"library f32 large": "nan", "bytes_per_ns": "3"}, {"library f32 large": "3"}],
)  # fmt: skip
def test_a_damaged_table_is_none(
    damaged: dict[str, str], measured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "_current", {})
    monkeypatch.setattr(facts, "read", lambda kind, key: damaged)
    assert rates.current() == Rates()
    assert not rates.is_measured("f32")


def test_a_table_is_kept(measured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, str] = {}
    monkeypatch.setattr(facts, "write", lambda kind, key, rows: kept.update(rows))
    table = Rates(library={"f32 large": 2.5}, kernels={"f32 large": 3.5}, bytes_per_ns=4.0)
    rates.keep(table)
    monkeypatch.setattr(rates, "_current", {})
    monkeypatch.setattr(facts, "read", lambda kind, key: kept)
    assert rates.current() == table


def test_a_choice_that_there_is_not() -> None:
    with pytest.raises(LowtideError, match="LOWTIDE_PRODUCTS='mkl'"):
        config.from_environment({"LOWTIDE_PRODUCTS": "mkl"})


def doubled_product(x: Tensor, y: Tensor) -> Tensor:
    return (2 * x) @ y


def test_a_question_may_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are measured with real tensors, also while a dry run's have no memory."""
    monkeypatch.setattr(rates, "_current", {})
    monkeypatch.setattr(facts, "read", lambda kind, key: dict[str, str]())
    monkeypatch.setattr(facts, "write", lambda kind, key, rows: None)
    monkeypatch.setattr(measured_rates, "_LEAST_S", 0.0)
    x = torch.rand(260, 260, dtype=torch.float64)
    with config.override(products=""), torch.device("meta"):
        assert not rates.is_measured("f64")
        assert lt.script(doubled_product).memory(x, x).peak_bytes >= 8 * 260 * 260
        assert rates.is_measured("f64")


def test_the_call_that_measures_holds_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_current", {})
    monkeypatch.setattr(facts, "read", lambda kind, key: dict[str, str]())
    monkeypatch.setattr(facts, "write", lambda kind, key, rows: None)
    monkeypatch.setattr(measured_rates, "_LEAST_S", 0.0)
    x = torch.rand(260, 260)
    with config.override(products=""), lt.profile() as found:
        lt.script(doubled_product)(x, x)
        assert rates.is_measured("f32")
    assert found.peak_bytes < 4 << 20


@pytest.mark.parametrize("is_busy", [False, True])
def test_what_a_busy_machine_gives_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    monkeypatch.setattr(rates, "_current", {})
    monkeypatch.setattr(measured_rates, "_LEAST_S", 0.0)
    found = (100.0, 1.0 if is_busy else 50.0)
    monkeypatch.setattr(measured_rates, "_of_product", lambda *_: found)
    written: list[str] = []
    monkeypatch.setattr(facts, "read", lambda kind, key: dict[str, str]())
    monkeypatch.setattr(facts, "write", lambda kind, key, rows: written.append(kind))
    with config.override(products=""):
        measured_rates.ensure_measured(["f32"])
        assert rates.is_measured("f32")
        assert rates.is_librarys(product(512, 512, 512)) != is_busy
    assert ("rates" in written) != is_busy


def test_explain_shows_the_rates_of_a_product(measured: None) -> None:
    x, w, v = torch.randn(512, 96), torch.randn(96, 512), torch.randn(512, 96)
    text = str(lt.script(feed_forward).explain(x, w, v))
    assert "f32 large product: library 100, kernels 50 operations per ns" in text
