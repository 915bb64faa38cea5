"""Encodes a tree of modules as rows, and decodes it: state and plain attributes, no behaviour.

In: a root module and the attributes that programs read, or rows. Out: rows, children before
parents, or modules.

    {"class": "Linear", "training": true, "parameters": [["weight", {"tensor": 0}], …],
     "buffers": [], "children": [], "attributes": [["in_features", 4]]}

Attributes that no program reads are saved if they have plain parts only.
Invariant: a module that is reached by several paths is one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from lowtide.deploy import class_table, limits
from lowtide.deploy.class_names import ClassNames
from lowtide.deploy.class_table import ClassEntry, NotSaved
from lowtide.deploy.jsontext import Node
from lowtide.deploy.values import Decoder, Encoder, can_encode
from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.script.module_state import join_path, root_of

Needs = Mapping[tuple[int, str], object]  # (id of a module, name of an attribute) → its value

_ROW: Final = ("class", "training", "parameters", "buffers", "children", "attributes")


def in_order(root: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """Return every module once, with its first path, children first."""
    found: dict[torch.nn.Module, str] = {}

    def visit(module: torch.nn.Module, path: str, above: frozenset[int]) -> None:
        if id(module) in above:
            raise NotSaved(f"the module at {path!r} contains itself")
        for name, child in children_of(module):
            if child is not None and child not in found:
                visit(child, join_path(path, name), above | {id(module)})
        found[module] = path

    visit(root, "", frozenset())
    return found


def children_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module | None]]:
    """Yield the submodules, unwrapped."""
    for name, child in vars(module)["_modules"].items():
        yield name, None if child is None else root_of(child)


def encode(
    paths: Mapping[torch.nn.Module, str], needs: Needs, encoder: Encoder, names: ClassNames
) -> list[object]:
    """Return the rows of the modules in `in_order`. Raises NotSaved."""
    places = {module: k for k, module in enumerate(paths)}
    writer = _Writer(needs, encoder, names)
    return [writer.row(module, path, places) for module, path in paths.items()]


class _Writer:
    def __init__(self, needs: Needs, encoder: Encoder, names: ClassNames) -> None:
        self.needs = needs
        self.encoder = encoder
        self.names = names

    def row(
        self, module: torch.nn.Module, path: str, places: Mapping[torch.nn.Module, int]
    ) -> object:
        own = vars(module)
        if torch_jit_twins.is_module(module):
            what = f"{path!r} is a module of torch.jit, which has no Python source"
            raise NotSaved(what, "the module that it was made of")
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            raise NotSaved(f"the extra state of {type(module).__name__}")
        hidden: set[str] = own["_non_persistent_buffers_set"]
        return {
            "class": self.names.id(type(module)),
            "training": module.training,
            "parameters": [[n, self.tensor(p, path, n)] for n, p in own["_parameters"].items()],
            "buffers": [
                [n, self.tensor(b, path, n), n not in hidden] for n, b in own["_buffers"].items()
            ],
            "children": [[n, c if c is None else places[c]] for n, c in children_of(module)],
            "attributes": [
                [n, self.attribute(v, path, n)] for n, v in self.attributes(module).items()
            ],
        }

    def tensor(self, tensor: torch.Tensor | None, path: str, name: str) -> object:
        return self.attribute(tensor, path, name)

    def attribute(self, value: object, path: str, name: str) -> object:
        place = join_path(path, name)
        try:
            return self.encoder.value(value, place)
        except NotSaved as error:
            raise NotSaved(f"the attribute {place!r}: {error}", error.remedy) from error

    def attributes(self, module: torch.nn.Module) -> dict[str, object]:
        own = vars(module)
        state = {*own["_parameters"], *own["_buffers"], *own["_modules"], "training"}
        found: dict[str, object] = {}
        for name, value in own.items():
            if class_table.may_be_field("module", name) and can_encode(value):
                found[name] = value
        for (owner, name), value in self.needs.items():
            if owner == id(module) and name not in state:
                found[name] = value
        for name in found:
            self.names.use(type(module), name)
        return {n: v for n, v in found.items() if n not in state and v is not MISSING}


MISSING: Final = object()  # an attribute that programs set before they read it


# ---- reading ----------------------------------------------------------------------------------


def decode(rows: Node, decoder: Decoder) -> list[torch.nn.Module]:
    """Return the modules, the root last. Raises LoadError."""
    made: list[torch.nn.Module] = []
    for row in rows.items_of():
        made.append(_module(row.only(*_ROW), decoder, made))
    if not made:
        raise rows.fail("modules")
    return made


def _module(row: Node, decoder: Decoder, before: list[torch.nn.Module]) -> torch.nn.Module:
    entry = decoder.entries.get(row.get("class").text())
    if entry is None or entry.kind != "module":
        raise row.get("class").fail("the id of a module's class")
    cls: Any = decoder.classes[entry.id]
    module: torch.nn.Module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    module.training = row.get("training").flag()
    _fill(module, row, decoder, before)
    _fill_attributes(module, row, decoder, entry)
    return module


def _fill(
    module: torch.nn.Module, row: Node, decoder: Decoder, before: list[torch.nn.Module]
) -> None:
    own, taken = vars(module), set[str]()
    for pair in row.get("parameters").items_of():
        name, value = pair.row(2)
        parameter = decoder.tensor(value)
        if parameter is not None and not isinstance(parameter, torch.nn.Parameter):
            raise value.fail("a parameter")
        own["_parameters"][_name(name, taken)] = parameter
    for triple in row.get("buffers").items_of():
        name, value, persistent = triple.row(3)
        own["_buffers"][_name(name, taken)] = decoder.tensor(value)
        if not persistent.flag():
            own["_non_persistent_buffers_set"].add(name.text())
    for pair in row.get("children").items_of():
        name, index = pair.row(2)
        child = None if index.value is None else before[index.index(len(before))]
        own["_modules"][_name(name, taken)] = child


def _name(node: Node, taken: set[str]) -> str:
    name = node.text()
    if limits.MODULE_NAME.fullmatch(name) is None or name.startswith("__") or name in taken:
        raise node.fail("a name of its own for a parameter, buffer or submodule")
    taken.add(name)
    return name


def _fill_attributes(
    module: torch.nn.Module, row: Node, decoder: Decoder, entry: ClassEntry
) -> None:
    for pair in row.get("attributes").items_of():
        name, value = pair.row(2)
        own = vars(module)
        taken = any(name.text() in own[held] for held in ("_parameters", "_buffers", "_modules"))
        if taken or name.value == "training" or not entry.has(name.text()):
            raise name.fail(f"a field of {entry.name}")
        own[name.text()] = decoder.value(value)
