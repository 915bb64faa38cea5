"""`lowtide inspect` and `lowtide convert`: what a saved program holds, and writing it anew.

In: a file of torch.jit.save or lt.save. Out: a text for the terminal; a file of lt.save.

    print(render(inspect("old.pt")))
    convert("old.pt", "new.lt")
"""

from __future__ import annotations

import re

from lowtide.deploy import inspection
from lowtide.deploy import save as saving
from lowtide.deploy.inspection import Class, Contents, Operator, TensorRow, Which
from lowtide.deploy.load import load
from lowtide.errors import LoadError
from lowtide.tables import format_bytes, plain_table

_WHERE = {
    "kernels": "have a lowering: they can be parts of kernels",
    "PyTorch": "run by PyTorch",
    "Python": "of lists, numbers and strings",
    "missing": "missing here: lt.load refuses the file",
}
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
_WHICH: tuple[Which, ...] = ("parameter", "buffer", "attribute")


def inspect(path: str) -> Contents:
    """Return what a file holds. Raises LoadError, and OSError if it cannot be read."""
    _check(path)
    return inspection.inspect(path)


def _check(path: str) -> None:
    """Raise LoadError for a file that is no archive at all."""
    with open(path, "rb") as file:
        head = file.read(8)  # files of torch.save and mobile models have errors of their own
        if head[:2] not in (b"PK", b"\x80\2") and head[4:8] != b"PTMF":
            raise LoadError("this is not a file of torch.jit.save or lt.save")


def render(found: Contents) -> str:
    """Return the contents as text, without the code."""
    parts = [f"{found.name}: written by {found.writer}, format {found.format}"]
    parts += [
        "\n".join([name or "functions", *(f"  {m}" for m in methods)])
        for name, methods in dict.fromkeys(map(_without_mangling, found.classes))
    ]
    parts.append(_tensors(found))
    parts.append(_operators(found.operators))
    return "\n\n".join(filter(None, parts))


def _without_mangling(row: Class) -> tuple[str, tuple[str, ...]]:
    """Return name and methods as the author wrote them; torch.jit numbers copies of a class."""
    methods = (_MANGLED.sub("", m) for m in row.methods)
    return _MANGLED.sub("", row.name), tuple(methods)


def _tensors(found: Contents) -> str:
    rows = [_tensor(row) for row in found.tensors]
    sizes = [
        f"{which}s {format_bytes(found.bytes_of(which))}"
        for which in _WHICH
        if any(row.which == which for row in found.tensors)
    ]
    table = plain_table(["tensor", "kind", "shape", "dtype", "size"], rows, left_columns=4)
    return f"{table}\n{', '.join(sizes)}" if rows else "no tensors"


def _tensor(row: TensorRow) -> list[str]:
    shape = "x".join(map(str, row.shape)) or "scalar"
    return [row.name, row.which, shape, row.dtype, format_bytes(row.bytes) if row.bytes else "-"]


def _operators(rows: list[Operator]) -> str:
    lines: list[str] = []
    for runs, what in _WHERE.items():
        group = [row for row in rows if row.runs == runs]
        if runs == "missing":
            lines += [f"{row.name} is {what}; it needs {row.remedy}" for row in group]
        elif group:
            names = ", ".join(f"{row.name} ({row.uses})" for row in group)
            lines.append(f"{len(group)} operators {what}:\n  {names}")
    return "\n".join(lines)


def code_of(found: Contents) -> str:
    """Return the program's text, each line with its number."""
    parts: list[str] = []
    for name, text in found.code.items():
        lines = text.splitlines()
        width = len(str(len(lines)))
        parts.append(
            "\n".join([name, *(f"{k:>{width}}  {line}" for k, line in enumerate(lines, 1))])
        )
    return "\n\n".join(parts)


def convert(old: str, new: str) -> None:
    """Write what `old` holds in the format of lt.save; `new` is replaced when it is complete.

    Raises LoadError, CompileError, and OSError."""
    _check(old)
    saving.save(load(old), new)


__all__ = ["code_of", "convert", "inspect", "render"]
