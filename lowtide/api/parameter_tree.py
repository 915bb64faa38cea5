"""Modules without code: the parameters and buffers of another module, under the same paths.

In: an nn.Module. Out: a tree of `Shell`s that holds the same tensors.

    shell_of(model)      model.fc.weight is shell.fc.weight; shell.fc cannot be called

Invariant: a submodule that is reached by two paths is one shell; assigning to a shell (as
`.to()` does with buffers) does not change the module that it was made of.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch

from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.script.module_state import root_of


class Shell(torch.nn.Module):
    """Parameters, buffers and submodules, and nothing to call."""


@functools.cache
def _shell_class(name: str) -> type[Shell]:
    """Return a class for shells, which `repr` shows by the name of the copied module."""
    return type(name, (Shell,), {"__module__": __name__})


def shell_named(name: str) -> Shell:
    """Return an empty module that `repr` shows by this name."""
    return _shell_class(name)()


def shell_of(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module's tree with the same parameters and buffers, and none of its code."""
    return _shell(module, {})


def _shell(module: torch.nn.Module, made: dict[int, Shell]) -> Shell:
    if torch_jit_twins.is_module(module):
        module = root_of(module)
    if id(module) in made:
        return made[id(module)]
    name = getattr(module, "original_name", type(module).__name__)
    shell = made[id(module)] = _shell_class(str(name))()
    share(module, shell)
    children = members(module, "_modules")
    members(shell, "_modules").update(
        {name: None if child is None else _shell(child, made) for name, child in children.items()}
    )
    return shell


def share(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Gives `target` the parameters, buffers and submodules of `source`, and its mode."""
    target.training = source.training
    for kind in ("_parameters", "_buffers", "_modules"):
        members(target, kind).update(members(source, kind))
    kept: set[str] = vars(target)["_non_persistent_buffers_set"]
    kept.update(vars(source)["_non_persistent_buffers_set"])


def members(module: torch.nn.Module, kind: str) -> dict[str, Any]:
    """Return the module's "_parameters", "_buffers" or "_modules"."""
    return cast("dict[str, Any]", getattr(module, kind))
