"""The ops that a file may contain, with their attributes, and the names of Python's own values.

In: nothing. Out: tables, and checks that need no class table: sizes, templates.

    py.add in PLAIN    "imag" in ATTRIBUTES    "append" in METHODS    not is_flat("{0.__class__}")

Invariant: an op that is neither listed here nor has a rule in `check` is refused.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final

from lowtide.deploy import limits
from lowtide.deploy.rename import values_of
from lowtide.deploy.torch_names import TENSOR_ATTRIBUTES, TENSOR_METHODS, names_in
from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir.core import Block, Function
from lowtide.ir.python_ops import TABLE
from lowtide.ir.python_ops.strings import METHODS as STRING_METHODS
from lowtide.ir.types import types_in

WARN: Final = "warn."  # `py.call {target='warn.UserWarning'}` is warnings.warn

PLAIN: Final = frozenset(
    (
        *("const", "undef", "cast", "tuple.make", "tuple.get", "list.make", "unpack", "dict.make"),
        *("set.make", "torch.getitem", "if", "loop", "assert", "use", "return", "yield"),
        *(name for name in TABLE if name != "str.format"),
    )
)
ATTRS: Final[Mapping[str, frozenset[str]]] = {
    "const": frozenset({"value"}),
    "tuple.make": frozenset({"cls"}),
    "tuple.get": frozenset({"index"}),
    "torch.getitem": frozenset({"spec", "rows", "unbound"}),
    "call_torch": frozenset({"target", "kwnames"}),
    "mutate": frozenset({"target", "kwnames", "spec"}),
    "attr.get": frozenset({"name"}),
    "attr.set": frozenset({"name", "frozen"}),
    "enum.const": frozenset({"enum", "member"}),
    "enum.get": frozenset({"enum", "by"}),
    "object.new": frozenset({"cls"}),
    "py.call": frozenset({"target", "kwnames"}),
    "py.call_method": frozenset({"name", "kwnames"}),
    "py.isinstance": frozenset({"type"}),
    "py.format": frozenset({"template"}),
    "raise": frozenset({"exception", "kwnames"}),
    "print": frozenset({"kwnames"}),
}
# Attributes of values without a class in the file: numbers, tensors, dtypes, devices, enums, finfo.
ATTRIBUTES: Final = TENSOR_ATTRIBUTES | names_in(
    """
    bits eps imag index is_complex is_floating_point is_signed max min name real resolution
    smallest_normal tiny type value indices values
    """
)
METHODS: Final = (
    TENSOR_METHODS
    | (STRING_METHODS - {"format"})
    | names_in(
        """
        add append as_integer_ratio bit_count bit_length clear conjugate copy count difference
        discard done extend get hex index insert intersection is_integer isdisjoint issubset
        issuperset items keys pop popitem remove reverse setdefault sort symmetric_difference
        union update value values wait
        """
    )
)


class Refusal(Exception):
    """A program that may not be in a file: the reason, the place, the remedy."""

    def __init__(self, problem: str, loc: Loc = UNKNOWN_LOC, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.loc = loc
        self.remedy = remedy


_PARTS: Final = 2048  # of one type


def check_sizes(fn: Function) -> None:
    """Raise Refusal for a program that is too large, or whose name is no identifier."""
    if not limits.is_identifier(fn.name):
        raise Refusal(f"a function called {fn.name[:80]!r}")
    if _depth(fn.block) > limits.NESTING:
        raise Refusal(f"blocks nested more than {limits.NESTING} deep", fn.loc)
    if sum(1 for _ in fn.walk()) > limits.OPS:
        raise Refusal(f"more than {limits.OPS} ops", fn.loc)
    for value in values_of(fn.block):
        if sum(1 for _ in types_in(value.type)) > _PARTS:
            raise Refusal(f"a type of more than {_PARTS} parts", fn.loc)


def _depth(block: Block) -> int:
    return 1 + max((_depth(b) for op in block.ops for b in op.blocks), default=0)


def is_flat(template: str, nested: bool = False) -> bool:
    """Return whether a template only prints its operands, not their attributes or elements."""
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:
        return False
    for _, name, spec, _ in fields:
        if name is None:
            continue
        if name and not name.isdigit() and not limits.is_identifier(name):
            return False
        if spec and (nested or not is_flat(spec, nested=True)):
            return False
    return True
