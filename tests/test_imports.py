"""The layers: who may import whom, and what `import lowtide` may load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import house
from tests.house import PACKAGE, module_name

# A room → what of the package it may import, itself aside: only what stands above it.
# A longer name wins over a shorter: "memory.scopes" over "memory".
BASE = {
    "errors",
    "config",
    "cpython",
    "function_apply",
    "html",
    "tables",
    "torch_private",
    "vecmath",
    "version",
}
IR = BASE | {"ir"}
TEXPR = IR | {"texpr"}
OPS = TEXPR | {"ops"}
PASSES = OPS | {"passes"}
RUNTIME = BASE | {"runtime"}
SHARED = {"runtime", "memory", "diagnostics"}
COMPILER = PASSES | SHARED | {"tile", "codegen", "specialise", "compiler"}
EXECUTE = COMPILER | {"frontend", "execute"}
API = EXECUTE | {"budget", "api"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "cpython": set(),
    "function_apply": {"torch_private"},
    "html": {"tables"},
    "tables": set(),
    "version": set(),
    "vecmath": set(),
    "ir": BASE,
    "texpr": IR,
    "ops": TEXPR,
    "passes": OPS,
    "tile": PASSES,
    "runtime": BASE,
    "memory.scopes": BASE,
    "memory": RUNTIME | {"memory"},
    "diagnostics": RUNTIME | {"ir", "memory"},
    "torch_private": {"errors", "config", "cpython"},
    "specialise": PASSES | SHARED,
    "compiler": PASSES | {"tile", "runtime", "specialise"},
    "codegen": PASSES | {"tile", "runtime", "memory", "compiler"},
    "frontend": BASE | {"ir", "ops", "compiler"},
    "execute": COMPILER | {"frontend"},
    "budget": EXECUTE,
    "api": API,
    "deploy": API,
    "c_library": API | {"deploy"},
    "scale": API | {"deploy"},
    # Beside the compiler: they see what users see, and what memory it takes.
    "tools": RUNTIME | {"", "memory", "budget", "diagnostics.progress"},
    "tools.profiler": RUNTIME | {"memory"},
    "tools.reduce_command": API | {"tools"},  # goes through the stages
    "tools.interpreted": API | {"tools"},
    "tools.archive_commands": API | {"deploy"},
    "tools.export_command": API | {"c_library", "deploy", "tools"},
    "tools.pytest_plugin": BASE | {"", "memory", "budget"},
    "cli": RUNTIME | {"tools", "diagnostics.progress"},
    "opt": EXECUTE | {"budget", "tools"},
    "__main__": {"cli"},
    "": API | {"deploy", "c_library", "scale", "tools"},
}
HEAVY = (
    "torch._dynamo", "torch._inductor", "triton", "sympy", "pandas", "matplotlib", "rich", "typer",
    "jax", "pytest", "dask", "distributed", "zarr", "h5py", "cubed", "joblib", "IPython",
)  # fmt: skip


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
    parts = module.split(".") if module else [""]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT), None)


def is_within(module: str, names: set[str]) -> bool:
    """Whether `module` is, or lies in, one of `names`."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def wrong_imports(module: str, path: Path) -> list[str]:
    """A line for every import of `path` that its rule does not allow."""
    rule = rule_of(module)
    if rule is None:
        return [f"{module}: not in MAY_IMPORT of {__file__}"]
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


def test_no_modules_import_one_another() -> None:
    assert house.import_cycles() == []


def test_the_list_of_stages_stays_a_page() -> None:
    assert house.lines(PACKAGE / "compiler.py") <= 150


def test_private_names_of_pytorch_are_in_one_room() -> None:
    faults = [
        f"{path}:{line}: {name} belongs in lowtide/{house.TORCH_PRIVATE}"
        for module, path in house.files().items()
        if rule_of(module) != house.TORCH_PRIVATE
        for line, name in house.private_names(path)
    ]
    assert not faults, "\n".join(faults)


def test_the_check_sees_a_private_name(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        '"""Not torch._C here."""\nimport torch\nfrom torch import _guards\n'
        "torch._foreach_add\nx._use_count()\ntorch._C.f()\nself._base_of\n'torch._VF.lstm'\n"
    )
    assert set(house.private_names(path)) == {
        (3, "_guards"), (5, "_use_count"), (6, "_C"), (8, "_VF"),
    }  # fmt: skip


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "def f():\n    from lowtide.codegen import c\n    from lowtide import execute\n"
    )
    faults = wrong_imports("runtime.bad", path)
    assert [fault.split(": ", 1)[1] for fault in faults] == [
        "runtime.bad may not import codegen",
        "runtime.bad may not import execute",
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


def test_import_alone_loads_only_the_list_of_names() -> None:
    loaded = loaded_after("import lowtide")
    own = {name for name in loaded if is_within(name, {"lowtide"})}
    assert own == {"lowtide", "lowtide.api", "lowtide.api.names", "lowtide.version"}
    assert "torch" not in loaded
