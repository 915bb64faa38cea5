"""`lt.save`: a compiled function or module into one file; see docs/save-format.md.

In: a ScriptFunction or ScriptModule. Out: a file, whole or not at all.

    lt.save(model, "model.lt")          model.save("model.lt")       lt.save(f, io.BytesIO())

Raises CompileError, with the place and what to write instead, for what only the user's own Python
can run: methods left to Python, objects with operators of their own, context managers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import IO

import torch

from lowtide import __version__
from lowtide.deploy import archive, class_rows, jsontext, limits, tensor_file
from lowtide.deploy.entries import Entry, entries_of
from lowtide.deploy.global_tensors import brought_inside
from lowtide.deploy.writer import Writer
from lowtide.errors import CompileError
from lowtide.frontend.script.module_state import root_of
from lowtide.pipeline.script import ScriptFunction
from lowtide.pipeline.script_module import ScriptModule

ExtraFiles = Mapping[str, str | bytes]


def save(
    m: ScriptFunction | ScriptModule,
    f: str | os.PathLike[str] | IO[bytes],
    _extra_files: ExtraFiles | None = None,
) -> None:
    """Writes a compiled function or module, and extra files, to a path or a binary file object.

    Raises CompileError where a program needs the user's own Python; a path is then as it was."""
    if not isinstance(m, ScriptFunction | ScriptModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"lt.save takes what lt.script gives, not a {type(m).__name__}")
    archive.write(f, contents(m, _extra_files or {}))


def contents(
    m: ScriptFunction | ScriptModule, extra_files: ExtraFiles
) -> list[tuple[str, archive.Content]]:
    """The entries of the file, in order; raises CompileError."""
    prepare: Callable[[], ScriptModule] | None = getattr(m, "__lowtide_saved__", None)
    if prepare is not None:
        m = prepare()
    extra = [_extra(name, content) for name, content in extra_files.items()]
    root = root_of(m) if isinstance(m, ScriptModule) else None
    name = "" if isinstance(m, ScriptModule) else m.__name__
    root, entries = brought_inside(root, name, entries_of(m))
    writer = Writer(root)
    codes = [(entry, writer.programs(entry)) for entry in entries]
    modules = writer.modules()
    rows = [_entry(writer, entry, texts) for entry, texts in codes]
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
    made: list[tuple[str, archive.Content]] = [(limits.MANIFEST, jsontext.dump_lines(manifest))]
    for _, texts in codes:
        made += [(name, text.encode("utf-8", "backslashreplace")) for name, text in texts]
    made.append((limits.STATE, lambda file: tensor_file.write(file, pieces, memory)))
    return [*made, *extra]


def _entry(writer: Writer, entry: Entry, texts: Iterable[tuple[str, str]]) -> dict[str, object]:
    return {
        "name": entry.name,
        "parameters": [writer.parameter(entry, p) for p in entry.signature.parameters.values()],
        "programs": [
            {"code": name, "guards": writer.guards(program)}
            for (name, _), program in zip(texts, entry.programs, strict=True)
        ],
    }


def _extra(name: str, content: str | bytes) -> tuple[str, bytes]:
    entry = f"extra/{name}"
    if not archive.is_entry_name(entry):
        raise ValueError(f"an extra file cannot be called {name!r}")
    return entry, content.encode() if isinstance(content, str) else bytes(content)


__all__ = ["CompileError", "contents", "save"]
