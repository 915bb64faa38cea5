"""The one IR of Lowtide: typed SSA with structured control flow.

In: built by the front ends, or parsed from text. Out: read by every pass.

    def f(%x: Tensor, %n: int = 3) -> Tensor:
      %0: int = const {value=1}                    # model.py:2
      %y: Tensor = torch.add(%x, %0, %0)           # model.py:2
      %r: Tensor = loop(%n, %true, %y)             # model.py:3
        block(%i: int, %t: Tensor):
          %u: Tensor = torch.relu(%t)              # model.py:4
          yield(%true, %u)
      return(%r)

Invariant (see `verify`): a value is made once, by an op's result or as an argument of a block;
it is used only where that op comes earlier in the same or an enclosing block; a function's block
ends in `return`, any other in `yield`. A value's name is a hint: identity is what counts, and the
printer makes names unique.

The ops (types and meaning of each: `opdefs`):
    const {value}                    None, bool, int, float, str, dtype, device, …, or a tuple
    tuple.make, tuple.get {index}, list.make, list.get, list.append, …, unpack {count}
    py.add, py.len, …, math.sqrt, …  operators and builtins on Python values
    if(cond), 2 blocks               each yields the results
    loop(trips, cond, carried…)      one block, arguments (i, carried…), yielding (cond, carried…);
                                     runs while i < trips and cond; results: the carried values
    with(manager)                    one block, argument: what the manager gives on entering
    with(entered)                    a second block, arguments (type, error, traceback), is what
                                     `__exit__` does; it yields whether the error is swallowed
    torch.NAME(operands…)            a record of `lowtide.ops`: all operands, in canonical order
    torch.getitem(x, items…) {spec}  see `opdefs.Indexing`; with {rows} it was an item of the tuple
                                     of x's rows
    call_torch(args…) {target, kwnames}         a PyTorch function without a record, as written
    mutate(args…) {target, kwnames[, spec]}     as call_torch; changes its first operand
    undef                            a value that is never looked at
    raise(message) {exception}, assert(cond, message), print(values…)
    use(value)                       what made it may raise, so it runs though nobody reads it
The loop op is TorchScript's `prim::Loop`; blocks with arguments follow MLIR.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir.literals import print_literal
from lowtide.ir.types import NONE, Type

Attr = object  # None, bool, int, float, str, a torch constant, or a tuple of these

TERMINATORS = ("return", "yield")
_LOC_COLUMN = 64


@dataclass(slots=True, eq=False)
class Value:
    """One SSA value; two values are the same only if they are the same object."""

    name: str
    type: Type

    def __repr__(self) -> str:
        return f"%{self.name or '_'}: {self.type}"


@dataclass(slots=True, eq=False, kw_only=True)
class Op:
    """One operation; `blocks` are nested ones (of `if` and `loop`)."""

    name: str
    operands: list[Value] = field(default_factory=list[Value])
    attrs: dict[str, Attr] = field(default_factory=dict[str, Attr])
    results: list[Value] = field(default_factory=list[Value])
    blocks: list[Block] = field(default_factory=list["Block"])
    loc: Loc = UNKNOWN_LOC

    @property
    def result(self) -> Value:
        """The only result; raises ValueError if there is not exactly one."""
        (only,) = self.results
        return only

    def __repr__(self) -> str:
        return f"<{', '.join(map(repr, self.results))} = {self.name}>"


@dataclass(slots=True, eq=False)
class Block:
    """A straight list of ops, the last of which is a terminator."""

    args: list[Value] = field(default_factory=list[Value])
    ops: list[Op] = field(default_factory=list[Op])

    @property
    def terminator(self) -> Op:
        """The last op: `return` or `yield`."""
        return self.ops[-1]


@dataclass(slots=True, eq=False)
class Function:
    """A whole program; its parameters are the arguments of `block`.

    `defaults[name]` is the value of a parameter that a caller leaves out. The last
    `len(captures)` parameters are not the caller's: `captures[i]` is the dotted path, from the
    module that the function is a method of, to what is handed in ("" is that module itself). A path
    "@name|path" begins at another object, the one of that name in `ir.python_objects`.

        def forward(%x: Tensor, %w: Tensor @ "layers.0.weight") -> Tensor:
    """

    name: str
    block: Block
    result: Type = NONE
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    loc: Loc = UNKNOWN_LOC
    captures: tuple[str, ...] = ()

    @property
    def params(self) -> list[Value]:
        """The parameters, in order, captured ones last."""
        return self.block.args

    @property
    def arguments(self) -> list[Value]:
        """The parameters that a caller gives."""
        return self.block.args[: len(self.block.args) - len(self.captures)]

    def walk(self) -> Iterator[Op]:
        """Return every op of the body. An op comes before those in its blocks."""
        return walk(self.block)

    def __eq__(self, other: object) -> bool:
        """Return whether both print the same text, without source lines."""
        if not isinstance(other, Function):
            return NotImplemented
        return print_function(self, locs=False) == print_function(other, locs=False)

    __hash__ = object.__hash__

    def __str__(self) -> str:
        return print_function(self)


def walk(block: Block) -> Iterator[Op]:
    """Yield every op of a block. An op comes before those in its blocks."""
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from walk(inner)


def clone_block(block: Block, mapping: dict[Value, Value]) -> Block:
    """Return a copy with fresh values. `mapping`: replacements for outer values; gets the new
    ones."""
    args = [_fresh(a, mapping) for a in block.args]
    return Block(args, [clone_op(op, mapping) for op in block.ops])


def clone_op(op: Op, mapping: dict[Value, Value]) -> Op:
    """Return a copy of one op with fresh results; see `clone_block`."""
    operands = [mapping.get(v, v) for v in op.operands]
    blocks = [clone_block(b, mapping) for b in op.blocks]
    results = [_fresh(r, mapping) for r in op.results]
    return Op(
        name=op.name,
        operands=operands,
        attrs=dict(op.attrs),
        results=results,
        blocks=blocks,
        loc=op.loc,
    )


def clone(fn: Function) -> Function:
    """Return a copy that shares nothing changeable with `fn`."""
    return with_block(fn, clone_block(fn.block, {}))


def with_block(fn: Function, block: Block) -> Function:
    """Return the same function around another body."""
    return Function(fn.name, block, fn.result, dict(fn.defaults), fn.loc, fn.captures)


def free_values(ops: Sequence[Op]) -> list[Value]:
    """Return values that `ops` and their nested blocks use and do not make, in order of first
    use."""
    made: set[Value] = set()
    free: dict[Value, None] = {}
    _collect_free(ops, made, free)
    return list(free)


def _collect_free(ops: Sequence[Op], made: set[Value], free: dict[Value, None]) -> None:
    for op in ops:
        free.update((v, None) for v in op.operands if v not in made)
        for block in op.blocks:
            made.update(block.args)
            _collect_free(block.ops, made, free)
        made.update(op.results)


def _fresh(value: Value, mapping: dict[Value, Value]) -> Value:
    mapping[value] = Value(value.name, value.type)
    return mapping[value]


# ---- text: `parser` reads it back to the same function ------------------------------------------


def print_function(
    fn: Function,
    *,
    locs: bool = True,
    full_paths: bool = False,
    marks: Mapping[Op, str] | None = None,
) -> str:
    """Return the text of a function.

    `locs`: each op's place in the source; `full_paths`: with its directory, so that a saved program
    still points at the user's file; `marks`: words to put under an op.
    """
    return _Printer(locs, full_paths, marks or {}).function(fn)


class _Printer:
    def __init__(self, locs: bool, full_paths: bool, marks: Mapping[Op, str]) -> None:
        self.locs = locs
        self.full_paths = full_paths
        self.marks = marks
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.unnamed = 0

    def function(self, fn: Function) -> str:
        params: list[str] = []
        for value in fn.arguments:
            text = self.typed(value)
            if value.name in fn.defaults:
                text += f" = {print_literal(fn.defaults[value.name])}"
            params.append(text)
        for value, path in zip(fn.params[len(params) :], fn.captures, strict=True):
            params.append(f"{self.typed(value)} @ {print_literal(path)}")
        head = f"def {fn.name}({', '.join(params)}) -> {fn.result}:"
        lines = [self.with_loc(head, fn.loc), *self.ops(fn.block, 1)]
        return "\n".join(lines) + "\n"

    def ops(self, block: Block, depth: int) -> list[str]:
        return [line for op in block.ops for line in self.op(op, depth)]

    def op(self, op: Op, depth: int) -> list[str]:
        operands = f"({', '.join(self.name(v) for v in op.operands)})"
        if op.attrs and not op.operands:
            operands = ""
        results = self.typed_list(op.results)
        text = "  " * depth + (f"{results} = " if results else "") + f"{op.name}{operands}"
        if op.attrs:
            text += f" {{{', '.join(f'{k}={print_literal(v)}' for k, v in op.attrs.items())}}}"
        lines = [self.with_loc(text, op.loc)]
        if op in self.marks:
            indent = "  " * depth
            lines.append(f"{indent}{'^' * len(text.strip())} {self.marks[op]}")
        for block in op.blocks:
            lines.append("  " * (depth + 1) + f"block({self.typed_list(block.args)}):")
            lines.extend(self.ops(block, depth + 2))
        return lines

    def with_loc(self, text: str, loc: Loc) -> str:
        if not self.locs or not loc.line:
            return text
        file = loc.file if self.full_paths else os.path.basename(loc.file)
        return f"{text.ljust(_LOC_COLUMN)} # {file}:{loc.line}"

    def typed_list(self, values: Iterable[Value]) -> str:
        return ", ".join(self.typed(v) for v in values)

    def typed(self, value: Value) -> str:
        return f"{self.name(value)}: {value.type}"

    def name(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = self.fresh(value.name)
        return f"%{self.names[value]}"

    def fresh(self, hint: str) -> str:
        if not hint:
            self.unnamed += 1
            return str(self.unnamed - 1)
        hint = re.sub(r"[^\w.]", "_", hint)  # a submodule may be called "a-b"
        name, count = f"_{hint}" if hint.isdigit() else hint, 0
        hint = name  # digits alone are the names of unnamed values
        while name in self.taken:
            count += 1
            name = f"{hint}.{count}"
        self.taken.add(name)
        return name
