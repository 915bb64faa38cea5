"""How long a driver keeps a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.codegen.executable import Text
from lowtide.texpr.expr import Program


def dies(name: str, k: int, texts: Sequence[Text], program: Program) -> bool:
    """Does nothing need it after the kernel of that number?"""
    kept = name in program.outputs or name in program.checks
    return not kept and not any(name in t.tensors for t in texts[k + 1 :])
