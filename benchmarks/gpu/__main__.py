"""`python -m benchmarks.gpu`: what this checkout does on this machine's GPU, in a table.

Exit status: 0 if every value of Lowtide's was right and nothing failed, 1 if not, 2 if there is no
GPU. What fails does not end the run; each program's results are written when it ends, and a report
is written whatever happens, with what failed.
"""

from __future__ import annotations

import argparse
import getpass
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.files import RESULTS
from benchmarks.gpu import STARTED_S
from benchmarks.gpu.child import Child, Limits, Measured
from benchmarks.gpu.jobs import LEAST_S, Job, all_jobs, share_s
from benchmarks.gpu.measure import LOWTIDE
from benchmarks.gpu.programs import GPU_PROGRAMS
from benchmarks.gpu.report import Report
from benchmarks.gpu.worker import DRY, FULL, SIMULATED
from lowtide.tools.comparison import describe_error

ROOT = Path(__file__).parent.parent.parent
_LAST_S = 15.0  # of the time, for the end
_GIT_S = 20.0
_LOG_CHARACTERS = 1_000_000


def main(arguments: Sequence[str] | None = None, start_s: float | None = None) -> int:
    """Measure, write, say. Gives the exit status. `start_s`: from when on the minutes count."""
    start_s = time.monotonic() if start_s is None else start_s
    options = _parse(arguments)
    env, effort = dict(os.environ), DRY if options.dry_run else FULL
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    if not torch.cuda.is_available():
        if not options.dry_run:
            _say(_no_gpu())
            return 2
        from tests.simulated.__main__ import variables_or_exit

        env |= {x: y for x, y in variables_or_exit().items() if os.environ.get(x) != y}
        effort = SIMULATED
    folder = options.out or (Path(tempfile.mkdtemp()) if options.dry_run else RESULTS)
    slower = 1 if effort == FULL else 5  # the interpreter takes its time
    limits = Limits(
        compile_s=slower * options.compile_seconds,
        stage_s=slower * options.stage_seconds,
        end_s=start_s + 60 * options.minutes - _LAST_S,
    )
    report = Report(settings=_settings(options, effort), commit=commit())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        log = Path(scratch, "log")
        command = [sys.executable, "-m", "benchmarks.gpu.worker", effort]
        child = Child(command, log, env | caches(env, Path(scratch)))
        try:
            run_all(child, report, all_jobs(options.programs), limits, folder)
        except Exception as fault:
            traceback.print_exc()
            report.failures.append(f"the command itself failed: {describe_error(fault)}")
        finally:
            child.stop()
            path = _write(report, folder, child.said())
    print(f"\n{report.to_markdown()}\nwritten: {path}", flush=True)
    return 1 if report.faults() else 0


def run_all(
    child: Child, report: Report, jobs: Sequence[Job], limits: Limits, folder: Path
) -> None:
    """The jobs in order, each within its share of the time; written after each."""
    report.missing = list(jobs)
    report.checks = child.checks(limits)
    report.hello = child.hello
    _greet(report)
    while report.missing and not child.lost:
        job, left_s = report.missing[0], limits.left_s
        if left_s < LEAST_S:
            _say(f"no time left for {len(report.missing)} measurements, from {job.name} on")
            return
        measured = child.measure(job, share_s(report.missing, left_s), limits)
        report.measured.append(measured)
        report.missing = report.missing[1:]
        _say(line_of(measured))
        _write(report, folder)
    if child.lost and not any(child.lost in fault for fault in report.faults()):
        report.failures.append(child.lost)


def _write(report: Report, folder: Path, said: str = "") -> Path | None:
    """Writes it there, or where temporary files go; at the end with what children have `said`, if
    anything failed. Gives the table's path, None where nothing can be written."""
    for chosen in (folder, Path(tempfile.gettempdir())):
        try:
            path = report.write(chosen)
            if said and (report.faults() or report.peers_faults()):
                path.with_suffix(".log").write_text(said[-_LOG_CHARACTERS:], encoding="utf-8")
            return path
        except Exception:  # what is measured next counts for more
            traceback.print_exc()
    return None


def line_of(measured: Measured) -> str:
    """One job in one line, or more where something failed."""
    single = Report(settings={}, commit="", measured=[measured])
    known = measured.variants.get(LOWTIDE, {})
    state = "values right" if known.get("verdicts") else "values not checked"
    troubles = [*single.faults(), *single.peers_faults()]
    lines = [f"{measured.job.name}: {'see below' if single.faults() else state}"]
    return "\n".join([*lines, *(f"    {trouble}" for trouble in troubles)])


def commit() -> str:
    """The checkout's commit, and whether it has changes; else a digest of Lowtide's files."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=_GIT_S,
        )  # fmt: skip
        if found.returncode == 0:
            return found.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    digest = hashlib.sha256()
    for path in sorted((ROOT / "lowtide").rglob("*.py")):
        digest.update(path.read_bytes())
    return f"no git; sha256 of lowtide/**/*.py is {digest.hexdigest()[:16]}"


def _settings(options: argparse.Namespace, effort: str) -> dict[str, Any]:
    return {
        "minutes": options.minutes,
        "effort": effort,
        "allow_tf32": "in rows of tf32 only",
        "seconds for torch.compile": options.compile_seconds,
        "torch.compile": "dynamic=False, default mode",
    }


def caches(env: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Folders for what Triton and Inductor compile, where they could not write to their own."""
    usual = {
        "TRITON_CACHE_DIR": lambda: Path(env.get("TRITON_HOME") or Path.home(), ".triton/cache"),
        "TORCHINDUCTOR_CACHE_DIR": lambda: Path(
            tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}"
        ),
    }
    found: dict[str, str] = {}
    for name, default in usual.items():
        try:
            folder = Path(env[name]) if env.get(name) else default()
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except (OSError, RuntimeError, KeyError) as fault:  # no home, no name
            _say(f"LOOK: {name}: {fault}; a temporary folder takes its place")
            found[name] = str(scratch / name.lower())
    return found


def _greet(report: Report) -> None:
    machine = report.machine
    versions = f"driver {report.hello.get('driver') or 'unknown'}, torch {machine.get('torch')}"
    _say(f"{machine.get('gpu')}, {versions}")
    for check in report.checks:
        state = "ok" if check["ok"] else "LOOK"
        _say(f"{state}: {check['name']}: {check['detail']} {check['remedy']}".rstrip())
    if not shutil.which("gcc") and not shutil.which("cc") and not shutil.which("clang"):
        _say(
            "LOOK: no C compiler. Triton needs one at its first launch on a machine, and so does "
            "torch.compile; Lowtide's own compiler is for kernels of the CPU only"
        )


def _no_gpu() -> str:
    from lowtide.runtime import doctor

    found = [x for x in doctor.checks() if x.name == "GPU"]
    why = "; ".join(f"{x.detail} {x.remedy}".strip() for x in found)
    return f"There is no GPU that PyTorch {torch.__version__} can use. {why}\n--dry-run needs none."


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("programs", nargs="*", help="names, or name:precision (all)")
    parser.add_argument("--minutes", type=float, default=12.0, help="for everything (12)")
    parser.add_argument("--out", type=Path, help="a folder (benchmarks/results)")
    parser.add_argument("--dry-run", action="store_true", help="small sizes, one round")
    parser.add_argument(
        "--compile-seconds", type=float, default=60.0,
        help="most seconds of torch.compile's first call (60)",
    )  # fmt: skip
    parser.add_argument(
        "--stage-seconds", type=float, default=90.0, help="most seconds of another step (90)"
    )
    options = parser.parse_args(arguments)
    for name in options.programs:
        if name.partition(":")[0] not in GPU_PROGRAMS:
            parser.error(f"no program {name}; there are {', '.join(GPU_PROGRAMS)}")
    return options


def _end(*_: object) -> None:
    sys.exit(143)  # so that the child ends, and what there is is written


def _say(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        cast("TextIOWrapper", stream).reconfigure(errors="replace")  # a locale may have no "×"
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(start_s=STARTED_S))
