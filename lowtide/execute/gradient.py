"""Plans the backward pass of a region: its saved values, and its kernels.

In: a region's Program and the inputs that want gradients. Out: a `Gradient`, which compiles the
forward Program with the saved values as outputs. It compiles one backward Program for each
combination of wanted gradients, outputs with a cotangent, and strides of the cotangents, at its
first use.

    softmax: rows s0, columns s1       saved: maximum and sum of each row, 4*s0 bytes each

Results of reductions that the backward pass reads are saved, if each takes no more memory than the
region's inputs and outputs together. Larger values (of pairs) are recomputed.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from lowtide import compiler
from lowtide.diagnostics import debug, stats
from lowtide.errors import Loc
from lowtide.execute import backend
from lowtide.execute.backend import Tiles
from lowtide.execute.parted import Part, parts_of
from lowtide.execute.value_and_grad import ValueAndGrad, value_and_grad
from lowtide.ir.dtypes import HALVES, f32
from lowtide.texpr import autodiff
from lowtide.texpr import expr as ex
from lowtide.texpr.contribution import Scatter
from lowtide.texpr.equal_gradients import with_equal_gradients
from lowtide.texpr.expr import Cast, Def, Program, Reduce
from lowtide.texpr.idempotent import outputs_for_inputs
from lowtide.texpr.index import Index, as_index, product, row_major
from lowtide.texpr.orders import Order, stored_in
from lowtide.texpr.sizes import evaluate
from lowtide.torch_private import torch_state
from lowtide.torch_private.tensors import is_zero_tensor

CHEAP_TERMS: Final = 16  # sums over at most so many terms are recomputed;
PAIR_TERMS: Final = 64  # over so many, if the sum is a value of pairs:
PAIRS: Final = 8  # larger than so many times inputs and outputs together

Pattern = tuple[bool, ...] | None  # of a cotangent: the dims that are expanded; None: no cotangent


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A value kept between forward and backward. `nbytes`: a formula in the sizes. `output`: its
    position among the region's outputs, -1 for a value that is computed only to be saved."""

    name: str
    output: int
    nbytes: Index
    loc: Loc
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A compiled backward Program. `inputs` and `outputs`: names of tensors in order; `dtypes`: of
    the outputs. `orders`: orders of dims of gradients whose input is not in row-major order.
    `others`: see `reusing`. `adds`: scatters that the kernels add to gradients. For the rest see
    `autodiff.Backward`."""

    executable: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    gradients: Mapping[str, str]
    scatters: tuple[Scatter, ...]
    dtypes: tuple[torch.dtype, ...] = ()
    adds: int = 0
    orders: Mapping[str, Order] = field(default_factory=dict[str, Order])
    others: dict[tuple[str, ...], Any] = field(default_factory=dict[tuple[str, ...], Any])

    def reusing(self, free: Sequence[str]) -> Any:
        """Return the executable that writes its outputs into these inputs, as far as possible."""
        key = tuple(n for n in free if n in self.inputs)
        found = self.others.get(key)
        if found is None:
            taken = self.executable.reusable_inputs(key)
            made = self.executable.taking(taken) if taken else self.executable
            found = self.others.setdefault(key, made)
        return found


class Gradient:
    """See the module's text. `names` and `scalars`: sizes and numbers, in the kernels' order.
    `wanted`: inputs that want gradients. `carrying`: for each output, whether it has one.
    `in_place_of`: inputs that are saved as an output, by position. `name`: of the region, in debug
    output."""

    def __init__(
        self,
        program: Program,
        wanted: Sequence[str],
        names: Sequence[str],
        scalars: Sequence[str],
        machine: str = "cpu",
        tiles: Tiles = "usual",
        name: str = "",
    ) -> None:
        self.name = name
        self.program = program
        self.machine = machine
        self.tiles: Tiles = tiles
        self.names = tuple(names)
        self.scalars = tuple(scalars)
        self.wanted = tuple(n for n in wanted if n in program.inputs)
        self.diff = compiler.differentiated(program, self.wanted)
        self.carrying = tuple(self.diff.carries(n) for n in program.results)
        self.reached = frozenset(self._reached())
        instead = [i for i in outputs_for_inputs(program) if self.diff.carries(i.output)]
        self.diff.instead = {i.operand.name: i.operand for i in instead if i.operand is not None}
        everything = self._backward_program(self.wanted, self._all_given(), ())
        self.saved_inputs = tuple(n for n in program.inputs if n in everything.inputs)
        self.in_place_of = {
            i.input: program.results.index(i.output)
            for i in instead
            if i.input in self.saved_inputs
        }
        self.saved: tuple[Saved, ...] = ()
        self.value_and_grad: ValueAndGrad | None = None
        self._passes: dict[tuple[Any, ...], Pass] = {}
        self._reads: dict[tuple[frozenset[Part], tuple[str, ...]], frozenset[str]] = {}
        self._lock = threading.Lock()

    def _reached(self) -> Iterator[str]:
        """Yield the inputs that an output depends on differentiably. PyTorch's graph has no edge
        to the others, for instance to a tensor that is only compared."""
        seen: set[str] = set()
        todo = list(self.program.outputs)
        while todo:
            name = todo.pop()
            if name in seen or not self.diff.carries(name):
                continue
            seen.add(name)
            if name in self.wanted:
                yield name
            if (d := self.diff.defs.get(name)) is not None:
                todo += [load.source for load in ex.loads(d.expr)]
            if (y := self.program.delays.get(name)) is not None:
                todo += [y.source, y.init]

    @property
    def exists(self) -> bool:
        """Return whether any output carries a gradient."""
        return any(self.carrying)

    @property
    def executables(self) -> list[Any]:
        """Return the backward passes planned so far that are valid under PyTorch's current
        flags."""
        adding = torch_state.may_add(self.machine)
        with self._lock:
            made = [p.executable for (*_, how), p in self._passes.items() if how is adding]
        return [x for x in made if x is not None]

    @functools.cached_property
    def parts(self) -> frozenset[Part]:
        """Return the groups of outputs whose backward passes share nothing, see `parted`."""
        return parts_of(self.program, self.diff)

    def reads(self, parts: frozenset[Part], saved: tuple[str, ...]) -> frozenset[str]:
        """Return the saved values that the backward pass of these parts reads."""
        found = self._reads.get((parts, saved))
        if found is None:
            outputs = {self.program.results[k] for part in parts for k in part}
            given = {n: strides for n, strides in self._all_given().items() if n in outputs}
            found = frozenset(self._backward_program(self.wanted, given, saved).inputs)
            self._reads[parts, saved] = found
        return found

    # -- forward --

    def record(self, hints: Mapping[str, int]) -> Program:
        """Choose what to save, for sizes like these; return the Program that also computes it."""
        found = self.value_and_grad = value_and_grad(
            self.program, self.diff, self.wanted, hints, self.machine
        )
        if found is not None:
            at = found.program.defs[found.output].loc
            made = [found.program.defs[n] for n in found.gradients.values()]
            self.saved = tuple(
                replace(self._saved(d), output=-1, loc=at, op="gradient") for d in made
            )
            return found.program
        chosen = self._chosen(hints)
        self.saved = tuple(self._saved(self.diff.defs[n]) for n in chosen)
        return autodiff.recording(self.program, self.diff, chosen)

    def _saved(self, d: Def) -> Saved:
        outputs = self.program.results
        return Saved(
            name=d.name,
            output=outputs.index(d.name) if d.name in outputs else -1,
            nbytes=product(d.shape) * d.dtype.itemsize,
            loc=d.loc,
            op=d.op,
        )

    def _chosen(self, hints: Mapping[str, int]) -> list[str]:
        outputs = [(self.diff.shape(n), self.diff.dtype(n)) for n in self.program.results]
        inputs = [(i.shape, i.dtype) for i in self.program.inputs.values()]
        io_bytes = sum(_bytes(shape, dtype.itemsize, hints) for shape, dtype in [*inputs, *outputs])
        backward = self._backward_program(self.wanted, self._all_given(), ())
        read = dict.fromkeys(
            load.source
            for n, d in backward.defs.items()
            if n not in self.diff.defs
            for load in ex.loads(d.expr)
        )
        read |= dict.fromkeys(n for y in backward.delays.values() for n in (y.source, y.init))
        stepwise = _Stepwise(self.diff, hints, io_bytes)
        chosen = dict.fromkeys(n for n in self.diff.defs if n in read and stepwise.is_costly(n))
        seen: set[str] = set()
        todo = list(read)
        while todo:
            name = todo.pop()
            d = self.diff.defs.get(name)
            if d is None or name in seen or name in chosen:
                y = self.program.delays.get(name)
                if y is not None and name not in seen:
                    seen.add(name)
                    todo += [y.source, y.init]
                continue
            seen.add(name)
            small = _bytes(d.shape, d.dtype.itemsize, hints) <= io_bytes
            costly = self._is_costly(d, hints) or self._is_rounded_sum(d, hints)
            if name in self.diff.must_save or (small and costly and name not in self.diff.late):
                chosen[name] = None
            else:
                todo += [load.source for load in ex.loads(d.expr)]
        return [n for n in self.diff.defs if n in chosen]

    @staticmethod
    def _is_costly(d: Def, hints: Mapping[str, int]) -> bool:
        return isinstance(d.expr, Reduce) and _terms(d.expr, hints) > CHEAP_TERMS

    def _is_rounded_sum(self, d: Def, hints: Mapping[str, int]) -> bool:
        """Return whether it is a costly sum in half as many bytes, as the product of a linear layer
        in bfloat16, with its bias."""
        if d.dtype.name not in HALVES or not isinstance(d.expr, Cast):
            return False
        own = frozenset(a for a in d.axes if a.extent.const != 1)
        large = {load.source for load in ex.loads(d.expr) if load.free == own}
        sums = [self.diff.defs[n] for n in large if n in self.diff.defs]
        return len(sums) == 1 and sums[0].dtype is f32 and self._is_costly(sums[0], hints)

    # -- backward --

    def _all_given(self) -> dict[str, tuple[Index, ...]]:
        outputs = zip(self.program.results, self.carrying, strict=True)
        return {n: row_major(self.diff.shape(n)) for n, carries in outputs if carries}

    def _backward_program(
        self,
        wanted: Sequence[str],
        given: Mapping[str, tuple[Index, ...]],
        saved: Sequence[str],
    ) -> Program:
        return self.diff.backward(wanted, given, saved).program

    def backward(
        self,
        needed: tuple[bool, ...],
        patterns: tuple[Pattern, ...],
        saved: tuple[str, ...],
        hints: Mapping[str, int],
    ) -> Pass:
        """Return the kernels for this combination, if the gradients are not computed together with
        the value (`value_and_grad`). `needed`: for each of `wanted`, whether it is needed. `saved`:
        the names of available values. PyTorch's determinism flag is part of the key."""
        adding = torch_state.may_add(self.machine)
        key = (needed, patterns, saved)
        found = self._passes.get((*key, adding))
        if found is None:
            with self._lock:
                found = self._passes.get((*key, adding))
                if found is None:
                    found = self._compiled(needed, patterns, saved, hints, adding)
                    both = not (found.scatters or found.adds)  # equal for both values of the flag
                    self._passes |= {(*key, x): found for x in (True, False) if both or x is adding}
        return found

    def whole(self, hints: Mapping[str, int]) -> Pass:
        """Return the kernels for all gradients, with a dense cotangent for each output."""
        if self.value_and_grad is not None:
            return Pass(executable=None, inputs=(), outputs=(), gradients={}, scatters=())
        outputs = zip(self.program.results, self.carrying, strict=True)
        patterns = tuple(
            (False,) * len(self.diff.shape(n)) if carries else None for n, carries in outputs
        )
        saved = tuple(s.name for s in self.saved if s.output < 0)
        shared = tuple(s.name for s in self.saved if s.output >= 0)
        return self.backward((True,) * len(self.wanted), patterns, (*saved, *shared), hints)

    def kernels(self, program: Program, hints: Mapping[str, int], stage: str = "") -> Any:
        """Compile a Program over the same sizes and numbers; `stage` names it in debug output."""
        stats.count("compiles")
        sizes = {n: hints[n] for n in self.names}
        compile_program = functools.partial(
            backend.compile_program,
            program,
            symbols=self.names,
            scalars=self.scalars,
            hints=sizes,
            machine=self.machine,
            tiles=self.tiles,
        )
        return debug.planned(self.name, compile_program, sizes, stage)

    def _compiled(
        self,
        needed: tuple[bool, ...],
        patterns: tuple[Pattern, ...],
        saved: tuple[str, ...],
        hints: Mapping[str, int],
        adding: bool,
    ) -> Pass:
        wanted = [n for n, is_needed in zip(self.wanted, needed, strict=True) if is_needed]
        given = {
            n: _strides(self.diff.shape(n), pattern)
            for n, pattern in zip(self.program.results, patterns, strict=True)
            if pattern is not None
        }
        made = self.diff.backward(wanted, given, saved, adding)
        program, gradients = with_equal_gradients(made.program, made.gradients)
        scattered, added_to = {s.input for s in made.scatters}, program.added_to()
        dense = {
            n: output
            for n, output in gradients.items()
            if output and n not in scattered and output not in added_to
        }
        program, dense, orders = _in_input_layouts(program, dense, self.program)
        gradients |= dense
        executable = self.kernels(program, hints, "backward ") if program.outputs else None
        named = {**program.inputs, **program.delays, **program.defs}
        return Pass(
            executable=executable,
            inputs=tuple(program.inputs),
            outputs=tuple(program.results),
            gradients=gradients,
            scatters=made.scatters,
            dtypes=tuple(named[n].dtype.torch for n in program.results),
            adds=len(program.outputs) - len(program.results),
            orders=orders,
        )


def _in_input_layouts(
    program: Program, gradients: Mapping[str, str], forward: Program
) -> tuple[Program, dict[str, str], dict[str, Order]]:
    """Return gradients in the order of dims of their inputs; a gradient of several inputs with
    different orders keeps its own."""
    found, orders = dict(gradients), dict[str, Order]()
    for output in dict.fromkeys(gradients.values()):
        names = [n for n in gradients if gradients[n] == output]
        order, *others = {forward.inputs[n].order for n in names}
        if order is None or others or output not in program.defs:
            continue
        defs, stored = stored_in(program.defs, output, order)
        outputs = [stored if o == output else o for o in program.outputs]
        program = replace(program, defs=defs, outputs=outputs)
        found |= dict.fromkeys(names, stored)
        orders |= dict.fromkeys(names, order)
    return ex.pruned(program), found, orders


class _Stepwise:
    """Values saved for each step of a loop, since the backward pass could recompute them only by a
    long sum. Examples are sums over carried values or over all earlier steps. Eager mode
    saves them, too. `io_bytes`: of inputs and outputs."""

    def __init__(
        self, diff: autodiff.Differentiation, hints: Mapping[str, int], io_bytes: int
    ) -> None:
        self.diff = diff
        self.hints = hints
        self.io_bytes = io_bytes
        self._known: dict[str, tuple[bool, bool]] = {}

    def is_costly(self, name: str) -> bool:
        """Return whether the value contains such a sum, beyond what is saved. Call in the order of
        definitions."""
        found = name in self.diff.must_save or all(self._found(name))
        if found:
            self._known[name] = True, False  # saved, so its readers need not compute the sum
        return found

    def _found(self, name: str) -> tuple[bool, bool]:
        """Return (whether it depends on carried values, whether it contains a long sum)."""
        if name in self.diff.delays:
            return True, False
        d = self.diff.defs.get(name)
        if d is None:
            return False, False
        if name not in self._known:
            below = [self._found(load.source) for load in ex.loads(d.expr)]
            carried = any(c for c, _ in below)
            self._known[name] = carried, any(s for _, s in below) or self._is_long(d)
        return self._known[name]

    def _is_long(self, d: Def) -> bool:
        are_pairs = _bytes(d.shape, d.dtype.itemsize, self.hints) > PAIRS * self.io_bytes
        few = PAIR_TERMS if are_pairs else CHEAP_TERMS
        return isinstance(d.expr, Reduce) and _terms(d.expr, self.hints) > few


def cotangent_pattern(g: torch.Tensor) -> tuple[torch.Tensor, tuple[bool, ...]]:
    """Return the cotangent as the kernels read it, copied if necessary, and its expanded dims.
    PyTorch passes zeros without memory, and tensors with the negative bit."""
    if is_zero_tensor(g):
        g = torch.zeros(g.shape, dtype=g.dtype, device=g.device)
    g = g.resolve_neg()
    if g.is_contiguous():
        return g, (False,) * g.dim()
    expanded = tuple(s == 0 and n > 1 for s, n in zip(g.stride(), g.shape, strict=True))
    if any(expanded):
        core = g[tuple(0 if x else slice(None) for x in expanded)]
        if core.is_contiguous():
            return g, expanded
    return g.contiguous(), (False,) * g.dim()


def _strides(shape: tuple[Index, ...], expanded: tuple[bool, ...]) -> tuple[Index, ...]:
    core = iter(row_major(tuple(s for s, x in zip(shape, expanded, strict=True) if not x)))
    return tuple(as_index(0) if x else next(core) for x in expanded)


def _bytes(shape: tuple[Index, ...], itemsize: int, hints: Mapping[str, int]) -> int:
    return math.prod(evaluate(s, hints) for s in shape) * itemsize


def _terms(e: Reduce, hints: Mapping[str, int]) -> int:
    return math.prod(evaluate(a.extent, hints) for a in e.axes)
