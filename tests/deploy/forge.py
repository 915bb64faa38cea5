"""Files that lt.save would not write.

In: a valid file's bytes, and what to change. Out: bytes.

    forge(data, manifest={"format": 99})                     a field of lowtide.json
    forge(data, code={"code/f.ir": "def f(…"})               another program
    forge(data, entries={"../evil": b""})                    one more entry
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import lowtide as lt

Edit = Callable[[dict[str, Any]], None]


def parts_of(data: bytes) -> dict[str, bytes]:
    """The entries of a file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of these entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def forge(
    data: bytes,
    *,
    manifest: Mapping[str, Any] | None = None,
    edit: Edit | None = None,
    code: Mapping[str, str] | None = None,
    entries: Mapping[str, bytes] | None = None,
    without: str = "",
) -> bytes:
    """The file with other contents."""
    parts = parts_of(data)
    found = json.loads(parts["lowtide.json"])
    found.update(manifest or {})
    if edit is not None:
        edit(found)
    parts["lowtide.json"] = json.dumps(found).encode()
    parts.update({name: text.encode() for name, text in (code or {}).items()})
    parts.update(entries or {})
    parts.pop(without, None)
    return packed(parts)


def same(x: Tensor, n: int = 3) -> Tensor:
    return x


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.table = {"a": [1, 2]}
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return self.fc(x) + len(self.table)


def function_file() -> bytes:
    """A file of a function."""
    file = io.BytesIO()
    lt.save(lt.script(same), file)
    return file.getvalue()


def module_file() -> bytes:
    """A file of a module with parameters, objects and guards."""
    torch.manual_seed(0)
    file = io.BytesIO()
    lt.save(lt.script(Small()), file, _extra_files={"a": b"x"})
    return file.getvalue()


def program(
    *ops: str, result: str = "%x", head: str = "def same(%x: Tensor, %n: int) -> Tensor:"
) -> str:
    """The text of a program with these ops."""
    body = "".join(f"  {op}\n" for op in (*ops, f"return({result})"))
    return f"{head}\n{body}"


def state(header: object, data: bytes = b"") -> bytes:
    """A safetensors file."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
