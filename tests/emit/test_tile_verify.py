"""Kernels whose nests read what is not there are refused, whatever put them in that order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lowtide.errors import VerifyError
from lowtide.ir import dtypes as dt
from lowtide.texpr import expr as ex
from lowtide.texpr.index import as_index
from lowtide.tile.ir import Accumulate, Fill, Kernel, Nest, Stage, Store, Sweep
from lowtide.tile.verify import verify
from tests.emit.test_kernels import planned


def only(kind: type, body: list[Any]) -> Any:
    (found,) = [s for s in body if isinstance(s, kind)]
    return found


def tile_of_product() -> tuple[Kernel, list[Any], Sweep]:
    """A matrix product; within a tile of columns: fill, the sweep over the terms, store."""
    kernel = planned("product", 64)[0]
    verify(kernel)
    body = only(Sweep, kernel.body).body
    return kernel, body, only(Sweep, body)


def test_before_it_was_made() -> None:
    kernel, body, _ = tile_of_product()
    body.insert(0, body.pop())
    with pytest.raises(VerifyError, match="before anything made it"):
        verify(kernel)


def test_a_sum_that_goes_on() -> None:
    kernel, body, terms = tile_of_product()
    terms.body.append(body.pop())
    with pytest.raises(VerifyError, match="not whole yet"):
        verify(kernel)


def test_a_sum_begun_again_in_each_tile_is_whole_in_it() -> None:
    kernel, body, terms = tile_of_product()
    terms.body.append(body.pop())
    terms.body.insert(0, body.pop(body.index(only(Fill, body))))
    verify(kernel)


def test_a_tile_that_is_gone() -> None:
    kernel, body, terms = tile_of_product()
    staged = terms.body[0]
    assert isinstance(staged, Nest)
    (stage,) = staged.writes
    assert isinstance(stage, Stage)
    kernel.values["operand"] = stage.buffer
    nothing = tuple(as_index(0) for _ in stage.buffer.axes)
    read = ex.load("operand", nothing, stage.buffer.dtype)
    store = Store(target=kernel.outputs[0], index=nothing, expr=read)
    body.append(Nest(axes=stage.buffer.axes, writes=[store]))
    with pytest.raises(VerifyError, match="tile is gone"):
        verify(kernel)


def test_a_thread_has_a_part() -> None:
    kernel, _, _ = tile_of_product()
    for nest in kernel.nests():
        for w in nest.writes:
            if isinstance(w, Accumulate):
                w.buffer.per_thread = True
    with pytest.raises(VerifyError, match="a thread has a part"):
        verify(kernel)


def test_what_others_may_still_begin() -> None:
    kernel, _, _ = tile_of_product()
    (written,) = kernel.outputs
    place = ex.load(written, (as_index(0), as_index(0)), dt.f32)
    add = ex.add_at(place, ex.const(1, dt.f32))
    kernel.body.append(Nest(axes=(), writes=[Store(target=written, index=place.index, expr=add)]))
    with pytest.raises(VerifyError, match="which it stores"):
        verify(kernel)


def test_more_than_a_tile() -> None:
    kernel, _, terms = tile_of_product()
    kernel.body.append(terms.body[0])
    with pytest.raises(VerifyError, match="more than a tile"):
        verify(kernel)


def test_a_running_maximum_that_has_not_begun() -> None:
    kernel = planned("softmax", 64)[0]
    begun = next(k for k, s in enumerate(kernel.body) if isinstance(s, Fill))
    fill = kernel.body[begun]
    assert isinstance(fill, Fill)
    largest = kernel.values[fill.buffer.name]
    kernel.values[f"{largest.name}_old"] = replace(largest, name="old", fn="")
    held = replace(largest, name="held", fn="")
    kernel.buffers.append(held)
    read = ex.load(largest.name, (as_index(0), as_index(0)), held.dtype)
    stage = Nest(axes=held.axes, writes=[Stage(buffer=held, expr=read)])
    kernel.body.insert(begun + 2, stage)
    verify(kernel)
    kernel.body.insert(begun + 1, kernel.body.pop(begun + 2))
    with pytest.raises(VerifyError, match="before anything made it"):
        verify(kernel)
