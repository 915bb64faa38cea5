"""Writes and reads the zip around a saved program.

In: a path or a binary file object; for reading, also the bytes. Out: `write` writes the file,
complete or not at all: a path is replaced by a rename. `open_archive` returns an `Archive` whose
table of contents is checked; `is_torchscript` tells files of torch.jit.save from Lowtide's own.

    write("m.lt", [("lowtide.json", b"{}"), ("state.safetensors", write_state)])

Tensors and extra files are stored, text is deflated.
Invariant: entries keep their order and have the date 1980-01-01, so equal contents are equal bytes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import IO, Any, Final, cast

from lowtide.deploy import limits
from lowtide.errors import LoadError

Target = str | os.PathLike[str] | IO[bytes]
Content = bytes | Callable[[IO[bytes]], None]  # or a function that writes it, piece by piece

_TIME: Final = (1980, 1, 1, 0, 0, 0)
_NAME: Final = re.compile(
    r"lowtide\.json|state\.safetensors|code/[A-Za-z0-9_.]{1,200}\.ir|extra/[^\x00-\x1f\\]{1,1000}"
    r"|kernels/[A-Za-z0-9_.-]{1,200}"
)
_BROKEN: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError),
    *(RuntimeError, ValueError, LookupError, OverflowError, MemoryError),
)
_LOCAL_HEADER_BYTES: Final = 30
_END_BYTES: Final = 22  # the record after the table of contents
_END_MAGIC: Final = b"PK\5\6"
_PART_BYTES: Final = 16 << 20
_LOCAL_MAGIC: Final = b"PK\3\4"
_UTF8_FLAG: Final = 0x800
_SCRIPT_NAME: Final = re.compile(r"[^/]+/(?:constants\.pkl|code/.+)", re.DOTALL)


def write(f: Target, entries: Iterable[tuple[str, Content]]) -> None:
    """Write all entries. A path is replaced only when the file is complete."""
    if not isinstance(f, str | os.PathLike):
        if not callable(getattr(f, "write", None)):
            raise TypeError(f"lt.save takes a path or a binary file, not {f!r}")
        _write_zip(f, entries)
        return
    path = os.path.abspath(os.fspath(cast("str", f)))
    if not os.path.isdir(os.path.dirname(path)):
        raise FileNotFoundError(errno.ENOENT, "the folder of the file does not exist", str(f))
    if not str(f) or os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(f))
    handle, temporary = tempfile.mkstemp(prefix=".lowtide-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            _write_zip(file, entries)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    """Return the process's umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _write_zip(file: IO[bytes], entries: Iterable[tuple[str, Content]]) -> None:
    with zipfile.ZipFile(file, "w") as made:
        for name, content in entries:
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            stored = not isinstance(content, bytes) or name.startswith("extra/")
            info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            with made.open(info, "w", force_zip64=not isinstance(content, bytes)) as entry:
                if isinstance(content, bytes):
                    entry.write(content)
                else:
                    content(entry)


def is_entry_name(name: str) -> bool:
    """Return whether Lowtide writes entries of this name; none is a path out of the archive."""
    return _NAME.fullmatch(name) is not None and _is_inside(name)


def _is_inside(name: str) -> bool:
    return not {"", ".", ".."} & set(name.replace("\\", "/").split("/")) and ":" not in name[:3]


def is_torchscript(names: Iterable[str]) -> bool:
    """Return whether entries of these names make a file of torch.jit.save: `X/data.pkl` beside
    `X/constants.pkl` or `X/code/`."""
    found = set(names)
    tops = {name.partition("/")[0] for name in found if _SCRIPT_NAME.fullmatch(name)}
    return any(f"{top}/data.pkl" in found for top in tops)


@dataclass(frozen=True, slots=True)
class Archive:
    """A file whose table of contents has been checked."""

    zip: zipfile.ZipFile
    infos: dict[str, zipfile.ZipInfo]
    file: IO[bytes]

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return a whole entry. Raises LoadError."""
        info = self.info(name)
        if info.file_size > most_bytes:
            raise LoadError(f"{name} has {info.file_size} bytes; at most {most_bytes} are read")
        with reading(name):
            return self.zip.read(info)

    @contextlib.contextmanager
    def open(self, name: str) -> Generator[IO[bytes]]:
        """Return an entry as a stream."""
        info = self.info(name)
        with reading(name), self.zip.open(info) as entry:
            yield entry

    def read_into(self, name: str, memory: memoryview) -> None:
        """Read a whole entry that is stored, not deflated, straight into memory of its size. Its
        checksum is left to `check_sum`."""
        info = self.info(name)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != len(memory):
            raise LoadError(f"{name} is compressed, not stored: save the file again")
        with reading(name):
            self.file.seek(info.header_offset)
            header = self.file.read(_LOCAL_HEADER_BYTES)
            name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
            raw = self.file.read(name_bytes)
            found = raw.decode("utf-8" if info.flag_bits & _UTF8_FLAG else "cp437")
            if not header.startswith(_LOCAL_MAGIC) or found != name:
                raise zipfile.BadZipFile("its header is another's")
            self.file.seek(extra_bytes, os.SEEK_CUR)
            _fill(self.file, memory)

    def check_sum(self, name: str, memory: memoryview) -> None:
        """Raise LoadError if this is not what was written."""
        if zlib.crc32(memory) != self.info(name).CRC:
            raise LoadError(f"{name} cannot be read: the file is damaged (its checksum is wrong)")

    def check_names(self) -> None:
        """Raise LoadError for an entry that files of this version do not have."""
        for name in self.infos:
            if not is_entry_name(name):
                raise LoadError(f"the file has an unknown entry {name!r}")

    def info(self, name: str) -> zipfile.ZipInfo:
        """Return an entry of the table of contents. Raises LoadError."""
        if name not in self.infos:
            raise LoadError(f"the file has no entry {name!r}")
        return self.infos[name]


@contextlib.contextmanager
def reading(what: str) -> Generator[None]:
    """A context in which all errors of Python's zipfile become LoadErrors."""
    try:
        yield
    except _BROKEN as error:
        raise LoadError(f"{what} cannot be read: the file is damaged ({error})") from error


def _fill(file: IO[bytes], memory: memoryview) -> None:
    into = cast("Callable[[memoryview], int] | None", getattr(file, "readinto", None))
    while memory:
        if into is not None:
            count = into(memory)
        else:
            part = file.read(min(len(memory), _PART_BYTES))
            count = len(part)
            memory[:count] = part
        if not count:
            raise EOFError("the file ends within it")
        memory = memory[count:]


@contextlib.contextmanager
def open_archive(f: Target | bytes) -> Generator[Archive]:
    """Return the checked archive. Raises LoadError, or OSError if there is no such file."""
    with contextlib.ExitStack() as stack:
        if isinstance(f, str | os.PathLike):
            file: IO[bytes] = stack.enter_context(open(os.fspath(f), "rb"))
        elif isinstance(f, bytes):
            file = io.BytesIO(f)
        elif hasattr(cast("Any", f), "read") and hasattr(cast("Any", f), "seek"):
            file = f
        else:
            raise TypeError(
                f"lt.load takes a path or a seekable binary file, or its bytes, not {f!r}"
            )
        with reading("the zip"):
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            _refuse_other_formats(file.read(8))
            made = stack.enter_context(_zip(file))
            infos = made.infolist()
            file.seek(-min(size, _END_BYTES), os.SEEK_END)
            end = file.read()
        _check_table(infos, size)
        _check_ends(infos, end)
        yield Archive(made, {info.filename: info for info in infos}, file)


def _zip(file: IO[bytes]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        file.seek(0)
        if file.read(2) == b"PK":  # it begins as one
            raise
        raise LoadError(
            "this is not a file of lt.save or torch.jit.save: those are zip archives"
        ) from None


def _refuse_other_formats(head: bytes) -> None:
    if head[4:8] == b"PTMF":
        raise LoadError(
            "this is a mobile model in the flatbuffer format; save the model with torch.jit.save"
        )
    if head[:2] == b"\x80\2":
        raise LoadError(_SAVED_BY_TORCH_SAVE)


def _refuse_other_archives(names: list[str]) -> None:
    if any(re.fullmatch(r"[^/]+/model\.json", name) for name in names):
        raise LoadError(
            "this is a file of torch.jit.save of PyTorch before 1.4: load it with torch.jit.load "
            "of PyTorch 1.4 and save it again with torch.jit.save"
        )
    if any(name.endswith(".pkl") for name in names) and not is_torchscript(names):
        raise LoadError(_SAVED_BY_TORCH_SAVE)


_SAVED_BY_TORCH_SAVE: Final = (
    "this is a file of torch.save: it holds a pickle, a program that runs when it is read. "
    "Read tensors with torch.load(f, weights_only=True); lt.load reads programs of lt.save and "
    "torch.jit.save"
)


def _check_table(infos: list[zipfile.ZipInfo], size: int) -> None:
    if len(infos) > limits.ENTRIES:
        raise LoadError(f"the file has {len(infos)} entries; at most {limits.ENTRIES} are read")
    _refuse_other_archives([info.filename for info in infos])
    seen: set[str] = set()
    for info in infos:
        name = info.filename
        if name in seen or name != info.orig_filename:
            raise LoadError(f"the file has two entries {name!r}")
        seen.add(name)
        if not _is_inside(name):
            raise LoadError(f"the file has an entry {name!r}, which is a path out of the archive")
        _check_entry(info)
    _check_places(infos, size)


def _check_entry(info: zipfile.ZipInfo) -> None:
    name, kind = info.filename, stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise LoadError(f"the entry {name!r} is not a plain file")
    if info.flag_bits & 0x1:
        raise LoadError(f"the entry {name!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise LoadError(f"the entry {name!r} uses an unsupported compression method")
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise LoadError(f"the entry {name!r} has inconsistent sizes")
    if info.file_size > max(limits.RATIO_FROM_BYTES, limits.RATIO * info.compress_size):
        raise LoadError(f"the entry {name!r} claims to expand to {info.file_size} bytes")


def _check_ends(infos: list[zipfile.ZipInfo], end: bytes) -> None:
    """Check that nothing is before the first entry or after the table of contents."""
    is_last = end.startswith(_END_MAGIC) and end.endswith(b"\0\0")  # and it has no comment
    if not is_last or (infos and min(i.header_offset for i in infos) != 0):
        raise LoadError("the file has bytes before or after the zip archive")


def _check_places(infos: list[zipfile.ZipInfo], size: int) -> None:
    """Check that no entries overlap, so that no byte is read twice."""
    end = 0
    for info in sorted(infos, key=lambda i: i.header_offset):
        if info.header_offset < end:
            raise LoadError(f"the entry {info.filename!r} overlaps another")
        end = info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size
    if end > size:
        raise LoadError("the file is truncated: its entries reach beyond its end")
