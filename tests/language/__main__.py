"""`python -m tests.language [--only TOPIC] [--name N] [--write-known]`: the score by topic.

Runs every program plain and compiled, and prints each failure with the first line of its error.
`--write-known` writes the failing names into `known_failures.txt`. `--plain` only runs them as
plain Python. `LANGUAGE_JIT=torch` asks torch.jit in place of Lowtide.
"""

from __future__ import annotations

import argparse
import sys
import traceback

from tests.language.support import (
    FOLDER,
    PROGRAMS,
    BrokenProgram,
    Program,
    check,
    load,
    run_plain,
    time_limit,
    topics,
)

KNOWN = FOLDER / "known_failures.txt"


def first_line(error: BaseException) -> str:
    """The error's type and the first two lines of its text, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:2])}"[:240]


def attempt(p: Program, plain_only: bool) -> BaseException | None:
    """The error of the program's check, or None where it passes."""
    try:
        if not plain_only:
            check(p)
        elif not p.refused:
            with time_limit():
                run_plain(p)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def print_table(chosen: list[Program], passed: list[Program]) -> None:
    """Passed of all by topic, then of those that torch.jit takes too, and of all."""
    rows = {topic: [p for p in chosen if p.topic == topic] for topic in topics()}
    rows["that torch.jit takes"] = [p for p in chosen if p.torchscript]
    rows["all"] = chosen
    for name, row in rows.items():
        if row:
            good = sum(p in passed for p in row)
            print(f"{name:24} {good:4} / {len(row):4}  {good / len(row):7.1%}")


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.language")
    options.add_argument("--only", help="topics whose name contains this")
    options.add_argument("--name", help="programs whose name contains this")
    options.add_argument("--plain", action="store_true", help="only as plain Python")
    options.add_argument("--trace", action="store_true", help="with each failure's traceback")
    options.add_argument("--write-known", action="store_true", help="write known_failures.txt")
    given = options.parse_args()
    chosen = [p for p in load(given.only) if given.name is None or given.name in p.full_name]
    passed: list[Program] = []
    failed: list[str] = []
    for p in chosen:
        error = attempt(p, given.plain)
        if error is None:
            passed.append(p)
        else:
            failed.append(p.full_name)
            broken = "BROKEN " if isinstance(error, BrokenProgram) else ""
            print(f"{broken}{p.full_name}: {first_line(error)}", flush=True)
            if given.trace:
                traceback.print_exception(error)
    print()
    print_table(chosen, passed)
    if given.write_known:
        keep = set(KNOWN.read_text().split()) if KNOWN.exists() else set()
        keep -= {p.full_name for p in chosen}
        keep &= set(PROGRAMS) if given.only is None else keep
        KNOWN.write_text("".join(f"{name}\n" for name in sorted(keep | set(failed))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
