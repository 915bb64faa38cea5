"""Finds the C compiler, its flags and the CPU.

In:  `LOWTIDE_CC`, else gcc, cc or clang on PATH, else the `ziglang` package's compiler.
Out: a `Compiler`, which compiles a C file to a shared library, and a `Target`, its CPU.

    compiler()   Compiler(path='/usr/bin/gcc', kind='gcc', version='12.2.0', …)
    target()     Target(arch='x86_64', vector_bytes=64, features={'avx512f', 'fma', …})

Querying the compiler takes about 20 ms, and testing it (`probe`) another 100 ms, so the results are
cached on disk. With them the first call takes under a millisecond.
Invariant: `Compiler.identity` differs if the machine code may differ, also between machines that
share a cache folder. It covers path, time, size and version of the compiler, flags and CPU.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lowtide import config
from lowtide.errors import BackendError
from lowtide.runtime import facts, folder, probe

# Not -O3: kernels have their own vectors and unrolling, to which -O3 adds more.
OPTIMIZE = "-O2"

_FLAGS = (
    "-std=gnu11",
    OPTIMIZE,
    "-fno-fast-math",  # the default of some compilers; before the flags that relax a part of it
    "-ffp-contract=off",  # a*b+c rounds twice, as in PyTorch; kernels call fma explicitly
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-stack-protector",
    "-fvisibility=hidden",
    "-w",
)
# Flags for what generated C assumes beyond the standard, by kind of compiler. A flag that a
# compiler does not know is left out; `probe` tests whether the assumption holds without it.
_NULL = "-fno-delete-null-pointer-checks"
_MEANING = {
    "gcc": (
        _NULL,  # else gcc 12 drops calls of functions that write through an offset from null
        "-fwrapv",  # int32 and int64 wrap around on overflow, as in PyTorch
        "-fwrapv-pointer",  # the address before an array's first element may be computed
        "-fno-strict-aliasing",  # memory that held doubles holds ints in the next kernel
        "-fexcess-precision=standard",  # a float is rounded at each operation
    ),
    "clang": (_NULL, "-fwrapv", "-fwrapv-pointer", "-fno-strict-aliasing"),
    "zig": (_NULL, "-fwrapv", "-fwrapv-pointer", "-fno-strict-aliasing"),
}
REMEDY = "install one: `apt install gcc` or `pip install lowtide[zig]`; or point LOWTIDE_CC at one"
OTHER = "point LOWTIDE_CC at another one, such as clang, or at a later version"
_FACTS = "targets"  # the kind in `facts`: macros by name, and two more:
_FLAGS_KNOWN, _VERDICT = "flags", "verdict"
_PROBE_SECONDS = 120  # at its first run, zig unpacks itself
_COMPILE_SECONDS = 600
_FEATURE = re.compile(
    r"__(AVX\w*|SSE\w*|FMA|F16C|BMI2?|AMX_\w+|ARM_NEON|ARM_FEATURE_\w+|VSX|riscv_v)__$"
    r"|__(ARM_NEON|ARM_FEATURE_\w+|riscv_v|VSX)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The CPU to compile for. `vector_bytes`: of its widest vector register; 16 if unknown."""

    arch: str
    vector_bytes: int
    features: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A C compiler: `command` starts it, `flags` make a shared library, `identity` is for keys."""

    command: tuple[str, ...]
    path: str
    kind: str  # gcc, clang or zig
    version: str
    flags: tuple[str, ...]
    identity: str
    target: Target

    def shared_library(self, source_path: str, output_path: str) -> None:
        """Compile a C file. Raises BackendError with the compiler's output."""
        command = [*self.command, *self.flags, source_path, "-o", output_path]
        result = run(command, _COMPILE_SECONDS)
        if result.returncode == 0 and os.path.exists(output_path):
            return
        output = result.stdout.decode(errors="replace")
        problem = f"the C compiler {self.path} failed (exit status {result.returncode})"
        raise BackendError(problem, output, source_path)


_stand_in: Compiler | None = None


def compiler() -> Compiler:
    """Return the C compiler, or what stands in for it. Raises BackendError with what to install, if
    there is none."""
    try:
        return _compiler(config.current().compiler)
    except BackendError:
        if _stand_in is None:
            raise
        return _stand_in


def stand_in(other: Compiler) -> bool:
    """Let another machine's compiler stand for this one's; return whether there was none here."""
    global _stand_in
    try:
        _compiler(config.current().compiler)
    except BackendError:
        _stand_in = other
        return True
    return False


def target() -> Target:
    """Return the CPU that the compiler compiles for. Raises BackendError without a compiler."""
    return compiler().target


def meaning(kind: str) -> tuple[str, ...]:
    """Return the flags for what generated C assumes beyond the standard."""
    return _MEANING[kind]


def find_command(chosen: str = "") -> tuple[str, ...]:
    """Return the command of the compiler `chosen` (`LOWTIDE_CC`), else of the first one found.
    Raises BackendError if there is none."""
    if chosen:
        words = shlex.split(chosen)
        path = shutil.which(words[0]) if words else None
        if path is None:
            raise BackendError(f"LOWTIDE_CC={chosen!r} was not found; {REMEDY}")
        extra = ["cc"] if words[1:] == [] and _is_zig(path) else words[1:]
        return (path, *extra)
    for name in ("gcc", "cc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    path = zig_path()
    if path:
        return (path, "cc")
    raise BackendError(f"no C compiler was found; {REMEDY}")


def zig_path() -> str:
    """Return the binary of the `ziglang` package, "" if not installed; does not import it."""
    import importlib.util

    spec = importlib.util.find_spec("ziglang")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = os.path.join(place, "zig.exe" if sys.platform == "win32" else "zig")
        if os.access(path, os.X_OK):
            return path
    return ""


def run(command: Sequence[str], limit_seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run a compiler, with English messages; `stdout` of the result has both streams. Raises
    BackendError if it cannot run, or exceeds the time limit."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as fault:
        raise BackendError(f"`{command[0]}` gave no answer in {limit_seconds:.0f} s") from fault
    except OSError as fault:
        raise BackendError(f"`{command[0]}` cannot be run: {fault}") from fault


@functools.cache
def _compiler(chosen: str) -> Compiler:
    command = find_command(chosen)
    path = command[0]
    base = _flags(path, command)
    stat = os.stat(os.path.realpath(path))
    # Everything that the compiler's answers may depend on; found without running it.
    parts = ("3", *command, str(stat.st_mtime_ns), str(stat.st_size), *base, cpu_identity(),
             str(_MEANING), probe.TEXT)  # fmt: skip
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    known = facts.read(_FACTS, key)
    if _VERDICT not in known:
        known = _macros(command, base)
    found = _target(known)
    kind = "zig" if _is_zig(path) else "clang" if "__clang__" in known else "gcc"
    version = known.get("__VERSION__", "").strip('"')
    wide = found.vector_bytes == 64 and found.arch == "x86_64"
    flags = (*base, "-mprefer-vector-width=512") if wide else base
    if _VERDICT not in known:
        known |= _probed(command, flags, _MEANING[kind])
        facts.write(_FACTS, key, known)
    flags = (*flags, *known[_FLAGS_KNOWN].split())
    if known[_VERDICT]:
        problem = f"{path} ({kind} {version}) does not compile kernels rightly: {known[_VERDICT]}"
        raise BackendError(f"{problem}; {OTHER}")
    identity = hashlib.sha256("\0".join((key, kind, version, *flags)).encode()).hexdigest()
    return Compiler(
        command=command,
        path=path,
        kind=kind,
        version=version,
        flags=flags,
        identity=identity,
        target=found,
    )


def _probed(
    command: tuple[str, ...], flags: tuple[str, ...], meaning: Sequence[str]
) -> dict[str, str]:
    """Return the flags of `meaning` that the compiler knows, and its faults with these flags."""
    if not all_known(command, meaning):
        meaning = [flag for flag in meaning if all_known(command, [flag])]
    verdict = "; ".join(probe_faults(command, (*flags, *meaning)))
    return {_FLAGS_KNOWN: " ".join(meaning), _VERDICT: verdict}


def all_known(command: Sequence[str], flags: Sequence[str]) -> bool:
    """Return whether the compiler knows these flags."""
    query = [*command, *flags, "-Werror", "-E", "-x", "c", "-"]
    return run(query, _PROBE_SECONDS).returncode == 0


def probe_faults(command: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return the faults of the probe, compiled so. Raises BackendError if it does not compile."""
    stem = os.path.join(folder.private(), f"probe-{time.time_ns()}")
    with open(f"{stem}.c", "w", encoding="utf-8") as source:
        source.write(probe.TEXT)
    result = run([*command, *flags, f"{stem}.c", "-o", f"{stem}.so"], _PROBE_SECONDS)
    if result.returncode != 0:
        text = result.stdout.decode(errors="replace")
        raise BackendError(f"`{shlex.join(command)}` does not work as a C compiler; {OTHER}", text)
    try:
        return probe.faults(f"{stem}.so")
    except OSError as fault:
        raise BackendError(f"the system does not load what {command[0]} makes: {fault}") from fault


def _flags(path: str, command: tuple[str, ...]) -> tuple[str, ...]:
    machine = platform.machine().lower()
    native = "-march=native" if machine in ("x86_64", "amd64", "i686") else "-mcpu=native"
    flags = [*_FLAGS, native, "-shared"]
    if sys.platform == "darwin":  # its loader requires that every library links libSystem
        flags += ["-fPIC", "-undefined", "dynamic_lookup"]
    elif sys.platform == "win32":
        flags += ["-nostdlib"]
    else:
        flags += ["-fPIC", "-fno-semantic-interposition", "-nostdlib"]
    if _is_zig(path):
        flags.append("-fno-sanitize=all")
    return tuple(flags)


def _is_zig(path: str) -> bool:
    return os.path.basename(os.path.realpath(path)).lower().startswith("zig")


def _macros(command: tuple[str, ...], flags: Sequence[str]) -> dict[str, str]:
    """Return the predefined macros of the compiler that show its version and the CPU."""
    wanted = [flag for flag in flags if flag.startswith(("-m", "-std"))]
    # "-" is the empty standard input; Windows has no /dev/null.
    result = run([*command, *wanted, "-dM", "-E", "-x", "c", "-"], _PROBE_SECONDS)
    text = result.stdout.decode(errors="replace")
    if result.returncode != 0 or "__VERSION__" not in text:
        raise BackendError(f"`{shlex.join(command)}` does not work as a C compiler; {OTHER}", text)
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(" ", 2)
        if len(words) >= 2 and words[0] == "#define" and _is_fact(words[1]):
            found[words[1]] = words[2] if len(words) == 3 else ""
    return found


def _is_fact(macro: str) -> bool:
    known = ("__VERSION__", "__clang__", "__x86_64__", "__aarch64__", "__powerpc64__", "__riscv")
    return macro in known or _FEATURE.match(macro) is not None


def _target(macros: dict[str, str]) -> Target:
    arches = {"__x86_64__": "x86_64", "__aarch64__": "aarch64", "__powerpc64__": "ppc64"}
    arch = next((name for macro, name in arches.items() if macro in macros), "unknown")
    if arch == "unknown":
        arch = "riscv64" if "__riscv" in macros else platform.machine().lower()
    features = frozenset(name.strip("_").lower() for name in macros if _FEATURE.match(name))
    vector_bytes = 64 if "avx512f" in features else 32 if "avx" in features else 16
    return Target(arch=arch, vector_bytes=vector_bytes, features=features)


def cpu_identity() -> str:
    """Return a text that identifies the CPU: model and features of its first core."""
    found = _cpuinfo() or _sysctl_brand() or platform.processor() or platform.node()
    return f"{sys.platform} {platform.machine()} {found}"


def _cpuinfo() -> str:
    """Return model and features of the first core on Linux, "" elsewhere."""
    try:
        # Unbuffered, to read the first core only: the kernel takes long to list 256 cores.
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            text = file.read(8192).decode(errors="replace")
    except OSError:
        return ""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags",
              "Features", "CPU implementer", "CPU part", "isa", "cpu")  # fmt: skip
    lines: list[str] = []
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            lines.append(f"{name.strip()}={value.strip()}")
    return ";".join(lines)


def _sysctl_brand() -> str:
    """Return the CPU's name on macOS, "" elsewhere."""
    if sys.platform != "darwin":
        return ""
    import ctypes

    size = ctypes.c_size_t(256)
    buffer = ctypes.create_string_buffer(256)
    name = b"machdep.cpu.brand_string"
    failed = ctypes.CDLL(None).sysctlbyname(name, buffer, ctypes.byref(size), None, 0)
    return "" if failed else buffer.value.decode(errors="replace")
