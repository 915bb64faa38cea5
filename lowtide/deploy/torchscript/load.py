"""Loads a file of torch.jit.save: its modules with their methods compiled from the file's code.

In: an open archive. Out: a `ScriptModule` like any other.

    opened → reader.read → Code (the classes) → Objects (the modules) → wrap

Methods are compiled at their first call, from the annotations in the code.
Invariant: an operator that nobody has, or a class that is missing, is an error here, not at a call.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import torch

from lowtide.api.script_module import ScriptModule, wrap
from lowtide.deploy.archive import Archive
from lowtide.deploy.storages import Placed
from lowtide.deploy.torchscript import debug, objects, reader
from lowtide.deploy.torchscript.reader import OldArchive
from lowtide.errors import LoadError, Loc
from lowtide.frontend.torchscript import operators
from lowtide.frontend.torchscript.code import Code, outer_names

_LISTED: Final = 20  # missing operators in one error


def load(opened: Archive, place: Placed, shown: str) -> tuple[ScriptModule, OldArchive]:
    """Return the compiled module. `shown`: the file's name in errors. Raises LoadError."""
    old = reader.read(opened, place)
    authors = functools.partial(_author, _Ranges(old.debug))
    code = Code(shown, old.code, [], old.version, authors, outer_names(objects.called))
    maker = objects.Objects(code)
    try:
        code.constants += [maker.value(c) for c in old.constants]
        root = maker.value(old.data)
    except RecursionError as error:
        raise LoadError(f"{shown}: calls or expressions that are nested too deeply") from error
    if code.missing:
        raise LoadError(_missing(code.missing))
    if not isinstance(root, torch.nn.Module):
        raise LoadError(f"{old.name}/data.pkl holds an object of {old.data.cls}, no module")
    maker.settle()
    return wrap(root), old


class _Ranges:
    """The debug tables, each read at its first use."""

    def __init__(self, raw: Mapping[str, bytes]) -> None:
        self._raw = raw
        self._known: dict[str, list[debug.Range]] = {}

    def of(self, file: str) -> list[debug.Range]:
        if file not in self._known:
            self._known[file] = debug.ranges(self._raw[file]) if file in self._raw else []
        return self._known[file]


def _author(tables: _Ranges, file: str, offset: int) -> Loc | None:
    return debug.author_of(tables.of(file), offset)


def _missing(found: Mapping[str, list[str]]) -> str:
    """List each operator that is missing, where it stands, and what brings it."""
    rows: list[str] = []
    for path, places in [*found.items()][:_LISTED]:
        where = ", ".join(p.partition(": ")[0] for p in places[:3])
        place = f" ({where})" if where else ""
        rows.append(f"{path}{place}: {operators.remedy(path)}")
    more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"the file uses operators that are missing here: {'; '.join(rows)}{more}"


__all__: list[Any] = ["load"]
