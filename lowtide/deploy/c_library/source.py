"""Writes the C of an exported model: header, source, self-test, build files.

In: `Entry`s, weights. Out: texts by file name.

    model.h            the interface: sizes, shapes, workspace, the call
    model.c            kernels, drivers; small weights as constants
    model_weights.bin  header, table, data; see `weights`

Invariant: the C allocates nothing and keeps no state; its kernels are those that run in process.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lowtide.codegen.c.c_index import HELPERS, c_index
from lowtide.codegen.host.c_driver import ALIGNED, CTYPES, LAYOUT, CDriver, c_name
from lowtide.deploy.c_library.gather import Argument, Entry
from lowtide.deploy.c_library.weights import Table
from lowtide.runtime import abi
from lowtide.texpr.index import Index, product

STATUSES = ("OK", "BAD_SIZE", "SMALL_WORKSPACE", "BAD_INDEX", "BAD_WEIGHTS", "RAISED", "NULL")
_MEANINGS = (
    "done", "a size that the program does not take", "the workspace is too small",
    "an index out of range", "weights of another model, or damaged", "the program has raised",
    "a null or misaligned pointer",
)  # fmt: skip
_WARNINGS = ("unused-function", "unused-variable", "unused-parameter", "unused-but-set-variable",
             "sign-compare", "psabi", "pragmas", "unknown-warning-option",
             "div-by-zero", "discarded-qualifiers",
             "incompatible-pointer-types-discards-qualifiers")  # fmt: skip
MOST_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """All that is written. `name`: the prefix of every name."""

    name: str
    entries: Sequence[Entry]
    table: Table

    @property
    def upper(self) -> str:
        """The prefix of macros and enumerators."""
        return self.name.upper()

    # ---- header -------------------------------------------------------------------------------

    def header(self) -> str:
        """Return `name.h`."""
        n, upper = self.name, self.upper
        statuses = ", ".join(f"{upper}_{s}" for s in STATUSES)
        parts = [
            f"/* {n}: a program compiled by Lowtide. C99; needs libc and libm alone. */",
            f"#ifndef {upper}_H\n#define {upper}_H\n#include <stddef.h>\n#include <stdint.h>",
            '#ifdef __cplusplus\nextern "C" {\n#endif',
            f"typedef enum {{ {statuses} }} {n}_status;",
            f"const char *{n}_strerror({n}_status);",
            f"/* Where the weights are: filled in by {n}_weights_open. */",
            f"typedef struct {{ const void *bytes; size_t n_bytes; }} {n}_weights;",
            f"/* Points into `bytes`, aligned to {ALIGNED}; reads header and table only. */",
            f"{n}_status {n}_weights_open({n}_weights *, const void *bytes, size_t n_bytes);",
            "/* Reads every byte. */",
            f"{n}_status {n}_weights_verify(const {n}_weights *);",
            f"typedef void (*{n}_task)(int64_t begin, int64_t end, void *context);",
            "/* A pool of the caller's: runs task over [begin, end) in pieces of at least grain,",
            f"   and returns 0. At most {MOST_THREADS} threads; null: the calling thread. */",
            "typedef struct {\n  int64_t threads;\n"
            f"  int32_t (*parallel_for)(int64_t begin, int64_t end, int64_t grain, {n}_task task,\n"
            f"                          void *context);\n}} {n}_pool;",
            *(text for e in self.entries for text in self._declarations(e)),
            f"#ifdef __cplusplus\n}}\n#endif\n#endif /* {upper}_H */",
        ]
        return "\n".join(parts) + "\n"

    def _declarations(self, e: Entry) -> Iterator[str]:
        f = f"{self.name}_{e.name}"
        fields = " ".join(f"int64_t {s.symbol};" for s in e.sizes) or "int64_t unused;"
        says = "; ".join(
            f"{s.symbol} = {' = '.join(s.dims)}, at least {max(s.least, 0)}" for s in e.sizes
        )
        yield f"\n/* {e.name}: {says or 'all sizes are constant'} */"
        yield f"typedef struct {{ {fields} }} {f}_sizes;"
        yield f"size_t {f}_workspace_bytes(const {f}_sizes *);"
        outs = ", ".join(f"int64_t {a.name}[{max(len(a.shape), 1)}]" for a in e.outputs)
        yield f"{self.name}_status {f}_output_shapes(const {f}_sizes *, {outs});"
        for a in (*given(e), *e.outputs):
            yield f"/*   {a.name}: {_told(a)} */"
        yield f"{self._signature(e)};"

    def _signature(self, e: Entry) -> str:
        f = f"{self.name}_{e.name}"
        inputs = [_parameter(a, is_input=True) for a in given(e)]
        outputs = [_parameter(a, is_input=False) for a in e.outputs]
        rest = [f"const {self.name}_weights *weights", "void *workspace_given",
                "size_t workspace_bytes", f"const {self.name}_pool *pool_or_null"]  # fmt: skip
        parts = ", ".join([f"const {f}_sizes *sizes", *inputs, *outputs, *rest])
        return f"{self.name}_status {f}({parts})"

    # ---- source -------------------------------------------------------------------------------

    def source(self) -> str:
        """Return `name.c`."""
        n, upper = self.name, self.upper
        words = ", ".join(f'"{m}"' for m in _MEANINGS)
        ignored = "\n".join(f'#pragma GCC diagnostic ignored "-W{w}"' for w in _WARNINGS)
        parts = [
            f'#include "{n}.h"\n#include <string.h>',
            ignored,
            *self._kernels(),
            "#undef LT_INLINE\n#define LT_INLINE static inline\n" + HELPERS,
            "static int64_t lt_aligned(int64_t n) { return (n + 63) / 64 * 64; }",
            LAYOUT,
            f"const char *{n}_strerror({n}_status s) {{\n"
            f"  static const char *const words[] = {{{words}}};\n"
            f'  return (unsigned)s < {len(STATUSES)} ? words[s] : "unknown";\n}}',
            self.table.c_text(n, upper),
            *(text for e in self.entries for text in self._entry(e)),
        ]
        return "\n\n".join(parts) + "\n"

    def _kernels(self) -> Iterator[str]:
        """Return the kernels, with names of their own for each program and number of lanes."""
        is_first = True
        for e in self.entries:
            for head, kernels in e.executable.kernels_by_head.items():
                for k, text in enumerate(kernels.to_compile()):
                    body = _INTEGERS.sub("", text.replace(abi.C_DECLARATIONS, ""))
                    if is_first:
                        yield _declarations()
                        is_first = False
                    yield _renamed(body, f"{e.name}_{head.replace('.', '_')}{k}")

    def _kernel_names(self, e: Entry) -> dict[str, str]:
        found: dict[str, str] = {}
        for head, kernels in e.executable.kernels_by_head.items():
            for k, plan in enumerate(kernels.compiled):
                found[f"{head}{plan.name}"] = f"kernel_{e.name}_{head.replace('.', '_')}{k}"
        return found

    def _driver(self, e: Entry) -> CDriver:
        outputs = {a.of: a.name for a in e.outputs}
        return CDriver(e.host, outputs, self._kernel_names(e), MOST_THREADS)

    def _entry(self, e: Entry) -> Iterator[str]:
        f, n, upper = f"{self.name}_{e.name}", self.name, self.upper
        driver = self._driver(e)
        body = list(driver.body())
        pieces = driver.pieces()
        symbols = [f"const int64_t z_{s.symbol} = sizes->{s.symbol}; (void)z_{s.symbol};"
                   for s in e.sizes]  # fmt: skip
        head = _lines([*symbols, *driver.sizes()])
        count = max(len(pieces), 1)
        table = ", ".join(pieces) or "{0, 0, 0}"
        yield (
            f"static {n}_status {f}_check(const {f}_sizes *sizes) {{\n  if (!sizes) return "
            f"{upper}_NULL;\n{_lines(symbols)}{_lines(self._checks(e))}  return {upper}_OK;\n}}"
        )
        yield (
            f"static int64_t {f}_plan(const {f}_sizes *sizes, int64_t *offsets) {{\n{head}"
            f"  const lt_piece pieces[] = {{{table}}};\n"
            f"  return lt_layout(pieces, {len(pieces)}, offsets);\n}}"
        )
        yield (
            f"size_t {f}_workspace_bytes(const {f}_sizes *sizes) {{\n"
            f"  int64_t offsets[{count}];\n  if ({f}_check(sizes)) return 0;\n"
            f"  return (size_t){f}_plan(sizes, offsets);\n}}"
        )
        outs = ", ".join(f"int64_t {a.name}[{max(len(a.shape), 1)}]" for a in e.outputs)
        shapes = [
            f"{a.name}[{k}] = {c_index(s)};" for a in e.outputs for k, s in enumerate(a.shape)
        ]
        yield (
            f"{n}_status {f}_output_shapes(const {f}_sizes *sizes, {outs}) {{\n"
            f"  const {n}_status status = {f}_check(sizes);\n  if (status) return status;\n"
            f"{_lines(symbols)}{_lines(f'(void){a.name};' for a in e.outputs)}{_lines(shapes)}"
            f"  return {upper}_OK;\n}}"
        )
        yield f"{self._signature(e)} {{\n{_lines(self._body(e, head, body, count))}}}"

    def _body(self, e: Entry, head: str, body: Sequence[str], count: int) -> Iterator[str]:
        f, n, upper = f"{self.name}_{e.name}", self.name, self.upper
        yield f"const {n}_status status = {f}_check(sizes);"
        yield "if (status) return status;"
        yield from head.strip().splitlines()
        for a, value in zip(e.inputs, e.example, strict=True):
            if a.kind == "int":  # as a size says, or a constant of the kernels
                of = (f"z_{s.symbol}" for s in e.sizes if a.shown in s.dims)
                told = next(of, _long_int(value))
                yield f"if ({a.name} != {told}) return {upper}_BAD_SIZE;"
        for a in (*given(e), *e.outputs):
            if a.kind == "tensor":
                empty = f"({c_index(product(a.shape))}) == 0"
                size = a.dtype.itemsize if a.dtype is not None else 1
                is_bad = f"!{a.name} || (uintptr_t){a.name} % {size}"
                yield f"if (!({empty}) && ({is_bad})) return {upper}_NULL;"
        yield f"int64_t offsets[{count}];"
        yield f"const int64_t needed = {f}_plan(sizes, offsets);"
        yield f"if (workspace_bytes < (size_t)needed) return {upper}_SMALL_WORKSPACE;"
        yield f"if (!workspace_given && needed) return {upper}_NULL;"
        yield f"if ((uintptr_t)workspace_given % {ALIGNED}) return {upper}_NULL;"
        yield "char *workspace = workspace_given; (void)workspace; (void)offsets;"
        if any(a.weight is not None for a in e.inputs) and not self.table.is_constant:
            yield f"if (!{n}_weights_are_open(weights)) return {upper}_BAD_WEIGHTS;"
        yield "(void)weights;"
        yield "const void *pool = pool_or_null ? (const void *)pool_or_null->parallel_for : 0;"
        most = f"lt_min(pool_or_null->threads, {MOST_THREADS})"
        yield f"const int64_t threads = pool_or_null ? lt_max(1, {most}) : 1;"
        yield "(void)pool; (void)threads;"
        yield "int64_t fault = 0;"
        for a in e.inputs:
            if a.kind == "tensor" and a.of:
                at = a.name if a.weight is None else self.table.place(a.weight)
                yield f"char *{c_name(a.of)} = (char *)(uintptr_t)({at});"
        for scalar, argument in e.numbers.items():
            yield f"const double {scalar} = (double){argument};"
        yield from body
        for name in e.checks:
            yield f"if (!*{c_name(name)}) return {upper}_BAD_INDEX;"
        yield f"return fault ? {upper}_RAISED : {upper}_OK;"

    def _checks(self, e: Entry) -> Iterator[str]:
        bad = f"return {self.upper}_BAD_SIZE;"
        for s in e.sizes:
            yield f"if (z_{s.symbol} < {s.least} || z_{s.symbol} > (1LL << 40)) {bad}"
        for index, holds in e.guards:
            yield f"if ({'!' if holds else ''}({c_index(index)} >= 0)) {bad}"
        for left, right in e.equal:
            yield f"if ({c_index(left)} != {c_index(right)}) {bad}"
        apart = [s.symbol for s in e.sizes if s.symbol.startswith("s")]
        for left, right in itertools.combinations(apart, 2):
            yield f"if (z_{left} == z_{right}) {bad}"


def given(e: Entry) -> list[Argument]:
    """Return what the caller gives."""
    return [a for a in e.inputs if a.weight is None]


def _parameter(a: Argument, *, is_input: bool) -> str:
    if a.kind != "tensor":
        return f"{'int64_t' if a.kind == 'int' else 'double'} {a.name}"
    assert a.dtype is not None
    return f"{'const ' if is_input else ''}{CTYPES[a.dtype.name]} *{a.name}"


def _long_int(value: int) -> str:
    return f"({value + 1}LL - 1)"  # the least int64 has no literal


def _told(a: Argument) -> str:
    if a.kind != "tensor" or a.dtype is None:
        return a.kind
    return f"{a.dtype.name} [{', '.join(map(_shown, a.shape))}]"


def _shown(index: Index) -> str:
    return str(index)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"  {line}\n" for line in lines)


def _declarations() -> str:
    """The kernels' interface, with the integer types of <stdint.h>."""
    found = abi.C_DECLARATIONS.replace("typedef long long int64_t;\ntypedef int int32_t;\n", "")
    exported = re.sub(r"#if defined\(_WIN32\).*?#endif\n", "", found, flags=re.DOTALL)
    integers = "typedef long long lt_i64;\ntypedef unsigned long long lt_u64;\n"
    return "#define LT_EXPORT static\n" + integers + _long(exported)


def _long(text: str) -> str:
    """Return the text with `long long`, which vector builtins take and `int64_t` may not be."""
    return re.sub(r"\b(u?)int64_t\b", lambda m: "lt_u64" if m[1] else "lt_i64", text)


_DEFINED = re.compile(
    r"^(?:typedef\b[^;{]*?\b(\w+)(?:\s+__attribute__\s*\(\(.*?\)\))?;"
    r"|#define\s+(\w+)"
    r"|(?:[A-Za-z_][\w ]*[ *]+)(\w+)\s*\([^;{]*\)\s*\{)",
    re.MULTILINE,
)
_INTEGERS = re.compile(r"^(?:typedef [\w ]+ u?int\d+_t; ?)+$\n?", re.MULTILINE)
_STRUCTS = re.compile(r"^typedef (?:struct|union) \{[^}]*\} (\w+);", re.MULTILINE)


def _renamed(text: str, suffix: str) -> str:
    """Return the kernel's C with the suffix at each name that it defines at file level."""
    names = {n for found in _DEFINED.findall(text) for n in found if n}
    names |= set(_STRUCTS.findall(text))
    text = _long(text)
    return re.sub(r"[A-Za-z_]\w*", lambda m: f"{m[0]}_{suffix}" if m[0] in names else m[0], text)
