"""What drivers have in common: how they begin, and how long they keep a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.codegen.executable import Text
from lowtide.texpr.expr import Program


def dies(name: str, k: int, texts: Sequence[Text], program: Program) -> bool:
    """Does nothing need it after the kernel of that number?"""
    kept = name in program.outputs or name in program.checks
    return not kept and not any(name in t.tensors for t in texts[k + 1 :])


def opening(inputs: Sequence[str], symbols: Sequence[str], scalars: Sequence[str]) -> list[str]:
    """The first lines of a driver: what it is handed, by name."""
    lines = ["def run(tensors, sizes, numbers):"]
    for names, source in ((inputs, "tensors"), (symbols, "sizes"), (scalars, "numbers")):
        if names:
            lines.append(f"    {', '.join(names)}, = {source}")
    return lines
