"""Saves tensors from outside a module: globals, and tensors that traced functions hold.

In: a compiled object and its entries. Out: the same, with these tensors in a submodule that exists
in the file only. A function becomes the `forward` of a module with this submodule.

    %W: Tensor @ "@main.globals|W"   →   %W: Tensor @ "lowtide_globals.c0"

A method of a submodule finds them in the `lowtide_globals` of that submodule. The file has the
tensor's present value; a loaded program does not read the user's global.
Invariant: the compiled object, its module and its programs are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import torch

from lowtide.api.parameter_tree import Shell, members, shell_named
from lowtide.deploy.entries import Entry
from lowtide.deploy.fitting import Program
from lowtide.deploy.modules import children_of, in_order
from lowtide.errors import CompileError
from lowtide.frontend.script.module_state import follow
from lowtide.ir.core import Function

HOLDER: Final = "lowtide_globals"


def brought_inside(
    root: torch.nn.Module | None, name: str, entries: Sequence[Entry]
) -> tuple[torch.nn.Module | None, list[Entry]]:
    """Return the root and the entries to save. `name`: of the function, if `root` is None.

    Raises CompileError for a global that is not a tensor."""
    tensors = _Tensors()
    made = [tensors.entry(entry) for entry in entries]
    if not tensors.places:
        return root, list(entries)
    if root is None:
        root = shell_named(name)
        made = [replace(entry, name="forward", module=root) for entry in made]
        tensors.used = {root: set(tensors.places)}
    copies = tensors.copies(root)
    return copies[root], [replace(e, module=copies[cast("Any", e.module)]) for e in made]


class _Tensors:
    """The tensors, each once, by name in the holder, and the modules whose methods read them."""

    def __init__(self) -> None:
        self.places: dict[str, torch.Tensor] = {}
        self.used: dict[torch.nn.Module | None, set[str]] = {}
        self._known: dict[int, str] = {}

    def entry(self, entry: Entry) -> Entry:
        used: set[str] = set()
        programs = [self._program(program, used) for program in entry.programs]
        if used:
            self.used.setdefault(entry.module, set()).update(used)
        return replace(entry, programs=programs)

    def _program(self, program: Program, used: set[str]) -> Program:
        fn = program.function
        places = {path: self._place(fn, path) for path in fn.captures if path.startswith("@")}
        if not places:
            return program
        used.update(places.values())
        inside = {path: f"{HOLDER}.{place}" for path, place in places.items()}
        captures = tuple(inside.get(path, path) for path in fn.captures)
        return replace(program, function=replace(fn, captures=captures))

    def _place(self, fn: Function, path: str) -> str:
        owner, name = follow(torch.nn.Module(), path)
        held: Any = cast("Any", owner)[name] if isinstance(owner, dict) else getattr(owner, name)
        if not isinstance(held, torch.Tensor):
            raise CompileError(
                f"{fn.name}() reads the global `{path.rpartition('|')[2]}`, which is not saved: it "
                f"is a {type(held).__name__}",
                fn.loc,
                "an argument of the function, or an attribute of a module",
            )
        place = self._known.setdefault(id(held), f"c{len(self.places)}")
        self.places[place] = held
        return place

    def copies(self, root: torch.nn.Module) -> dict[torch.nn.Module, torch.nn.Module]:
        """Return for each module in the tree of `root` a copy with the tensors, or the module
        itself if neither it nor its submodules need any."""
        made: dict[torch.nn.Module, torch.nn.Module] = {}
        for module in in_order(root):
            below = dict(children_of(module))
            children = {n: None if c is None else made[c] for n, c in below.items()}
            if module in self.used:
                children[HOLDER] = self._holder(module)
            is_same = module not in self.used and all(children[n] is below[n] for n in below)
            made[module] = module if is_same else _with_children(module, children)
        return made

    def _holder(self, module: torch.nn.Module) -> torch.nn.Module:
        if HOLDER in members(module, "_modules"):
            raise CompileError(f"a submodule is called {HOLDER!r}", remedy="another name")
        holder = Shell()
        for place, tensor in self.places.items():
            if place not in self.used[module]:
                continue
            if isinstance(tensor, torch.nn.Parameter):
                holder.register_parameter(place, tensor)
            else:
                holder.register_buffer(place, tensor, persistent=False)
        return holder


def _with_children(
    module: torch.nn.Module, children: Mapping[str, torch.nn.Module | None]
) -> torch.nn.Module:
    made: torch.nn.Module = object.__new__(type(module))
    vars(made).update(vars(module))
    vars(made)["_modules"] = dict(children)
    return made
