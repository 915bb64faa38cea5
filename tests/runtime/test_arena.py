from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from lowtide.runtime import arena

BIG = (1024, 1024)
MIB = 1 << 20
f32 = torch.float32


@pytest.fixture(autouse=True)
def clean_arena() -> Iterator[None]:
    if arena.stats().in_use_bytes:  # other tests' reference cycles
        gc.collect()
    cap_bytes = arena.stats().cap_bytes
    arena.empty_cache()
    arena.reset_peak()
    yield
    arena.set_cap_bytes(cap_bytes)
    arena.empty_cache()
    assert arena.stats().in_use_bytes == 0
    assert arena.stats().reserved_bytes == 0


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128,
        torch.float8_e4m3fn, torch.uint16,
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2048, 1024), None),
        ((1 << 21,), None),
        ((2, 1024, 1024), (1 << 20, 1, 1024)),
        ((1024, 1024), (4096, 2)),
        ((), None),
        ((0, 5), None),
        ((3, 4), (1, 3)),
    ],
)
def test_as_torch_would_make_it(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None
):
    t = arena.empty(shape, dtype, strides)
    like = (
        torch.empty(shape, dtype=dtype)
        if strides is None
        else torch.empty_strided(shape, strides, dtype=dtype)
    )
    assert (t.shape, t.dtype, t.stride()) == (like.shape, like.dtype, like.stride())
    assert t.device.type == "cpu"
    assert t.storage_offset() == 0
    assert t.untyped_storage().nbytes() == like.untyped_storage().nbytes()
    assert (t._version, t._base, t.is_leaf, t.requires_grad) == (0, None, True, False)
    assert t.is_contiguous() == like.is_contiguous()
    t.zero_()
    assert not t.to(torch.complex64 if dtype.is_complex else f32).any()


def test_block_sizes_waste_at_most_a_quarter():
    for asked in [1, 4096, 4097, 10**6, *(2**k + d for k in range(16, 40) for d in (-1, 0, 1))]:
        block = arena.class_bytes(asked)
        assert asked <= block <= max(1.25 * asked, asked + 4096)
        assert block % 4096 == 0
        assert arena.class_bytes(block) == block


def test_a_dead_tensors_memory_serves_the_next():
    t = arena.empty(BIG, f32)
    address = t.data_ptr()
    assert address % (2 * MIB) == 0
    before = arena.stats()
    del t
    assert arena.stats().cached_bytes == 4 * MIB
    u = arena.empty((1000, 1000), f32)
    assert u.data_ptr() == address
    after = arena.stats()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)
    assert (after.in_use_bytes, after.cached_bytes) == (4_000_000, 0)
    assert after.peak_in_use_bytes == 4 * MIB


def test_work_memory_is_as_much_as_one_kernel_needs():
    for n in (3, 5, 4, 9, 2):
        work = arena.scratch(n * MIB)
        assert arena.stats().in_use_bytes == n * MIB
        del work
    assert arena.stats().reserved_bytes == arena.class_bytes(9 * MIB)
    tensor = arena.empty((9 * MIB,), torch.uint8)
    large, small = arena.scratch(8 * MIB), arena.scratch(2 * MIB)
    assert len({tensor.data_ptr(), large.address, small.address}) == 3
    del large, small
    before = arena.stats()
    small = arena.scratch(MIB)
    assert (arena.stats().hits, arena.stats().misses) == (before.hits + 1, before.misses)
    assert before.cached_bytes - arena.stats().cached_bytes == 2 * MIB
    del small, tensor


def test_memory_is_not_reused_while_a_view_lives():
    t = arena.empty(BIG, f32).fill_(7)
    views = [t[3], t.numpy()[5], t.detach().t(), t.untyped_storage(), memoryview(t.numpy())]
    address = t.data_ptr()
    del t
    while views:
        assert arena.empty(BIG, f32).fill_(8).data_ptr() != address
        view = views.pop()
        if isinstance(view, torch.Tensor):
            assert (view == 7).all()
        del view
    assert arena.stats().in_use_bytes == 0


def test_small_tensors_are_torchs_own():
    t = arena.empty((10, 10), f32)
    assert arena.stats().in_use_bytes == 0
    t.resize_(1000)


def test_the_default_device_does_not_matter():
    with torch.device("meta"):
        assert arena.empty((2,), f32).device.type == "cpu"
        assert arena.empty(BIG, f32).device.type == "cpu"
        assert arena.empty(BIG, torch.bfloat16).device.type == "cpu"


def test_the_cap_holds_and_the_oldest_goes_first():
    arena.set_cap_bytes(10 * MIB)
    a, b, c = (arena.empty((size * MIB,), torch.uint8) for size in (4, 5, 6))
    kept = c.data_ptr()
    del a
    del b
    assert arena.stats().cached_bytes == 9 * MIB
    del c
    assert arena.stats().cached_bytes == 6 * MIB
    assert arena.stats().reserved_bytes == 6 * MIB
    assert arena.empty((6 * MIB,), torch.uint8).data_ptr() == kept
    arena.set_cap_bytes(0)
    assert arena.stats().reserved_bytes == 0


def test_empty_cache_leaves_live_tensors_alone():
    t, u = arena.empty(BIG, f32).fill_(1), arena.empty(BIG, f32)
    del u
    arena.empty_cache()
    stats = arena.stats()
    assert (stats.reserved_bytes, stats.cached_bytes) == (4 * MIB, 0)
    assert (t == 1).all()


def test_autograd_pickle_save_copy_share():
    t = arena.empty(BIG, f32).normal_()
    x = t.clone()
    t.requires_grad_()
    (t * t).sum().backward()
    assert torch.equal(t.grad, 2 * x)  # type: ignore[arg-type]
    t = t.detach()
    assert torch.equal(pickle.loads(pickle.dumps(t)), x)
    assert torch.equal(copy.deepcopy(t), x)
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    assert torch.equal(torch.load(file), x)
    y = t.view(-1)
    t.share_memory_()
    assert t.is_shared()
    assert torch.equal(t, x)
    assert y.data_ptr() == t.data_ptr()
    assert arena.stats().in_use_bytes == 0  # it has moved to shared memory


def test_swaps_and_set():
    t, u = arena.empty(BIG, f32).fill_(1), torch.zeros(2)
    torch.utils.swap_tensors(t, u)
    assert u.shape == BIG
    assert (u == 1).all()
    u.set_(torch.ones(3).untyped_storage(), 0, (3,))
    assert u.shape == (3,)
    assert arena.stats().in_use_bytes == 0


def test_the_one_known_difference_the_storage_cannot_grow():
    t = arena.empty(BIG, f32)
    t.resize_(5, 5)
    with pytest.raises(RuntimeError, match="not resizable"):
        t.resize_(2048, 2048)


def test_outputs_in_inference_mode():
    with torch.inference_mode():
        assert arena.empty(BIG, f32).is_inference()


def test_many_threads():
    wrong: list[int] = []

    def work(seed: int) -> None:
        held: list[torch.Tensor] = []
        for i in range(30):
            t = arena.empty(((i * 7 + seed) % 5 + 1, MIB), torch.uint8).fill_(seed)
            held.append(t)
            if len(held) > 3:
                old = held.pop(0)
                if not (old == seed).all():
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena.stats().in_use_bytes == 0


def test_finalizers_within_the_account_neither_block_nor_spoil_it():
    """A finalizer that frees and takes memory, run at the worst moment: while its thread books."""
    pool = arena._pool
    held = [arena.empty(BIG, f32)]
    with pool._account() as is_ours:
        assert is_ours
        held.clear()  # given back from within
        t = arena.empty(BIG, f32).fill_(3)  # a block outside the account
        assert arena.stats().in_use_bytes == 4 * MIB
        arena.empty_cache()
    assert (t == 3).all()
    assert arena.stats().cached_bytes == 4 * MIB
    del t
    assert arena.stats().cached_bytes == 4 * MIB


def test_a_tensor_freed_by_a_thread_while_another_is_at_the_account():
    held = [arena.empty(BIG, f32)]
    thread = threading.Thread(target=held.clear)
    with arena._pool._account():
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert arena.stats().cached_bytes == 4 * MIB


def test_no_memory_frees_the_cache_and_then_is_torchs_error(monkeypatch: pytest.MonkeyPatch):
    t = arena.empty(BIG, f32)
    del t
    with pytest.raises(RuntimeError, match=r"(?i)memory"):
        arena.empty((1 << 50,), torch.uint8)
    assert arena.stats().cached_bytes == 0
    aligned = (1 << 50) + arena._PAGE_BYTES
    with pytest.raises(RuntimeError, match=rf"(?i)memory.* {aligned} bytes"):
        arena.scratch(1 << 50)


def test_a_failed_mapping_is_tried_once_more(monkeypatch: pytest.MonkeyPatch):
    real, calls = arena._map_pages, [0]

    def failing(nbytes: int):
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(12, "Cannot allocate memory")
        return real(nbytes)

    monkeypatch.setattr(arena, "_map_pages", failing)
    arena.empty(BIG, f32)
    assert calls == [2]


def test_scratch():
    work = arena.scratch(3 * MIB)
    address = work.address
    assert work.data_ptr() == address
    assert address % (2 * MIB) == 0
    assert work.nbytes == 3 * MIB
    assert arena.stats().in_use_bytes == 3 * MIB
    del work
    assert arena.scratch(3 * MIB).address == address
    assert arena.scratch(0).address % 4096 == 0
    small = arena.scratch(100)
    other = arena.scratch(100)
    assert small.address != other.address


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_its_own_memory():
    t, free = arena.empty(BIG, f32).fill_(1), arena.empty(BIG, f32)
    del free
    child = os.fork()
    if child == 0:
        status = 1
        try:
            stats = arena.stats()
            t.numpy()[:] = 2
            u = arena.empty(BIG, f32)
            u.numpy()[:] = 3
            ok = stats.cached_bytes == 0 and stats.in_use_bytes == 4 * MIB
            status = 0 if ok and (t.numpy() == 2).all() else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert (t == 1).all()
    assert arena.stats().cached_bytes == 4 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_while_threads_allocate():
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            arena.scratch(100_000)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                arena.scratch(200_000)
                os._exit(0 if arena.stats().cached_bytes > 0 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_tensors_may_live_until_the_interpreter_exits():
    program = (
        "import sys, torch\nfrom lowtide.runtime import arena\n"
        "t, u, v, w = (arena.empty((1024, 1024), torch.float32).fill_(1) for _ in range(4))\n"
        "sys.u = u\nv.cycle = v\ntorch.w_ = [w, w.numpy()]\ndel u, v, w\n"
        "del arena, sys.modules['lowtide.runtime.arena']\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_numpy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arena, "_numpy_dtypes", {})
    t = arena.empty(BIG, f32)
    assert (t.shape, t._version, t._base) == (BIG, 0, None)
    u = arena.empty(BIG, f32, (1, 1024))
    assert (u.stride(), u._version, u._base) == ((1, 1024), 0, None)


def test_where_memory_cannot_be_mapped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arena, "_CAN_MAP", False)
    assert arena.empty(BIG, f32).shape == BIG
    assert arena.stats().reserved_bytes == 0


def test_the_cache_can_be_emptied_before_anything_was_taken() -> None:
    code = "import lowtide as lt; lt.empty_cache(); print('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "done", done.stderr


def test_outputs_do_not_lie_in_larger_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena._pool, "is_tight", False)
    del_me = arena.scratch(3 * MIB)
    del del_me
    t = arena.empty((2 * MIB,), torch.uint8)
    assert arena.stats().reserved_bytes == 5 * MIB
    del t


def test_tight_no_more_is_mapped_than_was_in_use_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena._pool, "is_tight", True)
    first, second = (arena.empty((4 * MIB,), torch.uint8) for _ in range(2))
    del first, second
    third = arena.empty((3 * MIB,), torch.uint8)
    assert arena.stats().reserved_bytes == 7 * MIB  # one of the two stays warm
    fourth = arena.empty((6 * MIB,), torch.uint8)
    assert arena.stats().reserved_bytes == 9 * MIB
    del third, fourth


def test_after_a_failure_nothing_is_kept_until_memory_is_asked_for() -> None:
    held, warm = (arena.empty((5 * MIB,), torch.uint8) for _ in range(2))
    del warm
    arena.fail()
    assert arena.stats().reserved_bytes == 5 * MIB
    del held
    assert arena.stats().reserved_bytes == 0
    held = arena.empty((5 * MIB,), torch.uint8)
    del held
    assert arena.stats().cached_bytes == 5 * MIB
