"""`lt.save`: writes a compiled function or module to one file; see docs/save-format.md.

In: a ScriptFunction or ScriptModule. Out: a file, complete or not at all.

    lt.save(model, "model.lt")          model.save("model.lt")       lt.save(f, io.BytesIO())

Raises CompileError, with the user's line and what to write instead, for a program that needs the
user's Python: methods left to Python, objects with operators, context managers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO

import torch

from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_module import ScriptModule
from lowtide.deploy import archive, class_rows, jsontext, limits, tensor_file
from lowtide.deploy.class_table import NotSaved
from lowtide.deploy.entries import Entry, entries_of
from lowtide.deploy.global_tensors import brought_inside
from lowtide.deploy.parts import parts_of
from lowtide.deploy.writer import Writer
from lowtide.diagnostics.tracebacks import entry_point
from lowtide.errors import CompileError
from lowtide.frontend.script.module_state import root_of
from lowtide.runtime import packed
from lowtide.version import __version__

ExtraFiles = Mapping[str, str | bytes]


@entry_point
def save(
    m: ScriptFunction | ScriptModule,
    f: str | os.PathLike[str] | IO[bytes],
    _extra_files: ExtraFiles | None = None,
    *,
    kernels: bool = False,
) -> None:
    """Write a compiled function or module, and extra files, to a path or a binary file object.

    `kernels`: write the built kernels, too, for `lt.load(f, kernels=True)` on machines with the
    same CPU and no C compiler. These are all kernels that this process has used so far, those of
    its other programs too; call `m` before. Raises CompileError if a program needs the user's
    Python, BackendError if there are no kernels; a file at the path is unchanged."""
    if not isinstance(m, ScriptFunction | ScriptModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(m).__name__
        raise TypeError(f"lt.save takes a compiled function or module, not {kind}: lt.script first")
    entries = contents(m, _extra_files or {})
    if kernels:
        entries += [(f"{limits.KERNELS}{name}", data) for name, data in packed.pack().items()]
    archive.write(f, entries)


def contents(
    m: ScriptFunction | ScriptModule, extra_files: ExtraFiles
) -> list[tuple[str, archive.Content]]:
    """Return the entries of the file, in order. Raises CompileError."""
    prepare: Callable[[], ScriptModule] | None = getattr(m, "__lowtide_saved__", None)
    if prepare is not None:
        m = prepare()
    extra = [_extra(name, content) for name, content in extra_files.items()]
    entries = entries_of(m)
    if not isinstance(m, ScriptModule):
        return [*_written(None, m.__name__, entries), *extra]
    return [*_with_parts(root_of(m), entries, parts_of(m, entries)), *extra]


Contents = list[tuple[str, archive.Content]]


def _with_parts(root: torch.nn.Module, entries: list[Entry], parts: list[Entry]) -> Contents:
    """Return the file's entries with all entry points, and those parts that can be saved."""
    try:
        return _written(root, "", [*entries, *parts])
    except CompileError:
        _written(root, "", entries)  # raises the error of an entry point
    alike: dict[tuple[int, ...], list[Entry]] = {}
    for part in parts:
        alike.setdefault(tuple(map(id, part.programs)), []).append(part)
    savable = {id(part) for part in _savable(root, list(alike.values()))}
    return _written(root, "", [*entries, *(part for part in parts if id(part) in savable)])


def _savable(root: torch.nn.Module, groups: list[list[Entry]]) -> list[Entry]:
    """Return the parts that can be saved. Few cannot, so a bisection finds these."""
    parts = [part for group in groups for part in group]
    try:
        _written(root, "", parts)
    except CompileError:
        middle = len(groups) // 2
        return (
            [*_savable(root, groups[:middle]), *_savable(root, groups[middle:])] if middle else []
        )
    return parts


def _written(root: torch.nn.Module | None, name: str, entries: Sequence[Entry]) -> Contents:
    """Return the file's entries without extra files. `name`: of the function, if `root` is None."""
    try:
        root, entries = brought_inside(root, name, entries)
        writer = Writer(root)
    except NotSaved as error:
        raise CompileError(f"cannot be saved: {error}") from error
    codes = [(entry, writer.programs(entry)) for entry in entries]
    modules = writer.modules()
    rows = _rows(writer, codes)
    tensors, pieces, memory = writer.tensors.finish()
    classes = writer.finish()
    manifest: dict[str, object] = {
        "format": limits.FORMAT,
        "producer": f"lowtide {__version__}",
        "torch": torch.__version__,
        "kind": "function" if root is None else "module",
        "name": name if root is None else type(root).__name__,
        "entries": rows,
        "classes": [class_rows.to_json(entry) for entry in classes.values()],
        "modules": modules,
        "objects": writer.encoder.objects,
        "tensors": tensors,
        "sources": writer.sources(),
    }
    return [
        (limits.MANIFEST, jsontext.dump_lines(manifest)),
        *((n, text.encode("utf-8", "backslashreplace")) for text, n in writer.codes.items()),
        (limits.STATE, lambda file: tensor_file.write(file, pieces, memory)),
    ]


def _rows(writer: Writer, codes: Iterable[tuple[Entry, list[str]]]) -> list[object]:
    """Return a row for each method; equal methods of several modules share a row."""
    rows: dict[bytes, dict[str, object]] = {}
    places: dict[bytes, list[int]] = {}
    for entry, names in codes:
        row = _row(writer, entry, names)
        key = jsontext.dump(row)
        rows.setdefault(key, row)
        places.setdefault(key, []).extend(writer.places(entry))
    return [{"modules": places[key], **row} for key, row in rows.items()]


def _row(writer: Writer, entry: Entry, names: Iterable[str]) -> dict[str, object]:
    return {
        "name": entry.name,
        "parameters": [writer.parameter(entry, p) for p in entry.signature.parameters.values()],
        "programs": [
            {"code": name, "guards": writer.guards(entry, program)}
            for name, program in zip(names, entry.programs, strict=True)
        ],
    }


def _extra(name: str, content: str | bytes) -> tuple[str, bytes]:
    entry = f"extra/{name}"
    if not archive.is_entry_name(entry):
        raise ValueError(f"an extra file cannot be called {name!r}")
    return entry, content.encode() if isinstance(content, str) else bytes(content)


__all__ = ["CompileError", "contents", "save"]
