"""Which tests a change asks for: those whose imports reach the files that differ from main.

    pytest --changed              differs from `main`, uncommitted files counted
    pytest --changed=HEAD~3       from another commit
    python -m tests.changed       what differs, and the files of tests, those that count first

First come the tests that differ themselves and the text tests of the room. Of the others a sample
is run: half of it from the folders that test the changed files (`_TESTED_IN`), a quarter from tests
that import a changed file themselves. A change has always the same sample.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import subprocess
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("lowtide", "tests", "benchmarks", "examples")
SAMPLE = 200  # tests, beside those that come first
FAR_FILES = 60  # read for the sample; to read all of `far` takes longer than its tests
ALWAYS = ("tests/test_imports.py", "tests/house/test_house.py")
_HAS_TEXTS = re.compile(r"\bcases_of\(|\bgolden\(")
# The folders of tests for the files below a path, where the name is not that of the room. The
# longest path counts.
_TESTED_IN = {
    "api": ("frontend", "modules"),
    "budget": ("memory",),
    "codegen": ("emit", "run"),
    "codegen/host": ("host",),
    "codegen/triton": ("blocks",),
    "compiler.py": ("pipeline", "run"),
    "diagnostics": ("run",),
    "execute": ("run",),
    "execute/autograd_function.py": ("grad", "run"),
    "execute/second_order.py": ("grad",),
    "frontend/dynamo": ("dynamo",),
    "frontend/script": ("frontend", "language"),
    "frontend/torchscript": ("deploy/torchscript",),
    "frontend/trace": ("trace",),
    "memory/scopes": ("scopes",),
    "opt.py": ("cli",),
    "specialise": ("run", "ops"),
    "specialise/lifting": ("loops",),
    "specialise/near_constants.py": ("passes",),
    "texpr/autodiff": ("texpr", "grad"),
    "texpr/derivatives": ("texpr", "grad"),
    "texpr/own_gradients": ("texpr", "grad"),
    "texpr/partition": ("texpr", "loops"),
    "tile": ("emit",),
    "tools": ("cli",),
    "tools/profiler": ("profiler",),
    "torch_private": ("run",),
    "vecmath": ("emit",),
}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Files of tests, as paths from the root: `first` are run as a whole; of `home` (the folders
    for the changed files), `near` and `far` a sample is, drawn by `seed`."""

    changed: tuple[str, ...]
    first: frozenset[str]
    home: frozenset[str]
    near: frozenset[str]
    far: frozenset[str]
    seed: int

    @property
    def collected(self) -> frozenset[str]:
        """Return the files that pytest reads: all, but of `far` at most `FAR_FILES`."""
        drawn = sorted(self.far, key=lambda name: zlib.crc32(name.encode(), self.seed))
        return self.first | self.home | self.near | {*drawn[:FAR_FILES]}


def differing(since: str) -> tuple[str, ...]:
    """Paths of files that differ from where this branch left `since`, new ones too."""
    base = _git("merge-base", since, "HEAD").strip()
    found = [*_git("diff", "--name-only", base).splitlines()]
    found += _git("ls-files", "--others", "--exclude-standard").splitlines()
    return tuple(sorted(set(found)))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def choose(changed: Sequence[str]) -> Chosen:
    """The tests for a change of these files."""
    paths, graph = _imports()
    tests = {n for n in paths if Path(n).name.startswith("test_")}
    users: dict[str, set[str]] = {}
    for user, found in graph.items():
        for name in found:
            users.setdefault(name, set()).add(user)
    seen, todo = set(changed), list(changed)
    while todo:
        for user in users.get(todo.pop(), set()) - seen:
            seen.add(user)
            todo.append(user)
    if any(Path(n).name == "conftest.py" for n in changed):
        seen |= tests
    first = {*ALWAYS, *(n for path in changed for n in of_file(path, tests, paths))}
    home = {n for path in changed for n in tests if n.startswith(folders_of(path))} - first
    near = {n for n in tests & seen if not graph[n].isdisjoint(changed)} - first - home
    return Chosen(
        changed=tuple(changed),
        first=frozenset(first & tests),
        home=frozenset(home),
        near=frozenset(near),
        far=frozenset(tests & seen - near - home - first),
        seed=zlib.crc32("\n".join(changed).encode()),
    )


@functools.cache
def _imports() -> tuple[Mapping[str, Path], Mapping[str, set[str]]]:
    """Return the Python files by name, and the names of the files that each imports."""
    paths = {p.relative_to(ROOT).as_posix(): p for f in FOLDERS for p in (ROOT / f).rglob("*.py")}
    return paths, {name: set(imported(path, paths)) for name, path in paths.items()}


def of_file(path: str, tests: set[str], paths: Mapping[str, Path]) -> Iterator[str]:
    """The tests that are run as a whole: the file itself, or those with texts of its room."""
    room, *rest = Path(path).parts
    if path in tests:
        yield path
    elif room in ("tests", "lowtide") and rest:
        inside = folders_of(path) or (f"tests/{rest[0]}/",)
        of_room = (n for n in tests if n.startswith(inside))
        yield from (n for n in of_room if _HAS_TEXTS.search(paths[n].read_text(encoding="utf-8")))
    elif path.endswith(".md"):
        yield from (n for n in tests if n.startswith(("tests/docs/", "tests/test_readme")))


def folders_of(path: str) -> tuple[str, ...]:
    """Return the folders of tests for a file of the package, each with a slash at its end."""
    room, *rest = Path(path).parts
    if room != "lowtide" or not rest:
        return ()
    inside = "/".join(rest)
    fitting = sorted((p for p in _TESTED_IN if inside.startswith(p)), key=len)
    names = _TESTED_IN[fitting[-1]] if fitting else (rest[0],)
    return tuple(f"tests/{name}/" for name in names)


def imported(path: Path, paths: Mapping[str, Path]) -> Iterator[str]:
    """The files that a file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            stem = name.replace(".", "/")
            yield from (p for p in (f"{stem}.py", f"{stem}/__init__.py") if p in paths)


@functools.cache
def chosen(since: str) -> Chosen:
    """For what differs now."""
    return choose(differing(since))


def is_whole(item: pytest.Item, choice: Chosen) -> bool:
    """Whether all tests of its file are run."""
    return Path(item.path).relative_to(ROOT).as_posix() in choice.first


def sampled(items: Sequence[pytest.Item], choice: Chosen) -> list[pytest.Item]:
    """The tests that are run, in their order."""
    places = {i: Path(i.path).relative_to(ROOT).as_posix() for i in items}
    drawn = sorted(items, key=lambda i: zlib.crc32(i.nodeid.encode(), choice.seed))
    home = [i for i in drawn if places[i] in choice.home][: SAMPLE // 2]
    near = [i for i in drawn if places[i] in choice.near][: (SAMPLE - len(home)) // 2]
    far = [i for i in drawn if places[i] in choice.far][: SAMPLE - len(home) - len(near)]
    taken = {*home, *near, *far}
    return [i for i in items if places[i] in choice.first or i in taken]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.add_argument("since", nargs="?", default="main")
    found = chosen(parser.parse_args().since)
    for title in ("changed", "first", "home", "near", "far"):
        names = sorted(getattr(found, title))
        print(f"{title} {len(names)}", *names, sep="\n  ")


if __name__ == "__main__":
    main()
