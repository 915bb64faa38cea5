"""The example that trains: it runs, learns, and gives what plain PyTorch gives."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import lowtide as lt
from lowtide.diagnostics import faults, stats

pytest.importorskip("sklearn")
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


@pytest.fixture
def digits() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("digits_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits_example"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["digits_example"]


def test_the_layer_is_a_convolution(digits: ModuleType) -> None:
    torch.manual_seed(0)
    layer, x = digits.Conv2d(2, 5, 3), torch.randn(36, 2, 8, 8)
    with faults.strict():
        before = stats.cache_stats()
        got = lt.script(layer)(x)
        assert not (stats.cache_stats() - before).regions_eager
    want = torch.nn.functional.conv2d(x, layer.weights.view(5, 2, 3, 3))
    torch.testing.assert_close(got, want)


def test_it_learns(digits: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In five epochs; thirty reach the accuracy that the example states."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    picture = tmp_path / "digits.png"
    reached = digits.main(["--epochs", "5", "--plot", str(picture)])
    torch.set_num_threads(threads)
    assert reached > 0.9
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "test images after 5 epochs" in capsys.readouterr().out
