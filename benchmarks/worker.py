"""One measurement in a process of its own, so that nothing another variant left behind is in it.

In: `peak|first-call <program> <variant> full|quick cpu|cuda`, or `import <module>`. Out: one JSON
object as the last line of stdout; a fault is in it as `error`.

    $ python -m benchmarks.worker peak chamfer lowtide full cpu
    {"peak_bytes": 1234567, "output_bytes": 80000, "method": "resident"}
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 900


def measure(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run this module in a child process; what goes wrong there comes back as `{"error": …}`."""
    command = [sys.executable, "-m", "benchmarks.worker", *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {_TIMEOUT_SECONDS} s"}
    if done.returncode == -9:
        return {"error": "killed by the system, most likely for want of memory"}
    lines = done.stdout.splitlines()
    with contextlib.suppress(IndexError, json.JSONDecodeError):
        return dict(json.loads(lines[-1]))
    words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return {"error": words[-1]}


def main(arguments: list[str]) -> int:
    """Measure what `arguments` say and print it."""
    kind, *rest = arguments
    if kind == "import":
        print(json.dumps(_import_time(rest[0])))
        return 0
    with contextlib.suppress(OSError):  # if memory runs out, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        found = _peak(*rest) if kind == "peak" else _first_call(*rest)
    except Exception as fault:
        from lowtide.tools.comparison import describe_error

        found = {"error": describe_error(fault)}
    print(json.dumps(found))
    return 0


def _peak(program_name: str, variant: str, sizes: str, device: str) -> dict[str, Any]:
    """Peak memory of a warm call, over inputs; the output's bytes beside it."""
    import torch

    from benchmarks.resident import resident_peak
    from benchmarks.variants import EAGER, JAX, make_variant, prepare
    from lowtide.memory.available import available_bytes
    from lowtide.memory.measure import tensor_bytes
    from lowtide.tools.programs import PROGRAMS

    program = PROGRAMS[program_name]
    chosen = program.full if sizes == "full" else program.quick
    free = available_bytes() if device == "cpu" else int(torch.cuda.mem_get_info()[0])
    needed = program.eager_peak_bytes(chosen)
    if variant == EAGER and free is not None and free < needed + (256 << 20):
        return {"error": f"skipped: needs {needed >> 20} MiB, {free >> 20} MiB are free"}
    tensors = _inputs(program, chosen, device)
    # Eager compiles nothing: small inputs warm it up as well, and spare a long run.
    warm = _inputs(program, program.quick, device) if variant == EAGER else tensors
    function, args = make_variant(program, variant), prepare(variant, tensors)
    function(*prepare(variant, warm))
    where = torch.device(device)
    peak_bytes, result, method = resident_peak(lambda: function(*args), where)
    if variant == JAX:
        arrays: Any = result if isinstance(result, tuple) else (result,)
        output_bytes = sum(int(array.nbytes) for array in arrays)
    else:
        output_bytes = tensor_bytes(result, beyond=args)
    found: dict[str, Any] = {
        "peak_bytes": peak_bytes,
        "output_bytes": output_bytes,
        "method": method,
    }
    memory: Any = getattr(function, "memory", None)
    if memory is not None:
        found["predicted_bytes"] = int(memory(*args).peak_bytes)
    return found


def _inputs(program: Any, sizes: tuple[int, ...], device: str) -> tuple[Any, ...]:
    return tuple(x.to(device) for x in program.make_inputs(*sizes))


def _first_call(program_name: str, variant: str, sizes: str, device: str) -> dict[str, Any]:
    """Time of the first call, less that of a warm one, after another program warmed the process."""
    import torch

    from benchmarks.variants import COMPILE, LOWTIDE, make_variant, prepare
    from lowtide.memory.measure import time_call
    from lowtide.tools.programs import PROGRAMS

    program = PROGRAMS[program_name]
    if variant in (COMPILE, LOWTIDE):
        warm_up = dataclasses.replace(program, name="warm-up", function=_warm_up)
        make_variant(warm_up, variant)(torch.ones(1000, device=device))
    tensors = _inputs(program, program.full if sizes == "full" else program.quick, device)
    function, args = make_variant(program, variant), prepare(variant, tensors)
    first_ns, _ = time_call(lambda: function(*args))
    warm_ns, _ = time_call(lambda: function(*args))
    return {"first_call_ms": first_ns / 1e6, "compile_ms": max(first_ns - warm_ns, 0) / 1e6}


def _warm_up(x: Any) -> Any:
    return (x * 2 + 1).sum()


def _import_time(module: str) -> dict[str, Any]:
    """Milliseconds that `import module` and its `script` take after `import torch`."""
    __import__("torch")
    start = time.perf_counter_ns()
    # Public names are imported when first asked for; without this one nothing would be counted.
    _ = __import__(module).script
    return {"import_ms": (time.perf_counter_ns() - start) / 1e6}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
