"""Modules of torch.nn of every kind, scripted and traced, in training and not.

In: nothing. Out: cases; a name ends in `s` or `t` for scripted or traced, `T` or `E` for the mode.
"""

# ruff: noqa
# A table, a module a row.

import torch
import torch.nn as nn, torch.nn.functional as F
from tests.deploy.torchscript.compared import Case
from torch.nn.utils.rnn import pack_padded_sequence


def R(*s):
    return lambda: torch.randn(*s)


X1 = R(2, 4, 9)
X2 = R(2, 4, 8, 8)
X3 = R(2, 4, 6, 6, 6)
I = lambda hi, *s: lambda: torch.randint(0, hi, s)
T = []


def add(make, *inp, modes=("s", "t"), train=(False, True), values=True, name=None, tv=True):
    T.append((name or None, make, inp, modes, train, values, tv))


for d in (1, 2, 3):
    x = {1: R(2, 4, 9), 2: R(2, 4, 8, 8), 3: R(2, 4, 6, 6, 6)}[d]
    for pm in ("zeros", "reflect", "replicate", "circular"):
        if pm == "zeros" or d < 3:
            add(
                lambda d=d, pm=pm: getattr(nn, f"Conv{d}d")(
                    4, 6, 3, padding=1, padding_mode=pm, groups=2
                ),
                x,
            )
    add(lambda d=d: getattr(nn, f"Conv{d}d")(4, 6, 3, padding="same", bias=False, dilation=2), x)
    add(
        lambda d=d: getattr(nn, f"ConvTranspose{d}d")(
            4, 6, 3, stride=2, padding=1, output_padding=1
        ),
        x,
    )
    for k in ("MaxPool", "AvgPool", "LPPool"):
        add(lambda d=d, k=k: getattr(nn, f"{k}{d}d")(*((2.0, 2) if k == "LPPool" else (2,))), x)
    add(lambda d=d: getattr(nn, f"MaxPool{d}d")(2, return_indices=True, ceil_mode=True), x)
    add(lambda d=d: getattr(nn, f"AdaptiveAvgPool{d}d")(3), x)
    add(lambda d=d: getattr(nn, f"AdaptiveMaxPool{d}d")(3), x)
    add(lambda d=d: getattr(nn, f"BatchNorm{d}d")(4), x)
    add(lambda d=d: getattr(nn, f"BatchNorm{d}d")(4, momentum=None, affine=False), x)
    add(lambda d=d: getattr(nn, f"BatchNorm{d}d")(4, track_running_stats=False), x)
    add(lambda d=d: getattr(nn, f"InstanceNorm{d}d")(4, affine=True, track_running_stats=True), x)
    add(lambda d=d: getattr(nn, f"InstanceNorm{d}d")(4), x)
    add(lambda d=d: getattr(nn, f"Dropout{d}d")(0.5), x, values=False)
    for k in ("ReflectionPad", "ReplicationPad", "ZeroPad", "ConstantPad", "CircularPad"):
        add(
            lambda d=d, k=k: getattr(nn, f"{k}{d}d")(*((1, 2.5) if k == "ConstantPad" else (1,))), x
        )
add(lambda: nn.FractionalMaxPool2d(2, output_size=3), R(2, 4, 8, 8), values=False)
add(lambda: nn.FractionalMaxPool3d(2, output_ratio=0.5), R(2, 4, 6, 6, 6), values=False)
add(lambda: nn.Unfold(3, padding=1), R(2, 4, 8, 8))
add(lambda: nn.Fold((4, 4), 2), R(2, 12, 9))
add(lambda: nn.LayerNorm((4, 9)), R(2, 4, 9))
add(lambda: nn.LayerNorm(9, elementwise_affine=False), R(2, 4, 9))
add(lambda: nn.RMSNorm(9), R(2, 4, 9))
add(lambda: nn.GroupNorm(2, 4), R(2, 4, 8, 8))
add(lambda: nn.LocalResponseNorm(3), R(2, 4, 8, 8))
add(lambda: nn.CrossMapLRN2d(3), R(2, 4, 8, 8), modes=("t",))
for n in "ELU Hardshrink Hardsigmoid Hardtanh Hardswish LeakyReLU LogSigmoid PReLU ReLU ReLU6 SELU CELU GELU Sigmoid SiLU Mish Softplus Softshrink Softsign Tanh Tanhshrink".split():
    add(lambda n=n: getattr(nn, n)(), R(3, 5))
for n in "ELU Hardtanh LeakyReLU ReLU ReLU6 SELU CELU SiLU Mish Hardsigmoid Hardswish".split():
    add(
        lambda n=n: nn.Sequential(nn.Linear(5, 5), getattr(nn, n)(inplace=True)),
        R(3, 5),
        name=n + "_inplace",
    )
add(lambda: nn.RReLU(), R(3, 5), values=False)
add(lambda: nn.Threshold(0.1, 20.0), R(3, 5))
add(lambda: nn.GLU(), R(3, 6))
add(lambda: nn.GELU("tanh"), R(3, 5))
for n in "Softmin Softmax LogSoftmax".split():
    add(lambda n=n: getattr(nn, n)(1), R(3, 5))
add(lambda: nn.Softmax2d(), R(2, 3, 4, 4))
add(lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]), R(6, 8), I(20, 6))


class Recurrent(nn.Module):
    def __init__(self, kind, *args, **more):
        super().__init__()
        self.rnn = getattr(nn, kind)(*args, **more)

    def forward(self, x):
        return self.rnn(x)


for L in (1, 2):
    for bi in (False, True):
        for n in "RNN LSTM GRU".split():
            add(
                lambda n=n, L=L, bi=bi: Recurrent(
                    n, 4, 5, num_layers=L, bidirectional=bi, batch_first=L == 2
                ),
                R(3, 2, 4),
            )
add(lambda: Recurrent("LSTM", 4, 5, proj_size=3), R(3, 2, 4))
add(lambda: Recurrent("LSTM", 4, 5), R(3, 4))
add(lambda: Recurrent("GRU", 4, 5, dropout=0.5, num_layers=2), R(3, 2, 4), values=False)
for n in "RNNCell LSTMCell GRUCell".split():
    add(lambda n=n: getattr(nn, n)(4, 5), R(3, 4))


class Packed(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = getattr(nn, kind)(4, 5, bidirectional=True)

    def forward(self, x, lengths):
        p = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, h = self.rnn(p)
        return nn.utils.rnn.pad_packed_sequence(out), h


for n in ("LSTM", "GRU", "RNN"):
    add(lambda n=n: Packed(n), R(5, 3, 4), lambda: torch.tensor([2, 5, 3]), name="Packed" + n)
add(lambda: nn.MultiheadAttention(8, 2), R(5, 2, 8), R(5, 2, 8), R(5, 2, 8))
add(
    lambda: nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=4, bias=False),
    R(2, 5, 8),
    R(2, 3, 6),
    R(2, 3, 4),
)
add(
    lambda: nn.MultiheadAttention(8, 2, dropout=0.5, add_bias_kv=True, add_zero_attn=True),
    R(5, 2, 8),
    R(5, 2, 8),
    R(5, 2, 8),
    values=False,
)


class MHA(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, pad, mask):
        return self.a(x, x, x, key_padding_mask=pad, attn_mask=mask, need_weights=False)


add(
    MHA,
    R(2, 5, 8),
    lambda: torch.zeros(2, 5, dtype=torch.bool),
    lambda: torch.zeros(5, 5),
    name="MHAmasks",
)
add(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), R(2, 5, 8))
add(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2), R(5, 2, 8))
add(
    lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, norm_first=True),
    R(5, 2, 8),
    R(4, 2, 8),
)
add(
    lambda: nn.TransformerDecoder(
        nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 2, norm=nn.LayerNorm(8)
    ),
    R(5, 2, 8),
    R(4, 2, 8),
)
add(lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0), R(5, 2, 8), R(4, 2, 8))
add(lambda: nn.Identity(), R(3, 5))
add(lambda: nn.Linear(5, 4), R(3, 5))
add(lambda: nn.Bilinear(5, 4, 3), R(3, 5), R(3, 4))
add(lambda: nn.Flatten(), R(2, 3, 4))
add(lambda: nn.Unflatten(1, (2, 2)), R(3, 4))
add(lambda: nn.Dropout(0.5), R(3, 5), values=False)
add(lambda: nn.AlphaDropout(0.5), R(3, 5), values=False)
add(lambda: nn.FeatureAlphaDropout(0.5), R(3, 5, 4), values=False)
add(lambda: nn.Embedding(10, 4), I(10, 3, 2))
add(lambda: nn.Embedding(10, 4, padding_idx=1, max_norm=1.0, scale_grad_by_freq=True), I(10, 3, 2))
for m in ("sum", "mean", "max"):
    add(lambda m=m: nn.EmbeddingBag(10, 4, mode=m), I(10, 3, 2))
add(
    lambda: nn.EmbeddingBag(10, 4, mode="sum", padding_idx=1, include_last_offset=True),
    I(10, 6),
    lambda: torch.tensor([0, 2, 6]),
)
for n in "CosineSimilarity PairwiseDistance".split():
    add(lambda n=n: getattr(nn, n)(), R(3, 5), R(3, 5))
P = lambda *s: lambda: torch.rand(*s)
S = lambda *s: lambda: torch.randn(*s).sign()
for red in ("mean", "sum", "none"):
    for n in "L1Loss MSELoss SmoothL1Loss HuberLoss SoftMarginLoss KLDivLoss PoissonNLLLoss BCEWithLogitsLoss".split():
        add(lambda n=n, red=red: getattr(nn, n)(reduction=red), R(3, 5), P(3, 5), name=n + red)
    add(lambda red=red: nn.BCELoss(reduction=red), P(3, 5), P(3, 5), name="BCE" + red)
    add(
        lambda red=red: nn.CrossEntropyLoss(
            reduction=red, label_smoothing=0.1, weight=torch.rand(5)
        ),
        R(3, 5),
        I(5, 3),
        name="CE" + red,
    )
    add(
        lambda red=red: nn.NLLLoss(reduction=red, ignore_index=1),
        R(3, 5),
        I(5, 3),
        name="NLL" + red,
    )
    add(
        lambda red=red: nn.GaussianNLLLoss(reduction=red),
        R(3, 5),
        R(3, 5),
        P(3, 5),
        name="GNLL" + red,
    )
    add(lambda red=red: nn.HingeEmbeddingLoss(reduction=red), R(3, 5), S(3, 5), name="Hinge" + red)
    add(lambda red=red: nn.MarginRankingLoss(reduction=red), R(3), R(3), S(3), name="MRank" + red)
    add(
        lambda red=red: nn.CosineEmbeddingLoss(reduction=red),
        R(3, 5),
        R(3, 5),
        S(3),
        name="CosE" + red,
    )
    add(
        lambda red=red: nn.TripletMarginLoss(reduction=red),
        R(3, 5),
        R(3, 5),
        R(3, 5),
        name="Trip" + red,
    )
    add(lambda red=red: nn.MultiMarginLoss(reduction=red), R(3, 5), I(5, 3), name="MM" + red)
    add(
        lambda red=red: nn.MultiLabelMarginLoss(reduction=red),
        R(3, 5),
        I(5, 3, 5),
        name="MLM" + red,
    )
    add(
        lambda red=red: nn.MultiLabelSoftMarginLoss(reduction=red),
        R(3, 5),
        P(3, 5),
        name="MLSM" + red,
    )
    add(
        lambda red=red: nn.CTCLoss(reduction=red),
        lambda: torch.randn(6, 2, 5).log_softmax(2),
        I(4, 2, 3),
        lambda: torch.tensor([6, 5]),
        lambda: torch.tensor([3, 2]),
        name="CTC" + red,
    )
add(lambda: nn.TripletMarginWithDistanceLoss(), R(3, 5), R(3, 5), R(3, 5))
add(lambda: nn.CrossEntropyLoss(), R(3, 5), P(3, 5), name="CEprob")
add(lambda: nn.CrossEntropyLoss(), R(3, 5, 4), I(5, 3, 4), name="CEdims")
for m in ("nearest", "bilinear", "bicubic", "nearest-exact"):
    add(lambda m=m: nn.Upsample(scale_factor=2, mode=m), R(1, 2, 4, 4), name="Up" + m)
add(
    lambda: nn.Upsample(size=(5, 7), mode="bilinear", align_corners=True),
    R(1, 2, 4, 4),
    name="Upsize",
)
add(lambda: nn.UpsamplingBilinear2d(scale_factor=2), R(1, 2, 4, 4))
add(lambda: nn.Upsample(scale_factor=1.5, mode="linear"), R(1, 2, 4), name="Uplin")
add(lambda: nn.Upsample(scale_factor=2, mode="trilinear"), R(1, 2, 3, 3, 3), name="Uptri")
add(lambda: nn.PixelShuffle(2), R(1, 4, 3, 3))
add(lambda: nn.PixelUnshuffle(2), R(1, 1, 4, 4))
add(lambda: nn.ChannelShuffle(2), R(1, 4, 3, 3))
add(
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), R(2, 4), modes=("t",), name="wn"
)
add(
    lambda: nn.utils.spectral_norm(nn.Linear(4, 3)),
    R(2, 4),
    modes=("t",),
    train=(False,),
    name="sn",
)
add(lambda: nn.utils.weight_norm(nn.Linear(4, 3)), R(2, 4), name="oldwn")


class FN(nn.Module):
    def forward(self, x: torch.Tensor, grid: torch.Tensor):
        return (
            F.grid_sample(x, grid, align_corners=False),
            F.affine_grid(torch.eye(2, 3).unsqueeze(0), [1, 1, 3, 4], align_corners=True),
            F.interpolate(x, scale_factor=0.5),
            F.pad(x, [1, 2], "constant", 3.0),
            F.normalize(x),
            F.one_hot(torch.tensor([1, 2]), 4),
            F.unfold(x, 2),
            F.cosine_similarity(x, x),
        )


add(FN, R(1, 2, 4, 4), lambda: torch.rand(1, 3, 3, 2) * 2 - 1, name="Fvarious")


def cases():
    for k, (name, make, inp, modes, train, values, tv) in enumerate(T):
        torch.manual_seed(0)
        nm = name or type(make()).__name__
        for mode in modes:
            for tr in train:

                def mk(make=make, inp=inp, mode=mode, tr=tr):
                    torch.manual_seed(0)
                    m = make().train(tr)
                    xs = [i() for i in inp]
                    return (
                        torch.jit.script(m)
                        if mode == "s"
                        else torch.jit.trace(m, tuple(xs), check_trace=False)
                    )

                def calls(inp=inp):
                    torch.manual_seed(1)
                    out = []
                    for _ in range(2):
                        xs = [i() for i in inp]
                        out.append(
                            tuple(x.requires_grad_() if x.is_floating_point() else x for x in xs)
                        )
                    return out

                yield Case(
                    f"{k}.{nm}.{mode}{'T' if tr else 'E'}", mk, calls, (), True, values or not tr
                )
