"""Runs generated C under sanitizers: `python -m tests.sanitize`.

In: options. Out: the names of tests and seeds that fail; the exit status is 1 if there were any.

    python -m tests.sanitize --programs 500 --out found.json

For each instruction set of this machine and each sanitizer, `tests/emit`, `tests/run` and usual
random programs run in processes of their own. The C compiler is a script that adds the sanitizer's
flags. Undefined behaviour traps. An access next to memory of PyTorch or a local array ends the
process with AddressSanitizer's report. The test or seed that ended the process is named, and a new
process goes on with the next one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from lowtide.runtime import toolchain

_ROOT = Path(__file__).resolve().parent.parent
_CORPORA = ("tests/emit", "tests/run")
_LONGEST_S = 3600  # for one file of tests, or a batch of programs
_BATCH = 100

# Instruction sets: the feature in /proc/cpuinfo that they need, and the compiler's flag.
_SETS = {
    "native": ("", "-march=native"),
    "baseline": ("", "-march=x86-64"),
    "avx2": ("avx2", "-march=x86-64-v3"),
    "avx512": ("avx512vl", "-march=x86-64-v4"),
}
_UNDEFINED = "-fsanitize=undefined,float-cast-overflow"
# Kinds of undefined behaviour that are none in generated C, and why.
_DEFINED = {
    "signed-integer-overflow": "-fwrapv is in force: integers wrap around, as in PyTorch",
}
_SANITIZERS = {
    "undefined": (_UNDEFINED, "-fsanitize-undefined-trap-on-error",
                  *(f"-fno-sanitize={kind}" for kind in _DEFINED)),
    "address": ("-fsanitize=address", "-fno-omit-frame-pointer"),
}  # fmt: skip
# Findings that are none: (sanitizer, how the test's name begins) and the reason.
_EXPLAINED: dict[tuple[str, str], str] = {}


@dataclass(frozen=True, slots=True)
class Finding:
    """A test or program that died or failed: under what, and its last words."""

    instructions: str
    sanitizer: str
    where: str
    words: str


def main() -> int:
    args = _arguments()
    findings: list[Finding] = []
    explained: list[str] = []
    for instructions in args.sets or _sets():
        for sanitizer in args.sanitizers or _SANITIZERS:
            print(f"== {instructions}, {sanitizer}", flush=True)
            for found in _ran(args, instructions, sanitizer):
                reason = _explanation(found)
                if reason:
                    explained.append(f"{found.where}: {reason}")
                else:
                    findings.append(found)
                print(f"{found.where}: {reason or found.words}", flush=True)
    print(f"{len(findings)} findings")
    if args.out:
        report = _conditions(args) | {"findings": [asdict(f) for f in findings]}
        report["explained"] = sorted(set(explained))
        Path(args.out).write_text(json.dumps(report, indent=2) + "\n")
    return 1 if findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sanitize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tests", nargs="*", help="files or folders in the place of emit and run")
    parser.add_argument("--programs", type=int, default=500, help="fuzzed, under each")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--sets", nargs="+", choices=[*_SETS], help="of instructions; else all")
    parser.add_argument("--sanitizers", nargs="+", choices=[*_SANITIZERS])
    parser.add_argument("--no-tests", action="store_true", help="programs only")
    parser.add_argument("--out", default="", help="where to write the result, as JSON")
    return parser.parse_args()


def _sets() -> list[str]:
    """The instruction sets of this machine."""
    if "x86_64" not in toolchain.cpu_identity():
        return ["native"]
    words = set(toolchain.cpu_identity().split())
    return [name for name, (needs, _) in _SETS.items() if not needs or needs in words]


def _ran(args: argparse.Namespace, instructions: str, sanitizer: str) -> Iterator[Finding]:
    """Runs all under one sanitizer; what it found."""
    with tempfile.TemporaryDirectory(prefix="lowtide-sanitize-") as place:
        compiler = compiler_script(Path(place), instructions, sanitizer)
        environment = environment_of(Path(place), compiler, sanitizer)
        end = args.seed + args.programs
        batches = [range(s, min(s + _BATCH, end)) for s in range(args.seed, end, _BATCH)]
        files = [] if args.no_tests else _files(args.tests or _CORPORA)
        parts = [
            *((f"programs from {s.start}", partial(_of_programs, s)) for s in batches),
            *((file, partial(of_tests, file)) for file in files),
        ]
        for number, (name, part) in enumerate(parts, start=1):
            begun = time.monotonic()
            found = part(environment)
            took = time.monotonic() - begun
            print(f"{number} of {len(parts)}: {name}, {took:.0f} s", flush=True)
            for where, words in found:
                yield Finding(instructions, sanitizer, where, words)


def compiler_script(place: Path, instructions: str, sanitizer: str) -> Path:
    """A script that is the compiler with more flags, after all others."""
    command = shlex.join(toolchain.find_command(os.environ.get("LOWTIDE_CC", "")))
    march = _SETS[instructions][1] if instructions != "native" else ""
    more = " ".join((march, *_SANITIZERS[sanitizer]))
    # AddressSanitizer's functions are in a library; the rest of a kernel needs none.
    dropped = "-nostdlib" if sanitizer == "address" else "nothing"
    script = place / "compiler"
    script.write_text(
        f"""#!/bin/sh
for word; do
  shift
  case "$word" in {dropped}) ;; *) set -- "$@" "$word" ;; esac
done
exec {command} "$@" {more}
"""
    )
    script.chmod(0o755)
    return script


def environment_of(place: Path, compiler: Path, sanitizer: str) -> dict[str, str]:
    found = {**os.environ, "LOWTIDE_CC": str(compiler), "LOWTIDE_CACHE_DIR": str(place / "cache")}
    if sanitizer == "address":
        found["LD_PRELOAD"] = _runtime()
        # Python keeps what it allocated, and objects too small for malloc, to itself.
        found["ASAN_OPTIONS"] = "detect_leaks=0:handle_segv=0:abort_on_error=1"
        found["PYTHONMALLOC"] = "malloc"
    return found


def _runtime() -> str:
    """AddressSanitizer's library, to be loaded before all others, and what must come next."""
    command = toolchain.find_command(os.environ.get("LOWTIDE_CC", ""))
    for name in ("libasan.so", "libclang_rt.asan-x86_64.so"):
        asked = [*command, f"-print-file-name={name}"]
        path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if os.path.isabs(path):
            # Else it does not find how C++ throws, and ends the process at the first exception.
            asked[-1] = "-print-file-name=libstdc++.so.6"
            thrown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            return f"{os.path.realpath(path)} {thrown.strip()}"
    raise SystemExit("AddressSanitizer's library was not found")


def _files(places: tuple[str, ...] | list[str]) -> list[str]:
    found: list[str] = []
    for place in places:
        path = _ROOT / place.split("::")[0]
        inside = sorted(path.glob("**/test_*.py")) if path.is_dir() else []
        found += [str(p.relative_to(_ROOT)) for p in inside] or [place]
    return found


def of_tests(file: str, environment: dict[str, str]) -> list[tuple[str, str]]:
    """Which tests of a file died, or failed. One that dies is left out from then on."""
    found: list[tuple[str, str]] = []
    while True:
        command = ["-m", "pytest", file, "-vv", "-p", "no:cacheprovider", "--tb=line", "-n0"]
        command += [f"--deselect={where}" for where, _ in found]
        status, text = python([*command, "--optimize=-O1"], environment)
        if status >= 0:
            break
        begun = re.findall(r"^(\S+\.py::.*?) ", text, re.MULTILINE)
        found.append((begun[-1] if begun else file, _last_words(status, text)))
        if not begun:
            return found
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?)(?: - (.*))?$", text, re.MULTILINE)
    found += [(where, words or "failed") for where, words in failed]
    if status not in (0, 1, 5) and not failed:  # 5: no test is left
        found.append((file, text[-1500:]))
    return found


def _of_programs(seeds: range, environment: dict[str, str]) -> list[tuple[str, str]]:
    """Which usual fuzzed programs died, or went wrong."""
    command = ["-m", "tests.fuzz", "--programs", str(len(seeds)), "--seed", str(seeds.start)]
    status, text = python([*command, "--optimize=-O1", "--keep", "--jobs=1"], environment)
    found: list[tuple[str, str]] = []
    for block in re.split(r"^==== ", text, flags=re.MULTILINE)[1:]:
        head = re.match(r"seed \d+", block)
        found.append((head[0] if head else "programs", block[:1500]))
    if status and not found:
        found.append((f"programs from {seeds.start}", _last_words(status, text)))
    return found


def python(arguments: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output; one that takes too long is killed, which is its status."""
    try:
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=_ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return -signal.SIGKILL, (late.stdout or b"").decode(errors="replace")
    return result.returncode, result.stdout.decode(errors="replace")


def _last_words(status: int, text: str) -> str:
    """What AddressSanitizer said, else how the process ended."""
    said = text.find("ERROR: AddressSanitizer")
    return text[said : said + 1500] if said >= 0 else f"signal {-status}: {text[-800:]}"


def _explanation(found: Finding) -> str:
    for (sanitizer, where), reason in _EXPLAINED.items():
        if sanitizer == found.sanitizer and found.where.startswith(where):
            return reason
    return ""


def _conditions(args: argparse.Namespace) -> dict[str, object]:
    """What was run, on what."""
    git = shutil.which("git")
    commit = ""
    if git:
        asked = [git, "rev-parse", "HEAD"]
        commit = subprocess.run(asked, cwd=_ROOT, capture_output=True, text=True).stdout.strip()
    vendor = re.search(r"vendor_id=(\S+?);", toolchain.cpu_identity())
    compiler = toolchain.compiler()
    return {
        "commit": commit,
        "cpu_vendor": vendor[1] if vendor else "",
        "compiler": f"{compiler.kind} {compiler.version}",
        "instruction_sets": args.sets or _sets(),
        "sanitizers": args.sanitizers or [*_SANITIZERS],
        "tests": [] if args.no_tests else list(args.tests or _CORPORA),
        "programs": args.programs,
        "allowed": _DEFINED,
    }


if __name__ == "__main__":
    sys.exit(main())
