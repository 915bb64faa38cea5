"""The reader of files of torch.jit.save on damaged files; the full tier has 20,000 of them."""

from __future__ import annotations

from tests.deploy.torchscript.fuzz_torchscript import fault, run, seeds


def test_the_seeds_are_read() -> None:
    assert [fault(data) for data in seeds()] == [""] * len(seeds())


def test_damaged_files() -> None:
    assert list(run(200, 0)) == []
