"""Specialisation: abstract interpretation of a block's ops into one tensor-expression Program.

In: a block, where to start, abstract live-ins. Out: a `Trace`: the op at which it stopped, why, and
the abstract values of all ops before it.

    y = x[:, None] - c      sub           t1[i, j, k] = x[i, k] - c[j, k]
    d = (y * y).sum(-1)     mul, sum      t2[i, j] = sum[k](t1[i, j, k] * t1[i, j, k])
    print(d.min())          print         stops here: "print"

An `if` with a known condition becomes its live branch; a short `loop` with known trips is unrolled.
Either is specialised whole or not at all, so that a trace ends between two ops of the outer block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from lowtide.errors import Loc
from lowtide.ir import dtypes, opdefs, python_objects
from lowtide.ir import types as t
from lowtide.ir.aliases import Statistics
from lowtide.ir.core import Block, Op, Value, free_values
from lowtide.ir.named_results import field_names
from lowtide.ir.python_ops.numbers import UNBOUND
from lowtide.ops.library import without_library
from lowtide.specialise import (
    control,
    kernel_numbers,
    late_binding,
    mappings,
    scalars,
    selections,
    torch_ops,
)
from lowtide.specialise.abstract import (
    OPAQUE,
    Abs,
    Origin,
    Seq,
    constant,
    frozen,
    is_constant,
    operands_of,
    tensors_in,
)
from lowtide.specialise.activity import Activity, Full
from lowtide.specialise.assertions import asserted, is_call, only_asserted
from lowtide.specialise.layers import alive_bytes, are_pairs, narrowest, nbytes
from lowtide.specialise.lifting import inplace, rows
from lowtide.specialise.lifting.statistics import counted, may_be_written
from lowtide.specialise.lowering_operands import elements
from lowtide.specialise.missing_sizes import divisors_behind, size_names
from lowtide.specialise.region_boundaries import (
    STOPPING,
    Stop,
    ends_region,
    is_item,
    only_prepares,
    reads_sums,
)
from lowtide.specialise.signature import SMALL, Binding, size_symbol
from lowtide.texpr import expr as ex
from lowtide.texpr.build import (
    Builder,
    NeedConst,
    ShapeError,
    Unsupported,
    Val,
    lone_size,
    symbols,
    varies,
)
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import nonnegative
from lowtide.texpr.pullback import OF_THEIR_OWN
from lowtide.texpr.sizes import evaluate

MAX_GUARDS: Final = 32
MOST_SCALE: Final = 8  # of the size of a region that records gradients

Write = tuple[Abs, Abs]


class NeedGuards(Exception):
    """The signature must be split by whether these are negative. `answers`: those of this call."""

    def __init__(self, answers: Mapping[Index, bool]) -> None:
        super().__init__(", ".join(map(str, answers)))
        self.answers = answers


class _TooMuch(Exception):
    """Too much for one backward pass: the last layer that fits ends at `stop`."""

    def __init__(self, stop: int) -> None:
        super().__init__(stop)
        self.stop = stop


class _TooSmall(Exception):
    """The region is too small: it would end at values of pairs and so store them."""


class NeedSizes(Exception):
    """An op compares these ints with sizes: they are sizes, too."""

    def __init__(self, symbols: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(symbols)))
        self.symbols = symbols


class NeedAlike(Exception):
    """An op requires these symbols to be equal, and they are: one symbol for both."""

    def __init__(self, symbols: tuple[str, str]) -> None:
        super().__init__(" and ".join(symbols))
        self.symbols = symbols


@dataclass(slots=True, kw_only=True)
class Trace:
    """Ops [start, stop) of the block are traced. `reason` says why `stop` is not, and is empty
    where the block ended or the region was only cut; `misfit`: shapes do not fit, PyTorch will say
    so. `writes`: live-ins, and what is written into them when all else is done. `used`: numbers
    that are made although nothing reads them, since that may raise."""

    stop: int
    reason: str
    loc: Loc
    env: dict[Value, Abs]
    builder: Builder
    derived: dict[str, Abs]
    ops: int
    misfit: bool = False
    writes: Sequence[Write] = ()
    used: Sequence[Abs] = ()


def specialise(
    block: Block,
    reach: range,
    live: Sequence[Value],
    binding: Binding,
    assumed: Mapping[Index, bool],
    floats: Mapping[str, float],
    statistics: Statistics = Statistics(),  # noqa: B008
    layers: Collection[int] = (),
) -> Trace:
    """Follows ops in `reach`. `layers`: where equal layers begin; `assumed` answers guards;
    `floats` are this call's, to see whether an op could be lowered if it knew them; `statistics`:
    what norms may write. Raises NeedConst, NeedSizes, NeedAlike, NeedGuards and NeedFloats."""
    excluded: dict[Op, str] = {}
    scale = 1
    while True:
        run = _Specialiser(live, binding, assumed, floats, excluded, scale, statistics, layers)
        env = dict(zip(live, run.live, strict=True))
        try:
            return run.traced(block, reach, env)
        except _TooMuch as why:
            reach, layers = range(reach.start, why.stop), ()
        except _TooSmall:
            scale *= 2
        except kernel_numbers.Escaped as why:
            excluded[why.op] = str(why)
        except rows.Escaped as why:
            if why.cut and scale < MOST_SCALE:
                scale *= 2  # what reads the list belongs into the same region
            else:
                excluded[why.op] = str(why)


class _Specialiser:
    def __init__(
        self,
        names: Sequence[Value],
        binding: Binding,
        assumed: Mapping[Index, bool],
        floats: Mapping[str, float],
        excluded: Mapping[Op, str],
        scale: int,
        statistics: Statistics,
        layers: Collection[int],
    ) -> None:
        self.names = names
        self.layers = layers
        self.excluded = excluded  # ops that kernels do not compute, and why: see `Escaped`
        self.b, self.live = binding.abstract()
        self.b.may_recompute = binding.may_recompute
        self.assumed = dict(assumed)
        self.new_guards: dict[Index, bool] = {}  # guards that are new in `assumed`
        self.b.ask, self.b.answers = self.answer, self.assumed
        self.b.found_equal = self.found_equal
        self.numbers = binding.numbers
        self.spots = binding.spots
        self.free = frozenset(binding.free)
        self.floats = floats
        self.derived: dict[str, Abs] = {}
        self.ops = 0
        self.activity = Activity(self.b, binding.wanted, binding.numbers, scale)
        self.scale = scale
        self.given_bytes = sum(nbytes(x, binding.numbers) for x in self.live)
        self._undo: list[tuple[Abs, object]] = []  # what was changed, and what it was
        self.views: dict[Abs, inplace.Made] = {}
        self.blocked: set[Abs] = set()  # tensors of which there may be copies, or not
        self.items: dict[Abs, rows.Item] = {}  # read from lists that a loop has filled
        self.chosen: set[Abs] = set()  # one of several tensors, as the iteration says
        self.statistics = statistics
        self.writes: list[Write] = []
        self.used: list[Abs] = []
        self.loop: Op | None = None  # the innermost of those that are lifted
        self.asserted: frozenset[Value] = frozenset()  # see `assertions`
        self.is_asserting = False  # such a bool is made, and not asserted yet
        self.numbers_by: dict[Abs, Op] = {}  # that kernels compute, and by which ops
        self.pairs_alive: Callable[[], bool] = bool  # see `kernel_numbers`

    def traced(self, block: Block, reach: range, env: dict[Value, Abs]) -> Trace:
        """Return the trace. Raises NeedGuards instead, after all ops, if answers need guards."""
        try:
            found = self.trace(block, reach, env)
        except Exception as why:
            if self.new_guards:
                raise NeedGuards(self.new_guards) from why
            raise
        if self.new_guards:
            raise NeedGuards(self.new_guards)
        return found

    def trace(self, block: Block, reach: range, env: dict[Value, Abs]) -> Trace:
        start = reach.start
        stop, reason, misfit, is_cut = start, "", False, False
        # In exported C, an assertion that fails is a status with the program's own message.
        self.asserted = frozenset() if without_library() else only_asserted(block)
        cut, at_cut = start, self.mark()
        for op in block.ops[start : reach.stop]:
            if op is block.terminator:  # of which the region may not have all operands
                stop += all(v in env for v in op.operands)
                break
            is_full = self.ops > control.UNROLL_OPS or self.activity.is_full
            if is_full and not self.is_asserting:
                alive = alive_bytes(block, range(start, stop), env, self.numbers)
                layers = (k for k in self.layers if start < k < stop)
                ended = [k for k in layers if not are_pairs(alive[k], self.given_bytes)]
                if ended:
                    raise _TooMuch(max(ended))
                narrow = narrowest(alive)
                self._widen_for_pairs(alive[stop if narrow is None else narrow])
                if narrow is not None:
                    raise _TooMuch(narrow)
                is_cut = True
                break
            mark = self.mark()
            self.pairs_alive = partial(kernel_numbers.pairs_alive, self, env, block, stop)
            try:
                self.op(op, env)
            except Full as why:  # it begins the next region, with what only it needs
                self.reset(at_cut if cut > start else mark)
                is_cut = cut > start
                stop, reason = (cut, "") if is_cut else (stop, str(why))
                self._widen_for_pairs(
                    alive_bytes(block, range(start, stop), env, self.numbers)[stop]
                )
                break
            except (Unsupported, ShapeError) as why:
                self.reset(mark)
                reason, misfit = str(why), isinstance(why, ShapeError)
                break
            except NeedConst as need:
                if more := self.known_to_call(need.symbols):
                    raise NeedConst(need.symbols | more) from need
                self.reset(mark)
                reason = f"needs a size that is known only at run time: {self.size_names(need)}"
                break
            stop += 1
            if not only_prepares(op):
                cut, at_cut = stop, self.mark()
        loc = block.ops[min(stop, len(block.ops) - 1)].loc
        later = block.ops[stop:] or [block.terminator]
        kernel_numbers.check_escapes(self, env, later)
        selections.check_escapes(env, later)
        if self._undo or self.items:
            self.refresh(env.values())
            alive = {v: env[v] for v in free_values(later) if v in env}
            escaped = rows.escaping(alive, self.items, later)
            if escaped is not None:
                raise rows.Escaped(*escaped, is_cut)
        return Trace(
            stop=stop,
            reason=reason,
            loc=loc,
            env=env,
            builder=self.b,
            derived=self.derived,
            ops=self.ops,
            misfit=misfit,
            writes=self.writes,
            used=self.used,
        )

    def known_to_call(self, names: Iterable[str]) -> frozenset[str]:
        """Return the symbols that may become constants of the signature, so that more questions can
        be answered."""
        return frozenset(n for n in names if self.spots.get(n)) | self.divisors(names)

    def divisors(self, names: Iterable[str]) -> frozenset[str]:
        return divisors_behind(names, self.derived, self.spots)

    def size_names(self, need: NeedConst) -> str:
        """Return the user's names of the sizes that an answer needs, and the op that needs it."""
        return size_names(need.symbols, self.names, self.derived, self.spots, self.b)

    # -- what scalars asks --

    def decide(self, index: Index) -> bool | None:
        """Return whether index >= 0 in every run of this signature; None for an index that varies
        between iterations."""
        known = self.b.is_known(index)
        if known is not None or varies(index):
            return known  # it differs between iterations of a lifted loop
        return self.ask(index)

    def ask(self, index: Index) -> bool | None:
        """Return whether index >= 0, on whatever branch is traced."""
        if nonnegative(index) or nonnegative(-index - 1):
            return nonnegative(index)
        if varies(index):
            return None
        if index in self.assumed:
            return self.assumed[index]
        if not symbols(index) <= self.numbers.keys() or len(self.assumed) >= MAX_GUARDS:
            return None
        holds = evaluate(index, self.numbers) >= 0
        self.assumed[index] = self.new_guards[index] = holds
        return holds

    def answer(self, index: Index) -> bool | None:
        """Return the answer to a question that an op has about its shapes."""
        if free := symbols(index) & self.free:
            raise NeedSizes(free)
        return self.ask(index)

    def found_equal(self, a: Index, b: Index) -> None:
        """Raises NeedAlike if both are symbols, NeedConst if one is a number of the program."""
        names, apart = symbols(a) | symbols(b), a - b
        if varies(apart) or not all(map(self.spots.get, names)) or evaluate(apart, self.numbers):
            return
        x, y, number = lone_size(a), lone_size(b), a.const if b.const is None else b.const
        if x and y:
            raise NeedAlike((x.name, y.name))
        is_captured = number is not None and (x or y or number > SMALL)  # `n - 1` may be 1
        is_linear = all(len(atoms) < 2 for atoms, _ in apart.terms)  # not all elements of a tensor
        if names and is_captured and is_linear and not names & self.free:
            raise NeedConst(names)

    def truth(self, x: Abs) -> Abs | None:
        """bool(x) of a tensor of one element, in a loop that is lifted."""
        if self.loop is None or not isinstance(x.value, Val):
            return None
        if any(as_index(size).const != 1 for size in x.value.shape):
            return None
        element = self.b.load(x.value, [0] * x.value.ndim)
        if x.value.dtype is dtypes.boolean:
            return Abs(element)
        return Abs(self.b.apply("ne", element, self.b.const(0, x.value.dtype)))

    def check(self, held: Abs) -> None:
        """Add a check that the bool holds, see `assertions`."""
        assert isinstance(held.value, Val)
        self.b.program.checks.append(held.value.name)

    def derive_int(self, origin: Origin) -> Abs:
        name = f"c{len(self.derived)}"
        found = self.derived[name] = Abs(size_symbol(name, None), origin)
        return found

    def derive_float(self, origin: Origin) -> Abs:
        name = f"c{len(self.derived)}"
        found = Abs(ex.scalar(name, dtypes.f64), origin, dynamic=True)
        found.dynamic = any(scalars.is_dynamic(x) for x in origin.operands)
        self.derived[name] = found
        return found

    # -- ops --

    def op(self, op: Op, env: dict[Value, Abs]) -> None:
        self.ops += 1
        if (selected := selections.evaluated(self, op, env)) is not None:
            env.update(zip(op.results, selected, strict=True))
            return
        if reason := ends_region(op):
            raise Stop(reason)
        if self.writes and any(may_be_written(self, v, env) for v in free_values([op])):
            raise Stop("reads statistics that an earlier norm has written")
        if self.b.sums and reads_sums(op, env, self.b.sums):
            raise Full("reads what the same region has added to at places that are data")
        operands = operands_of(op, env)
        if self._undo:
            self.refresh(operands)
        if op.name == "if":
            results = control.branched(self, op, operands[0], env)
        elif op.name == "loop":
            results = control.looped(self, op, operands, env)
        elif op.name == "assert":
            if self.is_asserting:
                self.check(operands[0])
            elif operands[0].value is not True:
                raise Stop("asserts what is known only at run time")
            results = []
        elif op.name == "use":
            if isinstance(operands[0].origin, Origin) and not tensors_in(operands[0]):
                self.used.append(operands[0])  # the shapes of a tensor have been checked
            results = []
        elif op.name == "mutate":
            results = [counted(self, op, operands) or inplace.mutate(self, op, operands)]
        elif op.name.startswith("torch."):
            results = torch_ops.evaluate(self, op, operands)
        elif is_call(op):
            held = asserted(self, op, operands[0])
            if held is None:
                raise Stop("asserts what is known only at run time")
            self.check(held)
            results = [constant(None) for _ in op.results]
        elif (
            op.results
            and op.results[0] in self.asserted
            and (made := asserted(self, op, operands[0]))
        ):
            self.is_asserting = True
            results = [made]
        elif (made := kernel_numbers.evaluated(self, op, operands)) is not None:
            results = [made]
        elif is_item(op):
            raise Stop(STOPPING[op.name])
        else:
            results = self.python(op, operands)
        env.update(zip(op.results, results, strict=True))
        if op.name in ("assert", "if"):
            self.is_asserting = False
        if self.b.op in OF_THEIR_OWN:
            self.b.op = ""  # what is made between ops hands its gradient on

    def python(self, op: Op, operands: list[Abs]) -> list[Abs]:
        match op.name:
            case "const":
                return [constant(op.attrs["value"])]
            case "undef":
                return [Abs(UNBOUND)]
            case "enum.const":
                members: Any = python_objects.find(str(op.attrs["enum"]))
                return [Abs(members[str(op.attrs["member"])])]
            case "cast":
                return [operands[0]]
            case "py.member_of" if operands[0].value is not OPAQUE:
                found = late_binding.type_of(operands[0]) or t.ANY
                if t.is_number(found) or found in (t.COMPLEX, t.NONE):
                    raise Unsupported("raises AttributeError")
                return [operands[0]]
            case "tuple.make":
                kind: Any = tuple
                if "cls" in op.attrs:
                    kind = python_objects.find(str(op.attrs["cls"]))
                return [Abs(Seq(kind, tuple(operands)))]
            case "list.make":
                return [Abs(Seq(list, tuple(operands)))]
            case "dict.make":
                return [mappings.make(operands)]
            case "tuple.get":
                return [elements(operands[0])[cast("int", op.attrs["index"])]]
            case "unpack":
                is_tensor = isinstance(operands[0].value, Val)
                elems = self._late(op, "Tensor.unbind", operands) if is_tensor else operands
                elems = elems if is_tensor and len(op.results) > 1 else elements(elems[0])
                if len(elems) != len(op.results):
                    raise Unsupported("raises ValueError")
                return list(elems)
            case "attr.get":
                return [self._attribute(op, operands[0], str(op.attrs["name"]))]
            case "call_torch":
                return self._late(op, str(op.attrs["target"]), operands)
            case "py.call_method":
                return self._late(op, f"Tensor.{op.attrs['name']}", operands)
            case "py.isinstance":
                found = late_binding.is_instance(operands[0], t.parse_type(str(op.attrs["type"])))
                if found is None:
                    raise Stop("reads a type that is known only at run time")
                return [Abs(found)]
            case "py.format":
                if any(tensors_in(x) for x in operands):
                    raise Stop("prints a tensor")
                template = Abs(str(op.attrs["template"]))
                return [Abs(OPAQUE, Origin(str.format, (template, *operands), "str.format"))]
            case _:
                definition = opdefs.find(op.name)
                if definition is None:
                    raise Stop("is run by Python")
                if definition.writes:
                    return [mappings.written(self, op, operands)]
                if op.name.startswith("dict.") and operands:
                    return [mappings.evaluate(op.name, operands)[0]]
                if any(isinstance(x.value, rows.Rows) for x in operands):
                    return [rows.read(self, op, operands)]
                if any(isinstance(x.value, Val) for x in operands):
                    source = late_binding.source_of(op.name)
                    if source:
                        return self._late(op, source, operands)
                return [scalars.evaluate(self, op, definition, operands)]

    def _widen_for_pairs(self, stored: int) -> None:
        """Raise _TooSmall if a region that ends here would store values of pairs."""
        if self.scale < MOST_SCALE and are_pairs(stored, self.given_bytes):
            raise _TooSmall

    # -- what inplace and lifting ask --

    def changes(self, since: int) -> Sequence[tuple[Abs, object]]:
        """Return the changed values and their old values, in order."""
        return self._undo[since:]

    def change(self, x: Abs, value: object) -> None:
        """Give a list, dict or tensor another value from here on."""
        kernel_numbers.check_write(self, x)
        self._undo.append((x, x.value))
        x.value = value

    def bound(self, op: Op, source: str, operands: Sequence[Abs]) -> Abs:
        """Return the result of the function of this name."""
        kwnames = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
        found = late_binding.bind_late(source, operands, kwnames)
        if found is None:
            raise Stop("changes a tensor in place")
        record, bound = found
        flag = next((k for k, p in enumerate(record.params) if p.name == "inplace"), None)
        if flag is not None and source == op.attrs["target"]:  # its name does not say so
            if bound[flag].value is not True:
                raise Stop("changes a tensor in place, or not")
            bound[flag] = constant(False)
        return torch_ops.lowered(self, op, record, "pointwise", (), [frozen(x) for x in bound])[0]

    def refresh(self, values: Iterable[Abs]) -> None:
        for x in values:
            for tensor in tensors_in(x):
                inplace.refresh(self, tensor)

    def _late(self, op: Op, source: str, operands: list[Abs]) -> list[Abs]:
        """Return the results of an op of PyTorch's whose operands' types are known only now."""
        kwnames = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
        found = late_binding.bind_late(source, operands, kwnames)
        if found is None:
            raise Stop("is known only at run time")
        record, bound = found
        return torch_ops.lowered(self, op, record, record.kind, (), [frozen(x) for x in bound])

    def _attribute(self, op: Op, x: Abs, name: str) -> Abs:
        if isinstance(x.value, Val):
            return self._late(op, f"Tensor.{name}", [x])[0]
        if isinstance(x.value, Seq) and name in field_names(x.value.kind):
            return x.value.elems[field_names(x.value.kind).index(name)]
        if is_constant(x) and hasattr(x.value, name):
            return constant(getattr(x.value, name))
        raise Unsupported(f"attribute {name}")

    def mark(self) -> tuple[int, ...]:
        program = self.b.program
        return (
            len(program.defs),
            len(program.checks),
            len(program.equalities),
            len(self._undo),
            len(program.delays),
            len(self.b.writes),
            len(self.used),
        )

    def reset(self, mark: tuple[int, ...]) -> None:
        """Undo the partial changes of an op that failed."""
        program = self.b.program
        for xs, before in reversed(self._undo[mark[3] :]):
            xs.value = before
        del self._undo[mark[3] :]
        for name in list(program.defs)[mark[0] :]:
            del program.defs[name]
        del program.checks[mark[1] :]
        del program.equalities[mark[2] :]
        for name in list(program.delays)[mark[4] :]:
            del program.delays[name]
        del self.b.writes[mark[5] :], self.writes[mark[5] :], self.used[mark[6] :]

    def inline(self, block: Block, env: dict[Value, Abs]) -> list[Abs]:
        for op in block.ops[:-1]:
            if self.activity.is_full:
                raise Full
            try:
                self.op(op, env)
            except Full:
                raise
            except Unsupported as why:
                raise Stop(f"{why} (in {op.name} at {op.loc})") from why
        return operands_of(block.terminator, env)
