"""Models of the benchmark as C: their results beside those of eager PyTorch in float64, and beside
those of Lowtide in process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide as lt
from benchmarks.deploy_agreement import agreement
from benchmarks.deploy_models import MODELS, PAIRS

_LONG = ("GPT-2, 4 layers, a token", "LSTM tagger", "voice detector, a frame", "semi-hard triplets")


@pytest.mark.filterwarnings("ignore:.*PyTorch runs it instead")
@pytest.mark.parametrize(
    "name", ["k-means, 2000 × 40", *(pytest.param(n, marks=pytest.mark.long) for n in _LONG)]
)
def test_agreement(name: str, tmp_path: Path) -> None:
    if name.startswith("voice") and importlib.util.find_spec("silero_vad") is None:
        pytest.skip("silero-vad is not installed")
    deployed = {**PAIRS, **MODELS}[name]

    def made() -> Any:
        torch.manual_seed(5)
        return deployed.make()

    torch.manual_seed(1)
    calls = deployed.calls()
    found = lt.export_c(lt.script(made()), tmp_path, calls[0], weights="file")
    function = found.functions[0].removeprefix("model_")
    same = agreement(made, calls, str(tmp_path), function)
    assert not same.problem
    assert same.calls == len(calls)
