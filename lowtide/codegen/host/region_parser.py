"""Parses the text of a RegionProgram: the inverse of `region.print_region`.

In:  a text, by `print_region` or by a person. Out: a RegionProgram, verified. Raises ParseError,
     which shows the line.

    v0 = torch.select(a[0], 0, s1 - 1)    →    Call(name="v0", op="torch.select", …)

Operands are read as the syntax trees of Python expressions; nothing is evaluated or imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any, Final

from lowtide.codegen.host.region import (
    Call,
    Entries,
    Group,
    Kernels,
    Let,
    Literal,
    Live,
    Made,
    Number,
    Object,
    Operand,
    Output,
    Permute,
    RegionProgram,
    Size,
    Sized,
    Statement,
    Write,
    verify_region,
)
from lowtide.ir.literals import parse_literal
from lowtide.ir.parser import ParseError
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index import Size as SizeAtom
from lowtide.texpr.index_ranges import clamp, floordiv, mod

_KERNELS: Final = re.compile(
    r"kernels \((.*?)\)(?: numbers \((.*)\))? -> (\d+) outputs(?:, (\d+) checks)?(, may capture)?"
)
_TURN: Final = re.compile(r"(v\d+) = o\[(\d+)\] permuted \(([\d, ]*)\)")
_CALL: Final = re.compile(r"(\w+) = ([\w.]+)\((.*)\)")
_LET: Final = re.compile(r"(v\d+) = (.*)")
_SIGNS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


def parse_region(text: str) -> RegionProgram:
    """Return the program that this text prints. Raises ParseError."""
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = [line.strip() for line in text.splitlines() if line.strip()]
        self.sizes: dict[str, Index] = {}
        self.line = ""

    def program(self) -> RegionProgram:
        numbers: tuple[str, ...] = ()
        sizes: list[Statement] = []
        parts: tuple[list[Statement], list[Statement]] = ([], [])
        kernels: Kernels | None = None
        writes: list[Write] = []
        results: tuple[Operand, ...] | None = None
        has_kernels = any(line.startswith("kernels ") for line in self.lines)
        for line in self.lines:
            self.line = line
            word, _, rest = self.line.partition(" ")
            if word == "numbers":
                numbers = tuple(name.strip() for name in rest.split(","))
                self.sizes |= {n: as_index(SizeAtom(n)) for n in numbers}
            elif word == "size":
                call = self._call(rest)
                sizes.append(Size(name=call.name, op=call.op, operands=call.operands))
                self.sizes[call.name] = as_index(SizeAtom(call.name))
            elif word == "prepare":
                self.line = rest
                sizes.append(self._statement())
            elif word == "kernels":
                kernels = self._kernels()
            elif word == "write":
                to, value = self._listed(rest.replace(" = ", ", ", 1))
                writes.append(Write(to=to, value=value))
            elif word == "result":
                results = self._listed(rest)
            else:
                parts[1 if kernels is not None or not has_kernels else 0].append(self._statement())
        if results is None:
            raise self._fail("a last line `result …`")
        made = RegionProgram(
            numbers=numbers, sizes=tuple(sizes), before=tuple(parts[0]), kernels=kernels,
            after=tuple(parts[1]), writes=tuple(writes), results=results,
        )  # fmt: skip
        verify_region(made)
        return made

    def _fail(self, expected: str) -> ParseError:
        return ParseError(f"expected {expected}\n    {self.line}")

    def _statement(self) -> Statement:
        if (found := _TURN.fullmatch(self.line)) is not None:
            order = tuple(int(k) for k in found[3].split(",") if k.strip())
            return Permute(name=found[1], of=Output(number=int(found[2])), order=order)
        if (found := _LET.fullmatch(self.line)) is None:
            raise self._fail("`name = op(…)`")
        tree = self._tree(found[2])
        if isinstance(tree, ast.Call) and not _is_operand(tree):
            return self._call(self.line)
        return Let(name=found[1], value=self._operand(tree))

    def _call(self, text: str) -> Call:
        found = _CALL.fullmatch(text)
        if found is None:
            raise self._fail("`name = op(…)`")
        return Call(name=found[1], op=found[2], operands=self._listed(found[3]))

    def _kernels(self) -> Kernels:
        found = _KERNELS.fullmatch(self.line)
        if found is None:
            raise self._fail("`kernels (…) -> n outputs`")
        inputs = self._listed(found[1])
        if not all(isinstance(x, Live) for x in inputs):
            raise self._fail("tensors among the live-ins")
        return Kernels(
            inputs=tuple(x for x in inputs if isinstance(x, Live)),
            numbers=self._listed(found[2] or ""),
            outputs=int(found[3]),
            checks=int(found[4] or 0),
            may_capture=found[5] is not None,
        )

    # -- operands --

    def _tree(self, text: str) -> ast.expr:
        try:
            return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise self._fail("an operand") from error

    def _listed(self, text: str) -> tuple[Operand, ...]:
        tree = self._tree(f"({text},)") if text.strip() else ast.Tuple(elts=[])
        assert isinstance(tree, ast.Tuple)
        return tuple(map(self._operand, tree.elts))

    def _operand(self, tree: ast.expr) -> Operand:
        match tree:
            case ast.Subscript():
                return self._item(tree)
            case ast.List(elts=elts):
                return Group(kind="list", elems=self._all(elts))
            case ast.Tuple(elts=elts):
                elems = self._all(elts)
                if all(isinstance(x, Literal) for x in elems):
                    return Literal(value=parse_literal(ast.unparse(tree)))
                return Group(kind="tuple", elems=elems)
            case ast.Dict(keys=keys, values=values):
                known = [k for k in keys if k is not None]
                return Entries(keys=self._all(known), elems=self._all(values))
            case ast.Call(func=ast.Name(id="sized"), args=[dtype, ast.Tuple(elts=elts)]):
                found: Any = parse_literal(ast.unparse(dtype))
                return Sized(dtype=found, shape=tuple(map(self._index, elts)))
            case ast.Call(func=ast.Name(id=kind), args=[ast.Tuple(elts=elts)]) if _is_object(kind):
                return Group(kind=kind, elems=self._all(elts))
            case ast.Name(id=name) if _is_object(name):
                return Object(name=name)
            case ast.Name(id=name) if re.fullmatch(r"[vf]\d+", name) and name not in self.sizes:
                return Made(name=name)
            case _ if any(isinstance(n, ast.Name) and n.id in self.sizes for n in ast.walk(tree)):
                return Number(index=self._index(tree))
            case _:
                return self._literal(tree)

    def _all(self, trees: Sequence[ast.expr]) -> tuple[Operand, ...]:
        return tuple(map(self._operand, trees))

    def _literal(self, tree: ast.expr) -> Literal:
        try:
            return Literal(value=parse_literal(ast.unparse(tree)))
        except ValueError as error:
            raise self._fail("an operand") from error

    def _item(self, tree: ast.Subscript) -> Operand:
        path: list[Any] = []
        base: ast.expr = tree
        while isinstance(base, ast.Subscript):
            if not isinstance(base.slice, ast.Constant):
                raise self._fail("a subscript that is a constant")
            path.insert(0, base.slice.value)
            base = base.value
        match base:
            case ast.Name(id="a"):
                return Live(position=path[0], path=tuple(path[1:]))
            case ast.Name(id="o") if len(path) == 1:
                return Output(number=path[0])
            case ast.Name(id=name) if len(path) == 1:
                return Made(name=name, item=path[0])
            case _:
                raise self._fail("an item of `a`, `o` or a value")

    def _index(self, tree: ast.expr) -> Index:
        match tree:
            case ast.Constant(value=int(value)):
                return as_index(value)
            case ast.Name(id=name) if name in self.sizes:
                return self.sizes[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._index(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self._computed(_SIGNS.get(type(op), ""), left, right)
            case ast.Call(func=ast.Name(id="min"), args=[inner, ast.BinOp(left=extent)]):
                assert isinstance(inner, ast.Call)  # min(max(x, 0), (extent) - 1)
                return clamp(self._index(inner.args[0]), self._index(extent))
            case _:
                raise self._fail("a polynomial in sizes")

    def _computed(self, sign: str, left: ast.expr, right: ast.expr) -> Index:
        a, b = self._index(left), self._index(right)
        match sign:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "//":
                return floordiv(a, b)
            case "%":
                return mod(a, b)
            case _:
                raise self._fail("one of + - * // %")


def _is_object(name: str) -> bool:
    return re.fullmatch(r"k\d+", name) is not None


def _is_operand(tree: ast.Call) -> bool:
    """Return whether a call expression is an operand, not a statement."""
    name = tree.func.id if isinstance(tree.func, ast.Name) else ""
    return name in ("sized", "device", "complex") or _is_object(name)
