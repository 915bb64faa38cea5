"""Vector mathematics for generated kernels: C text without headers, without libc.

In: names of functions, the lane count of the kernel, the bytes of a hardware vector. Out: C text.
Invariant: the text has these functions and those that they call, callees first; no undefined
symbol. Functions are inlined, until a kernel gets too long: a C compiler takes much longer for one
long function than for several short ones. Then the functions that add most are called.

    types(16, 64) + functions(["exp_f32"], 16, 64)
      → typedef float f32v …;  LT_INLINE f32v fma_f32(…) {…}  …  LT_INLINE f32v exp_f32(f32v x) {…}

A kernel's vectors may be wider than the hardware's: `f64v` of 16 lanes has 128 bytes. Then a
function is printed for one hardware vector (`exp_f64_x8`) and called once per part, so that its
values stay in registers.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from lowtide.vecmath import conversions, elementary, hardware, integers, lanes, memory
from lowtide.vecmath.snippet import Layout, Prototype, Snippet, prototype
from lowtide.vecmath.types import ITEMSIZE, types

__all__ = ["NAMES", "Layout", "Snippet", "functions", "types"]

_MODULES = (lanes, hardware, elementary, integers, conversions, memory)
NAMES: dict[str, Snippet] = {s.name: s for module in _MODULES for s in module.SNIPPETS}

# A horizontal fold runs once after a loop, where a call is cheap. Inlined, it is slow to compile.
_CALLED = frozenset(n for n in NAMES if n.startswith(("hsum", "hprod", "hmin", "hmax", "hfast")))

LEAST_CALLED: Final = 2_000  # characters: a shorter function costs less than a call
MOST_INLINED: Final = 130_000  # characters of longer ones in a kernel: about 20 calls of exp

_WORD = re.compile(r"\b[a-z]\w*\b")
_VECTOR = re.compile(r"\b([fiu]\d+)v(_u)?\b")
_VECTOR_PARAM = re.compile(r"([fiu]\d+v)( ?\*)?")


def functions(
    names: Iterable[str], lanes: int, vector_bytes: int, kernels: Sequence[str] = ()
) -> str:
    """Return the C text of the functions `names` and of all they call. `kernels`: the texts of the
    kernels that call them, all of `lanes` lanes. Raises KeyError on an unknown name."""
    layout = Layout(lanes=lanes, vector_bytes=vector_bytes)
    done: dict[tuple[str, int], str] = {}
    called = _CALLED.union(*(_better_called(text, layout) for text in kernels))
    for name in names:
        _emit(NAMES[name], layout, lanes, called, done)
    return "\n".join(done.values())


def _better_called(kernel: str, layout: Layout) -> set[str]:
    """Return the functions to call rather than inline: those that lengthen the kernel most, as many
    as it takes to make it short enough."""
    sites = Counter(w for w in _WORD.findall(kernel) if w in NAMES)
    found: set[str] = set()
    sizes = {name: _inlined_size(name, layout) for name in sites}
    lengths = {name: n * sizes[name] for name, n in sites.items() if sizes[name] >= LEAST_CALLED}
    total = sum(lengths.values())
    for name in sorted(lengths, key=lambda n: (-lengths[n], n)):
        if total > MOST_INLINED:
            found.add(name)
            total -= lengths[name]
    return found


@functools.cache
def _inlined_size(name: str, layout: Layout) -> int:
    """Return the characters of a function with its callees inlined, times the number of parts."""
    snippet = NAMES[name]
    text = snippet.text(layout)
    part = layout.hardware_lanes(_widest(text)) if snippet.splits else layout.lanes
    within = replace(layout, lanes=part)
    inner = sum(_inlined_size(w, within) for w in _named(text) if w != name)
    return (len(text) + inner) * (layout.lanes // part)


@functools.lru_cache(maxsize=1024)
def _named(text: str) -> tuple[str, ...]:
    """Return the library functions that a text names, one entry for each occurrence."""
    return tuple(w for w in _WORD.findall(text) if w in NAMES)


def _emit(
    snippet: Snippet,
    layout: Layout,
    kernel_lanes: int,
    called: Collection[str],
    done: dict[tuple[str, int], str],
) -> None:
    """Append `snippet` at `layout` to `done`, after its callees."""
    key = (snippet.name, layout.lanes)
    if key in done:
        return
    text = snippet.text(layout)
    narrow = layout.hardware_lanes(_widest(text)) if snippet.splits else layout.lanes
    if narrow < layout.lanes:
        part = Layout(lanes=narrow, vector_bytes=layout.vector_bytes)
        _emit(snippet, part, kernel_lanes, called, done)
        text = _in_parts(prototype(text), layout.lanes, narrow)
    for word in dict.fromkeys(_named(text)):
        if word != snippet.name:
            _emit(NAMES[word], layout, kernel_lanes, called, done)
    if layout.lanes != kernel_lanes:
        text = _renamed(text, layout.lanes)
    fits = layout.lanes * _widest(text) <= layout.vector_bytes  # wider ones are passed in memory
    linkage = "LT_CALLED" if snippet.name in called and fits else "LT_INLINE"
    done[key] = f"{linkage} {text}"


def _widest(text: str) -> int:
    """Return the bytes of the widest element among the vectors that `text` names."""
    return max((ITEMSIZE[m[1]] for m in _VECTOR.finditer(text)), default=1)


def _renamed(text: str, lanes: int) -> str:
    """Return `text` with vector types and library functions named for `lanes` lanes."""
    text = _VECTOR.sub(lambda m: f"{m[1]}x{lanes}{m[2] or ''}", text)
    return _WORD.sub(lambda m: f"{m[0]}_x{lanes}" if m[0] in NAMES else m[0], text)


def _in_parts(proto: Prototype, lanes: int, part: int) -> str:
    """Return a function of `lanes` lanes that calls its `part`-lane version on each part."""
    head = ", ".join(f"{kind} {name}" for kind, name in proto.params)
    count = lanes // part
    lines: list[str] = []
    outputs: list[str] = []
    for kind, name in proto.params:
        if match := _VECTOR_PARAM.fullmatch(kind):
            start = "" if match[2] else f" = {{{name}}}"
            lines.append(f"  {_union(match[1], count, part)} u_{name}{start};")
            outputs += [f"  *{name} = u_{name}.v;"] if match[2] else []
    if proto.result != "void":
        lines.append(f"  {_union(proto.result, count, part)} u_result;")
        outputs.append("  return u_result.v;")
    strided = any(name == "stride" for _, name in proto.params)
    for k in range(count):
        step = f"{k * part} * stride" if strided else f"{k * part}"
        args = ", ".join(_argument(kind, name, k, part, step) for kind, name in proto.params)
        target = "" if proto.result == "void" else f"u_result.part[{k}] = "
        lines.append(f"  {target}{proto.name}_x{part}({args});")
    return f"{proto.result} {proto.name}({head}) {{\n" + "\n".join(lines + outputs) + "\n}"


def _union(vector: str, count: int, part: int) -> str:
    piece = _VECTOR.sub(lambda m: f"{m[1]}x{part}", vector)
    return f"union {{ {vector} v; {piece} part[{count}]; }}"


def _argument(kind: str, name: str, k: int, part: int, step: str) -> str:
    if match := _VECTOR_PARAM.fullmatch(kind):
        return f"{'&' if match[2] else ''}u_{name}.part[{k}]"
    if "*" in kind:
        return f"{name} + {step}"
    if name == "n" and k:
        rest = f"{name} - {k * part}"
        return f"({rest} < 0 ? 0 : {rest} > {part} ? {part} : {rest})"
    return f"({name} > {part} ? {part} : {name})" if name == "n" else name
