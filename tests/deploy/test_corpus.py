"""Nearly every program of tests/language comes out of a file as it went in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide as lt
from tests.deploy.roundtrip import compiled, round_trip
from tests.language import support

# What only the user's own Python can run: the error names the line, and says what to write instead.
REFUSED = {
    "classes.str_and_bool": "Bag.__str__",
    "beyond.VarargsForward": "*args",
    "modules.IgnoredMethod": "IgnoredMethod.python_only",
    "modules.HooksOnModule": "hook",
    "scopes.raise_exception_with_arguments": "CodedError has a __init__ of its own",
    "python_corners.method_of_a_subclass": "the method area() of a value of unknown type",
    "python_corners.method_of_a_subclass_that_was_chosen": "the method area()",
    "python_corners.narrowed_to_a_base_class": "the method area() of a value of unknown type",
    "python_corners.what_objects_have": "hasattr",
    "python_corners.what_an_object_has": "hasattr",
    "python_corners.instances_of_many": "torch.nn.parameter.Parameter",
    "python_corners.size_is_a_tuple": "was saved for (List[int])",  # torch.Size is a list of ints
    "python_corners.raised_with_keywords": "Failed has a __init__ of its own",
    "python_corners.ChangedByAMethodOfAnIgnoredOne": "report",
}


def programs() -> list[support.Program]:
    known = (Path(support.__file__).parent / "known_failures.txt").read_text().split()
    return [p for p in support.load() if not (p.refused or p.optional or p.full_name in known)]


@pytest.mark.parametrize("topic", support.topics())
def test_programs_of(topic: str) -> None:
    wrong: list[str] = []
    for p in programs():
        if p.topic != topic:
            continue
        outcome = round_trip(p)
        expected = REFUSED.get(p.full_name)
        if expected is None and outcome.kind != "equal":
            wrong.append(f"{p.full_name}: {outcome.kind}: {outcome.why}")
        if expected is not None and expected not in outcome.why:
            wrong.append(f"{p.full_name}: {outcome.kind}: {outcome.why}, not {expected}")
    assert not wrong, "\n".join(wrong)


ELSEWHERE = """
import json, sys, torch
import lowtide as lt
assert not any(m.startswith("tests") for m in sys.modules)
for path, calls in json.loads(sys.argv[1]).items():
    m = lt.load(path)
    args = torch.load(calls)
    torch.save(m(*args), calls)
assert not any(m.startswith("tests") for m in sys.modules)
"""


def test_in_another_process_without_the_source(tmp_path: Path) -> None:
    import torch

    work: dict[str, str] = {}
    expected: dict[str, object] = {}
    for p in programs():
        call = p.calls()[0]
        simple = not isinstance(call, support.Call) and all(
            isinstance(a, torch.Tensor | int | float | str) for a in call
        )
        if p.raises or p.full_name in REFUSED or not simple or len(work) >= 60:
            continue
        c = compiled(p)
        torch.manual_seed(0)
        result = c(*call) if not p.is_module else compiled(p)(*call)
        if not isinstance(result, torch.Tensor) or "rand" in p.name:
            continue
        path = str(tmp_path / f"{p.full_name}.lt")
        try:
            lt.save(c, path)
        except lt.CompileError:
            continue
        work[path] = f"{path}.args"
        torch.save(tuple(p.calls()[0]), work[path])
        expected[work[path]] = result
    assert len(work) > 40
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    root = Path(lt.__file__).parent.parent
    subprocess.run(
        [sys.executable, str(tmp_path / "elsewhere.py"), json.dumps(work)],
        cwd=tmp_path,
        env={"PYTHONPATH": _only_lowtide(tmp_path, root), "PATH": "/usr/bin:/bin"},
        check=True,
        timeout=300,
    )
    for file, result in expected.items():
        torch.testing.assert_close(torch.load(file), result, equal_nan=True, msg=file)


def _only_lowtide(tmp_path: Path, root: Path) -> str:
    """A folder with lowtide and without this repository's tests."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "lowtide").symlink_to(root / "lowtide")
    return str(folder)
