"""In which order kernels add up sums, as it is read off their tile programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowtide.errors import VerifyError
from lowtide.texpr.expr import Def
from lowtide.tile.ir import Kernel, Sweep, sweeps
from lowtide.tile.items import memory_strides
from lowtide.tile.schedule import schedule
from lowtide.tile.summation import order_of
from tests.emit.test_kernels import HINTS, planned


def product_of() -> tuple[Kernel, Def]:
    kernel, normal, target = planned("product", 64)
    strides = memory_strides(normal.inputs, normal.defs)
    (d,) = (d for d in normal.defs.values() if d.is_rounded)
    return schedule(kernel, HINTS, target, strides), d


def test_a_product_is_added_up_term_by_term() -> None:
    order = order_of(*product_of())
    assert order is not None
    assert order.fma
    assert order.loops == ((0, 1),)
    assert [k for k, _ in order.sweeps] == [0]


def test_tiles_of_another_length_are_another_order() -> None:
    kernel, d = product_of()
    first = order_of(kernel, d)
    terms = list(sweeps(kernel.body))[-1]
    terms.tile //= 2
    assert order_of(kernel, d) != first


def test_two_orders_in_one_kernel() -> None:
    kernel, d = product_of()
    terms = list(sweeps(kernel.body))[-1]
    kernel.body.append(Sweep(axis=terms.axis, tile=terms.tile // 2, body=terms.body))
    with pytest.raises(VerifyError, match="in two orders"):
        order_of(kernel, d)


def test_parts_of_parts() -> None:
    """A sum over a share of the grid, each tile of which is swept in parts."""
    kernel, d = product_of()
    kernel.values[f"{d.name}_part"] = replace(kernel.values[d.name])
    kernel.values[f"{d.name}_part_part"] = kernel.values[d.name]
    kernel.values[d.name] = replace(kernel.values[d.name])
    order = order_of(kernel, d)
    assert order is not None
    assert order.in_parts == 2
