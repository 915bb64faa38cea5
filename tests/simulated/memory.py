"""What programs need on CUDA, against what was promised.

    python -m tests.simulated.memory [NAME...] [--compile] [--autocast DTYPE] --out FILE

In:  the programs of tests/memory/cases, all unless named, on a simulated device: by `lt.script`, or
     by `lt.compile`; called under autocast to a dtype, if one is given.
Out: FILE, a line of JSON (`Row`) for each program without and with gradients; then, printed, what
     does not hold. A second run does what FILE lacks.

A few programs share a process. Where one kills it, or takes too long, its row says so, and the
others go on in another process.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import lowtide as lt
from tests.memory.calls import tensors
from tests.memory.cases import CASES, Case
from tests.memory.contract import with_room
from tests.simulated.__main__ import variables_or_exit

TOGETHER = 8  # programs in one process
EACH_S = 200  # for a program
ROUNDED = 512  # bytes to which PyTorch's allocator rounds
MB = 1e6


@dataclass(kw_only=True)
class Budgeted:
    """A call under a budget. Bytes; `requested` before PyTorch's allocator has rounded."""

    budget: int
    predicted: int
    requested: int


@dataclass(kw_only=True)
class Row:
    """A program's call, in bytes. `left`: what stays allocated afterwards, `left_by_scope` where a
    dispose scope is around it; `profiled` and `peak`: by `lt.profile`, and by PyTorch in that call;
    `fault`: why there is no more."""

    name: str
    grad: bool
    predicted: int = 0
    requested: int = 0
    allocated: int = 0
    left: int = 0
    profiled: int = 0
    peak: int = 0
    left_by_scope: int = 0
    budgets: list[Budgeted] = field(default_factory=list[Budgeted])
    fault: str = ""

    def wrong(self) -> Iterator[str]:
        """What does not hold, in words."""
        if self.fault:
            yield self.fault
            return
        if self.requested > with_room(self.predicted):
            yield f"needs {self.requested / MB:.3f} MB, predicted {self.predicted / MB:.3f}"
        if self.predicted > 2 * with_room(self.allocated):
            yield f"predicted {self.predicted / MB:.2f} MB, has {self.allocated / MB:.2f}"
        if self.left:
            yield f"leaves {self.left:,} bytes"
        if self.left_by_scope:
            yield f"a scope leaves {self.left_by_scope:,} bytes"
        if self.profiled != self.peak:
            yield f"profiled {self.profiled:,} bytes, PyTorch had {self.peak:,}"
        for call in self.budgets:
            if call.predicted > call.budget or call.requested > with_room(call.budget):
                yield f"{call} is not kept"


# ---- In a process with a simulated device


@dataclass(kw_only=True, frozen=True)
class How:
    """A program is compiled and called. `autocast`: to this dtype, as users do: the forward pass
    alone."""

    compile: Callable[..., Any]  # lt.script or lt.compile
    autocast: torch.dtype | None = None
    has_budgets: bool = True

    def casting(self) -> AbstractContextManager[object]:
        dtype = self.autocast
        return nullcontext() if dtype is None else torch.autocast("cuda", dtype)


class Program:
    """A case on CUDA."""

    def __init__(self, case: Case, grad: bool, how: How) -> None:
        torch.manual_seed(0)
        self.grad, self.made, self.how = grad, case.make(), how
        self.args = _on_cuda(case.inputs())
        self.leaves = [x for x in tensors(list(self.args)) if x.is_floating_point()]
        for x in self.leaves:
            x.requires_grad_(grad)
        self.weights: list[torch.Tensor] = []
        if isinstance(self.made, torch.nn.Module):
            self.weights = list(self.made.cuda().parameters())

    def clear(self) -> None:
        for x in (*self.leaves, *self.weights):
            x.grad = None
        gc.collect()

    def run(self, compiled: Callable[..., Any]) -> object:
        with torch.set_grad_enabled(self.grad):
            with self.how.casting():
                result = compiled(*self.args)
            carrying = [x for x in tensors(result) if x.requires_grad]
            if carrying:
                torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])
        return result

    def predicted(self, compiled: Any) -> int:
        with torch.set_grad_enabled(self.grad), self.how.casting():
            return compiled.memory(*self.args).peak_bytes

    def measured(self, compiled: Callable[..., Any]) -> dict[str, int]:
        """The second call's, by the fields of `Row`."""
        self.run(compiled)
        self.clear()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        result = self.run(compiled)
        after = torch.cuda.memory_stats()
        del result
        self.clear()
        kinds = ("requested", "allocated")
        names = [(kind, f"{kind}_bytes.all") for kind in kinds]
        peaks = {k: after[f"{name}.peak"] - before[f"{name}.current"] for k, name in names}
        left = torch.cuda.memory_allocated() - before["allocated_bytes.all.current"]
        return {**peaks, "left": left}

    def profiled(self, compiled: Callable[..., Any]) -> dict[str, int]:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with lt.profile() as found:
            result = self.run(compiled)
        peak = torch.cuda.max_memory_allocated() - before
        del result
        self.clear()
        return {"profiled": found.peaks.get("cuda:0", 0), "peak": peak}

    def left_by_scope(self, compiled: Callable[..., Any]) -> int:
        """Beside gradients of weights, which stay."""
        before = torch.cuda.memory_allocated()
        with lt.dispose_scope():
            result = self.run(compiled)
        for x in self.leaves:
            x.grad = None
        grads = [x.grad.nbytes for x in self.weights if x.grad is not None]
        stays = sum(-(-n // ROUNDED) * ROUNDED for n in grads)
        left = torch.cuda.memory_allocated() - before - stays
        del result
        self.clear()
        return left

    def budgets(self, most: int) -> Iterator[Budgeted]:
        """The least there is, and one in the middle."""
        try:
            self.run(self.how.compile(self.made, budget=1))
        except lt.BudgetError as error:
            least = error.least_bytes
        else:
            return
        for budget in sorted({least, (least + most) // 2}):
            compiled = self.how.compile(self.made, budget=budget)
            predicted = self.predicted(compiled)
            requested = self.measured(compiled)["requested"]
            yield Budgeted(budget=budget, predicted=predicted, requested=requested)


def _anew(made: Any, **options: Any) -> Any:
    """By lt.compile; PyTorch's capture gives up a function that is compiled nine times."""
    torch._dynamo.reset()
    return lt.compile(made, **options)


def _on_cuda(given: Any) -> Any:
    move = torch.utils._pytree.tree_map
    return move(lambda x: x.cuda() if isinstance(x, torch.Tensor) else x, given)


class _TooLate(BaseException):
    """No `Exception`: Lowtide would take it for a fault of its own and go on."""


@contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise _TooLate(f"takes more than {EACH_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(EACH_S)
    try:
        yield
    finally:
        signal.alarm(0)


def measured(case: Case, grad: bool, how: How) -> Row:
    row = Row(name=case.name, grad=grad)
    try:
        with _in_time():
            program = Program(case, grad, how)
            compiled: Any = how.compile(program.made)
            row.predicted = program.predicted(compiled)
            for name, value in program.measured(compiled).items():
                setattr(row, name, value)
            for name, value in program.profiled(compiled).items():
                setattr(row, name, value)
            row.left_by_scope = program.left_by_scope(compiled)
            if how.has_budgets:
                row.budgets += program.budgets(row.predicted)
    except (Exception, _TooLate) as error:
        row.fault = f"{type(error).__name__}: {error}"[:300]
    return row


def work(names: list[str], out: Path, how: How) -> None:
    """Rows of these programs that `out` lacks."""
    from tests.simulated import values

    values.install(kernels=False)  # for allocations it is enough to launch them
    torch.set_default_device("cuda")
    done = {(row.name, row.grad) for row in rows(out)}
    for case in CASES:
        for grad in (False, True) if case.grad else (False,):
            if case.name not in names or (case.name, grad) in done:
                continue
            print(f"{case.name} {grad}", flush=True)  # the last one is to blame for a crash
            line = json.dumps(asdict(measured(case, grad, how)))
            with out.open("a") as file:
                file.write(line + "\n")


# ---- In the process that was called


def rows(path: Path) -> list[Row]:
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [Row(**{**x, "budgets": [Budgeted(**b) for b in x["budgets"]]}) for x in found]


def measure_group(
    names: list[str], out: Path, variables: dict[str, str], options: list[str]
) -> None:
    """In one process after another, until each program has its rows."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.simulated.memory", *names]
    command += options
    while True:
        done = subprocess.run(
            [*command, "--out", str(out), "--work"],
            env=variables, text=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        begun = done.stdout.split("\n")[:-1]
        if done.returncode == 0:
            return
        if not begun:
            raise SystemExit(f"nothing could be measured (exit status {done.returncode})")
        name, grad = begun[-1].split()
        fault = f"the process ended with {done.returncode}"
        with out.open("a") as file:
            row = Row(name=name, grad=grad == "True", fault=fault)
            file.write(json.dumps(asdict(row)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.simulated.memory", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--compile", action="store_true", help="by lt.compile, not lt.script")
    parser.add_argument("--autocast", choices=["float16", "bfloat16"], help="call under it")
    parser.add_argument("--no-budgets", action="store_true", help="calls without a budget alone")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    known = list(dict.fromkeys(case.name for case in CASES))
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"no program is named {', '.join(unknown)}; there are {', '.join(known)}")
    names = given.names or known
    if given.work:
        how = How(
            compile=_anew if given.compile else lt.script,
            autocast=getattr(torch, given.autocast) if given.autocast else None,
            has_budgets=not given.no_budgets,
        )
        work(names, given.out, how)
        return
    variables = variables_or_exit()
    options = ["--compile"] * given.compile + ["--no-budgets"] * given.no_budgets
    options += ["--autocast", given.autocast] if given.autocast else []
    for start in range(0, len(names), TOGETHER):
        measure_group(names[start : start + TOGETHER], given.out, variables, options)
    found = [row for row in rows(given.out) if row.name in names]
    for row in found:
        for fault in row.wrong():
            print(f"{row.name} {'with' if row.grad else 'without'} gradients: {fault}")
    held = sum(not any(row.wrong()) for row in found)
    print(f"{held} of {len(found)} calls are as promised")


if __name__ == "__main__":
    main()
