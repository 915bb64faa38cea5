"""Caches compiled C on disk: a source is compiled once per machine, loaded once per process.

In: C source and a name. Out: the loaded library. The key of an entry is a hash of its content:
    key = sha256(source, compiler, flags, CPU)      kernels/<name>-<key>.so
    file = the library, sha256(key, library), 8 bytes of magic

    load_library("int f(void) { return 7; }", "seven").f()      # 7; compiles
    load_library("int f(void) { return 7; }", "seven").f()      # 7; stats().memory_hits is one more

An entry is written to another file and renamed, so it is complete, and processes need no lock. A
lock per entry only avoids compiling twice. It ends with its process, and waiting for it has a
limit. If the folder is full, read-only or unsafe, each process warns once and compiles anew.
Invariant: a library is loaded only after its hash is checked, since a truncated one would crash the
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lowtide import config
from lowtide.errors import BackendError, LoadError
from lowtide.runtime import folder, toolchain

CAP_BYTES = 1 << 30
_LOCK_SECONDS = 30.0
_STALE_SECONDS = 3600.0
_STORES_PER_EVICTION = 64
_MAGIC = b"LOWTIDE1"
_DIGEST_BYTES = 32
_SUFFIX = ".dll" if sys.platform == "win32" else ".so"
_NAME = re.compile(rf"\w{{1,40}}-(?P<key>[0-9a-f]{{64}})\{_SUFFIX}", re.ASCII)
_NO_ROOM = re.compile("No space left|quota exceeded|Read-only file system|Permission denied")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts of this process: libraries compiled, read from disk, found in memory."""

    compiles: int = 0
    disk_hits: int = 0
    memory_hits: int = 0
    compile_time_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """The libraries on disk: their number and bytes."""

    entries: int
    entry_bytes: int


_loaded: dict[str, ctypes.CDLL] = {}
_stats = CacheStats()
_stores = 0
_counting = threading.Lock()


def load_library(source: str, name: str) -> ctypes.CDLL:
    """Return the library of a C source. `name`: a part of its file name.

    Raises BackendError, with the compiler's output and the path of the source, if there is no
    compiler, or if the source does not compile or load.
    """
    compiler = toolchain.compiler()
    key = _key(source, compiler.identity)
    library = _loaded.get(key)
    if library is not None:
        _count(memory_hits=1)
        return library
    library = _find_or_build(source, name, key, compiler)
    return _loaded.setdefault(key, library)


def load_libraries(sources: Sequence[str], name: str) -> list[ctypes.CDLL]:
    """Return the libraries of several sources; as many compilers run in parallel as there are CPUs.
    Raises BackendError."""
    distinct = list(dict.fromkeys(sources))
    if len(distinct) > 1:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for loading in [pool.submit(load_library, source, name) for source in distinct]:
                loading.result()
    return [load_library(source, name) for source in sources]


def loaded_files() -> dict[str, bytes]:
    """Return the files of all libraries that this process has loaded, by name; files that were
    removed or damaged since are left out."""
    found: dict[str, bytes] = {}
    for key, library in tuple(_loaded.items()):
        with contextlib.suppress(OSError), open(library._name, "rb") as file:
            data = file.read()
            if _is_sealed(data, key):
                found[os.path.basename(library._name)] = data
    return found


def store(name: str, data: bytes) -> None:
    """Put a file of `loaded_files` into the folder. Raises LoadError."""
    match = _NAME.fullmatch(name)
    if match is None or not _is_sealed(data, match["key"]):
        raise LoadError(f"the kernel {name!r} is damaged")
    root = folder.trusted()
    if root is None:
        raise LoadError("kernels of a file need a cache folder: set LOWTIDE_CACHE_DIR to one")
    path = os.path.join(folder.subfolder(root, "kernels"), name)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise LoadError(f"the kernels of the file cannot be stored: {fault}") from fault


def stats() -> CacheStats:
    """Return the counts of this process; they only grow."""
    return _stats


def path() -> str:
    """Return the folder of the compiled libraries, private to the process if no other is usable."""
    return os.path.join(folder.trusted() or folder.private(), "kernels")


def size() -> CacheSize:
    """Return the size of the libraries on disk, of all processes."""
    entries = _entries(path())
    return CacheSize(entries=len(entries), entry_bytes=sum(entry[1] for entry in entries))


def clear() -> CacheSize:
    """Remove all libraries, on disk and in this process; return what was on disk. Kernels that are
    in use, here or in other processes, still work."""
    removed = size()
    root = folder.trusted() or folder.private()
    for name in ("kernels", "failed", "targets", "locks"):
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    _loaded.clear()
    return removed


def evict(cap_bytes: int = CAP_BYTES) -> int:
    """Remove the least recently used libraries until at most `cap_bytes` are left; return the bytes
    removed. Also remove files of killed compilers after an hour."""
    root = folder.trusted()
    if root is None:
        return 0
    _remove_stale(root)
    entries = sorted(_entries(os.path.join(root, "kernels")))
    excess = sum(entry_bytes for _, entry_bytes, _ in entries) - cap_bytes
    removed = 0
    for _, entry_bytes, file in entries:
        if removed >= excess:
            break
        with contextlib.suppress(OSError):  # removed by another process; or in use, on Windows
            os.unlink(file)
            removed += entry_bytes
    return removed


def _key(source: str, identity: str) -> str:
    return hashlib.sha256(f"{identity}\0{source}".encode()).hexdigest()


def _find_or_build(source: str, name: str, key: str, compiler: toolchain.Compiler) -> ctypes.CDLL:
    label = re.sub(r"\W", "_", name, flags=re.ASCII)[:40] or "kernel"
    root = folder.trusted()
    if root is None:
        return _build_privately(source, label, key, compiler)
    file = _file(root, label, key)
    library = _open(file, key)
    if library is None:
        with _one_builder(root, key):
            library = _loaded.get(key) or _open(file, key)  # another builder may have finished
            if library is None:
                return _build_somewhere(root, source, label, key, compiler)
    _count(disk_hits=1)
    _log(f"{label} found on disk ({key[:12]})")
    with contextlib.suppress(OSError):
        os.utime(file)  # the time of last use, for eviction
    return library


def _build_somewhere(
    root: str, source: str, label: str, key: str, compiler: toolchain.Compiler
) -> ctypes.CDLL:
    """Compile into `root`, or into the folder of this process if that fails."""
    global _stores
    try:
        library = _build(root, source, label, key, compiler)
    except (OSError, _CannotLoadError) as fault:
        folder.warn_once(
            f"a compiled kernel cannot be stored in {root}: {fault}; "
            "each process compiles it anew. LOWTIDE_CACHE_DIR can name another folder"
        )
        return _build_privately(source, label, key, compiler)
    _stores += 1
    if _stores % _STORES_PER_EVICTION == 1:
        evict()
    return library


def _build_privately(
    source: str, label: str, key: str, compiler: toolchain.Compiler
) -> ctypes.CDLL:
    try:
        return _build(folder.private(), source, label, key, compiler)
    except OSError as fault:
        place = tempfile.gettempdir()
        raise BackendError(f"a kernel cannot be compiled, not even in {place}: {fault}") from fault


class _CannotLoadError(BackendError):
    """The system does not load a compiled library, for instance from a disk mounted noexec."""


def _build(
    root: str, source: str, label: str, key: str, compiler: toolchain.Compiler
) -> ctypes.CDLL:
    """Compile in a new folder, seal, rename into place, load. Raises OSError and BackendError."""
    file = _file(root, label, key)
    folder.subfolder(root, "kernels")
    build_folder = tempfile.mkdtemp(prefix="build-", dir=root)
    try:
        source_path = os.path.join(build_folder, f"{label}.c")
        built = os.path.join(build_folder, f"{label}{_SUFFIX}")
        with open(source_path, "w", encoding="utf-8") as text:
            text.write(source)
        begin_ns = time.perf_counter_ns()
        try:
            compiler.shared_library(source_path, built)
        except BackendError as fault:
            if _NO_ROOM.search(fault.compiler_output):
                raise OSError(fault.compiler_output.strip()) from fault
            failed = _store_failed(root, source, label, key)
            raise BackendError(fault.problem, fault.compiler_output, failed) from fault
        spent_ns = time.perf_counter_ns() - begin_ns
        _seal(built, key)
        os.replace(built, file)
    finally:
        shutil.rmtree(build_folder, ignore_errors=True)
    _count(compiles=1, compile_time_ns=spent_ns)
    _log(f"{label} compiled in {spent_ns / 1e6:.0f} ms ({key[:12]})")
    try:
        return ctypes.CDLL(file)
    except OSError as fault:
        raise _CannotLoadError(f"the compiled library cannot be loaded: {fault}") from fault


def _file(root: str, label: str, key: str) -> str:
    return os.path.join(root, "kernels", f"{label}-{key}{_SUFFIX}")


def _seal(file: str, key: str) -> None:
    """Append the hash that `_open` checks; loaders ignore bytes after the last section."""
    with open(file, "r+b") as library:
        digest = hashlib.sha256(key.encode() + library.read()).digest()
        library.write(digest + _MAGIC)


def _is_whole(file: str, key: str) -> bool:
    """Return whether the file is a complete library sealed under `key`. Raises OSError."""
    with open(file, "rb") as library:
        return _is_sealed(library.read(), key)


def _is_sealed(data: bytes, key: str) -> bool:
    trailer = _DIGEST_BYTES + len(_MAGIC)
    if len(data) <= trailer or not data.endswith(_MAGIC):
        return False
    body = memoryview(data)[:-trailer]
    digest = hashlib.sha256(key.encode())
    digest.update(body)
    return digest.digest() == data[-trailer : -len(_MAGIC)]


def _open(file: str, key: str) -> ctypes.CDLL | None:
    """Return the library of an entry, None if it is missing, damaged, or does not load."""
    try:
        if _is_whole(file, key):
            return ctypes.CDLL(file)
        _log(f"{file} is damaged and is built again")
        os.unlink(file)
    except OSError:
        pass
    return None


def _store_failed(root: str, source: str, label: str, key: str) -> str:
    """Store a source that does not compile, for the user; return its path, "" if that fails."""
    try:
        if root == folder.trusted():
            path = os.path.join(folder.subfolder(root, "failed"), f"{label}-{key[:12]}.c")
            with open(path, "w", encoding="utf-8") as file:
                file.write(source)
            return path
        handle, path = tempfile.mkstemp(prefix=f"lowtide-{label}-", suffix=".c")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(source)
        return path
    except OSError:
        return ""


@contextlib.contextmanager
def _one_builder(root: str, key: str) -> Generator[None, None, None]:
    """A context with the lock of `key`, or without it after `_LOCK_SECONDS` of waiting."""
    handle = _acquire(root, key)
    try:
        yield
    finally:
        if handle is not None:
            _release(handle)


def _acquire(root: str, key: str) -> int | None:
    try:
        import fcntl
    except ImportError:  # Windows: a source may be compiled twice
        return None
    try:
        file = os.path.join(folder.subfolder(root, "locks"), key[:2])  # 256 files at most
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
        except OSError:  # a file system without locks
            pass
        os.close(handle)
        return None


def _release(handle: int) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have the file open, too
    os.close(handle)


def _entries(kernels: str) -> list[tuple[float, int, str]]:
    """Return time of last use, bytes and path of every library in a folder."""
    entries: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(kernels) as files:
        for file in files:
            with contextlib.suppress(OSError):
                if file.name.endswith(_SUFFIX):
                    facts = file.stat()
                    entries.append((facts.st_mtime, facts.st_size, file.path))
    return entries


def _remove_stale(root: str) -> None:
    """Remove the build folders of killed processes, and sources that failed an hour ago."""
    oldest = time.time() - _STALE_SECONDS
    for place in (root, os.path.join(root, "failed")):
        with contextlib.suppress(OSError), os.scandir(place) as files:
            for file in files:
                is_left = place != root or file.name.startswith("build-")
                with contextlib.suppress(OSError):
                    if not is_left or file.stat().st_mtime > oldest:
                        continue
                    if file.is_dir():
                        shutil.rmtree(file.path, ignore_errors=True)
                    else:
                        os.unlink(file.path)


def _count(
    *, compiles: int = 0, disk_hits: int = 0, memory_hits: int = 0, compile_time_ns: int = 0
) -> None:
    global _stats
    with _counting:
        _stats = replace(
            _stats,
            compiles=_stats.compiles + compiles,
            disk_hits=_stats.disk_hits + disk_hits,
            memory_hits=_stats.memory_hits + memory_hits,
            compile_time_ns=_stats.compile_time_ns + compile_time_ns,
        )


def _log(message: str) -> None:
    if config.current().debug.wants("cache"):
        print(f"lowtide cache: {message}", file=sys.stderr)


def _after_fork() -> None:
    global _counting
    _counting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
