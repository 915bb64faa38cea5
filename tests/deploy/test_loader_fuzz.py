"""The loader on damaged files: a fixed corpus, and some hundreds of fresh ones."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from tests.deploy.fuzz import CORPUS, damaged, fault, seeds

SEEDS = seeds()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.lt")), ids=lambda p: p.stem)
def test_fixed_corpus(path: Path) -> None:
    assert fault(path.read_bytes()) == ""
    if path.stem.startswith("valid"):
        lt.load(path)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(range(len(SEEDS))), st.integers(0, 2**32))
def test_damaged_files(which: int, seed: int) -> None:
    assert fault(damaged(SEEDS[which], random.Random(seed))) == ""


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(lt.LoadError):
        lt.load(io.BytesIO(data))
