"""`python -m tests.packages.child CASE FILE`: one case in this process's mode; see `support`."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import warnings

import torch


def main(name: str, file: str) -> None:
    """Runs the case and writes what it gave."""
    warnings.simplefilter("ignore")
    patched = os.environ.get("LOWTIDE_PATCH_TORCH_JIT") == "1"
    if patched:
        import lowtide

        assert torch.jit.script is lowtide.script
    from tests.packages.support import Check, load_cases

    case, check = load_cases()[name], Check()
    torch.manual_seed(0)
    case.run(check)
    compiled = 0
    if patched:
        import lowtide

        compiled = lowtide.cache_stats().traces
    try:
        version = importlib.metadata.version(case.pip)
    except importlib.metadata.PackageNotFoundError:
        version = "?"
    torch.save({"results": check.results, "compiled": compiled, "version": version}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
