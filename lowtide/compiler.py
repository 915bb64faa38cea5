"""The stages of the compiler, in order. No other file knows the order; what executes calls these.

Once for a function:

    source → ir          a front end: Python source, one traced run, or a captured graph
    ir → simplified      `simplified`
    → regions            `ready`; then the driver cuts the function where `stopping` says so

Once for a signature of a region, and once more for each mask of wanted gradients:

    specialise           ops of a region → a Program: one formula per value
    differentiate        a Program → what is kept, and the backward Program (`differentiated`)
    split                a Program → loops, strips and plain parts (`parts`, `strips`)
    normalise → fuse     a part → its normal form, in groups (`fused`)
    tile                 a group → a kernel: grid, sweeps, buffers, schedule (`tiled`)
    emit → load          a kernel → C or Triton (`emitted`) → a function to call (`loaded`)
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence, Set

import torch

from lowtide.codegen.c.kernel import KernelText
from lowtide.codegen.c.module import module_text, without_names
from lowtide.ir.core import Function
from lowtide.passes.asked_again import ask_again
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.counted_loops import count_loops
from lowtide.passes.counters import count_by_steps
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.early_ends import end_early
from lowtide.passes.first_steps import peel_first_steps
from lowtide.passes.grown_lists import grow_in_place
from lowtide.passes.inline_no_grad import inline_no_grad
from lowtide.passes.last_items import carry_last_items
from lowtide.passes.last_steps import peel_last_steps
from lowtide.passes.private_writes import make_private_writes_plain
from lowtide.passes.reroll import reroll
from lowtide.passes.rows import read_rows
from lowtide.passes.run import Pass, about, run
from lowtide.passes.split_tuples import split_tuples
from lowtide.passes.truths import simplify_truths
from lowtide.passes.turns import take_turns_together
from lowtide.runtime import cache
from lowtide.specialise.near_constants import with_near_constants
from lowtide.specialise.specialise import specialise
from lowtide.texpr.autodiff import differentiated
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index
from lowtide.texpr.long_folds import in_two_steps
from lowtide.texpr.normalise import normalise
from lowtide.texpr.partition import partition as parts
from lowtide.texpr.terms import products_apart
from lowtide.tile.arrange import Arrangement
from lowtide.tile.blocks import BlockArrangement
from lowtide.tile.group import Fusion, group
from lowtide.tile.ir import Kernel
from lowtide.tile.plan import plan
from lowtide.tile.schedule import schedule
from lowtide.tile.strips import in_strips as strips
from lowtide.tile.summation import order_of

__all__ = [
    "STAGES", "differentiated", "emitted", "fused", "loaded", "parts", "ready", "simplified",
    "specialise", "strips", "tiled",
]  # fmt: skip

STAGES = (  # for `python -m lowtide.opt`: up to `specialise` of Functions, then of Programs
    "ir", "simplify", "specialise", "differentiate", "split", "normalise", "fuse", "tile", "emit",
)  # fmt: skip
SIMPLIFY: tuple[Pass, ...] = (
    make_private_writes_plain,
    inline_no_grad,
    peel_first_steps,
    fold_constants,  # so that a state which was None, or a tuple, is always one
    split_tuples,
    fold_constants,
    eliminate_dead_code,  # and what loops carry unchanged
    end_early,
    read_rows,
    about("loop")(eliminate_common_subexpressions),  # what is compared is one value
    simplify_truths,
    count_loops,
    count_by_steps,
    grow_in_place,
    carry_last_items,
    eliminate_common_subexpressions,
    peel_last_steps,  # `n - 1` is one value now
    eliminate_dead_code,
    ask_again,  # in the end: what is asked twice is a common subexpression
)
REROLL: tuple[Pass, ...] = (make_private_writes_plain, reroll)
READY: tuple[Pass, ...] = (with_near_constants, take_turns_together)


def simplified(fn: Function, *, unrolled: bool = False) -> Function:
    """The same function with nothing left that is known, double or unused."""
    return run(fn, (*REROLL, *SIMPLIFY) if unrolled else SIMPLIFY)


def ready(fn: Function, *, in_stretches: bool = False) -> Function:
    """As the driver runs it. `in_stretches`: a budget may do loops so: of `x[t]`, not `x[2*u]`."""
    return run(fn, READY[:1] if in_stretches else READY)


def fused(
    program: Program, hints: Mapping[str, int], *, blocks: bool, once: Set[str] = frozenset()
) -> Fusion:
    """A part in groups; `hints`: likely sizes. `blocks`: for kernels of independent blocks; `once`:
    what no second kernel may compute again."""
    normal = normalise(program, hints)
    if blocks:
        normal = products_apart(in_two_steps(normal, hints), hints)
    groups = group(normal, hints, torch.get_num_threads(), apart=blocks, once=once)
    return Fusion(program=program, normal=normal, groups=groups)


def tiled(
    arrangement: Arrangement,
    moving: frozenset[str],
    hints: Mapping[str, int],
    strides: Mapping[str, tuple[Index, ...]],
) -> Kernel:
    """The kernel of a group; `moving`: see `tile.plan`. Triton schedules blocks itself."""
    kernel = plan(arrangement, moving)
    if isinstance(arrangement, BlockArrangement):
        return kernel
    kernel = schedule(kernel, hints, arrangement.target, strides)
    for reduction in arrangement.reductions.values():
        order_of(kernel, reduction)  # so that it is known whether two kernels add in one order
    return kernel


def emitted(
    kernels: Sequence[Kernel], texts: Sequence[KernelText], vector_bytes: int
) -> dict[int, str]:
    """The C source of kernels, by how many lanes they have: each is compiled by itself."""
    by_lanes: dict[int, list[KernelText]] = {}
    for kernel, text in zip(kernels, texts, strict=True):
        by_lanes.setdefault(kernel.lanes, []).append(text)
    return {lanes: module_text(found, lanes, vector_bytes) for lanes, found in by_lanes.items()}


def loaded(sources: Mapping[int, str]) -> dict[int, ctypes.CDLL]:
    """The libraries of such sources, by lanes; compiled, where no earlier process has done that."""
    return {n: cache.load_library(without_names(c), "kernels") for n, c in sources.items()}
