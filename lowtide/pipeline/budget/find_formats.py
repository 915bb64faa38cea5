"""Which operands of a section are worth being turned to channels last.

In: an `Outer`, a `Candidate`. Out: `Formats`, None where nothing is turned.

oneDNN copies images that lie channel by channel into blocks and back, which takes 1.2 to 1.6 times
as long and as many bytes again; an image alone takes longest. A chunk's part of an operand may be a
copy, so it is one in the better format. The run is executed with it on the meta device: all shapes
and numbers must be as before. Where an operand has a single channel its format says nothing, and a
convolution gives what its weights ask for: these are turned then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.ir.core import Value
from lowtide.memory import convolution
from lowtide.memory.convolution import lies_last
from lowtide.memory.ledger import Ledger
from lowtide.memory.like_cpu import LikeTheCpu
from lowtide.pipeline.budget.candidate import Candidate, storage_of, tensors_in
from lowtide.pipeline.budget.formats import Formats, can_turn, order_of, turned_at
from lowtide.pipeline.budget.outer import Outer
from lowtide.pipeline.budget.recalled import Products
from lowtide.pipeline.followed import run_on_meta
from lowtide.runtime.played_arena import PlayedArena

_LEAST: Final = 0.5  # of all products, in operations, convolutions must be
_MOST_WEIGHTS: Final = 8  # that are turned


def formats_of(outer: Outer, run: Candidate) -> Formats | None:
    """See the module's text."""
    rows = list(zip(run.inputs, run.cuts, strict=True))
    places = {
        k
        for k, (v, cut) in enumerate(rows)
        if cut is not None and cut.dim == 0 and _can_turn(outer.known[v])
    }
    if run.carried is not None or not outer.on_host or _is_turned(outer, run):
        return None
    for _ in range(_MOST_WEIGHTS):
        noted = _Convolutions()
        env = _run(outer, run, frozenset(places), noted)
        if env is None or not noted.are_most():
            return None
        left = [k for w in noted.left() for k in _places(outer, run, w) if k not in places]
        if not left:
            return _made(outer, run, env, frozenset(places))
        places.add(left[0])
    return None


def _made(
    outer: Outer, run: Candidate, env: dict[Value, Any], places: frozenset[int]
) -> Formats | None:
    pairs = [(outer.known[v], env[v]) for v in run.outputs]
    if not places or not all(isinstance(x, torch.Tensor) for x, _ in pairs):
        return None
    results = (k for k, (x, y) in enumerate(pairs) if lies_last(y) and not lies_last(x))
    return Formats(
        operands=places, results=frozenset(results), orders=tuple(order_of(x) for x, _ in pairs)
    )


def _is_turned(outer: Outer, run: Candidate) -> bool:
    """Has the user done so? Then how results lie is left to PyTorch, on the CPU, chunk by chunk."""
    return any(lies_last(x) for v in run.inputs for x in outer.tensors(v))


def _can_turn(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and can_turn(value)


def _places(outer: Outer, run: Candidate, weight: torch.Tensor) -> list[int]:
    """The operands that are this weight."""
    return [
        k
        for k, v in enumerate(run.inputs)
        if any(storage_of(x) == storage_of(weight) for x in outer.tensors(v))
        and _can_turn(outer.known[v])
    ]


class _Convolutions(Products):
    """Notes the calls of convolutions, too."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[torch.Tensor, Sequence[Any]]] = []  # result, arguments

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.convolution.default:
            self.rows.append((made, args))
        return made

    def are_most(self) -> bool:
        """Of all operations of products those of convolutions by oneDNN."""
        ours = {id(made) for made, _ in self._onednns()}
        counts = [(count, id(made) in ours) for made, count in self.found]
        total = sum(count for count, _ in counts)
        return bool(ours) and sum(n for n, is_ours in counts if is_ours) >= _LEAST * total

    def left(self) -> list[torch.Tensor]:
        """Weights of those whose results still lie channel by channel."""
        return [args[1] for made, args in self._onednns() if can_turn(made)]

    def _onednns(self) -> list[tuple[torch.Tensor, Sequence[Any]]]:
        return [row for row in self.rows if convolution.is_onednns(row[1])]


def _run(
    outer: Outer, run: Candidate, places: frozenset[int], noted: _Convolutions
) -> dict[Value, Any] | None:
    """The run's values with these operands turned; None where anything but strides differs."""
    with Ledger(PlayedArena()), LikeTheCpu(), torch.no_grad():
        values = turned_at(places, [outer.known[v] for v in run.inputs])
        env = dict(zip(run.inputs, values, strict=True))
        for op in outer.ops[run.start : run.stop]:
            with noted:
                made = run_on_meta(op, {v: env[v] for v in op.operands})
            known = [outer.known[v] for v in op.results]
            if made is None or not _alike(made, known):
                return None
            env.update(zip(op.results, made, strict=True))
    return env


def _alike(made: Any, known: Any) -> bool:
    """Equal numbers, tensors of one form but for strides."""
    ours, theirs = tensors_in(made), tensors_in(known)
    if not ours and not theirs:
        return type(made) is type(known) and made == known
    if isinstance(made, torch.Tensor) and isinstance(known, torch.Tensor):
        return made.shape == known.shape and made.dtype == known.dtype
    if type(made) is not type(known) or not isinstance(made, list | tuple):
        return False
    return len(made) == len(known) and all(map(_alike, made, known))  # pyright: ignore
