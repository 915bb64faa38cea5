"""Random programs, compiled and compared with eager PyTorch: `python -m tests.fuzz`.

In: options, see `--help`. Out: failures, as source of small programs; the exit status is 1 if there
were any.

    python -m tests.fuzz --programs 2000 --seed 0        what people write (`usual`)
    python -m tests.fuzz --grad --programs 200           gradients of random expressions
    python -m tests.fuzz --states --programs 200         modules that keep state
    python -m tests.fuzz --show --programs 1 --seed 7    prints a program, and runs nothing

Programs of `usual` are compiled with the flags that users get, all others quickly (`quickly`). A
worker writes each seed down before it runs the program. If a program kills its process, the seed is
reported, and a new worker goes on with the next one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LONGEST_S = 300


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the programs, run nothing")
    parser.add_argument("--optimize", default="", help="the C compiler's; kernels ship with -O2")
    parser.add_argument("--keep", action="store_true", help="do not make failing programs small")
    parser.add_argument("--stop", type=int, default=20, help="stop after so many failures")
    parser.add_argument(
        "--pointwise", action="store_true", help="sums and pointwise, exactly judged"
    )
    parser.add_argument("--grad", action="store_true", help="compare gradients, in float64")
    parser.add_argument("--loops", action="store_true", help="programs of loops, with gradients")
    parser.add_argument("--memory", action="store_true", help="peaks predicted and measured")
    parser.add_argument("--budgets", action="store_true", help="… of graphs, within budgets")
    parser.add_argument("--states", action="store_true", help="modules that keep state")
    parser.add_argument("--lists", action="store_true", help="which list is which, in plain Python")
    parser.add_argument("--mixed", action="store_true", help="numbers, strings and containers")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    if args.show:
        generate, _ = _kind(args)
        for seed in range(args.seed, args.seed + args.programs):
            print(generate(seed))
        return 0
    if args.worker:
        return _work(args)
    return _supervise(args)


def _supervise(args: argparse.Namespace) -> int:
    begun = time.monotonic()
    end = args.seed + args.programs
    failed = 0
    with tempfile.TemporaryDirectory(prefix="lowtide-fuzz-cache-") as cache:
        environment = {**os.environ, "LOWTIDE_CACHE_DIR": cache}
        share = -(-args.programs // args.jobs)
        running: list[tuple[subprocess.Popen[bytes], Path, int]] = []

        def start(first: int, last: int) -> None:
            mark = Path(cache) / f"mark{first}"
            command = [sys.executable, "-m", "tests.fuzz", "--worker", str(mark)]
            command += ["--seed", str(first), "--programs", str(last - first)]
            command += [f"--optimize={args.optimize}", "--stop", str(args.stop)]
            command += ["--keep"] * args.keep + ["--grad"] * args.grad
            command += ["--pointwise"] * args.pointwise
            command += ["--loops"] * args.loops + ["--memory"] * args.memory
            command += ["--states"] * args.states + ["--mixed"] * args.mixed
            command += ["--lists"] * args.lists + ["--budgets"] * args.budgets
            running.append((subprocess.Popen(command, env=environment), mark, last))

        for first in range(args.seed, end, share):
            start(first, min(first + share, end))
        while running:
            process, mark, last = running.pop(0)
            status = process.wait()
            failed += status != 0
            if status < 0:
                seed = int(mark.read_text())
                print(f"\n==== seed {seed} killed its process (signal {-status})", flush=True)
                if seed + 1 < last and failed < args.stop:
                    start(seed + 1, last)
    print(f"{args.programs} programs from seed {args.seed}: {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


def _kind(args: argparse.Namespace) -> tuple[Callable[[int], Any], Any]:
    """What makes programs, and the module that judges them."""
    from tests.fuzz import (
        alias_check,
        aliases,
        budget_check,
        check,
        generate,
        gradients,
        loop_check,
        loops,
        memory_check,
        mixed,
        mixed_check,
        state_check,
        states,
        usual,
        usual_check,
    )

    if args.lists:
        return aliases.generate, alias_check
    if args.mixed:
        return mixed.generate, mixed_check
    if args.states:
        return states.generate, state_check
    if args.loops:
        return loops.generate, loop_check
    if args.memory:
        return generate.generate, memory_check
    if args.budgets:
        return generate.generate, budget_check
    if args.grad:
        return generate.generate, gradients
    if args.pointwise:
        return generate.generate, check
    return usual.generate, usual_check


def _work(args: argparse.Namespace) -> int:
    from tests.fuzz import usual_check
    from tests.fuzz.check import Tally
    from tests.quickly import compile_quickly

    generate, kind = _kind(args)
    check, failure, minimised = kind.check, kind.failure, kind.minimised

    if kind is usual_check:
        warnings.simplefilter("ignore")
    if args.optimize or kind is not usual_check:  # the usual ones are compiled as users compile
        compile_quickly(args.optimize)
    tally, failed = Tally(), 0
    for seed in range(args.seed, args.seed + args.programs):
        Path(args.worker).write_text(str(seed))
        signal.alarm(_LONGEST_S)  # it kills the process, and is reported as what did
        program = generate(seed)
        try:
            wrong = check(program, tally)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            failed += 1
            print(f"\n==== seed {seed}: {wrong[:1500]}", flush=True)
            signal.alarm(0)
            small = program if args.keep else minimised(program)
            print(f"{small}\n# {failure(small)[:1500]}", flush=True)
            if failed >= args.stop:
                break
    print(
        f"{tally.runs} runs: {tally.compiled} wholly compiled, "
        f"{tally.rejected} rejected as by eager, {tally.blurred} blurred; "
        f"refused: {dict(tally.refused)}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
