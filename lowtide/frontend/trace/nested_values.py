"""Flattens nested inputs and outputs into tensors, and rebuilds them.

In: tuples, lists, dicts, named tuples, and whatever classes are registered with PyTorch's pytrees.
Out: a `Nest`, which says how it is put together, and the leaves in order.

    {"a": x, "b": [y, None]}   →   Nest(dict, ("a", "b"), [leaf, Nest(list, [leaf, none])]), [x, y]

Invariant: `nest.build(iter(leaves))` equals what it was made of; `nest.take` reads a dict by its
keys, in the order of the nest, and raises TypeError, with the place, for anything of another form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from lowtide.ir.literals import is_literal
from lowtide.torch_private import pytree


class NotANest(Exception):
    """`where` is something that is neither a leaf nor a container."""

    def __init__(self, where: str, value: object) -> None:
        self.where = where
        self.value = value
        super().__init__(f"{where} is {describe(value)}")


@dataclass(frozen=True, slots=True)
class Nest:
    """`kind`: "leaf", "none", or a container's type; `spec`: how PyTorch rebuilds another class."""

    kind: type | str
    children: tuple[Nest, ...] = ()
    keys: tuple[Any, ...] = ()
    spec: Any = None

    def build(self, leaves: Iterator[Any]) -> Any:
        """Rebuild the nest around these leaves."""
        if self.kind == "leaf":
            return next(leaves)
        if self.kind == "none":
            return None
        parts = [c.build(leaves) for c in self.children]
        if self.spec is not None:
            return pytree.tree_unflatten(parts, self.spec)
        if self.kind is dict:
            return dict(zip(self.keys, parts, strict=True))
        kind: Any = self.kind
        make: Any = getattr(kind, "_make", kind)
        return make(parts)

    def take(self, value: Any, where: str, leaves: list[Any]) -> None:
        """Appends the leaves of a value of this form."""
        if self.kind == "leaf" and isinstance(value, torch.Tensor):
            leaves.append(value)
        elif self.kind == "none" and value is None:
            return
        elif isinstance(self.kind, type) and isinstance(value, self.kind):
            found = _parts(value)
            fits = self.kind is dict or (found and len(found[0]) == len(self.children))
            if found is None or not fits:
                raise TypeError(f"{where} is {describe(value)}, traced with {self}")
            self._take_parts(value, found, where, leaves)
        else:
            raise TypeError(f"{where} is {describe(value)}, traced with {self}")

    def _take_parts(self, value: Any, found: _Parts, where: str, leaves: list[Any]) -> None:
        parts, keys, _ = found
        if issubclass(type(value), Mapping):
            if set(keys) != set(self.keys):
                raise TypeError(f"{where} has the keys {list(keys)}, traced with {list(self.keys)}")
            parts, keys = [value[k] for k in self.keys], self.keys
        for child, part, key in zip(self.children, parts, keys, strict=True):
            child.take(part, f"{where}[{key!r}]", leaves)

    @property
    def in_files(self) -> Nest:
        """The nest without classes that files do not know: mappings are dicts, named tuples are
        tuples."""
        kind: Any = self.kind
        children = tuple(c.in_files for c in self.children)
        if isinstance(kind, type) and issubclass(kind, Mapping):
            return Nest(dict, children, self.keys)
        if isinstance(kind, type) and self.spec is None and issubclass(kind, tuple):
            return Nest(tuple, children, self.keys)
        return Nest(kind, children, self.keys, self.spec)

    @property
    def is_plain(self) -> bool:
        """Return whether IR can express the nest: a leaf, or tuples, lists and dicts of these and
        None."""
        is_said = self.kind in (tuple, list) or (
            self.kind is dict and all(map(is_literal, self.keys))
        )
        parts = [c for c in self.children if c.kind != "none"]
        return self.kind == "leaf" or (is_said and bool(parts) and all(c.is_plain for c in parts))

    def __str__(self) -> str:
        if isinstance(self.kind, str):
            return {"leaf": "a tensor", "none": "None"}[self.kind]
        return f"a {self.kind.__name__} of {len(self.children)}"


_Parts = tuple[Sequence[Any], tuple[Any, ...], Any]
LEAF: Final = Nest("leaf")


def take_apart(
    value: Any, where: str, leaves: list[tuple[str, Any]], leaf_types: tuple[type, ...]
) -> Nest:
    """Return the nest of a value; its leaves, with where each stands, go to `leaves`. Raises
    NotANest."""
    if isinstance(value, leaf_types):
        leaves.append((where, value))
        return LEAF
    if value is None:
        return Nest("none")
    found = _parts(value)
    if found is None:
        raise NotANest(where, value)
    parts, keys, spec = found
    children = [
        take_apart(part, f"{where}[{key!r}]", leaves, leaf_types)
        for part, key in zip(parts, keys, strict=True)
    ]
    return Nest(_kind(value), tuple(children), keys, spec)


def _kind(value: object) -> type:
    return type(value)


def _parts(value: Any) -> _Parts | None:
    """Return the items of a container, their keys, and PyTorch's spec if Python cannot rebuild it;
    None for a leaf."""
    if type(value) is dict:
        held = cast("dict[Any, Any]", value)
        return list(held.values()), tuple(held), None
    if type(value) in (tuple, list) or hasattr(value, "_make"):
        return list(value), tuple(range(len(value))), None
    children, spec = pytree.tree_flatten(value, is_leaf=lambda x: x is not value)
    if len(children) == 1 and children[0] is value:
        return None
    if isinstance(value, Mapping):  # an OrderedDict, a ModelOutput
        held = cast("Mapping[Any, Any]", value)
        is_whole = list(map(id, held.values())) == list(map(id, children))
        return (children, tuple(held), spec) if is_whole else None
    return children, tuple(range(len(children))), spec


def describe(value: object) -> str:
    """Return a description of the value's type, for messages."""
    shown = f" ({value!r})" if isinstance(value, int | float | str | bool) else ""
    return f"{_article(type(value).__name__)}{shown}"


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeio" else f"a {word}"
