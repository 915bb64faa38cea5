"""The example of dispose scopes and the README's: what they say is so."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import lowtide as lt

ROOT = Path(__file__).parent.parent.parent


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "dispose_training", ROOT / "examples" / "dispose_training.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_training_loop_leaves_nothing_behind() -> None:
    module = example()
    average, live = module.train(module.a_model())
    assert 0 < average < 20
    assert module.growth(live) == 0
    assert live[-1] < 60


def test_statistics_find_the_leak() -> None:
    module = example()
    losses, live = module.leaky_train(module.a_model())
    assert len(losses) == module.STEPS
    assert module.growth(live) == 1


def test_training_in_scopes_is_the_same_training() -> None:
    module = example()
    losses = module.leaky_train(module.a_model())[0]
    assert losses[-1] < losses[0] / 4
    model = module.a_model()
    module.train(model)
    again = module.a_model()
    module.leaky_train(again)
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert ours.equal(theirs)


def test_the_example_runs_as_a_script() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "dispose_training.py"],
        capture_output=True, text=True, timeout=120, cwd=ROOT, env=with_root(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tensors left by a step: +0.0" in done.stdout
    assert "tensors left by a step: +1.0" in done.stdout


def with_root() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_the_example_of_the_readme_does_what_it_says() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (block,) = (found for found in blocks if "dispose_scope" in found)
    names: dict[str, object] = {}
    exec(compile(block, "train.py", "exec"), names)
    losses = names["losses"]
    assert isinstance(losses, list)
    assert all(lt.is_disposed(loss) for loss in losses)
    assert repr(losses[0]).startswith("<disposed tensor, made at train.py:9, disposed at train.py:")
