"""Prints ops without control flow as Python expressions and assignments.

In:  ops. Out: lines. A value that is used once, in its own block and on its own source line, is
     inlined into its use if that keeps the order of evaluation. Other values get a variable.

    %1: int = py.rshift(%s, %one)
    %2: int = py.xor(%1, %i)            →    s_2 = (s >> 1) ^ i
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from lowtide.ir import opdefs, python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value, walk
from lowtide.ir.interpret import UNBOUND, callable_of, run_op
from lowtide.ir.named_results import build
from lowtide.ir.python_text import FORMS, INFIX, PREFIX

NAME: Final = "part"  # of the printed function
CALLED_BACK: Final = ("raise", "assert", "print")  # the function calls the interpreter for these

# The order in which Python evaluates the operands, where it differs from the op's order.
_ORDER: Final = {"py.contains": (1, 0), "list.set": (2, 0, 1), "dict.set": (2, 0, 1)}
_STATEMENTS: Final = {"list.set", "list.delete", "dict.set", "dict.delete"}
_METHODS: Final = {
    *("list.append", "list.extend", "list.insert", "list.remove", "list.reverse", "list.clear"),
    *("list.pop", "list.index", "list.count", "dict.get", "dict.copy", "dict.pop", "dict.popitem"),
    *("dict.setdefault", "dict.update", "dict.clear"),
}  # fmt: skip
_SPELLED: Final = {"list.get", "dict.item", *_STATEMENTS, "py.contains"}
_AUGMENTED: Final = {
    **{f"operator.i{name.removeprefix('py.')}": f"{sign}=" for name, sign in INFIX.items()},
    "operator.imatmul": "@=",
}
GIVES_BOOL: Final = {
    *("py.lt", "py.le", "py.gt", "py.ge", "py.eq", "py.ne", "py.is", "py.is_not", "py.not"),
    *("py.contains", "py.bool"),
}  # fmt: skip
NUMBERS: Final = (t.INT, t.FLOAT, t.BOOL, t.STR)


def set_item(x: Any, *operands: Any) -> Any:
    """Assign the last operand to an item (an index) or a slice (start, stop, step); return `x`."""
    *index, value = operands
    x[index[0] if len(index) == 1 else slice(*index)] = value
    return x


def _is_identity_of_literal(op: Op, texts: Iterable[str]) -> bool:
    """Return whether the op is `x is <literal>`, for which Python shows a SyntaxWarning."""
    if op.name not in ("py.is", "py.is_not"):
        return False
    return any(x[:2] == "(-" or not (x[:1] == "(" or x.isidentifier()) for x in texts)


@dataclass(slots=True, kw_only=True)
class Pending:
    """An expression that is not printed yet, since it may be inlined. `reads`: its variables."""

    value: Value
    op: Op
    text: str
    operands: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Uses:
    """For each value: the number of uses, and the blocks of its uses and definition. `negated`:
    comparisons `a != b` that are printed as `not` of an earlier `a == b`."""

    count: Counter[Value] = field(default_factory=Counter[Value])
    user_block: dict[Value, object] = field(default_factory=dict[Value, object])
    first_user: dict[Value, Op] = field(default_factory=dict[Value, Op])
    block_of: dict[Op, object] = field(default_factory=dict[Op, object])
    home: dict[Value, object] = field(default_factory=dict[Value, object])
    maker: dict[Value, Op] = field(default_factory=dict[Value, Op])
    negated: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def add(self, ops: Sequence[Op], block: object) -> None:
        equal: dict[tuple[Value, ...], Value] = {}
        for op in ops:
            operands = op.operands
            if op.name == "py.eq" and all(v.type in NUMBERS for v in operands):
                equal[tuple(operands)] = op.result
            elif op.name == "py.ne" and (same := equal.get(tuple(operands))) is not None:
                self.negated[op.result] = same
                operands = [same]
            for v in operands:
                self.count[v] += 1
                self.user_block[v] = block
                self.first_user.setdefault(v, op)
            self.block_of[op] = block
            for v in op.results:
                self.home[v] = block
                self.maker[v] = op
            for inner in op.blocks:
                for v in inner.args:
                    self.home[v] = inner
                self.add(inner.ops, inner)

    def forget(self, ops: Sequence[Op], block: Block) -> None:
        """Remove the uses by these ops, which are in the block or nested in it."""
        for op in ops:
            same = self.negated.get(op.result)
            for v in op.operands if same is None else [same]:
                self.count[v] -= 1
                users = [x for x in walk(block) if v in x.operands and x not in ops]
                if users:
                    self.user_block[v] = self.block_of[users[-1]]
                    if self.first_user[v] in ops:
                        self.first_user[v] = users[0]


def _f_string(template: str, texts: Sequence[str]) -> str:
    """Return a positional format as an f-string, "" if it cannot be written as one."""
    rest, found = list(texts), ""
    for literal, name, spec, conversion in string.Formatter().parse(template):
        shown = repr(literal)
        if shown[0] != "'":
            return ""
        found += shown[1:-1].replace("{", "{{").replace("}", "}}")
        if name is None:
            continue
        if name or not rest or set(rest[0] + (spec or "")) & set("'\"\\{}!"):
            return ""
        after = f"!{conversion}" if conversion else ""
        found += "{" + rest.pop(0) + after + (f":{spec}" if spec else "") + "}"
    return "" if rest else f"f'{found}'"


def _slice(texts: Sequence[str]) -> str:
    """Return the text of a slice: `1:` for start 1, and stop and step None."""
    start, stop, step = ("" if text == "None" else text for text in texts)
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def bare(text: str) -> str:
    """Strip the outer parentheses of an expression."""
    if text[:1] != "(" or text == "()":
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if (depth == 0 and k < len(text) - 1) or (depth == 1 and c == ",") or c in "'\"":
            return text
    return text[1:-1]


class Expressions:
    """Prints the function. `scope`: objects to which its text refers by name. `lines_of`: the op of
    each line."""

    def __init__(
        self, ops: Sequence[Op], results: Sequence[Value], constants: Mapping[Value, object]
    ) -> None:
        self.ops = ops
        self.results = results
        self.constants = dict(constants)
        self.uses = Uses()
        self.uses.add(ops, None)
        for v in results:
            self.uses.count[v] += 2  # with two uses, they get a variable
        self.scope: dict[str, Any] = {}
        self.bound: dict[int, str] = {}
        self.names: dict[Value, str] = {}
        self.variables: set[str] = set()
        self.replaced: dict[str, Value] = {}  # by variable: the value that it held before
        self.taken = {NAME, *keyword.kwlist, *dir(builtins)}
        self.pending: list[Pending] = []
        self.lines: list[str] = []
        self.lines_of: list[Op] = []
        self.in_heads: set[Op] = set()  # printed by the first line of a loop
        self.shared: dict[Op, dict[str, Value]] = {}  # of an `if`: what its variables hold before
        self.depth = 1
        self.at = ops[0]
        # of an `if` that ends the text: its condition, its line, and the line of its `else`
        self.latest_if: tuple[str, int, int | None] | None = None

    # -- lines and names --

    def line(self, text: str, depth: int | None = None) -> None:
        if not text.startswith((" ", "if ")) and depth is None:
            self.latest_if = None
        self.lines.append("    " * (self.depth if depth is None else depth) + text)
        self.lines_of.append(self.at)

    def name_of(self, value: Value) -> str:
        found = self.names.get(value)
        if found is None:
            found = self.called(value, self.fresh(value.name))
        return found

    def called(self, value: Value, name: str) -> str:
        self.names[value] = name
        self.variables.add(name)
        return name

    def fresh(self, hint: str) -> str:
        stem = re.sub(r"\W", "_", hint.partition(".")[0]).strip("_")
        stem = stem if stem.isidentifier() else "v"
        name, count = stem, 1
        while name in self.taken:
            count += 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        return name

    def bind(self, value: object, hint: str) -> str:
        """Add an object to the scope; return its name."""
        found = self.bound.get(id(value))
        if found is None:
            found = self.bound[id(value)] = self.fresh(hint)
            self.scope[found] = value
        return found

    def callee(self, run: Callable[..., Any]) -> str:
        name = getattr(run, "__name__", "call")
        return name if getattr(builtins, name, None) is run else self.bind(run, name)

    def text_of(self, value: Value) -> str:
        """Return the text of a value that is not pending: a literal, or a variable."""
        return self.literal(value) if value in self.constants else self.name_of(value)

    def literal(self, value: Value) -> str:
        found = self.constants[value]
        kind = type(found)
        if found is None or kind in (bool, str) or (kind is int and cast("int", found) >= 0):
            return repr(found)
        if kind is int or (kind is float and math.isfinite(cast("float", found))):
            return f"({found!r})"
        return self.bind(found, "const")

    def reads(self, texts: Iterable[str]) -> frozenset[str]:
        names = {word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text)}
        return frozenset(names & self.variables)

    # -- pending expressions --

    def flush(self, keep: int = 0) -> None:
        """Assign pending expressions to variables, except the last `keep`."""
        written, self.pending = (
            self.pending[: len(self.pending) - keep],
            self.pending[len(self.pending) - keep :],
        )
        at = self.at
        for p in written:
            self.at = p.op
            self.line(f"{self.name_of(p.value)} = {bare(p.text)}")
        self.at = at

    def take(self, values: Sequence[Value], order: Sequence[int] | None = None) -> list[str]:
        """Return the texts of an op's operands. Pending ones are inlined if that keeps the order of
        evaluation and they come from the op's source line. A `yield` has no source line: its
        operands must come from one line."""
        order = range(len(values)) if order is None else order
        waiting = {id(p.value) for p in self.pending}
        wanted = [values[k] for k in order if id(values[k]) in waiting]
        last = self.pending[len(self.pending) - len(wanted) :]
        found = {p.op.loc.line for p in last}
        fits = [p.value for p in last] == wanted and (
            found <= {self.at.loc.line} or (self.at.name == "yield" and len(found) == 1)
        )
        if fits and last and self.at.name == "yield":
            self.at = last[-1].op
        if wanted and not fits:
            self.flush()
            last = []
        texts = {id(p.value): p.text for p in last}
        if texts:
            del self.pending[len(self.pending) - len(last) :]
        return [texts.get(id(v)) or self.text_of(v) for v in values]

    def define(self, op: Op, text: str, operands: Sequence[str] = ()) -> None:
        """Record the value of an op, as pending or as a variable."""
        value = op.result
        count = self.uses.count[value]
        if count == 1 and self._may_be_inlined(op):
            operands = tuple(operands)
            reads = self.reads([text])
            made = Pending(value=value, op=op, text=text, operands=operands, reads=reads)
            self.pending.append(made)
            return
        self.flush()
        self.line(f"{self.name_of(value)} = {bare(text)}" if count else text)

    def _may_be_inlined(self, op: Op) -> bool:
        """Return whether the only use is in the same block, and either on the same source line or
        an op of control flow."""
        value = op.result
        if self.uses.user_block[value] is not self.uses.home[value]:
            return False
        user = self.uses.first_user[value]
        return user.loc.line == op.loc.line or user.name in ("if", "loop", "yield")

    # -- ops --

    def expression(self, op: Op) -> None:
        if op.results and (same := self.uses.negated.get(op.result)) is not None:
            texts = self.take([same])
            text = f"(not {texts[0]})"
        else:
            texts = self.take(op.operands, _ORDER.get(op.name))
            text = self.spelled(op, texts)
        if op.name == "mutate" and "spec" not in op.attrs and self.augmented(op, texts):
            return
        if op.name in _STATEMENTS:
            self.flush()
            self.line(text)
            if self.uses.count[op.result]:
                self.constants[op.result] = None
            return
        self.define(op, text, texts)

    def augmented(self, op: Op, texts: Sequence[str]) -> bool:
        """Print `x += y`, if the result has a variable that `y` does not read."""
        sign = _AUGMENTED.get(str(op.attrs["target"]))
        if sign is None or not self.uses.count[op.result]:
            return False
        name = self.name_of(op.result)
        if name in self.reads(texts[1:]) or any(name in p.reads for p in self.pending):
            return False
        self.flush()
        if texts[0] != name:
            self.line(f"{name} = {bare(texts[0])}")
        self.line(f"{name} {sign} {bare(texts[1])}")
        return True

    def spelled(self, op: Op, texts: list[str]) -> str:
        if op.name in INFIX and not _is_identity_of_literal(op, texts):
            return f"({texts[0]} {INFIX[op.name]} {texts[1]})"
        if op.name in PREFIX:
            return f"({PREFIX[op.name]}{texts[0]})"
        if op.name == "list.slice":
            return f"{texts[0]}[{_slice(texts[1:])}]"
        if op.name in _SPELLED:
            form = FORMS[op.name].format(*texts)
            return f"({form})" if op.name == "py.contains" else form
        if op.name in _METHODS:
            return f"{texts[0]}.{op.name.partition('.')[2]}({', '.join(texts[1:])})"
        if op.name == "torch.getitem":
            is_slice = op.attrs["spec"][0] == "slice"  # type: ignore[index]
            return f"{texts[0]}[{_slice(texts[1:]) if is_slice else texts[1]}]"
        if op.name == "mutate":
            changes = set_item if "spec" in op.attrs else callable_of(str(op.attrs["target"]))
            return f"{self.callee(changes)}({', '.join(texts)})"
        if op.name == "py.bool" and self.is_bool(op.operands[0]):
            return texts[0]
        maker = self.uses.maker.get(op.operands[0]) if op.operands else None
        if op.name == "py.index" and maker is not None and maker.name == "py.len":
            return texts[0]
        definition = opdefs.find(op.name)
        assert definition is not None, op
        return f"{self.callee(definition.run)}({', '.join(texts)})"

    def is_bool(self, value: Value) -> bool:
        maker = self.uses.maker.get(value)
        return maker is not None and maker.name in GIVES_BOOL

    def const(self, op: Op) -> None:
        self.constants[op.result] = op.attrs["value"]

    def undef(self, op: Op) -> None:
        self.constants[op.result] = UNBOUND

    def cast(self, op: Op) -> None:
        self.define(op, self.take(op.operands)[0])

    def use(self, op: Op) -> None:
        (text,) = self.take(op.operands)
        self.flush()
        if text not in self.variables:
            self.line(text)

    def tuple_(self, op: Op) -> None:
        texts = self.take(op.operands)
        text = f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
        if cls := op.attrs.get("cls"):
            found = python_objects.find(str(cls))
            text = f"{self.bind(build, 'build')}({self.bind(found, 'cls')}, {text})"
        self.define(op, text, texts)

    def tuple_get(self, op: Op) -> None:
        self.define(op, f"{self.take(op.operands)[0]}[{op.attrs['index']}]")

    def list_(self, op: Op) -> None:
        if not op.operands and self.uses.count[op.result] > 1:
            name = self.name_of(op.result)
            if any(name in p.reads for p in self.pending):
                self.flush()  # other pending expressions may be evaluated after this line
            self.line(f"{name} = []")
            return
        self.define(op, f"[{', '.join(self.take(op.operands))}]")

    def dict_(self, op: Op) -> None:
        texts = self.take(op.operands)
        pairs = zip(texts[::2], texts[1::2], strict=True)
        self.define(op, "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}")

    def set_(self, op: Op) -> None:
        texts = self.take(op.operands)
        self.define(op, "{" + ", ".join(texts) + "}" if texts else "set()")

    def unpack(self, op: Op) -> None:
        (text,) = self.take(op.operands)
        self.flush()
        if op.results:
            targets = ", ".join(self.name_of(r) for r in op.results)
            self.line(f"{targets}{',' if len(op.results) == 1 else ''} = {text}")
        else:
            self.line(f"[] = {text}")

    def format_(self, op: Op) -> None:
        texts = self.take(op.operands)
        template = str(op.attrs["template"])
        text = _f_string(template, texts) or f"{template!r}.format({', '.join(texts)})"
        self.define(op, text)

    def called_back(self, op: Op) -> None:
        """Print a call that interprets the op, since a Python statement lacks its checks."""
        texts = self.take(op.operands)
        self.flush()

        def run(*values: object) -> None:
            run_op(op, dict(zip(op.operands, values, strict=True)))

        if op.name == "assert":
            texts = [self.variable(text) for text in texts]
            head = f"if not {texts[0]}: "
        else:
            head = ""
        self.line(f"{head}{self.bind(run, op.name)}({', '.join(texts)})")
        for v in op.results:
            self.constants[v] = None

    def variable(self, text: str) -> str:
        if text.isidentifier():
            return text
        name = self.fresh("v")
        self.line(f"{name} = {text}")
        return name
