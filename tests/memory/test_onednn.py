"""What PyTorch's LSTM keeps on the CPU, against a real call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.memory import onednn
from lowtide.memory.like_cpu import LikeTheCpu

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


class Layers(TorchDispatchMode):
    """What each call of a layer gives: real ones, or `layer_results`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[tuple[tuple[int, ...], torch.dtype]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in args if isinstance(x, torch.Tensor)]
        is_meta = any(x.is_meta for x in given)
        result = onednn.layer_results(func, args) if is_meta else None
        if result is None:
            result = func(*args, **(kwargs or {}))
        if func is LAYER:
            self.found.append([(tuple(x.shape), x.dtype) for x in result if x is not None])
        return result


def test_the_workspace() -> None:
    """It is kept where gradients are recorded, in evaluation too; its size is oneDNN's own."""
    module, x = nn.LSTM(64, 128).eval(), torch.randn(60, 16, 64)
    with Layers() as real:
        module(x)
    with Layers() as meant, LikeTheCpu():
        module.to("meta")(x.to("meta"))
        with torch.no_grad():
            module(x.to("meta"))
    *results, (_, dtype) = real.found[0]
    *predicted, ((size,), predicted_dtype) = meant.found[0]
    assert predicted == results
    assert predicted_dtype == dtype
    assert size > 0
    assert meant.found[1] == [*predicted, ((0,), torch.uint8)]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 3, "dropout": 0.5},
        {"bidirectional": True, "num_layers": 2, "batch_first": True},
        {"bias": False},
    ],
    ids=str,
)
def test_the_same_layers(options: dict[str, Any], train: bool) -> None:
    module, x = nn.LSTM(12, 16, **options).train(train), torch.randn(5, 4, 12)
    with Layers() as real:
        want = module(x)
    with Layers() as meant, LikeTheCpu():
        got = module.to("meta")(x.to("meta"))
    assert [found[:3] for found in meant.found] == [found[:3] for found in real.found]
    assert got[0].shape == want[0].shape
    assert [v.shape for v in got[1]] == [v.shape for v in want[1]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: (nn.LSTM(12, 16, proj_size=4), torch.randn(5, 4, 12)),
        lambda: (nn.LSTM(12, 16).double(), torch.randn(5, 4, 12).double()),
        lambda: (nn.GRU(12, 16), torch.randn(5, 4, 12)),
    ],
)
def test_others_are_left_alone(make: Any) -> None:
    module, x = make()
    with Layers() as meant, LikeTheCpu():
        y, _ = module.to("meta")(x.to("meta"))
    assert not meant.found
    assert y.is_meta
