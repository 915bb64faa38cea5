"""An ExportedProgram, and a plain module or function, as C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import lowtide as lt
from tests.c_library.calling import BAD_SIZE, OK, Library


class Layers(nn.Module):
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.batch = nn.Linear(40, 8), nn.LayerNorm(8), nn.BatchNorm1d(8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor, k: int) -> tuple[dict[str, Any], Tensor]:
        y = self.batch(self.norm(F.gelu(self.linear(x))))
        self.total.add_(y.mean(0))
        a, _ = y.chunk(2, -1)
        attended = F.scaled_dot_product_attention(y[None], y[None], y[None])
        masked = y.masked_fill(y > 0, float("-inf"))
        return {"a": a.reshape(-1, 2) * k, "n": x.shape[0] + 1}, torch.cat([attended[0], masked])


def exported(m: nn.Module, *args: Any, shapes: Any) -> torch.export.ExportedProgram:
    return torch.export.export(m, args, dynamic_shapes=shapes)


def test_a_program_with_state(tmp_path: Path) -> None:
    torch.manual_seed(0)
    m = Layers().eval()
    program = exported(m, torch.rand(50, 40), 5, shapes=({0: Dim.AUTO}, Dim.AUTO))
    m.total.zero_()
    found = lt.export_c(program, tmp_path)
    assert "largest difference" in found.selftest()
    header = (tmp_path / "model.h").read_text()
    assert "v0 = x.shape[0], at least 2" in header
    assert "constant, as in the example: x.shape[1] = 40" in header
    library = Library(tmp_path)
    assert library.start(64) == OK
    for n, k in ((50, 5), (7, 2), (300, 3)):
        x = torch.rand(n, 40)
        with torch.no_grad():
            named, joined = m(x, k)
        a, count, out = (
            torch.zeros(2 * n, 2),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(2 * n, 8),
        )
        assert library("forward", (n, k), (x, k), [a, count, out]) == OK
        torch.testing.assert_close(a, named["a"])
        torch.testing.assert_close(out, joined)
        assert count.item() == n + 1
    # torch.export has taken it that n is no 1
    assert library("forward", (1, 2), (torch.rand(1, 40), 2), [a, count, out]) == BAD_SIZE


class Branches(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cond(x.sum() > 0, lambda q: q * 2, lambda q: q - 1, (x,))
        steps, z = torch.while_loop(
            lambda k, q: (k < 9) & (q.sum() > 1), lambda k, q: (k + 1, q * 0.5),
            (torch.zeros((), dtype=torch.int64), x.abs()),
        )  # fmt: skip
        return y + z, steps


def test_control_flow_of_a_program(tmp_path: Path) -> None:
    x = torch.rand(50)
    lt.export_c(exported(Branches(), x, shapes=({0: Dim.AUTO},)), tmp_path)
    library = Library(tmp_path)
    for n in (2, 33):
        for x in (torch.rand(n), -torch.rand(n), torch.zeros(n)):
            out, steps = torch.zeros(n), torch.zeros((), dtype=torch.int64)
            assert library("forward", (n,), (x,), [out, steps]) == OK
            y, count = Branches()(x)
            torch.testing.assert_close(out, y)
            assert torch.equal(steps, count)


def scripts_badly(points: Tensor, others: Tensor, **options: Any) -> Tensor:
    weights = {"far": 2.0} | options
    d = torch.cdist(points, others)
    return d.min(1).values * weights["far"] + sum(len(word) for word in ("a", "bc"))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_plain_function(wrapped: bool, tmp_path: Path) -> None:
    a, b = torch.rand(50, 3), torch.rand(40, 3)
    lt.export_c(lt.compile(scripts_badly) if wrapped else scripts_badly, tmp_path, (a, b))
    library = Library(tmp_path)
    assert library("forward", (7, 90), (a, b), [a]) == BAD_SIZE  # cdist has another way up to 25
    a, b, out = torch.rand(70, 3), torch.rand(90, 3), torch.zeros(70)
    assert library("forward", (70, 90), (a, b), [out]) == OK
    torch.testing.assert_close(out, scripts_badly(a, b), rtol=1e-5, atol=1e-5)


def test_a_plain_module(tmp_path: Path) -> None:
    m = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2)).eval()
    lt.export_c(m, tmp_path, (torch.rand(1, 2, 50),))
    x = torch.rand(1, 2, 77)
    out = torch.zeros(1, 4, 37)
    assert Library(tmp_path)("forward", (77,), (x,), [out]) == OK
    torch.testing.assert_close(out, m(x).detach())


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.linalg.svdvals(x)
        return y, torch.linalg.qr(x)[0]


def test_what_is_refused_names_the_users_lines(tmp_path: Path) -> None:
    with pytest.raises(lt.ExportError, match=r"torch\.export cannot capture it.*lt\.script"):
        lt.export_c(Decides(), tmp_path, (torch.rand(50),))
    with pytest.raises(lt.ExportError) as caught:
        lt.export_c(Inverse(), tmp_path, (torch.rand(50, 50),))
    text = str(caught.value)
    assert "svdvals" in text
    assert "qr" in text
    assert "torch.linalg.svdvals(x)" in text
    assert "test_exported_graphs.py" in text
