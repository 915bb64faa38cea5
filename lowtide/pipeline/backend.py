"""Where Programs become executables; one name, so that a test can put a stand-in in its place.

In: a Program. Out: an object that is called as `exe(tensors, sizes, numbers)` and gives the
outputs, then the checks. `use(fn)` replaces the code generator; `use(None)` puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from lowtide.texpr.expr import Program

# Of kernels: those of the cost model, by measurement, or with the least work memory.
Tiles = Literal["usual", "fastest", "least"]

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
    tiles: Tiles = "usual",
) -> Any:
    """The executable of a program; raises BackendError. `machine`: see `codegen/machines`."""
    compiler = _chosen[0]
    if compiler is not None:
        return compiler(program, symbols=symbols, scalars=scalars, hints=hints)
    # these cost time to import
    if tiles == "fastest":
        from lowtide.codegen.tuned import Tuned as compiler
    elif tiles == "least":
        from lowtide.codegen.tuned import compile_least as compiler
    else:
        from lowtide.codegen.staged import compile_program as compiler
    return compiler(program, symbols=symbols, scalars=scalars, hints=hints, machine=machine)


def cuts_strips(program: Program, hints: Mapping[str, int], machine: str) -> bool:
    """Would a product of pairs be done more than once, if the code generator did not cut strips?"""
    if _chosen[0] is not None:
        return False
    from lowtide.codegen.staged import cuts_strips as found  # costs time to import

    return found(program, hints, machine)
