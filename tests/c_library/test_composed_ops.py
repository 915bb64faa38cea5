"""Ops of PyTorch that have no kernel, lists that loops fill, and ints of 8 and 16 bits: exported C
gives what eager PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from tests.c_library.calling import OK, RAISED, Library


def order(x: Tensor) -> tuple[Tensor, ...]:
    whole, (values, _) = x.median(), x.median(dim=0)
    parts = x.quantile(torch.tensor([0.1, 0.9]), dim=0)
    return whole, values, x.kthvalue(2, dim=1)[0], x.quantile(0.25), parts, x[:, 0].nanmedian()


def places(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    added = torch.zeros(9, 7).index_put_((i, j), x, accumulate=True)
    written = torch.zeros(9, 7)
    written[i, j] = 1.0
    written[::2, 1] = 3.0
    counts = torch.zeros(9)
    counts[i] += 1
    return added, written, counts, torch.bucketize(x, torch.linspace(0, 1, 5)), x.histc(4, 0.0, 1.0)


def images(x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
    return (
        F.grid_sample(x, grid, align_corners=False),
        F.grid_sample(x, grid, "nearest", "border", align_corners=True),
        F.grid_sample(x, grid, padding_mode="reflection", align_corners=False),
        F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=False),
        F.interpolate(x, size=(3, 5), mode="area"),
        F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True),
        F.interpolate(x, size=(5, 7), mode="nearest-exact"),
    )


def bags(words: Tensor, offsets: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    means = F.embedding_bag(words, table, offsets, mode="mean")
    rows = words[:36].view(4, 9)
    return means, F.embedding_bag(rows, table, mode="sum")


def solved(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    spd = a @ a.t() + torch.eye(5)
    return torch.linalg.solve(a, b), torch.inverse(a), torch.linalg.cholesky(spd)


def sound(pcm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = pcm.float() / 32768
    return x, (x * 40000).clamp(-32768, 32767).round().to(torch.int16), pcm[1:] - pcm[:-1]


torch.manual_seed(0)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "order": (order, (torch.randn(51, 6),)),
    "places": (places, (torch.rand(50), torch.randint(9, (50,)), torch.randint(7, (50,)))),
    "images": (images, (torch.rand(1, 2, 12, 16), torch.rand(1, 4, 5, 2) * 2.4 - 1.2)),
    "bags": (bags, (torch.randint(50, (40,)), torch.tensor([0, 3, 3, 20]), torch.rand(50, 8))),
    "solved": (solved, (torch.randn(5, 5), torch.randn(5))),
    "sound": (sound, (torch.randint(-30000, 30000, (400,), dtype=torch.int16),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_eager_gives(name: str, tmp_path: Path) -> None:
    program, args = PROGRAMS[name]
    found = lt.export_c(lt.script(program), tmp_path, args)
    assert "largest difference" in found.selftest()
    library = Library(tmp_path)
    expected = [e.contiguous() for e in program(*(a.clone() for a in args))]
    outs = [torch.zeros_like(e) for e in expected]
    header = (tmp_path / "model.h").read_text()
    sizes = [n for a in args for d, n in enumerate(a.shape) if n > 32 and f"[{d}]" in header]
    assert library(name, sizes[: header.count("int64_t v")], args, outs) == OK
    for out, e in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, e, rtol=1e-4, atol=1e-5)


def distinct(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values, inverse, counts


def test_distinct_values(tmp_path: Path) -> None:
    lt.export_c(lt.script(distinct), tmp_path, (torch.randint(0, 9, (50,)),))
    library = Library(tmp_path)
    for n in (0, 1, 40):
        x = torch.randint(0, 9, (n,))
        values, counts = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
        inverse, (many, other) = torch.zeros(n, dtype=torch.int64), torch.zeros(2, 1).long()
        outs = [(values, many), inverse, (counts, other)]
        assert library("distinct", (n,), (x,), outs) == OK
        expected = distinct(x)
        assert torch.equal(values[: int(many)], expected[0])
        assert torch.equal(inverse, expected[1])
        assert torch.equal(counts[: int(other)], expected[2])


def runs(x: Tensor) -> tuple[Tensor, Tensor, int]:
    """The places where a row begins another sign, and the sums of the rows until there."""
    starts: list[int] = []
    sums: list[Tensor] = []
    total = torch.zeros(x.shape[1])
    sign = 0
    for i in range(x.shape[0]):
        total = total + x[i]
        now = 1 if bool(total[0] > 0) else -1
        if now != sign:
            starts.append(i)
            sums.append(total)
        sign = now
    last = starts[-1] if len(starts) > 0 else -1
    return torch.tensor(starts, dtype=torch.int64), torch.stack(sums, 1), last


def test_lists_that_a_loop_fills(tmp_path: Path) -> None:
    lt.export_c(lt.script(runs), tmp_path, (torch.randn(50, 3),))
    library = Library(tmp_path)
    for n in (1, 2, 90):
        x = torch.randn(n, 3)
        starts, sums = torch.zeros(n, dtype=torch.int64), torch.zeros(3 * n)
        shapes = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        last = torch.zeros((), dtype=torch.int64)
        outs = [(starts, shapes[0]), (sums, shapes[1]), last]
        assert library("runs", (n,), (x,), outs) == OK
        expected = runs(x)
        assert torch.equal(starts[: int(shapes[0])], expected[0])
        found = sums[: 3 * int(shapes[0])].view(3, -1)
        torch.testing.assert_close(found, expected[1])
        assert int(last) == expected[2]
    starts, sums = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    outs = [(starts, shapes[0]), (sums, shapes[1]), last]
    assert library("runs", (0,), (torch.zeros(0, 3),), outs) == RAISED
    assert "empty list" in library.message("runs")


def without_bound(x: Tensor) -> Tensor:
    found: list[int] = []
    total = x.sum()
    while bool(total > 1):
        total = total * 0.5
        found.append(int(total))
    return torch.tensor(found)


def held(x: Tensor) -> Tensor:
    rows: list[Tensor] = []
    h = x[0].clone()
    for i in range(x.shape[0]):
        if bool(x[i].sum() > 0):
            rows.append(h)
            h[0] = 7.0
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("program", "words"), [(without_bound, "without a bound"), (held, "a list holds")]
)
def test_lists_that_are_refused(program: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(lt.ExportError, match=words):
        lt.export_c(lt.script(program), tmp_path, (torch.rand(40, 3),))
