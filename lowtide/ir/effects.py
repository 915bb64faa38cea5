"""The effects of an op: what it may do apart from computing its results.

In: an op. Out: `Effects`, as the op's row of its table declares them. The tables are `lowtide.ops`
(PyTorch's ops), `python_ops` (ops on Python values) and `_OWN` below (ops of the IR itself). An op
in no table, such as `call_torch` or `py.call`, may do anything.

    op               effects                                          which means
    torch.exp        NONE                                             CSE and DCE are allowed
    torch.matmul     RAISES                                           the same
    torch.dropout    DRAWS | RAISES; with training=False RAISES       two calls draw two masks
    torch.zeros      MAKES | RAISES                                   DCE, but no CSE
    list.append      MUTATES                                          stays in its place

`opdefs` derives from the effects whether an op may be shared, removed, moved or repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from lowtide.ir.core import Op, Value


class Effects(enum.Flag):
    """A set of the things that an op may do."""

    NONE = 0
    DRAWS = enum.auto()  # takes random numbers, so that the generator's state is another one
    WRITES = enum.auto()  # changes the memory of a tensor that was there before
    MUTATES = enum.auto()  # changes a list, a dict or an object that was there before
    READS = enum.auto()  # reads what may change in between, other than a tensor's values
    MAKES = enum.auto()  # makes an object with an identity, such as a list
    RAISES = enum.auto()  # raises for some operands
    ACTS = enum.auto()  # is seen from outside: prints, ends the run, or marks what is used
    ALL = DRAWS | WRITES | MUTATES | READS | MAKES | RAISES | ACTS


# Of a record's operands, `...` for one that is no constant.
Rule: TypeAlias = Callable[[Sequence[object]], Effects]
Declared: TypeAlias = Effects | Rule
Makers: TypeAlias = Mapping[Value, Op]

_RAISES: Final = Effects.RAISES
_OWN: Final[dict[str, Effects]] = {
    **dict.fromkeys(("const", "enum.const", "tuple.make", "tuple.get", "cast"), Effects.NONE),
    **dict.fromkeys(("py.format", "py.isinstance"), Effects.NONE),
    **dict.fromkeys(("unpack", "enum.get"), _RAISES),
    **dict.fromkeys(("undef", "list.make", "dict.make", "set.make"), Effects.MAKES),
    "attr.get": Effects.READS | _RAISES,
    "attr.set": Effects.MUTATES | _RAISES,
    "object.new": Effects.MAKES | Effects.ACTS,
    "print": Effects.READS | Effects.ACTS,
    **dict.fromkeys(("use", "yield", "return"), Effects.ACTS),
    **dict.fromkeys(("assert", "raise"), _RAISES | Effects.ACTS),
    **dict.fromkeys(("if", "loop"), Effects.NONE),  # besides those of their blocks
}


def own_effects(op: Op) -> Effects:
    """Return the effects of an op of the IR itself; ALL for an unknown one."""
    return _OWN.get(op.name, Effects.ALL)


def when(place: int, constants: Sequence[object], effects: Effects) -> Declared:
    """Return a rule: `effects`, unless operand `place` is one of these constants. The op may raise
    in any case."""

    def rule(operands: Sequence[object]) -> Effects:
        x = operands[place]
        known = any(type(x) is type(c) and x == c for c in constants)
        return _RAISES if known else _RAISES | effects

    return rule


def constant(value: Value, makers: Makers) -> object:
    """Return the value of a constant; `...` for other values."""
    maker = makers.get(value)
    return maker.attrs["value"] if maker is not None and maker.name == "const" else ...
