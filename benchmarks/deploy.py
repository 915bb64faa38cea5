"""`python -m benchmarks.deploy`: exported C beside PyTorch, Lowtide in process, ONNX Runtime.

In: how names of programs begin, or none for all. Out: a JSON file in benchmarks/results, and a
table for docs/deploy.md.

    python -m benchmarks.deploy chamfer ResNet-18 --kept /tmp/exports    rows of the file
    python -m benchmarks.deploy --onnx /tmp/venv/bin/python              a Python with onnxruntime
    python -m benchmarks.deploy --pairs                                  only results are compared
    python -m benchmarks.deploy --page                                   from the file to the page

Times are processor time of one thread, the least of some calls. Resident memory is that of the
self-test beyond an empty program, less its weights, workspace, inputs and outputs. How far results
are apart: see `benchmarks.deploy_agreement`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

import lowtide as lt
from benchmarks.deploy_agreement import Agreement, agreement
from benchmarks.deploy_models import MODELS, PAIRS, Deployed
from benchmarks.files import RESULTS, write_results
from benchmarks.report import update_page
from lowtide import config
from lowtide.runtime import toolchain
from lowtide.tools.machine import this_machine

PAGE: Final = Path(__file__).parent.parent / "docs" / "deploy.md"
BLOCK: Final = "deploy"
_TEXT: Final = re.compile(r"first call ([\d.]+) ms, then ([\d.]+) ms, workspace (\d+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program. `own_ms`: Lowtide in process with its own products; `library_ms`: with those of
    PyTorch's library, where that is faster; `onnx_ms`: ONNX Runtime. `extra_bytes`: resident beyond
    what is given. Of a program of which only results are compared, times are None."""

    name: str
    agreement: Agreement | None = None
    problem: str = ""
    c_ms: float | None = None
    first_ms: float | None = None
    own_ms: float | None = None
    library_ms: float | None = None
    onnx_ms: float | None = None
    code_bytes: int = 0
    workspace_bytes: int = 0
    extra_bytes: int | None = None


def measure(name: str, calls: int, kept: Path, onnx: str, *, is_timed: bool) -> Row:
    """Export, build, run and compare one program."""
    deployed = {**PAIRS, **MODELS}[name]
    folder = kept / re.sub(r"\W+", "_", name)
    torch.manual_seed(1)
    inputs = deployed.calls()
    try:
        found = _exported(deployed, inputs[0], folder)
    except lt.ExportError as error:
        return Row(name=name, problem=str(error).splitlines()[0])
    function = found.functions[0].removeprefix("model_")
    same = agreement(lambda: _made(deployed), inputs, str(folder), function)
    row = Row(name=name, agreement=same, code_bytes=found.code_bytes)
    if not is_timed:
        return row
    output, resident = _run([f"{folder}/model_selftest", str(calls)], str(folder))
    times = _TEXT.search(output)
    assert times is not None, output
    given = (folder / "model_selftest.bin").stat().st_size
    outputs = _bytes_of(_made(deployed), inputs[0])
    known = found.weight_bytes + int(times[3]) + given + outputs
    return Row(
        name=name,
        agreement=same,
        c_ms=float(times[2]),
        first_ms=float(times[1]),
        own_ms=_in_process(deployed, inputs[0], calls, "kernels"),
        library_ms=_in_process(deployed, inputs[0], calls, ""),
        onnx_ms=_onnx(deployed, inputs[0], calls, folder, onnx) if onnx else None,
        code_bytes=found.code_bytes,
        workspace_bytes=int(times[3]),
        extra_bytes=resident - known,
    )


def _made(deployed: Deployed) -> Callable[..., Any]:
    torch.manual_seed(5)
    return deployed.make()


def _exported(deployed: Deployed, args: tuple[Any, ...], folder: Path) -> lt.Export:
    """Export, or return what is in the folder."""
    known = folder / "export.json"
    if known.exists():
        return lt.Export(**json.loads(known.read_text()))
    with torch.no_grad():
        model = lt.script(_made(deployed))
        found = lt.export_c(model, folder, args, weights="file", sizes=deployed.sizes)
    known.write_text(json.dumps(found.to_dict()))
    return found


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


def _bytes_of(model: Callable[..., Any], args: tuple[Any, ...]) -> int:
    with torch.no_grad():
        found = model(*args)
    tensors = found if isinstance(found, tuple) else (found,)
    return sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))


def _in_process(deployed: Deployed, args: tuple[Any, ...], calls: int, products: str) -> float:
    with config.override(products=products, kernels_only=bool(products)), torch.no_grad():
        compiled = lt.script(_made(deployed))
        compiled(*args)
        times: list[float] = []
        for _ in range(calls):
            start = time.process_time()
            compiled(*args)
            times.append(time.process_time() - start)
    return min(times) * 1e3


_ONNX: Final = """\
import sys, time
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
given = {x.name: np.load(f"{sys.argv[1]}.{k}.npy") for k, x in enumerate(session.get_inputs())}
times = []
for _ in range(int(sys.argv[2]) + 1):
    start = time.process_time()
    session.run(None, given)
    times.append(time.process_time() - start)
print(min(times) * 1e3)
"""


def _onnx(
    deployed: Deployed, args: tuple[Any, ...], calls: int, folder: Path, python: str
) -> float | None:
    """Return the least time of a call in ONNX Runtime, None for what it cannot have."""
    import numpy as np

    model, path = _made(deployed), folder / "model.onnx"
    if not isinstance(model, torch.nn.Module):
        return None
    try:
        torch.onnx.export(model, args, str(path), dynamo=False)
    except Exception as error:
        print(f"no ONNX: {type(error).__name__}: {str(error)[:200]}")
        return None
    for k, x in enumerate(args):
        np.save(f"{path}.{k}.npy", x.numpy())
    row = [python, "-c", _ONNX, str(path), str(calls)]
    found = subprocess.run(row, capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"no ONNX: {found.stderr[-300:]}")
        return None
    return float(found.stdout)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    head = (
        "| program | error, eager | error, C | C, ms | first call | in process | library's products"
        " | ONNX Runtime | code | workspace |\n"
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |"
    )
    lines = [
        f"| {r['name']} | {r['agreement']['eager_steps']:.1f} | {r['agreement']['c_steps']:.1f} |"
        f" {_ms(r['c_ms'])} | {_ms(r['first_ms'])} | {_ms(r['own_ms'])} |"
        f" {_ms(r['library_ms'])} | {_ms(r['onnx_ms'])} | {r['code_bytes'] / 1000:.0f} kB |"
        f" {r['workspace_bytes'] / 1e6:.1f} MB |"
        for r in rows
        if r["c_ms"] is not None
    ]
    return "\n".join([head, *lines])


def _ms(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}"


def page(rows: list[dict[str, Any]]) -> str:
    """Return what stands in the page."""
    others = [r for r in rows if r["c_ms"] is None]
    refused = [r["name"] for r in others if r["problem"]]
    apart = [r["name"] for r in rows if r["agreement"] and r["agreement"]["problem"]]
    compared = len(others) - len(refused)
    words = [
        "Errors are those beside PyTorch in float64, in steps of float32 at the result's largest "
        "value. Whole numbers are the same as PyTorch's, unless rounding decides them. One thread, "
        "processor time, the least of some calls. Where sizes are arguments, kernels are up to 1.4 "
        "times as slow as for a fixed size, which `sizes=` gives.",
        f"Of {len(others)} programs over pairs, {compared} are exported and compared in the same "
        f"way; not exported: {', '.join(refused) or 'none'}."
        + (f" Further apart than rounding explains: {', '.join(apart)}." if apart else ""),
    ]
    return "\n\n".join([table(rows), *(textwrap.fill(w, 100) for w in words)])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deploy")
    parser.add_argument("names", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--onnx", default="")
    parser.add_argument("--kept", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = this_machine("cpu")
    slug = re.sub(r"[^a-z0-9]+", "-", machine.cpu.lower()).strip("-")
    path = RESULTS / f"{datetime.date.today().isoformat()}-{slug}-deploy.json"
    rows = {r["name"]: r for r in json.loads(path.read_text())["rows"]} if path.exists() else {}
    names = [n for n in (PAIRS if options.pairs else MODELS)
             if not options.names or any(n.startswith(w) for w in options.names)]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        kept = options.kept or Path(place)
        for name in [] if options.page else names:
            row = measure(name, options.calls, kept, options.onnx, is_timed=not options.pairs)
            rows[name] = asdict(row)
            print(row, flush=True)
            ordered = [rows[n] for n in (*MODELS, *PAIRS) if n in rows]
            write_results(machine, {"rows": ordered}, "deploy", path)
    if options.page:
        update_page(page(list(rows.values())), BLOCK, PAGE)
    print(table(list(rows.values())))


if __name__ == "__main__":
    main()
