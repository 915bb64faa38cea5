"""Prints the blocks of a function as C: regions by kernels, other ops by statements.

In: a function, the values of its parameters (see `values`). Out: C statements; the results.

    y = x * 2 + n            region: { … kernel_k0(slots) … }
    if y.sum() > 0: ...      if (d_3 > 0) { … memcpy(p_9, …); } else { … }
    while moved: ...         for (int64_t n_4 = 0; n_4 < … && b_5; n_4++) { … }
    buffer[i] = y            in place, in the memory of the buffer

`execute/executor` runs the same blocks by the same plan. A tensor that branches or steps of a loop
make has memory of its own, into which each copies its value. A view that outlives a region is a
copy; so an op that writes in place is refused while there is another tensor of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from lowtide.c_library import tensor_ops
from lowtide.c_library.composed import numbered, spread
from lowtide.c_library.flow import BROKEN, Ended, Env
from lowtide.c_library.lists import Lists
from lowtide.c_library.numbers import Numbers
from lowtide.c_library.regions import (
    Call,
    KernelTexts,
    Surroundings,
    nbytes,
    prepared,
    raise_unwritable,
)
from lowtide.c_library.values import (
    MISSING,
    NARROW,
    Again,
    Frame,
    Maybe,
    Refused,
    Rows,
    Tensor,
    Thing,
    c_int,
    c_real,
    c_truth,
    is_bool,
    is_float,
    is_int,
    tensors_in,
)
from lowtide.codegen.c.c_names import c_index
from lowtide.codegen.host import region as host
from lowtide.errors import Loc
from lowtide.execute.block_plan import BlockPlan
from lowtide.execute.region import Region
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, free_values, walk
from lowtide.ir.opdefs import Indexing
from lowtide.specialise.region_boundaries import static_reason
from lowtide.texpr.index import Index

_NUMBERS: Final = ("py.", "math.")
_FORWARDED: Final = ("cast", "py.bound", "py.member_of", "torchscript.result")


class Walker(Lists):
    """See the module's text. `state`: by key, the module's tensors and numbers that the program
    changes. `plan`: of the function."""

    def __init__(
        self,
        function: Function,
        frame: Frame,
        kernels: KernelTexts,
        sizes: Mapping[str, int],
        free: frozenset[str],
        returns: Mapping[str, str],
        attribute: Callable[[Thing, str], object],
    ) -> None:
        super().__init__(frame, Surroundings(
            frame=frame, numbers=Numbers(frame, []), kernels=kernels, sizes=sizes, free=free,
            returns=returns,
        ))  # fmt: skip
        self.function = function
        self.attribute = attribute
        self.envs: list[Env] = []
        self.done: set[Op] = set()  # ops that are printed
        self.minis: set[Op] = set()  # writes that `mini` has rewritten
        self.made_at: dict[int, tuple[Op, int]] = {}  # by a list's id: what made it, at which level
        self.kept: list[object] = []
        self.plan = self.plan_of(function)
        self.state_name: Callable[[Thing, str], str] = lambda _, name: name
        self.is_assigned: Callable[[Thing, str], bool] = lambda _, name: True
        self.used_outputs: Callable[[Sequence[host.Operand]], Mapping[int, str]] = _no_outputs

    def run(self, env: Env) -> object:
        """Print the function; return its result, MISSING if it always raises."""
        try:
            (found,) = self.block(self.plan, env)
        except Ended:
            found = MISSING
        self.check_growths()
        return found

    # -- blocks --

    def block(self, plan: BlockPlan, env: Env) -> list[object]:
        """Print a block; return what it yields. Raises Ended."""
        self.envs.append(env)
        try:
            pos = 0
            while pos < plan.last:
                self.frame.tick += 1
                pos = self.step(plan, pos, env)
                alive = plan.live_at[pos].union(plan.block.terminator.operands)
                for v in [v for v in env if v not in alive]:
                    del env[v]
            found = [env[v] for v in plan.block.terminator.operands]
            self.frame.touch(found)
            return found
        finally:
            self.envs.pop()

    def step(self, plan: BlockPlan, pos: int, env: Env) -> int:
        """Print a region or an op; return the position of the next one."""
        region = None if self.begins_with_number(plan, pos, env) else plan.region(pos)
        region = None if region is None else self.that_can_run(region, env)
        why = ""
        if region is not None:
            live = [env.get(v, MISSING) for v in region.ops.live_ins]
            try:
                is_end = plan is self.plan
                outputs = self.used_outputs if is_end else _no_outputs
                call = prepared(self.around, region, live, outputs)
                if call.arms:
                    self.called(call, env)
                    self.done.update(plan.ops[pos : call.stop])
                    return call.stop
                why = call.reason
            except Refused as error:
                at = (op for op in plan.ops[pos : region.ops.end + 1] if op.loc == error.loc)
                self.refuse(next(at, plan.ops[pos]), str(error))
                for op in plan.ops[pos : region.ops.end + 1]:
                    env.update(dict.fromkeys(op.results, BROKEN))
                return min(region.ops.end, plan.last)
        self.alone(plan, pos, env, why)
        return pos + 1

    def that_can_run(self, region: Region, env: Env) -> Region | None:
        """Return the part of a region before the first op that is no part of any region; None if
        that is its first op. Such ops make or read a list that grows, read the result of a refused
        op, a variable that may be unassigned, or narrow ints."""
        ops = region.ops
        bad = {
            v
            for v in ops.live_ins
            if (x := env.get(v)) is BROKEN
            or isinstance(x, Maybe | Rows)
            or any(e.dtype in NARROW for e in tensors_in(x))
        }
        within = ops.until(ops.end + 1)
        first = next(
            (
                k
                for k, op in enumerate(within)
                if op in self.growths or not bad.isdisjoint(free_values([op]))
            ),
            None,
        )
        if first is None:
            return region
        if not first:
            return None
        live_ins = [v for v in ops.live_ins if v not in bad]
        part = replace(ops, end=ops.start + first, is_parted=True, live_ins=live_ins)
        return Region(ops=part, aliasing=region.aliasing, context=region.context)

    def begins_with_number(self, plan: BlockPlan, pos: int, env: Env) -> bool:
        """Return whether the next op, apart from constants, makes a number of numbers: outside of
        regions, an int may have 64 bits."""
        known: Env = {}
        for op in plan.ops[pos:]:
            if op.name != "const":
                given = [known.get(v, env.get(v, MISSING)) for v in op.operands]
                return op.name.startswith(_NUMBERS) and all(
                    is_int(x) or is_float(x) or is_bool(x) for x in given
                )
            known[op.result] = op.attrs["value"]
        return False

    def called(self, call: Call, env: Env) -> None:
        """Print a region that is compiled."""
        arms = call.arms
        if len(arms) == 1:
            if arms[0].condition:
                self.lines.append(f"if (!({arms[0].condition})) {self.returns['BAD_SIZE']}")
            self.frame.facts += arms[0].facts
            env.update(arms[0].emit())
            return
        names = list(dict.fromkeys(v for v in _first(arms)))
        branches = [(a.condition, _in_order(a.emit, names)) for a in arms]
        facts = [a.facts for a in arms]
        found = self.branches(branches, self.returns["BAD_SIZE"], facts)
        env.update(zip(names, found, strict=True))

    def refuse(self, op: Op, why: str) -> None:
        """Note that the op cannot be exported."""
        what = f"`{op.attrs.get('target', op.name)}` {why}"
        self.frame.reasons[op.loc, what] = None

    def alone(self, plan: BlockPlan, pos: int, env: Env, why: str) -> None:
        """Print one op outside of any region."""
        op = plan.ops[pos]
        if op.name == "undef":
            env[op.result] = MISSING
            return
        if any(env.get(v, MISSING) is BROKEN for v in op.operands):
            env.update(dict.fromkeys(op.results, BROKEN))
            return
        first = len(self.lines)
        try:
            results = self.op(plan, pos, env, why)
        except Refused as error:
            self.refuse(op, str(error))
            results = [BROKEN] * len(op.results)
        else:
            self.done.add(op)
        if not op.blocks and any("&fault" in line for line in self.lines[first:]):
            self.lines.append(f"if (fault) {self.raises(op.loc, 'a number out of range')}")
        env.update(zip(op.results, results, strict=True))

    def raises(self, loc: Loc, text: str) -> str:
        """Return the statement that ends the call with a message."""
        self.frame.messages.append(f"{text} ({loc})" if loc.line else text)
        return f"{{ *(int64_t *)(void *)workspace = {len(self.frame.messages)}; " \
               f"{self.returns['RAISED']} }}"  # fmt: skip

    # -- ops --

    def op(self, plan: BlockPlan, pos: int, env: Env, why: str) -> list[object]:
        """Print an op; return its results. Raises Refused and Ended."""
        op = plan.ops[pos]
        given = [env.get(v, MISSING) for v in op.operands]
        match op.name:
            case "const":
                return [op.attrs["value"]]
            case "if":
                return self.if_(plan, op, env)
            case "loop":
                return self.loop(plan, op, env)
            case "raise":
                kind = op.attrs.get("exception", "")
                text = given[0] if given and isinstance(given[0], str) else ""
                self.lines.append(self.raises(op.loc, f"{kind}: {text}".strip(": ")))
                raise Ended
            case "assert":
                text = given[1] if len(given) > 1 and isinstance(given[1], str) else ""
                failed = self.raises(op.loc, f"AssertionError: {text}".strip(": "))
                if given[0] is False and self.depth:
                    raise Refused(f"has no C here: {text}")
                if given[0] is not True:
                    self.lines.append(f"if (!{c_truth(given[0])}) {failed}")
                return []
            case "py.bound" if given[0] is MISSING or isinstance(given[0], Maybe):
                return [self.bound(op, given)]
            case "use":
                return []
            case "mutate":
                return self.mutate(plan, op, given, why)
            case "attr.get" if isinstance(given[0], Thing):
                return [self.attribute_of(given[0], str(op.attrs["name"]))]
            case "attr.set" if isinstance(given[0], Thing):
                self.set_attribute(given[0], str(op.attrs["name"]), given[1])
                return []
            case "py.format":
                return [str(op.attrs["template"])]
            case _:
                found: list[object] | None = self.widened(op, given)
                if found is None:
                    found = self.value(op, given)
                if found is None and (numbers := self.of_numbers(op, given)) is not None:
                    found = [numbers]
                if found is None:
                    found = self.composed(op, given)
                if found is None:
                    raise Refused(why or static_reason(op) or "is run by Python")
                return found

    def bound(self, op: Op, given: list[Any]) -> object:
        """Print the check that a variable is assigned; return its value."""
        names = [x for x in given[1:] if isinstance(x, str)]
        failed = self.raises(op.loc, f"UnboundLocalError: {' '.join(names)} is not assigned")
        if not isinstance(given[0], Maybe):
            self.lines.append(failed)
            raise Ended
        self.lines.append(f"if (!{given[0].flag}) {failed}")
        return given[0].value

    def value(self, op: Op, given: list[Any]) -> list[object] | None:
        """Return the results of an op on numbers, containers or tensors; None if it is none."""
        if op.name in _FORWARDED:
            return [given[0]]
        if given and isinstance(given[0], Rows):
            return self.of_rows(op, given)
        if op.name.startswith(("tuple.", "list.", "unpack")) or op.name == "py.len":
            found = self.container(op, given)
            if found is not None:
                return found
        made = tensor_ops.made(self.frame, self.numbers, op, given)
        if made is not None:
            return made
        if op.name == "torch.getitem":
            return self.at_places(op, given)
        if op.name.startswith(_NUMBERS):
            numbers = [self.numbers.item(x) if isinstance(x, Tensor) else x for x in given]
            if len(given) > 1 and any(isinstance(x, Tensor) for x in given):
                return None  # the result is a tensor
            return [self.numbers.op(op.name, numbers)]
        return None

    def at_places(self, op: Op, given: list[Any]) -> list[object] | None:
        """Return x[i] for a tensor i of one int; None if it is another op."""
        spec = list(cast("tuple[str, ...]", op.attrs["spec"]))
        values = list(given)
        at = 1
        for k, word in enumerate(spec):
            x = values[at] if Indexing.ARITY[word] else None
            if word == "tensor" and isinstance(x, Tensor) and not x.shape:
                if x.dtype.is_float or x.dtype.name == "bool":
                    return None
                spec[k], values[at] = "int", self.numbers.item(x)
            at += Indexing.ARITY[word]
        if spec == list(cast("tuple[str, ...]", op.attrs["spec"])):
            return None
        attrs = {**op.attrs, "spec": tuple(spec)}
        args = [Value(v.name, v.type if isinstance(x, Tensor) else t.INT)
                for v, x in zip(op.operands, values, strict=True)]  # fmt: skip
        result = Value(op.result.name, op.result.type)
        ops = [
            Op(name=op.name, operands=args, attrs=attrs, results=[result], loc=op.loc),
            Op(name="yield", operands=[result], loc=op.loc),
        ]
        inner = self.plan.inner(Block([], ops))
        inner.is_repeated = False
        return self.block(inner, dict(zip(args, values, strict=True)))

    def container(self, op: Op, given: list[Any]) -> list[object] | None:
        """Return the results of an op on a list or a tuple whose length is known."""
        match op.name:
            case "tuple.make":
                return [tuple(given)]
            case "list.make":
                rows = self.grown_list(op, given)
                if rows is not None:
                    return [rows]
                made = list(given)
                self.kept.append(made)
                self.made_at[id(made)] = op, len(self.trips)
                return [made]
            case "tuple.get":
                return [given[0][cast("int", op.attrs["index"])]]
            case "unpack" if len(given[0]) == op.attrs.get("count", len(op.results)):
                return list(given[0])
            case "py.len" if type(given[0]) in (tuple, list):
                return [len(given[0])]
            case "list.get" if type(given[1]) is int and -len(given[0]) <= given[1] < len(given[0]):
                return [given[0][given[1]]]
            case "list.append" if self.trips and id(given[0]) not in self.made_at:
                made_by = next((o for o in self.function.walk() if op.operands[0] in o.results), op)
                if made_by.name != "list.make" or made_by in self.growths:
                    return None
                raise Again(growths={made_by: None})
            case "list.append" if id(given[0]) in self.made_at:
                made_by, level = self.made_at[id(given[0])]
                if level != len(self.trips):
                    self.grows(made_by, level, given[0], given[1])
                given[0].append(given[1])
                return [None for _ in op.results]
            case _:
                return None

    # -- state --

    def attribute_of(self, thing: Thing, name: str) -> object:
        """Return an attribute. The value of one that changes is copied: it is as it was now."""
        found = self.attribute(thing, name)
        if isinstance(found, Tensor):
            if not self.is_assigned(thing, name):
                return found
            return replace(self.copied(found), writable=False)
        if isinstance(found, Index):
            made = self.numbers.int_of(f"state->{self.state_name(thing, name)}")
            self.around.frame.examples[c_int(made)[3:-1]] = getattr(thing.value, name)
            return made
        if is_float(found) and not isinstance(found, float):
            return self.numbers.real_of(c_real(found))
        if is_bool(found) and not isinstance(found, bool):
            return self.numbers.truth_of(c_truth(found))
        return found

    def set_attribute(self, thing: Thing, name: str, value: object) -> None:
        """Print `thing.name = value`."""
        place = self.attribute(thing, name)
        if isinstance(place, Tensor):
            if not isinstance(value, Tensor) or (value.dtype, len(value.shape)) != (
                place.dtype, len(place.shape),
            ):  # fmt: skip
                raise Refused("changes the type of an attribute")
            for a, b in zip(place.shape, value.shape, strict=True):
                if a is not b and (a.const, b.const).count(None) == 0:
                    raise Refused("changes the size of an attribute; preallocate it")
                if a is not b:
                    self.lines.append(f"if ({c_index(b)} != {c_index(a)}) "
                                      f"{self.returns['BAD_SIZE']}")  # fmt: skip
            self.frame.touch(value)
            self.lines.append(f"memmove({place.at}, {value.at}, {c_int(nbytes(place))});")
            return
        at = f"state->{self.state_name(thing, name)}"
        if isinstance(place, Index) and is_int(value):
            self.lines.append(f"{at} = {c_int(value)};")
        elif is_float(place) and (is_float(value) or is_int(value)):
            self.lines.append(f"{at} = {c_real(value)};")
        elif is_bool(place) and is_bool(value):
            self.lines.append(f"{at} = {c_truth(value)};")
        else:
            raise Refused("changes the type of an attribute")

    # -- writes --

    def mutate(self, plan: BlockPlan, op: Op, given: list[Any], why: str) -> list[object]:
        """Print a write into a tensor: its new value is made, and copied into its memory."""
        to = given[0]
        if op in self.minis:
            raise Refused(why or static_reason(op) or "writes in place; use the form that returns")
        if not isinstance(to, Tensor):
            raise Refused("changes what is no tensor")
        if not to.writable:
            raise_unwritable(to)
        if _may_have_another_name(self.function.block, op.operands[0]):
            raise Refused(
                "changes a tensor that a branch or loop gave, and that may have another name;"
                " clone it"
            )
        if any(f is to.family for rows in self.rows for f in rows.families):
            raise Refused("changes a tensor that a list holds; clone it")
        others = (x for e in self.envs for v in e.values() for x in tensors_in(v))
        for x in others:
            if x.at != to.at and x.family is not None and x.family is to.family:
                raise Refused("changes a tensor of which the program holds a view; clone it")
        if tensor_ops.block_set(
            self.frame, self.lines, self.returns, op, given
        ) or tensor_ops.mask_set(self.frame, self.numbers, op, given):
            return [to for _ in op.results]
        written = self.composed(op, given)
        made = self.mini(plan, op, given) if written is None else written[0]
        if made is BROKEN and op.attrs.get("target") == "Tensor.__setitem__":
            self.set_places(plan, op, given)
            return [to for _ in op.results]
        if not isinstance(made, Tensor) or made.shape != to.shape or made.dtype != to.dtype:
            raise Refused(why or "changes a tensor in place")
        self.frame.touch(to, made)
        self.lines.append(f"memcpy({to.at}, {made.at}, {c_int(nbytes(to))});")
        return [to for _ in op.results]

    def set_places(self, plan: BlockPlan, op: Op, given: list[Any]) -> None:
        """Print `x[i, j] = value` element by element: x[i, j] of the numbers of the elements says
        which."""
        to, value = given[0], given[-1]
        numbers = Value("numbers", t.TENSOR)
        places = Value("places", t.TENSOR)
        args = [Value(v.name, v.type) for v in op.operands[1:-1]]
        ops = [
            Op(name="torch.getitem", operands=[numbers, *args], results=[places], loc=op.loc,
               attrs={"spec": op.attrs["spec"]}),
            Op(name="yield", operands=[places], loc=op.loc),
        ]  # fmt: skip
        inner = plan.inner(Block([], ops))
        inner.is_repeated = False
        env = dict(zip([numbers, *args], [self.inlined(numbered, [to]), *given[1:-1]], strict=True))
        (at,) = self.block(inner, env)
        values = self.inlined(spread, [value, at, to]) if isinstance(at, Tensor) else BROKEN
        if not isinstance(at, Tensor) or not isinstance(values, Tensor):
            raise Refused("changes a tensor in place")
        self.frame.touch(to, at, values)
        tensor_ops.put_elements(self.frame, self.lines, to, at, values)

    def mini(self, plan: BlockPlan, op: Op, given: list[Any]) -> object:
        """Print the new value of the tensor that an op changes."""
        args = [Value(v.name, v.type) for v in op.operands]
        first = next(k for k, v in enumerate(op.operands) if v is op.operands[0])
        none = Value("none", t.NONE)
        copy = Value("copy", t.TENSOR)
        results = [Value(r.name, r.type) for r in op.results]
        ops = [
            Op(name="const", attrs={"value": None}, results=[none], loc=op.loc),
            Op(name="torch.clone", operands=[args[first], none], results=[copy], loc=op.loc),
            Op(name="mutate", operands=[copy, *args[1:]], attrs=dict(op.attrs), results=results,
               loc=op.loc),
            Op(name="yield", operands=[copy], loc=op.loc),
        ]  # fmt: skip
        self.minis.add(ops[2])
        inner = plan.inner(Block([], ops))
        inner.is_repeated = False
        reasons, first = dict(self.frame.reasons), len(self.lines)
        found = self.block(inner, dict(zip(args, given, strict=True)))[0]
        if len(self.frame.reasons) > len(reasons):
            self.frame.reasons = reasons
            del self.lines[first:]
            return BROKEN
        return found


def _first(arms: Sequence[Any]) -> list[Value]:
    return list(arms[0].results)


def _in_order(
    emit: Callable[[], dict[Value, object]], names: Sequence[Value]
) -> Callable[[], list[object]]:
    def run() -> list[object]:
        found = emit()
        return [found[v] for v in names]

    return run


def _no_outputs(_: Sequence[host.Operand]) -> Mapping[int, str]:
    return {}


def _may_have_another_name(block: Block, value: Value) -> bool:
    """Return whether a tensor that branches or loops give may be read by another name. Each of them
    gives a copy, so that a write into it would not be seen there."""
    given: dict[Value, list[Value]] = {}  # to each variable of an `if` or `loop`
    readers: dict[Value, list[Op]] = {}
    variables: dict[Value, set[Value]] = {}  # that get the value
    for op in walk(block):
        for v in op.operands:
            readers.setdefault(v, []).append(op)
        ends = [b.terminator.operands for b in op.blocks]
        if op.name == "if":
            for result, *found in zip(op.results, *ends, strict=True):
                given.setdefault(result, []).extend(found)
                for v in found:
                    variables.setdefault(v, set()).add(result)
        elif op.name == "loop":
            (inner,) = op.blocks
            rows = zip(op.results, inner.args[1:], op.operands[2:], ends[0][1:], strict=True)
            for result, arg, first, last in rows:
                given.setdefault(result, []).extend((arg, first, last))
                given.setdefault(arg, []).extend((first, last))
                for v in (first, last):
                    variables.setdefault(v, set()).add(arg)
    todo, seen = [value], {value}
    while todo:
        for v in given.get(todo.pop(), ()):
            if v not in seen:
                seen.add(v)
                todo.append(v)
    for v in seen if value in given else ():
        got = variables.get(v, set())
        reads = (u for u in readers.get(v, ()) if u.name not in ("loop", "yield"))
        if (len(got) > 1 and not got <= seen) or (v not in given and any(reads)):
            return True
    return False
