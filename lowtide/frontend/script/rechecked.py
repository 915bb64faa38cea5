"""Assumptions that a program checks anew after it has called the user's Python code.

In: calls that Python makes, and each value from outside that the compiler read. Out: after such a
call, an op that raises if it has changed a value that the program reads later.

    self.log(x)                  py.call(%self, %x) {target="net.Net.log"}
    if self.mode == "train":     py.call() {target="Recheck"}       of `mode`, a constant here
        x = x * self.scale                                          and `scale`, captured

Invariant: attributes that such a function is seen to assign are read where the program reads
them; the op finds the others, assigned by `setattr`, or by a function that it calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.outside import Row, is_installed_code, now_at, same
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value


@dataclass(frozen=True, slots=True)
class _Read:
    """One value that was read. `expected`: the value, its required type, or, for a captured value,
    its type."""

    find: Callable[[], object]  # its holder: a module is not kept alive
    name: str
    expected: object
    is_captured: bool


class Recheck:
    """Called by the program with the captured values. Raises RuntimeError."""

    def __init__(self, who: str, rows: list[_Read]) -> None:
        self._who, self._rows = who, rows

    def __call__(self, *captured: object) -> None:
        values = iter(captured)
        for row in self._rows:
            now = now_at(row.find(), row.name)
            as_read = not row.is_captured or _is_same(now, next(values))
            if isinstance(row.expected, t.Type):
                as_read = as_read and _fits(now, row.expected)
            elif not row.is_captured:
                as_read = same(row.expected, now)
            if not as_read:
                raise RuntimeError(self._problem(row.name))

    def _problem(self, name: str) -> str:
        return (
            f"{self._who}() has changed `{name}` while the program ran, which goes on with what it "
            f"was at the beginning of the call; write instead: the assignment in {self._who}() "
            f"itself, `… .{name} = …`, or a result that the caller uses"
        )


def _is_same(now: object, before: object) -> bool:
    return now is before or (isinstance(now, int | float | str) and same(before, now))


def _fits(now: object, type_: t.Type) -> bool:
    found = t.type_of(now)
    return found is None or t.is_subtype(found, type_)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A call of Python code that may change outside values: its op, and the number of reads before
    it, or before the loop around it."""

    who: str
    block: Block
    op: Op
    seen: int


def python_ran(c: Context, fn: Callable[..., Any]) -> None:
    """Note that the last op calls Python code."""
    if not is_installed_code(fn):
        who = str(getattr(fn, "__qualname__", type(fn).__name__))
        seen = len(c.assumed.log) if c.loop_start is None else c.loop_start
        c.opaque.append(Opaque(who, c.builder.block, c.builder.block.ops[-1], seen))


def put_rechecks(c: Context) -> None:
    """Add the ops to the finished program."""
    for call in c.opaque:
        rows: dict[tuple[int, str, type], tuple[_Read, Value | None]] = {}
        for row in c.assumed.log[call.seen :]:
            rows.setdefault((id(row[0]), row[1], type(row[2])), _read(row))
        place = next((k for k, op in enumerate(call.block.ops) if op is call.op), None)
        if rows and place is not None:
            operands = [v for _, v in rows.values() if v is not None]
            target = python_objects.name_of(Recheck(call.who, [r for r, _ in rows.values()]))
            op = Op(
                name="py.call",
                operands=operands,
                attrs={"target": target, "kwnames": ()},
                results=[Value("", t.NONE)],
                loc=call.op.loc,
            )
            call.block.ops.insert(place + 1, op)


def _read(row: Row) -> tuple[_Read, Value | None]:
    holder, name, expected = row
    find = weakref.ref(holder) if isinstance(holder, torch.nn.Module) else _Giver(holder)
    if not isinstance(expected, Value):
        return _Read(cast("Any", find), name, expected, False), None
    return _Read(cast("Any", find), name, expected.type, True), expected


class _Giver:
    __slots__ = ("obj",)

    def __init__(self, obj: object) -> None:
        self.obj: Final = obj

    def __call__(self) -> object:
        return self.obj
