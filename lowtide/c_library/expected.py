"""Runs a program in this process on the example of its export, for the self-test.

In: the compiled function or method, its arguments. Out: its results, flat; the module stays as it
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowtide import config
from lowtide.c_library.gather import contiguous, flat, with_constants
from lowtide.execute.driver import Driver
from lowtide.ir.core import Function
from lowtide.ir.literals import is_literal
from lowtide.specialise.signature import Ineligible


def results_of(compiled: Any, args: Sequence[Any], state: set[str]) -> tuple[Any, ...]:
    """Return what the program gives in this process for the example, flat. `state`: keys of all
    state that the library has."""
    driver, values = compiled.resolve(compiled.bind(tuple(args), {}))
    values = [contiguous(v) for v in values]
    function, values, given = with_constants(driver.function, values, state)
    with torch.no_grad(), config.override(products="kernels"):
        return tuple(flat(_called(function, values, given, state)))


def _called(function: Function, values: Sequence[Any], given: int, state: set[str]) -> Any:
    """Return what the program gives in this process for the example; the module stays as it is."""
    rows = list(zip(function.captures, values[given:], strict=True))
    held: list[tuple[Any, str, Any, Any]] = []
    for key in state:
        *path, name = key.split(".")
        for prefix, thing in rows:
            start = prefix.split(".") if prefix else []
            if is_literal(thing) or isinstance(thing, torch.Tensor) or path[: len(start)] != start:
                continue
            owner = thing
            for part in path[len(start) :]:
                owner = getattr(owner, part, None)
            old = getattr(owner, name, None)
            held.append((owner, name, old, old.clone() if isinstance(old, torch.Tensor) else old))
            break
    mine = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
    driver = Driver(function)
    try:
        return driver(mine)
    except Ineligible:  # tensors of a type that kernels do not have
        return driver.run_eager(mine)
    finally:
        for owner, name, old, copy in held:
            if isinstance(old, torch.Tensor):
                old.copy_(copy)
            setattr(owner, name, old)
