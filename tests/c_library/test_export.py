"""Exported C gives what the kernels give in this process, at other sizes too, or a status."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.runtime import toolchain

OK, BAD_SIZE, SMALL_WORKSPACE, BAD_INDEX, BAD_WEIGHTS, _RAISED, NULL = range(7)


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    d = (a[:, None] - b).square().sum(-1)
    return d.min(1).values.mean() + d.min(0).values.mean()


def several(x: Tensor, scale: float, n: int) -> tuple[Tensor, Tensor, Tensor]:
    return x * scale + n, x.sum(0), x > 0.5


def recurrence(x: Tensor) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(h * 0.9 + x[t])
    return h


def picked(table: Tensor, places: Tensor) -> Tensor:
    return table[places] * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))

    @lt.export
    def norms(self, x: Tensor) -> Tensor:
        return self.norm(x).square().sum(-1)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.n(self.a(x)))).mean((2, 3))


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return self.cell(x, (h, c))


PROGRAMS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "chamfer": (lambda: chamfer, (torch.rand(50, 3), torch.rand(40, 3))),
    "several": (lambda: several, (torch.rand(40, 5), 2.5, 3)),
    "recurrence": (lambda: recurrence, (torch.rand(50, 4),)),
    "block": (Block, (torch.rand(1, 40, 32),)),
    "small": (Small, (torch.rand(2, 3, 12, 12),)),
    "cell": (Cell, (torch.rand(1, 8), torch.rand(1, 16), torch.rand(1, 16))),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("weights", ["constants", "file"])
def test_selftest(name: str, weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, args = PROGRAMS[name]
    made = make()
    if isinstance(made, nn.Module):
        made.eval()
    elif weights == "file":
        pytest.skip("a function without weights")
    compiled = lt.script(made)
    found = lt.export_c(compiled, tmp_path, args, weights=weights)
    assert "largest difference" in found.selftest()
    assert all((tmp_path / f).exists() for f in found.files)
    assert ("model_weights.bin" in found.files) == (weights == "file")


class Sizes(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int64), ("b", ctypes.c_int64)]


class Pool(ctypes.Structure):
    _fields_ = [("threads", ctypes.c_int64), ("parallel_for", ctypes.c_void_p)]


TASK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
FOR = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, TASK, ctypes.c_void_p
)


@FOR
def one_by_one(begin: int, end: int, grain: int, task: Any, context: int) -> int:
    for k in range(end - 1, begin - 1, -1):
        task(k, k + 1, context)
    return 0


def aligned(nbytes: int) -> tuple[Tensor, int]:
    memory = torch.full((nbytes + 128,), 77, dtype=torch.uint8)
    return memory, (memory.data_ptr() + 63) // 64 * 64


class Chamfer:
    def __init__(self, folder: Path) -> None:
        lt.export_c(lt.script(chamfer), folder, (torch.rand(50, 3), torch.rand(40, 3)))
        self.library = ctypes.CDLL(str(folder / "libmodel.so"))
        self.needed = self.library.model_chamfer_workspace_bytes
        self.needed_for = self.library.model_chamfer_workspace_bytes_for
        self.needed.restype = self.needed_for.restype = ctypes.c_size_t

    def __call__(
        self, a: Tensor, b: Tensor, short: int = 0, threads: int = 1, shift: int = 0, room: int = 0
    ) -> tuple[int, float]:
        sizes = Sizes(len(a), len(b))
        nbytes = self.needed_for(ctypes.byref(sizes), ctypes.c_int64(room or threads))
        memory, address = aligned(nbytes)
        out = torch.zeros(())
        pool = Pool(threads, ctypes.cast(one_by_one, ctypes.c_void_p).value)
        pointers = [ctypes.c_void_p(x) for x in (a.data_ptr(), b.data_ptr(), out.data_ptr())]
        status = self.library.model_chamfer(
            ctypes.byref(sizes), *pointers, None, ctypes.c_void_p(address + shift),
            ctypes.c_size_t(nbytes - short), ctypes.byref(pool) if threads > 1 else None,
        )  # fmt: skip
        after = memory[address - memory.data_ptr() + nbytes :]
        assert bool((after == 77).all()), "written beyond the workspace"
        return status, out.item()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Chamfer:
    return Chamfer(tmp_path_factory.mktemp("chamfer"))


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(50, 40), (1, 1), (1, 2), (2, 2), (3, 700), (2000, 1500)])
def test_other_sizes(exported: Chamfer, sizes: tuple[int, int], threads: int) -> None:
    a, b = (torch.rand(n, 3) for n in sizes)
    status, found = exported(a, b, threads=threads)
    assert status == OK
    torch.testing.assert_close(found, chamfer(a, b).item(), rtol=1e-5, atol=1e-6)


def test_a_workspace_for_fewer_threads_than_the_pool_has(exported: Chamfer) -> None:
    a, b = torch.rand(2000, 3), torch.rand(1500, 3)
    sizes = ctypes.byref(Sizes(2000, 1500))
    one, *more = (exported.needed_for(sizes, ctypes.c_int64(n)) for n in (1, 4, 99))
    assert exported.needed(sizes) == one < more[0] < more[1]
    for room in (1, 2, 4):
        status, found = exported(a, b, threads=4, room=room)
        assert status == OK
        torch.testing.assert_close(found, chamfer(a, b).item(), rtol=1e-5, atol=1e-6)
    assert exported(a, b, threads=4, room=1, short=1)[0] == SMALL_WORKSPACE


def test_bad_calls_give_a_status(exported: Chamfer) -> None:
    a, b = torch.rand(50, 3), torch.rand(40, 3)
    assert exported(a, b, short=1)[0] == SMALL_WORKSPACE
    assert exported(a, b, shift=8)[0] == NULL
    assert exported(a[:0], b[:0])[0] == BAD_SIZE
    status = exported.library.model_chamfer
    null = ctypes.c_void_p(None)
    assert status(None, null, null, null, None, null, ctypes.c_size_t(0), None) == NULL
    sizes = Sizes(50, 40)
    _, address = aligned(exported.needed(ctypes.byref(sizes)))
    given = ctypes.byref(sizes), null, null, null, None, ctypes.c_void_p(address)
    assert status(*given, ctypes.c_size_t(1 << 20), None) == NULL
    for n in (-1, 1 << 41, 2**62):
        assert exported.needed(ctypes.byref(Sizes(n, 40))) == 0


def test_an_index_out_of_range(tmp_path: Path) -> None:
    table, places = torch.rand(60, 4), torch.tensor([1, 59] * 20)
    lt.export_c(lt.script(picked), tmp_path, (table, places))
    run = ctypes.CDLL(str(tmp_path / "libmodel.so")).model_picked
    out = torch.zeros(40, 4)
    _, work = aligned(1 << 16)

    def status(i: Tensor) -> int:
        pointers = (ctypes.c_void_p(x.data_ptr()) for x in (table, i, out))
        return run(ctypes.byref(Sizes(60, 40)), *pointers, None, ctypes.c_void_p(work),
                   ctypes.c_size_t(1 << 16), None)  # fmt: skip

    assert status(places) == OK
    assert torch.equal(out, picked(table, places))
    for wrong in (60, -61, 2**40):
        assert status(places.clone().index_fill_(0, torch.tensor([7]), wrong)) == BAD_INDEX


class Weights(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_void_p), ("n_bytes", ctypes.c_size_t)]


def test_weights_of_a_file_are_checked(tmp_path: Path) -> None:
    lt.export_c(lt.script(Block().eval()), tmp_path, (torch.rand(1, 40, 32),), weights="file")
    library = ctypes.CDLL(str(tmp_path / "libmodel.so"))
    raw = (tmp_path / "model_weights.bin").read_bytes()
    memory, address = aligned(len(raw))
    weights = Weights()

    def ask(content: bytes) -> tuple[int, int]:
        ctypes.memmove(address, content, len(content))
        opened = library.model_weights_open(
            ctypes.byref(weights), ctypes.c_void_p(address), ctypes.c_size_t(len(content))
        )
        return opened, library.model_weights_verify(ctypes.byref(weights))

    assert ask(raw) == (OK, OK)
    for place in (0, 9, 13, 17, 30):
        flipped = bytearray(raw)
        flipped[place] ^= 4
        assert ask(bytes(flipped))[0] == BAD_WEIGHTS
    flipped = bytearray(raw)
    flipped[-1] ^= 1
    assert ask(bytes(flipped)) == (OK, BAD_WEIGHTS)
    for length in (0, 10, 24, len(raw) - 1):
        assert ask(raw[:length])[0] == BAD_WEIGHTS
    del memory


def test_two_methods_share_their_weights(tmp_path: Path) -> None:
    x = torch.rand(1, 40, 32)
    compiled = lt.script(Block().eval())
    found = lt.export_c(compiled, tmp_path, {"forward": (x,), "norms": (x,)}, name="net")
    assert found.functions == ("net_forward", "net_norms")
    assert found.weight_bytes == sum(p.nbytes for p in compiled.parameters())
    assert found.selftest().count("largest difference") == 2


def test_strict_compilers_take_the_c(tmp_path: Path) -> None:
    lt.export_c(lt.script(chamfer), tmp_path, (torch.rand(50, 3), torch.rand(40, 3)))
    command = [*toolchain.compiler().command, "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-c"]
    for language in (["-std=c99"], ["-std=gnu17", "-march=native"]):
        row = [*command, *language, "-o", str(tmp_path / "x.o"), str(tmp_path / "model.c")]
        subprocess.run(row, check=True)
    header = tmp_path / "only.c"
    header.write_text('#include "model.h"\n')
    row = [*command, "-std=c99", "-pedantic", "-o", str(tmp_path / "y.o"), str(header)]
    subprocess.run(row, check=True)


def test_tensors_of_the_example_may_be_views(tmp_path: Path) -> None:
    a, b = torch.rand(3, 50).t(), torch.rand(80, 3)[::2]
    found = lt.export_c(lt.script(chamfer), tmp_path, (a, b))
    assert "largest difference" in found.selftest()
    library = ctypes.CDLL(str(tmp_path / "libmodel.so"))
    a, b, out = a.contiguous(), b.contiguous(), torch.zeros(())
    _, work = aligned(1 << 20)
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (a, b, out)]
    status = library.model_chamfer(
        ctypes.byref(Sizes(50, 40)), *pointers, None, ctypes.c_void_p(work),
        ctypes.c_size_t(1 << 20), None,
    )  # fmt: skip
    assert status == OK
    torch.testing.assert_close(out, chamfer(a, b), rtol=1e-5, atol=1e-6)


def sorted_rows(x: Tensor) -> Tensor:
    print(x.shape)
    values: Tensor = torch.linalg.svdvals(x)
    return values


def test_what_has_no_c_is_listed_with_its_lines(tmp_path: Path) -> None:
    with pytest.raises(lt.ExportError) as caught:
        lt.export_c(lt.script(sorted_rows), tmp_path / "out", (torch.rand(40, 40),))
    text = str(caught.value)
    assert all(word in text for word in ("prints", "svd", "test_export.py"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong", [{"name": "a-b"}, {"weights": "x"}, {"target": "wasm32"}, {"sizes": {"n": 3}}]
)
def test_wrong_options(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(lt.CompileError):
        lt.export_c(lt.script(chamfer), tmp_path, (torch.rand(50, 3), torch.rand(40, 3)), **wrong)
    with pytest.raises(lt.CompileError, match="example"):
        lt.export_c(lt.script(chamfer), tmp_path)
    with pytest.raises(lt.CompileError, match="takes a function"):
        lt.export_c(3, tmp_path, (torch.rand(50, 3),))
