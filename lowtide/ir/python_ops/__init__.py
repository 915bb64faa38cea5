"""The tables of ops on Python values, one file per family of values.

In: nothing. Out: `TABLE`, an `OpDef` per op name. A row says what an op runs and what type it
gives; `ir.opdefs` is where the rest of Lowtide asks.
"""

from __future__ import annotations

from lowtide.ir.python_ops import dicts, lists, numbers, objects, strings, torchscript
from lowtide.ir.python_ops.row import OpDef

TABLE: dict[str, OpDef] = {
    definition.name: definition
    for rows in (numbers.ROWS, strings.ROWS, lists.ROWS, dicts.ROWS, objects.ROWS, torchscript.ROWS)
    for definition in rows
}
