"""Programs of several regions as C: branches, loops and numbers on data, sorts, results whose size
the data decide, messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from tests.c_library.calling import BAD_SIZE, OK, RAISED, Library, sanitized


def kmeans(x: Tensor, c: Tensor, tol: float) -> Tensor:
    shift = torch.full((), float("inf"))
    steps = 0
    while shift > tol and steps < 50:
        nearest = (x[:, None] - c).square().sum(-1).argmin(1)
        sums = torch.zeros_like(c).index_add(0, nearest, x)
        counts = torch.zeros(c.shape[0]).index_add(0, nearest, torch.ones(x.shape[0]))
        new = sums / counts.clamp(min=1)[:, None]
        shift = (new - c).abs().max()
        c = new
        steps += 1
    return c


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    order = scores.argsort(descending=True)
    b = boxes[order]
    area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    low, high = torch.maximum(b[:, None, :2], b[:, :2]), torch.minimum(b[:, None, 2:], b[:, 2:])
    sides = (high - low).clamp(min=0)
    inter = sides[..., 0] * sides[..., 1]
    iou = inter / (area[:, None] + area - inter)
    keep = torch.ones(boxes.shape[0], dtype=torch.bool)
    for i in range(boxes.shape[0]):
        if bool(keep[i]):
            keep[i + 1 :] &= iou[i, i + 1 :] <= threshold
    return order[keep]


def shrinking(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    while x.shape[0] > 0 and steps < 9:
        x = x[x > x.mean()] - 0.01
        steps += 1
    return x, steps


def numbers(x: Tensor, n: int, f: float) -> tuple[Tensor, int, float, bool]:
    top = x.max().item()
    if top > 2:
        y = x / top
    else:
        y = x * math.sqrt(f + n)
    k = int(top * 10) // 3 - n % 7
    total = 0
    for i in range(x.shape[0]):
        if i % 3 == 1:
            total += i * i
        elif total > 1000:
            break
    return y + k, total + k, top / (f + 1), k > 3 or math.isnan(f)


def fibonacci(x: Tensor, n: int) -> tuple[Tensor, int]:
    a, b = 0, 1
    m = int(x[0].item()) + n
    for _ in range(m):
        a, b = b, a + b
    return x + a % 7, a


def swapped(a: Tensor, b: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    while a.sum() < limit:
        a, b = b * 1.5, a + 0.25
    return a, b


def checked(x: Tensor) -> Tensor:
    assert x.min() > -10, "too small"
    if x.max() > 100:
        raise ValueError("too large")
    return x * 2


def ordered(x: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    values, places = x.sort(dim=1, descending=True)
    top = x.topk(3, dim=0, largest=False)
    return values, places, top.values, top.indices, x.sum(1).argsort()[:n]


def places(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found = torch.nonzero(x > 0.5)
    return found, x[x > 0.5] * 2, x[x.sum(1) > x.shape[1] / 2] + 1


def several(x: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
    is_on = bool(flag.any())
    y = x + 1
    if is_on:
        z = y.cumsum(0)
    else:
        z = y[:3].sum(0, keepdim=True)
    return y, z


X = torch.rand(200, 3, generator=torch.Generator().manual_seed(1))
B = torch.cat([X[:60, :2], X[:60, :2] + X[60:120, :2]], 1)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "kmeans": (kmeans, (X, X[:40].clone(), 1e-3)),
    "nms": (nms, (B, X[:60, 2].clone(), 0.4)),
    "shrinking": (shrinking, (X[:, 0].clone(),)),
    "numbers": (numbers, (X * 2.5, 3, 0.5)),
    "fibonacci": (fibonacci, (X[:50, 0] * 20 + 5, 4)),
    "swapped": (swapped, (X[:, 0].clone(), X[:, 1].clone(), 500.0)),
    "checked": (checked, (X,)),
    "ordered": (ordered, (X, 40)),
    "places": (places, (X,)),
    "several": (several, (X, X[:, 0] > 0.5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path) -> None:
    program, args = PROGRAMS[name]
    lt.export_c(lt.script(program), tmp_path, args)
    assert "largest difference" in sanitized(tmp_path)
    flat: list[Any] = []
    _flatten(program(*[a.clone() if isinstance(a, Tensor) else a for a in args]), flat)
    recorded = (tmp_path / "model_selftest.bin").read_bytes()
    for x in flat:  # the self-test compares with what PyTorch gives
        x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=_KINDS[type(x)])
        raw = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert raw in recorded or not _is_exact(x)


_KINDS = {int: torch.int64, float: torch.float64, bool: torch.bool}


def _is_exact(x: Tensor) -> bool:
    return not x.is_floating_point()


def _flatten(x: Any, flat: list[Any]) -> None:
    if isinstance(x, tuple | list):
        for e in x:
            _flatten(e, flat)
    else:
        flat.append(x)


@pytest.fixture(scope="module")
def exported_nms(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("nms")
    lt.export_c(lt.script(nms), folder, (B, X[:60, 2].clone(), 0.4))
    return Library(folder)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 33, 150])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
def test_nms_of_other_boxes(exported_nms: Library, n: int, threshold: float) -> None:
    torch.manual_seed(n)
    corner = torch.rand(n, 2)
    boxes, scores = torch.cat([corner, corner + torch.rand(n, 2)], 1), torch.rand(n)
    out, shape = torch.zeros(n, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    sizes = (n,)
    assert exported_nms("nms", sizes, (boxes, scores, threshold), [(out, shape)]) == OK
    assert torch.equal(out[: int(shape)], nms(boxes, scores, threshold))
    short, is_empty = torch.zeros(0, dtype=torch.int64), n == 0
    status = exported_nms("nms", sizes, (boxes, scores, threshold), [(short, shape)])
    assert (status == OK) is is_empty


def test_kmeans_of_other_points(tmp_path: Path) -> None:
    lt.export_c(lt.script(kmeans), tmp_path, (X, X[:40].clone(), 1e-3))
    library = Library(tmp_path)
    for n, k, tol in ((500, 7, 1e-4), (90, 2, 0.0), (40, 40, 1.0)):
        torch.manual_seed(n)
        x = torch.randn(n, 3)
        c, out = x[:k].clone(), torch.zeros(k, 3)
        assert library("kmeans", (n, k), (x, c, tol), [out]) == OK
        torch.testing.assert_close(out, kmeans(x, c, tol), rtol=1e-5, atol=1e-5)


def test_what_the_program_raises(tmp_path: Path) -> None:
    lt.export_c(lt.script(checked), tmp_path, (X,))
    library, out = Library(tmp_path), torch.zeros(50, 3)
    x = torch.rand(50, 3)
    assert library("checked", (50,), (x,), [out]) == OK
    x[3, 1] = -20
    assert library("checked", (50,), (x,), [out]) == RAISED
    assert library.message("checked").startswith("AssertionError: too small (")
    x[3, 1] = 200
    assert library("checked", (50,), (x,), [out]) == RAISED
    assert library.message("checked").startswith("ValueError: too large (")


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    lt.export_c(lt.script(fibonacci), tmp_path, (X[:50, 0] * 20 + 5, 4))
    library, out, number = Library(tmp_path), torch.zeros(50), torch.zeros(1, dtype=torch.int64)
    x = torch.full((50,), 70.0)
    assert library("fibonacci", (50, 4), (x, 4), [out, number]) == OK
    assert number.item() == fibonacci(x, 4)[1]
    assert torch.equal(out, fibonacci(x, 4)[0])
    for bad in (99.0, math.inf, math.nan, 3e38):
        status = library("fibonacci", (50, 4), (x.fill_(bad), 4), [out, number])
        assert status == RAISED, bad
        assert library.message("fibonacci")


def test_sizes_that_vary_in_a_loop(tmp_path: Path) -> None:
    lt.export_c(lt.script(shrinking), tmp_path, (X[:, 0].clone(),))
    library = Library(tmp_path)
    for n in (2, 5, 1000):
        torch.manual_seed(n)
        x = torch.rand(n)
        out, shape = torch.zeros(n), torch.zeros(1, dtype=torch.int64)
        steps = torch.zeros(1, dtype=torch.int64)
        assert library("shrinking", (n,), (x,), [(out, shape), steps]) == OK
        expected, count = shrinking(x)
        assert int(steps) == count
        torch.testing.assert_close(out[: int(shape)], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_sorts(dtype: torch.dtype, tmp_path: Path) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        up, down = x.sort(dim=0, stable=True), x.sort(dim=1, descending=True, stable=True)
        return up.values, up.indices, down.values, down.indices

    torch.manual_seed(0)
    x = torch.randint(-9, 9, (40, 50)).to(dtype)
    if dtype.is_floating_point:
        x[3, ::7] = math.nan
        x[4, ::5] = math.inf
        x[5, ::3] = -0.0
    lt.export_c(lt.script(both), tmp_path, (x,))
    outs = [torch.zeros_like(e) for e in both(x)]
    assert Library(tmp_path)("both", (40, 50), (x,), outs) == OK
    for out, expected in zip(outs, both(x), strict=True):
        torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def grown(x: Tensor) -> Tensor:
    while x.sum() < 100:
        x = torch.cat([x, x])
    return x


def printed(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print(x.shape)
    y = torch.linalg.svdvals(x)
    while y.sum() > 0:
        y = torch.linalg.svdvals(x) - 1
    return y


def written_beside_another_name(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    z = y
    if x.sum() > 1e9:
        z = x * 2
    z += 1
    return y, z


def written_in_a_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    keep = x + 0
    other = keep
    for i in range(x.shape[0]):
        if keep[i].sum() > 0.5:
            keep[i:] = keep[i:] * 0.5
    return keep, other


def written_after_a_step(x: Tensor) -> tuple[Tensor, Tensor]:
    keep = x + 0
    before = x + 1
    while keep.sum() > 1:
        keep[0] = keep[0] * 0.5 - 1
        before = keep
        keep = before * 0.5
        keep[1] = 0
    return keep, before


@pytest.mark.parametrize(
    "program", [written_beside_another_name, written_in_a_loop, written_after_a_step]
)
def test_writes_that_another_name_sees_are_refused(program: Any, tmp_path: Path) -> None:
    with pytest.raises(lt.ExportError, match="another name"):
        lt.export_c(lt.script(program), tmp_path / "out", (torch.rand(40, 40),))


@pytest.mark.parametrize(
    ("program", "words"),
    [(grown, ["grows", "preallocate"]), (printed, ["prints", "svdvals", "has no kernel"])],
)
def test_what_is_refused(program: Any, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(lt.ExportError) as caught:
        lt.export_c(lt.script(program), tmp_path / "out", (torch.rand(40, 40),))
    assert all(word in str(caught.value) for word in words)


def test_sizes_whose_product_does_not_fit(tmp_path: Path) -> None:
    lt.export_c(lt.script(several), tmp_path, (torch.rand(40, 50), torch.rand(40) > 0.5))
    library, x = Library(tmp_path), torch.rand(4)
    for n in (1 << 35, 1 << 40):
        assert library("several", (n, n, 40), (x, x), [x, (x, x)]) == BAD_SIZE


def unassigned(x: Tensor, n: int) -> tuple[Tensor, float, int, Tensor]:
    best = -1.0
    if n > 3:
        first = x * 2
    for i in range(x.shape[0]):
        if x[i].sum() > best + n:
            best = x[i].sum().item()
            where = i
            rest = x[: i + 1].sum(0)
    return first, best, where, rest


def test_variables_that_not_all_paths_assign(tmp_path: Path) -> None:
    lt.export_c(lt.script(unassigned), tmp_path, (X + 4, 4))
    library = Library(tmp_path)
    for n, k in ((200, 4), (50, 3), (3, 9)):
        x = torch.rand(n, 3) + 4
        outs = torch.zeros(n, 3), torch.zeros((), dtype=torch.float64), torch.zeros(
            (), dtype=torch.int64
        ), torch.zeros(3)  # fmt: skip
        status = library("unassigned", (n, k), (x, k), outs)
        if k <= 3:
            assert status == RAISED
            assert library.message("unassigned").startswith("UnboundLocalError: first")
            continue
        assert status == OK
        for out, expected in zip(outs, unassigned(x, k), strict=True):
            torch.testing.assert_close(out, torch.as_tensor(expected, dtype=out.dtype))
    assert library("unassigned", (50, 4), (torch.zeros(50, 3) - 99, 4), outs) != OK


def written(x: Tensor, limit: float) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    y = x.clone()
    y[y < limit] *= 2
    y[y.sum(1) > 1] = y[y.sum(1) > 1] - 1
    rows, columns = torch.nonzero(y > limit, as_tuple=True)
    return y, (rows, columns), torch.where(x > limit)[0]


def test_rows_that_a_mask_chooses_are_written(tmp_path: Path) -> None:
    lt.export_c(lt.script(written), tmp_path, (X, 0.5))
    library = Library(tmp_path)
    for n in (2, 50):
        x = torch.rand(n, 3)
        y, (rows, columns), first = written(x, 0.5)
        out = torch.zeros(n, 3)
        places = [(torch.zeros(3 * n, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
                  for _ in range(3)]  # fmt: skip
        assert library("written", (n,), (x, 0.5), [out, *places]) == OK
        torch.testing.assert_close(out, y)
        for (found, count), expected in zip(places, (rows, columns, first), strict=True):
            assert torch.equal(found[: int(count)], expected)


def test_a_refusal_names_no_other_op(tmp_path: Path) -> None:
    def several(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.linalg.svdvals(x), F.pixel_shuffle(x.view(1, 4, -1, 40), 2), x.max()

    with pytest.raises(lt.ExportError) as caught:
        lt.export_c(lt.script(several), tmp_path, (torch.rand(40, 40),))
    assert len(caught.value.reasons) == 1
