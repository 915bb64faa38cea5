"""Compiles Programs to executables. A test can replace the code generator.

In: a Program. Out: an executable: `exe(tensors, sizes, numbers)` returns the outputs, then the
checks. `use(fn)` replaces the code generator; `use(None)` restores it.

Equal layers, and the plans of a budget's search, have equal Programs. On the CPU they share one
executable while it is in use. Executables of GPUs, which hold CUDA graphs, and those that are being
measured are not shared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import torch

from lowtide.texpr.expr import Program
from lowtide.texpr.library import large_products

# Tilings: that of the cost model, the fastest by measurement, or that with the least memory.
Tiles = Literal["usual", "fastest", "least"]

_CPU: Final = "cpu"
_chosen: list[Callable[..., Any] | None] = [None]
_in_use: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()


def use(compiler: Callable[..., Any] | None) -> None:
    """Replace the code generator of this process; None restores it."""
    _chosen[0] = compiler


def compile_program(
    program: Program,
    *,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    machine: str = "cpu",
    tiles: Tiles = "usual",
) -> Any:
    """Return the executable of a program. Raises BackendError. `machine`: see
    `codegen/machines`."""
    compiler = _chosen[0]
    if compiler is not None:
        return compiler(program, symbols=symbols, scalars=scalars, hints=hints)
    if machine != _CPU or tiles == "fastest":
        return _compiled(program, symbols, scalars, hints, machine, tiles)
    sizes = tuple(hints[name] for name in symbols)
    given = tuple(symbols), tuple(scalars), sizes, tiles, torch.get_num_threads()
    key = (program.contents(), *given)
    found = _in_use.get(key)
    if found is None:
        made = _compiled(program, symbols, scalars, hints, machine, tiles)
        found = _in_use.setdefault(key, made)
    return found


def _compiled(
    program: Program,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    machine: str,
    tiles: Tiles,
) -> Any:
    # Imported here because they take time to import.
    if machine == _CPU and (dtypes := large_products(program, hints)):
        from lowtide.codegen.rates import ensure_measured

        ensure_measured(dtypes)
    if tiles == "fastest":
        from lowtide.codegen.tuned import Tuned as compiler
    elif tiles == "least":
        from lowtide.codegen.tuned import compile_least as compiler
    else:
        from lowtide.codegen.executable import compile_program as compiler
    return compiler(program, symbols=symbols, scalars=scalars, hints=hints, machine=machine)


def cuts_strips(program: Program, hints: Mapping[str, int], machine: str) -> bool:
    """Return whether the code generator must cut strips so that no product of pairs is computed
    twice."""
    if _chosen[0] is not None:
        return False
    from lowtide.codegen.executable import cuts_strips as found  # costs time to import

    return found(program, hints, machine)
