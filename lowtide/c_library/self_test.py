"""The self-test of an exported model: a C program with recorded inputs and results.

In: the library, the results of each entry's example. Out: its C, and the recorded bytes.

    ./model_selftest      "forward: largest difference 1.2e-07"; the exit status tells of a failure
    ./model_selftest 9    "…, first call 1.20 ms, then 0.80 ms, workspace 64": the least of 9 calls
"""

from __future__ import annotations

import torch

from lowtide.c_library.gather import Entry
from lowtide.c_library.source import Library, given
from lowtide.codegen.host.c_driver import CTYPES


def self_test(library: Library) -> tuple[str, bytes]:
    """See the module's text."""
    recorded = bytearray()
    calls = [_call(library, e, recorded) for e in library.entries]
    n = library.name
    load = (
        ""
        if library.table.is_constant
        else f"""\
  size_t n_weights;
  void *w = read_file("{n}_weights.bin", &n_weights);
  if ({n}_weights_open(&weights, w, n_weights) || {n}_weights_verify(&weights)) return 2;
"""
    )
    return (
        f"""\
#include "{n}.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {{ return 1e3 * (double)clock() / CLOCKS_PER_SEC; }}
static void *aligned(size_t n) {{
  char *p = malloc(n + 64);
  return p ? p + 64 - (uintptr_t)p % 64 : 0;
}}
static void *read_file(const char *name, size_t *n) {{
  FILE *f = fopen(name, "rb");
  if (!f) {{ perror(name); exit(2); }}
  fseek(f, 0, SEEK_END);
  *n = (size_t)ftell(f);
  rewind(f);
  void *p = aligned(*n);
  if (fread(p, 1, *n, f) != *n) exit(2);
  fclose(f);
  return p;
}}

int main(int argc, char **argv) {{
  const long calls = argc > 1 ? atol(argv[1]) : 1;
  size_t n_recorded;
  int failed = 0;
  {n}_weights weights = {{0, 0}};
  const char *recorded = read_file("{n}_selftest.bin", &n_recorded);
{load}{"".join(calls)}  return failed;
}}
""",
        bytes(recorded),
    )


def _put(recorded: bytearray, tensor: torch.Tensor) -> int:
    recorded.extend(b"\0" * (-len(recorded) % 64))
    at = len(recorded)
    whole = tensor.detach().cpu().contiguous().reshape(-1)
    recorded.extend(whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b"")
    return at


def _number(v: float) -> str:
    if v in (float("inf"), float("-inf")):
        return "INFINITY" if v > 0 else "-INFINITY"
    if v != v:
        return "NAN"
    return f"({v + 1}LL - 1)" if isinstance(v, int) else repr(v)


def _call(library: Library, e: Entry, recorded: bytearray) -> str:
    n, f = library.name, f"{library.name}_{e.name}"
    sizes = ", ".join(str(s.example) for s in e.sizes) or "0"
    arguments: list[str] = []
    for a, v in zip(given(e), e.example, strict=True):
        if a.kind == "tensor":
            assert a.dtype is not None
            ctype = CTYPES[a.dtype.name]
            arguments.append(f"(const {ctype} *)(recorded + {_put(recorded, v)})")
        else:
            arguments.append(_number(v))
    lines = [f"    const {f}_sizes sizes = {{{sizes}}};"]
    compared: list[str] = []
    for a, v in zip(e.outputs, e.expected, strict=True):
        x = v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=_DTYPES[a.kind])
        ctype = _CTYPES.get(a.kind) or CTYPES[a.dtype.name if a.dtype else ""]
        lines.append(f"    {ctype} *{a.name} = aligned({max(x.numel() * x.itemsize, 1)});")
        arguments.append(a.name)
        if a.counted:
            lines.append(f"    int64_t {a.name}_shape[{max(len(a.shape), 1)}];")
            arguments += [str(x.numel()), f"{a.name}_shape"]
            compared += [f"    if ({a.name}_shape[{d}] != {size}) worst = INFINITY;\n"
                         for d, size in enumerate(x.shape)]  # fmt: skip
        at = _put(recorded, x)
        compared.append(
            f"    for (int64_t i = 0; i < {x.numel()}; i++) {{\n"
            f"      const double x = (double){a.name}[i];\n"
            f"      const double y = (double)((const {ctype} *)(recorded + {at}))[i];\n"
            "      const int is_same = x == y || (x != x && y != y);\n"
            "      const double d = is_same ? 0 : fabs(x - y) / (1 + fabs(y));\n"
            "      if (!(d <= worst)) worst = d;\n    }\n"
        )
    state = ["&state"] if e.state else []
    if e.state:
        lines.append(f"    static {n}_state state;\n    if ({n}_state_init(&state, &weights)) "
                     "return 2;")  # fmt: skip
    call = ", ".join(["&sizes", *arguments, "&weights", *state, "work", "n_work", "0"])
    return (
        "  {\n" + "\n".join(lines) + f"\n    const size_t n_work = {f}_workspace_bytes(&sizes);\n"
        "    void *work = aligned(n_work ? n_work : 1);\n    double worst = 0;\n"
        "    double first = now_ms(), least = INFINITY;\n"
        f"    const {n}_status status = {f}({call});\n    first = now_ms() - first;\n"
        f'    if (status) {{ printf("{e.name}: %s\\n", {n}_strerror(status)); return 1; }}\n'
        + "".join(compared)
        + f"    for (long k = 1; k < calls; k++) {{\n      const double start = now_ms();\n"
        f"      if ({f}({call})) return 1;\n      least = fmin(least, now_ms() - start);\n    }}\n"
        + f'    printf("{e.name}: largest difference %g", worst);\n'
        '    if (calls > 1) printf(", first call %.3f ms, then %.3f ms, workspace %.0f", first,\n'
        "                          least, (double)n_work);\n"
        '    printf("\\n");\n'
        "    failed |= !(worst <= 1e-5);\n  }\n"
    )


_DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
_CTYPES = {"int": "int64_t", "float": "double", "bool": "uint8_t"}
