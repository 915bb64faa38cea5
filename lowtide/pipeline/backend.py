"""Where Programs become executables; one name, so that a test can put a stand-in in its place.

In: a Program. Out: an object that is called as `exe(tensors, sizes, numbers)` and gives the
outputs, then the checks. `use(fn)` replaces the code generator; `use(None)` puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowtide.texpr.expr import Program

_chosen: list[Callable[..., Any] | None] = [None]


def use(compiler: Callable[..., Any] | None) -> None:
    """Replaces the code generator of this process."""
    _chosen[0] = compiler


def compile_program(
    program: Program,
    *,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    machine: str = "cpu",
    tune: bool = False,
) -> Any:
    """The executable of a program; raises BackendError. `machine`: see `codegen/machines`.
    `tune`: the fastest of several, by measurement."""
    compiler = _chosen[0]
    if compiler is not None:
        return compiler(program, symbols=symbols, scalars=scalars, hints=hints)
    if tune:
        from lowtide.codegen.tuned import Tuned  # few programs need it

        return Tuned(program, symbols=symbols, scalars=scalars, hints=hints, machine=machine)
    from lowtide.codegen.staged import compile_program as compiler  # costs time to import

    return compiler(program, symbols=symbols, scalars=scalars, hints=hints, machine=machine)


def cuts_strips(program: Program, hints: Mapping[str, int], machine: str) -> bool:
    """Would a product of pairs be done more than once, if the code generator did not cut strips?"""
    if _chosen[0] is not None:
        return False
    from lowtide.codegen.staged import cuts_strips as found  # costs time to import

    return found(program, hints, machine)
