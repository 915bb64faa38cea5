"""Golden texts: what a pass or a front end prints, kept beside the tests.

    def test_x(golden):
        golden("early_return", text)      compares with golden/early_return.txt beside the test file

`pytest --update-golden` writes what is printed now; read the difference before keeping it.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.changed import ROOT, chosen, is_whole, sampled

# Threads that wait for others let go of the core: several workers, each with as many threads as
# there are cores, spin away most of their time else. Before PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Products by our kernels, whatever a machine's rates: `emit/test_library_products` asks for others.
os.environ.setdefault("LOWTIDE_PRODUCTS", "kernels")

Golden = Callable[[str, str], None]

# Folders and files of many programs, whose kernels are compiled in half the time (`quickly`), but
# for a tenth of their tests. In others they are as users compile: those of fuzzers, models,
# training and numbers among them. With `--optimize=-O2` all are.
QUICKLY_COMPILED = {
    "deploy", "dynamo", "grad", "language", "loops", "memory", "modules", "passes", "pipeline",
    "scale",
    "run/test_tilings.py", "run/test_once_wrong.py",
}  # fmt: skip
AS_SHIPPED = {"dynamo/test_models.py", "run/test_shipped_flags.py"}
SHIPPED_SHARE = 10  # one test of so many
MANY = 6  # parameters of one test function, from which on `--thin` takes some


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts instead of comparing"
    )
    parser.addoption(
        "--thin",
        type=int,
        default=1,
        help=f"of the parameters of a test that has {MANY} or more, take one of so many",
    )
    parser.addoption(
        "--changed",
        nargs="?",
        const="main",
        help="only what a change asks for: of files that differ from a commit (tests/changed.py)",
    )
    parser.addoption(
        "--optimize", default="", help="the C compiler's flags, in folders of many programs"
    )
    parser.addoption(
        "--guard",
        choices=("after", "before"),
        help="all that kernels read and write ends, or begins, at a page that may not be touched",
    )


@pytest.fixture(autouse=True, scope="session")
def not_the_threads_of_pytest() -> None:
    """The thread by which pytest-xdist speaks to a worker uses no tensors."""
    from lowtide.memory.scopes import threads

    count, ours = threads.count_of_threads, threads.count_of_threads()
    threads.count_of_threads = lambda: max(count() - ours, 0)


def pytest_collection_finish() -> None:
    """Python's collector passes over what is imported by now, and looks seldom: it takes an eighth
    of the time of tests that compile much. Those of memory collect by themselves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `--changed` only the files that may have chosen tests are read."""
    since = config.getoption("--changed")
    if since is None or not collection_path.name.startswith("test_"):
        return None
    choice = chosen(since)
    name = collection_path.relative_to(ROOT).as_posix()
    return True if name not in choice.collected else None


@pytest.hookimpl(trylast=True)  # of what `-m` has left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which parameters of each test are taken, and the order in which workers take files: first
    that whose tests go through the whole heap, then those with slow tests and with many, so that
    none is left to one worker at the end."""
    thin = max(config.getoption("--thin"), 1)
    several = Counter(_function(item) for item in items)
    left = {i for i in items if several[_function(i)] >= MANY and _draw(i.nodeid) % thin}
    since = config.getoption("--changed")
    if since is not None:
        left = {i for i in left if not is_whole(i, chosen(since))}
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    if since is not None:
        taken = sampled(items, chosen(since))
        config.hook.pytest_deselected(items=[i for i in items if i not in {*taken}])
        items[:] = taken
    weights = Counter[Path]()
    for item in items:
        weights[item.path] += 20 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda i: (i.path.name != "test_leaks.py", -weights[i.path], str(i.path)))


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _draw(nodeid: str) -> int:
    """A number by which tests are chosen: the same ones in every run."""
    return zlib.crc32(nodeid.encode())


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


def _is_quick(item: pytest.Item, optimize: str) -> bool:
    """See `QUICKLY_COMPILED`."""
    file = Path(item.path).relative_to(Path(__file__).parent)
    names = {file.parts[0], file.as_posix()}
    if optimize or not names & QUICKLY_COMPILED or names & AS_SHIPPED:
        return False
    return _draw(item.nodeid[::-1]) % SHIPPED_SHARE != 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test compiles with the flags of its own, its fixtures too."""
    optimize = item.config.getoption("--optimize")
    if not optimize and not _is_quick(item, optimize):
        return (yield)
    from lowtide.runtime import toolchain
    from tests import quickly

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "_FLAGS", quickly.flags(optimize))
        _forget_compiler()
        found = yield
    _forget_compiler()
    return found


def _forget_compiler() -> None:
    from lowtide.runtime import toolchain

    if hasattr(toolchain._compiler, "cache_clear"):  # else a test's own stands in for it
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
