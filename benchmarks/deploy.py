"""`python -m benchmarks.deploy`: exported C against Lowtide in process, on one thread.

In: names of programs, or none for all. Out: a table for docs/deploy.md, written with `--into-page`.

    python -m benchmarks.deploy chamfer ResNet-18
    python -m benchmarks.deploy --into-page

Times are processor time, the least of some calls. Resident memory is that of the self-test beyond
an empty program, less its weights, workspace, inputs and outputs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import lowtide as lt
from benchmarks.deploy_models import MODELS
from benchmarks.report import update_page
from lowtide import config
from lowtide.runtime import toolchain
from lowtide.tools.machine import this_machine

PAGE: Final = Path(__file__).parent.parent / "docs" / "deploy.md"
BLOCK: Final = "deploy"
_TEXT: Final = re.compile(r"first call ([\d.]+) ms, then ([\d.]+) ms, workspace (\d+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program. `kernels_ms`: Lowtide in process with its own products; `library_ms`: with those
    of PyTorch's library, where that is faster. `extra_bytes`: resident beyond what is given."""

    name: str
    c_ms: float
    first_ms: float
    kernels_ms: float
    library_ms: float
    code_bytes: int
    extra_bytes: int


def measure(name: str, calls: int) -> Row:
    """Export, build, run and compare one program."""
    model, args = MODELS[name]()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        found = lt.export_c(lt.script(model), folder, args, weights="file")
        output, resident = _run([f"{folder}/model_selftest", str(calls)], folder)
        times = _TEXT.search(output)
        assert times is not None, output
        given = (Path(folder) / "model_selftest.bin").stat().st_size
        known = found.weight_bytes + int(times[3]) + given + _outputs(model, args)
        extra = resident - known
    return Row(
        name=name,
        c_ms=float(times[2]),
        first_ms=float(times[1]),
        kernels_ms=_in_process(model, args, calls, "kernels"),
        library_ms=_in_process(model, args, calls, ""),
        code_bytes=found.code_bytes,
        extra_bytes=extra,
    )


_LAUNCHER: Final = """\
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int status = 0;
  struct rusage used;
  if (argc < 2) return 0;
  if (!fork()) return execv(argv[1], argv + 1);
  if (wait4(-1, &status, 0, &used) < 0) return 1;
  fprintf(stderr, "%ld", used.ru_maxrss);
  return status != 0;
}
"""


def _run(row: list[str], folder: str) -> tuple[str, int]:
    """Return what a program prints, and the bytes resident at its peak beyond an empty program. It
    is started by a small one: a process begins with the peak of the one that forked it."""
    launcher = str(Path(folder) / "launcher")
    command = [*toolchain.compiler().command, "-xc", "-o", launcher, "-"]
    subprocess.run(command, input=_LAUNCHER, text=True, check=True)
    found = [
        subprocess.run([launcher, *r], cwd=folder, capture_output=True, text=True, check=True)
        for r in (row, [launcher])
    ]
    peak, empty = (int(f.stderr) * 1024 for f in found)
    return found[0].stdout, peak - empty


def _outputs(model: Callable[..., Any], args: tuple[Any, ...]) -> int:
    found: Tensor = model(*args)
    return found.nbytes


def _in_process(
    model: Callable[..., Any], args: tuple[Any, ...], calls: int, products: str
) -> float:
    with config.override(products=products, kernels_only=bool(products)), torch.no_grad():
        compiled = lt.script(model)
        compiled(*args)
        times: list[float] = []
        for _ in range(calls):
            start = time.process_time()
            compiled(*args)
            times.append(time.process_time() - start)
    return min(times) * 1e3


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    head = (
        "| program | C, ms a call | first call | in process, own products | with the library's |"
        " code | memory beyond what is given |\n| --- | --: | --: | --: | --: | --: | --: |"
    )
    lines = [
        f"| {r.name} | {r.c_ms:.2f} | {r.first_ms:.2f} | {r.kernels_ms:.2f} | {r.library_ms:.2f} |"
        f" {r.code_bytes / 1000:.0f} kB | {max(r.extra_bytes, 0) / 1e6:.1f} MB |"
        for r in rows
    ]
    return "\n".join([head, *lines])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deploy")
    parser.add_argument("names", nargs="*", choices=[[], *MODELS])
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--into-page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in options.names or MODELS:
        rows.append(measure(name, options.calls))
        print(rows[-1], flush=True)
    machine = this_machine("cpu")
    print(machine)
    how = "One thread, processor time, float32, the least of some calls."
    if options.into_page:
        update_page(f"{table(rows)}\n\n{how}", BLOCK, PAGE)
    print(table(rows))


if __name__ == "__main__":
    main()
