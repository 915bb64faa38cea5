"""Every budget of every program: what it measures, and whether its results are the same.

    python -m tests.memory.sweep                       all of `cases`, each in a process of its own
    python -m tests.memory.sweep unet block --kinds grad --out sweep.jsonl
    python -m tests.memory.sweep --kinds grad-autocast plain-autocast

In: the table of programs, with and without gradients, or under autocast, which ends before the
backward pass. Out: a line of JSON for each program and kind, appended to the file, which says which
are done: a sweep that was stopped goes on there. Its budgets are the least that is reachable, what
lies in the middle, a half and three quarters of the unbounded peak, and that peak; all figures are
bytes, `measured` what a call asks for, `free` the same without a budget. `worst` is the largest
difference from the unbounded results, over the largest of these (and 1).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import lowtide as lt
from tests.memory.calls import tensors
from tests.memory.cases import CASES
from tests.memory.contract import leaves_ops, requested_bytes, violation, with_room
from tests.quickly import compile_quickly

LIMIT_S = 900
KINDS = ("grad", "plain", "grad-autocast", "plain-autocast")
WORST = {"grad": 2e-4, "plain": 2e-4, "grad-autocast": 3e-2, "plain-autocast": 3e-2}


def _autocast(kind: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=kind.endswith("autocast"))


def _results(compiled: Any, args: tuple[Any, ...], leaves: list[torch.Tensor], kind: str) -> Any:
    """Results, and gradients where there are leaves."""
    torch.manual_seed(3)
    with _autocast(kind):
        out = [x for x in tensors(compiled(*args)) if x.is_floating_point()]
    carrying = [x for x in out if x.requires_grad]
    if leaves and carrying:
        torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])
    found = [x.detach() for x in out]
    for x in leaves:
        if x.grad is not None:
            found.append(x.grad)
            x.grad = None
    return found


def _worst(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        if not b.numel():
            continue
        a, b = a.double(), b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        off = torch.where(same, 0.0, (a - b).abs())
        largest = b.nan_to_num(0, 0, 0).abs().max().item()
        worst = max(worst, off.max().item() / max(1.0, largest))
    return worst


def sweep_one(name: str, kind: str) -> dict[str, Any]:
    """All budgets of one program, in this process."""
    chosen = next(c for c in CASES if c.name == name)
    torch.manual_seed(0)
    made: Any = chosen.make()
    args = chosen.inputs()
    is_grad = kind.startswith("grad")
    leaves = [x for x in tensors(list(args)) if x.is_floating_point()] if is_grad else []
    for x in leaves:
        x.requires_grad_()
    free: Any = lt.script(made)
    if is_grad and isinstance(made, torch.nn.Module):
        leaves += list(made.parameters())

    def measured(compiled: Any) -> int:
        def call() -> Any:
            return _results(compiled, args, leaves, kind)

        return requested_bytes(call)

    def planned(compiled: Any) -> Any:
        with _autocast(kind):
            return compiled.memory(*args)

    rows: list[dict[str, Any]] = []
    with torch.set_grad_enabled(is_grad):
        plan = planned(free)
        unbounded: int = plan.peak_bytes
        expected = [x.clone() for x in _results(free, args, leaves, kind)]
        free_bytes = measured(free)
        least = unbounded
        begin = time.monotonic()
        with contextlib.suppress(Exception):
            try:
                with _autocast(kind):
                    lt.script(made, budget=1)(*args)
            except lt.BudgetError as refused:
                least = refused.least_bytes
        search_s = time.monotonic() - begin
        budgets = {least, (least + unbounded) // 2, unbounded * 3 // 4, unbounded // 2, unbounded}
        for budget in sorted(b for b in budgets if b >= max(least, 1)):
            row: dict[str, Any] = {"budget": budget}
            rows.append(row)
            try:
                limited: Any = lt.script(made, budget=budget)
                row["predicted"] = planned(limited).peak_bytes
                row["worst"] = _worst(_results(limited, args, leaves, kind), expected)
                row["measured"] = measured(limited)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"[:300]
    return {
        "name": name,
        "kind": kind,
        "leaves_ops": leaves_ops(plan),
        "unbounded": unbounded,
        "free": free_bytes,
        "least": least,
        "search_s": round(search_s, 1),
        "budgets": rows,
    }


def _sweep(names: list[str], kinds: list[str], out: Path) -> None:
    lines = out.read_text().splitlines() if out.exists() else []
    done = {(found["name"], found["kind"]) for found in map(json.loads, lines)}
    for case in CASES:
        for kind in kinds:
            if (names and case.name not in names) or (case.name, kind) in done:
                continue
            if kind.startswith("grad") and not case.grad:
                continue
            command = [sys.executable, "-m", "tests.memory.sweep", "--one", case.name, kind]
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
                found = json.loads(ran.stdout.splitlines()[-1])
            except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
                found = {"name": case.name, "kind": kind, "error": f"{error}"[:300]}
            with out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(*_said(found), sep="\n", flush=True)


def _said(found: dict[str, Any]) -> list[str]:
    """A line for a peak that is not as predicted, and for each budget that was passed, refused or
    gave other results; else one in all."""
    head = f"{found['name']} ({found['kind']})"
    if "error" in found:
        return [f"{head}: {found['error']}"]
    said: list[str] = []
    free: int = found["free"]
    unbounded: int = found["unbounded"]
    is_library: bool = found["leaves_ops"]
    if violation(free, unbounded, library_ops=is_library):
        said.append(f"{head}: {unbounded / 1e6} predicted, {free / 1e6} measured")
    for row in found["budgets"]:
        most = with_room(row["budget"]) if is_library else row["budget"]
        over = row.get("measured", 0) - most
        above = row.get("predicted", 0) - row["budget"]
        if "error" in row or over > 0 or above > 0 or row["worst"] > WORST[found["kind"]]:
            figures = {k: v / 1e6 if isinstance(v, int) else v for k, v in row.items()}
            said.append(f"{head}: {figures}")
    least = found["least"] / 1e6
    return said or [f"{head}: kept, {least:.1f} of {unbounded / 1e6:.1f} MB, {found['search_s']} s"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory.sweep", description=__doc__)
    parser.add_argument("names", nargs="*", help="which programs (all)")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    parser.add_argument("--one", nargs=2, metavar=("NAME", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        compile_quickly()
        print(json.dumps(sweep_one(*options.one)))
    else:
        _sweep(options.names, options.kinds, options.out)


if __name__ == "__main__":
    main()
