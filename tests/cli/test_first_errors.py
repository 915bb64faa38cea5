"""The mistakes of newcomers: the message says what to do, above it are the user's own frames."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lowtide as lt
from lowtide import config

PACKAGE = str(Path(lt.__file__).parent)
HERE = Path(__file__).name
MOST_OF_OURS = 3  # frames of the entry


def generator(x):
    yield x


def with_try(x):
    try:
        return x + 1
    except ValueError:
        return x


def undefined(x):
    return x + nosuch  # noqa: F821


def no_method(x):
    return x.nosuch()


def ranked(x):
    return torch.sort(x, -1).values.cumsum(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x) + nosuch  # noqa: F821


X = torch.rand(60, 50)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "yield": (lambda: lt.script(generator), "write instead: return a list or a tuple"),
    "try": (lambda: lt.script(with_try), "write instead: a test before the call, with `if`"),
    "a name that is not defined": (lambda: lt.script(undefined)(X), "'nosuch' is not defined"),
    "the same in a module": (lambda: lt.script(Net())(X), "'nosuch' is not defined"),
    "the same in a question": (lambda: lt.script(undefined).memory(X), "'nosuch' is not defined"),
    "a budget that is too small": (
        lambda: lt.script(ranked, budget="1kB")(X),
        "write instead: budget=",
    ),
    "a budget in words": (lambda: lt.script(ranked, budget="1 gigs"), "such as '512MB' or '2GiB'"),
    "a class": (lambda: lt.script(Net), "write instead: lt.script(Net(…)), of an object"),
    "a number": (lambda: lt.script(3), "write instead: a `def`"),
    "a lambda": (lambda: lt.script(lambda x: x + 1), "write instead: def f(...): return ..."),
    "a file that is none": (lambda: lt.load(b"no archive"), "lt.save"),
    "an op without C": (
        lambda: lt.export_c(lt.script(torch_svd), "out", (torch.rand(40, 40),)),
        f"{HERE}:",
    ),
}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        lt.load(str(tmp_path / "nosuch.lt"))
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert len(files) == 2, files  # the call, and the entry


def test_a_line_in_a_notebook_has_the_cells_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython compiles a cell as a file that nobody knows."""

    def format_code_name(file: str) -> tuple[str, str] | None:
        return ("Cell", "In[7]") if file == __file__ else None

    compiler = SimpleNamespace(format_code_name=format_code_name)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    with pytest.raises(lt.CompileError, match=r"^Cell In\[7\]:\d+: `yield` is not compiled"):
        lt.script(generator)
    assert "   Cell In[7]:" in str(lt.script(ranked).memory(X))
    with lt.profile() as prof:
        ranked(X)
    assert "Cell In[7]:" in prof.table()
    assert all(row.file == __file__ for row in prof.rows())


def torch_svd(x):
    return torch.linalg.svdvals(x)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_says_what_to_do(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, remedy = MISTAKES[mistake]
    with pytest.raises(lt.LowtideError) as caught:
        make()
    assert remedy in str(caught.value), str(caught.value)
    assert caught.value.__cause__ is None
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sum(file.startswith(PACKAGE) for file in files) <= MOST_OF_OURS, files


def test_all_frames_are_shown_to_who_looks_for_a_fault() -> None:
    debug = config.Debug(topics=frozenset({"cache"}))
    with config.override(debug=debug), pytest.raises(lt.CompileError) as caught:
        lt.script(undefined)(X)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sum(file.startswith(PACKAGE) for file in files) > MOST_OF_OURS


PROGRAM = """
import torch
import lowtide as lt

def f(x):
    return (x[:, None] - x[None]).abs().amin(1)

lt.script(f)(torch.rand(500))
"""


def test_a_program_that_is_no_compiler() -> None:
    with (
        config.override(compiler=sys.executable),
        pytest.raises(lt.BackendError, match="not work as a C compiler; point LOWTIDE_CC at") as at,
    ):
        lt.script(ranked_pairs)(X)
    files = [frame.filename for frame in traceback.extract_tb(at.value.__traceback__)]
    assert sum(file.startswith(PACKAGE) for file in files) <= MOST_OF_OURS, files


def ranked_pairs(x):
    return (x[:, None] - x[None]).abs().amin(1)


@pytest.mark.long
def test_a_compiler_that_is_missing(tmp_path: Path) -> None:
    said = "no C compiler was found; install one: `apt"
    (tmp_path / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "LOWTIDE_CACHE_DIR": str(tmp_path / "cache")}
    environment |= {"PATH": "/nowhere", "LOWTIDE_CC": ""}
    environment |= {"PYTHONPATH": str(Path(PACKAGE).parent)}
    environment.pop("LOWTIDE_DEBUG", None)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert said in done.stderr, done.stderr
    assert done.stderr.count(f'File "{PACKAGE}') <= MOST_OF_OURS, done.stderr
