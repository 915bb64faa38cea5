"""`lowtide doctor`: checks this machine, and says what to do where something is missing.

In: nothing. Out: the machine, the runtime's checks (`lowtide.runtime.doctor`), the rates of matrix
products, and what torch.compile needs for comparisons.

    print(render(run_checks()))
    ok    compiler       gcc 12.2.0, /usr/bin/gcc
    …
    ready
"""

from __future__ import annotations

import shutil
import sysconfig
import textwrap
from pathlib import Path

from lowtide.errors import BackendError
from lowtide.memory.available import available_bytes
from lowtide.runtime import doctor, rates
from lowtide.runtime.doctor import Check
from lowtide.tables import format_bytes
from lowtide.tools.machine import this_machine

# Without these nothing compiles, in this order; all others only cost speed.
_REQUIRED = ("torch", "compiler", "kernel")
_WIDTH = 80  # of the text


def run_checks() -> list[Check]:
    """Return all checks, in the order in which they should be read."""
    return [_machine(), *doctor.checks(), _products(), _torch_compile()]


def render(checks: list[Check]) -> str:
    """Return the checks as text: one line each, with further lines and remedies indented. The last
    line says that the machine is ready, or the one thing to do."""
    width = max(len(check.name) for check in checks)
    indent = " " * (width + 8)
    lines: list[str] = []
    for check in checks:
        state = "ok" if check.ok else "look"
        first, *more = _wrapped(check.detail, _WIDTH - len(indent)) or [""]
        lines.append(f"{state:<4}  {check.name:<{width}}  {first}")
        lines += [f"{indent}{line}" for line in more]
        if check.remedy:
            lines.append(f"{indent}→ {check.remedy}")  # whole, to be copied
    return "\n".join([*lines, "", _verdict(checks)])


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, each at most so wide; commands and paths are not broken."""
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return [line for one in text.splitlines() for line in wrap.wrap(one) or [""]]


def missing(checks: list[Check]) -> Check | None:
    """Return the first check that failed and without which nothing compiles; None if the machine is
    ready."""
    by_name = {check.name: check for check in checks}
    found = (by_name[name] for name in _REQUIRED if name in by_name)
    return next((check for check in found if not check.ok), None)


def _verdict(checks: list[Check]) -> str:
    cause = missing(checks)
    if cause is None:
        return "ready"
    first, *_ = (cause.remedy or cause.detail).splitlines() or [""]
    return f"not ready, {cause.name}: {first}"


def _machine() -> Check:
    free = format_bytes(available_bytes())
    return Check(name="machine", ok=True, detail=f"{this_machine()}\n{free} of memory free")


def _products() -> Check:
    """Return the rates measured on this machine, which decide who runs matrix products."""
    try:
        known = rates.current()
    except BackendError:  # another check reports it
        known = rates.Rates()
    found = [
        f"{kind}: library {rate:.1f}, kernels {known.kernels[kind]:.1f} operations per ns"
        for kind, rate in known.library.items()
        if kind in known.kernels
    ]
    missing = "not measured yet: that happens before the first large product is compiled"
    return Check(name="products", ok=True, detail="\n".join(found) or missing)


def _torch_compile() -> Check:
    """Check what torch.compile needs on a CPU. Only comparisons with it need that."""
    missing = [] if any(shutil.which(name) for name in ("g++", "clang++")) else ["g++"]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("Python.h")
    return Check(
        name="torch.compile",
        ok=not missing,
        detail=f"lacks {' and '.join(missing)}" if missing else "has what it needs",
        remedy="only to compare with it: `apt install g++ python3-dev`" if missing else "",
    )
