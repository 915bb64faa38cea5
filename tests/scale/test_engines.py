"""Executors and engines give the same bits as this process. Those of Dask, Zarr and Cubed run where
they are installed: `pip install lowtide[dask,cubed]`."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.scale.task import packed, run_task

ROOT = Path(__file__).parents[2]


def chamfer(a: Tensor, b: Tensor):
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    return d.min(1).values.mean() + d.min(0).values.mean(), d.argmin(1)


def similar(a: Tensor, b: Tensor):
    return a @ b.T


def points(n: int, m: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(n, 3), torch.rand(m, 3)


def same(executor: Any, *args: Tensor) -> None:
    """Compare with this process, by the same plan."""
    found = lt.map_chunks(chamfer, *args, budget="1MB", tasks=6, executor=executor)
    here = lt.map_chunks(chamfer, *args, budget="1MB", tasks=6)
    assert all(torch.equal(x, y) for x, y in zip(found, here, strict=True))
    torch.testing.assert_close(found, chamfer(*args))


def test_threads() -> None:
    with ThreadPoolExecutor(2) as executor:
        same(executor, *points(300, 200))


def test_another_version_is_named() -> None:
    plan = lt.plan_chunks(chamfer, *points(30, 20), budget="1MB")
    parcel = replace(packed(plan.cutting.task), version="0.0.1")
    with pytest.raises(lt.LowtideError, match=r"worker .* process .*0\.0\.1"):
        run_task(parcel)


def test_an_error_of_a_task_names_the_worker() -> None:
    plan = lt.plan_chunks(chamfer, *points(30, 20), budget="1MB")
    with pytest.raises(Exception) as caught:
        run_task(packed(plan.cutting.task), None, None)
    assert "in a task at worker" in "".join(caught.value.__notes__)


def test_functions_of_scripts_travel(tmp_path: Path) -> None:
    code = """
import pickle, torch, lowtide as lt
from torch import Tensor
@lt.script
def f(x: Tensor): return x.sum(0) * 2
def outer():
    def g(x: Tensor, n: int = 3): return x * n
    return lt.script(g)
for h in (f, outer()):
    raw = pickle.dumps(h)
    assert b"__main__" not in raw
    x = torch.ones(4, 2)
    assert torch.equal(pickle.loads(raw)(x), h(x))
"""
    (tmp_path / "travels.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = [sys.executable, str(tmp_path / "travels.py")]
    subprocess.run(done, check=True, timeout=240, env=environment)


def test_blocks_travel() -> None:
    near = lt.block(similar)
    loaded = pickle.loads(pickle.dumps(near))
    a, b = (x.numpy() for x in points(30, 20))
    np.testing.assert_array_equal(loaded(a, b), near(a, b))
    np.testing.assert_allclose(near(a, b), a @ b.T, rtol=1e-5)
    assert near.projected_bytes((1000, 3), (500, 3)) >= 1000 * 500 * 4
    assert near.projected_bytes(a, b) == near.projected_bytes(a.shape, b.shape)


@pytest.mark.long
@pytest.mark.slow
def test_processes() -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        same(executor, *points(300, 200))


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_forked_processes_do_not_wait_for_threads_that_stayed(tmp_path: Path) -> None:
    code = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import torch, lowtide as lt

def chamfer(a, b):
    return ((a[:, None] - b[None]) ** 2).sum(-1).min(1).values.mean()

torch.set_num_threads(2)
a, b = torch.rand(20_000, 3), torch.rand(1_000, 3)
here = lt.map_chunks(chamfer, a, b, budget="4MB", tasks=8)
with ProcessPoolExecutor(2, mp_context=get_context("fork")) as executor:
    found = lt.map_chunks(chamfer, a, b, budget="4MB", tasks=8, executor=executor)
torch.testing.assert_close(found, here)
"""
    (tmp_path / "forks.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = [sys.executable, str(tmp_path / "forks.py")]
    subprocess.run(done, check=True, timeout=120, env=environment)


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_process_of_a_pool_changes_nothing() -> None:
    a, b = points(3000, 2000)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:

        def kill(done: int, tasks: int) -> None:
            if done == 2:
                for pid in list(executor._processes):
                    os.kill(pid, signal.SIGKILL)

        with pytest.warns(RuntimeWarning, match="this process runs the [0-9]+ tasks that are left"):
            found = lt.map_chunks(
                chamfer, a, b, budget="2MB", tasks=24, executor=executor, progress=kill
            )
    for x, y in zip(found, lt.map_chunks(chamfer, a, b, budget="2MB", tasks=24), strict=True):
        assert torch.equal(x, y)


@pytest.fixture(scope="module")
def client() -> Any:
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="2GB", dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as found:
        yield found


@pytest.mark.long
@pytest.mark.slow
def test_dask(client: Any) -> None:
    same(client, *points(300, 200))
    same(client.get_executor(), *points(300, 200))


@pytest.mark.long
@pytest.mark.slow
def test_short_tasks_go_to_dask_in_bundles(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = points(4_000, 3_000)
    lt.map_chunks(chamfer, a, b, budget="4MB", executor=client)  # the workers have the kernels
    submitted, submit = list[str](), client.submit

    def counted(*args: Any, key: str, **options: Any) -> Any:
        submitted.append(key)
        return submit(*args, key=key, **options)

    monkeypatch.setattr(client, "submit", counted)
    done = list[int]()
    options: dict[str, Any] = {"budget": "4MB", "tasks": 200}
    found = lt.map_chunks(
        chamfer, a, b, executor=client, progress=lambda n, _: done.append(n), **options
    )
    assert done == list(range(1, len(done) + 1))
    assert len(done) >= 200 > 2 * len(submitted)
    here = lt.map_chunks(chamfer, a, b, **options)
    assert all(torch.equal(x, y) for x, y in zip(found, here, strict=True))


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_worker_changes_nothing(client: Any) -> None:
    a, b = points(40_000, 30_000)
    killed = threading.Event()

    def kill(done: int, tasks: int) -> None:
        if done == 3 and not killed.is_set():
            killed.set()
            pid = next(iter(client.run(os.getpid).values()))
            os.kill(pid, signal.SIGKILL)

    found = lt.map_chunks(chamfer, a, b, budget="2MB", tasks=240, executor=client, progress=kill)
    assert killed.is_set()
    here = lt.map_chunks(chamfer, a, b, budget="2MB", tasks=240)
    assert all(torch.equal(x, y) for x, y in zip(found, here, strict=True))


@pytest.mark.long
def test_arrays_of_dask_and_map_blocks() -> None:
    da = pytest.importorskip("dask.array")
    a, b = points(300, 200)
    x = da.from_array(a.numpy(), chunks=(64, 3))
    found = lt.map_chunks(chamfer, x, b, budget="1MB", tasks=4)
    torch.testing.assert_close(found, chamfer(a, b))
    near = lt.block(similar)
    made = da.map_blocks(near, x, b.numpy(), dtype="float32", chunks=(x.chunks[0], (200,)))
    np.testing.assert_allclose(made.compute(), (a @ b.T).numpy(), rtol=1e-5)
    with pytest.raises(lt.LowtideError, match="not written in place"):
        lt.map_chunks(similar, a, b, budget="1MB", out=made)


@pytest.mark.long
@pytest.mark.parametrize("store", ["zarr", "h5py"])
def test_stores_are_written_and_resumed(store: str, tmp_path: Path) -> None:
    library = pytest.importorskip(store)
    a, b = points(700, 500)
    if store == "zarr":
        out = library.create_array(
            str(tmp_path / "out.zarr"), shape=(700, 500), chunks=(64, 64), dtype="float32"
        )
    else:
        file = library.File(tmp_path / "out.h5", "w")
        out = file.create_dataset("out", shape=(700, 500), chunks=(64, 64), dtype="float32")
    counts: list[int] = []

    def stop(done: int, tasks: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lt.map_chunks(similar, a, b, budget=300_000, out=out, progress=stop)
    assert "lowtide" in out.attrs
    lt.map_chunks(
        similar, a, b, budget=300_000, out=out, progress=lambda done, tasks: counts.append(done)
    )
    tasks = lt.plan_chunks(similar, a, b, budget=300_000, out=out).tasks
    assert len(counts) == tasks - 2
    np.testing.assert_allclose(out[:], (a @ b.T).numpy(), rtol=1e-5)
    assert "lowtide" not in out.attrs


@pytest.mark.long
def test_cubed(tmp_path: Path) -> None:
    cubed = pytest.importorskip("cubed")
    a, b = points(300, 200)
    near = lt.block(similar)
    spec = cubed.Spec(work_dir=str(tmp_path), allowed_mem="200MB")
    x = cubed.from_array(a.numpy(), chunks=(100, 3), spec=spec)
    made = cubed.map_blocks(
        near, x, b.numpy(), dtype="float32", chunks=((100, 100, 100), (200,)),
        extra_projected_mem=near.projected_bytes((100, 3), (200, 3)),
    )  # fmt: skip
    np.testing.assert_allclose(made.compute(), (a @ b.T).numpy(), rtol=1e-5)
