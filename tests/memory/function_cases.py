"""Functions whose predicted peak is compared with the measured one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.memory.case_table import N, case, cube, images, two_squares

LAST = torch.channels_last

# -- pointwise, reductions, views ------------------------------------------------------------------


@case()
def pointwise(x):
    return torch.tanh(x * 2 + 1) * x


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


@case(lambda: (torch.rand(900, 1500),))
def smallest_k(x):
    return torch.kthvalue(x, 10, 1).values


@case(lambda: (torch.rand(400, 700),))
def product_of_rows(x):
    return torch.cumprod(x, 1)


@case(lambda: (torch.rand(700, 700) + torch.eye(700) * 700, torch.rand(700, 700)))
def solved(x, y):
    return torch.linalg.solve(x, y)


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


@case(images)
def larger(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear")


@case(lambda: (torch.rand(4, 16, 96, 96), torch.rand(32, 16, 3, 3)))
def convolved(x, w):
    return F.relu(F.conv2d(x, w, padding=1))


@case(lambda: (torch.rand(16, 32, 4000), torch.rand(32, 32, 5)))
def convolved_1d(x, w):
    return F.conv1d(x, w)


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


@case(lambda: (torch.rand(4, 3, 160, 160), torch.rand(3, 1, 11, 11)))
def blurred(x, w):
    return F.conv2d(x, w, padding=5, groups=3)


@case(lambda: (torch.rand(4, 96, 96, 32), torch.rand(96), torch.rand(96)))
def normalised_over_turned(x, w, b):
    return F.batch_norm(x.transpose(1, 2), None, None, w, b, True)


@case(two_squares)
def target_without_gradient(x, y):
    with torch.no_grad():
        target = torch.cumsum(torch.tanh(x * 2), 1)
    return ((torch.relu(y) - target) ** 2).mean()


@case(lambda: (torch.rand(6000, 400), torch.rand(400, 400) / 20))
def products_under_autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = torch.relu(x @ w)
        h = F.linear(torch.relu(h @ w), w)
    return torch.cumsum(h.float(), 1)
