"""Tests on a simulated CUDA device: `python -m tests.simulated [--no-values] [pytest's arguments]`.

It needs a build of PyTorch with CUDA, and no GPU: build.py makes the runtime, values.py what
kernels would have computed. `--no-values` leaves memory as it is: allocations are all there is.
"""

from __future__ import annotations

import os
import sys

from tests.simulated.build import Missing, environment, library


def variables_or_exit() -> dict[str, str]:
    """Those of a process with the simulated runtime; says what is missing, and exits with 2."""
    try:
        return environment(library())
    except Missing as missing:
        print(f"CUDA cannot be simulated. {missing}", file=sys.stderr)
        sys.exit(2)


def main(arguments: list[str]) -> None:
    """Becomes pytest."""
    variables = variables_or_exit()
    if "--no-values" in arguments:
        arguments = [x for x in arguments if x != "--no-values"]
        variables["LOWTIDE_SIMULATED_VALUES"] = "0"
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "tests.simulated.values"]
    os.execve(sys.executable, [*command, *arguments], variables)


if __name__ == "__main__":
    main(sys.argv[1:])
