from __future__ import annotations

import ctypes
import struct
import threading
from pathlib import Path

import pytest
import torch

from lowtide.errors import BackendError
from lowtide.runtime import abi, cache, launch

SOURCE = (
    abi.C_DECLARATIONS
    + """
typedef struct { double *out; const double *in; double factor; } scale_context;
static void scale_task(int64_t begin, int64_t end, void *context) {
  scale_context *c = (scale_context *)context;
  for (int64_t i = begin; i < end; i++) c->out[i] = c->in[i] * c->factor;
}
LT_EXPORT int64_t scale(const void *args) {
  const lt_slot *s = (const lt_slot *)args;
  scale_context c = {(double *)s[2].p, (const double *)s[3].p, s[5].d};
  return lt_run(s, 0, s[4].q, 64, scale_task, &c);
}
LT_EXPORT int64_t threads(const void *args) { return ((const lt_slot *)args)[1].q; }
LT_EXPORT int64_t pool(const void *args) { return ((const lt_slot *)args)[0].q; }
LT_EXPORT int64_t negate(const void *args) { return -((const lt_slot *)args)[2].q; }
LT_EXPORT int64_t wait_for(const void *args) {
  volatile int64_t *flag = (volatile int64_t *)((const lt_slot *)args)[2].p;
  for (int64_t i = 0; i < 20000000000; i++) if (*flag) return 1;
  return 0;
}
"""
)


@pytest.fixture
def library(cache_dir: Path) -> ctypes.CDLL:
    return cache.load_library(SOURCE, "launch")


def test_pointers_integers_and_doubles_arrive(library: ctypes.CDLL):
    scale = launch.bind(library, "scale", "PPqd")
    x = torch.randn(10_000, dtype=torch.float64)
    out = torch.empty_like(x)
    assert scale(out.data_ptr(), x.data_ptr(), 10_000, 2.5) == 0
    assert torch.equal(out, x * 2.5)


def test_the_first_two_slots(library: ctypes.CDLL):
    assert launch.parallel_for_address() != 0
    assert launch.bind(library, "pool", "")() == launch.parallel_for_address()
    threads = launch.bind(library, "threads", "")
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert threads() == count
    finally:
        torch.set_num_threads(before)


def test_without_torchs_pool_tasks_run_one_after_another(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launch, "parallel_for_address", lambda: 0)
    scale = launch.bind(library, "scale", "PPqd")
    x = torch.randn(1000, dtype=torch.float64)
    out = torch.empty_like(x)
    assert scale(out.data_ptr(), x.data_ptr(), 1000, -1.0) == 0
    assert torch.equal(out, -x)


def test_results_are_signed_64_bit(library: ctypes.CDLL):
    negate = launch.bind(library, "negate", "q")
    assert negate(1 << 40) == -(1 << 40)


def test_the_gil_is_released(library: ctypes.CDLL):
    flag = ctypes.c_int64(0)
    threading.Timer(0.05, lambda: setattr(flag, "value", 1)).start()
    assert launch.bind(library, "wait_for", "P")(ctypes.addressof(flag)) == 1


def test_threads_may_share_a_kernel(library: ctypes.CDLL):
    negate = launch.bind(library, "negate", "q")
    wrong: list[int] = []

    def work(base: int) -> None:
        wrong.extend(i for i in range(base, base + 2000) if negate(i) != -i)

    threads = [threading.Thread(target=work, args=(10_000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_mistakes_are_told(library: ctypes.CDLL):
    with pytest.raises(BackendError, match="does not export `nothing`"):
        launch.bind(library, "nothing", "P")
    with pytest.raises(ValueError, match="slot codes"):
        launch.bind(library, "negate", "i")
    with pytest.raises(struct.error):
        launch.bind(library, "negate", "q")(1, 2)
