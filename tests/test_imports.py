"""The layers: who may import whom, and what `import lowtide` may load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lowtide"

# A folder or file of the package → what of the package it may import, itself aside.
# A longer name wins over a shorter: "memory.scopes" over "memory".
BASE = {"errors", "config", "function_apply"}
IR = BASE | {"ir"}
TEXPR = IR | {"texpr"}
OPS = TEXPR | {"ops"}
PASSES = OPS | {"passes"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "function_apply": set(),
    "tables": set(),
    "version": set(),
    "ir": BASE,
    "texpr": IR,
    "ops": TEXPR,
    "passes": OPS,
    "tile": PASSES,
    # Launches through the runtime, and shares the formulas of memory plans.
    "codegen": PASSES | {"tile", "runtime", "memory", "compiler"},
    "frontend": BASE | {"ir", "ops", "compiler"},
    # The list of stages: it calls what compiles, and nothing that executes.
    "compiler": PASSES
    | {
        "tile",
        "codegen.c",
        "runtime",
        "pipeline.near_constants",
        "pipeline.specialise",
    },
    "runtime": BASE,
    # Counts what is asked of the arena.
    "memory": BASE | {"runtime"},
    "memory.scopes": BASE,
    # Beside the pipeline: programs and modules as it has them, into a file and out of it.
    "deploy": PASSES | {"version", "compiler", "frontend", "pipeline", "memory"},
    # Sees what the arena hands out, and which handles a dispose scope has emptied.
    "memory.profiler": BASE | {"memory", "memory.scopes", "runtime", "tables"},
}
# They join the layers: the pipeline, the public names, and the tools around the compiler.
SEES_ALL = {
    "", "__main__", "api", "cli", "compare", "comparison", "demo", "demo_worker", "difference",
    "doctor", "explain_command", "machine", "memory_table", "opt", "patch", "pipeline",
    "profile_command", "programs", "torch_jit_names",
}  # fmt: skip
HEAVY = (
    "torch._dynamo", "torch._inductor", "triton", "sympy", "pandas", "matplotlib", "rich", "typer",
    "jax", "pytest",
)  # fmt: skip


def module_name(path: Path) -> str:
    """`lowtide/ir/core.py` → `"ir.core"`; the package itself → `""`."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def own_imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module below lowtide) of every import of the package, those in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "lowtide":
                # `from lowtide import config` names a module, `… import __version__` does not.
                for alias in node.names:
                    yield node.lineno, alias.name if is_module(alias.name) else ""
            elif node.module and node.module.startswith("lowtide."):
                yield node.lineno, node.module.removeprefix("lowtide.")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "lowtide" or alias.name.startswith("lowtide."):
                    yield node.lineno, alias.name.removeprefix("lowtide").removeprefix(".")


def is_module(name: str) -> bool:
    """Whether `lowtide.<name>` is a file or a folder."""
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def rule_of(module: str) -> str | None:
    """The longest name in MAY_IMPORT that `module` is or lies in."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT), None)


def is_within(module: str, names: set[str]) -> bool:
    """Whether `module` is, or lies in, one of `names`."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def wrong_imports(module: str, path: Path) -> list[str]:
    """A line for every import of `path` that its rule does not allow."""
    rule = rule_of(module)
    if rule is None:
        known = module.split(".")[0] in SEES_ALL
        return [] if known else [f"{module}: not in MAY_IMPORT or SEES_ALL of {__file__}"]
    allowed = MAY_IMPORT[rule] | {rule}
    return [
        f"{path}:{line}: {module} may not import {imported or 'the package itself'}"
        for line, imported in own_imports(path)
        if not is_within(imported, allowed)
    ]


def test_layers_are_imported_in_one_direction() -> None:
    faults = [
        fault
        for path in sorted(PACKAGE.rglob("*.py"))
        for fault in wrong_imports(module_name(path), path)
    ]
    assert not faults, "\n".join(faults)


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "def f():\n    from lowtide.codegen import c\n    from lowtide import pipeline\n"
    )
    faults = wrong_imports("runtime.bad", path)
    assert [fault.split(": ", 1)[1] for fault in faults] == [
        "runtime.bad may not import codegen",
        "runtime.bad may not import pipeline",
    ]


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def loaded_by_torch() -> set[str]:
    return loaded_after("import torch")


@pytest.mark.parametrize("code", ["import lowtide", "import lowtide; lowtide.script"])
def test_import_loads_nothing_heavy(code: str, loaded_by_torch: set[str]) -> None:
    loaded = loaded_after(f"import torch; {code}") - loaded_by_torch
    assert sorted(name for name in loaded if is_within(name, set(HEAVY))) == []
