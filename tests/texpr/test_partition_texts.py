"""How Programs with delays are cut, by texts: before, the parts, and both evaluated.

`parts/partition.txt`: loops and what lies around them; `parts/nested_recurrences.txt`: loops within
loops. A part is its Program, a loop the Program of one step under a line that says what moves
between steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.nested_recurrences import NoNest
from lowtide.texpr.parser import parse_program
from lowtide.texpr.partition import Loop, Part, Parts, partition
from lowtide.texpr.printer import print_program, sizes_of
from lowtide.texpr.sizes import evaluate as size_of
from tests.texpr.test_rewrite_texts import SIZES, Tensors, inputs_of
from tests.texts import Case, cases_of

_NESTED = "nested_recurrences"
CASES = cases_of(Path(__file__).parent / "parts")
_HEAD = re.compile(r"^# (?:part|loop .*)\n", re.MULTILINE)


def text_of(parts: Parts) -> str:
    """All parts; a single one that is no loop is its Program."""
    if len(parts.parts) == 1 and isinstance(parts.parts[0], Part) and not parts.same:
        return print_program(parts.parts[0].program)
    found = [f"{head(p)}\n{print_program(p.program)}" for p in parts.parts]
    same = [f"# {name} is {value}" for name, value in parts.same.items()]
    return "\n".join([*found, *same])


def head(part: Part | Loop) -> str:
    """The line above a part."""
    if isinstance(part, Part):
        return "# part"
    facts = [f"# loop {part.step} of {part.trips}", *(["backwards"] if part.reverse else [])]
    facts += [f"carries {n} = {was} from {first}" for n, (was, first) in part.carried.items()]
    facts += [f"keeps {n}" for n in sorted(part.stacked)]
    facts += [f"ends {n} as {end}" for n, end in part.ends.items()]
    facts += [f"fills {n} by {' '.join(of)}" for n, of in part.blocks.items()]
    return "; ".join([*facts, *([f"until {part.until}"] if part.until else [])])


def run(parts: Parts, texts: list[str], inputs: Tensors, sizes: Mapping[str, int]) -> Tensors:
    """What the parts give, one after another, by the Programs that their texts are read as."""
    env = dict(inputs)
    for part, text in zip(parts.parts, texts, strict=True):
        program = parse_program(text)
        assert print_program(program) == text.strip()
        if isinstance(part, Part):
            env |= evaluate(program, {n: env[n] for n in program.inputs}, sizes)
            continue
        trips = size_of(part.trips, sizes)
        now = {n: env[first] for n, (_, first) in part.carried.items()}
        rows: dict[str, list[torch.Tensor]] = {n: [] for n in part.program.outputs}
        for t in reversed(range(trips)) if part.reverse else range(trips):
            given = {n: now[n] if n in now else env[n] for n in program.inputs}
            made = evaluate(program, given, {**sizes, part.step: t})
            now = {n: made[was] for n, (was, _) in part.carried.items()}
            for n, found in rows.items():
                found.append(made[n])
        for n, found in rows.items():
            env[part.ends.get(n, n)] = found[-1]
            if n in part.stacked:
                env[n] = torch.stack(found[::-1] if part.reverse else found)
        for n, of in part.blocks.items():
            env[n] = torch.stack([env[x] for x in of])
    return env | {name: env[value] for name, value in parts.same.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts(case: Case, request: pytest.FixtureRequest) -> None:
    program = parse_program(case.before)
    assert print_program(program) == case.before.strip()
    hints = {a.name: int(case.given.get(a.name, 64)) for a in sizes_of(program)}
    try:
        parts = partition(program, hints)
    except NoNest:
        assert not case.fires
        return
    is_nest = any(p.program.delays for p in parts.parts)
    assert case.fires or case.name != _NESTED, f"{case} is run"
    assert is_nest == (case.name == _NESTED)
    text = text_of(parts)
    case.check(text, request.config.getoption("--update-golden"))
    texts = _HEAD.split(re.sub(r"^# \w+ is \w+\n?", "", text, flags=re.MULTILINE))
    texts = [t for t in texts if t.strip()]
    for size in SIZES:
        sizes = {a.name: max(size, a.low or 0) for a in sizes_of(program)}
        inputs = inputs_of(program, sizes, {})
        wanted, found = evaluate(program, inputs, sizes), run(parts, texts, inputs, sizes)
        for n in program.results:
            torch.testing.assert_close(found[n], wanted[n], rtol=1e-12, atol=1e-12)
