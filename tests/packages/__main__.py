"""`python -m tests.packages [NAME…] [--write]`: real packages under Lowtide, as a table.

Runs each case whose package is importable in all modes; see `support`. The exit status is 1 if a
part differs, or if no package is installed. `--write` puts the table into docs/real-packages.md.
`--long` prints whole messages.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys

import torch
from rich.console import Console
from rich.table import Table

from tests.packages.support import MODES, ROOT, Case, Outcome, differences, load_cases, run_case

PAGE = ROOT / "docs" / "real-packages.md"
HEAD = """# Real packages

Packages from PyPI that call `torch.jit` themselves, or are scripted and traced by their users, with
`LOWTIDE_PATCH_TORCH_JIT=1`: `torch.jit.script`, `trace` and so on are Lowtide's before the package
is imported. Each part of a case must give what plain Python gives (`PYTORCH_JIT=0`), gradients and
parameters after training included where the table names them. The column of `torch.jit` says what
PyTorch's own compiler makes of the same parts.

Made by `python -m tests.packages --write` with the packages that were installed.

"""


@dataclasses.dataclass
class Row:
    """One case's results."""

    case: Case
    plain: Outcome
    torch: Outcome
    lowtide: Outcome

    def failures(self, other: Outcome) -> dict[str, str]:
        if other.broken:
            return {"(all)": other.broken.strip().splitlines()[-1]}
        found = differences(self.plain, other)
        return {k: v for k, v in found.items() if v}

    def parts(self) -> int:
        return len(self.plain.results)

    def score(self, other: Outcome) -> str:
        failed = self.failures(other)
        good = 0 if other.broken else self.parts() - len(failed)
        return f"{good} of {self.parts()}"


def main() -> int:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(prog="python -m tests.packages")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--no-torch", action="store_true", help="leave torch.jit itself out")
    options = parser.parse_args()
    console = Console()
    rows: list[Row] = []
    for name, case in load_cases().items():
        if options.names and name not in options.names:
            continue
        if not case.installed:
            console.print(f"{name}: not installed (pip install {case.pip})")
            continue
        modes = [m for m in MODES if m != "torch" or not options.no_torch]
        ran = {m: run_case(name, m) for m in modes}
        row = Row(case, ran["eager"], ran.get("torch", ran["eager"]), ran["lowtide"])
        rows.append(row)
        show(console, row, options.long)
    console.print(table(rows))
    if options.write:
        PAGE.write_text(HEAD + markdown(rows))
    print("\n".join(summary(rows)))
    return int(not rows or any(row.failures(row.lowtide) for row in rows))


def show(console: Console, row: Row, long: bool) -> None:
    """One case's failures."""
    console.print(f"[bold]{row.case.name}[/] {row.plain.version}: {row.score(row.lowtide)}")
    for name, (kind, value) in row.plain.results.items():
        if kind == "raised":
            console.print(f"    {name}: plain Python raised {str(value)[:300]}", markup=False)
    if row.plain.broken:
        console.print(row.plain.broken, markup=False)
    for name, why in row.failures(row.lowtide).items():
        text = why if long else why[:500]
        console.print(f"    {name}: {text}", markup=False)
    if long and row.lowtide.broken:
        console.print(row.lowtide.broken, markup=False)


def table(rows: list[Row]) -> Table:
    """The summary for a terminal."""
    made = Table("package", "version", "what", "lowtide", "torch.jit", "regions")
    for row in rows:
        case, low = row.case, row.lowtide
        scores = (row.score(low), row.score(row.torch), str(low.compiled))
        made.add_row(case.name, row.plain.version, case.what, *scores)
    return made


def summary(rows: list[Row]) -> list[str]:
    """What failed, a line for each part as `tests.full` reads it, and how many parts are equal."""
    failed = [f"FAILED {r.case.name}::{part}" for r in rows for part in r.failures(r.lowtide)]
    total = sum(row.parts() for row in rows)
    good = total - sum(len(r.failures(r.lowtide)) for r in rows if not r.lowtide.broken)
    good -= sum(row.parts() for row in rows if row.lowtide.broken)
    return [*failed, f"{good} of {total} parts of {len(rows)} packages are equal to plain Python"]


def markdown(rows: list[Row]) -> str:
    """The summary for docs/real-packages.md."""
    lines = [
        "| package | version | what was run | equal to plain Python | torch.jit |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        scores = f"{row.score(row.lowtide)} | {row.score(row.torch)}"
        lines.append(f"| {row.case.name} | {row.plain.version} | {row.case.what} | {scores} |")
    total = sum(row.parts() for row in rows)
    good = [sum(r.parts() - len(r.failures(o(r))) for r in rows) for o in (_lowtide, _torch)]
    lines.append(
        f"| **{len(rows)} packages** | | | **{good[0]} of {total}** | {good[1]} of {total} |"
    )
    lines += ["", *limits(rows), "", f"PyTorch {torch.__version__}.", ""]
    return "\n".join(lines)


def _lowtide(row: Row) -> Outcome:
    return row.lowtide


def _torch(row: Row) -> Outcome:
    return row.torch


def limits(rows: list[Row]) -> list[str]:
    """What does not give what plain Python gives, and why."""
    found = [
        f"- {row.case.name}, {name}: {first_line(why)}"
        for row in rows
        for name, why in row.failures(row.lowtide).items()
    ]
    return ["## What is not equal", "", *found] if found else ["Every part is equal."]


def first_line(why: str) -> str:
    """The first line of a message, for a table."""
    line = " ".join(why.split("\n")[0].split())[:300]
    return re.sub(r"/\S*site-packages/", "", line)


if __name__ == "__main__":
    sys.exit(main())
