"""Real packages that call torch.jit: each case is run as plain Python, by torch.jit and by Lowtide.

In: a function that uses a package as its users do, `torch.jit.script` and all. Out: the results of
its checks, by name, from a process of their own for every mode:

    eager      PYTORCH_JIT=0: torch.jit.script and torch.jit.trace give back what they are given
    torch      torch.jit itself
    lowtide    LOWTIDE_PATCH_TORCH_JIT=1, and `import lowtide` before the package

    @case("einops", pip="einops", what="layers, scripted and traced")
    def einops(check: Check) -> None:
        layer = torch.jit.script(Rearrange("b c -> c b"))
        check("Rearrange", lambda: layer(torch.rand(2, 3)))

Invariant: a case seeds every random choice, so that the modes have the same weights and inputs.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
MODES = ("eager", "torch", "lowtide")
_ENVIRONMENT = {
    "eager": {"PYTORCH_JIT": "0"},
    "torch": {"PYTORCH_JIT": "1"},
    "lowtide": {"PYTORCH_JIT": "1", "LOWTIDE_PATCH_TORCH_JIT": "1"},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One package; `module` is what is imported, `needs` further names that it takes."""

    name: str
    pip: str
    module: str
    what: str
    run: Callable[[Check], None]

    @property
    def installed(self) -> bool:
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False


CASES: dict[str, Case] = {}


def case(
    name: str, *, what: str, pip: str = "", module: str = ""
) -> Callable[[Callable[[Check], None]], Callable[[Check], None]]:
    """Registers a case under the name of its package."""

    def register(run: Callable[[Check], None]) -> Callable[[Check], None]:
        CASES[name] = Case(name, pip or name, module or name.replace("-", "_"), what, run)
        return run

    return register


def load_cases() -> dict[str, Case]:
    """All of them; importing a file of cases imports no package."""
    folder = importlib.import_module("tests.packages.cases")
    for found in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"tests.packages.cases.{found.name}")
    return CASES


class Check:
    """Runs the parts of a case and keeps what each gave, or how it failed."""

    def __init__(self) -> None:
        self.results: dict[str, tuple[str, Any]] = {}

    def __call__(self, name: str, part: Callable[[], Any]) -> None:
        """One part: `part()` from the same seed in each mode."""
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            self.results[name] = ("gave", detached(part()))
        except Exception as error:
            self.results[name] = ("raised", f"{type(error).__name__}: {error}")
        print(f"{time.monotonic() - began:7.1f} s  {name}", file=sys.stderr)  # of a case run alone


def detached(found: Any) -> Any:
    """Tensors, numbers and containers of them, without anything of the package's own."""
    if isinstance(found, torch.Tensor):
        return found.detach().clone().as_subclass(torch.Tensor)
    if isinstance(found, dict):
        return {str(k): detached(v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [detached(v) for v in found]
    if found is None or isinstance(found, bool | int | float | str):
        return found
    if hasattr(found, "items"):
        return detached(dict(found.items()))
    if hasattr(found, "__dict__"):
        return {k: detached(v) for k, v in vars(found).items() if not k.startswith("_")}
    return str(found)


def with_gradients(module: Any, *args: Any, parameters: Any = None, **kwargs: Any) -> list[Any]:
    """The result without gradients, with them, and those of the sum of its squares, weighted by
    where they stand, for inputs and parameters: the plain sum would not depend on what is
    normalised, and its gradient be nothing but rounding."""
    with torch.no_grad():
        plain = module(*args, **kwargs)
    leaves = [a.requires_grad_() for a in args if getattr(a, "is_floating_point", bool)()]
    leaves += list(module.parameters() if parameters is None else parameters)
    result = module(*args, **kwargs)
    total = sum(weighted(r.float().square()) for r in tensors(result) if r.requires_grad)
    for leaf in leaves:
        leaf.grad = None
    total.backward()  # type: ignore[union-attr]
    return [plain, result, [leaf.grad for leaf in leaves]]


def weighted(x: torch.Tensor) -> torch.Tensor:
    """The sum of the elements, each by a weight between 0.5 and 1.5 for its place."""
    return (x.flatten() * (torch.arange(x.numel()) * 0.7).sin().mul(0.5).add(1)).sum()


def trained(module: Any, inputs: list[tuple[Any, ...]], lr: float = 0.05) -> list[Any]:
    """Losses and parameters of a few steps of SGD on the mean of the squares."""
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    losses: list[float] = []
    for args in inputs:
        optimizer.zero_grad()
        loss = sum(r.float().square().mean() for r in tensors(module(*args)))
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
        losses.append(float(loss))
    return [losses, dict(module.state_dict())]


def tensors(found: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nest."""
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, dict) or hasattr(found, "values"):
        for v in found.values():
            yield from tensors(v)
    elif isinstance(found, list | tuple):
        for v in found:
            yield from tensors(v)


# ---- running a case in a process of its own -------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one mode gave; `broken`: the case itself, or the package's import, failed."""

    results: dict[str, tuple[str, Any]]
    compiled: int = 0
    version: str = ""
    broken: str = ""


def run_case(name: str, mode: str, timeout_s: int = 300) -> Outcome:
    """Runs a case in a mode."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.pt"
        command = [sys.executable, "-W", "ignore", "-m", "tests.packages.child", name, str(out)]
        env = {**os.environ, **_ENVIRONMENT[mode], "OMP_NUM_THREADS": "2"}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return Outcome({}, broken=f"it took more than {timeout_s} s")
        if not out.exists():
            return Outcome({}, broken=done.stderr[-3000:])
        return Outcome(**torch.load(out, weights_only=True))


def differences(plain: Outcome, other: Outcome, tolerance: float = 2e-4) -> dict[str, str]:
    """Why each part of `other` is not what plain Python gave; "" where it is."""
    found: dict[str, str] = {}
    for name, (kind, value) in plain.results.items():
        how, got = other.results.get(name, ("raised", "the case ended before it"))
        if kind == "raised":
            found[name] = "" if how == "raised" else f"plain Python raised {value}"
        elif how == "raised":
            found[name] = got
        else:
            found[name] = different(value, got, tolerance)
    return found


def different(a: Any, b: Any, tolerance: float) -> str:
    """What is not equal, "" for equal."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        try:
            size = float(a.abs().max()) if a.is_floating_point() and a.numel() else 1.0
            atol = tolerance * max(size, 1e-3) if a.is_floating_point() else tolerance
            torch.testing.assert_close(b, a, rtol=tolerance, atol=atol, equal_nan=True)
        except AssertionError as error:
            return str(error)
        return ""
    if type(a) is not type(b):
        return f"{type(b).__name__} in place of {type(a).__name__}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"the keys {list(b)} in place of {list(a)}"
        return next(filter(None, (different(a[k], b[k], tolerance) for k in a)), "")
    if isinstance(a, list):
        if len(a) != len(b):
            return f"{len(b)} values in place of {len(a)}"
        return next(filter(None, map(lambda x, y: different(x, y, tolerance), a, b)), "")
    if isinstance(a, float):
        return "" if abs(a - b) <= tolerance * max(1.0, abs(a)) else f"{b} in place of {a}"
    return "" if a == b else f"{b!r} in place of {a!r}"
