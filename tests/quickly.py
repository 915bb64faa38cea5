"""Kernels compiled in half the time, for tests of many programs.

What the C compiler is given is the same text; it optimizes less. By gcc's `-Og`, with registers
allocated without a look at loops, a kernel is compiled no later than by `-O0`, twice as soon if it
is large, and runs nearly as fast as it ships: its vectors and its unrolling are spelled out.

    compile_quickly()        this process compiles so from now on
    flags("-O2")             the flags with another level
"""

from __future__ import annotations

from lowtide.runtime import toolchain

_LEVEL = {"gcc": "-Og -fira-region=one"}  # by kind of compiler; others: -O0


def flags(level: str = "") -> tuple[str, ...]:
    """The C compiler's flags, with `level` (words, or empty for the quick one) for `-O2`."""
    asked = {toolchain.OPTIMIZE: (level or _LEVEL.get(toolchain.compiler().kind, "-O0")).split()}
    return tuple(flag for f in toolchain._FLAGS for flag in asked.get(f, [f]))


def compile_quickly(level: str = "") -> None:
    """From now on, in this process."""
    toolchain._FLAGS = flags(level)
    toolchain._compiler.cache_clear()
