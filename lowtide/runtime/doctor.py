"""`lowtide doctor`: checks the machine.

In: nothing. Out: a list of `Check`; each says what was found, and how to fix it. A check does not
raise: an exception becomes its finding.

    [Check(name='compiler', ok=True, detail='gcc 12.2.0, /usr/bin/gcc', remedy=''), …]
"""

from __future__ import annotations

import ctypes
import os
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires

from lowtide import config
from lowtide.errors import LowtideError
from lowtide.runtime import abi, block_kernels, cache, folder, launch, toolchain

_TORCH_AT_LEAST: tuple[int, int] = (2, 11)
_TORCH_BELOW: tuple[int, int] = (2, 15)  # later ones have not been tried
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_GPU_DRIVER = "/proc/driver/nvidia/version"  # exists if NVIDIA's driver is loaded

_KERNEL = """
typedef struct { int64_t *out; } lt_doctor;
static void fill(int64_t begin, int64_t end, void *context) {
  for (int64_t i = begin; i < end; i++) ((lt_doctor *)context)->out[i] = 3 * i;
}
LT_EXPORT int64_t lowtide_doctor(const void *args) {
  const lt_slot *slots = (const lt_slot *)args;
  lt_doctor context = {(int64_t *)slots[2].p};
  return lt_run(slots, 0, slots[3].q, 16, fill, &context);
}
"""

_BLOCKS = """
import triton.language as tl

@jit
def lowtide_doctor(p_out, INDEX: tl.constexpr, PRECISION: tl.constexpr):
    x = tl.arange(0, 16)
    tl.store(p_out + x, 3 * x)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. `remedy`: what to do, "" if nothing."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def checks() -> list[Check]:
    """Return all findings; a check comes after those that it depends on. Compiles and runs one
    small kernel."""
    named: list[tuple[str, Callable[[], Check]]] = [
        ("settings", _settings),
        ("torch", _torch),
        ("compiler", _compiler),
        ("vector width", _vectors),
        ("kernel", _kernel),
        ("threads", _threads),
        ("cache folder", _cache_folder),
        ("huge pages", _huge_pages),
        ("zig", _zig),
        ("GPU", _gpu),
    ]
    return [_guarded(name, check) for name, check in named]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (LowtideError, OSError) as fault:
        detail, _, _ = str(fault).partition(f"; {toolchain.OTHER}")
        remedy = toolchain.OTHER if detail != str(fault) else _remedy_of(name)
        return Check(name=name, ok=False, detail=detail, remedy=remedy)
    except Exception as fault:  # from other packages, such as Triton
        detail = f"{type(fault).__name__}: {fault}"
        return Check(name=name, ok=False, detail=detail, remedy=_remedy_of(name))


def _remedy_of(name: str) -> str:
    return toolchain.REMEDY if name in ("compiler", "vector width", "kernel") else ""


def _settings() -> Check:
    found = config.current()
    cap_mib = found.arena_cap_bytes >> 20
    state = "off (LOWTIDE_DISABLE=1)" if found.disable else "on"
    return Check(name="settings", ok=True, detail=f"compiling is {state}; arena cap {cap_mib} MiB")


def _torch() -> Check:
    import torch

    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version: tuple[int, int] = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    ok = _TORCH_AT_LEAST <= version < _TORCH_BELOW
    least, below = (".".join(map(str, v)) for v in (_TORCH_AT_LEAST, _TORCH_BELOW))
    remedy = "" if ok else f"`pip install 'torch>={least},<{below}'`"
    return Check(name="torch", ok=ok, detail=torch.__version__, remedy=remedy)


def _compiler() -> Check:
    found = toolchain.compiler()
    version = found.version if found.kind != "zig" else f"zig cc, {found.version}"
    detail = f"{found.kind} {version}, {found.path}\nkeeps the meaning of generated C"
    unknown = [flag for flag in toolchain.meaning(found.kind) if flag not in found.flags]
    if unknown:
        detail += f", without {' '.join(unknown)}, which it does not know"
    return Check(name="compiler", ok=True, detail=detail)


def _vectors() -> Check:
    found = toolchain.target()
    bits = 8 * found.vector_bytes
    detail = f"{bits} bits on {found.arch}"
    return Check(name="vector width", ok=True, detail=detail)


def _kernel() -> Check:
    """Compile a kernel without the cache, run it on torch's threads, check the result."""
    count = 4096
    stem = os.path.join(folder.private(), f"doctor-{time.time_ns()}")
    with open(f"{stem}.c", "w", encoding="utf-8") as source:
        source.write(abi.C_DECLARATIONS + _KERNEL)
    toolchain.compiler().shared_library(f"{stem}.c", f"{stem}.so")
    library = ctypes.CDLL(f"{stem}.so")
    out = (ctypes.c_int64 * count)()
    status = launch.bind(library, "lowtide_doctor", "Pq")(ctypes.addressof(out), count)
    if status != 0 or list(out) != [3 * i for i in range(count)]:
        return Check(
            name="kernel",
            ok=False,
            detail=f"a test kernel gave wrong values (status {status})",
            remedy="try another compiler with LOWTIDE_CC, and report this, please",
        )
    return Check(name="kernel", ok=True, detail="a test kernel compiles and runs")


def _threads() -> Check:
    import torch

    threads = torch.get_num_threads()
    if launch.parallel_for_address():
        return Check(name="threads", ok=True, detail=f"{threads}, of PyTorch's own pool")
    return Check(
        name="threads",
        ok=False,
        detail="this PyTorch does not export torch_parallel_for: kernels run on one thread",
        remedy="`pip install 'torch>=2.11,<2.15'`",
    )


def _cache_folder() -> Check:
    fault = folder.fault()
    if fault is None:
        held = cache.size()
        detail = f"{cache.path()}: {held.entries} libraries, {held.entry_bytes / 1e6:.1f} MB"
        return Check(name="cache folder", ok=True, detail=detail)
    return Check(
        name="cache folder",
        ok=False,
        detail=f"{config.current().cache_dir}: {fault}; each process compiles its kernels anew",
        remedy="set LOWTIDE_CACHE_DIR to a folder that only you can write to",
    )


def _huge_pages() -> Check:
    try:
        with open(_HUGE_PAGES, encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        detail = "this system has no transparent huge pages; large outputs cost more at first"
        return Check(name="huge pages", ok=True, detail=detail)
    chosen = re.search(r"\[(\w+)\]", text)
    mode = chosen[1] if chosen else text
    ok = mode in ("always", "madvise")
    remedy = "" if ok else f"as root: `echo madvise > {_HUGE_PAGES}`; first runs get faster"
    return Check(name="huge pages", ok=ok, detail=mode, remedy=remedy)


def _zig() -> Check:
    path = toolchain.zig_path()
    detail = path or "not installed; only needed where there is no other C compiler"
    return Check(name="zig", ok=True, detail=detail)


def _no_gpu() -> Check:
    """Return the finding without a usable GPU; it is a fault if NVIDIA's driver is loaded."""
    import torch

    detail = "none that PyTorch can use; kernels run on the CPU"
    if not os.path.exists(_GPU_DRIVER):
        return Check(name="GPU", ok=True, detail=detail)
    if torch.version.cuda is None:
        fault, remedy = "it is built without CUDA", "install a build of PyTorch with CUDA"
    else:
        fault = f"it is built for CUDA {torch.version.cuda}"
        remedy = "update NVIDIA's driver, or install a build of PyTorch for an older CUDA"
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            fault += ": " + str(error).partition("\n")[0]
    return Check(name="GPU", ok=False, detail=f"{detail}\n{fault}", remedy=remedy)


def _gpu() -> Check:
    import torch

    if not torch.cuda.is_available():
        return _no_gpu()
    name = torch.cuda.get_device_name()
    if block_kernels.missing():
        fault, _, remedy = block_kernels.missing().rpartition(": ")
        return Check(
            name="GPU",
            ok=False,
            detail=f"{name}, without Triton: PyTorch runs calls with its tensors\n{fault}",
            remedy=f"`{remedy}`",
        )
    detail = f"{name}, Triton {block_kernels.version()}"
    fault = blocks_fault("cuda")
    if not fault:
        return Check(name="GPU", ok=True, detail=detail)
    return Check(
        name="GPU",
        ok=False,
        detail=f"{detail}: PyTorch runs calls with its tensors\n{fault}",
        remedy=block_kernels.remedy(fault)
        or f"update NVIDIA's driver, or `pip install '{_triton_of_torch()}'`",
    )


def blocks_fault(device: str) -> str:
    """Return why a small kernel does not run on a GPU, "" if it does."""
    import torch

    from lowtide.runtime.cubins import CompiledKernel

    parameters = block_kernels.KernelParameters(
        pointers=("*i32",), dividing=(), numbers=0, warps=1, stages=1, widths=0
    )
    try:
        out = torch.zeros(16, dtype=torch.int32, device=device)
        with warnings.catch_warnings(action="ignore"):
            function = block_kernels.load(_BLOCKS, interpreted=False)["lowtide_doctor"]
            CompiledKernel(function, parameters)(1, len(out), out)
        found = [int(x) for x in out]
    except (block_kernels.KernelFault, ImportError, RuntimeError) as fault:
        return str(fault).partition("\n")[0]
    return "" if found == [3 * k for k in range(16)] else "a test kernel gave wrong values"


def _triton_of_torch() -> str:
    """Return the requirement of Triton in this PyTorch's metadata."""
    try:
        named = [x.partition(";")[0].strip() for x in requires("torch") or ()]
    except PackageNotFoundError:
        named = []
    return next((x for x in named if x.startswith("triton")), "triton")
