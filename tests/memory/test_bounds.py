"""What PyTorch's ops take, by the table of bounds: rehearsed on meta tensors, and measured.

Each op, and each module, runs forward and, where it has gradients, backward. Measured are the bytes
asked of PyTorch's allocator, whatever libraries take from malloc.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.memory.ledger import Ledger
from lowtide.memory.like_device import LikeTheCpu
from lowtide.memory.stand_ins import like
from tests.memory.contract import requested_bytes, with_room

Inputs = Callable[[int], tuple[Tensor, ...]]  # for a scale, to which all bytes are in proportion
LAST = torch.channels_last
CASES: dict[str, tuple[Callable[[], Callable[..., Any]], Inputs]] = {}


def add(inputs: Inputs, **ops: Callable[..., Any]) -> None:
    """Functions of such inputs."""
    CASES.update({name: (lambda op=op: op, inputs) for name, op in ops.items()})


def add_modules(inputs: Inputs, **makers: Callable[[], nn.Module]) -> None:
    """Modules of such inputs."""
    CASES.update({name: (make, inputs) for name, make in makers.items()})


def of(*shape: int, count: int = 1, dtype: torch.dtype = torch.float32) -> Inputs:
    """Random tensors, of which the first dim is scaled."""
    first, *rest = shape

    def inputs(scale: int) -> tuple[Tensor, ...]:
        return tuple(torch.rand(first * scale, *rest, dtype=dtype) for _ in range(count))

    return inputs


def integers(scale: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 1000, (4_000_000 * scale,)),)


def regular(scale: int) -> tuple[Tensor, ...]:
    n = 1000 * scale
    return torch.rand(n, n) + n * torch.eye(n), torch.rand(n, n)


def batches(scale: int) -> tuple[Tensor, ...]:
    return (torch.rand(2000 * scale, 40, 40) + 40 * torch.eye(40),)


def indexed(scale: int) -> tuple[Tensor, ...]:
    n = 100_000 * scale
    return torch.rand(n, 64), torch.randint(0, 1000, (n,)), torch.rand(1000, 64)


def masked(scale: int) -> tuple[Tensor, ...]:
    x = torch.rand(2500 * scale, 2500)
    return x, torch.rand_like(x) > 0.3


def words(scale: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 5000, (64 * scale, 200)),)


def spoken(scale: int) -> tuple[Tensor, ...]:
    return torch.rand(300, 32 * scale, 50), torch.randint(1, 50, (32 * scale, 40))


def rows_of(i: Tensor, x: Tensor) -> Tensor:
    return i[:, None].expand_as(x)


add(
    of(2500, 2500),
    sort=lambda x: x.sort(-1).values,
    sort_columns=lambda x: x.sort(0).values,
    topk=lambda x: x.topk(50).values,
    kthvalue=lambda x: x.kthvalue(5).values,
    median=lambda x: x.median(),
    median_columns=lambda x: x.median(0).values,
    mode=lambda x: x.round().mode().values,
    cumsum=lambda x: x.cumsum(0),
    cummax=lambda x: x.cummax(1).values,
    logsumexp=lambda x: x.logsumexp(0),
    logcumsumexp=lambda x: x.logcumsumexp(1),
    softmax=lambda x: x.t().softmax(0),
    var_mean=lambda x: torch.var_mean(x, 1)[0],
    roll=lambda x: x.roll((1, 2), (0, 1)),
    turned=lambda x: x.t().contiguous(),
    sum_in_double=lambda x: x.sum(0, dtype=torch.float64),
    fft=lambda x: torch.fft.fft(x).abs(),
    fft_of_images=lambda x: torch.fft.rfft2(x).abs(),
    fft_back=lambda x: torch.fft.irfft2(torch.complex(x, x)),
    layer_norm=lambda x: F.layer_norm(x.t(), x.shape[:1]),
    cdist=lambda x: torch.cdist(x[:, :50], x[:, 50:100]),
    multinomial=lambda x: torch.multinomial(x.detach(), 50),
    antialiased=lambda x: F.interpolate(
        x[None, None], scale_factor=0.5, mode="bicubic", antialias=True
    ),
    huber=lambda x: F.huber_loss(x, x * 2),
    soft_margin=lambda x: F.soft_margin_loss(x, x.detach().round()),
    logits=lambda x: F.binary_cross_entropy_with_logits(x, x.detach()),
    gelu_and_silu=lambda x: F.gelu(x) + F.silu(x),
    covariance=lambda x: torch.cov(x[:500]),
)
add(of(6_000_000), sort_line=lambda x: x.sort().values, unique=lambda x: x.detach().unique())
add(
    integers,
    sort_integers=lambda x: x.sort().values,
    isin=lambda x: torch.isin(x, x[:1000]),
    scaled_integers=lambda x: x * 1.5,
)
add(
    of(2500, 2500, dtype=torch.bfloat16),
    mean_of_halves=lambda x: x.mean(1),
    products_of_halves=lambda x: x.t() @ x,
    loss_of_halves=lambda x: F.mse_loss(x, x * 2),
)
add(
    of(2500, 2500, count=2),
    mixed=lambda x, y: x + y.double(),
    products=lambda x, y: x @ y[:2500].t(),
    products_of_parts=lambda x, y: x[:, ::2] @ y[:2500:2, ::2],
    where=lambda x, y: torch.where(x > y, x, y),
    cosine=lambda x, y: F.cosine_similarity(x, y),
)
add(
    masked,
    select=lambda x, m: x[m],
    masked_select=lambda x, m: x.masked_select(m),
    masked_scatter=lambda x, m: x.masked_scatter(m, x.reshape(-1)),
)
add(
    indexed,
    gather=lambda x, i, w: w[i] + x,
    embedding=lambda x, i, w: F.embedding(i, w) * x,
    bag=lambda x, i, w: F.embedding_bag(i.view(1000, -1), w, mode="sum"),
    index_add=lambda x, i, w: w.index_add(0, i, x),
    scatter_add=lambda x, i, w: w.scatter_add(0, rows_of(i, x), x),
    scatter_mean=lambda x, i, w: w.scatter_reduce(0, rows_of(i, x), x, "mean"),
    put_rows=lambda x, i, w: w.index_put((i,), x, accumulate=True),
    cross_entropy=lambda x, i, w: F.cross_entropy(x, i % 64),
)
add(
    regular,
    solve=torch.linalg.solve,
    inverse=lambda a, b: torch.linalg.inv(a),
    svd=lambda a, b: torch.linalg.svd(a, full_matrices=False)[1],
    eigh=lambda a, b: torch.linalg.eigh(a + a.t())[0],
    qr=lambda a, b: torch.linalg.qr(a)[0],
    cholesky=lambda a, b: torch.linalg.cholesky(a @ a.t()),
    lstsq=lambda a, b: torch.linalg.lstsq(a.detach(), b.detach()).solution,
    det=lambda a, b: torch.linalg.det(a / a.shape[0]),
    pinv=lambda a, b: torch.linalg.pinv(a),
    matrix_exp=lambda a, b: torch.linalg.matrix_exp(a / a.shape[0]),
)
add(
    batches,
    inverses=torch.linalg.inv,
    svds=lambda a: torch.linalg.svd(a, full_matrices=False)[1],
    qrs=lambda a: torch.linalg.qr(a)[1],
)
add(
    of(2, 4, 1500, 64, count=3),
    attention=F.scaled_dot_product_attention,
    attention_causal=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    attention_in_parts=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
)
add(
    of(8, 16, 200, 200),
    max_pool=lambda x: F.max_pool2d(x, 2),
    avg_pool=lambda x: F.avg_pool2d(x, 2),
    up=lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    pad=lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"),
    patches=lambda x: F.unfold(x, 3).sum(1),
    group_norm=lambda x: F.group_norm(x, 4),
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(128, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0]


class EncoderOp(nn.Module):
    """What an encoder layer calls in eval mode, on a device that has the op."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self.inner
        heads = own.self_attn
        weights = heads.in_proj_weight, heads.in_proj_bias, *heads.out_proj.parameters()
        layers = own.norm1, own.norm2, own.linear1, own.linear2
        rest = [p for layer in layers for p in layer.parameters()]
        with torch.no_grad():
            encode: Any = torch._transformer_encoder_layer_fwd
            return encode(x, 128, 4, *weights, False, True, 1e-5, *rest)


class Ctc(nn.Module):
    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        steps, batch, _ = x.shape
        lengths = targets.new_full((batch,), steps), targets.new_full((batch,), targets.shape[1])
        return F.ctc_loss(x.log_softmax(-1), targets, *lengths)


add_modules(
    of(8, 16, 200, 200),
    conv=lambda: nn.Conv2d(16, 32, 3, padding=1),
    conv_last=lambda: nn.Conv2d(16, 32, 3, padding=1).to(memory_format=LAST),
    conv_strided=lambda: nn.Conv2d(16, 32, 5, stride=2),
    conv_groups=lambda: nn.Conv2d(16, 32, 3, groups=4),
    conv_depthwise=lambda: nn.Conv2d(16, 16, 7, padding=3, groups=16),
    conv_point=lambda: nn.Conv2d(16, 64, 1),
    conv_up=lambda: nn.ConvTranspose2d(16, 8, 4, stride=2),
    batch_norm=lambda: nn.BatchNorm2d(16),
)
add_modules(
    of(8, 16, 200, 200, dtype=torch.float64),
    conv_double=lambda: nn.Conv2d(16, 16, 3).double(),
    conv_dilated=lambda: nn.Conv2d(16, 16, 3, dilation=2).double(),
    conv_up_double=lambda: nn.ConvTranspose2d(16, 8, 4, stride=2).double(),
)
add_modules(
    of(8, 16, 200, 200, dtype=torch.bfloat16), conv_half=lambda: nn.Conv2d(16, 32, 3).bfloat16()
)
add_modules(of(16, 64, 5000), conv_of_lines=lambda: nn.Conv1d(64, 64, 9))
add_modules(of(2, 8, 40, 60, 60), conv_of_volumes=lambda: nn.Conv3d(8, 16, 3))
add_modules(
    of(200, 32, 64),
    lstm=lambda: nn.LSTM(64, 128),
    lstm_deep=lambda: nn.LSTM(64, 128, 2, bidirectional=True, batch_first=True),
    lstm_projected=lambda: nn.LSTM(64, 128, proj_size=32),
    gru=lambda: nn.GRU(64, 128, 2, dropout=0.2),
    rnn=lambda: nn.RNN(64, 128, 2, bidirectional=True),
)
add_modules(of(200, 32, 512), lstm_wide=lambda: nn.LSTM(512, 64, bias=False))
add_modules(
    of(8, 500, 128),
    encoder=lambda: nn.TransformerEncoderLayer(128, 4, 512, batch_first=True),
    encoder_as_one_op=EncoderOp,
    heads_of_attention=Attention,
)
add_modules(of(2500, 2500), linear=lambda: nn.Linear(2500, 1000))
add_modules(words, words=lambda: nn.Embedding(5000, 512))
add_modules(spoken, ctc=Ctc)


def run(fn: Callable[..., Any], args: tuple[Tensor, ...], grad: bool) -> object:
    with torch.set_grad_enabled(grad):
        result = fn(*args)
        y = result if isinstance(result, Tensor) else result[0]
        if y.requires_grad:
            y.backward(torch.ones_like(y))
    return result


def rehearsed(fn: Callable[..., Any], args: tuple[Tensor, ...], grad: bool) -> Ledger:
    """The ledger of the same on meta tensors."""
    ledger = Ledger()
    made: Any = copy.deepcopy(fn).to("meta") if isinstance(fn, nn.Module) else fn
    given = tuple(like(x, x.requires_grad) for x in args)
    ledger.given([*given, *(made.parameters() if isinstance(fn, nn.Module) else ())])
    with ledger, ledger.answering(), LikeTheCpu():
        run(made, given, grad)
    return ledger


def test_there_are_enough() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("scale", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("grad", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_for_is_within_the_bound(name: str, grad: bool, scale: int) -> None:
    torch.manual_seed(0)
    make, inputs = CASES[name]
    fn, args = make(), inputs(scale)
    for x in args:
        x.requires_grad_(grad and x.is_floating_point())
    ledger = rehearsed(fn, args, grad)
    run(fn, args, grad)
    for x in [*args, *(fn.parameters() if isinstance(fn, nn.Module) else ())]:
        x.grad = None
    asked = requested_bytes(lambda: run(fn, args, grad))
    assert not ledger.unbounded
    assert asked <= with_room(ledger.peak_bytes)
    assert ledger.peak_bytes <= 2 * asked + 16_000_000


def test_an_op_without_a_bound_is_named() -> None:
    def f(x, y, w):
        return torch.ops.aten._trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3])

    given = torch.rand(1000, 10), torch.rand(1000, 20), torch.rand(30, 10, 20)
    plan = lt.script(f).memory(*given)
    assert any("scratch memory of `aten::_trilinear` is not known" in note for note in plan.notes)
    assert plan.peak_bytes >= 4 * (1000 * 30 + 1000 * 20)


def test_ops_of_others_have_no_bound(request: pytest.FixtureRequest) -> None:
    """Whatever their names are."""
    library = torch.library.Library("tests_of_bounds", "FRAGMENT")
    request.addfinalizer(library._destroy)
    library.define("gather(Tensor x) -> Tensor")
    library.impl("gather", lambda x: x.new_empty(4), "CompositeExplicitAutograd")
    ledger, x = Ledger(), torch.empty(500_000, device="meta")
    ledger.given([x])
    with ledger:
        torch.ops.tests_of_bounds.gather(x)
    assert any("`tests_of_bounds::gather`" in note for note in ledger.unbounded)
    assert ledger.peak_bytes >= x.nbytes
