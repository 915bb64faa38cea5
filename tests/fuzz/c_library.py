"""Calls exported C in wrong and unusual ways, under sanitizers: `python -m tests.fuzz.c_library`.

In: options. Out: a line for each program and instruction set; the exit status is 1 if a call did
what it must not do, or a sanitizer reported.

    python -m tests.fuzz.c_library --rounds 20000 --seed 3 nms gpt2

The programs are the examples of examples/deploy and others of several sizes; see
`tests/fuzz/c_library_calls` for what is tried. Each is compiled with AddressSanitizer and
UndefinedBehaviorSanitizer for each instruction set of this machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import lowtide as lt
from benchmarks.deploy_models import Tagger, chamfer, kmeans
from examples.deploy.audio.export import FRAME, Denoiser
from examples.deploy.c.export import example, nms
from examples.deploy.gpt2.export import Model
from lowtide.c_library.sets import SETS
from lowtide.runtime import toolchain
from tests.c_library.calling import SANITIZERS
from tests.fuzz.c_library_calls import program

_LIMIT_S: Final = 1800


@dataclass(frozen=True, kw_only=True)
class Case:
    """`make`: the function or module; `args`: of the example; `constants`: ints that are fixed."""

    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    constants: Mapping[str, int] = field(default_factory=dict[str, int])


def picked(table: Tensor, places: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, float]:
    rows = table[places] * weights[:, None]
    found = rows[rows.sum(1) > 0.5]
    return found, torch.zeros(table.shape[0]).index_add(0, places, weights), float(weights.sum())


def parts(x: Tensor, n: int) -> tuple[Tensor, Tensor, int]:
    assert x.shape[0] > 2, "too few"
    values, at = x.sort(0)
    steps: list[int] = []
    for i in range(x.shape[0]):
        if bool(x[i].sum() > 0):
            steps.append(i + n)
    return values[1:], at[:2], len(steps)


CASES: Final[Mapping[str, Case]] = {
    "nms": Case(make=lambda: nms, args=example(60)),
    "chamfer": Case(make=lambda: chamfer, args=(torch.rand(50, 3), torch.rand(40, 3))),
    "kmeans": Case(make=lambda: kmeans, args=(torch.rand(90, 3), torch.rand(40, 3), 1e-3)),
    "audio": Case(make=Denoiser, args=(torch.rand(FRAME),), sizes={"frame.shape[0]": FRAME}),
    "gpt2": Case(make=Model, args=(torch.tensor(1),)),
    "tagger": Case(make=Tagger, args=(torch.randint(0, 1000, (1, 40)),)),
    "picked": Case(
        make=lambda: picked,
        args=(torch.rand(60, 4), torch.randint(0, 60, (40,)), torch.rand(40)),
    ),
    "parts": Case(make=lambda: parts, args=(torch.randn(50, 3), 3)),
}


def exported(case: Case, folder: Path) -> None:
    """Write the library, and `calls.c`."""
    made = case.make()
    model = made.eval() if isinstance(made, torch.nn.Module) else made
    found = lt.export_c(lt.script(model), folder, case.args, weights="file", sizes=case.sizes)
    text = (folder / "model.h").read_text()
    is_file = found.weight_bytes > 0
    calls = program(text, "model", is_file=is_file, constants=dict(case.constants))
    (folder / "calls.c").write_text(calls)


def tried(
    folder: Path, flags: Sequence[str], seed: int, rounds: int
) -> subprocess.CompletedProcess[str]:
    """Compile with sanitizers, and run so many rounds; the output is how often each status came."""
    found = toolchain.compiler()
    dropped = ("-O", "-shared", "-nostdlib", "-march", "-mcpu", "-mprefer")
    usual = [f for f in found.flags if not f.startswith(dropped)]
    row = [*found.command, *usual, *flags, "-O1", "-w", "-Wno-psabi", *SANITIZERS, "-o", "calls",
           "model.c", "calls.c", "-lm"]  # fmt: skip
    subprocess.run(row, check=True, cwd=folder)
    return subprocess.run(
        [str(folder / "calls"), str(seed), str(rounds)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
        env={"ASAN_OPTIONS": "detect_leaks=0"},
    )


def sets_here() -> dict[str, list[str]]:
    """Return the compiler's flags for each instruction set of this machine."""
    target = toolchain.target()
    if target.arch != "x86_64":
        return {"native": []}
    usable = {k: words for k, words in SETS.items()
              if {w for w in words if w.startswith("avx")} <= target.features}  # fmt: skip
    return {k: [f"-m{w}" for w in words] for k, words in usable.items()}


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.c_library")
    parser.add_argument("names", nargs="*", metavar="program", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    is_failed = False
    for name in options.names or CASES:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            exported(CASES[name], folder)
            for chosen, flags in sets_here().items():
                found = tried(folder, flags, options.seed, options.rounds)
                if found.returncode:
                    is_failed = True
                    print(f"FAILED {name}::{chosen}", found.returncode, found.stderr[-4000:])
                print(f"{name}, {chosen}: {found.stdout}", flush=True)
    return int(is_failed)


if __name__ == "__main__":
    sys.exit(main())
