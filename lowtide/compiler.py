"""The stages of the compiler, in order; what executes calls these.

Once for a function:
    source → ir          a front end: Python source, one traced run, or a captured graph
    ir → simplified      `simplified`
    → regions            `prepared`; the driver then cuts the function at `region_boundaries`

Once for a signature of a region, and for each mask of wanted gradients:
    specialise           ops of a region → a Program: one formula per value
    differentiate        a Program → saved values and the backward Program (`differentiated`)
    split                a Program → loops and plain parts (`parts`)
    normalise → fuse     a part → its normal form, in groups (`fused`), some in strips (`strips`)
    tile                 a group → a kernel: grid, sweeps, buffers, schedule (`tiled`)
    host                 kernels → what happens around them (`codegen/host/build`)
    emit → load          a kernel → C or Triton (`emitted`) → a function to call (`loaded`)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence, Set

import torch

from lowtide.ir.core import Function
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.counted_loops import count_loops
from lowtide.passes.counters import count_by_steps
from lowtide.passes.dead_code import eliminate_dead_code, keep_what_raises
from lowtide.passes.early_ends import end_early
from lowtide.passes.first_steps import peel_first_steps
from lowtide.passes.grown_lists import grow_in_place
from lowtide.passes.inline_no_grad import inline_no_grad
from lowtide.passes.last_items import carry_last_items
from lowtide.passes.last_steps import peel_last_steps
from lowtide.passes.list_reads import share_list_reads
from lowtide.passes.localize_sizes import localize_sizes
from lowtide.passes.masked_sums import sum_masked
from lowtide.passes.private_writes import make_private_writes_plain
from lowtide.passes.reroll import reroll
from lowtide.passes.rows import read_rows
from lowtide.passes.run import Pass, only_with, run
from lowtide.passes.simplify_conditions import simplify_conditions
from lowtide.passes.split_tuples import split_tuples
from lowtide.passes.unroll_by_period import unroll_by_period
from lowtide.runtime import abi, cache, rates
from lowtide.specialise.near_constants import with_near_constants
from lowtide.specialise.specialise import specialise
from lowtide.texpr.autodiff import differentiated
from lowtide.texpr.expr import Program
from lowtide.texpr.library import Product, operands_stored
from lowtide.texpr.long_folds import in_two_steps
from lowtide.texpr.normalise import normalise
from lowtide.texpr.partition import partition as parts
from lowtide.texpr.terms import products_apart
from lowtide.tile.arrange import Arrangement
from lowtide.tile.block_arrangement import BlockArrangement
from lowtide.tile.group import Fusion, group
from lowtide.tile.ir import Kernel
from lowtide.tile.lines import Strides
from lowtide.tile.plan import plan
from lowtide.tile.schedule import schedule
from lowtide.tile.strips import in_strips as strips
from lowtide.tile.summation import order_of

__all__ = ["STAGES", "differentiated", "emitted", "fused", "loaded", "parts", "prepared",
           "simplified", "specialise", "strips", "tiled"]  # fmt: skip

Sizes = Mapping[str, int]
NONE: Set[str] = frozenset()
STAGES = ("ir", "simplify", "specialise", "differentiate", "split", "normalise", "fuse", "tile",
          "host", "emit")  # fmt: skip
SIMPLIFY: tuple[Pass, ...] = (
    make_private_writes_plain,
    inline_no_grad,
    peel_first_steps,
    fold_constants,  # a state that was None before the first step has one type now
    split_tuples,
    fold_constants,
    eliminate_dead_code,  # also values that loops carry unchanged
    end_early,
    read_rows,
    sum_masked,
    only_with("loop")(eliminate_common_subexpressions),  # conditions compare equal values
    simplify_conditions,
    count_loops,
    count_by_steps,
    grow_in_place,
    carry_last_items,
    eliminate_common_subexpressions,
    peel_last_steps,  # `n - 1` is one value now
    eliminate_dead_code,
    localize_sizes,  # CSE would merge the copies that it makes
    share_list_reads,  # after the passes that know reads of lists by their form
)
WRITTEN: tuple[Pass, ...] = (keep_what_raises,)  # before them, of a program as it was written
REROLL: tuple[Pass, ...] = (make_private_writes_plain, reroll)  # instead, of a trace
PREPARE: tuple[Pass, ...] = (with_near_constants, unroll_by_period)


def simplified(fn: Function, *, unrolled: bool = False) -> Function:
    """Return the function after `SIMPLIFY`. `unrolled`: a trace, whose loops are rerolled first."""
    return run(fn, (*(REROLL if unrolled else WRITTEN), *SIMPLIFY))


def prepared(fn: Function, *, in_chunks: bool = False) -> Function:
    """Return what the driver cuts into regions. `in_chunks`: a budget may split its loops."""
    return run(fn, PREPARE[:1] if in_chunks else PREPARE)


def fused(
    program: Program, hints: Sizes, *, blocks: bool, is_step: bool = False, once: Set[str] = NONE
) -> Fusion:
    """Normalise a part and group its definitions, one kernel a group. `hints`: likely sizes;
    `blocks`: for Triton; `is_step`: of a loop; `once`: values that no second kernel recomputes."""
    normal = normalise(program, hints)
    alone, made = NONE, dict[str, Product]()
    if blocks:
        normal = products_apart(in_two_steps(normal, hints), hints)
    elif not is_step:
        normal, alone, made = operands_stored(normal, hints, rates.is_librarys)
    groups = group(
        normal, hints, torch.get_num_threads(), independent=blocks, once=once, alone=alone
    )
    return Fusion(program=program, normal=normal, groups=groups, by_library=alone, products=made)


def tiled(arrangement: Arrangement, moving: Set[str], hints: Sizes, strides: Strides) -> Kernel:
    """Return the kernel of a group, scheduled unless Triton does that. `moving`: see `plan`."""
    if isinstance(arrangement, BlockArrangement):
        return plan(arrangement, moving)
    kernel = schedule(plan(arrangement, moving), hints, arrangement.target, strides)
    for reduction in arrangement.reductions.values():
        order_of(kernel, reduction)  # noted, to compare the order of sums over kernels
    return kernel


def emitted(kernels: Sequence[Kernel], printed: Callable[[Kernel], str]) -> list[str]:
    """Return the C source of each kernel. `printed`: `codegen/c/module.kernel_source`."""
    return [printed(kernel) for kernel in kernels]


def loaded(sources: Sequence[str]) -> list[ctypes.CDLL]:
    """Return the library of each source, from the cache on disk or newly compiled."""
    return cache.load_libraries(sources, abi.SYMBOL)
