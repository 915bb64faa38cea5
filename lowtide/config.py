"""The settings, read once from the environment.

In: the variables below. Out: one frozen `Config`, from `current()`. A value that makes no
sense is a `LowtideError` that names the variable and what is allowed; it is raised at the first
use, never at import.

    LOWTIDE_CACHE_DIR=/fast/disk                  where compiled kernels are kept
    LOWTIDE_DISABLE=1                             run every program as plain PyTorch
    LOWTIDE_DEBUG=ir,kernels;fn=forward;dir=out   what to print (DEBUG_TOPICS), for which function,
                                                  into where
    LOWTIDE_CC=clang-19                           the C compiler, with arguments if need be
    LOWTIDE_ARENA_BYTES=512MiB                    most freed memory kept warm; 0 keeps none
    LOWTIDE_INTERPRET_BLOCKS=1                    run kernels for GPUs on the CPU, in Triton's
                                                  interpreter: slow, to check them
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

from lowtide.errors import LowtideError

DEBUG_TOPICS = ("ir", "tile", "memory", "kernels", "cache", "time")

_ARENA_LIMIT_BYTES = 2 << 30
# Where programs keep what they can make again: a variable that says so, and where it says nothing.
_CACHES = {"darwin": ("", "~/Library/Caches"), "win32": ("LOCALAPPDATA", "~/AppData/Local")}
_CACHE = ("XDG_CACHE_HOME", "~/.cache")
_BYTE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Debug:
    """`LOWTIDE_DEBUG`, parsed: what to print; for `function` only, into `directory`, if set."""

    topics: frozenset[str] = frozenset()
    function: str = ""
    directory: str = ""

    def wants(self, topic: str, function: str = "") -> bool:
        """True if `topic` is to be shown for `function` (an empty name matches every filter)."""
        if topic not in self.topics:
            return False
        return not self.function or not function or function == self.function


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. `compiler` is empty where the compiler is to be searched for."""

    cache_dir: str
    arena_cap_bytes: int
    disable: bool = False
    debug: Debug = Debug()
    compiler: str = ""
    interpret_blocks: bool = False
    products: str = ""  # of matrices: by "kernels", by the "library", or "" as is faster
    kernels_only: bool = False  # PyTorch is not there when the program runs: no library


def parse_bytes(text: str | int) -> int:
    """Bytes meant by `text`: `512`, `"512MB"` (10**6) or `"2GiB"` (2**30).

    Raises ValueError for anything else, negative numbers among it.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"{text} bytes is negative")
        return text
    match = _BYTES.fullmatch(text)
    unit = _BYTE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a number of bytes; write 1000000, 512MB or 2GiB")
    number = match[1]
    return int(float(number) * unit) if "." in number else int(number) * unit


def from_environment(environ: Mapping[str, str]) -> Config:
    """The settings that `environ` asks for. Raises LowtideError on a value that is not allowed."""
    return Config(
        cache_dir=_cache_dir(environ),
        arena_cap_bytes=_arena_cap(environ.get("LOWTIDE_ARENA_BYTES", "")),
        disable=_switch("LOWTIDE_DISABLE", environ.get("LOWTIDE_DISABLE", "")),
        debug=_debug(environ.get("LOWTIDE_DEBUG", "")),
        compiler=environ.get("LOWTIDE_CC", "").strip(),
        interpret_blocks=_switch(
            "LOWTIDE_INTERPRET_BLOCKS", environ.get("LOWTIDE_INTERPRET_BLOCKS", "")
        ),
        products=_products(environ.get("LOWTIDE_PRODUCTS", "").strip()),
    )


_current: Config | None = None


def current() -> Config:
    """The settings in force: the environment's, read at the first call, unless overridden."""
    global _current
    if _current is None:
        _current = from_environment(os.environ)
    return _current


@contextlib.contextmanager
def override(
    *,
    cache_dir: str | None = None,
    arena_cap_bytes: int | None = None,
    disable: bool | None = None,
    debug: Debug | None = None,
    compiler: str | None = None,
    interpret_blocks: bool | None = None,
    products: str | None = None,
    kernels_only: bool | None = None,
) -> Generator[Config, None, None]:
    """Settings changed within a `with` block, for the whole process; those left None stay."""
    global _current
    before = current()
    _current = replace(
        before,
        cache_dir=before.cache_dir if cache_dir is None else cache_dir,
        arena_cap_bytes=before.arena_cap_bytes if arena_cap_bytes is None else arena_cap_bytes,
        disable=before.disable if disable is None else disable,
        debug=before.debug if debug is None else debug,
        compiler=before.compiler if compiler is None else compiler,
        interpret_blocks=(
            before.interpret_blocks if interpret_blocks is None else interpret_blocks
        ),
        products=before.products if products is None else products,
        kernels_only=before.kernels_only if kernels_only is None else kernels_only,
    )
    try:
        yield _current
    finally:
        _current = before


def _cache_dir(environ: Mapping[str, str]) -> str:
    if text := environ.get("LOWTIDE_CACHE_DIR", ""):
        return os.path.abspath(os.path.expanduser(text))
    variable, otherwise = _CACHES.get(sys.platform, _CACHE)
    parent = environ.get(variable, "").strip() or os.path.expanduser(otherwise)
    return os.path.abspath(os.path.join(parent, "lowtide"))


def _switch(variable: str, text: str) -> bool:
    if text in ("", "0"):
        return False
    if text == "1":
        return True
    raise LowtideError(f"{variable}={text!r} is not a switch; allowed are 1, 0, or leave it unset")


def _products(text: str) -> str:
    if text not in ("", "kernels", "library"):
        raise LowtideError(f"LOWTIDE_PRODUCTS={text!r}: write kernels or library, or leave it out")
    return text


def _arena_cap(text: str) -> int:
    if not text:
        return min(_ARENA_LIMIT_BYTES, memory_bytes() // 8)
    try:
        return parse_bytes(text)
    except ValueError as fault:
        raise LowtideError(
            f"LOWTIDE_ARENA_BYTES={text!r} is not a number of bytes; "
            "allowed are numbers such as 0, 1000000, 512MB or 2GiB"
        ) from fault


def _debug(text: str) -> Debug:
    topics: set[str] = set()
    options = {"fn": "", "dir": ""}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        key, equals, value = part.partition("=")
        if equals and key.strip() in options and value.strip():
            options[key.strip()] = value.strip()
            continue
        for topic in filter(None, (topic.strip() for topic in part.split(","))):
            if topic not in DEBUG_TOPICS:
                raise LowtideError(
                    f"LOWTIDE_DEBUG={text!r}: {topic!r} is unknown; allowed are topics out of "
                    f"{','.join(DEBUG_TOPICS)}, then ;fn=name and ;dir=path, "
                    "as in LOWTIDE_DEBUG='ir,kernels;fn=forward;dir=out'"
                )
            topics.add(topic)
    return Debug(topics=frozenset(topics), function=options["fn"], directory=options["dir"])


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or its container's limit if that is less."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        machine = 8 << 30
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine
