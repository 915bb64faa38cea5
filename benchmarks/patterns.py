"""Programs of pairs: peak and time of eager, torch.compile and Lowtide.

    python -m benchmarks.patterns                     all; writes results and docs/patterns.md
    python -m benchmarks.patterns "k nearest" histc   two of them, printed only
    python -m benchmarks.patterns --page              the page anew, of the latest results

In: the programs of `benchmarks/pattern_zoo`. Out: for each, by each way, the bytes that a call
holds at its peak beyond inputs, results and gradients, the least milliseconds of a call, and the
seconds of the first call. A call of a training program is a forward and a backward pass. One
thread; times are processor times.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

import lowtide as lt
from benchmarks import pattern_zoo
from benchmarks.files import RESULTS, write_results
from benchmarks.pattern_zoo import PATTERNS, Pattern
from benchmarks.picture import ASSETS, THEMES, dots
from lowtide.memory.measure import measure_peak
from lowtide.tools.machine import Machine, this_machine
from lowtide.torch_private.pytree import tensors_in

PAGE: Final = Path(__file__).parent.parent / "docs" / "patterns.md"
EAGER, INDUCTOR, LOWTIDE = "eager", "torch.compile", "lowtide"
WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    EAGER: lambda f: f,
    INDUCTOR: torch.compile,
    LOWTIDE: lt.script,
}
Row = dict[str, dict[str, float]]


def calls(pattern: Pattern, way: str) -> Callable[[], Any]:
    """One call of a way: its results, or its gradients."""
    torch.manual_seed(0)
    inputs = pattern.inputs()
    run = WAYS[way](pattern.call)
    if not pattern.is_training:
        return lambda: run(*inputs)
    for x in inputs:
        x.requires_grad_(x.is_floating_point())
    wanted = [x for x in inputs if x.requires_grad]

    def train() -> Any:
        loss = run(*inputs)
        return loss.detach(), *torch.autograd.grad(loss, wanted)

    return train


def error(found: Any, expected: Any) -> float:
    """The largest difference, by the largest value; integers count where they differ."""
    pairs = zip(tensors_in(found), tensors_in(expected), strict=True)
    return max(
        ((x.double() - y.double()).abs().amax() / y.double().abs().amax().clamp(min=1e-30)).item()
        for x, y in pairs
        if y.numel()
    )


def measure(pattern: Pattern, ways: list[str], repeats: int) -> Row:
    """What one program takes by each way."""
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    found: Row = {}
    made = {way: calls(pattern, way) for way in ways}
    expected: Any = None
    for way, call in [*made.items()]:
        start = time.perf_counter()
        try:
            result = call()
        except RuntimeError as fault:
            if way != INDUCTOR:
                raise
            print(f"{pattern.name}: {way}: {str(fault).splitlines()[0]}", flush=True)
            del made[way]
            continue
        found[way] = {"first_s": round(time.perf_counter() - start, 2)}
        expected = result if expected is None else expected
        found[way]["error"] = error(result, expected)
        given = sum(x.untyped_storage().nbytes() for x in tensors_in(result))
        del result
        call()
        peak = measure_peak(call)[0].peak_bytes
        found[way]["held_mb"] = round(max(peak - given, 0) / 2**20, 2)
    times: dict[str, list[float]] = {way: [] for way in made}
    for _ in range(repeats):
        for way, call in made.items():
            start = time.process_time()
            call()
            times[way].append(time.process_time() - start)
    for way, seconds in times.items():
        found[way]["ms"] = round(min(seconds) * 1e3, 2)
    return found


def line(name: str, row: Row) -> str:
    """One line of the table that is printed."""
    parts = (
        f"{way} {r['held_mb']:7.1f} MB {r['ms']:8.1f} ms ({r['first_s']:.1f} s)"
        for way, r in row.items()
    )
    return f"{name:28} {'  '.join(parts)}  error {row[LOWTIDE]['error']:.1e}"


def page(machine: str, rows: dict[str, Row]) -> str:
    """The text of docs/patterns.md: a picture, a table, then the programs with their figures."""
    shown = {p.name: p for p in PATTERNS if p.name in rows}
    table = [_HEADERS, "| --- | --- | ---: | ---: | ---: | ---: |"]
    for name, pattern in shown.items():
        link = f"[{title(pattern)}](#{anchor(pattern)})"
        table.append(f"| {link} | {pattern.source} | {' | '.join(cells(rows[name]))} |")
    text = inspect.getsource(pattern_zoo)
    imports = "\n".join(k for k in text.splitlines() if k.startswith(("import ", "from torch")))
    by_function = {pattern.call.__name__: pattern for pattern in shown.values()}
    sections: list[str] = []
    helpers: list[str] = []  # functions that the next programs call
    for name, made in vars(pattern_zoo).items():
        is_program = inspect.isfunction(made) and made.__module__ == pattern_zoo.__name__
        if not is_program or name.startswith("_"):
            continue
        helpers.append(inspect.getsource(made).rstrip())
        if pattern := by_function.get(name):
            code = "\n\n\n".join(helpers)
            said = "; ".join(
                f"{way} {cell}"
                for way, cell in zip(_WAY_NAMES, cells(rows[pattern.name]), strict=True)
                if cell != "-"
            )
            sections.append(
                f"## {title(pattern)}\n\nAfter: {pattern.source}.\n{said}.\n\n"
                f"```python\n{code}\n```"
            )
            helpers = []
    return _PAGE.format(
        machine=machine, table="\n".join(table), imports=imports, programs="\n\n".join(sections)
    )


def title(pattern: Pattern) -> str:
    """The heading of a program."""
    name = pattern.name[0].upper() + pattern.name[1:]
    return f"{name}, training" if pattern.is_training else name


def anchor(pattern: Pattern) -> str:
    """The heading's name in a link, as GitHub and the site make it."""
    words = re.sub(r"[^a-z0-9 _-]", "", title(pattern).lower())
    return words.replace(" ", "-")


def cells(row: Row) -> list[str]:
    """What each way takes, and the seconds of the first call."""
    found = [
        f"{row[way]['held_mb']:.1f} MB, {row[way]['ms']:.1f} ms" if way in row else "-"
        for way in WAYS
    ]
    return [*found, f"{row[LOWTIDE]['first_s']:.1f} s"]


def write_page(machine: str, rows: dict[str, Row]) -> None:
    """Writes docs/patterns.md and its two pictures."""
    PAGE.write_text(page(machine, rows), encoding="utf-8")
    held = {
        title(p): {_SHOWN[way]: row["held_mb"] for way, row in rows[p.name].items()}
        for p in PATTERNS
        if p.name in rows
    }
    for theme in THEMES:
        picture = dots(held, [*_SHOWN.values()], theme)
        (ASSETS / f"patterns-{theme.name}.svg").write_text(picture, encoding="utf-8")


_HEADERS = "| program | after | eager | torch.compile | Lowtide | first call |"
_SHOWN = {EAGER: "eager", INDUCTOR: "torch.compile", LOWTIDE: "Lowtide"}
_WAY_NAMES = (*_SHOWN.values(), "its first call")
_PAGE = """\
# Programs of pairs

Made by `python -m benchmarks.patterns`. Each program is plain PyTorch code after a public report,
or after a kind of program; nothing in it is written for Lowtide. The tensor of pairs has 40 to
60 MB. Sizes stand in `benchmarks/pattern_zoo.py`.

The columns show what a call holds at its peak beyond inputs, results and gradients, and the least
processor time of a call, with one thread. `Lowtide` is `lt.script`. A training program is measured
with its backward pass.

<picture>
<source media="(prefers-color-scheme: dark)" srcset="assets/patterns-dark.svg">
<img src="assets/patterns-light.svg" alt="What each program holds: eager, torch.compile, Lowtide">
</picture>

{machine}

{table}

Where Lowtide holds as much as PyTorch, an op in the program stores the pairs, such as a
write at indices that are data.
[memory.md](memory.md#no-tensor-of-pairs) says what is cut into chunks.

The programs need these:

```python
{imports}
```

{programs}
"""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patterns")
    parser.add_argument("names", nargs="*", metavar="name")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    options = parser.parse_args()
    if unknown := {*options.names} - {p.name for p in PATTERNS}:
        parser.error(f"no program {', '.join(sorted(unknown))}")
    if options.page:
        latest = json.loads(max(RESULTS.glob("*-patterns.json")).read_text(encoding="utf-8"))
        write_page(str(Machine(**latest["machine"])), latest["rows"])
        return
    torch.set_num_threads(1)
    machine = this_machine("cpu")
    ways = [way for way in WAYS if way != INDUCTOR or not options.no_inductor]
    rows: dict[str, Row] = {}
    for pattern in PATTERNS:
        if options.names and pattern.name not in options.names:
            continue
        try:
            rows[pattern.name] = measure(pattern, ways, options.repeats)
        except Exception as fault:
            print(f"{pattern.name:28} {type(fault).__name__}: {str(fault)[:300]}", flush=True)
            continue
        print(line(pattern.name, rows[pattern.name]), flush=True)
    if not options.names and not options.no_inductor:
        print(write_results(machine, {"rows": rows}, "patterns"))
        write_page(str(machine), rows)


if __name__ == "__main__":
    main()
