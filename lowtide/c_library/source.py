"""Writes the C of an exported model: header, source, self-test, build files.

In: `Entry`s, weights. Out: texts by file name.

    model.h            the interface: sizes, shapes, workspace, the call
    model.c            kernels, drivers; small weights as constants
    model_weights.bin  header, table, data; see `weights`

Invariant: the C allocates nothing and keeps no state; its kernels are those that run in process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from lowtide.c_library import numbers, tensor_ops
from lowtide.c_library.gather import Argument, Entry, Kept
from lowtide.c_library.regions import MOST_THREADS, KernelTexts
from lowtide.c_library.sets import BYTES, SETS
from lowtide.c_library.values import c_real, of_torch
from lowtide.c_library.weights import Table
from lowtide.codegen.c.c_names import HELPERS, c_index
from lowtide.codegen.host.c_driver import ALIGNED, CTYPES, LAYOUT, Piece, layout
from lowtide.runtime import abi
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import nonnegative

STATUSES = ("OK", "BAD_SIZE", "SMALL_WORKSPACE", "BAD_INDEX", "BAD_WEIGHTS", "RAISED", "NULL")
_MEANINGS = (
    "done", "a size that the program does not take", "the workspace is too small",
    "an index out of range", "weights of another model, or damaged", "the program has raised",
    "a null or misaligned pointer",
)  # fmt: skip
_WARNINGS = ("unused-function", "unused-variable", "unused-parameter", "unused-but-set-variable",
             "sign-compare", "psabi", "pragmas", "unknown-warning-option",
             "div-by-zero", "discarded-qualifiers", "tautological-compare",
             "incompatible-pointer-types-discards-qualifiers")  # fmt: skip
_HELPERS: Final = (
    (numbers.HELPERS, r"\blt_(?:int|real|from)_"),
    (tensor_ops.HELPERS, r"\blt_(?:sorted|places|choose|put)\b|\blt_(?:sorted|places)_"),
)
_NUMBERS: Final = {"int": "int64_t", "float": "double", "bool": "uint8_t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The functions for vectors of `nbytes`, and their kernels."""

    nbytes: int
    entries: Sequence[Entry]
    kernels: KernelTexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """All that is written. `name`: the prefix of every name. `variants`: the widest vectors first;
    all have one interface."""

    name: str
    variants: Sequence[Variant]
    table: Table

    @property
    def entries(self) -> Sequence[Entry]:
        """The functions for the widest vectors."""
        return self.variants[0].entries

    @property
    def state(self) -> list[Kept]:
        """The fields of the state of all entries."""
        return list({x.name: x for e in self.entries for x in e.state}.values())

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
            *self._state(),
            *(text for e in self.entries for text in self._declarations(e)),
            f"#ifdef __cplusplus\n}}\n#endif\n#endif /* {upper}_H */",
        ]
        return "\n".join(parts) + "\n"

    def _state(self) -> Iterator[str]:
        """Yield the declarations of the state: the module's tensors and numbers that the program
        changes from call to call."""
        n, upper = self.name, self.upper
        if not self.state:
            return
        fields = "".join(f"  {_field(x)};\n" for x in self.state)
        yield (
            "/* What the program keeps from one call to the next: its own field for each tensor "
            f"and\n   number of the model that it changes. */\ntypedef struct {{\n{fields}}} "
            f"{n}_state;"
        )
        yield "/* Sets the state to the values that the model was exported with. */"
        yield f"{n}_status {n}_state_init({n}_state *, const {n}_weights *weights);"
        yield f"/* A state in which all is zero: `{n}_state s = {upper}_ZERO_STATE;` */"
        yield f"#define {upper}_ZERO_STATE {{0}}"

    def _declarations(self, e: Entry) -> Iterator[str]:
        f = f"{self.name}_{e.name}"
        fields = " ".join(f"int64_t {s.symbol};" for s in e.sizes) or "int64_t unused;"
        says = "; ".join(
            f"{s.symbol} = {' = '.join(s.dims)}, at least {max(s.least, 0)}" for s in e.sizes
        )
        yield f"\n/* {e.name}: {says or 'all sizes are constant'} */"
        if e.fixed:
            rows = ", ".join(f"{dim} = {n}" for dim, n in e.fixed.items())
            yield f"/* constant, as in the example: {rows} */"
        yield f"typedef struct {{ {fields} }} {f}_sizes;"
        yield f"size_t {f}_workspace_bytes(const {f}_sizes *);"
        yield "/* For a pool of so many threads. With less, a call uses fewer threads. */"
        yield f"size_t {f}_workspace_bytes_for(const {f}_sizes *, int64_t threads);"
        outs = self._shapes(e)
        yield f"{self.name}_status {f}_output_shapes(const {f}_sizes *{outs});"
        for a in (*given(e), *e.outputs):
            yield f"/*   {a.name}: {_type_text(a)} */"
        if e.frame.messages:
            yield "/* After RAISED: what the program says, by the workspace of the call. */"
            yield f"const char *{f}_message(const void *workspace);"
        yield f"{self._signature(e)};"

    def _shapes(self, e: Entry) -> str:
        rows = (f", int64_t {a.name}[{max(len(a.shape), 1)}]" for a in e.outputs
                if a.kind == "tensor")  # fmt: skip
        return "".join(rows)

    def _signature(self, e: Entry, named: str = "{}") -> str:
        f = f"{self.name}_{e.name}"
        inputs = [_parameter(a, is_input=True) for a in given(e)]
        outputs = [_parameter(a, is_input=False) for a in e.outputs]
        rest = [f"const {self.name}_weights *weights",
                *([f"{self.name}_state *state"] if e.state else []), "void *workspace_given",
                "size_t workspace_bytes", f"const {self.name}_pool *pool_or_null"]  # fmt: skip
        parts = ", ".join([f"const {f}_sizes *sizes", *inputs, *outputs, *rest])
        return f"{self.name}_status {named.format(f)}({parts})"

    # ---- source -------------------------------------------------------------------------------

    def source(self) -> str:
        """Return `name.c`."""
        n, upper = self.name, self.upper
        words = ", ".join(f'"{m}"' for m in _MEANINGS)
        ignored = "\n".join(f'#pragma GCC diagnostic ignored "-W{w}"' for w in _WARNINGS)
        parts = [
            f'#include "{n}.h"\n#include <math.h>\n#include <string.h>',
            ignored,
            _sets(upper),
            BYTES,
            f"#ifndef {upper}_DISPATCH",
            *self._kernels(),
            "#endif",
            "#undef LT_INLINE\n#define LT_INLINE static inline\n" + HELPERS,
            "static int64_t lt_aligned(int64_t n) { return (n + 63) / 64 * 64; }",
            LAYOUT,
            *(h for h, names in _HELPERS if self._calls(names)),
            self.table.c_text(n, upper),
            f"#ifndef {upper}_SET",
            f"const char *{n}_strerror({n}_status s) {{\n"
            f"  static const char *const words[] = {{{words}}};\n"
            f'  return (unsigned)s < {len(STATUSES)} ? words[s] : "unknown";\n}}',
            *self._state_init(),
            "#endif",
            *(
                text
                for rows in zip(*(v.entries for v in self.variants), strict=True)
                for text in self._entry(rows)
            ),
        ]
        return "\n\n".join(parts) + "\n"

    def _calls(self, names: str) -> bool:
        return any(
            re.search(names, line) for v in self.variants for e in v.entries for line in e.body
        )

    def _kernels(self) -> Iterator[str]:
        """Yield the kernels, with names of their own."""
        if any(v.kernels.names for v in self.variants):
            yield _kernel_declarations()
        yield self._of_each_set([
            "\n\n".join(
                _renamed(_INTEGERS.sub("", text.replace(abi.C_DECLARATIONS, "")), suffix)
                for text, suffix in v.kernels.names.items()
            )
            for v in self.variants
        ])  # fmt: skip

    def _of_each_set(self, texts: Sequence[str]) -> str:
        """Return one text for each variant, of which the compiler's instruction set chooses."""
        if len(texts) == 1:
            return texts[0]
        tests = [f"#{'el' if k else ''}if LT_BYTES >= {v.nbytes}"
                 for k, v in enumerate(self.variants[:-1])]  # fmt: skip
        parts = (f"{test}\n{text}\n" for test, text in zip([*tests, "#else"], texts, strict=True))
        return "".join(parts) + "#endif"

    def _state_init(self) -> Iterator[str]:
        n, upper = self.name, self.upper
        if not self.state:
            return
        lines = [f"if (!state) return {upper}_NULL;", "(void)weights;"]
        if not self.table.is_constant and any(_is_tensor(x) for x in self.state):
            lines.append(f"if (!{n}_weights_are_open(weights)) return {upper}_BAD_WEIGHTS;")
        for x in self.state:
            if _is_tensor(x):
                size = f"{x.value.numel() * x.value.itemsize}"
                lines.append(f"memcpy(&state->{x.name}, {self.table.place(x.value)}, {size});")
            else:
                lines.append(f"state->{x.name} = {_c_number(x.value)};")
        yield (
            f"{n}_status {n}_state_init({n}_state *state, const {n}_weights *weights) {{\n"
            f"{_lines(lines)}  return {upper}_OK;\n}}"
        )

    def _entry(self, variants: Sequence[Entry]) -> Iterator[str]:
        """Yield a function; `variants`: for each size of vectors."""
        e = variants[0]
        f, n, upper = f"{self.name}_{e.name}", self.name, self.upper
        symbols = [f"const int64_t z_{s.symbol} = sizes->{s.symbol}; (void)z_{s.symbol};"
                   for s in e.sizes]  # fmt: skip
        yield (
            f"static {n}_status {f}_check(const {f}_sizes *sizes) {{\n  if (!sizes) return "
            f"{upper}_NULL;\n{_lines(symbols)}{_lines(self._checks(variants))}"
            f"  return {upper}_OK;\n}}"
        )
        plans = [self._plan(v, x, symbols) for v, x in zip(self.variants, variants, strict=True)]
        yield from (p.text for p in plans if p.text)
        yield f"#ifndef {upper}_SET"
        most = "".join(f"  {{ {p.room} most = lt_max(most, {p.needed}); }}\n" for p in plans)
        own = self._of_each_set([f"  {p.room}\n  return (size_t)({p.needed});" for p in plans])
        yield (
            f"size_t {f}_workspace_bytes_for(const {f}_sizes *sizes, int64_t threads) {{\n"
            f"  if ({f}_check(sizes)) return 0;\n"
            f"  threads = lt_max(1, lt_min(threads, {MOST_THREADS})); (void)threads;\n"
            f"#ifdef {upper}_DISPATCH\n  int64_t most = 0;\n{most}  return (size_t)most;\n"
            f"#else\n{own}\n#endif\n}}\n"
            f"size_t {f}_workspace_bytes(const {f}_sizes *sizes) {{\n"
            f"  return {f}_workspace_bytes_for(sizes, 1);\n}}"
        )
        tensors = [a for a in e.outputs if a.kind == "tensor"]
        shapes = [
            f"{a.name}[{k}] = {c_index(s) if nonnegative(s) else f'lt_max({c_index(s)}, 0)'};"
            for a in tensors for k, s in enumerate(a.shape)
        ]  # fmt: skip
        yield (
            f"{n}_status {f}_output_shapes(const {f}_sizes *sizes{self._shapes(e)}) {{\n"
            f"  const {n}_status status = {f}_check(sizes);\n  if (status) return status;\n"
            f"{_lines(symbols)}{_lines(f'(void){a.name};' for a in tensors)}{_lines(shapes)}"
            f"  return {upper}_OK;\n}}"
        )
        if e.frame.messages:
            words = ", ".join(['"a fault in a kernel"', *map(_c_string, e.frame.messages)])
            yield (
                f"const char *{f}_message(const void *workspace) {{\n"
                f"  static const char *const words[] = {{{words}}};\n"
                "  const int64_t k = workspace ? *(const int64_t *)workspace : 0;\n"
                f"  return words[k > 0 && k <= {len(e.frame.messages)} ? k : 0];\n}}"
            )
        yield f"#endif\n#ifdef {upper}_DISPATCH"
        yield from self._dispatch(e)
        yield "#else"
        yield self._of_each_set([
            f"{self._signature(x, named='LT_ENTRY({})')} {{\n"
            f"{_lines(self._body(x, symbols, plan))}}}"
            for x, plan in zip(variants, plans, strict=True)
        ])  # fmt: skip
        yield "#endif"

    def _plan(self, v: Variant, e: Entry, symbols: Sequence[str]) -> _Plan:
        f, pieces = f"{self.name}_{e.name}", self._pieces(e)
        count = max(len(pieces), 1)
        if all(n.const is not None for p in pieces for n in p.nbytes):  # all is known here
            one, many = _fixed(pieces, 1), _fixed(pieces, MOST_THREADS)
            rows = [", ".join(map(str, row[0])) or "0" for row in (one, many)]
            if one == many:
                table = f"static const int64_t offsets[{count}] = {{{rows[0]}}};"
                return _Plan(text="", room="", needed=str(one[1]), table=table)
            table = f"static const int64_t tables[2][{count}] = {{{{{rows[0]}}}, {{{rows[1]}}}}};"
            table += " const int64_t *offsets = tables[threads > 1];"
            return _Plan(
                text="", room="", needed=f"threads > 1 ? {many[1]} : {one[1]}", table=table
            )
        text = (
            f"static int64_t {f}_plan_{v.nbytes}(const {f}_sizes *sizes, int64_t threads, "
            f"int64_t *offsets) {{\n  (void)threads;\n"
            f"{_lines(symbols)}  const lt_piece pieces[] = {{{_rows(pieces)}}};\n"
            f"  return lt_layout(pieces, {len(pieces)}, offsets);\n}}"
        )
        room = f"int64_t offsets[{count}];"
        return _Plan(
            text=text, room=room, needed=f"{f}_plan_{v.nbytes}(sizes, threads, offsets)", table=""
        )

    def _dispatch(self, e: Entry) -> Iterator[str]:
        """Yield the entry that calls the one of the machine's instruction set."""
        for name in SETS:
            yield f"{self._signature(e, named='{}_' + name)};"
        args = ", ".join(re.findall(r"(\w+)(?:\[\d+\])?(?=[,)])", self._signature(e)))
        calls = [f"if (lt_has_{name}()) return {self.name}_{e.name}_{name}({args});"
                 for name in SETS if name != "base"]  # fmt: skip
        yield (
            f"{self._signature(e)} {{\n{_lines(calls)}"
            f"  return {self.name}_{e.name}_base({args});\n}}"
        )

    def _pieces(self, e: Entry) -> list[Piece]:
        first, *others = e.frame.pieces
        if not e.frame.messages:
            first = Piece((as_index(0),), 0, 0)
        return [first, *others]

    def _body(self, e: Entry, symbols: Sequence[str], plan: _Plan) -> Iterator[str]:
        f, n, upper = f"{self.name}_{e.name}", self.name, self.upper
        yield f"const {n}_status status = {f}_check(sizes);"
        yield "if (status) return status;"
        yield from symbols
        for s in e.sizes:
            for a in given(e):
                if a.kind == "int" and a.shown in s.dims:
                    yield f"if ({a.name} != z_{s.symbol}) return {upper}_BAD_SIZE;"
        for name, value in e.constants.items():
            yield f"if ({name} != {_long_int(value)}) return {upper}_BAD_SIZE;"
        for a in (*given(e), *e.outputs):
            if a.kind == "tensor":
                empty = f"({c_index(product(a.shape))}) <= 0"
                size = a.dtype.itemsize if a.dtype is not None else 1
                is_bad = f"!{a.name} || (uintptr_t){a.name} % {size}"
                yield f"if (!({empty}) && ({is_bad})) return {upper}_NULL;"
        for a in e.outputs:
            pointer = a.name if a.kind != "tensor" else f"{a.name}_shape" if a.counted else ""
            if pointer:
                yield (
                    f"if (!{pointer} || (uintptr_t){pointer} % sizeof *{pointer}) "
                    f"return {upper}_NULL;"
                )
        if e.state:
            yield f"if (!state || (uintptr_t)state % 8) return {upper}_NULL;"
        most = f"lt_min(pool_or_null->threads, {MOST_THREADS})"
        yield f"int64_t threads = pool_or_null ? lt_max(1, {most}) : 1;"
        yield plan.room
        yield f"int64_t needed = {plan.needed};"
        yield (
            "while (threads > 1 && workspace_bytes < (size_t)needed) "
            f"{{ threads--; needed = {plan.needed}; }}"
        )
        yield plan.table
        yield f"if (workspace_bytes < (size_t)needed) return {upper}_SMALL_WORKSPACE;"
        yield f"if (!workspace_given && needed) return {upper}_NULL;"
        yield f"if ((uintptr_t)workspace_given % {ALIGNED}) return {upper}_NULL;"
        yield "char *workspace = workspace_given; (void)workspace; (void)offsets;"
        if e.frame.messages:
            yield "*(int64_t *)(void *)workspace = 0;"
        if not self.table.is_constant and any(a.weight is not None for a in e.inputs):
            yield f"if (!{n}_weights_are_open(weights)) return {upper}_BAD_WEIGHTS;"
        yield "(void)weights;"
        yield "const void *pool = pool_or_null ? (const void *)pool_or_null->parallel_for : 0;"
        yield "(void)pool;"
        yield "int64_t fault = 0;"
        for a in e.inputs:
            if a.kind == "tensor":
                at = a.name if a.weight is None else self.table.place(a.weight)
                yield f"char *{a.at} = (char *)(uintptr_t)({at}); (void){a.at};"
        yield from e.body
        yield f"return fault ? {upper}_RAISED : {upper}_OK;"

    def _checks(self, variants: Sequence[Entry]) -> Iterator[str]:
        bad = f"return {self.upper}_BAD_SIZE;"
        for s in variants[0].sizes:
            yield f"if (z_{s.symbol} < {s.least} || z_{s.symbol} > {s.most}LL) {bad}"
        for test in dict.fromkeys(t for e in variants for t in self._too_large(e)):
            yield f"if ({test}) {bad}"

    def _too_large(self, e: Entry) -> Iterator[str]:
        """Yield tests for sizes with which a product of sizes would not fit into 64 bits."""
        arguments = [product(a.shape) * 8 for a in (*e.inputs, *e.outputs) if a.kind == "tensor"]
        for index in [*arguments, *(n * p.factor for p in self._pieces(e) for n in p.nbytes)]:
            for monomial, factor in index.terms:
                if len(monomial) > 1 or (monomial and abs(factor) > 1 << 20):
                    parts = (f"(double)({c_index(as_index(a))})" for a in monomial)
                    yield f"{' * '.join([f'{abs(factor)}.0', *parts])} > 1e18"


def _sets(upper: str) -> str:
    """Return the macros by which the file is compiled once for each instruction set, and once more
    for the functions that choose among them. Without these macros it is complete by itself."""
    tests = ""
    for name, words in SETS.items():
        every = " && ".join(f'__builtin_cpu_supports("{word}")' for word in words)
        tests += f"static int lt_has_{name}(void) {{\n  return {every};\n}}\n" if every else ""
    return f"""\
#if defined(_WIN32)
#define LT_HIDDEN
#else
#define LT_HIDDEN __attribute__((visibility("hidden")))
#endif
#ifdef {upper}_SET
#define LT_JOIN_(a, b) a##_##b
#define LT_JOIN(a, b) LT_JOIN_(a, b)
#define LT_ENTRY(name) LT_HIDDEN LT_JOIN(name, {upper}_SET)
#else
#define LT_ENTRY(name) name
#endif
#ifdef {upper}_DISPATCH
{tests}#endif"""


def given(e: Entry) -> list[Argument]:
    """Return the arguments that the caller of the C function passes."""
    return [a for a in e.inputs if a.weight is None]


def _parameter(a: Argument, *, is_input: bool) -> str:
    if a.kind != "tensor":
        return f"{_NUMBERS[a.kind]} {'' if is_input else '*'}{a.name}"
    assert a.dtype is not None
    text = f"{'const ' if is_input else ''}{CTYPES[a.dtype.name]} *{a.name}"
    if a.counted:
        text += f", int64_t {a.name}_capacity, int64_t {a.name}_shape[{max(len(a.shape), 1)}]"
    return text


def _is_tensor(x: Kept) -> bool:
    return isinstance(x.value, torch.Tensor)


def _field(x: Kept) -> str:
    if isinstance(x.value, torch.Tensor):
        dtype = of_torch(x.value.dtype)
        assert dtype is not None
        return f"{CTYPES[dtype.name]} {x.name}[{max(x.value.numel(), 1)}]"
    return f"{_NUMBERS[type(x.value).__name__]} {x.name}"


def _c_number(x: Any) -> str:
    return c_real(x) if isinstance(x, float) else _long_int(int(x))


def _c_string(text: str) -> str:
    plain = "".join(c if 32 <= ord(c) < 127 and c not in '"\\?' else " " for c in text)
    return f'"{plain[:200]}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The offsets of temporaries. `text`: a function; `room`: the declaration of what it fills in;
    `needed`: the expression of the bytes of all, for `threads`; `table`: the declaration of offsets
    that are known."""

    text: str
    room: str
    needed: str
    table: str


def _fixed(pieces: Sequence[Piece], threads: int) -> tuple[list[int], int]:
    """Return the offsets of temporaries of known sizes, and the bytes of all."""
    return layout([
        (_aligned(min(p.factor, threads) * max(n.const or 0 for n in p.nbytes)), p.begin, p.end)
        for p in pieces
    ])  # fmt: skip


def _rows(pieces: Sequence[Piece]) -> str:
    """Return the rows of C that `lt_layout` reads."""
    texts: list[str] = []
    for p in pieces:
        most = c_index(p.nbytes[0])
        for index in p.nbytes[1:]:
            most = f"lt_max({most}, {c_index(index)})"
        factor = "threads * " if p.factor > 1 else ""
        texts.append(f"{{lt_aligned({factor}({most})), {p.begin}, {p.end}}}")
    return ", ".join(texts)


def _aligned(n: int) -> int:
    return -(-n // ALIGNED) * ALIGNED


def _long_int(value: int) -> str:
    return f"({value + 1}LL - 1)"  # the least int64 has no literal


def _type_text(a: Argument) -> str:
    if a.kind != "tensor" or a.dtype is None:
        return a.kind
    told = f"{a.dtype.name} [{', '.join(map(_shown, a.shape))}]"
    if a.counted:
        told += f" at most: {a.name}_capacity elements have room, {a.name}_shape is what there is"
    return told


def _shown(index: Index) -> str:
    return str(index)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"  {line}\n" for line in lines)


def _kernel_declarations() -> str:
    """Return the kernels' interface, with the integer types of <stdint.h>."""
    found = abi.C_DECLARATIONS.replace("typedef long long int64_t;\ntypedef int int32_t;\n", "")
    exported = re.sub(r"#if defined\(_WIN32\).*?#endif\n", "", found, flags=re.DOTALL)
    integers = "typedef long long lt_i64;\ntypedef unsigned long long lt_u64;\n"
    return "#define LT_EXPORT static\n" + integers + _long(exported)


def _long(text: str) -> str:
    """Return the text with `long long` in place of `int64_t`. Vector builtins take `long long`, and
    some platforms define `int64_t` as `long`."""
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
