"""Writes a C program that calls an exported library in wrong and in unusual ways.

In: the header of `lt.export_c`, and its weights file. Out: C, which takes a seed and a count.

Each round draws sizes, values, a pool of threads, and one fault: a short or misaligned workspace, a
pointer that is null or misaligned, weights that are cut off or have one bit flipped, a small
capacity. Every array has exactly the bytes that the header tells, so that AddressSanitizer sees an
access beyond. A fault must give its status; any other call any status, but no report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.c_library import header
from tests.c_library.header import Function, Given

_CTYPES: Final = {
    "f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "i64": "int64_t",
    "i32": "int32_t", "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t", "bool": "uint8_t",
    "int": "int64_t", "float": "double",
}  # fmt: skip

_START: Final = """\
#include "NAME.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, BAD_SIZE, SMALL_WORKSPACE, BAD_INDEX, BAD_WEIGHTS, RAISED, BAD_POINTER };
static uint64_t seed;
static uint64_t drawn(void) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return seed;
}
static int64_t below(int64_t n) { return n > 0 ? (int64_t)(drawn() % (uint64_t)n) : 0; }
static int one_in(int64_t n) { return !below(n); }
static void *blocks[64];
static int n_blocks;
static void *block(size_t n) { /* of exactly so many bytes, at a multiple of 64 */
  void *p = 0;
  if (posix_memalign(&p, 64, n)) exit(2);
  return blocks[n_blocks++] = p;
}
static int64_t size_drawn(int is_usual) {
  static const int64_t few[] = {0, 1, 2, 3, 5, 31, 32, 33, 64, 65};
  static const int64_t odd[] = {-1, -33, INT64_MAX, INT64_MIN, 1LL << 62, 1LL << 40, 1LL << 31};
  if (!is_usual && one_in(2)) return odd[below(7)];
  return one_in(3) ? below(150) : few[below(10)];
}
static double real(void) {
  static const double odd[] = {0.0, -0.0, 1e30, -1e30, 1e-40, INFINITY, -INFINITY, NAN};
  if (one_in(60)) return odd[below(8)];
  return (double)below(2001) / 500 - 2;
}
static int64_t whole(int64_t most) {
  if (one_in(400)) return (int64_t)drawn();
  return below(most) - (one_in(200) ? most : 0);
}
static int32_t in_pieces(int64_t begin, int64_t end, int64_t grain, NAME_task task, void *context) {
  while (end > begin) { /* the last piece first */
    int64_t n = grain > 0 ? grain : 1;
    n = n > end - begin ? end - begin : n;
    task(end - n, end, context);
    end -= n;
  }
  return 0;
}
static void wrong(const char *what, long round, int status) {
  fprintf(stderr, "round %ld: %s gave %d\\n", round, what, status);
  exit(3);
}
static long n_statuses[7];
static int64_t product(const int64_t *shape, int64_t rank) {
  int64_t n = 1;
  for (int64_t k = 0; k < rank; k++) n *= shape[k];
  return n;
}
"""

_WEIGHTS: Final = """\
static char *file;
static size_t n_file;
static uint64_t word(const char *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static int is_padding(size_t at) {
  const uint64_t count = word(file + 8) >> 32;
  if (at < 24 + 24 * count) return 0;
  for (uint64_t k = 0; k < count; k++) {
    const uint64_t begin = word(file + 24 + 24 * k), n = word(file + 32 + 24 * k);
    if (at >= begin && at < begin + n) return 0;
  }
  return 1;
}
/* Weights that are whole, or cut off or damaged: then no call may take all steps. */
static int weights_drawn(NAME_weights *w, long round) {
  const int kind = one_in(6) ? 1 + (int)below(3) : 0;
  const size_t n = kind == 1 ? (size_t)below((int64_t)n_file) : n_file;
  char *copy = block(n ? n : 1);
  memcpy(copy, file, n);
  size_t at = 0;
  if (kind == 2 && n) {
    at = one_in(2) ? (size_t)below((int64_t)n) : (size_t)below(24);
    copy[at] ^= (char)(1 << below(8));
  }
  const int opened = NAME_weights_open(w, copy + (kind == 3), n - (kind == 3));
  const int verified = NAME_weights_verify(w);
  if (kind == 0 && (opened || verified)) wrong("whole weights", round, opened);
  if ((kind == 1 || kind == 3) && (!opened || !verified)) wrong("cut weights", round, opened);
  if (kind == 2 && !opened && !verified && !is_padding(at)) wrong("damaged weights", round, 0);
  return opened;
}
static void read_weights(void) {
  FILE *f = fopen("NAME_weights.bin", "rb");
  if (!f) exit(2);
  fseek(f, 0, SEEK_END);
  n_file = (size_t)ftell(f);
  rewind(f);
  file = malloc(n_file);
  if (fread(file, 1, n_file, f) != n_file) exit(2);
  fclose(f);
}
"""


def program(text: str, name: str, *, is_file: bool, constants: dict[str, int]) -> str:
    """Return the C. `text`: the header. `is_file`: the weights are in a file. `constants`: ints of
    a call that the program fixes."""
    functions = header.functions(text)
    parts = [_START, _WEIGHTS if is_file else ""]
    has_state = header.state_bytes(text) > 0
    for f in functions.values():
        rows = "".join(
            f"  {line}\n" for line in _round(f, name, is_file, has_state, constants, text)
        )
        parts.append(f"static void try_{f.name}(long round) {{\n{rows}}}\n")
    calls = " ".join(f"try_{f}(round);" for f in functions)
    parts.append(
        "int main(int argc, char **argv) {\n  if (argc < 3) return 2;\n"
        f"  {'read_weights();' if is_file else ''}\n"
        "  for (long round = 0; round < atol(argv[2]); round++) {\n"
        "    seed = (uint64_t)(atol(argv[1]) + 1) * 0x9E3779B97F4A7C15ULL + (uint64_t)round;\n"
        f"    for (int k = 0; k < 8; k++) drawn();\n    {calls}\n"
        "    while (n_blocks) free(blocks[--n_blocks]);\n  }\n"
        '  for (int k = 0; k < 7; k++) printf("%ld ", n_statuses[k]);\n  return 0;\n}\n'
    )
    return "\n".join(parts).replace("NAME", name)


def _round(
    f: Function, name: str, is_file: bool, has_state: bool, constants: dict[str, int], text: str
) -> Iterator[str]:
    prefix = f"{name}_{f.name}"
    yield "const int is_usual = !one_in(4);"
    fields = ", ".join("size_drawn(is_usual)" for _ in f.sizes) or "0"
    yield f"const {prefix}_sizes sizes = {{{fields}}};"
    shaped = [g for g in f.outputs if g.shape is not None]
    for g in shaped:
        yield f"int64_t s_{g.name}[{max(len(g.shape or ()), 1)}];"
    shapes = "".join(f", s_{g.name}" for g in shaped)
    yield f"const int unfit = {prefix}_output_shapes(&sizes{shapes});"
    yield "const int64_t threads = one_in(3) ? 1 + below(9) : 1;"
    yield f"const size_t n_one = {prefix}_workspace_bytes(&sizes);"
    yield f"size_t n_work = one_in(3) ? n_one : {prefix}_workspace_bytes_for(&sizes, threads);"
    yield 'if (unfit && n_work) wrong("a workspace for sizes that do not fit", round, unfit);'
    large = "".join(f" || sizes.{s.symbol} > 4096" for s in f.sizes if s.symbol[0] == "v")
    yield f"if (unfit || n_work > 1 << 26{large}) {{"
    nulls = [_null(g) for g in (*f.inputs, *f.outputs)]
    rest = ["0"] * (4 + has_state)
    yield f"  const int status = {prefix}(&sizes, {', '.join([*nulls, *rest])});"
    yield '  if (unfit ? status != unfit : status <= OK) wrong("null everywhere", round, status);'
    yield "  return;\n  }"
    yield from _arguments(f, constants)
    yield f"{name}_weights weights = {{0, 0}};"
    yield "int bad_weights = 0; (void)bad_weights;"
    if is_file:
        yield "bad_weights = weights_drawn(&weights, round);"
    if has_state:
        yield f"{name}_state *state = block(sizeof({name}_state));"
        yield f"const int begun = {name}_state_init(state, &weights);"
        yield 'if (begun && !bad_weights) wrong("a new state", round, begun);'
        yield f"if (begun) memset(state, 0, sizeof({name}_state));"
    yield from _faults(f, has_state)
    yield "char *work = block(n_work ? n_work : 1);"
    yield f"const {name}_pool pool = {{threads, in_pieces}};"
    args: list[str] = []
    for g in (*f.inputs, *f.outputs):
        args += [g.name, f"n_{g.name}", f"s_{g.name}"] if g.is_counted else [g.name]
    call = ", ".join([
        "fault == 3 ? 0 : &sizes", *args, "&weights", *(["state"] if has_state else []),
        "fault == 2 ? work + 8 : work", "n_work", "threads > 1 ? &pool : 0",
    ])  # fmt: skip
    yield f"const int status = {prefix}({call});"
    yield 'if (status < OK || status > BAD_POINTER) wrong("a call", round, status);'
    yield 'if (expected && !bad_weights && status != expected) wrong("a fault", round, status);'
    yield "n_statuses[status]++;"
    if f"{prefix}_message" in text:
        yield f'if (!fault && !{prefix}_message(work)) wrong("a message", round, status);'


def _null(g: Given) -> str:
    if g.shape is None and not g.is_output:
        return "0"
    return "0, 0, 0" if g.is_counted else "0"


def _arguments(f: Function, constants: dict[str, int]) -> Iterator[str]:
    """Yield the declarations of inputs and outputs, with values."""
    for g in (*f.inputs, *f.outputs):
        ctype = _CTYPES[g.kind]
        if g.shape is None and not g.is_output:
            symbol = next((s.symbol for s in f.sizes if g.name in s.dims), None)
            value = "real()" if g.kind == "float" else str(constants.get(g.name, "whole(60)"))
            yield f"{ctype} {g.name} = {f'sizes.{symbol}' if symbol else value};"
            continue
        if g.is_output:
            count = f"product(s_{g.name}, {len(g.shape)})" if g.shape else "1"
        else:
            count = " * ".join(f"sizes.{n}" if n[0] in "vn" else n for n in g.shape or ()) or "1"
        yield f"int64_t n_{g.name} = {count};"
        if g.is_counted:
            yield f"if (one_in(4)) n_{g.name} = below(n_{g.name} + 1);"
        yield f"{ctype} *{g.name} = block((size_t)n_{g.name} * sizeof({ctype}));"
        if not g.is_output:
            value = {"f32": "(float)real()", "f64": "real()", "bool": "(uint8_t)below(2)"}.get(
                g.kind, f"({ctype})whole(most)"
            )
            yield "{ const int64_t most = one_in(2) ? 4 : 60; (void)most;"
            yield f"  for (int64_t k = 0; k < n_{g.name}; k++) {g.name}[k] = {value}; }}"


def _faults(f: Function, has_state: bool) -> Iterator[str]:
    """Yield the choice of a fault, and the status that it must give."""
    pointers = [g for g in (*f.inputs, *f.outputs) if g.shape is not None or g.is_output]
    yield f"const int fault = one_in(2) ? 1 + (int)below({4 + 2 * len(pointers)}) : 0;"
    yield "int expected = 0;"
    yield "if (fault == 1 && n_one) n_work = (size_t)below((int64_t)n_one);"
    yield "if (fault == 1 && n_one) expected = SMALL_WORKSPACE;"
    yield "if (fault == 2 || fault == 3) expected = BAD_POINTER;"
    if has_state:
        yield "if (fault == 4) state = 0, expected = BAD_POINTER;"
    for k, g in enumerate(pointers):
        at = 5 + 2 * k
        yield f"if (fault == {at} && n_{g.name}) {g.name} = 0, expected = BAD_POINTER;"
        yield (
            f"if (fault == {at + 1} && n_{g.name} && sizeof *{g.name} > 1)\n"
            f"    {g.name} = (void *)((char *){g.name} + 1), expected = BAD_POINTER;"
        )
