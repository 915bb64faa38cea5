"""Runs the driver on meta tensors: the steps and the memory of a call, without the call.

In: a `Driver` and arguments, of which only dtypes, sizes and strides are used. Out: the steps of
the call, in order, and a `Ledger` of its allocations.

    y = x.sort().values     TorchStep; the ledger sees PyTorch's ops on meta tensors
    z = y.exp() + 1         KernelStep; the ledger gets the events of the region's memory plan

If inputs require gradients, PyTorch's engine runs the backward pass on the meta device, and memory
plans replace the kernels. If data decide an `if`, both branches run; the body of a loop runs once.
A size that depends on data is assumed to be the largest possible, or the dry run ends. The notes of
the result name each assumption. An op that fails without an assumption before it would also fail in
the call: `fails`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import torch

from lowtide.budget.dry_run_objects import (
    OBJECT_OPS,
    PURE_OPS,
    SimulatedObjects,
    draws,
    is_pytorchs,
)
from lowtide.budget.dry_run_steps import KernelStep, Step, TorchStep
from lowtide.budget.simulated_kernels import backward, simulate
from lowtide.codegen.host.region import print_region
from lowtide.errors import UNKNOWN_LOC, LowtideError
from lowtide.execute import eager_threshold
from lowtide.execute.block_plan import BlockPlan, Env
from lowtide.execute.checkpoint import BY_PYTORCH
from lowtide.execute.driver import Driver
from lowtide.execute.executor import Executor, drop
from lowtide.ir import recomputed, structured
from lowtide.ir import types as t
from lowtide.ir.core import Function, Op, Value, free_values
from lowtide.ir.interpret import run_op
from lowtide.ir.structured import RunBlock
from lowtide.memory.casts import Casts
from lowtide.memory.largest import DEPENDS
from lowtide.memory.ledger import Ledger
from lowtide.memory.like_device import LikeCuda, LikeTheCpu
from lowtide.memory.stand_ins import like
from lowtide.runtime import ownership
from lowtide.specialise.region_boundaries import about_a_loop, static_reason
from lowtide.specialise.signature import CPU, Ineligible, dense_key, exact_key, meta_key
from lowtide.specialise.stand_ins import NUMBERS, UNKNOWN, stand_ins
from lowtide.texpr.printer import print_program
from lowtide.torch_private import torch_state
from lowtide.torch_private.autograd import SET_GRAD_PATH
from lowtide.torch_private.modes import NoFunctionModes, function_modes_on
from lowtide.torch_private.pytree import tensors_in

MAX_ROUNDS: Final = 64  # iterations of a loop whose number depends on data
MAX_TRIPS: Final = 1024  # iterations of other loops
SHOWN_CHUNKS: Final = 2  # of a section: the others are like the second
_UNSEEN: Final = (
    *("const", "undef", "cast", "use"),
    *("tuple.make", "tuple.get", "list.make", "unpack"),
)

_STATES: Final = (
    *(torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode),
    torch.autocast,
)
_META: Final = torch.device("meta")

_AUTOCASTS: Final = ("torch.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")
_ASKS: Final = "`{}` reads a number from the data; 1 or False is assumed"
_DATA_DECIDE: Final = "the size of the result of `{}` depends on the data"
_CALLS_PYTHON: Final = ("py.call", "py.call_method", "call_module")
_NOT_COUNTED: Final = "`{}` runs in Python; what it allocates is not counted"
_NOT_DENSE: Final = "a {} tensor: PyTorch runs the call uncompiled, and nothing is counted"
_STOPS: Final = "`{}` ends the program"
_IS_PYTHON: Final = "`{}` is Python code, which a prediction does not run"


class DryRunEnds(Exception):
    """Nothing is known from here on; the text says why."""


def ineligible(values: Sequence[Any]) -> str:
    """Return why a call with these arguments would run as plain Python, "" if it would not. Meta
    tensors count as dense ones."""
    for v in values:
        if isinstance(v, tuple | list):
            why = ineligible(v)  # pyright: ignore[reportUnknownArgumentType]
            if why:
                return why
            continue
        on_meta = isinstance(v, torch.Tensor) and v.is_meta
        try:
            exact_key((v,), [], tensor_key=meta_key if on_meta else dense_key)
        except Ineligible as why:
            return str(why)
    return ""


class DryRun(Executor):
    """See the module's text. The run happens in the constructor."""

    shown_chunks = SHOWN_CHUNKS

    def __init__(
        self, driver: Driver, args: Sequence[Any], computed: Container[int] = frozenset()
    ) -> None:
        """`computed`: operands, by `id`, that the call itself allocates."""
        self.function = driver.function
        self.differences: tuple[str, ...] = ()  # why the program was compiled again
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.fails = ""  # why the call would raise, and where
        self.ends = ""  # why nothing is known of what follows, and where
        self.has_guessed = False
        self.results: list[Any] | None = None  # meta tensors; None if the dry run ends before
        self.device = next((x.device for x in tensors_in(args) if not x.is_meta), CPU)
        on_host = self.device == CPU
        self.ledger = Ledger(of_host=on_host)
        self._computed = computed
        self._has_modes = function_modes_on()  # the caller's
        self._known: dict[int, torch.Tensor] = {}
        self._casts = Casts(self.device.type)
        self.records = torch.is_grad_enabled() and any(x.requires_grad for x in tensors_in(args))
        self._objects = SimulatedObjects(self.ledger.paused)
        self._sizes: list[tuple[str, int]] = []
        try:
            if kind := _sparse_kind(args):
                raise DryRunEnds(_NOT_DENSE.format(kind))
            env = dict(zip(driver.function.params, map(self._meta, args), strict=True))
            self._sizes += _named_sizes({v.name: env[v] for v in driver.function.arguments})
            device_mode = LikeTheCpu() if on_host else LikeCuda(self.device)
            rules = ownership.under(ownership.Rules(on_host=on_host, is_rehearsal=True))
            casts = self._casts.on() if _may_cast(driver.function) else contextlib.nullcontext()
            with casts, self.ledger, device_mode, rules, torch.set_grad_enabled(self.records):
                self.results = results = self.block(driver.plan, env)
                if self.records:
                    with self._casts.ended():
                        self.notes += backward(self.ledger, self._objects.tensors_in(results))
        except DryRunEnds as why:
            self.ends = str(why)
            self.notes.append(self.ends)
        self.notes += [*self.ledger.notes, *self.ledger.unbounded]

    def stages(self) -> list[tuple[str, str]]:
        """Return (name, text) of each stage of each region."""
        found = [("ir", str(self.function))]
        kernels = [s for s in self.steps if isinstance(s, KernelStep)]
        seen: set[int] = set()
        for step in kernels:
            host, executable = step.entry.spec.host, step.executable()
            if executable is None or host is None or id(host) in seen:
                continue
            seen.add(id(host))
            where = f"@{step.loc.line}" if len(kernels) > 1 else ""
            found.append((f"signature{where}", print_program(host.program)))
            found.append((f"region{where}", print_region(host.around)))
            found.append((f"around{where}", host.text))
            found.extend((f"{name}{where}", text) for name, text in executable.stages)
            backward = step.backward()
            if backward is not None and backward.executable is not None:
                stages = backward.executable.stages
                found.extend((f"backward {name}{where}", text) for name, text in stages)
        return found

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Return each size of the arguments, and the user's expression for it."""
        return iter(self._sizes)

    # -- execution --

    _reason = ""  # why the next op is in no region

    def region(self, plan: BlockPlan, pos: int, env: Env) -> int | list[Any]:
        """See the base class."""
        self._reason = ""
        region = plan.region(pos)
        if region is None:
            return pos
        first = plan.ops[pos]
        if first.blocks and any(env[v] is UNKNOWN for v in first.operands):
            return pos  # both branches are run
        values = [env[v] for v in region.ops.live_ins]
        for k, v in enumerate(region.ops.live_ins):
            if values[k] is UNKNOWN:
                if v.type not in NUMBERS and not self._is_passed_on(
                    v, plan.ops[pos : region.ops.end]
                ):
                    self._reason = "shown alone, since a number that only the data knows is near"
                    return pos
                values[k] = NUMBERS.get(v.type, 1)
                self._guess(f"{first.loc}: shown for a data-dependent {v.type} of {values[k]}")
        if self.ledger.elsewhere.holds(values):
            return self._eager(plan, pos, region.ops.end, env, "has tensors of the CPU and the GPU")
        try:
            exact_key(values, [], tensor_key=meta_key)
            entry = region.resolve(values, self.device)
        except Ineligible as why:
            return self._eager(plan, pos, region.ops.end, env, str(why))
        spec = entry.spec
        if entry.eager == eager_threshold.WHY:
            stop = self._eager(plan, pos, min(spec.stop, plan.last), env, entry.eager)
            self._reason = spec.reason
            return stop if spec.reason else ~stop
        if entry.eager:
            return self._eager(plan, pos, region.ops.end, env, entry.eager)
        self._reason = spec.reason
        if spec.host is None:
            return pos
        step = KernelStep(region=region, entry=entry, loc=first.loc)
        results = self._simulated(step, values, first)
        del values
        for v in spec.dead:
            env.pop(v, None)
        if not spec.host.is_empty:
            self.steps.append(step)
        if spec.finished:
            return results
        env.update(zip(spec.results, results, strict=True))
        return spec.stop if spec.reason else ~spec.stop

    def _is_passed_on(self, v: Value, ops: Sequence[Op]) -> bool:
        """Return whether an int is no size: it only goes into a tuple, or becomes a float."""
        readers = (op.name for op in ops if v in free_values([op]))
        return v.type == t.INT and {*readers} <= {"tuple.make", "py.float", "return"}

    def _simulated(self, step: KernelStep, values: list[Any], first: Op) -> list[Any]:
        """Return what the region's kernels would return."""
        entry, host, ledger = step.entry, step.entry.spec.host, self.ledger
        assert host is not None
        ledger.at(step.region.context.name.partition(":")[0], step.loc, "output")
        executable = step.executable()
        donatable = step.region.donatable(entry)
        if donatable is not None and (taken := executable.reusable_inputs(donatable.alone(values))):
            executable, step.taken = executable.taking(taken), taken
        names = step.names()

        def run_backward(exe: Any, xs: Any, sizes: Any, numbers: Any) -> Any:
            return simulate(ledger, exe, host.symbols, names)(xs, sizes, numbers)

        forward = simulate(ledger, executable, host.symbols, names)
        recorder = step.region.recording(entry.spec, forward, run_backward)
        found = list(host.bind(recorder)(values, entry.z, entry.sizes))
        if self.records:
            self.ledger.mark(tensors_in(found))
        return found

    def _eager(self, plan: BlockPlan, pos: int, stop: int, env: Env, why: str) -> int:
        self._reason = why
        while pos < stop:
            pos, self._reason = self.advance(plan, pos, stop, env), why
        self._reason = ""
        return pos

    def op(self, plan: BlockPlan, pos: int, env: Env) -> None:
        """See the base class."""
        super().op(plan, pos, env)
        drop(env, plan.live_at[pos + 1], tuple(env))

    def plain(self, plan: BlockPlan, pos: int, env: Env) -> None:
        """See the base class."""
        op = plan.ops[pos]
        results = self._torch_step(op, env, plan.live_at[pos + 1])
        env.update(zip(op.results, results, strict=True))

    def _torch_step(self, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        why = self._reason or static_reason(op) or "takes the part of this iteration"
        step = TorchStep(op=op, reason=why)
        self.ledger.at(step.label, op.loc)
        results = self._plain(op, env, alive)
        if self.records:
            self.ledger.mark(tensors_in(results))
        if not _is_unseen(op):
            self.steps.append(step)
        return results

    def _plain(self, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        if op.name == "raise" or (op.name == "assert" and env[op.operands[0]] is False):
            self._fail(op, _STOPS)
        if op.name in ("print", "assert", "raise", "use"):
            return []
        if op.name in OBJECT_OPS:
            found = self._objects.run(op, env)
            if found is not None:
                return [v if v is UNKNOWN else self._meta(v) for v in found]
        scratch = dict(env)
        if op.attrs.get("target") == SET_GRAD_PATH:
            if self.records:
                run_op(op, scratch)
            return [None]
        if _is_torch(op):
            given, is_whole = stand_ins(op, [env[v] for v in op.operands])
            scratch.update(zip(op.operands, given, strict=True))
            if is_whole:
                self._guess(f"{op.loc}: {DEPENDS.format(_name(op))}")
        runs = op.name not in OBJECT_OPS or op.name in PURE_OPS or is_pytorchs(op, scratch)
        why = _IS_PYTHON if op.name in _CALLS_PYTHON or draws(op, scratch) else _DATA_DECIDE
        if runs and not draws(op, scratch) and not _needs_the_run(op, scratch):
            for mode in (contextlib.nullcontext(), self.ledger.answering()):
                try:
                    self.ledger.has_read_data = False
                    with mode, self._with_user_modes_only(op):
                        run_op(op, scratch)
                    return [self._where(scratch[v]) for v in op.results]
                except LowtideError:
                    raise
                except Exception as error:
                    # Three causes: the op needs data, which PyTorch reports in many ways; PyTorch's
                    # Python reads attributes of an object that only the dry run has; or the
                    # operands do not fit.
                    why = _of_the_data(error)
                    is_sure = _gives_tensors(op) or all(_is_plain(env[v]) for v in op.operands)
                    if why != _DATA_DECIDE and is_sure and not self.ledger.has_read_data:
                        self._fail(op, why)
                    if not (self.ledger.has_read_data and _gives_tensors(op)):
                        break
                    self.has_guessed = True
                    self.notes.append(f"{op.loc}: {_ASKS.format(_name(op))}")
        known: list[Any] = []
        for result in op.results:
            if t.may_be_tensor(result.type) and result in alive:
                raise DryRunEnds(f"{op.loc}: {why.format(_name(op))}; nothing after it is counted")
            known.append(UNKNOWN)
        if op.name in _CALLS_PYTHON:
            self._guess(f"{op.loc}: {_NOT_COUNTED.format(_name(op))}")
        return known

    def _where(self, value: Any) -> Any:
        """Return the device that the real call would use, for a meta device."""
        return self.device if isinstance(value, torch.device) and value == _META else value

    def _with_user_modes_only(self, op: Op) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the op sees only the caller's function modes, not the dry
        run's."""
        gives_tensors = any(t.may_be_tensor(r.type) for r in op.results)
        is_observable = gives_tensors or self._has_modes
        return contextlib.nullcontext() if is_observable else NoFunctionModes()

    def branch(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """See the base class. If the data decide, the branch that holds more memory counts."""
        if env[op.operands[0]] is not UNKNOWN:
            return super().branch(plan, op, env, alive)
        self._guess(f"{op.loc}: the branch depends on the data; both are shown")
        one, other = self.enter(plan, env, alive, self.run, op.blocks)
        first, rank = self._try_branch(one)
        with self.ledger.aside(rank[0]):
            second, second_rank = self._try_branch(other)
        return first if rank >= second_rank else second

    def _try_branch(self, run: RunBlock) -> tuple[list[Any], tuple[int, int]]:
        """Run one of two branches; return its results, and (bytes left behind, steps)."""
        held, steps = self.ledger.live_bytes, len(self.steps)
        results = run([])
        return results, (self.ledger.live_bytes - held, len(self.steps) - steps)

    def section(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """See the base class."""
        self.ledger.at("chunks", op.loc)
        results = super().section(plan, op, env, alive)
        self.ledger.at("chunks", op.loc)
        self.ledger.mark(tensors_in(results))
        return results

    def saved_product(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """See the base class."""
        self.ledger.at("saved product", op.loc)
        results = super().saved_product(plan, op, env, alive)
        self.ledger.mark(tensors_in(results))
        return results

    def context(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """See the base class. The user's own managers are not entered."""
        manager = env[op.operands[0]]
        if isinstance(manager, recomputed.Recomputed):
            return self._checkpoint(plan, op, env, alive)
        if len(op.blocks) == 2:
            return self._user_context(plan, op, env, alive)
        if isinstance(manager, _STATES):
            return self._under(plan, op, env, alive)
        return self._torch_step(op, env, alive)

    def _checkpoint(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run the block of a checkpoint."""
        manager = env[op.operands[0]]
        if self.records and manager.records():
            section = plan.checkpoint_section(op, env)
            if section is not None:
                self.notes.append(f"{op.loc}: a checkpoint, recomputed in the backward pass")
                return self.section(plan, section, env, alive)
            self.notes.append(
                f"{op.loc}: a checkpoint that PyTorch recomputes; its values are counted as if they"
                f" were saved: {BY_PYTORCH}"
            )
        return self._under(plan, op, env, alive)

    def _under(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """Run a block under PyTorch's context manager."""
        results = super().context(plan, op, env, alive)
        self._casts.look()
        return results

    def _user_context(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        manager = env[op.operands[0]]
        run, leave = self.enter(plan, env, alive, self.run, op.blocks)
        results = run([manager])
        leave([None] * len(op.blocks[1].args))
        return results

    def loop(self, plan: BlockPlan, op: Op, env: Env, alive: set[Value]) -> list[Any]:
        """See the base class. Runs steps until nothing changes, or the data decide how to go on."""
        if self._reason:
            self.notes.append(f"{op.loc}: the loop {about_a_loop(self._reason)}")
        read = plan.inner(op.blocks[0]).live_at[0]
        lists: list[Any] = [x for v in read if isinstance(x := env.get(v), list)]  # may grow
        start = before = 0
        forms: list[Any] = []

        def goes_on(i: int, trips: Any, state: list[Any]) -> bool:
            nonlocal start, before, forms
            going = state[0]
            is_open = trips is UNKNOWN or going is UNKNOWN
            self.has_guessed |= is_open
            if going is False or (trips is not UNKNOWN and i >= trips):
                return False
            grown = self.ledger.live_bytes - before if i else 0
            now = _forms([*state[1:], *lists])
            is_same = not self.records and i > 1 and grown <= 0 and now == forms
            if is_same and trips is not UNKNOWN:
                self._unrolled(op, i, trips, grown, going is UNKNOWN)
                del self.steps[start:]
                return False
            if i == (MAX_ROUNDS if trips is UNKNOWN else MAX_TRIPS) or (i and is_open):
                self._unrolled(op, i, trips, grown, going is UNKNOWN)
                return False
            start, before, forms = len(self.steps), self.ledger.live_bytes, now
            return True

        enter = partial(self.enter, plan, env, alive, self.run_repeatable)
        return structured.loop(op, env, enter, goes_on)

    def _unrolled(self, op: Op, done: int, trips: Any, grown: int, ends: bool) -> None:
        """Account for the remaining steps, each of which leaves `grown` bytes behind like the last
        one that ran."""
        if trips is UNKNOWN or ends:
            text = f"{op.loc}: a loop is shown for {done} of its iterations"
            if grown > 0:
                text += f"; each further one may hold {grown:,} bytes more, which are not counted"
        else:
            text = f"{op.loc}: {trips} iterations, of which {max(done - 1, 1)} are shown"
            self.ledger.at("iterations", op.loc)
            self.ledger.hold(max(grown, 0) * (trips - done))
        self._guess(text)

    def _guess(self, note: str) -> None:
        """Note an assumption: from here on a real run may differ."""
        self.has_guessed = True
        self.notes.append(note)

    def _fail(self, op: Op, why: str) -> None:
        """End the dry run because the op raises. Without an earlier assumption, every real run
        raises there, too."""
        if not (self.has_guessed or self.ledger.notes):
            places, loc = [op.loc.shown()], op.loc.of_user()
            while loc.caller is not None:
                places.append(f"called at {loc.caller.shown()}")
                loc = loc.caller.of_user()
            self.fails = f"{', '.join(places)}: {why.format(_name(op))}"
            raise DryRunEnds(f"`{_name(op)}` fails; nothing after it is counted")

    def _meta(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found = self._known.get(id(value))
            if found is None:
                with self.ledger.paused():
                    found = like(value, value.requires_grad)
                    if value.is_leaf and value.grad is not None:
                        found.grad = like(value.grad)
                if id(value) in self._computed:
                    self.ledger.at("a value that is read", UNKNOWN_LOC)
                    self.ledger.book(found)
                else:
                    self.ledger.given([found])
                self._known[id(value)] = found
            self._casts.add(found, value)
            return found
        if isinstance(value, tuple | list):
            elems = [self._meta(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
            return elems if isinstance(value, list) else tuple(elems)
        if type(value) is dict:
            return {k: self._meta(v) for k, v in cast("dict[Any, Any]", value).items()}
        return value


def _needs_the_run(op: Op, env: Env) -> bool:
    """Return whether the op, or one in its blocks, depends on data or calls Python."""
    inner = [o for block in op.blocks for o in block.ops]
    is_unknown = any(env.get(v) is UNKNOWN for v in op.operands)
    return is_unknown or any(o.name == "py.call" or _needs_the_run(o, env) for o in inner)


def _named_sizes(given: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in given.items():
        for k, tensor in enumerate(tensors_in(value)):
            path = name if tensor is value else f"{name}[{k}]"
            yield from ((f"{path}.shape[{d}]", size) for d, size in enumerate(tensor.shape))


def _sparse_kind(values: Sequence[Any]) -> str:
    """Return PyTorch's name for the first tensor that is sparse, nested or quantized; "" if all are
    dense."""
    for x in tensors_in(values):
        if x.is_nested or x.is_quantized:
            return "nested" if x.is_nested else "quantized"
        if x.layout is not torch.strided:
            return str(x.layout).removeprefix("torch.")
    return ""


def _forms(values: Sequence[Any]) -> list[Any]:
    """Return the sizes, dtypes and layouts of values: two steps with equal ones need equal
    memory."""
    return [
        (v.shape, v.dtype)
        if isinstance(v, torch.Tensor)
        else _forms(cast("Sequence[Any]", v))
        if isinstance(v, list | tuple)
        else type(v)
        if isinstance(v, float)
        else v
        for v in values
    ]


def _is_torch(op: Op) -> bool:
    return op.name in ("call_torch", "mutate") or op.name.startswith("torch.")


def _is_unseen(op: Op) -> bool:
    is_structure = op.name in _UNSEEN or op.name.partition(".")[0] in ("py", "list", "math")
    return is_structure or op.attrs.get("target") == recomputed.TARGET


def _name(op: Op) -> str:
    named = op.attrs.get("target") or op.attrs.get("name") or op.name
    return str(named).removeprefix("torch.")


def _gives_tensors(op: Op) -> bool:
    return _is_torch(op) and all(t.may_be_tensor(r.type) for r in op.results)


def _is_plain(value: Any) -> bool:
    """Return whether the value is the same without data."""
    return value is None or isinstance(value, int | float | str)


def _of_the_data(error: Exception) -> str:
    """Return the note for an op that fails without data; with data it might not."""
    text = str(error).partition("\n")[0]
    if isinstance(error, NotImplementedError) or "meta" in text.lower() or not text:
        return _DATA_DECIDE
    shown = text.replace("{", "{{").replace("}", "}}")
    return f"`{{}}` fails ({type(error).__name__}: {shown})"


def _may_cast(function: Function) -> bool:
    """Return whether autocast is on, or is turned on in the program."""
    is_on = torch_state.autocast_on()
    return is_on or any(op.attrs.get("target") in _AUTOCASTS for op in function.walk())
