"""The simulated CUDA runtime, as a library that stands before PyTorch's and the driver's.

In:  the C files of this folder; libraries and headers beside the torch of this Python.
Out: the library's path. It is built once for each version of these, into Lowtide's cache.

PyTorch's libraries want about 1,100 functions of CUDA. The C files have those that it asks for
something; a stub that succeeds, or refuses what must not seem to have worked, is written for the
others. `LOWTIDE_SIMULATED_LOUD=1` names each stub that is called.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*.c"))
NAME = "libcuda.so.1"
HOW = "`./dev test simulated` makes an environment that has all of it"

# What stubs return: 801 is cudaErrorNotSupported, 15 CUPTI's for what is not initialized.
STUBS_OF = (
    (r"cupti\w+", 15),
    (r"cu(da)?\w*(Malloc|MemAlloc|MemCreate|MemPoolCreate|HostRegister|Ipc|Import)\w*", 801),
    (r"\w+", 0),
)
WANTED = re.compile(
    r"\b((?:__)?cuda[A-Z]\w+|(?:cublas|cudnn|cusparse|cusolver|cufft|curand|nccl|cupti)[A-Z]\w+"
    r"|cu[A-Z]\w+)"
)
DEFINED = re.compile(r"^[A-Za-z_][\w *]*?\b((?:__)?cu\w+)\(", re.MULTILINE)
PROLOGUE = """\
#include <stdio.h>
#include <stdlib.h>
static int stub(const char *name, int *is_known, int result) {
  if (!*is_known && getenv("LOWTIDE_SIMULATED_LOUD")) fprintf(stderr, "stub: %s\\n", name);
  *is_known = 1;
  return result;
}
"""


class Missing(Exception):
    """What is needed to simulate CUDA and is not here, and how to get it."""


def library() -> Path:
    """Builds the library unless it is in the cache. Raises: Missing."""
    packages, version = _packages()
    folder = _cache() / _identity(version)
    if not (folder / NAME).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            _compile(packages, made)
            if not folder.exists():
                made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder / NAME


def environment(path: Path) -> dict[str, str]:
    """The variables of a process in which this library is CUDA."""
    return {
        **os.environ,
        "LD_PRELOAD": str(path),
        "LD_LIBRARY_PATH": str(path.parent),  # for what looks for the driver by name
        "TRITON_LIBCUDA_PATH": str(path.parent),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
        "OMP_WAIT_POLICY": "passive",
    }


def _packages() -> tuple[Path, str]:
    """The folder of this Python's packages, and the version of its torch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise Missing(f"PyTorch is missing: {HOW}")
    packages, version = Path(found.origin).parent.parent, importlib.metadata.version("torch")
    if not (packages / "torch/lib/libtorch_cuda.so").exists():
        raise Missing(f"torch {version} here is built without CUDA: {HOW}")
    for name, package in (
        ("cuda_runtime_api.h", "nvidia-cuda-runtime"),
        ("crt/host_defines.h", "nvidia-cuda-crt"),
    ):
        if not (_headers(packages) / name).exists():
            raise Missing(f"CUDA's header {name} is missing: pip install {package}, or {HOW}")
    for tool in ("cc", "nm"):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is missing (Debian, Ubuntu: apt install gcc)")
    return packages, version


def _headers(packages: Path) -> Path:
    return packages / "nvidia/cu13/include"


def _cache() -> Path:
    given = os.environ.get("LOWTIDE_CACHE_DIR")
    return (Path(given) if given else Path.home() / ".cache/lowtide") / "simulated"


def _identity(version: str) -> str:
    digest = hashlib.sha256(version.encode())
    for path in (*SOURCES, HERE / "runtime.h", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(packages: Path, folder: Path) -> None:
    stubs = folder / "stubs.c"
    stubs.write_text(_stubs(_wanted(packages) - _defined()))
    command = [
        "cc", "-O1", "-fPIC", "-shared", "-Wall", f"-Wl,-soname,{NAME}",
        f"-I{_headers(packages)}", *map(str, SOURCES), str(stubs), "-o", str(folder / NAME),
        "-lpthread", "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"the simulated runtime does not compile:\n{done.stderr}")
    (folder / "libcuda.so").symlink_to(NAME)


def _wanted(packages: Path) -> set[str]:
    """What torch's libraries leave to CUDA's, and the whole driver, which is asked for by name."""
    found: set[str] = set()
    for path in sorted((packages / "torch/lib").glob("lib*.so")):
        command = ["nm", "-D", "--undefined-only", str(path)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found |= {x for x in WANTED.findall(listed) if not x.startswith("cuFile")}
    header = (_headers(packages) / "cuda.h").read_text()
    driver = set(re.findall(r"CUresult CUDAAPI (cu\w+)\(", header))
    newer = set(re.findall(r"#define\s+(cu\w+)\s+\w+_v\d", header))
    return found | driver | {f"{name}_v2" for name in newer}


def _defined() -> set[str]:
    return {name for path in SOURCES for name in DEFINED.findall(path.read_text())}


def _stubs(names: Iterable[str]) -> str:
    lines: list[str] = []
    for name in sorted(names):
        result = next(value for pattern, value in STUBS_OF if re.fullmatch(pattern, name))
        lines.append(f'int {name}(void) {{ static int k; return stub("{name}", &k, {result}); }}\n')
    return PROLOGUE + "".join(lines)
