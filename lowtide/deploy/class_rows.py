"""Encodes the class table as rows of the manifest, and decodes it.

In: `ClassEntry`s, or untrusted JSON. Out: rows, or entries. Raises LoadError.

    {"id": "Color", "name": "Color", "kind": "enum", "base": "Enum", "members": [["RED", "1"]]}

Invariant: decoded names are identifiers that neither Python nor PyTorch uses, and constants are
texts of literals.
"""

from __future__ import annotations

from typing import Final, cast

from lowtide.deploy import limits
from lowtide.deploy.class_table import (
    CONTAINERS,
    ENUM_BASES,
    EXCEPTIONS,
    KINDS,
    MIXINS,
    OPTIONS,
    ClassEntry,
    Field,
    Kind,
    may_be_field,
)
from lowtide.deploy.jsontext import Node
from lowtide.ir.literals import parse_literal

_ENTRY: Final = ("id", "name", "kind", "base", "mixin", "members", "fields", "options")


def to_json(entry: ClassEntry) -> dict[str, object]:
    """Return the entry's row in the manifest."""
    found: dict[str, object] = {"id": entry.id, "name": entry.name, "kind": entry.kind}
    if entry.base or entry.mixin:
        found |= {"base": entry.base, "mixin": entry.mixin}
    if entry.members:
        found["members"] = [list(m) for m in entry.members]
    if entry.fields:
        found["fields"] = [[f.name, f.init, f.repr, f.compare, f.default] for f in entry.fields]
    if entry.options is not None:
        found["options"] = sorted(entry.options)
    return found


def from_json(rows: Node) -> dict[str, ClassEntry]:
    """Return the table, by id. Raises LoadError."""
    found: dict[str, ClassEntry] = {}
    for row in rows.items_of():
        entry = _entry(row.only(*_ENTRY))
        if entry.id in found:
            raise row.fail("an id that is not taken")
        found[entry.id] = entry
    return found


def _entry(row: Node) -> ClassEntry:
    kind = cast("Kind", row.get("kind").text(KINDS))
    name, id_ = row.get("name"), row.get("id")
    if not limits.is_identifier(id_.value):
        raise id_.fail("an identifier")
    if not name.text().isidentifier() or len(name.text()) > 256:
        raise name.fail("the name of a class")
    bases = {"enum": ENUM_BASES, "exception": EXCEPTIONS, "module": CONTAINERS}.get(kind, {"": 0})
    base = (
        row.get("base").text(bases) if row.has("base") else next(iter({"": 0} & bases.keys()), "")
    )
    if base not in bases:
        raise row.fail("a base")
    options = None
    if row.has("options"):
        options = frozenset(o.text(OPTIONS) for o in row.get("options").items_of())
    entry = ClassEntry(
        id=id_.text(),
        name=name.text(),
        kind=kind,
        base=base,
        mixin=row.get("mixin").text(MIXINS) if row.has("mixin") else "",
        members=tuple(_member(m) for m in row.get("members").items_of())
        if row.has("members")
        else (),
        fields=tuple(_field(f, kind) for f in row.get("fields").items_of())
        if row.has("fields")
        else (),
        options=options,
    )
    names = [*(m for m, _ in entry.members if kind == "enum"), *(f.name for f in entry.fields)]
    if len(set(names)) != len(names):
        raise row.fail("names that differ")
    return entry


def _member(row: Node) -> tuple[str, str]:
    name, text = row.row(2)
    if not limits.is_public(name.value) or name.text() == "mro":
        raise name.fail("the name of a member")
    constant(text)
    return name.text(), text.text()


def _field(row: Node, kind: Kind) -> Field:
    name, init, repr_, compare, default = row.row(5)
    if not may_be_field(kind, name.text()):
        raise name.fail("the name of a field")
    if default.value is not None:
        constant(default)
    text = None if default.value is None else default.text()
    flags = {"init": init.flag(), "repr": repr_.flag(), "compare": compare.flag()}
    return Field(name=name.text(), **flags, default=text)


def constant(text: Node) -> object:
    """Return the constant of this text. Raises LoadError."""
    try:
        return parse_literal(text.text())
    except ValueError as error:
        raise text.fail("the text of a constant") from error
