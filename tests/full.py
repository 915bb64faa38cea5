"""Runs all tests that a change of the compiler has to pass: `python -m tests.full`.

In: names of parts, or none for all. Out: a JSON file in benchmarks/results; the exit status is 1 if
a part failed.

    ./dev test full                    all parts
    ./dev test full clang sanitize     two of them

Each part is a command of its own. The file has the machine; for each part its commit, exit status,
the names that failed, the last printed line, and the seconds it took. Parts that an earlier run of
the day wrote stay in the file until they are run again.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_FAILED = re.compile(r"(FAILED|ERROR) \S+::|==== seed |(tests/\S+::\S+|seed \d+): ")
PYTEST = ("-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# What a second compiler is tried on: kernels, numbers, gradients, loops, models.
_KERNELS = (
    "tests/emit", "tests/run", "tests/grad/test_gradient_programs.py", "tests/loops",
    "tests/dynamo/test_models.py", "tests/training", "tests/fuzz",
)  # fmt: skip
_FUZZ = ("-m", "tests.fuzz", "--optimize=-O2")


@dataclass(frozen=True, kw_only=True)
class Part:
    """`arguments` of Python; `needs`: programs, `modules`: Python's, without which the part is left
    out."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


PARTS = (
    Part(name="tests", arguments=(*PYTEST, "-m", "long or not long", "--optimize=-O2")),
    Part(
        name="clang",
        arguments=(*PYTEST, "--optimize=-O2", *_KERNELS),
        environment={"LOWTIDE_CC": "clang"},
        needs=("clang",),
    ),
    Part(name="sanitize", arguments=("-m", "tests.sanitize", "--programs", "500")),
    Part(name="fuzz", arguments=(*_FUZZ, "--programs", "500")),
    Part(name="fuzz-pointwise", arguments=(*_FUZZ, "--pointwise", "--programs", "500")),
    Part(name="fuzz-gradients", arguments=(*_FUZZ, "--grad", "--programs", "200")),
    Part(name="fuzz-loops", arguments=(*_FUZZ, "--loops", "--programs", "200")),
    Part(name="fuzz-states", arguments=(*_FUZZ, "--states", "--programs", "200")),
    Part(name="fuzz-lists", arguments=(*_FUZZ, "--lists", "--programs", "200")),
    Part(name="fuzz-mixed", arguments=(*_FUZZ, "--mixed", "--programs", "200")),
    Part(name="fuzz-same-value", arguments=("-m", "tests.fuzz.same_value")),
    Part(
        name="fuzz-torchscript",
        arguments=("-m", "tests.deploy.torchscript.fuzz_torchscript", "--files", "20000"),
    ),
    Part(name="fuzz-c-library", arguments=("-m", "tests.fuzz.c_library", "--rounds", "20000")),
    Part(name="packages", arguments=("-m", "tests.packages")),
    Part(name="versions", arguments=("-m", "tests.versions")),
    Part(
        name="notebooks",
        arguments=("-m", "tests.docs.notebooks"),
        modules=("nbclient", "ipykernel"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`commit`: what was checked out. `status`: the part's exit status, None where it was left out.
    `failed`: the lines that name what failed."""

    name: str
    commit: str
    status: int | None
    seconds: float
    command: str
    failed: list[str]
    last_line: str


def run(part: Part) -> Outcome:
    """Runs a part; what it prints is shown as it comes."""
    command = " ".join(["python", *part.arguments])
    missing = [name for name in part.needs if shutil.which(name) is None]
    missing += [name for name in part.modules if importlib.util.find_spec(name) is None]
    if missing:
        note = f"left out: {', '.join(missing)} is not installed"
        return Outcome(
            name=part.name, commit=commit(), status=None, seconds=0, command=command, failed=[],
            last_line=note,
        )  # fmt: skip
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    begun, failed, last = time.monotonic(), list[str](), ""
    process = subprocess.Popen(
        [sys.executable, *part.arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, **part.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
        if _FAILED.match(line):
            failed.append(line.rstrip()[:300])
    status = process.wait()
    seconds = round(time.monotonic() - begun, 1)
    return Outcome(
        name=part.name,
        commit=commit(),
        status=status,
        seconds=seconds,
        command=command,
        failed=failed,
        last_line=last,
    )


def commit() -> str:
    """The commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def machine() -> dict[str, str]:
    """What the results are of."""
    import torch

    from lowtide.runtime import toolchain

    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8") if sys.platform == "linux" else ""
    found = re.search(r"vendor_id\s*:\s*(\S+)(?s:.*?)model name\s*:\s*(.*)", cpu)
    vendor, model = (found[1], found[2].strip()) if found else ("unknown", "unknown")
    compiler = toolchain.compiler()
    return {
        "vendor": vendor,
        "cpu": model,
        "vector_bytes": str(compiler.target.vector_bytes),
        "compiler": f"{compiler.kind} {compiler.version}",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def _recorded(path: Path, about: dict[str, str]) -> dict[str, dict[str, object]]:
    """The parts that an earlier run on the same machine wrote to the file."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    parts = found.pop("parts")
    return {part["name"]: part for part in parts} if found == about else {}


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.full",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(names):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    about, outcomes = machine(), list[Outcome]()
    day, vendor = datetime.date.today().isoformat(), about["vendor"].lower()
    path = args.out / f"{day}-{vendor}-full-tests.json"
    before = _recorded(path, about)
    for part in PARTS:
        if args.parts and part.name not in args.parts:
            continue
        print(f"==== {part.name}", flush=True)
        outcomes.append(run(part))
        parts = before | {o.name: asdict(o) for o in outcomes}
        found = {**about, "parts": [parts[p.name] for p in PARTS if p.name in parts]}
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for o in outcomes:
        state = "left out" if o.status is None else "passed" if o.status == 0 else "FAILED"
        print(f"{o.name:16} {state:9} {o.seconds:8.0f} s")
    print(path)
    return 1 if any(o.status for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
