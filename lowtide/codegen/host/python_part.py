"""Compiles ops that touch no tensors to one Python function.

In:  consecutive ops of a block, loops and branches included, on numbers, strings and containers of
     these. Out: a `PythonPart`: the function and its text.

    %s.1: int = loop(%n, %true, %s)               def part(n):
      block(%i: int, %s.2: int):                      s = 1
        %1: int = py.rshift(%s.2, %one)       →       for i in range(n):
        %s.3: int = py.xor(%1, %i)                        s = (s >> 1) ^ i
        yield(%true, %s.3)                            return (s,)

A value that is used once, on its own source line, is inlined into its use. A value that a loop
carries keeps one variable unless the old value is still read after the new one is computed.

Invariant: the function does what `ir.interpret` does, in the same order, and an exception has the
source line of its op.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from lowtide.codegen.host.control_flow import Writer
from lowtide.codegen.host.expressions import CALLED_BACK, NAME
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value, free_values, walk
from lowtide.ir.interpret import Env, located

_FILE: Final = "<lowtide python part>"
_MOST_LOOPS, _MOST_BLOCKS = 18, 40  # nested: CPython compiles at most 20, and 100 indentations

# The kinds of an index of plain values: "tensor" is that of an index of no known type.
_ITEMS: Final = ("int", "bool", "tensor", "slice")
_OTHERS: Final = {
    *("const", "undef", "cast", "use", "unpack", "tuple.make", "tuple.get", "list.make"),
    *("dict.make", "set.make", "py.format", *CALLED_BACK),
}  # fmt: skip


class PythonPart:
    """Ops that run as one Python function. `inputs`: values that it reads from the environment.
    `results`: values that it writes there."""

    def __init__(
        self, ops: Sequence[Op], results: Sequence[Value], constants: Mapping[Value, object]
    ) -> None:
        self.results = tuple(results)
        self.inputs = tuple(v for v in free_values(ops) if v not in constants)
        writer = Writer(ops, self.results, constants)
        self.text = writer.function(self.inputs)
        self._ops = writer.lines_of
        scope = writer.scope
        exec(compile(self.text, _FILE, "exec"), scope)
        self._run = cast("Callable[..., tuple[Any, ...]]", scope[NAME])

    def run(self, env: Env) -> None:
        """Read the inputs from `env`, write the results into it."""
        try:
            found = self._run(*[env[v] for v in self.inputs])
        except Exception as error:
            self._locate(error)
            raise
        env.update(zip(self.results, found, strict=True))

    def caller(
        self, params: Sequence[Value], result: Value
    ) -> Callable[[Sequence[Any]], Any] | None:
        """Return a function from the values of `params` to the result. None if the result is not
        computed here and none of `params`, or if the ops read other values."""
        if result not in (*self.results, *params) or not set(self.inputs) <= set(params):
            return None
        places, first = [params.index(v) for v in self.inputs], len(self.results)
        at = (*self.results, *params).index(result)

        def call(values: Sequence[Any]) -> Any:
            try:
                found = self._run(*[values[k] for k in places])
                return found[at] if at < first else values[at - first]
            except Exception as error:
                self._locate(error)
                raise

        return call

    def _locate(self, error: Exception) -> None:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                located(error, self._ops[trace.tb_lineno - 1])
            trace = trace.tb_next


def plain_values(block: Block) -> frozenset[Value]:
    """Return the values of a function's block and its nested blocks that hold no tensor: judged by
    type, or made by `tolist` or `item`."""
    sources: dict[Value, Sequence[Value]] = dict.fromkeys(block.args, (_TENSOR,))
    for op in walk(block):
        sources.update(_sources(op))
    plain = set(sources)
    while True:
        other = {
            v for v in plain if not _is_plain(v.type) and not all(x in plain for x in sources[v])
        }
        if not other:
            return frozenset(plain)
        plain -= other


_TENSOR: Final = Value("tensor", t.TENSOR)  # stands for any tensor


def _sources(op: Op) -> Iterator[tuple[Value, Sequence[Value]]]:
    """Yield each result of the op with the values that it is made of. A result holds no tensor if
    none of these does."""
    if op.name == "if":
        yields = [block.terminator.operands for block in op.blocks]
        yield from zip(op.results, zip(*yields, strict=True), strict=True)
    elif op.name == "loop":
        (block,) = op.blocks
        carried = zip(op.operands[2:], block.terminator.operands[1:], strict=True)
        yield block.args[0], ()
        for arg, result, sources in zip(block.args[1:], op.results, carried, strict=True):
            yield arg, sources
            yield result, sources
    else:
        follows = op.name in _OTHERS or _is_spelled(op)
        gives_numbers = op.attrs.get("target") in ("Tensor.tolist", "Tensor.item")
        for value in op.results:
            yield value, () if gives_numbers else op.operands if follows else (_TENSOR,)
        for block in op.blocks:
            yield from ((arg, (_TENSOR,)) for arg in block.args)


def is_printable(op: Op, plain: Collection[Value]) -> bool:
    """Return whether the op and its blocks can be part of such a function. `plain`: see
    `plain_values`."""
    loops, blocks = _nested(op)
    return loops <= _MOST_LOOPS and blocks <= _MOST_BLOCKS and _is_printable(op, plain)


def _is_printable(op: Op, plain: Collection[Value]) -> bool:
    if not all(v in plain for v in (*op.operands, *op.results)):
        return False
    if op.name == "loop" and op.operands[0].type not in (t.INT, t.BOOL):
        return False
    if op.name in ("if", "loop"):
        return all(
            all(v in plain for v in (*block.args, *block.terminator.operands))
            and all(_is_printable(inner, plain) for inner in block.ops[:-1])
            for block in op.blocks
        )
    return op.name in _OTHERS or _is_spelled(op)


def _is_spelled(op: Op) -> bool:
    if op.name in ("torch.getitem", "mutate"):
        spec = cast("Sequence[str]", op.attrs.get("spec", ()))
        plain = op.attrs.keys().isdisjoint(("rows", "unbound")) and not op.attrs.get("kwnames")
        is_augmented = str(op.attrs.get("target", "")).startswith("operator.i")  # `xs += ys`
        return plain and (is_augmented or (len(spec) == 1 and spec[0] in _ITEMS))
    family = op.name.partition(".")[0]
    return opdefs.find(op.name) is not None and family != "future"


def _nested(op: Op) -> tuple[int, int]:
    """Return the depth of nested loops, and of nested blocks."""
    inner = [_nested(x) for block in op.blocks for x in block.ops]
    loops, blocks = (max((each[k] for each in inner), default=0) for k in (0, 1))
    return loops + (op.name == "loop"), blocks + bool(op.blocks)


_SURE: Final = (t.INT, t.FLOAT, t.BOOL, t.STR, t.NONE, t.NUMBER, t.COMPLEX, t.NEVER)


def _is_plain(type_: t.Type) -> bool:
    containers = (t.ListType, t.TupleType, t.DictType, t.OptionalType, t.UnionType)
    return all(x in _SURE or isinstance(x, containers) for x in t.types_in(type_))
