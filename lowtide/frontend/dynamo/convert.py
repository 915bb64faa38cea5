"""A captured graph as a Function.

In: the `fx.GraphModule` of `torch.compile`. Out: a `GraphProgram`.

    s77, x, w = placeholders            def f(%x: Tensor, %w: Tensor) -> (Tensor,):
    mul = s77 * 2                         %0: List[int] = torch.shape(%x)
    y = x.view(mul, -1)            →      …
    z = torch.relu(y @ w)                 %z: Tensor = torch.relu(%5)
    return (z,)                           return(%7)

Invariant: a size that some tensor argument has is read from that tensor, so that the signature
of a region has one symbol for it. Arguments that no op uses are left out. Objects that IR has no
constant for (submodules, tensors of the graph, generators) are captured parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from lowtide.compiler import simplified
from lowtide.errors import UNKNOWN_LOC
from lowtide.frontend.dynamo.calls import Call, Result, call_function, call_method
from lowtide.frontend.dynamo.refusals import refusal
from lowtide.frontend.trace.encode import NotEncodable, encode
from lowtide.ir import recomputed
from lowtide.ir import types as t
from lowtide.ir.builder import Builder
from lowtide.ir.core import Block, Function, Value
from lowtide.ir.differentiated import GOES_ON
from lowtide.ir.literals import is_literal
from lowtide.ir.types import DictType, ListType, TupleType, Type
from lowtide.ir.verify import verify
from lowtide.ops.binding import bind, emit, records_of
from lowtide.torch_private.autograd import set_grad_enabled
from lowtide.torch_private.graph_capture import (
    ENTER_AUTOCAST,
    EXIT_AUTOCAST,
    breaks,
    example_of,
    is_checkpoint,
    place_of,
    symbol_of,
)


class NotConverted(Exception):
    """PyTorch must run the graph; the text says why."""


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """`arguments`: the graph's inputs that the function takes, in order. `captured`: the values of
    its captured parameters. `sets_grad`: the graph switches the recording of gradients."""

    function: Function
    arguments: tuple[int, ...]
    captured: tuple[Any, ...]
    sets_grad: bool


def convert(module: fx.GraphModule) -> GraphProgram:
    """Return the program of a captured graph. Raises NotConverted."""
    why = refusal(module.graph.nodes)
    if why:
        raise NotConverted(why)
    writer = _Writer(module)
    placeholders: list[Value] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            placeholders.append(writer.placeholder(node))
    writer.sizes()
    writer.nodes(iter(module.graph.nodes))
    function = writer.function(placeholders)
    used = {v for op in function.walk() for v in op.operands}
    count = len(placeholders)
    keep = [k for k, v in enumerate(function.params) if v in used]
    arguments = tuple(k for k in keep if k < count)
    captured = [k - count for k in keep if k >= count]
    function.block.args = [function.params[k] for k in keep]
    function.captures = tuple(function.captures[k] for k in captured)
    return GraphProgram(
        function, arguments, tuple(writer.objects[k] for k in captured), writer.sets_grad
    )


class _Writer:
    """Writes the Function. Satisfies the protocol `encode.Known`."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.builder = Builder(Block())
        self.objects: list[Any] = []
        self.paths: list[str] = []
        self.sets_grad = False
        self._records = torch.is_grad_enabled()  # where the next node is; a guard of the capture
        self.result: Value | None = None
        self.name = ""
        self._captured: list[Value] = []
        self._values: dict[fx.Node, Value] = {}
        self._seen: set[fx.Node] = set()  # whose ops are there
        self._symbols: dict[str, tuple[Value, int]] = {}

    # -- what encoding asks --

    def tensor(self, tensor: torch.Tensor) -> Value:
        """Return the value of a tensor that is stored in the graph."""
        return self.capture(tensor, f"constant{len(self.objects)}")

    data = tensor

    def number(self, number: Any) -> Value | None:
        """Return None: numbers of a graph are not traced."""
        return None

    def capture(self, found: Any, path: str) -> Value:
        """Return the captured parameter for an object, one for each object."""
        for known, value in zip(self.objects, self._captured, strict=True):
            if known is found:
                return value
        type_ = t.TENSOR if isinstance(found, torch.Tensor) else t.ANY
        value = Value(re.sub(r"\W+", "_", path), type_)
        self.objects.append(found)
        self.paths.append(path)
        self._captured.append(value)
        return value

    # -- nodes --

    def placeholder(self, node: fx.Node) -> Value:
        """Return the parameter for an input."""
        example = example_of(node)
        value = Value(_short(node.name), type_of_example(example))
        self._values[node] = value
        if isinstance(example, torch.Tensor):
            for dim, size in enumerate(cast("Sequence[Any]", example.shape)):
                symbol = symbol_of(size)
                if symbol is not None:
                    self._symbols.setdefault(symbol, (value, dim))
        return value

    def sizes(self) -> None:
        """From here on, inputs that are a tensor's size stand for that size."""
        for node in list(self._values):
            place = self._symbols.get(symbol_of(example_of(node)) or "")
            if place is not None and node.users:
                tensor, dim = place
                bound = bind(records_of("Tensor.size"), [tensor, self.builder.const(dim)], {})
                if bound is not None:
                    self._values[node] = emit(self.builder, bound)[0]

    def nodes(self, nodes: Iterator[fx.Node], opener: fx.Node | None = None) -> None:
        """Add the ops of nodes, up to the end of the block of autocast that `opener` began."""
        for node in nodes:
            end = _end_of_no_grad(node) if self._records else None
            if node.target is ENTER_AUTOCAST:
                self._block(node, nodes, "torch.autocast", node)
            elif end is not None:
                self._block(node, self._unrecorded(nodes, end), "torch.no_grad", None)
            elif node.target is not EXIT_AUTOCAST:
                self.node(node)
            elif node.args[0] is opener:
                return
            else:
                raise NotConverted("blocks of autocast that overlap")
        if opener is not None:
            raise NotConverted("a block of autocast that does not end in the graph")

    def _unrecorded(self, nodes: Iterator[fx.Node], end: fx.Node) -> Iterator[fx.Node]:
        """Give the nodes up to `end`, without those that switch gradients off once more."""
        self._records = False
        for node in nodes:
            if node is end:
                break
            if node.target is not set_grad_enabled:
                yield node
        self._records = True

    def _block(
        self, node: fx.Node, nodes: Iterator[fx.Node], manager: str, opener: fx.Node | None
    ) -> None:
        """Add a `with` block. Its results are the values that later nodes use."""
        build = self.builder
        build.loc = place_of(node)
        operands = [encode(self, x) for x in (() if opener is None else node.args)]
        made = build.emit("call_torch", operands, [t.ANY], target=manager, kwnames=())
        block, before = Block([Value("", t.ANY)]), dict(self._values)
        build.born(block.args)
        with build.inside(block):
            self.nodes(nodes, opener)
            here = [(n, v) for n, v in self._values.items() if n.graph is node.graph]
            new = [n for n, v in here if before.get(n) is not v]
            ends = [n for n in new if not self._seen.issuperset(n.users)]
            values = [self._values[n] for n in ends]
            build.emit("yield", values)
        found = build.emit("with", [made.result], [v.type for v in values], blocks=[block])
        self._values.update(zip(ends, found.results, strict=True))

    def node(self, node: fx.Node) -> None:
        """Add the ops of a node."""
        if node.op == "placeholder":
            return
        self._seen.add(node)
        loc = place_of(node)
        if loc.line:
            self.builder.loc = loc
            self.name = self.name or loc.function
        try:
            self._node(node)
        except NotEncodable as what:
            raise NotConverted(f"{what} in {node.format_node()}") from None

    def _node(self, node: fx.Node) -> None:
        match node.op:
            case "output":
                self.result = encode(self, self._resolved(node.args[0]))
            case "get_attr":
                found = _attribute(self.module, str(node.target))
                self._values[node] = self.capture(found, str(node.target))
            case "call_module":
                self._values[node] = self._call_module(node)
            case "call_function" if is_checkpoint(node) and not refusal(self._body(node).nodes):
                self._values[node] = self._checkpoint(node)
            case _:
                if node.target is set_grad_enabled:
                    self.sets_grad, self._records = True, bool(node.args[0])
                self._bind(node, self._call(node))

    def _call(self, node: fx.Node) -> Result:
        args = cast("tuple[Any, ...]", self._resolved(node.args))
        kwargs = cast("Mapping[str, Any]", {k: self._resolved(v) for k, v in node.kwargs.items()})
        call = Call(tuple(args), kwargs, type_of_example(example_of(node)))
        if node.op == "call_method":
            return call_method(self, str(node.target), call)
        return call_function(self, node.target, call)

    def _bind(self, node: fx.Node, result: Result) -> None:
        if isinstance(result, tuple):
            result = self.builder.tuple_make(result)
        elif not result.name and isinstance(result.type, t.NamedType):
            result.name = node.name
        self._values[node] = result

    def _body(self, node: fx.Node) -> fx.Graph:
        """Return the graph that a node calls."""
        (body, *_) = cast("tuple[fx.Node, ...]", node.args)
        return cast("fx.Graph", _attribute(self.module, str(body.target)).graph)

    def _checkpoint(self, node: fx.Node) -> Value:
        """Return a tuple of the called graph's results, computed in a block that the backward pass
        recomputes, as in `frontend/script/checkpoints`."""
        build, loc, outer = self.builder, self.builder.loc, self.module
        operands = [encode(self, self._resolved(a)) for a in node.args[1:]]
        early = [build.const(node.kwargs.get("use_reentrant") is False)]
        manager = build.emit(
            "call_torch", early, [t.ANY], target=recomputed.TARGET, kwnames=("early_stop",)
        ).result
        graph = self._body(node)
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        self._values.update(zip(inputs, operands, strict=True))
        block, ends = Block([Value("", t.ANY)]), list[Value]()
        build.born(block.args)
        self.module = cast("fx.GraphModule", graph.owning_module)
        with build.inside(block):
            self.nodes(n for n in graph.nodes if n.op != "output")
            (found,) = cast("tuple[Sequence[Any]]", graph.output_node().args)
            ends += [encode(self, self._resolved(a)) for a in found]
            build.emit("yield", ends)
        self.module, build.loc = outer, loc
        made = build.emit("with", [manager], [v.type for v in ends], blocks=[block])
        return build.tuple_make(made.results)

    def _call_module(self, node: fx.Node) -> Value:
        target = str(node.target)
        operands = [self.capture(self.module.get_submodule(target), target)]
        operands += [encode(self, self._resolved(a)) for a in (*node.args, *node.kwargs.values())]
        return self.builder.emit(
            "call_module",
            operands,
            [type_of_example(example_of(node))],
            method="__call__",
            kwnames=tuple(node.kwargs),
            why="the graph calls it as a whole",
        ).result

    def _resolved(self, x: Any) -> Any:
        """Return an argument with values in place of nodes, dicts, and objects without a constant
        in IR."""
        if isinstance(x, fx.Node):
            return self._values[x]
        if isinstance(x, slice):
            part = cast("Any", x)
            return slice(*map(self._resolved, (part.start, part.stop, part.step)))
        if isinstance(x, tuple):
            return tuple(self._resolved(e) for e in cast("tuple[Any, ...]", x))
        if isinstance(x, list):
            return [self._resolved(e) for e in cast("list[Any]", x)]
        if isinstance(x, dict):
            return self._dict(cast("dict[Any, Any]", x))
        plain = is_literal(x) or isinstance(x, torch.Tensor | int | float | type) or x is ...
        return x if plain else self.capture(x, f"constant{len(self.objects)}")

    def _dict(self, x: Mapping[Any, Any]) -> Value:
        flat = [encode(self, self._resolved(e)) for pair in x.items() for e in pair]
        keys, values = t.join_all([v.type for v in flat[::2]]), [v.type for v in flat[1::2]]
        type_ = DictType(keys, t.join_all(values))
        return self.builder.emit("dict.make", flat, [type_]).result

    def function(self, placeholders: Sequence[Value]) -> Function:
        """Return the whole program, verified and simplified."""
        if self.result is None:
            raise NotConverted("a graph without an output")
        end = self.builder.emit("return", [self.result])
        if _may_be_differentiated(self.module):
            end.attrs[GOES_ON] = True
        block = self.builder.block
        block.args = [*placeholders, *self._captured]
        name = self.name if self.name.isidentifier() else "graph"
        loc = next((op.loc for op in block.ops if op.loc.line), UNKNOWN_LOC)
        function = Function(name, block, self.result.type, {}, loc, tuple(self.paths))
        verify(function, after="capture")
        return simplified(function, unrolled=True)


def _may_be_differentiated(module: fx.GraphModule) -> bool:
    """Return whether the Python code after the graph may ask for the gradient of one result with
    respect to another."""
    (output,) = module.graph.find_nodes(op="output")
    examples = map(example_of, output.all_input_nodes)
    return breaks(module) and sum(getattr(x, "requires_grad", False) for x in examples) > 1


def _end_of_no_grad(node: fx.Node) -> fx.Node | None:
    """Return the node that switches gradients on again after this one has switched them off, None
    if there is no such block. A block of autocast lies within it or around it."""
    if node.target is not set_grad_enabled or node.args[0] is not False:
        return None
    depth = 0
    while (node := node.next).op != "root":
        depth += (node.target is ENTER_AUTOCAST) - (node.target is EXIT_AUTOCAST)
        if depth < 0:
            return None
        if node.target is set_grad_enabled and node.args[0] is not False:
            return node if depth == 0 and node.args[0] is True else None
    return None


def _short(name: str) -> str:
    """Return the argument's name without the marks of the capture: `x` for `l_x_`."""
    return name[2:].strip("_") or name if name.startswith("l_") else name


def _attribute(module: fx.GraphModule, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


_SYMBOLIC: dict[type, Type] = {
    torch.SymInt: t.INT,
    torch.SymFloat: t.FLOAT,
    torch.SymBool: t.BOOL,
    torch.Size: ListType(t.INT),
    type(None): t.ANY,  # what the capture says nothing about
}


def type_of_example(example: Any) -> Type:
    """Return the IR type of an example value."""
    if isinstance(example, torch.Tensor):
        return t.TENSOR
    known = _SYMBOLIC.get(example.__class__)
    if known is not None:
        return known
    if isinstance(example, tuple):
        elems = cast("tuple[Any, ...]", example)
        return TupleType(tuple(type_of_example(e) for e in elems))
    if isinstance(example, list):
        return ListType(t.join_all([type_of_example(e) for e in cast("list[Any]", example)]))
    return t.type_of(example) or t.ANY if is_literal(example) else t.ANY
