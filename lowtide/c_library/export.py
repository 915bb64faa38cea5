"""`lt.export_c`: writes a compiled program as a C library; see docs/deploy.md.

In: a compiled function or module, a folder, example arguments. Out: an `Export`.

    lt.export_c(model, "out", (x,))      out/model.h, model.c, libmodel.so, …
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import torch

from lowtide.api.script import script
from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_module import ScriptModule
from lowtide.c_library import exported_program
from lowtide.c_library.expected import results_of
from lowtide.c_library.gather import Entry, gathered
from lowtide.c_library.regions import KernelTexts
from lowtide.c_library.self_test import self_test
from lowtide.c_library.sets import SETS, each_set
from lowtide.c_library.sizes import Choice
from lowtide.c_library.source import Library, Variant
from lowtide.c_library.weights import Table
from lowtide.diagnostics.tracebacks import entry_point
from lowtide.errors import BackendError, CompileError
from lowtide.runtime import toolchain

_CONSTANT_BYTES: Final = 100_000  # of weights, up to which they are constants of the C
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}", re.ASCII)
_TAKEN: Final = re.compile(r"pool|task|weights\w*|state\w*|status|strerror")  # by the header
_LIMIT_S: Final = 600
# Without tables for exceptions, which C does not raise, without symbols, without gaps.
_SHORT: Final = ("-fno-asynchronous-unwind-tables", "-fno-align-functions", "-fno-ident")
_SHORT_ELF: Final = ("-s", "-Wl,--build-id=none", "-Wl,-z,noseparate-code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The result of `lt.export_c`; printing it shows all fields. `functions`: the entry points in
    C. `code_bytes`, `weight_bytes`: the size of the code and of the weights."""

    directory: str
    name: str
    files: tuple[str, ...]
    functions: tuple[str, ...]
    code_bytes: int
    weight_bytes: int

    def selftest(self) -> str:
        """Run the built self-test: the recorded inputs and results. Raises BackendError."""
        program = os.path.abspath(os.path.join(self.directory, f"{self.name}_selftest"))
        found = subprocess.run(
            [program], cwd=self.directory, capture_output=True, text=True, timeout=_LIMIT_S,
            check=False,
        )  # fmt: skip
        if found.returncode:
            raise BackendError(f"the self-test failed: {found.stdout}{found.stderr}")
        return found.stdout

    def to_dict(self) -> dict[str, object]:
        """Return the fields, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        rows = [f"{self.directory}: {self.code_bytes:,} bytes of code, "
                f"{self.weight_bytes:,} bytes of weights"]  # fmt: skip
        rows += [f"  {f}" for f in self.files]
        rows += [f"  {f}()" for f in self.functions]
        return "\n".join(rows)

    def __repr__(self) -> str:
        return str(self)


@entry_point
def export_c(
    m: Any,
    directory: str | os.PathLike[str],
    example_inputs: tuple[Any, ...] | Mapping[str, tuple[Any, ...]] | None = None,
    *,
    name: str = "model",
    target: str | None = None,
    weights: str = "auto",
    sizes: Mapping[str, int | None] | None = None,
    optimize: str = "speed",
) -> Export:
    """Write a compiled function or module as a C library for this machine.

    `m`: what `lt.script`, `lt.trace` or `lt.load` returned; a `torch.export.ExportedProgram`; or a
    plain function or module, which `torch.export` captures. `example_inputs`: a tuple of arguments,
    or {method: tuple}; an ExportedProgram has its own. `name`: the prefix of files and functions.
    `weights`: "constants", "file", or "auto": a file above 100 kB. Sizes above 32 in the example
    stay arguments. `sizes`: {"x.shape[0]": 100} makes one a constant, {"x.shape[0]": None} one that
    is 32 or less an argument.

    Raises ExportError for what has no C, with the source line of each op. `target` other than None,
    and `optimize` other than "speed", raise CompileError.
    """
    if target is not None or optimize != "speed":
        raise CompileError(
            "export_c() writes for this machine", remedy="target=None, optimize='speed'"
        )
    if _NAME.fullmatch(name) is None:
        raise CompileError(f"{name!r} is no name for C", remedy="letters, digits and _")
    if weights not in ("auto", "constants", "file"):
        raise CompileError(f"weights={weights!r}", remedy='"auto", "constants" or "file"')
    choice = Choice(sizes=sizes or {})
    methods = _methods(_without_wrapper(m), example_inputs, choice)
    for method, (_, args) in methods.items():
        if args is None:
            raise CompileError(
                f"{method}() needs example arguments", remedy="example_inputs=(x, …)"
            )
    library = _library(name, methods, choice)
    library.table.is_constant = weights == "constants" or (
        weights == "auto" and library.table.nbytes <= _CONSTANT_BYTES
    )
    return _write(Path(directory), library)


def _library(name: str, methods: Mapping[str, tuple[Any, Any]], choice: Choice) -> Library:
    """Return all that is written: the functions for each size of vectors."""
    table = Table(name=name)
    variants: list[Variant] = []
    state: set[str] = set()
    for nbytes in each_set():
        kernels = KernelTexts()
        entries = _entries(methods, kernels, name.upper(), choice, state)
        made = Variant(nbytes=nbytes, entries=entries, kernels=kernels)
        if variants:
            ours, others = (
                Library(name=name, variants=[v], table=table).header() for v in (made, variants[0])
            )
            if ours != others:  # another interface: this set gets the kernels of a wider one
                continue
        variants.append(made)
        for e in entries:
            for a in e.inputs:
                if a.weight is not None:
                    table.add(a.weight)
            for x in e.state:
                if isinstance(x.value, torch.Tensor):
                    table.add(x.value)
    first = variants[0]
    expected = [
        replace(e, expected=results_of(compiled, _as_tuple(args), state))
        for e, (compiled, args) in zip(first.entries, methods.values(), strict=True)
    ]
    variants[0] = replace(first, entries=expected)
    return Library(name=name, variants=variants, table=table)


def _entries(
    methods: Mapping[str, tuple[Any, Any]],
    kernels: KernelTexts,
    upper: str,
    choice: Choice,
    state: set[str],
) -> list[Entry]:
    while True:
        before = set(state)
        found = [
            gathered(name, compiled, _as_tuple(args), kernels, state, upper, choice)
            for name, (compiled, args) in methods.items()
        ]
        if len(found) == 1 or state == before:  # all methods know of all state
            break
    unknown = sorted(choice.sizes.keys() - choice.used)
    if unknown:
        names = [d for e in found for d in (*(d for s in e.sizes for d in s.dims), *e.fixed)]
        raise CompileError(f"sizes={{{unknown[0]!r}: …}}: no such size", remedy=", ".join(names))
    return found


def _without_wrapper(m: Any) -> Any:
    """Return what `torch.compile` or `lt.compile` was given, if it is their result."""
    inner = getattr(m, "_orig_mod", None) or getattr(m, "_torchdynamo_orig_callable", None)
    return m if inner is None else inner


def _methods(m: Any, given: Any, choice: Choice) -> dict[str, tuple[Any, Any]]:
    """Return by name each compiled method and its example arguments."""
    if isinstance(m, ScriptFunction):
        name = m.__name__ if _NAME.fullmatch(m.__name__) else "forward"
        return {_free(name): (m, given)}
    if isinstance(m, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return _methods(script(cast("Any", m)), given, choice)
    if isinstance(m, ScriptModule):
        rows: dict[str, Any] = {"forward": given}
        if isinstance(given, Mapping):
            rows = dict(cast("Mapping[str, Any]", given))
        return {_free(k): (getattr(m, k), args) for k, args in rows.items()}
    if not (callable(m) or isinstance(m, torch.export.ExportedProgram)):
        raise CompileError(
            f"export_c() takes a function, a module or a program, not a {type(m).__name__}",
            remedy="lt.script(…), lt.trace(…) or lt.load(…) of it",
        )
    args = None if given is None else _as_tuple(given)
    if isinstance(given, Mapping):
        raise CompileError("several methods need a compiled module", remedy="lt.script(m)")
    if not isinstance(m, torch.export.ExportedProgram):
        if args is None:
            return {"forward": (m, None)}
        m = exported_program.captured(m, args)
    found = exported_program.compiled(m, args)
    choice.fixed, choice.ranges = found.fixed, found.ranges
    return {"forward": (found.module.forward, found.arguments)}


def _free(name: str) -> str:
    """Return a name that the header does not have already."""
    return f"{name}_" if _TAKEN.fullmatch(name) else name


def _as_tuple(args: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", args) if isinstance(args, tuple) else (args,)


def _write(folder: Path, library: Library) -> Export:
    n = library.name
    source = library.source()
    test, recorded = self_test(library)
    files: dict[str, str | bytes] = {
        f"{n}.h": library.header(),
        f"{n}.c": source,
        f"{n}_selftest.c": test,
        f"{n}_selftest.bin": recorded,
        "CMakeLists.txt": _cmake(n),
    }
    if not library.table.is_constant:
        files[f"{n}_weights.bin"] = library.table.file()
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        (folder / file).write_bytes(raw)
    built = _build(folder, n)
    return Export(
        directory=str(folder),
        name=n,
        files=(*files, *built),
        functions=tuple(f"{n}_{e.name}" for e in library.entries),
        code_bytes=(folder / built[0]).stat().st_size,
        weight_bytes=library.table.nbytes,
    )


def _build(folder: Path, n: str) -> list[str]:
    found = toolchain.compiler()
    command = found.command
    library, test = f"lib{n}.so", f"{n}_selftest"
    flags = ["-std=c99", "-O2", "-w", *_flags(found), *_SHORT]
    if sys.platform == "linux":
        flags += _SHORT_ELF
    rows = (
        [*command, *flags, "-fPIC", "-shared", "-o", library, f"{n}.c", "-lm"],
        [*command, "-std=c99", "-O1", "-o", test, f"{n}_selftest.c", library, "-lm",
         "-Wl,-rpath,$ORIGIN"],
    )  # fmt: skip
    for row in rows:
        made = subprocess.run(
            row, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        if made.returncode:
            raise BackendError("the exported C was refused", made.stderr, str(folder / f"{n}.c"))
    return [library, test]


def _flags(found: toolchain.Compiler) -> list[str]:
    """Return the compiler's flags for kernels, without those of the language and of a library."""
    dropped = ("-std=", "-O", "-w", "-shared", "-fPIC", "-fvisibility")
    return [f for f in found.flags if not f.startswith(dropped)]


def _cmake(n: str) -> str:
    upper = n.upper()
    sets = ""
    for name, words in SETS.items():
        features = " ".join(f"-m{word}" for word in words)
        sets += f"""\
  add_library({n}_{name} OBJECT {n}.c)
  target_compile_definitions({n}_{name} PRIVATE {upper}_SET={name})
  target_compile_options({n}_{name} PRIVATE ${{FLAGS}} {features})
"""
    objects = " ".join(f"$<TARGET_OBJECTS:{n}_{name}>" for name in SETS)
    return f"""\
cmake_minimum_required(VERSION 3.15)
project({n} C)
option({upper}_NATIVE "compile for this machine alone" OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(FLAGS -O2 -fno-fast-math -ffp-contract=off -fno-math-errno -fno-trapping-math -fwrapv
  -fno-strict-aliasing -fno-delete-null-pointer-checks -fno-asynchronous-unwind-tables)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT {upper}_NATIVE)
  # one library for all machines: it chooses its instruction set at run time
{sets}  add_library({n} {n}.c {objects})
  target_compile_definitions({n} PRIVATE {upper}_DISPATCH)
  target_compile_options({n} PRIVATE ${{FLAGS}})
else()
  add_library({n} {n}.c)
  target_compile_options({n} PRIVATE ${{FLAGS}} -march=native)
endif()
target_include_directories({n} PUBLIC $<BUILD_INTERFACE:${{CMAKE_CURRENT_SOURCE_DIR}}>
  $<INSTALL_INTERFACE:include>)
target_link_libraries({n} PUBLIC m)
add_executable({n}_selftest {n}_selftest.c)
target_link_libraries({n}_selftest {n})
install(TARGETS {n} EXPORT {n}Config)
install(FILES {n}.h DESTINATION include)
install(EXPORT {n}Config DESTINATION lib/cmake/{n})
"""
