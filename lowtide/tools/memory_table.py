"""The output of `lowtide memory` in a terminal: a memory plan as a table, by rich.

In: a MemoryPlan. Out: lines on stdout, as wide as the terminal.
"""

from __future__ import annotations

from lowtide.budget.memory import MemoryPlan
from lowtide.errors import UNKNOWN_LOC


def print_plan(plan: MemoryPlan) -> None:
    """Print the peak, its formula, and what is alive at the peak."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"peak [bold]{plan.peak_bytes:,}[/] bytes = {escape(plan.formula)}")
    for symbol, name in plan.sizes.items():
        console.print(f"  {symbol} = {escape(name)}", style="dim")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("alive at the peak", justify="right", no_wrap=True)
    for name in ("kind", "value", "source"):
        table.add_column(name, overflow="fold")
    for buffer in plan.buffers:
        source = "-" if buffer.loc == UNKNOWN_LOC else buffer.loc.shown()
        cells = (buffer.kind, buffer.name, source)
        table.add_row(f"{buffer.nbytes:,}", *map(escape, cells))
    if plan.buffers:
        console.print(table)
    for note in plan.notes:
        console.print(f"note: {escape(note)}", style="dim")
