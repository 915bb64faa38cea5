"""Packs the kernels of this process, for machines of the same kind that have no C compiler.

In: nothing; the libraries that this process has loaded. Out: files by name, for `unpack`.

    machine.json          the CPU, the compiler and the rates that kernels were chosen by
    kernel-9f2c….so       a library, as the cache on disk has it

`unpack` puts the libraries into the cache on disk. Where no compiler is found, the packed one's
target and identity stand for it, so that the same sources are printed and found.
Invariant: a library is unpacked on the same CPU only, and only if its seal holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from lowtide.errors import BackendError, LoadError
from lowtide.runtime import cache, rates, toolchain
from lowtide.version import __version__

MACHINE: Final = "machine.json"
_NOT_PACKED: Final = (
    "no C compiler was found, and the file has no kernel for this call: make a call like it before "
    "lt.save(…, kernels=True), with the same number of threads"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCompiler(toolchain.Compiler):
    """The compiler of another machine: its kernels are there, itself is not."""

    def shared_library(self, source_path: str, output_path: str) -> NoReturn:
        """Raise BackendError: nothing can be compiled."""
        del source_path, output_path
        raise BackendError(f"{_NOT_PACKED}; or {toolchain.REMEDY}")


def pack() -> dict[str, bytes]:
    """Return the libraries that this process has loaded, and what their choice depends on. Raises
    BackendError without a compiler, and where nothing is loaded or can be read."""
    found = toolchain.compiler()
    libraries = cache.loaded_files()
    if not libraries:
        raise BackendError("there are no kernels yet: call the function or module before saving it")
    machine = {
        "lowtide": __version__,
        "cpu": toolchain.cpu_identity(),
        "kind": found.kind,
        "version": found.version,
        "identity": found.identity,
        "arch": found.target.arch,
        "vector_bytes": found.target.vector_bytes,
        "features": sorted(found.target.features),
        "rates": rates.to_rows(rates.current()),
    }
    return {MACHINE: json.dumps(machine, indent=1).encode(), **libraries}


def unpack(files: Mapping[str, bytes]) -> None:
    """Make these kernels those of this machine. Raises LoadError if they are of another CPU or
    version, or damaged."""
    try:
        machine: dict[str, Any] = json.loads(files[MACHINE])
        wide = int(machine["vector_bytes"])
        target = toolchain.Target(
            arch=machine["arch"], vector_bytes=wide, features=frozenset(machine["features"])
        )
        given = PackedCompiler(
            command=(), path="", kind=machine["kind"], version=machine["version"], flags=(),
            identity=machine["identity"], target=target,
        )  # fmt: skip
        speeds = rates.from_rows(machine["rates"])
        made_by, cpu = machine["lowtide"], machine["cpu"]
    except (ValueError, LookupError, TypeError, AttributeError) as fault:
        raise LoadError(f"the kernels of the file cannot be read: {fault!r}") from fault
    remedy = "load the file without `kernels=True`; a C compiler then builds them"
    if made_by != __version__:
        raise LoadError(f"its kernels are of lowtide {made_by}, this is {__version__}: {remedy}")
    if cpu != toolchain.cpu_identity():
        raise LoadError(f"its kernels were built for another CPU: {remedy}")
    for name, library in files.items():
        if name != MACHINE:
            cache.store(name, library)
    if toolchain.stand_in(given) and speeds.kernels:
        rates.keep(speeds)
