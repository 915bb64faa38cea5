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
from lowtide.c_library.flow import BROKEN, Ended, Env, Flow
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
    Frame,
    Refused,
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
from lowtide.execute.region_state import NO_ALIASING
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, walk
from lowtide.ir.opdefs import Indexing
from lowtide.specialise.region_boundaries import static_reason
from lowtide.texpr.index import Index

_NUMBERS: Final = ("py.", "math.")
_FORWARDED: Final = ("cast", "py.bound", "py.member_of")


class Walker(Flow):
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
        self.made_at: dict[int, int] = {}  # the depth at which a list was made, by its id
        self.kept: list[object] = []
        self.plan = BlockPlan(
            function.block, function.name, function.params, NO_ALIASING, frozenset(), frozenset()
        )
        self.state_name: Callable[[Thing, str], str] = lambda _, name: name
        self.is_assigned: Callable[[Thing, str], bool] = lambda _, name: True
        self.used_outputs: Callable[[Sequence[host.Operand]], Mapping[int, str]] = _no_outputs

    def run(self, env: Env) -> object:
        """Print the function; return its result, MISSING if it always raises."""
        try:
            (found,) = self.block(self.plan, env)
        except Ended:
            return MISSING
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
        why = ""
        if region is not None:
            live = [env.get(v, MISSING) for v in region.ops.live_ins]
            if not any(x is BROKEN for x in live):
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
            env.update(arms[0].emit())
            return
        names = list(dict.fromkeys(v for v in _first(arms)))
        branches = [(a.condition, _in_order(a.emit, names)) for a in arms]
        zeros = [a.zeros for a in arms]
        found = self.branches(branches, self.returns["BAD_SIZE"], zeros)
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
                if given[0] is not True:
                    self.lines.append(f"if (!{c_truth(given[0])}) {failed}")
                return []
            case "use":
                return []
            case "mutate":
                return self.mutate(plan, pos, env, given)
            case "attr.get" if isinstance(given[0], Thing):
                return [self.attribute_of(given[0], str(op.attrs["name"]))]
            case "attr.set" if isinstance(given[0], Thing):
                self.set_attribute(given[0], str(op.attrs["name"]), given[1])
                return []
            case "py.format":
                return [str(op.attrs["template"])]
            case _:
                found = self.value(op, given)
                if found is None:
                    raise Refused(why or static_reason(op) or "is run by Python")
                return found

    def value(self, op: Op, given: list[Any]) -> list[object] | None:
        """Return the results of an op on numbers, containers or tensors; None if it is none."""
        if op.name in _FORWARDED:
            return [given[0]]
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
                made = list(given)
                self.kept.append(made)
                self.made_at[id(made)] = len(self.envs)
                return [made]
            case "tuple.get":
                return [given[0][cast("int", op.attrs["index"])]]
            case "unpack" if len(given[0]) == op.attrs["count"]:
                return list(given[0])
            case "py.len" if type(given[0]) in (tuple, list):
                return [len(given[0])]
            case "list.get" if type(given[1]) is int and -len(given[0]) <= given[1] < len(given[0]):
                return [given[0][given[1]]]
            case "list.append" if self.made_at.get(id(given[0])) == len(self.envs):
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

    def mutate(self, plan: BlockPlan, pos: int, env: Env, given: list[Any]) -> list[object]:
        """Print a write into a tensor: its new value is made, and copied into its memory."""
        op = plan.ops[pos]
        to = given[0]
        if not isinstance(to, Tensor):
            raise Refused("changes what is no tensor")
        if not to.writable:
            raise_unwritable(to)
        if _may_have_another_name(self.function.block, op.operands[0]):
            raise Refused(
                "changes a tensor that a branch or loop gave, and that may have another name;"
                " clone it"
            )
        others = (x for e in self.envs for v in e.values() for x in tensors_in(v))
        for x in others:
            if x.at != to.at and x.family is not None and x.family is to.family:
                raise Refused("changes a tensor of which the program holds a view; clone it")
        if tensor_ops.block_set(self.frame, self.lines, self.returns, op, given):
            return [to for _ in op.results]
        made = self.mini(plan, op, given)
        self.frame.touch(to, made)
        self.lines.append(f"memcpy({to.at}, {made.at}, {c_int(nbytes(to))});")
        return [to for _ in op.results]

    def mini(self, plan: BlockPlan, op: Op, given: list[Any]) -> Tensor:
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
        inner = plan.inner(Block([], ops))
        inner.is_repeated = False
        found = self.block(inner, dict(zip(args, given, strict=True)))[0]
        to = given[0]
        if not isinstance(found, Tensor) or found.shape != to.shape or found.dtype != to.dtype:
            raise Refused("changes a tensor in place")
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
