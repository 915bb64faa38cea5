"""Arrays that are read and written in parts, and calls that resume."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.errors import LowtideError
from lowtide.scale import arrays as parts


def similar(a: Tensor, b: Tensor):
    return a @ b.T


def nearest(a: Tensor, b: Tensor):
    return torch.cdist(a, b).min(1)


def arrays(folder: Path) -> tuple[Any, Any]:
    """Two memory maps of points."""
    made = []
    for k, n in enumerate((700, 500)):
        x = np.memmap(folder / f"{k}.bin", dtype="float32", mode="w+", shape=(n, 16))
        x[:] = np.random.default_rng(k).normal(size=(n, 16))
        x.flush()
        made.append(np.memmap(folder / f"{k}.bin", dtype="float32", mode="r", shape=(n, 16)))
    return made[0], made[1]


def plain(*given: Any) -> list[Tensor]:
    return [torch.from_numpy(np.array(x)) for x in given]


def place(folder: Path, shape: tuple[int, ...] = (700, 500), dtype: str = "float32") -> Any:
    return np.memmap(folder / "out.bin", dtype=dtype, mode="w+", shape=shape)


def test_memory_maps_are_read_and_written_in_parts(tmp_path: Path) -> None:
    a, b = arrays(tmp_path)
    out = place(tmp_path)
    plan = lt.plan_chunks(similar, a, b, budget=300_000, out=out)
    assert plan.tasks > 3
    assert lt.map_chunks(similar, a, b, budget=300_000, out=out) is out
    torch.testing.assert_close(torch.from_numpy(np.array(out)), similar(*plain(a, b)))
    assert not (tmp_path / "out.bin.lowtide.json").exists()


def test_several_results_go_to_several_places(tmp_path: Path) -> None:
    a, b = arrays(tmp_path)
    values, indices = torch.empty(700), np.empty(700, dtype="int64")
    found = lt.map_chunks(nearest, a, b, budget=800_000, out=(values, indices), tasks=5)
    expected = nearest(*plain(a, b))
    assert found[0] is values
    torch.testing.assert_close(values, expected.values)
    assert (indices == expected.indices.numpy()).all()
    found = lt.map_chunks(nearest, a, b, budget=800_000, out=(None, indices), tasks=5)
    torch.testing.assert_close(found[0], expected.values)


def stopped_after(count: int, folder: Path, a: Any, b: Any, out: Any) -> None:
    """Run the call until some tasks are done."""

    def stop(done: int, tasks: int) -> None:
        if done == count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lt.map_chunks(similar, a, b, budget=300_000, out=out, progress=stop)


def resumed(a: Any, b: Any, out: Any) -> int:
    """Return how many tasks a second run has."""
    counts: list[int] = []
    lt.map_chunks(
        similar, a, b, budget=300_000, out=out, progress=lambda done, tasks: counts.append(done)
    )
    return len(counts)


def test_a_second_run_resumes(tmp_path: Path) -> None:
    a, b = arrays(tmp_path)
    out = place(tmp_path)
    tasks = lt.plan_chunks(similar, a, b, budget=300_000, out=out).tasks
    stopped_after(3, tmp_path, a, b, out)
    record = json.loads((tmp_path / "out.bin.lowtide.json").read_text())
    assert len(record["complete"]) == 3
    assert resumed(a, b, out) == tasks - 3
    torch.testing.assert_close(torch.from_numpy(np.array(out)), similar(*plain(a, b)))
    assert resumed(a, b, out) == tasks  # a finished call begins anew


def test_nothing_is_resumed_if_an_argument_has_changed(tmp_path: Path) -> None:
    a, b = arrays(tmp_path)
    out = place(tmp_path)
    tasks = lt.plan_chunks(similar, a, b, budget=300_000, out=out).tasks
    stopped_after(2, tmp_path, a, b, out)
    changed = np.array(a)
    changed[0, 0] += 1
    assert resumed(changed, b, out) == tasks
    torch.testing.assert_close(torch.from_numpy(np.array(out)), similar(*plain(changed, b)))


def test_wrong_places_are_refused_before_anything_runs(tmp_path: Path) -> None:
    a, b = arrays(tmp_path)
    with pytest.raises(LowtideError, match="out has shape"):
        lt.map_chunks(similar, a, b, budget="1MB", out=place(tmp_path, (700, 499)))
    with pytest.raises(LowtideError, match="dtype"):
        lt.map_chunks(similar, a, b, budget="1MB", out=place(tmp_path, dtype="float64"))
    closed = np.memmap(tmp_path / "out.bin", dtype="float32", mode="r", shape=(700, 500))
    with pytest.raises(LowtideError, match="read-only"):
        lt.map_chunks(similar, a, b, budget="1MB", out=closed)
    with pytest.raises(LowtideError, match="2 results"):
        lt.map_chunks(nearest, a, b, budget="1MB", out=place(tmp_path))
    with pytest.raises(LowtideError, match="dtype"):
        lt.map_chunks(similar, np.zeros((4, 2), dtype=">f4"), b, budget="1MB")


def test_a_full_disk_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, begin: int, size: int) -> None:
        assert (begin, size) == (0, 4 * 700 * 500)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    a, b = arrays(tmp_path)
    with pytest.raises(OSError, match=r"No space left on device: .*out\.bin"):
        lt.map_chunks(similar, a, b, budget="1MB", out=place(tmp_path)[:])


class Stored:
    """An array of which only parts can be read, as Zarr's and HDF5's."""

    def __init__(self, array: np.ndarray[Any, Any], most: int) -> None:
        self.array, self.most = array, most
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.chunks = (64, array.shape[1])

    def __getitem__(self, where: Any) -> np.ndarray[Any, Any]:
        found = self.array[where]
        assert found.nbytes <= self.most, "loaded whole"
        return found


def test_nothing_is_loaded_whole(tmp_path: Path) -> None:
    a, b = arrays(tmp_path)
    stored = Stored(np.array(a), 30_000)
    plan = lt.plan_chunks(nearest, stored, np.array(b), budget=800_000, tasks=3)
    assert plan.tasks > 2
    assert plan.chunk_shape["a.shape[0]"] % 64 == 0  # as it is stored
    found = lt.map_chunks(nearest, stored, np.array(b), budget=800_000, tasks=3)
    torch.testing.assert_close(found.values, nearest(*plain(a, b)).values)


def test_a_killed_process_leaves_complete_chunks(tmp_path: Path) -> None:
    code = f"""
import os, sys, time, torch, lowtide as lt, numpy as np
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from lowtide.scale import record
from tests.scale.test_results_on_disk import arrays, place, similar
record._SECONDS = 0.0
torch.set_num_threads({torch.get_num_threads()})  # chunks depend on it
folder = Path({str(tmp_path)!r})
a, b = arrays(folder)
def die(done, tasks):
    if done == 4: os.kill(os.getpid(), 9)
print(lt.plan_chunks(similar, a, b, budget=300_000, out=place(folder)), flush=True)
lt.map_chunks(similar, a, b, budget=300_000, out=place(folder), progress=die)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=300, check=False, capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    record = json.loads((tmp_path / "out.bin.lowtide.json").read_text())
    assert len(record["complete"]) == 4
    a, b = arrays(tmp_path)
    out = np.memmap(tmp_path / "out.bin", dtype="float32", mode="r+", shape=(700, 500))
    plan = lt.plan_chunks(similar, a, b, budget=300_000, out=out)
    assert str(plan) == done.stdout.strip()
    assert resumed(a, b, out) == plan.tasks - 4
    torch.testing.assert_close(torch.from_numpy(np.array(out)), similar(*plain(a, b)))


class _Store:
    """An array in chunks, as Zarr's, that notes the bytes of each write."""

    def __init__(self, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        self.values = np.full(shape, np.nan, np.float32)
        self.shape, self.chunks, self.dtype = shape, chunks, self.values.dtype
        self.ndim = len(shape)
        self.written: list[tuple[slice, ...]] = []

    def __getitem__(self, key: object) -> np.ndarray:
        return self.values[key]

    def __setitem__(self, key: tuple[slice, ...], part: np.ndarray) -> None:
        self.written.append(key)
        self.values[key] = part


@pytest.mark.parametrize("chunks", [(64, 64), (64, 4096), (1, 1), (300, 5000)])
def test_a_store_is_written_by_whole_chunks(
    chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_WRITTEN_BYTES", 1 << 16)
    store, part = _Store((300, 5000), chunks), torch.rand(130, 4100)
    parts.Sink(store, torch.empty(300, 5000)).write((slice(100, 230), slice(0, 4100)), part)
    np.testing.assert_array_equal(store.values[100:230, :4100], part.numpy())
    assert np.isnan(store.values).sum() == 300 * 5000 - part.numel()
    most = max(1 << 16, 4 * chunks[0] * chunks[1])
    for key in store.written:
        assert store.values[key].nbytes <= most
        for where, n in zip(key, chunks, strict=True):
            assert where.start % n == 0 or where.start in (100, 0)


def test_a_write_may_name_the_first_dims_only() -> None:
    store, part = _Store((8, 6), (2, 4)), torch.rand(3, 6)
    parts.Sink(store, torch.empty(8, 6)).write((slice(4, 7),), part)
    np.testing.assert_array_equal(store.values[4:7], part.numpy())


def test_a_place_that_is_an_argument_is_refused(tmp_path: Path) -> None:
    x = torch.rand(40, 40)
    a, _ = arrays(tmp_path)
    again = np.memmap(tmp_path / "0.bin", dtype="float32", mode="r+", shape=(700, 16))
    for place, given in ((x, x), (x.numpy(), x), (x[:20], x[10:30, :40]), (again, a)):
        with pytest.raises(LowtideError, match="shares memory with an argument"):
            lt.map_chunks(doubled, given, budget="1MB", out=place)
    halves = torch.rand(40, 40)
    lt.map_chunks(doubled, halves[:20], budget="1MB", out=halves[20:])
    assert torch.equal(halves[20:], halves[:20] * 2)


def doubled(x: Tensor):
    return x * 2


@pytest.mark.parametrize("place", ["out.zarr", (torch.empty(40, 40),)])
def test_a_place_that_is_no_array_is_refused(place: Any) -> None:
    with pytest.raises(LowtideError, match=r"a (str|tuple) is not an array"):
        lt.map_chunks(doubled, torch.rand(40, 40), budget="1MB", out=place)


def test_a_store_that_is_full_at_the_end_fails(tmp_path: Path) -> None:
    class Full:
        def flush(self) -> None:
            raise OSError("No space left on device")

    class Dataset(Stored):
        def __init__(self) -> None:
            super().__init__(np.empty((40, 40), dtype="float32"), 1 << 20)
            self.file, self.attrs = Full(), dict[str, Any]()

        def __setitem__(self, where: Any, values: Any) -> None:
            self.array[where] = values

    with pytest.raises(OSError, match="No space left"):
        lt.map_chunks(doubled, torch.rand(40, 40), budget="1MB", out=Dataset())
