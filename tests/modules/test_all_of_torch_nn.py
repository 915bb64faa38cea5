"""Every module of torch.nn compiles, or is run by PyTorch: the same results either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt

Make = Callable[[], nn.Module]


def t(*shape: int) -> torch.Tensor:
    return torch.rand(shape) + 0.1


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def signs(*shape: int) -> torch.Tensor:
    return torch.rand(shape).sub(0.5).sign()


POINTWISE: list[tuple[str, tuple[Any, ...]]] = [
    *((name, ()) for name in (
        "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity",
        "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid",
        "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Flatten",
    )),
    *((name, (1,)) for name in ("Softmax", "Softmin", "LogSoftmax", "GLU")),
    ("Threshold", (0.3, 2.0)),
    ("RReLU", (0.2, 0.2)),
    ("Linear", (4, 3)),
    ("LazyLinear", (3,)),
    ("LayerNorm", (4,)),
    ("RMSNorm", (4,)),
    ("BatchNorm1d", (4,)),
    ("Dropout", (0.0,)),
    ("AlphaDropout", (0.0,)),
    ("FeatureAlphaDropout", (0.0,)),
    ("CircularPad1d", (1,)), ("ConstantPad1d", (1, 0.5)), ("ZeroPad1d", (1,)),
    ("ReflectionPad1d", (1,)), ("ReplicationPad1d", (1,)),
    ("Unflatten", (1, (2, 2))),
    ("Softmax2d", ()),
]  # fmt: skip

IMAGE: list[tuple[str, tuple[Any, ...]]] = [
    ("Conv2d", (4, 2, 3)), ("LazyConv2d", (2, 3)), ("ConvTranspose2d", (4, 2, 3)),
    ("LazyConvTranspose2d", (2, 3)),
    ("BatchNorm2d", (4,)), ("LazyBatchNorm2d", ()), ("InstanceNorm2d", (4,)),
    ("GroupNorm", (2, 4)), ("LocalResponseNorm", (2,)), ("CrossMapLRN2d", (3,)),
    ("LayerNorm", ((4, 6, 6),)), ("SyncBatchNorm", (4,)),
    ("MaxPool2d", (2,)), ("AvgPool2d", (2,)), ("LPPool2d", (2, 2)),
    ("AdaptiveAvgPool2d", (2,)), ("AdaptiveMaxPool2d", (2,)),
    ("CircularPad2d", (1,)), ("ConstantPad2d", (1, 0.5)), ("ZeroPad2d", (1,)),
    ("ReflectionPad2d", (1,)), ("ReplicationPad2d", (1,)),
    ("Dropout2d", (0.0,)), ("ChannelShuffle", (2,)), ("PixelShuffle", (2,)),
    ("PixelUnshuffle", (2,)), ("Unfold", (2,)), ("Upsample", (None, 2)),
    ("UpsamplingNearest2d", (None, 2)), ("UpsamplingBilinear2d", (None, 2)), ("Softmax2d", ()),
]  # fmt: skip

LOSSES = [
    "L1Loss", "MSELoss", "HuberLoss", "SmoothL1Loss", "BCEWithLogitsLoss", "KLDivLoss",
    "PoissonNLLLoss", "BCELoss", "MultiLabelSoftMarginLoss",
]  # fmt: skip

CASES: list[tuple[str, Make, tuple[Any, ...]]] = [
    *((n, lambda n=n, a=a: getattr(nn, n)(*a), (t(3, 4),)) for n, a in POINTWISE if n not in (
        "Softmax2d", "CircularPad1d", "ConstantPad1d", "ZeroPad1d", "ReflectionPad1d",
        "ReplicationPad1d")),
    *((n, lambda n=n, a=a: getattr(nn, n)(*a), (t(2, 4, 6),))
      for n, a in POINTWISE if "Pad1d" in n),
    *((n, lambda n=n, a=a: getattr(nn, n)(*a), (t(2, 4, 6, 6),)) for n, a in IMAGE),
    *((n, lambda n=n: getattr(nn, n)(), (t(3, 4) / 2, t(3, 4) / 2)) for n in LOSSES),
    ("Conv1d", lambda: nn.Conv1d(4, 2, 3, padding="same"), (t(2, 4, 6),)),
    ("Conv1d circular", lambda: nn.Conv1d(4, 2, 3, padding=1, padding_mode="circular"),
        (t(2, 4, 6),)),
    ("Conv3d", lambda: nn.Conv3d(2, 2, 2), (t(1, 2, 4, 4, 4),)),
    ("ConvTranspose1d", lambda: nn.ConvTranspose1d(4, 2, 3), (t(2, 4, 6),)),
    ("ConvTranspose1d size", lambda: nn.ConvTranspose1d(4, 2, 3, stride=2), (t(2, 4, 6), [14])),
    ("ConvTranspose3d", lambda: nn.ConvTranspose3d(2, 2, 2), (t(1, 2, 4, 4, 4),)),
    ("BatchNorm1d plain", lambda: nn.BatchNorm1d(4, momentum=None), (t(3, 4),)),
    ("BatchNorm1d batch", lambda: nn.BatchNorm1d(4, track_running_stats=False), (t(3, 4),)),
    ("BatchNorm3d", lambda: nn.BatchNorm3d(2), (t(2, 2, 4, 4, 4),)),
    ("InstanceNorm1d", lambda: nn.InstanceNorm1d(4, track_running_stats=True), (t(2, 4, 6),)),
    ("InstanceNorm3d", lambda: nn.InstanceNorm3d(2), (t(2, 2, 4, 4, 4),)),
    ("MaxPool1d", lambda: nn.MaxPool1d(2), (t(2, 4, 6),)),
    ("MaxPool1d indices", lambda: nn.MaxPool1d(2, return_indices=True), (t(2, 4, 6),)),
    ("MaxPool3d", lambda: nn.MaxPool3d(2), (t(1, 2, 4, 4, 4),)),
    ("AvgPool1d", lambda: nn.AvgPool1d(2), (t(2, 4, 6),)),
    ("AvgPool3d", lambda: nn.AvgPool3d(2), (t(1, 2, 4, 4, 4),)),
    ("LPPool1d", lambda: nn.LPPool1d(2, 2), (t(2, 4, 6),)),
    ("LPPool3d", lambda: nn.LPPool3d(2, 2), (t(1, 2, 4, 4, 4),)),
    ("AdaptiveAvgPool1d", lambda: nn.AdaptiveAvgPool1d(2), (t(2, 4, 6),)),
    ("AdaptiveAvgPool3d", lambda: nn.AdaptiveAvgPool3d((1, None, 2)), (t(1, 2, 4, 4, 4),)),
    ("AdaptiveMaxPool1d", lambda: nn.AdaptiveMaxPool1d(2), (t(2, 4, 6),)),
    ("AdaptiveMaxPool3d", lambda: nn.AdaptiveMaxPool3d(2), (t(1, 2, 4, 4, 4),)),
    ("FractionalMaxPool2d", lambda: nn.FractionalMaxPool2d(
        2, output_size=2, _random_samples=torch.full((2, 4, 2), 0.5)), (t(2, 4, 6, 6),)),
    ("FractionalMaxPool3d", lambda: nn.FractionalMaxPool3d(
        2, output_size=2, _random_samples=torch.full((1, 2, 3), 0.5)), (t(1, 2, 4, 4, 4),)),
    ("MaxUnpool1d", lambda: nn.MaxUnpool1d(2), (t(1, 1, 2), torch.tensor([[[1, 3]]]))),
    ("MaxUnpool2d", lambda: nn.MaxUnpool2d(2), (t(1, 1, 1, 2), torch.tensor([[[[1, 3]]]]))),
    ("MaxUnpool3d", lambda: nn.MaxUnpool3d(2), (t(1, 1, 1, 1, 2), torch.tensor([[[[[1, 3]]]]]))),
    ("ConstantPad3d", lambda: nn.ConstantPad3d(1, 0.5), (t(1, 2, 3, 3, 3),)),
    ("ZeroPad3d", lambda: nn.ZeroPad3d(1), (t(1, 2, 3, 3, 3),)),
    ("CircularPad3d", lambda: nn.CircularPad3d(1), (t(1, 2, 3, 3, 3),)),
    ("ReflectionPad3d", lambda: nn.ReflectionPad3d(1), (t(1, 2, 3, 3, 3),)),
    ("ReplicationPad3d", lambda: nn.ReplicationPad3d(1), (t(1, 2, 3, 3, 3),)),
    ("Dropout1d", lambda: nn.Dropout1d(0.0), (t(2, 4, 6),)),
    ("Dropout3d", lambda: nn.Dropout3d(0.0), (t(1, 2, 3, 3, 3),)),
    ("Fold", lambda: nn.Fold((4, 4), 2), (t(1, 8, 9),)),
    ("Bilinear", lambda: nn.Bilinear(4, 3, 2), (t(5, 4), t(5, 3))),
    ("Embedding", lambda: nn.Embedding(7, 3, padding_idx=1), (ints(7, 2, 4),)),
    ("Embedding max_norm", lambda: nn.Embedding(7, 3, max_norm=0.5), (ints(7, 2, 4),)),
    ("EmbeddingBag", lambda: nn.EmbeddingBag(7, 3), (ints(7, 2, 4),)),
    ("EmbeddingBag offsets", lambda: nn.EmbeddingBag(7, 3, mode="sum"),
        (ints(7, 6), torch.tensor([0, 2]))),
    ("CosineSimilarity", lambda: nn.CosineSimilarity(), (t(3, 4), t(3, 4))),
    ("PairwiseDistance", lambda: nn.PairwiseDistance(), (t(3, 4), t(3, 4))),
    ("LSTM", lambda: nn.LSTM(4, 3, 2), (t(5, 2, 4),)),
    ("LSTM state", lambda: nn.LSTM(4, 3), (t(5, 2, 4), (t(1, 2, 3), t(1, 2, 3)))),
    ("GRU", lambda: nn.GRU(4, 3, bidirectional=True), (t(5, 2, 4),)),
    ("RNN", lambda: nn.RNN(4, 3, batch_first=True), (t(2, 5, 4),)),
    ("LSTMCell", lambda: nn.LSTMCell(4, 3), (t(2, 4),)),
    ("GRUCell", lambda: nn.GRUCell(4, 3), (t(2, 4), t(2, 3))),
    ("RNNCell", lambda: nn.RNNCell(4, 3, nonlinearity="relu"), (t(2, 4),)),
    ("MultiheadAttention", lambda: nn.MultiheadAttention(4, 2),
        (t(3, 2, 4), t(3, 2, 4), t(3, 2, 4))),
    ("TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0), (t(3, 2, 4),)),
    ("TransformerDecoderLayer", lambda: nn.TransformerDecoderLayer(4, 2, 8, 0.0),
        (t(3, 2, 4), t(3, 2, 4))),
    ("TransformerEncoder", lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2), (t(2, 3, 4),)),
    ("TransformerDecoder", lambda: nn.TransformerDecoder(
        nn.TransformerDecoderLayer(4, 2, 8, 0.0), 2), (t(3, 2, 4), t(3, 2, 4))),
    ("Transformer", lambda: nn.Transformer(4, 2, 1, 1, 8, 0.0), (t(3, 2, 4), t(3, 2, 4))),
    ("AdaptiveLogSoftmaxWithLoss", lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3, 6]),
        (t(5, 4), ints(9, 5))),
    ("CrossEntropyLoss", lambda: nn.CrossEntropyLoss(torch.rand(4)), (t(3, 4), ints(4, 3))),
    ("NLLLoss", lambda: nn.NLLLoss(), (t(3, 4), ints(4, 3))),
    ("GaussianNLLLoss", lambda: nn.GaussianNLLLoss(), (t(3, 4), t(3, 4), t(3, 4))),
    ("HingeEmbeddingLoss", lambda: nn.HingeEmbeddingLoss(), (t(3, 4), signs(3, 4))),
    ("SoftMarginLoss", lambda: nn.SoftMarginLoss(), (t(3, 4), signs(3, 4))),
    ("CosineEmbeddingLoss", lambda: nn.CosineEmbeddingLoss(), (t(3, 4), t(3, 4), signs(3))),
    ("MarginRankingLoss", lambda: nn.MarginRankingLoss(), (t(3), t(3), signs(3))),
    ("MultiLabelMarginLoss", lambda: nn.MultiLabelMarginLoss(), (t(2, 4), ints(4, 2, 4))),
    ("MultiMarginLoss", lambda: nn.MultiMarginLoss(), (t(3, 4), ints(4, 3))),
    ("TripletMarginLoss", lambda: nn.TripletMarginLoss(), (t(3, 4), t(3, 4), t(3, 4))),
    ("TripletMarginWithDistanceLoss", lambda: nn.TripletMarginWithDistanceLoss(),
        (t(3, 4), t(3, 4), t(3, 4))),
    ("CTCLoss", lambda: nn.CTCLoss(),
        (t(6, 2, 5).log_softmax(2), ints(4, 2, 3) + 1, ints(1, 2) + 6, ints(1, 2) + 3)),
    ("Sequential", lambda: nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU()), nn.LSTM(3, 2)),
        (t(5, 2, 4),)),
]  # fmt: skip

LEFT_OUT = {
    "Container", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList",
    "Parameter", "Buffer", "UninitializedBuffer", "UninitializedParameter", "DataParallel",
    "NLLLoss2d", "RNNBase", "RNNCellBase", "LinearCrossEntropyLoss",
    *(f"Lazy{kind}{n}d" for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
      for n in (1, 2, 3)),
}  # fmt: skip


def _same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, equal_nan=True)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            _same(a, b)
    else:
        assert found == expected


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("make", "args"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_same_as_eager(make: Make, args: tuple[Any, ...], mode: str) -> None:
    torch.manual_seed(0)
    module = make().train(mode == "train")
    torch.manual_seed(0)
    other = make().train(mode == "train")
    compiled = lt.script(module)
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(seed)
            found = compiled(*args)
            torch.manual_seed(seed)
            _same(found, other(*args))
    for (name, a), (_, b) in zip(
        module.state_dict().items(), other.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(a, b, msg=name)


def test_no_module_is_forgotten() -> None:
    classes = {
        name
        for name in dir(nn)
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    tried = {type(make()).__name__ for _, make, _ in CASES} | {c[0].split()[0] for c in CASES}
    assert classes - tried - LEFT_OUT == set()
