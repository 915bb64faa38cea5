"""Runs all steps of a loop in one launch: each program runs the steps one after another.

In:  the `BlockText` of a step's only kernel; the tensors and sizes that change with the steps.
Out: a second function. It may be used if no program reads what another program wrote in an earlier
     step: if there is only one program, or if each reads and writes elements of its own.

    k0(p_h, p_out, z_t)                      k0_steps(o_h, o_out, o_t, moves …, trips, begin, by)
    h = tl.load(p_h + x_i)                   for lt_k in lt_range(0, trips):
    tl.store(p_out + x_i, h * z_t)               p_h = lt_row(lt_k, t, f_h, o_h, …)
                                                 …
                                                 barrier: threads see each other's stores
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from lowtide.codegen.triton.kernel import (
    BlockText,
    constant_parameters,
    launch_line,
    number_parameter,
    size_line,
)

MOVE = ("stride", "shift", "rows")  # parameters of a tensor or size that moves: see `lt_row`
COUNTS = ("lt_trips", "lt_begin", "lt_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looped:
    """The function for all steps. `tensors`, `sizes`: those that move. After the kernel's tensors,
    sizes and numbers come, for each that moves, its value in the first step and its `MOVE`; then
    `COUNTS`."""

    name: str
    text: str
    tensors: tuple[str, ...]
    sizes: tuple[str, ...]


def looped_text(text: BlockText, moving: Container[str]) -> Looped:
    """Return the function for all steps. `moving`: names that change with the steps."""
    tensors = tuple(n for n in text.tensors if n in moving)
    sizes = tuple(n for n in text.sizes if n in moving)
    moves = dict.fromkeys(tensors, "p") | dict.fromkeys(sizes, "z")
    parameters = [
        *(f"{'o' if n in moves else 'p'}_{n}" for n in text.tensors),
        *(f"{'o' if n in moves else 'z'}_{n}" for n in text.sizes),
        *map(number_parameter, text.numbers),
        *(f"lt_{field}_{n}" for n in moves for field in ("first", *MOVE)),
        *COUNTS,
        *constant_parameters(text.widths),
    ]
    step = [
        "lt_t = lt_begin + lt_by * lt_k",
        *_moved(moves),
        *map(size_line, sizes),
        *text.body,
        "tl.debug_barrier()",
    ]
    name = f"{text.name}_steps"
    lines = [
        launch_line(text.warps, text.stages),
        "@jit",
        f"def {name}({', '.join(parameters)}):",
        *(f"    {size_line(n)}" for n in text.sizes if n not in moves),
        "    for lt_k in lt_range(0, lt_trips, num_stages=1):",  # a prefetch could miss a store
        *("        " + line for line in step),
    ]
    return Looped(name=name, text="\n".join(lines) + "\n", tensors=tensors, sizes=sizes)


def _moved(moves: Mapping[str, str]) -> list[str]:
    return [
        f"{letter}_{n} = lt_row(lt_k, lt_t, lt_first_{n}, o_{n}, "
        + ", ".join(f"lt_{field}_{n}" for field in MOVE)
        + ")"
        for n, letter in moves.items()
    ]
