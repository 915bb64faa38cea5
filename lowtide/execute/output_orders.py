"""Finds the memory order of the dims of a region's outputs: the order of PyTorch's own results.

In: the ops of a region for PyTorch, the live-ins of a call. Out: an order for each output that is
not contiguous in PyTorch. The ops run on meta tensors, so nothing is computed.

    x: [8, 16, 64, 64], channels_last     y = relu(x * 2)     {y: (0, 2, 3, 1)}

The ops run only if an input is not contiguous, the program names a memory format, or an op returns
a view with other strides; otherwise outputs are nearly always contiguous. Results depend on the
order, too: `dropout` draws its mask in memory order, and `view` raises if it would have to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import torch

from lowtide.execute.autograd_function import EagerRegion, item
from lowtide.ir import opdefs
from lowtide.ir.core import Op, Value
from lowtide.ir.interpret import Env, run_op
from lowtide.memory import layouts
from lowtide.memory.like_device import LikeTheCpu
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.specialise.abstract import Abs
from lowtide.texpr.orders import Order, order_of
from lowtide.torch_private.modes import OwnMode
from lowtide.torch_private.pytree import tree_map

_TURNING: Final = frozenset(
    ("permute", "transpose", "movedim", "t", "T", "mT", "mH", "einsum", "unfold", "diagonal")
)
_WITH_GAPS: Final = frozenset(
    ("getitem", "select", "narrow", "split", "chunk", "unbind", "expand", "expand_as")
)
_STEPS: Final = 3  # of a loop: strides that are equal after the second and third step stay so
_VIEWS: Final = frozenset(("view", "view_as", "unflatten"))  # raise instead of making a copy
# Methods whose results depend on the layout of a tensor, also of a part of one.
_LAYOUT_QUERIES: Final = frozenset((
    "as_strided", "data_ptr", "is_contiguous", "is_set_to", "storage", "storage_offset", "stride",
    "untyped_storage", "view", "numpy", "__array__",
))  # fmt: skip


class ViewFails(Exception):
    """A `view` of PyTorch raises, since the operand's strides do not allow it without a copy."""


def is_plain(ops: Sequence[Op]) -> bool:
    """Return whether these ops, for contiguous tensors, return contiguous ones and no `view` can
    fail."""
    found = {op.name.rpartition(".")[2] for op in _all(ops)}
    return found.isdisjoint(_TURNING) and (found.isdisjoint(_VIEWS) or found.isdisjoint(_WITH_GAPS))


def _all(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        for block in op.blocks:
            yield from _all(block.ops)


def reads_layout(op: Op) -> bool:
    """Return whether the op returns facts about its operands' layout, which must then be
    PyTorch's."""
    target = str(op.attrs.get("target", "")) if op.name == "call_torch" else ""
    return op.name == "torch.view.dtype" or target.rpartition(".")[2] in _LAYOUT_QUERIES


def orders_of(
    eager: EagerRegion | None, outputs: Sequence[Abs], values: Sequence[Any]
) -> dict[Abs, Order]:
    """Return the orders; see the module's text. Empty if PyTorch cannot tell without the data.
    Raises ViewFails if a `view` does not fit its operand's strides."""
    if eager is None:
        return {}
    try:
        with outside_dispatch_modes(), LikeTheCpu(), MetaMode(), torch.no_grad():
            run = _FewSteps()
            made = run.outputs(eager, [_without_data(v) for v in values])
            # The kernels store a part of a tensor without gaps.
            found = [None if y is None else torch.empty_like(y) for y in made]
    except ViewFails:
        raise
    except Exception:  # PyTorch raises it, if it matters, when the region runs
        return {}
    pairs = zip(outputs, found, strict=True)
    rows = ((x, order_of(y.shape, y.stride())) for x, y in pairs if y is not None)
    return {x: order for x, order in rows if order is not None}


class _FewSteps:
    """Runs a region's ops, but only the first steps of its loops, since all may take long."""

    def __init__(self) -> None:
        self._unknown: set[Value] = set()  # values whose layout is unknown after a loop

    def outputs(self, eager: EagerRegion, values: Sequence[Any]) -> list[Any]:
        """Return the results; None for those that are unknown."""
        env = eager.run(values, self._run)
        known = (None if at is None or at[0] in self._unknown else at for at in eager.outputs)
        return [None if at is None else item(env[at[0]], at[1]) for at in known]

    def _run(self, op: Op, env: Env) -> None:
        if self._unknown.isdisjoint(op.operands) and not any(x.name == "loop" for x in _all([op])):
            run_op(op, env)
            return
        written = [x.operands[0] for x in _all([op]) if opdefs.writes(x.name)]
        if op.name == "loop" and not written and self._unknown.isdisjoint(op.operands):
            self._unknown.update(self._loop(op, env))
        else:
            self._unknown.update(op.results, written)

    def _loop(self, op: Op, env: Env) -> Sequence[Value]:
        """Return the results that the first steps determine."""
        trips, going, *carried = (env[v] for v in op.operands)
        (block,) = op.blocks
        earlier = carried
        try:
            for i in range(min(trips, _STEPS)):
                if not going:
                    trips = 0
                    break
                env.update(zip(block.args, (i, *carried), strict=True))
                for inner in block.ops[:-1]:
                    self._run(inner, env)
                earlier = carried
                going, *carried = (env[v] for v in block.terminator.operands)
        except ViewFails:
            raise
        except Exception:  # a step depends on the data, or on an unknown layout
            return op.results
        env.update(zip(op.results, carried, strict=True))
        if trips <= _STEPS:
            return ()
        rows = zip(op.results, earlier, carried, strict=True)
        return [v for v, was, now in rows if not _have_equal_layouts(was, now)]


def _have_equal_layouts(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return x.shape == y.shape and x.stride() == y.stride()
    return type(x) is type(y) and isinstance(x, int | float | None) and x == y


class MetaMode(OwnMode):
    """Makes ops return tensors on the meta device, with the strides of the CPU."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        args, named = tree_map(_on_meta, (args, dict(kwargs or {})))
        if func is torch.ops.aten.view.default:
            try:
                return func(*args, **named)
            except RuntimeError as why:
                raise ViewFails from why
        return layouts.with_eager_layout(func, args, func(*args, **named), named)


def _on_meta(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("meta")
    return _without_data(x) if isinstance(x, torch.Tensor) and x.device.type != "meta" else x


def _without_data(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return {k: _without_data(v) for k, v in entries.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_data, value))
    return value
