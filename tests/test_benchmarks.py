"""The benchmarks' own code: that every variant runs and agrees, and how the README is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import Effort, ProgramResult, VariantResult, measure_program
from benchmarks.report import (
    block_marks,
    full_table,
    models_summary,
    models_table,
    summary_table,
    update_page,
)
from benchmarks.variants import EAGER, PEERS, make_variant, prepare, variant_names
from lowtide.tools.difference import difference
from lowtide.tools.programs import PROGRAMS

CHECKED = [
    (name, variant)
    for name in PROGRAMS
    for variant in variant_names(PROGRAMS[name])
    if variant in {peer for peer, _ in PEERS.values()}
]


@pytest.mark.parametrize(("name", "variant"), CHECKED)
def test_peers_compute_the_same(name: str, variant: str) -> None:
    program = PROGRAMS[name]
    args = program.make_inputs(*program.quick)
    result = make_variant(program, variant)(*prepare(variant, args))
    # cdist goes through a product, which loses digits of small distances.
    found = difference(program.function(*args), result, atol=1e-3 if variant == "cdist" else None)
    assert found.agrees, found.note


def test_times_of_one_program() -> None:
    effort = Effort(
        is_quick=True, repeats=2, seconds=0.1, only=(EAGER, "torch.mm"),
        with_peak=False, with_first_call=False,
    )  # fmt: skip
    result = measure_program(PROGRAMS["matmul"], effort, lambda _: None)
    assert [found.name for found in result.variants] == ["eager", "torch.mm"]
    assert all(found.min_ms is not None and not found.error for found in result.variants)
    assert result.variants[1].agrees is True


def sample() -> ProgramResult:
    variants = [
        VariantResult(
            name="eager", min_ms=100.0, median_ms=101.0, peak_bytes=3000, extra_bytes=2000
        ),
        VariantResult(name="torch.compile", min_ms=10.0, median_ms=11.0, agrees=True),
        VariantResult(name="sdpa", error="RuntimeError: no"),
        VariantResult(name="lowtide", min_ms=2.0, median_ms=2.5, extra_bytes=0, agrees=False),
    ]
    return ProgramResult(name="attention", title="attention", sizes={"H": 8}, variants=variants)


def test_tables() -> None:
    assert summary_table([sample()]).splitlines()[-1] == (
        "| attention (H=8) | 100 ms, 1.95 KiB | 10.0 ms, - |  | sdpa failed | 2.00 ms, 0 B WRONG "
        "| 5.0× of torch.compile |"
    )
    text = full_table(sample())
    assert "RuntimeError: no" in text
    assert "DIFFERS" in text


def test_update_page(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    begin, end = block_marks("models")
    readme.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    update_page("new\n", "models", readme)
    update_page("newer", "models", readme)
    assert readme.read_text() == f"before\n{begin}\nnewer\n{end}\nafter\n"
    with pytest.raises(ValueError, match="once each"):
        update_page("x", "benchmarks", readme)


def test_models_table() -> None:
    row = {
        "eager": {"ms": 3.0, "peak_mb": 10.0},
        "inductor": {"ms": 1.0, "peak_mb": 8.0},
        "compile": {"ms": 2.0, "peak_mb": 5.0},
    }
    means = {"infer, eager": 1.5, "infer, inductor": 0.5}
    whole = {"machine": {"cpu": "One"}, "geomeans": means, "rows": {"A, infer": row}}
    without = {"eager": row["eager"], "compile": row["compile"]}
    part = {"machine": {"cpu": "Two"}, "geomeans": {}, "rows": {"B, train": without}}
    lines = models_table([whole, part]).splitlines()
    assert "A, infer | 1.50× | 0.50× | 0.50 |  |  |  |" in lines[2]
    assert "B, train |  |  |  | 1.50× |  | 0.50 |" in lines[3]
    assert "geometric mean, infer | 1.50× | 0.50× |" in lines[4]
    assert models_summary([whole, part]).splitlines()[2:] == [
        "| One, infer | 1.50× | 1.50× (A) | 1.50× (A) | 0.50× |",
        "| Two, train |  | 1.50× (B) | 1.50× (B) |  |",
    ]
