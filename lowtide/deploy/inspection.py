"""Lists the classes, tensors and operators of a saved program. Nothing of it is compiled or run.

In: a file of torch.jit.save or lt.save. Out: a `Contents`.

    found = inspect("old.pt")
    found.classes, found.tensors        Net.forward(x: Tensor) -> Tensor; fc.weight [4, 4] float32
    found.operators                     torch.linear: 2 uses, compiled to kernels
    found.code                          {"code/__torch__.py": "class Net(Module): …"}

An operator runs in `kernels` (it has a lowering, so it can be part of one), in `PyTorch`, in
`Python` (of lists, numbers, strings), or is `missing`. Raises LoadError for a damaged file.
"""

from __future__ import annotations

import ast
import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch

from lowtide.api.script_module import ScriptModule
from lowtide.deploy import archive, limits, load, storages
from lowtide.deploy.archive import Archive
from lowtide.deploy.loaded import SavedMethod
from lowtide.deploy.torchscript import reader
from lowtide.deploy.torchscript.pickles import Instance
from lowtide.deploy.torchscript.reader import OldArchive
from lowtide.errors import LoadError
from lowtide.frontend.torchscript import kinds

Path = str | os.PathLike[str]
Which = Literal["parameter", "buffer", "attribute"]
_ROOTS: Final = ("torch", "ops")


@dataclass(frozen=True, slots=True)
class Class:
    """A class and its methods, `forward(x: Tensor) -> Tensor`; functions have the class ""."""

    name: str
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor of the module's state. `bytes`: 0 if an earlier one is the same tensor."""

    name: str
    which: Which
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the code. `remedy`: what brings it, if it is missing."""

    name: str
    uses: int
    runs: kinds.Runs
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """See the module's text. `writer`: "torch.jit" or "lowtide"; `format`: the file format's
    version; `code`: texts by the name of their entry."""

    writer: str
    format: int
    name: str
    classes: list[Class]
    tensors: list[TensorRow]
    operators: list[Operator]
    code: dict[str, str]

    def bytes_of(self, which: Which) -> int:
        """Return the size of the parameters, buffers or attributes."""
        return sum(row.bytes for row in self.tensors if row.which == which)

    @property
    def missing(self) -> list[Operator]:
        """The operators that are missing here."""
        return [row for row in self.operators if row.runs == "missing"]

    def to_dict(self) -> dict[str, object]:
        """Return all of it but the code, for JSON."""
        found = dataclasses.asdict(self)
        del found["code"]
        sizes = {f"{w}_bytes": self.bytes_of(w) for w in ("parameter", "buffer", "attribute")}
        return {**found, **sizes}


def inspect(path: Path) -> Contents:
    """Return what the file holds. Raises LoadError, and OSError if it cannot be read."""
    with archive.open_archive(path) as opened:
        if archive.is_torchscript(opened.infos):
            return _of_torch_jit(reader.read(opened, storages.placing("meta")))
        return _of_lowtide_file(path, opened)


# ---- files of torch.jit.save -----------------------------------------------------------------


def _of_torch_jit(old: OldArchive) -> Contents:
    trees = {name: _parsed(name, text) for name, text in old.code.items()}
    classes = [c for name, tree in trees.items() for c in _classes(name, tree)]
    return Contents(
        writer="torch.jit",
        format=old.version,
        name=_short(old.data.cls),
        classes=classes,
        tensors=list(_tensors(old.data, _states(trees))),
        operators=_operators(trees.values(), old.version),
        code={f"code/{name}": text for name, text in old.code.items()},
    )


def _parsed(name: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LoadError(f"code/{name}: {error}") from error


def _module_of(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def _short(path: str) -> str:
    return path.removeprefix("__torch__.")


def _classes(name: str, tree: ast.Module) -> Iterator[Class]:
    module = _module_of(name)
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef))
            own = f"{module}.{node.name}"
            yield Class(_short(own), tuple(_signature(m, own) for m in methods))
    if functions:
        where = "" if module == "__torch__" else f"{_short(module)}."
        yield Class("", tuple(f"{where}{_signature(f, '')}" for f in functions))


def _signature(node: ast.FunctionDef, owner: str) -> str:
    given = list(node.args.args)
    first = given[0].annotation if given else None
    if owner and first is not None and ast.unparse(first) == owner:
        del given[0]
    args = ast.arguments([], given, None, node.args.kwonlyargs, node.args.kw_defaults, None, [])
    args.defaults = node.args.defaults[-len(given) :] if given else []
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({ast.unparse(args)}){result}".replace("__torch__.", "")


def _states(trees: Mapping[str, ast.Module]) -> dict[str, dict[str, Which]]:
    """Return which attributes of each class are parameters or buffers."""
    found: dict[str, dict[str, Which]] = {}
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                rows: dict[str, Which] = {}
                for part in node.body:
                    match part:
                        case ast.Assign([ast.Name("__parameters__")], ast.List(elts)):
                            rows |= {_text(e): "parameter" for e in elts}
                        case ast.Assign([ast.Name("__buffers__")], ast.List(elts)):
                            rows |= {_text(e): "buffer" for e in elts}
                        case _:
                            pass
                found[f"{_module_of(name)}.{node.name}"] = rows
    return found


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _tensors(root: Instance, states: Mapping[str, Mapping[str, Which]]) -> Iterator[TensorRow]:
    seen: set[int] = set()
    waiting: list[tuple[str, Instance]] = [("", root)]
    visited: set[int] = set()
    while waiting:
        path, owner = waiting.pop()
        if id(owner) in visited or not isinstance(owner.state, dict):
            continue
        visited.add(id(owner))
        which = states.get(owner.cls, {})
        inner: list[tuple[str, Instance]] = []
        for name, value in cast("dict[str, object]", owner.state).items():
            place = f"{path}{name}"
            if isinstance(value, Instance):
                inner.append((f"{place}.", value))
            elif isinstance(value, torch.Tensor):
                yield _row(place, which.get(name, "attribute"), value, seen)
        waiting += reversed(inner)


def _row(name: str, which: Which, tensor: torch.Tensor, seen: set[int]) -> TensorRow:
    size = 0 if id(tensor) in seen else tensor.numel() * tensor.dtype.itemsize
    seen.add(id(tensor))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorRow(name, which, tuple(tensor.shape), dtype, size)


def _operators(trees: Any, version: int) -> list[Operator]:
    counts: Counter[str] = Counter()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                path = ast.unparse(node.func)
                if path.partition(".")[0] in _ROOTS and path.count(".") <= 2:
                    counts[path] += 1
    rows = [_operator(path, uses, version) for path, uses in counts.items()]
    return sorted((r for r in rows if r is not None), key=lambda r: (r.runs, r.name))


def _operator(path: str, uses: int, version: int) -> Operator | None:
    runs = kinds.runs(path, version)
    if runs is None:
        return None
    return Operator(path, uses, runs, kinds.remedy(path) if runs == "missing" else "")


# ---- files of lt.save ------------------------------------------------------------------------


def _of_lowtide_file(path: Path, opened: Archive) -> Contents:
    loaded: Any = load.load(path, map_location="meta")
    names = [n for n in opened.infos if n.startswith("code/")]
    code = {n: opened.read(n, limits.CODE_BYTES).decode("utf-8", "replace") for n in names}
    is_module = isinstance(cast("object", loaded), ScriptModule)
    tensors: list[TensorRow] = []
    methods: dict[str, tuple[SavedMethod, ...]] = {}
    if is_module:
        seen: set[int] = set()
        named = loaded.named_parameters(remove_duplicate=False)
        tensors += [_row(n, "parameter", x, seen) for n, x in named]
        named = loaded.named_buffers(remove_duplicate=False)
        tensors += [_row(n, "buffer", x, seen) for n, x in named]
        for name, part in cast("list[tuple[str, ScriptModule]]", list(loaded.named_modules())):
            given = cast("dict[str, SavedMethod]", vars(part).get("_lowtide_given", {}))
            shown = f"{name}: {part.original_name}" if name else part.original_name
            methods[shown] = tuple(given.values())
    else:
        methods[""] = (loaded.__lowtide_saved_programs__,)
    classes = [
        Class(name, tuple(f"{m.name}{m.signature}" for m in rows))
        for name, rows in methods.items()
        if rows
    ]
    counts: Counter[tuple[str, kinds.Runs]] = Counter()
    for rows in methods.values():
        for method in rows:
            for program in method.programs:
                counts.update(filter(None, map(kinds.runs_of_op, program.function.walk())))
    operators = [Operator(name, uses, runs) for (name, runs), uses in counts.items()]
    return Contents(
        writer="lowtide",
        format=limits.FORMAT,
        name=loaded.original_name if is_module else loaded.__name__,
        classes=classes,
        tensors=tensors,
        operators=sorted(operators, key=lambda r: (r.runs, r.name)),
        code=code,
    )
