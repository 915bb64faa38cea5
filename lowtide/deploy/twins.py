"""Finds equal modules, which share compiled programs.

In: a module and its form. Out: an earlier module with its entries, or None.

    nn.TransformerEncoder(layer, 6)   six layers: one is compiled, five are its twins

Invariant: twins have equal trees of classes and names, share tensors and submodules in the same
way, and give equal values to each guard. By the contract of `ModuleState`, a program that was
compiled for one of them is right for the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import torch

from lowtide.deploy.entries import Entry
from lowtide.deploy.fitting import Program
from lowtide.deploy.modules import children_of
from lowtide.execute.captures import Reader, type_of_value

Known = tuple[torch.nn.Module, list[Entry]]


@dataclass(slots=True)
class Twins:
    """Modules with compiled programs, by their form; see the module's text."""

    _known: dict[Hashable, list[Known]] = field(default_factory=dict[Hashable, list[Known]])

    def find(self, module: torch.nn.Module, form: Hashable) -> Known | None:
        """Return a twin of the module with its entries, None if there is none."""
        for other, entries in self._known.get(form, ()):
            programs = (program for entry in entries for program in entry.programs)
            if all(_agree(program, other, module) for program in programs):
                return other, entries
        return None

    def add(self, module: torch.nn.Module, form: Hashable, entries: list[Entry]) -> None:
        """Add a module and its entries."""
        self._known.setdefault(form, []).append((module, entries))


def form_of(module: torch.nn.Module) -> Hashable:
    """Return what twins have in common: classes, names, and which tensors are one object."""
    places: dict[int, int] = {}
    return tuple(_row(inner, places) for inner in _below(module))


def standing(one: torch.nn.Module, other: torch.nn.Module) -> dict[int, int]:
    """Return a map of ids: for each module in the tree of `one`, its counterpart in `other`."""
    rows = zip(_below(one), _below(other), strict=True)
    return {id(a): id(b) for a, b in rows}


def _below(module: torch.nn.Module) -> Iterable[torch.nn.Module]:
    """Return the module and its submodules, each once, in an order that names decide."""
    found: dict[torch.nn.Module, None] = {}
    waiting = [module]
    while waiting:
        inner = waiting.pop()
        if inner not in found:
            found[inner] = None
            waiting += [child for _, child in children_of(inner) if child is not None]
    return found


def _row(module: torch.nn.Module, places: dict[int, int]) -> Hashable:
    own = vars(module)

    def place(held: object) -> int | None:
        return None if held is None else places.setdefault(id(held), len(places))

    return (
        type(module),
        place(module),
        tuple(own),
        tuple((name, place(held)) for name, held in own["_parameters"].items()),
        tuple((name, place(held)) for name, held in own["_buffers"].items()),
        tuple((name, place(child)) for name, child in children_of(module)),
    )


def _agree(program: Program, one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Return whether both modules give equal values to the guards, and values of the captured
    types."""
    fn = program.function
    readers = [Reader(module, fn.captures, program.guards) for module in (one, other)]
    if any(any(found) for reader in readers for found in reader.hooks()):
        return False
    try:
        (before, facts), (captured, others) = (reader.read() for reader in readers)
    except (KeyError, AttributeError):
        return False
    if facts != others or tuple(map(type, before)) != tuple(map(type, captured)):
        return False
    types = (p.type for p in fn.params[len(fn.arguments) :])
    return all(map(type_of_value, captured, types))
