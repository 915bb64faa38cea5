"""The wheel and the sdist, installed into empty environments outside of the checkout.

    python -m tests.versions                            all pairs: an hour or more, and 5 GB each
    python -m tests.versions --python 3.12 --torch 2.11 one pair

In: the Pythons of this machine, releases of PyTorch. Out: a line for each pair, and a last line
that names them all; the exit status is 1 if a pair failed. In an environment of each pair the wheel
is installed with its dependencies, `lowtide demo --quick` has to agree with eager PyTorch, and so
has `lowtide try` on a function of the user's. A wheel made from the sdist has to be the same wheel.

A Python that the machine lacks, and a PyTorch that pip cannot install there, is "not to be had":
no failure. pip's own settings decide where packages come from. One environment exists at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11", "2.12", "2.13", "2.14")
NEEDED_BYTES = 15 << 30  # a build with CUDA, while pip unpacks it
_SECONDS = 1800  # the most that one command may take
_OURS = """
def nearest(x, y):
    return (x[:, None] - y[None]).square().sum(-1).min(1).values
"""
# Which Lowtide and which PyTorch the environment has; the values of a product of pairs.
_CHECK = """
import sys, torch, lowtide as lt
assert lt.__file__.startswith(sys.prefix), lt.__file__
from ours import nearest
x, y = torch.rand(40, 3, requires_grad=True), torch.rand(30, 3)
compiled = lt.script(nearest)
assert torch.allclose(compiled(x, y), nearest(x.double(), y.double()).float(), atol=1e-6)
compiled(x, y).sum().backward()
(expected,) = torch.autograd.grad(nearest(x, y).sum(), x)
assert torch.allclose(x.grad, expected, atol=1e-6)
sizes = [torch.empty(n, 3, device="meta") for n in (4000, 3000)]
assert compiled.memory(*sizes).peak_bytes < 1 << 20  # the pairs have 48 MB
print(torch.__version__)
"""


class NotToBeHad(Exception):
    """A pair that this machine cannot install."""


class Failed(Exception):
    """A command failed: its words."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`state`: "ran", "failed" or "not to be had"; `note`: PyTorch's full version, or why not."""

    python: str
    torch: str
    state: str
    note: str

    def __str__(self) -> str:
        return f"Python {self.python} with torch {self.torch}: {self.state} ({self.note})"


def interpreter(version: str) -> str | None:
    """Return a Python of this minor version that can make environments: this one, one on the path,
    or one of pyenv's. None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(p) for p in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    on_path = shutil.which(f"python{version}")
    for candidate in (sys.executable, *filter(None, [on_path]), *found):
        program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([candidate, "-c", program], capture_output=True, text=True)
        if said.returncode == 0 and said.stdout.strip() == version:
            return candidate
    return None


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Return what a command prints. It runs in `folder`, without the checkout on its path. Raises
    Failed."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    environment["LOWTIDE_CACHE_DIR"] = str(folder / "cache")
    try:
        done = subprocess.run(
            [*map(str, command)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[-1]}: no end after {_SECONDS} s") from error
    if done.returncode:
        raise Failed(done.stdout)
    return done.stdout


def build(folder: Path) -> Path:
    """Return the wheel of the checkout. Raises Failed, also if a wheel made from the sdist has
    other files."""
    run([sys.executable, "-m", "venv", "builder"], folder)
    python = folder / "builder" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run([*pip, "install", "--quiet", "hatchling>=1.27"], folder)
    # hatchling looks for pyproject.toml where it runs.
    shell = f'cd "{ROOT}" && "{python}" -m hatchling build -d "{folder / "dist"}"'
    run(["bash", "-c", shell], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    run([*pip, "wheel", "--quiet", "--no-deps", "-w", "again", sdist], folder)
    (again,) = (folder / "again").glob("*.whl")
    if different := _contents(wheel) ^ _contents(again):
        raise Failed(f"the wheel of the sdist differs: {sorted(different)}")
    return wheel


def _contents(wheel: Path) -> set[tuple[str, int]]:
    """Return the name and the checksum of each file."""
    with zipfile.ZipFile(wheel) as archive:
        return {(info.filename, info.CRC) for info in archive.infolist()}


def install(python: str, torch: str, wheel: Path, folder: Path) -> Path:
    """Return the `bin` of a new environment with PyTorch and the wheel. Raises NotToBeHad if
    there is no such PyTorch; Failed."""
    if (free := shutil.disk_usage(folder).free) < NEEDED_BYTES:
        raise NotToBeHad(f"{free >> 30} GB of disk are free, {NEEDED_BYTES >> 30} are needed")
    run([python, "-m", "venv", "env"], folder)
    programs = folder / "env" / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    wanted = f"torch=={torch}.*"
    try:
        run([*pip, "--no-cache-dir", wanted], folder)
    except Failed as error:
        reasons = [s for s in str(error).splitlines() if s.startswith("ERROR: ")] or [str(error)]
        raise NotToBeHad(f"pip: {reasons[-1][:200]}") from error
    run([*pip, wanted, wheel], folder)
    return programs


def try_out(programs: Path, folder: Path) -> str:
    """Return the version of PyTorch, after the demo, `lowtide try` and some values. Raises
    Failed."""
    (folder / "ours.py").write_text(_OURS, encoding="utf-8")
    (folder / "check.py").write_text(_CHECK, encoding="utf-8")
    found = run([programs / "python", "check.py"], folder).strip().splitlines()[-1]
    said = run([programs / "lowtide", "try", "ours:nearest", "--shape", "400x3,300x3"], folder)
    if "The results agree" not in said:
        raise Failed(said)
    run([programs / "lowtide", "demo", "--quick"], folder)
    return found


def of_pair(version: str, torch: str, wheel: Path) -> Outcome:
    """Return what became of a pair; its environment is gone."""
    python = interpreter(version)
    state, note = "not to be had", f"no python{version} with venv"
    if python is not None:
        with tempfile.TemporaryDirectory(prefix="lowtide-versions-") as name:
            folder = Path(name)
            try:
                found = try_out(install(python, torch, wheel, folder), folder)
                state, note = "ran", found
            except NotToBeHad as error:
                note = str(error)
            except Failed as error:
                print(str(error)[-4000:])
                state, note = "failed", "see above"
    return Outcome(python=version, torch=torch, state=state, note=note)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return one line: the pairs by what became of them."""
    parts = list[str]()
    for state in ("ran", "failed", "not to be had"):
        pairs = [f"{o.python}/{o.torch}" for o in outcomes if o.state == state]
        parts.append(f"{len(pairs)} {state}" + (f" ({', '.join(pairs)})" if pairs else ""))
    return " · ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", action="append", metavar="3.X", help="one of these; repeatable")
    parser.add_argument("--torch", action="append", metavar="2.X", help="one of these; repeatable")
    args = parser.parse_args()
    pairs = [(p, t) for p in args.python or PYTHONS for t in args.torch or TORCHES]
    outcomes = list[Outcome]()
    with tempfile.TemporaryDirectory(prefix="lowtide-wheel-") as name:
        try:
            wheel = build(Path(name))
        except Failed as error:
            print(error)
            print("FAILED versions::build")
            return 1
        for pair in pairs:
            outcome = of_pair(*pair, wheel)
            outcomes.append(outcome)
            start = f"FAILED versions::{pair[0]}/{pair[1]} " if outcome.state == "failed" else ""
            print(f"{start}{outcome}", flush=True)
    print(summary(outcomes))
    return 1 if any(o.state == "failed" for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
