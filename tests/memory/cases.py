"""The programs whose predicted peak is compared with the measured one; sizes of some tens of MB.

A case is a function or a module, and a maker of its inputs. Floating inputs get `requires_grad` for
the run with gradients, unless the case has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Case:
    """`make` gives what is compiled; `inputs` its arguments; `grad`: whether it has gradients."""

    name: str
    make: Callable[[], object]
    inputs: Callable[[], tuple[object, ...]]
    grad: bool = True


CASES: list[Case] = []
N = 1500  # a square of floats is 9 MB


def square() -> tuple[Tensor, ...]:
    return (torch.rand(N, N),)


def two_squares() -> tuple[Tensor, ...]:
    return torch.rand(N, N), torch.rand(N, N)


def cube() -> tuple[Tensor, ...]:
    return (torch.rand(48, 256, 200),)


def images() -> tuple[Tensor, ...]:
    return (torch.rand(8, 16, 128, 128),)


def case(
    inputs: Callable[[], tuple[object, ...]] = square, grad: bool = True
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Adds a function to the table."""

    def add(fn: Callable[..., object]) -> Callable[..., object]:
        CASES.append(Case(name=fn.__name__, make=lambda: fn, inputs=inputs, grad=grad))
        return fn

    return add


def module(name: str, inputs: Callable[[], tuple[object, ...]]) -> Callable[..., object]:
    """Adds a maker of modules to the table."""

    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        CASES.append(Case(name=name, make=make, inputs=inputs))
        return make

    return add


# -- pointwise, reductions, views ------------------------------------------------------------------


@case()
def pointwise(x):
    return torch.tanh(x * 2 + 1) * x


@case()
def several_outputs(x):
    return x.sin(), x.cos(), x.exp()


@case()
def row_sums(x):
    return (x * x).sum(1)


@case()
def softmax_rows(x):
    return torch.softmax(x, -1)


@case()
def normalised(x):
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


@case()
def transposed(x):
    return x.t().contiguous() + x


@case()
def view_of_a_result(x):
    y = x * 2
    return y.view(-1, 100), y.t()


@case()
def halves(x):
    a, b = x.chunk(2, 1)
    return a * torch.sigmoid(b)


@case()
def rolled(x):
    return torch.roll(x, 5, 0) + x


@case(two_squares)
def joined(x, y):
    return torch.cat([x * 2, y.relu()], 1)


@case(two_squares)
def stacked(x, y):
    return torch.stack([x, y, x + y])


@case()
def padded(x):
    return F.pad(x, (3, 5, 2, 2)) * 2


@case(grad=False)
def compared(x):
    return (x > 0.5) & (x < 0.7)


@case()
def clamped(x):
    return x.clamp(0.2, 0.8).sqrt()


@case()
def cast_down(x):
    return (x * 3).half()


@case()
def norm_and_scale(x):
    return x / x.norm()


# -- pairs and products ----------------------------------------------------------------------------


@case(lambda: (torch.rand(2000, 3), torch.rand(2500, 3)))
def pairs(x, y):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return d.min(1).values, d.min(0).values


@case(lambda: (torch.rand(1500, 3), torch.rand(1600, 3), torch.rand(1600, 8)))
def kernel_sum(x, y, b):
    return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b


@case(lambda: (torch.rand(1500, 3), torch.rand(2000, 3)))
def all_distances(x, y):
    return torch.cdist(x, y)


@case(two_squares)
def product(x, y):
    return x @ y


@case(two_squares)
def product_and_more(x, y):
    return torch.relu(x @ y + 1) @ y.t()


@case(lambda: (torch.rand(40, 200, 300), torch.rand(40, 300, 200)))
def batched(x, y):
    return torch.bmm(x, y) * 2


@case(lambda: tuple(torch.rand(2, 4, 700, 64) for _ in range(3)))
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(64), -1) @ v


@case(lambda: tuple(torch.rand(2, 4, 700, 64) for _ in range(3)))
def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@case(lambda: (torch.rand(1200, 128), torch.rand(4000, 128), torch.randint(0, 4000, (1200,))))
def cross_entropy(x, w, t):
    return F.cross_entropy(x @ w.t(), t)


@case(lambda: (torch.rand(30, 300, 200), torch.rand(200, 300)))
def einsum(x, w):
    return torch.einsum("bij,jk->bik", x, w)


@case(lambda: (torch.rand(2000, 40),))
def gram(x):
    return x @ x.t()


@case(lambda: (torch.rand(1500, 600), torch.rand(600, 900)))
def low_then_up(x, w):
    h = F.gelu(x @ w)
    return h @ w.t() + x


# -- what PyTorch runs -----------------------------------------------------------------------------


@case()
def cumulative(x):
    return torch.cumsum(x * 2, 0) + 1


@case()
def cumulative_twice(x):
    return torch.cumsum(torch.cumsum(x * 2, 0) * 2, 1)


@case()
def ordered(x):
    return torch.sort(x * 2, -1).values + 1


@case()
def ordered_columns(x):
    return torch.sort(x, 0).values


@case()
def best(x):
    return torch.topk(x * 2, 50, -1).values


@case()
def best_columns(x):
    return torch.topk(x, 700, 0).values


@case(lambda: (torch.rand(900, 1500),))
def middle(x):
    return x.median(1).values


@case(lambda: (torch.rand(900, 1500),))
def middle_columns(x):
    return x.median(0).values


@case(lambda: (torch.rand(900, 1500),))
def smallest_k(x):
    return torch.kthvalue(x, 10, 1).values


@case()
def order(x):
    return torch.argsort(x * 2, 1)


@case(lambda: (torch.rand(400, 700),))
def product_of_rows(x):
    return torch.cumprod(x, 1)


@case(lambda: (torch.rand(700, 700) + torch.eye(700) * 700,))
def inverse(x):
    return torch.linalg.inv(x * 2)


@case(lambda: (torch.rand(700, 700) + torch.eye(700) * 700, torch.rand(700, 700)))
def solved(x, y):
    return torch.linalg.solve(x, y)


@case(lambda: (torch.rand(1000, 300),))
def singular(x):
    return torch.linalg.svdvals(x * 2)


@case()
def frequencies(x):
    return torch.fft.rfft(x * 2).abs()


@case(lambda: (torch.rand(N, N), torch.randint(0, N, (2000,))))
def gathered_rows(x, i):
    return (x * 2)[i]


@case(lambda: (torch.rand(N, N), torch.randint(0, N, (N, N))))
def gathered(x, i):
    return torch.gather(x, 1, i) * 2


@case(lambda: (torch.rand(N, N), torch.randint(0, 500, (N,))))
def added_rows(x, i):
    return torch.zeros(500, N).index_add(0, i, x * 2)


@case(lambda: (torch.rand(N, N), torch.randint(0, N, (N, N))))
def scattered(x, i):
    return torch.zeros(N, N).scatter_add(1, i, x)


@case()
def best_with_places(x):
    return torch.topk(x, 700, 0)


@case()
def running_maximum(x):
    return torch.cummax(x, 1)


@case(lambda: (torch.rand(2_500_000),))
def sorted_line(x):
    return torch.sort(x).values


@case(lambda: (torch.randint(0, 1000, (1500, 1500)),), grad=False)
def distinct(i):
    return torch.unique(i)


@case(lambda: (torch.rand(N, N), torch.randint(0, N, (N, N))))
def largest_of_each(x, i):
    return torch.zeros(N, N).scatter_reduce(1, i, x, "amax")


@case(two_squares)
def filled_from(x, y):
    return x.masked_scatter(x > 0.5, y)


@case()
def in_place(x):
    y = x * 2
    y[y > 1] = 0
    return y + 1


@case(grad=False)
def written_rows(x):
    y = torch.zeros(N, N)
    y[10:700] = x[10:700] * 2
    return y * 3


@case(images)
def pooled(x):
    return F.max_pool2d(x * 2, 2)


@case(lambda: (torch.rand(16, 32, 10_000),))
def pooled_1d(x):
    return F.max_pool1d(x, 2)


@case(images)
def averaged(x):
    return F.avg_pool2d(x, 3, 1, 1)


@case(images)
def larger(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear")


@case(images)
def larger_nearest(x):
    return F.interpolate(x * 2, scale_factor=2.0, mode="nearest")


@case(lambda: (torch.rand(4, 16, 96, 96), torch.rand(32, 16, 3, 3)))
def convolved(x, w):
    return F.relu(F.conv2d(x, w, padding=1))


@case(lambda: (torch.rand(16, 32, 4000), torch.rand(32, 32, 5)))
def convolved_1d(x, w):
    return F.conv1d(x, w)


@case(lambda: (torch.rand(4, 32, 128, 128), torch.rand(32, 32, 3, 3)))
def convolved_strided(x, w):
    return F.conv2d(x, w, padding=1, stride=2)


@case(lambda: (torch.rand(4, 32, 96, 96).transpose(2, 3), torch.rand(64, 32, 3, 3)))
def convolved_turned(x, w):
    return F.conv2d(x, w, padding=1)


@case(lambda: (torch.rand(8, 3, 128, 128), torch.rand(64, 3, 3, 3)))
def convolved_colours(x, w):
    return F.conv2d(x.detach(), w, padding=1)


@case(lambda: (torch.rand(4, 16, 64, 64).double(), torch.rand(32, 16, 3, 3).double()))
def convolved_double(x, w):
    return F.conv2d(x, w, padding=1)


@case(lambda: (torch.rand(4, 16, 48, 48).double(), torch.rand(16, 16, 4, 4).double()))
def convolved_double_up(x, w):
    return F.conv_transpose2d(x, w, stride=2, padding=1)


@case(lambda: (torch.rand(4, 32, 96, 96).bfloat16(), torch.rand(64, 32, 3, 3).bfloat16()))
def convolved_half(x, w):
    return F.conv2d(x, w, padding=1)


@case(lambda: (torch.randint(0, 3000, (64, 200)), torch.rand(3000, 128)))
def embedded(i, w):
    return F.embedding(i, w) * 2


@case()
def dropped(x):
    return torch.dropout(x, 0.5, True) * 2


@case(cube)
def layer_normed(x):
    return F.layer_norm(x, (200,))


@case(lambda: (torch.rand(16, 32, 64, 64),))
def group_normed(x):
    return F.group_norm(x, 4)


@case(lambda: (torch.rand(N, N) + 0.1,))
def mixed(x):
    y = torch.cumsum(x, 1).log()
    z = torch.sort(y, 0).values
    return (z * y).sum(0)


@case(lambda: (torch.rand(900, 500),))
def singular_parts(x):
    return torch.linalg.svd(x, full_matrices=False)


@case(lambda: (torch.rand(1200, 1200),))
def own_vectors(x):
    values, vectors = torch.linalg.eigh(x + x.t())
    return vectors * values


@case(lambda: (torch.rand(40, 300, 200), torch.rand(40, 300, 100)), grad=False)
def least_squares(x, y):
    return torch.linalg.lstsq(x, y).solution


@case(lambda: (torch.rand(900, 900), torch.rand(900, 900)))
def solved_by_its_root(x, y):
    return torch.cholesky_solve(y, torch.linalg.cholesky(x @ x.t() + torch.eye(900) * 900))


@case()
def covariance(x):
    return torch.cov(x)


@case(lambda: (torch.rand(8, 100_000),))
def sound_and_back(x):
    w = torch.hann_window(512)
    s = torch.stft(x, 512, 128, window=w, return_complex=True)
    return torch.istft(s * 0.5, 512, 128, window=w)


@case(lambda: (torch.rand(1200, 1024),))
def frequencies_and_back(x):
    return torch.fft.irfft2(torch.fft.rfft2(x))


@case(lambda: (torch.rand(N, N), torch.randint(0, N, (N, N))))
def mean_of_each(x, i):
    return torch.zeros(N, N).scatter_reduce(0, i, x, "mean")


@case(lambda: (torch.rand(300_000, 16), torch.randint(0, 1000, (300_000,))))
def sums_of_segments(x, i):
    return torch.zeros(1000, 16).index_add(0, i, x)


@case(lambda: (torch.rand(1_000_000),), grad=False)
def distinct_with_counts(x):
    return torch.unique(x, return_inverse=True, return_counts=True)


@case(lambda: (torch.randint(0, 5, (100_000, 8)),), grad=False)
def distinct_rows(x):
    return torch.unique(x, dim=0)


@case(lambda: (torch.randn(400, 16, 200), torch.randint(1, 200, (16, 100))))
def aligned(x, t):
    steps = torch.full((16,), 400), torch.full((16,), 100)
    return F.ctc_loss(F.log_softmax(x, -1), t, *steps)


@case(two_squares)
def margins(x, y):
    return F.soft_margin_loss(x, y.detach())


@case(images)
def smaller(x):
    return F.interpolate(x, size=(48, 48), mode="bilinear", antialias=True)


# -- control flow ----------------------------------------------------------------------------------


@case()
def branch(x):
    if x.sum() > 0:
        return torch.cumsum(x, 0) * 2
    return x - 1


@case()
def stepped(x):
    for _ in range(6):
        x = torch.cumsum(x, 0) * 0.1
    return x


@case(lambda: (torch.rand(40, 64, 256), torch.rand(256, 256) * 0.05))
def recurrent(x, w):
    h = x[0]
    for i in range(x.shape[0]):
        h = torch.tanh(h @ w + x[i])
    return h


@case(lambda: (torch.rand(200, 160),))
def recurrences_within(x):
    s = torch.ones(x.shape[1])
    for _ in range(x.shape[1]):
        h = x[0] * s
        for t in range(x.shape[0]):
            h = torch.tanh(h + x[t])
        s = torch.sigmoid(h) + 0.1 * s
    return s


@case()
def collected(x):
    found = []
    for i in range(4):
        found.append(torch.cumsum(x, 0) * i)
    return torch.stack(found)


# -- modules ---------------------------------------------------------------------------------------


@module("linear", lambda: (torch.rand(4000, 512),))
def linear() -> nn.Module:
    return nn.Linear(512, 512)


@module("mlp", lambda: (torch.rand(3000, 256),))
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))


@module("mlp with dropout", lambda: (torch.rand(3000, 256),))
def mlp_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.3), nn.Linear(1024, 256), nn.LayerNorm(256)
    )


@module("convolutions", lambda: (torch.rand(4, 8, 96, 96),))
def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
    )


@module("transformer layer", lambda: (torch.rand(4, 256, 128),))
def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)


@module("lstm_deep", lambda: (torch.rand(200, 8, 40),))
def lstm_deep() -> nn.Module:
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(40, 64, num_layers=2, bidirectional=True, bias=False)

        def forward(self, x):
            y, (h, c) = self.rnn(x)
            return torch.tanh(y).sum(0) + h.sum() * c.sum()

    return Encoder()


@module("lstm", lambda: (torch.rand(16, 60, 64),))
def lstm() -> nn.Module:
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(64, 128, batch_first=True)
            self.out = nn.Linear(128, 50)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    return Tagger()


class Directions(nn.Module):
    """What a recurrent module gives for each step."""

    def __init__(self, rnn: nn.Module):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return self.rnn(x)[0]


@module("gru", lambda: (torch.rand(6, 800, 64),))
def gru() -> nn.Module:
    return Directions(nn.GRU(64, 128, num_layers=2, bidirectional=True))


@module("gru_of_little", lambda: (torch.rand(600, 4, 20),))
def gru_of_little() -> nn.Module:
    return Directions(nn.GRU(20, 30, num_layers=2))


@module("lstm_of_one", lambda: (torch.rand(3000, 64),))
def lstm_of_one() -> nn.Module:
    return Directions(nn.LSTM(64, 128))


@module("lstm_double", lambda: (torch.rand(6, 400, 64).double(),))
def lstm_double() -> nn.Module:
    return Directions(nn.LSTM(64, 128, proj_size=64).double())


@module("encoder at rest", lambda: (torch.rand(8, 300, 128),))
def encoder_at_rest() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 8, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@module("bags", lambda: (torch.randint(0, 20_000, (4000, 64)),))
def bags() -> nn.Module:
    return nn.EmbeddingBag(20_000, 128)


@module("groups of channels", lambda: (torch.rand(8, 24, 96, 96),))
def groups_of_channels() -> nn.Module:
    return nn.Conv2d(24, 48, 3, padding=1, groups=4)


@module("masked attention", lambda: (torch.rand(8, 400, 128),))
def masked_attention() -> nn.Module:
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(128, 8, batch_first=True)

        def forward(self, x):
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            return self.attend(x, x, x, attn_mask=mask, need_weights=False)[0]

    return Masked()


class Block(nn.Module):
    """A transformer block as people write it."""

    def __init__(self, width: int = 128, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        a = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(c // self.heads), -1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@module("block", lambda: (torch.rand(6, 400, 128),))
def block() -> nn.Module:
    return Block()


class Unet(nn.Module):
    """Down, up, and a skip connection."""

    def __init__(self, c: int = 16):
        super().__init__()
        self.first = nn.Conv2d(3, c, 3, padding=1)
        self.down = nn.Conv2d(c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.last = nn.Conv2d(2 * c, 3, 3, padding=1)

    def forward(self, x):
        a = torch.relu(self.first(x))
        b = torch.relu(self.down(F.max_pool2d(a, 2)))
        return self.last(torch.cat([a, self.up(b)], 1))


@module("unet", lambda: (torch.rand(4, 3, 128, 128),))
def unet() -> nn.Module:
    return Unet()
