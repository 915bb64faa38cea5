"""Modules without code: the parameters and buffers of another module, under the same paths.

In: an nn.Module. Out: a tree of `Shell`s that holds the same tensors.

    shell_of(model)      model.fc.weight is shell.fc.weight; shell.fc cannot be called

Always holds: a submodule that is reached by two paths is one shell; assigning to a shell (as
`.to()` does with buffers) does not change the module that it was made of.
"""

from __future__ import annotations

from typing import Any, cast

import torch

Slot = tuple[dict[str, Any], str]  # where a tensor is: a dict of its module, and its key there


class Shell(torch.nn.Module):
    """A submodule of a traced module: parameters and buffers, and nothing to call."""

    original_name: str

    def _get_name(self) -> str:
        return self.original_name


def shell_of(module: torch.nn.Module) -> torch.nn.Module:
    """The module's tree with the same parameters and buffers, and none of its code."""
    return _shell(module, {})


def _shell(module: torch.nn.Module, made: dict[int, Shell]) -> Shell:
    if id(module) in made:
        return made[id(module)]
    shell = made[id(module)] = Shell()
    shell.original_name = getattr(module, "original_name", type(module).__name__)
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
    """What nn.Module keeps under "_parameters", "_buffers" or "_modules"."""
    return cast("dict[str, Any]", vars(module)[kind])


def slot(root: torch.nn.Module, path: str) -> Slot:
    """Where the tensor of this dotted path is kept."""
    *parents, name = path.split(".")
    module = root
    for parent in parents:
        module = cast("torch.nn.Module", members(module, "_modules")[parent])
    parameters = members(module, "_parameters")
    return (parameters if name in parameters else members(module, "_buffers")), name
