"""Golden texts: what a pass or a front end prints, kept beside the tests.

    def test_x(golden):
        golden("early_return", text)      compares with golden/early_return.txt beside the test file

`pytest --update-golden` writes what is printed now; read the difference before keeping it.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Threads that wait for others let go of the core: several workers, each with as many threads as
# there are cores, spin away most of their time else. Before PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

Golden = Callable[[str, str], None]

# Folders and files of many programs, whose kernels are compiled in half the time (`quickly`). In
# others they are as shipped; with `--optimize=-O2` in all.
QUICKLY_COMPILED = {
    "deploy", "dynamo", "fuzz", "grad", "language", "loops", "memory", "modules", "passes",
    "pipeline", "run/test_tilings.py", "run/test_once_wrong.py", "training",
}  # fmt: skip
AS_SHIPPED = {"fuzz/test_usual.py"}  # of these


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts instead of comparing"
    )
    parser.addoption("--every", type=int, default=1, help="of so many tests of a file, take one")
    parser.addoption(
        "--optimize", default="", help="the C compiler's flags, in folders of many programs"
    )
    parser.addoption(
        "--guard",
        choices=("after", "before"),
        help="all that kernels read and write ends, or begins, at a page that may not be touched",
    )


def pytest_collection_finish() -> None:
    """Python's collector passes over what is imported by now, and looks seldom: it takes an eighth
    of the time of tests that compile much. Those of memory collect by themselves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


@pytest.hookimpl(trylast=True)  # of what `-m` has left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which tests of each file are taken, and the order in which workers take files: first that
    whose tests go through the whole heap, then those with slow tests and with many, so that none is
    left to one worker at the end."""
    seen = Counter[Path]()
    left: list[pytest.Item] = []
    every = max(config.getoption("--every"), 1)
    for item in items:
        if seen[item.path] % every:
            left.append(item)
        seen[item.path] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        others = set(left)
        items[:] = [item for item in items if item not in others]
    weights = Counter[Path]()
    for item in items:
        weights[item.path] += 20 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda i: (i.path.name != "test_leaks.py", -weights[i.path], str(i.path)))


@pytest.fixture(autouse=True)
def guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under `--guard`, a kernel that reads or writes outside of its tensors kills the process."""
    side = request.config.getoption("--guard")
    if side is None:
        yield
        return
    from tests.run.guarded import Guard, guarded_calls

    with guarded_calls(Guard(side)):
        yield


@pytest.fixture(autouse=True, scope="module")
def quickly_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """See `QUICKLY_COMPILED`."""
    file = Path(request.path).relative_to(Path(__file__).parent)
    name = file.as_posix()
    if name in AS_SHIPPED or QUICKLY_COMPILED.isdisjoint((file.parts[0], name)):
        yield
        return
    from lowtide.runtime import toolchain
    from tests import quickly

    flags = quickly.flags(request.config.getoption("--optimize"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "_FLAGS", flags)
        toolchain._compiler.cache_clear()
        yield
    toolchain._compiler.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def heap_of_earlier_modules() -> None:
    """No collection looks at what earlier modules left: hundreds of tests collect, each for a
    second in a heap of a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with the golden one of this name, or writes it under `--update-golden`."""
    folder = Path(request.path).parent / "golden"
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        if update:
            folder.mkdir(exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"no golden text {path}: run pytest --update-golden"
        assert text == path.read_text()

    return compare
