"""A `torch.export.ExportedProgram` as a compiled module, for `lt.export_c`.

In: the program, or what `torch.export` captures of a module or function. Out: a `ScriptModule`,
example arguments, and the sizes that the program has fixed.

    linear = torch.ops.aten.linear.default(x, w, b)        linear = torch.linear(x, w, b)
    add = torch.ops.aten.add_.Tensor(t, linear, alpha=2) → add = torch.add_(t, linear, alpha=2)
    cond(pred, yes, no, [x])                               if bool(pred): …  else: …

The graph is written as the code of a TorchScript archive, whose operators are these, and compiled
as `lt.load` does. Sizes are limited to the program's ranges, since the graph may depend on them.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import operator
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import torch
from torch import fx
from torch.export import Dim, ExportedProgram

from lowtide.api.script_module import ScriptModule, wrap
from lowtide.deploy.torchscript import objects
from lowtide.deploy.torchscript.pickles import Instance
from lowtide.errors import UNKNOWN_LOC, ExportError, LoadError, Loc
from lowtide.frontend.torchscript import codes
from lowtide.frontend.torchscript.code import Code, outer_names
from lowtide.specialise.signature import LARGE, SMALL
from lowtide.torch_private.graph_capture import example_of, place_of, symbol_of
from lowtide.torch_private.pytree import tree_leaves, tree_map

_FILE, _CLASS = "__torch__.py", "__torch__.Program"
_LATEST: Final = 1 << 30  # the format's version: operators as they are today
_ON_NUMBERS: Final[dict[object, str]] = {
    operator.add: "torch.add", operator.sub: "torch.sub", operator.mul: "torch.mul",
    operator.floordiv: "torch.floordiv", operator.truediv: "torch.div",
    operator.mod: "torch.remainder", operator.neg: "torch.neg", operator.pow: "torch.pow",
    operator.eq: "torch.eq", operator.ne: "torch.ne", operator.lt: "torch.lt",
    operator.le: "torch.le", operator.gt: "torch.gt", operator.ge: "torch.ge",
    operator.and_: "torch.__and__", operator.or_: "torch.__or__", operator.not_: "torch.__not__",
    torch.sym_float: "float", torch.sym_int: "int", torch.sym_max: "ops.prim.max",
    torch.sym_min: "ops.prim.min", torch.sym_not: "torch.__not__",
}  # fmt: skip
_RENAMED: Final = {"sym_size": "size", "sym_numel": "numel", "lift_fresh_copy": "clone"}
_SAME: Final = ("alias", "detach_", "lift_fresh", "detach")  # give their operand
_CHECKS: Final = (
    "_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
    "sym_constrain_range_for_size", "_functional_assert_scalar",
)  # fmt: skip
_ARGUMENTS: Final = {"layer_norm": 5, "group_norm": 5, "batch_norm": 8}  # those after are of CUDA
_INLINED: Final = {
    "wrap_with_set_grad_enabled": 1,
    "wrap_with_autocast": 4,
}  # and the graph's place


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """`fixed`: dims and ints of the call, as the header names them, that are constants. `ranges`:
    the least and the largest size for which the program is made."""

    module: ScriptModule
    arguments: tuple[Any, ...]
    fixed: frozenset[str]
    ranges: Mapping[str, tuple[int, int]]


def captured(m: Any, args: tuple[Any, ...]) -> ExportedProgram:
    """Return what `torch.export` captures of a module or function; sizes above 32 and ints are
    symbols. Raises ExportError with PyTorch's reason."""
    module: Any = m
    if not isinstance(m, torch.nn.Module):
        module = torch.nn.Module()
        module.forward = m
    dims = tuple(tree_map(_dims, a) for a in args)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, dynamic_shapes=dims)
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        reason = f"torch.export cannot capture it: {text}; try lt.script() of it"
        raise ExportError([(_loc_of(m), reason)]) from error


def _dims(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return {d: Dim.AUTO for d, n in enumerate(x.shape) if n > SMALL}
    return Dim.AUTO if type(x) is int else None


def _loc_of(m: Any) -> Loc:
    function = inspect.unwrap(type(m).forward if isinstance(m, torch.nn.Module) else m)
    code = getattr(function, "__code__", None)
    if code is None:
        return UNKNOWN_LOC
    return _with_text(Loc(code.co_filename, code.co_firstlineno, function=code.co_name))


def _with_text(loc: Loc) -> Loc:
    return replace(loc, text=linecache.getline(loc.file, loc.line).rstrip("\n"))


def compiled(program: ExportedProgram, args: tuple[Any, ...] | None) -> Compiled:
    """See the module's text. `args`: example arguments, the program's own if None. Raises
    ExportError for what has no form in the archive's code."""
    given: Any = program.example_inputs if args is None else (args, {})
    leaves: list[Any] = tree_leaves(given)
    writer = _Writer(program)
    text = writer.text(leaves)
    code = Code(
        "the exported program", {_FILE: text}, [], _LATEST, writer.author,
        outer_names(objects.called),
    )  # fmt: skip
    state = {"training": False, **writer.tensors}
    try:
        root = objects.Objects(code).value(Instance(_CLASS, state, True))
    except LoadError as error:
        raise ExportError([(UNKNOWN_LOC, str(error))]) from error
    if code.missing:
        rows = [
            (UNKNOWN_LOC, f"`{name}` is an operator that Lowtide lacks") for name in code.missing
        ]
        raise ExportError(rows)
    kept = tuple(leaves[k] for k in writer.kept)
    return Compiled(
        module=wrap(root), arguments=kept, fixed=frozenset(writer.fixed), ranges=writer.ranges
    )


@dataclass
class _Writer:
    """Writes the graph. `kept`: the inputs that are arguments; others are constants."""

    program: ExportedProgram
    lines: list[str] = field(default_factory=list[str])
    names: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])
    tensors: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    places: list[tuple[int, Loc]] = field(default_factory=list[tuple[int, Loc]])
    reasons: list[tuple[Loc, str]] = field(default_factory=list[tuple[Loc, str]])
    kept: list[int] = field(default_factory=list[int])
    fixed: set[str] = field(default_factory=set[str])
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    size: int = 0
    count: int = 0

    def text(self, leaves: Sequence[Any]) -> str:
        """Return the code of a class with the graph as `forward`."""
        module = self.program.module()
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        arguments: list[str] = []
        for k, (node, value) in enumerate(zip(inputs, leaves, strict=True)):
            example = example_of(node)
            name = self.names[node] = f"{node.name}"
            kind = _type_of(example)
            if kind is None or (not node.users and kind != "Tensor"):
                self.names[node] = self.value(value, node)
                continue
            self.kept.append(k)
            arguments.append(f", {name}: {kind}")
        body_of = functools.partial(self.graph, module, "    ")
        self.add(f"class Program(Module):\n  __parameters__ = []\n  __buffers__ = {_MARK}\n")
        self.add(f"  def forward(self: {_CLASS}{''.join(arguments)}):\n")
        self.checks(inputs)
        results = body_of(module.graph)
        self.add(f"    return ({', '.join(results)},)\n")
        if self.reasons:
            raise ExportError(self.reasons)
        names = ", ".join(f'"{n}"' for n in self.tensors)
        text = "".join(self.lines).replace(_MARK, f"[{names}, ]" if names else "[]")
        self.places = [(at + len(text) - self.size, loc) for at, loc in self.places]
        return text

    def add(self, text: str, loc: Loc = UNKNOWN_LOC) -> None:
        self.places.append((self.size, loc))
        self.lines.append(text)
        self.size += len(text.encode())

    def author(self, _: str, offset: int) -> Loc | None:
        """Return the user's line for a place in the text."""
        k = bisect_right(self.places, offset, key=lambda row: row[0])
        found = self.places[k - 1][1] if k else UNKNOWN_LOC
        return found if found.line else None

    def checks(self, inputs: Sequence[fx.Node]) -> None:
        """Write the checks of sizes that must be equal; note ranges, and which are fixed."""
        ranges = cast("Mapping[Any, Any]", self.program.range_constraints)
        limits = {str(symbol): limit for symbol, limit in ranges.items()}
        known: dict[str, str] = {}
        for node in inputs:
            example = example_of(node)
            rows = [(node.name, node.name, example)]
            if isinstance(example, torch.Tensor):
                rows = [
                    (f"torch.size({node.name}, {d})", f"{node.name}.shape[{d}]", n)
                    for d, n in enumerate(cast("Sequence[Any]", example.shape))
                ]
            for text, shown, n in rows:
                symbol = symbol_of(n)
                self.fixed.update([shown] if type(n) is int else [])
                if symbol is None:
                    continue
                if symbol in known:
                    self.check(f"torch.ne({text}, {known[symbol]})", f"{text} != {known[symbol]}")
                    continue
                known[symbol] = text
                limit = limits.get(symbol)
                if limit is not None:
                    most = int(limit.upper) if limit.upper < LARGE else LARGE
                    self.ranges[shown] = int(max(limit.lower, 0)), most

    def check(self, test: str, words: str) -> None:
        self.add(f'    if {test}:\n      ops.prim.RaiseException("torch.export: {words}")\n'
                 "    else:\n      pass\n")  # fmt: skip

    # -- nodes --

    def graph(self, module: fx.GraphModule, indent: str, graph: fx.Graph) -> list[str]:
        """Write the nodes of a graph; return its results."""
        for node in graph.nodes:
            if node.op == "output":
                return [self.value(x, node) for x in tree_leaves(node.args[0]) if x is not None]
            if node.op != "placeholder":
                self.node(module, indent, node)
        raise AssertionError("a graph without an output")

    def fresh(self, node: fx.Node) -> str:
        self.count += 1
        self.names[node] = f"v_{node.name}_{self.count}"
        return self.names[node]

    def node(self, module: fx.GraphModule, indent: str, node: fx.Node) -> None:
        loc = _with_text(place_of(node))
        target: Any = node.target
        if node.op == "get_attr":
            found = functools.reduce(getattr, str(target).split("."), cast("Any", module))
            if isinstance(found, torch.Tensor):
                name = "p_" + str(target).replace(".", "_")
                self.tensors[name] = found
                self.add(f"{indent}{self.fresh(node)} = self.{name}\n", loc)
            return
        if node.op == "call_module":
            return  # guards
        path = str(target).split(".")
        is_aten = path[0] == "aten" and len(path) > 1
        name = path[1] if is_aten else str(getattr(target, "__name__", ""))
        if name in _CHECKS:
            return
        if name in _SAME:
            self.names[node] = self.value(node.args[0], node)
        elif target is operator.getitem:
            self.item(indent, node, loc)
        elif name in ("cond", "while_loop", *_INLINED):
            getattr(self, name if name not in _INLINED else "inlined")(module, indent, node)
        else:
            function = _ON_NUMBERS.get(target)
            if is_aten:
                function = f"torch.{_RENAMED.get(name, name)}"
            elif function is None and len(path) != 3:
                self.refuse(node, f"`{name or target}` has no C")
                return
            elif function is None:
                function = f"ops.{path[0]}.{path[1]}"
            parts = [self.value(a, node) for a in node.args[: _ARGUMENTS.get(name)]]
            parts += [f"{k}={self.value(a, node)}" for k, a in node.kwargs.items()]
            self.add(f"{indent}{self.fresh(node)} = {function}({', '.join(parts)})\n", loc)

    def item(self, indent: str, node: fx.Node, loc: Loc) -> None:
        owner, k = cast("tuple[fx.Node, int]", node.args)
        names = self.parts.get(owner)
        if names is not None:
            self.names[node] = names[k]
            return
        self.add(f"{indent}{self.fresh(node)} = ({self.names[owner]})[{k}]\n", loc)

    @functools.cached_property
    def parts(self) -> dict[fx.Node, list[str]]:
        """The names of the results of control flow."""
        return {}

    def refuse(self, node: fx.Node, why: str) -> None:
        self.reasons.append((_with_text(place_of(node)), why))
        self.names[node] = "None"

    # -- control flow --

    def called(
        self, module: fx.GraphModule, indent: str, node: Any, operands: Sequence[str]
    ) -> list[str]:
        """Write the graph that a node stands for, on these operands."""
        body = cast("fx.GraphModule", getattr(module, str(node.target)))
        inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
        self.names.update(zip(inputs, operands, strict=True))
        return self.graph(body, indent, body.graph)

    def cond(self, module: fx.GraphModule, indent: str, node: fx.Node) -> None:
        test, yes, no, operands = cast("tuple[Any, Any, Any, Sequence[Any]]", node.args[:4])
        given = [self.value(x, node) for x in operands]
        name = self.fresh(node)
        self.add(f"{indent}if bool({self.value(test, node)}):\n")
        for k, arm in enumerate((yes, no)):
            if k:
                self.add(f"{indent}else:\n")
            results = self.called(module, f"{indent}  ", arm, given)
            self.add(f"{indent}  pass\n" if not results else "")
            for i, result in enumerate(results):
                self.add(f"{indent}  {name}_{i} = {result}\n")
            self.parts[node] = [f"{name}_{i}" for i in range(len(results))]

    def while_loop(self, module: fx.GraphModule, indent: str, node: fx.Node) -> None:
        test, body, carried, *rest = cast("tuple[Any, Any, Sequence[Any], Any]", node.args)
        given = [self.value(x, node) for x in (rest[0] if rest else ())]
        name = self.fresh(node)
        names = self.parts[node] = [f"{name}_{i}" for i in range(len(carried))]
        for variable, x in zip(names, carried, strict=True):
            self.add(f"{indent}{variable} = {self.value(x, node)}\n")
        (going,) = self.called(module, indent, test, [*names, *given])
        self.add(f"{indent}{name}_goes = bool({going})\n{indent}while {name}_goes:\n")
        results = self.called(module, f"{indent}  ", body, [*names, *given])
        for i, result in enumerate(results):
            self.add(f"{indent}  {name}_next_{i} = {result}\n")
        for i, variable in enumerate(names):
            self.add(f"{indent}  {variable} = {name}_next_{i}\n")
        (going,) = self.called(module, f"{indent}  ", test, [*names, *given])
        self.add(f"{indent}  {name}_goes = bool({going})\n")

    def inlined(self, module: fx.GraphModule, indent: str, node: fx.Node) -> None:
        name = str(cast("Any", node.target).__name__)
        if name == "wrap_with_autocast" and node.args[2] is not False:
            self.refuse(node, "a block of autocast has no C; leave it out")
            return
        at = _INLINED[name]
        operands = [self.value(x, node) for x in node.args[at + 1 :]]
        self.parts[node] = self.called(module, indent, node.args[at], operands)

    # -- arguments --

    def value(self, x: Any, node: fx.Node) -> str:
        """Return an argument as code."""
        if isinstance(x, fx.Node):
            return self.names[x]
        if isinstance(x, list | tuple):
            elems = [self.value(e, node) for e in cast("Sequence[Any]", x)]
            listed = f"[{', '.join(elems)}]"
            is_optional = "None" in elems and len({*elems}) > 1
            return f"annotate(List[Optional[Tensor]], {listed})" if is_optional else listed
        if isinstance(x, float) and (x != x or abs(x) == float("inf")):
            return "nan" if x != x else "inf" if x > 0 else "torch.neg(inf)"
        if isinstance(x, torch.device):
            return f'torch.device("{x}")'
        code = codes.code_of(x)
        if code is not None:
            return str(code)
        if x is None or isinstance(x, bool | int | float | str):
            return repr(x)
        self.refuse(node, f"an argument of type {type(x).__name__} has no C")
        return "None"


_MARK: Final = "[the names of buffers]"


def _type_of(example: object) -> str | None:
    if isinstance(example, torch.Tensor):
        return "Tensor"
    kinds: dict[type, str] = {torch.SymInt: "int", torch.SymFloat: "float", float: "float"}
    return kinds.get(type(example))
