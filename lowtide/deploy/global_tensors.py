"""Tensors that programs read from outside their module: globals, and what traced functions hold.

In: a compiled object and its entries. Out: the same, with those tensors in a submodule that only
the file has; a function becomes the `forward` of a module that has nothing else.

    %W: Tensor @ "@main.globals|W"   →   %W: Tensor @ "lowtide_globals.c0"

Always holds: the compiled object, its module and its programs stay as they are. What is saved is
the tensor that stands there now; after loading, the name in the user's module means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import torch

from lowtide.deploy.entries import Entry
from lowtide.deploy.programs import Program
from lowtide.errors import CompileError
from lowtide.frontend.script.module_state import follow
from lowtide.ir.core import Function
from lowtide.pipeline.shells import Shell, members, shell_named

HOLDER: Final = "lowtide_globals"


def brought_inside(
    root: torch.nn.Module | None, name: str, entries: Sequence[Entry]
) -> tuple[torch.nn.Module | None, list[Entry]]:
    """The root and the entries as they are to be saved; `name`: of the function, if `root` is None.

    Raises CompileError for what is no tensor."""
    tensors = _Tensors()
    made = [replace(e, programs=[tensors.program(p) for p in e.programs]) for e in entries]
    if not tensors.places:
        return root, list(entries)
    if root is None:
        root = shell_named(name)
        made = [replace(entry, name="forward") for entry in made]
    return tensors.added_to(root), made


class _Tensors:
    """The tensors, each once, and where they are put."""

    def __init__(self) -> None:
        self.places: dict[str, torch.Tensor] = {}
        self._known: dict[int, str] = {}

    def program(self, program: Program) -> Program:
        fn = program.function
        captures = tuple(self._path(fn, path) for path in fn.captures)
        if captures == fn.captures:
            return program
        return replace(program, function=replace(fn, captures=captures))

    def _path(self, fn: Function, path: str) -> str:
        if not path.startswith("@"):
            return path
        owner, name = follow(torch.nn.Module(), path)
        held: Any = cast("Any", owner)[name] if isinstance(owner, dict) else getattr(owner, name)
        if not isinstance(held, torch.Tensor):
            raise CompileError(
                f"{fn.name}() reads the global `{path.rpartition('|')[2]}`, which is not saved: it "
                f"is a {type(held).__name__}",
                fn.loc,
                "an argument of the function, or an attribute of a module",
            )
        if id(held) not in self._known:
            place = f"c{len(self.places)}"
            self.places[place] = held
            self._known[id(held)] = place
        return f"{HOLDER}.{self._known[id(held)]}"

    def added_to(self, root: torch.nn.Module) -> torch.nn.Module:
        """A module like `root` that has them, too."""
        if HOLDER in members(root, "_modules"):
            raise CompileError(f"a submodule is called {HOLDER!r}", remedy="another name")
        holder = Shell()
        for place, tensor in self.places.items():
            if isinstance(tensor, torch.nn.Parameter):
                holder.register_parameter(place, tensor)
            else:
                holder.register_buffer(place, tensor, persistent=False)
        made: torch.nn.Module = object.__new__(type(root))
        vars(made).update(vars(root))
        vars(made)["_modules"] = {**members(root, "_modules"), HOLDER: holder}
        return made
