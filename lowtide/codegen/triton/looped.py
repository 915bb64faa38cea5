"""All steps of a loop in one launch: a kernel whose programs run the steps.

In:  the `BlockText` of a step's only kernel; which of its tensors and sizes move with the steps.
Out: a second function. It is right where no program reads what another one has written at an
     earlier step: where there is but one program, or each keeps to places of its own.

    k0(p_h, p_out, z_t)                      k0_steps(o_h, o_out, o_t, moves …, trips, begin, by)
    h = tl.load(p_h + x_i)                   for lt_k in lt_range(0, trips):
    tl.store(p_out + x_i, h * z_t)               p_h = lt_row(lt_k, t, f_h, o_h, …)
                                                 …
                                                 barrier: what threads have written others may read
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

MOVE = ("stride", "shift", "rows")  # what a move has beside where it begins, see `lt_row`
COUNTS = ("lt_trips", "lt_begin", "lt_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looped:
    """`tensors`, `sizes`: those that move. The function takes what the kernel does; after numbers,
    for each of them in this order where it is at the first step, then its `MOVE`; then `COUNTS`."""

    name: str
    text: str
    tensors: tuple[str, ...]
    sizes: tuple[str, ...]


def looped_text(text: BlockText, moving: Container[str]) -> Looped:
    """The function for all steps."""
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
        "    for lt_k in lt_range(0, lt_trips, num_stages=1):",  # nothing is read ahead
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
