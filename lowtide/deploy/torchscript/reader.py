"""Reads the contents of a file of torch.jit.save: code as text, values, tensors.

In: an open archive. Out: an `OldArchive`.

    model/version            3
    model/code/__torch__.py  class M(Module): …        → code["__torch__.py"]
    model/data.pkl           an object of __torch__.M  → data
    model/data/0             memory of a tensor
    model/constants.pkl      CONSTANTS.c0, …           → constants

Invariant: nothing from the file is run, imported or unpickled by Python. Records that are not named
here (bytecode, inputs of traces) are not read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, cast

from lowtide.deploy import limits
from lowtide.deploy.archive import Archive
from lowtide.deploy.storages import Placed
from lowtide.deploy.torchscript.pickles import Instance, unpickle
from lowtide.deploy.torchscript.tensors import Check, Tensors
from lowtide.errors import LoadError

_DEBUG: Final = ".debug_pkl"
_THREADS: Final = 3
_SMALL_BYTES: Final = 1 << 20
_AGAIN: Final = "write the file again with torch.jit.save"


@dataclass(frozen=True, kw_only=True)
class OldArchive:
    """`name`: the top folder. `version`: of the file format. `code`: source by path below `code/`.
    `debug`: tables of source ranges for such paths, see `debug.ranges`. `data`: the saved module.
    `constants`: what the code calls `CONSTANTS.c0` and so on, tensors or objects."""

    name: str
    version: int
    code: dict[str, str]
    debug: dict[str, bytes]
    data: Instance
    constants: tuple[object, ...]
    archive: Archive

    def extra_files(self, wanted: Iterable[str]) -> dict[str, bytes]:
        """Return those of `_extra_files` that the file has. The archive must still be open."""
        names = {name: f"{self.name}/extra/{name}" for name in wanted}
        infos = self.archive.infos
        return {
            name: self.archive.read(path, infos[path].file_size)
            for name, path in names.items()
            if path in infos
        }


def read(opened: Archive, place: Placed) -> OldArchive:
    """Return the contents. `place`: gives the device for tensors saved on a device. Raises
    LoadError."""
    name = _top(opened)
    version = _version(opened, name)
    order = f"{name}/byteorder"
    if order in opened.infos and opened.read(order, 20) != b"little":
        raise LoadError(f"{order}: the file was saved on a big-endian machine")
    code = {
        path: _text(f"{name}/code/{path}", raw) for path, raw in _below(opened, name, ".py").items()
    }
    if not code:
        raise LoadError(
            "the file has no code/: a mobile model of bytecode alone; save the model with "
            "torch.jit.save or with _save_for_lite_interpreter of PyTorch 1.6 or later"
        )
    sums: list[Future[None]] = []
    with ThreadPoolExecutor(_THREADS) as pool:  # checksums cost as much time as reading

        def check(entry: str, memory: memoryview) -> None:
            if len(memory) < _SMALL_BYTES:
                opened.check_sum(entry, memory)
            else:
                sums.append(pool.submit(opened.check_sum, entry, memory))

        constants = _pickle(opened, name, "constants", place, check)
        data = _pickle(opened, name, "data", place, check)
        for done in sums:
            done.result()
    if not isinstance(data, Instance):
        raise LoadError(f"{name}/data.pkl holds a {type(data).__name__}, not a module")
    if not isinstance(constants, tuple):
        raise LoadError(f"{name}/constants.pkl holds a {type(constants).__name__}, not a tuple")
    return OldArchive(
        name=name,
        version=version,
        code=code,
        debug=_below(opened, name, _DEBUG),
        data=data,
        constants=cast("tuple[object, ...]", constants),
        archive=opened,
    )


def _top(opened: Archive) -> str:
    """Return the folder that all entries lie in."""
    tops = {name.partition("/")[0] for name in opened.infos}
    if len(tops) != 1:
        raise LoadError(f"the file has several top folders: {', '.join(sorted(tops)[:5])}")
    return tops.pop()


def _version(opened: Archive, name: str) -> int:
    record = next((n for n in (".data/version", "version") if f"{name}/{n}" in opened.infos), None)
    raw = opened.read(f"{name}/{record}", 20).strip() if record else b""
    if not raw.isdigit():
        raise LoadError(f"{name}/version has no number")
    if int(raw) > limits.SCRIPT_VERSION:
        raise LoadError(
            f"{name}/version is {int(raw)}: a newer PyTorch wrote the file; this Lowtide reads "
            f"versions up to {limits.SCRIPT_VERSION}"
        )
    return int(raw)


def _below(opened: Archive, name: str, ending: str) -> dict[str, bytes]:
    """Return the records of code/ that end so, by the path of their source. Raises LoadError."""
    prefix = f"{name}/code/"
    found = [n for n in opened.infos if n.startswith(prefix) and n.endswith(ending)]
    total = sum(opened.infos[n].file_size for n in found)
    if total > limits.SCRIPT_BYTES:
        raise LoadError(
            f"{prefix}*{ending} have {total} bytes; at most {limits.SCRIPT_BYTES} are read"
        )
    cut = len(_DEBUG) if ending == _DEBUG else 0
    return {n[len(prefix) : len(n) - cut]: opened.read(n, limits.SCRIPT_BYTES) for n in found}


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"{name} is not UTF-8 at byte {error.start}") from error


def _pickle(opened: Archive, name: str, which: str, place: Placed, check: Check) -> object:
    path = f"{name}/{which}.pkl"
    if opened.info(path).compress_type != zipfile.ZIP_STORED:
        raise LoadError(f"{path} is compressed, not stored: {_AGAIN}")
    raw = opened.read(path, limits.PICKLE_BYTES)
    return unpickle(raw, path, Tensors(opened, f"{name}/{which}", place, check))
