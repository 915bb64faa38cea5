"""Measures of the house: `python -m tests.house` prints them, one a line.

In: the source. Out: a table of what was found and its target. Import cycles count imports inside
functions and under TYPE_CHECKING. `--json` prints the numbers only.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "lowtide"
# The functions of each stage: a file that reaches those of two knows something of their order.
STAGES = {
    "source": ("frontend.script.script.script_function", "frontend.trace.trace.record",
               "frontend.dynamo.convert.convert"),
    "simplify": ("passes.run.run",),
    "specialise": ("specialise.specialise.specialise",),
    "differentiate": ("texpr.autodiff.differentiated",),
    "split": ("texpr.partition.partition", "tile.strips.in_strips"),
    "normalise": ("texpr.normalise.normalise",),
    "fuse": ("tile.group.group",),
    "tile": ("tile.plan.plan", "tile.schedule.schedule"),
    "host": ("codegen.host.build.build",),
    "emit": ("codegen.c.kernel.kernel_text", "codegen.c.module.module_text",
             "codegen.triton.module.module_text"),
    "load": ("runtime.cache.load_library", "runtime.cache.load_libraries"),
}  # fmt: skip
_FOLDERS_APART = ("frontend/script",)  # of one folder's count
TORCH_PRIVATE = "torch_private"
_PRIVATE_PATH = re.compile(r"\btorch(?:\.\w+)*\.(_[A-Za-z]\w*)")
# `_foreach`: a family of ops that has no other name. Not counted are `_parameters`, `_buffers` and
# `_modules` of nn.Module: saved modules have these keys, so PyTorch cannot rename them, and
# captures and guards read them at each call, where a function around them would cost time.
_PRIVATE_ALLOWED = ("_foreach",)
_WORD = re.compile(r"\.(\w+)")  # in the text of code
# Members of tensors, nodes and ops, whatever they are reached by.
_PRIVATE_MEMBERS = frozenset({
    "_base", "_cdata", "_is_view", "_is_zerotensor", "_make_wrapper_subclass", "_op_dk", "_schema",
    "_sequence_nr", "_use_count", "_version",
})  # fmt: skip
# A docstring names its subject: it opens neither with a relative clause nor with a question.
_OPENS_BADLY = re.compile(
    r"(What|Whether|Where|Which|Who|Whose|How|Is|Are|Was|Were|Does|Did|Has|Have|May|Can|Would)\b"
    r""
)
_MOST_WORDS = 30  # of a sentence
_NO_PROSE = re.compile(r"^( {4}|\||- )|\S {3,}\S", re.MULTILINE)  # code, tables, lists
_END_OF_SENTENCE = re.compile(r"(?<=[.:;?!])\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the table; `target`: the most that is wanted."""

    name: str
    found: int
    target: int


def module_name(path: Path) -> str:
    """Return `"ir.core"` for `lowtide/ir/core.py`, `""` for the package itself."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def files() -> dict[str, Path]:
    """Return the package's modules by name."""
    return {module_name(p): p for p in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lowtide"):
            base = (node.module or "").removeprefix("lowtide").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                yield inner if inner in known else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("lowtide."):
                    yield alias.name.removeprefix("lowtide.")


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return groups of modules that import one another: strongly connected components of two or
    more."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(start: str) -> None:
        todo = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while todo:
            node, rest = todo[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    todo.append((other, iter(sorted(graph[other]))))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    group = stack[at:]
                    del stack[at:]
                    if len(group) > 1:
                        found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def import_cycles() -> list[list[str]]:
    """Return groups of the package's modules that import one another."""
    known = files()
    return cycles({n: {*imports(p, known)} & known.keys() - {n} for n, p in known.items()})


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def knows_order(path: Path) -> bool:
    """Return whether a file reaches functions of two stages."""
    reached = reached_names(path)
    return sum(not reached.isdisjoint(stage) for stage in STAGES.values()) > 1


def reached_names(path: Path) -> set[str]:
    """Return the names of the package that a file imports, or reads from modules that it imports:
    `"tile.plan.plan"`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {
        alias.asname or alias.name: f"{node.module}.{alias.name}".removeprefix("lowtide.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lowtide")
        for alias in node.names
    }
    members = {
        f"{named[node.value.id]}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in named
    }
    return {*named.values(), *members}


def private_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each private name of PyTorch in the code, in strings too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    from_torch = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        for alias in _imported_from_torch(node)
    }
    for node in ast.walk(tree):
        found: list[str] = []
        match node:
            case ast.ImportFrom() | ast.Import():
                module = getattr(node, "module", None)
                names = [alias.name for alias in _imported_from_torch(node)]
                found = [f"{module}.{name}" if module else name for name in names]
            case ast.Attribute(attr=name):
                root: ast.expr = node
                while isinstance(root, ast.Attribute):
                    root = root.value
                is_torchs = isinstance(root, ast.Name) and root.id in from_torch
                found = [f"torch.{name}"] if is_torchs or name in _PRIVATE_MEMBERS else []
            case ast.Constant(value=str() as text) if id(node) not in texts:
                found = [text]
        for text in found:
            members = _WORD.findall(text) if isinstance(node, ast.Constant) else ()
            yield from ((node.lineno, name) for name in members if name in _PRIVATE_MEMBERS)
            for match_ in _PRIVATE_PATH.finditer(text):
                name = match_[1]
                if not name.startswith(_PRIVATE_ALLOWED):
                    yield node.lineno, name


def _imported_from_torch(node: ast.AST) -> list[ast.alias]:
    """Return the names that an import statement takes from PyTorch."""
    if isinstance(node, ast.ImportFrom):
        return node.names if (node.module or "").partition(".")[0] == "torch" else []
    names = node.names if isinstance(node, ast.Import) else []
    return [alias for alias in names if alias.name.partition(".")[0] == "torch"]


def private_files(known: Mapping[str, Path]) -> list[str]:
    """Return the modules with private names of PyTorch."""
    return [name for name, path in known.items() if any(private_names(path))]


def folders(known: Mapping[str, Path]) -> dict[str, tuple[int, int]]:
    """Return the files and lines of each folder at the top, those of inner folders included."""
    found: dict[str, tuple[int, int]] = {}
    for path in known.values():
        parts = path.relative_to(PACKAGE).parts
        inside = path.relative_to(PACKAGE).as_posix()
        if len(parts) > 1 and not inside.startswith(_FOLDERS_APART):
            count, total = found.get(parts[0], (0, 0))
            found[parts[0]] = count + 1, total + lines(path)
    return found


def passes() -> set[str]:
    """Return the names of the passes of `lowtide/compiler.py`: those in its lists, and functions
    that it imports from `passes/` otherwise."""
    from lowtide import compiler
    from lowtide.passes import run

    held = vars(compiler)
    found = {f.__name__ for v in held.values() if isinstance(v, tuple) for f in v if callable(f)}
    for name, value in held.items():
        module = getattr(value, "__module__", None) or ""
        if module.startswith("lowtide.passes.") and module != run.__name__:
            found.add(name)
    return found


def without_text() -> list[str]:
    """Return the passes and rewrites without a text test."""
    from lowtide.texpr.rewrites import REWRITES

    tests = ROOT / "tests"
    every = [tests / "passes" / "text" / f"{n}.txt" for n in sorted(passes())]
    every += [tests / "texpr" / "text" / f"{n}.txt" for n in REWRITES]
    every += [tests / "texpr" / "parts" / f"{n}.txt" for n in ("partition", "nested_recurrences")]
    return [path.stem for path in every if not path.exists()]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring of a file."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def bad_words(text: str) -> list[str]:
    """Return what is wrong with a docstring's sentences; code, tables and lists are no prose.

    "Is it a list?"     ["opens with `Is`"]
    """
    found = [f"opens with `{match[0]}`"] if (match := _OPENS_BADLY.match(text)) else []
    for paragraph in text.split("\n\n"):
        if _NO_PROSE.search(paragraph):
            continue
        for sentence in _END_OF_SENTENCE.split(re.sub(r"`[^`]*`", "`x`", paragraph)):
            if (words := len(sentence.split())) > _MOST_WORDS:
                found.append(f"a sentence of {words} words")
    return found


def badly_worded(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) for each fault in the docstrings of a file."""
    for line, text in docstrings(path):
        for fault in bad_words(text):
            yield line, fault


def measures() -> list[Measure]:
    """Return all measures, taken now."""
    known = files()
    sizes = folders(known).values()
    architecture = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = {
        "files that know the order of stages": (sum(map(knows_order, known.values())), 1),
        "files of the largest folder": (max(count for count, _ in sizes), 45),
        "lines of the largest folder": (max(total for _, total in sizes), 10_000),
        "import cycles": (len(import_cycles()), 0),
        "files with private names of PyTorch": (len(private_files(known)), 10),
        "passes and rewrites without a text test": (len(without_text()), 0),
        "lines of the package": (sum(map(lines, known.values())), 86_000),
        "docstrings that ask, or with long sentences": (
            sum(1 for p in known.values() for _ in badly_worded(p)),
            0,
        ),
        "words of ARCHITECTURE.md": (len(architecture.split()), 4_000),
        "its lines over 120 columns": (sum(len(x) > 120 for x in architecture.splitlines()), 0),
    }
    return [Measure(name=n, found=found, target=target) for n, (found, target) in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the numbers only")
    parser.add_argument("--cycles", action="store_true", help="the modules of each import cycle")
    parser.add_argument("--words", action="store_true", help="the docstrings to be reworded")
    args = parser.parse_args()
    if args.cycles:
        for group in import_cycles():
            print(" ".join(group))
        return
    if args.words:
        for path in files().values():
            for line, fault in badly_worded(path):
                print(f"{path.relative_to(ROOT)}:{line}: {fault}")
        return
    found = measures()
    if args.json:
        print(json.dumps({m.name: m.found for m in found}, indent=1))
        return
    for m in found:
        print(f"{m.name:44} {m.found:8} {m.target:8}  {'' if m.found <= m.target else 'above'}")
