"""Tensors: creation, properties, in-place operations, views, sizes, promotion, random numbers."""

from typing import List, Optional, Tuple, Union

import torch
import torch.nn.functional as F

from tests.language.support import program


@program(args=lambda: (3,))
def factories(n: int) -> List[torch.Tensor]:
    return [
        torch.zeros(n),
        torch.ones(n, 2),
        torch.zeros((2, n)),
        torch.ones([n]),
        torch.full((n,), 2.5),
        torch.arange(n),
        torch.arange(1, 10, n),
        torch.linspace(0.0, 1.0, n),
        torch.eye(n),
        torch.empty(n, 0),
    ]


@program(args=lambda: (torch.ones(2, 3, dtype=torch.float64),))
def factories_like(x: torch.Tensor) -> List[torch.Tensor]:
    return [
        torch.zeros_like(x),
        torch.ones_like(x, dtype=torch.int64),
        torch.full_like(x, 4),
        x.new_zeros(2),
        x.new_ones((1, 2)),
        x.new_full((2,), 3.0),
        torch.empty_like(x).fill_(1),
    ]


@program(args=lambda: (2, 1.5))
def tensor_from_data(n: int, f: float) -> List[torch.Tensor]:
    return [
        torch.tensor(n),
        torch.tensor(f),
        torch.tensor([n, n + 1]),
        torch.tensor([[f, 1.0], [2.0, 3.0]]),
        torch.tensor([True, False]),
        torch.tensor([1, 2], dtype=torch.float32),
    ]


@program(args=lambda: ([1, 2, 3],))
def tensor_from_list_argument(xs: List[int]) -> torch.Tensor:
    return torch.tensor(xs, dtype=torch.float32) / 2


@program(args=lambda: (torch.ones(2, 3, 4),), torchscript=False)
def reads(x: torch.Tensor) -> Tuple[int, int, int, int, int, bool, torch.dtype, torch.device]:
    return (
        x.dim(),
        x.ndim,
        x.numel(),
        x.size(1),
        x.shape[-1],
        x.is_contiguous(),
        x.dtype,
        x.device,
    )


@program(args=lambda: (torch.ones(2, 3, 4, 5),))
def size_unpacking(x: torch.Tensor) -> torch.Tensor:
    b, c, h, w = x.shape
    return x.reshape(b, c * h, w).sum(-1)


@program(args=lambda: (torch.ones(2, 3),))
def size_as_list(x: torch.Tensor) -> Tuple[List[int], int, bool]:
    s = x.size()
    n = 1
    for d in s:
        n *= d
    return list(s), n, x.shape == torch.zeros(2, 3).shape


@program(args=lambda: (torch.ones(2, 3),))
def size_into_factory(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) + torch.ones(x.size(0), 1)


@program(args=lambda: (torch.ones(2, 3, 4),))
def size_slice(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(list(x.shape[:-1]) + [2, 2])


@program(args=lambda: (torch.arange(6.0),))
def shapes(x: torch.Tensor) -> List[torch.Tensor]:
    y = x.view(2, 3)
    return [
        y.t(),
        y.transpose(0, 1),
        y.permute(1, 0),
        y.unsqueeze(0),
        y.flatten(),
        y.reshape(-1, 2),
        y[None].squeeze(0),
        y.expand(2, 2, 3),
        y.T,
        y.repeat(1, 2),
    ]


@program(args=lambda: (torch.arange(6.0).reshape(2, 3),))
def reductions(x: torch.Tensor) -> List[torch.Tensor]:
    return [
        x.sum(),
        x.sum(0),
        x.mean(dim=1, keepdim=True),
        x.max(),
        x.max(dim=1)[0],
        x.argmax(dim=-1),
        x.prod(1),
        x.std(dim=1),
        x.var(unbiased=False),
        x.norm(),
        (x > 2).any(),
        x.cumsum(1),
        x.logsumexp(0),
        torch.amax(x, dim=[0, 1]),
    ]


@program(args=lambda: (torch.tensor([-1.0, 0.5, 2.0]),))
def elementwise(x: torch.Tensor) -> List[torch.Tensor]:
    return [
        x.abs(),
        -x,
        x.exp(),
        x.sigmoid(),
        torch.tanh(x),
        F.relu(x),
        x.clamp(min=0.0, max=1.0),
        x**2,
        2**x,
        1 / x,
        x // 2,
        x % 2,
        torch.where(x > 0, x, x * 0.1),
        x.round(),
        x.sign(),
    ]


@program(args=lambda: (torch.arange(4.0),))
def in_place_on_argument(x: torch.Tensor) -> torch.Tensor:
    x.add_(1).mul_(2)
    x -= 3
    x /= 2
    x.clamp_(min=0)
    return x


@program(args=lambda: (torch.zeros(3),))
def in_place_seen_by_alias(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    y = x
    y += 1
    z = y.clone()
    x.fill_(7)
    return y, z


@program(args=lambda: (torch.zeros(3),))
def not_in_place(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    y = x
    y = y + 1
    return x, y


@program(args=lambda: (torch.zeros(2, 3),))
def in_place_through_views(x: torch.Tensor) -> torch.Tensor:
    row = x[0]
    row.add_(1)
    flat = x.view(-1)
    flat[4] = 9
    x.t()[2] -= 5
    return x


@program(args=lambda: (torch.arange(6.0).reshape(2, 3),))
def view_sees_later_write(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    col = x[:, 1]
    before = col + 0
    x.mul_(10)
    return col, before


@program(args=lambda: (torch.arange(6.0),))
def chunk_views(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2)
    a.zero_()
    b.add_(a.sum() + 1)
    return x


@program(args=lambda: (torch.arange(6.0),))
def split_and_unbind(x: torch.Tensor) -> Tuple[torch.Tensor, int, torch.Tensor]:
    parts = torch.split(x, [1, 2, 3])
    rows = x.view(3, 2).unbind(0)
    return parts[2] * 2, len(rows), torch.stack(rows, dim=1)


@program(args=lambda: (torch.ones(2), torch.ones(2)))
def out_argument(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.add(x, 5, out=y)
    return y


@program(args=lambda: (torch.tensor(3.0), torch.tensor([4])))
def item_and_casts(x: torch.Tensor, y: torch.Tensor) -> Tuple[float, int, bool, float]:
    return x.item() + 1.0, int(y), bool(x > 2), float(y)


@program(args=lambda: (torch.ones(2, dtype=torch.int32),))
def promotion(x: torch.Tensor) -> List[torch.Tensor]:
    return [
        x + 1,
        x + 1.5,
        x * True,
        x / 2,
        x // 2,
        x + torch.ones(2, dtype=torch.float64),
        x + torch.tensor(2.5),
        x > 0,
        x.float() + torch.ones(2, dtype=torch.float16),
    ]


@program(args=lambda: (torch.tensor([1.7, -1.7]),), torchscript=False)
def casts(x: torch.Tensor) -> List[torch.Tensor]:
    return [
        x.int(),
        x.long(),
        x.double(),
        x.half(),
        x.bool(),
        x.to(torch.int8),
        x.to(dtype=torch.float64),
        x.type_as(torch.ones(1, dtype=torch.int64)),
        x.bfloat16().float(),
        x.to("cpu"),
    ]


@program(args=lambda: (torch.tensor([1, 2, 3]), torch.tensor([3, 2, 1])))
def tensor_operators(a: torch.Tensor, b: torch.Tensor) -> List[torch.Tensor]:
    return [a & b, a | b, a ^ b, ~a, a << 1, a >> 1, a == b, a != b, a <= b, 10 - a, 7 % a]


@program(args=lambda: (torch.ones(2, 3), torch.ones(3, 2)))
def matmul(a: torch.Tensor, b: torch.Tensor) -> List[torch.Tensor]:
    return [a @ b, torch.matmul(b, a), torch.mm(a, b), torch.einsum("ij,jk->ki", a, b)]


@program(args=lambda: (torch.ones(2, 2), torch.zeros(2, 2)))
def joining(a: torch.Tensor, b: torch.Tensor) -> List[torch.Tensor]:
    return [
        torch.cat([a, b]),
        torch.cat((a, b), dim=1),
        torch.stack([a, b], -1),
        torch.hstack([a, b]),
    ]


@program(args=lambda: (3,))
def random_with_seed(n: int) -> List[torch.Tensor]:
    torch.manual_seed(42)
    return [torch.rand(n), torch.randn(2, n), torch.randint(0, 10, (n,)), torch.randperm(n)]


@program(args=lambda: (torch.zeros(4),), torchscript=False)
def random_in_place(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)
    x.uniform_(-1, 1)
    return x + torch.rand_like(x) + torch.bernoulli(torch.full_like(x, 0.5))


@program(args=lambda: (torch.arange(12.0).reshape(3, 4),))
def gather_scatter(x: torch.Tensor) -> List[torch.Tensor]:
    i = torch.tensor([[0], [2], [1]])
    z = torch.zeros(3, 4)
    z.scatter_(1, i, 5.0)
    return [
        x.gather(1, i),
        z,
        x.index_select(0, torch.tensor([2, 0])),
        torch.zeros(3).index_add(0, torch.tensor([0, 0, 2]), torch.ones(3)),
        x.masked_fill(x > 5, -1.0),
        x.masked_select(x > 9),
    ]


@program(args=lambda: (torch.tensor([3.0, 1.0, 2.0]),))
def sorting(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    values, order = x.sort(descending=True)
    top, _ = torch.topk(x, 2)
    return values, order, top, x.argsort()


@program(args=lambda: (torch.arange(3.0),))
def tolist(x: torch.Tensor) -> List[float]:
    out: List[float] = x.tolist()
    return out


@program(args=lambda: (torch.tensor([[1, 0], [0, 1]]),))
def nonzero_and_unique(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, int]:
    nz = x.nonzero()
    return nz, torch.unique(x), len(nz)


@program(args=lambda: (torch.arange(3.0),))
def len_and_iteration(x: torch.Tensor) -> Tuple[int, float]:
    total = 0.0
    for v in x:
        total += float(v) * len(x)
    return len(x), total


@program(args=lambda: (torch.rand(2, 3, requires_grad=True),), grad=True)
def gradient_through_loop(x: torch.Tensor) -> torch.Tensor:
    h = x
    for i in range(3):
        if i % 2 == 0:
            h = torch.tanh(h) * 2
        else:
            h = h * x
    return h


@program(args=lambda: (torch.ones(3, requires_grad=True), torch.ones(3)), grad=True)
def gradient_of_branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if bool(y.sum() > 2):
        return (x * y).exp()
    return x


@program(args=lambda: (torch.ones(2, requires_grad=True),))
def detach_and_requires_grad(x: torch.Tensor) -> Tuple[bool, bool, bool]:
    y = x.detach()
    z = x * 2
    return x.requires_grad, y.requires_grad, z.requires_grad


@program(args=lambda: (torch.zeros(0, 3),))
def empty_tensors(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, int]:
    return x.sum(0), torch.cat([x, torch.ones(1, 3)]), x.numel()


@program(args=lambda: (torch.ones(2, 3), torch.ones(4)), raises=RuntimeError)
def shape_error(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


@program(args=lambda: (torch.arange(8.0).reshape(1, 2, 4),))
def functional(x: torch.Tensor) -> List[torch.Tensor]:
    return [
        F.softmax(x, dim=-1),
        F.log_softmax(x, dim=-1),
        F.gelu(x),
        F.pad(x, [1, 2]),
        F.layer_norm(x, [4]),
        F.leaky_relu(x - 4, 0.1),
        F.interpolate(x, scale_factor=2.0, mode="nearest"),
        F.avg_pool1d(x, 2),
        F.one_hot(x[0, 0].long(), 5),
        F.mse_loss(x, x + 1),
        F.normalize(x, dim=-1),
    ]


@program(args=lambda: (torch.tensor([1 + 2j, 3 - 1j]),))
def complex_tensors(z: torch.Tensor) -> List[torch.Tensor]:
    return [z * z, z.real, z.imag, z.abs(), torch.conj(z).clone() + 1j, torch.view_as_real(z)]


@program(args=lambda: (torch.ones(2),))
def scalar_mixed_into_tensor(x: torch.Tensor) -> torch.Tensor:
    n = x.sum()
    k = int(n)
    f = float(n) / 3
    return x * k + f - n


@program(args=lambda: (torch.ones(2), None))
def optional_mask(x: torch.Tensor, mask: Optional[torch.Tensor]) -> torch.Tensor:
    if mask is not None:
        x = x.masked_fill(mask, 0.0)
    return x.softmax(0)


@program(args=lambda: (torch.device("cpu"), torch.float64))
def device_and_dtype_values(d: torch.device, t: torch.dtype) -> Tuple[torch.Tensor, str, bool]:
    x = torch.zeros(2, device=d, dtype=t)
    return x, d.type, x.dtype == torch.float64


@program(args=lambda: (torch.ones(2, dtype=torch.float16),))
def dtype_branches(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float16 or x.dtype is torch.bfloat16:
        return x.float() + 1
    elif not x.is_floating_point():
        return x.float()
    return x


@program(args=lambda: (torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0]),))
def special_values(x: torch.Tensor) -> List[torch.Tensor]:
    return [x.isnan(), x.isinf(), torch.nan_to_num(x, 0.0, 5.0, -5.0), x == x, torch.isfinite(x)]


@program(args=lambda: (torch.tensor(5), torch.tensor(2)))
def zero_dim_arithmetic(a: torch.Tensor, b: torch.Tensor) -> List[torch.Tensor]:
    return [a + b, a / b, a // b, a % b, a**b, -a, abs(-a), a > b]


@program(args=lambda: (torch.arange(3.0), torch.arange(3.0)))
def keyword_arguments_of_torch(x: torch.Tensor, y: torch.Tensor) -> List[torch.Tensor]:
    return [
        torch.add(x, y, alpha=2),
        torch.sum(input=x, dim=0, keepdim=True),
        x.sub(other=y, alpha=3),
        torch.addcmul(x, x, y, value=0.5),
        torch.clamp(x, max=1),
        torch.div(x, 2, rounding_mode="floor"),
    ]


def gate(x: torch.Tensor, inplace: bool) -> torch.Tensor:
    return x.sigmoid_() if inplace else x.sigmoid()


@program(calls=lambda: [(torch.arange(3.0), True), (torch.arange(3.0), False)])
def in_place_in_one_side_of_a_ternary(x: torch.Tensor, inplace: bool) -> List[torch.Tensor]:
    y = x * 2
    z = y.add_(1) if inplace else y.mul(3)
    w = gate(y, inplace)
    return [x, y, z, w, y + w]


@program(calls=lambda: [(torch.arange(3.0), True), (torch.arange(3.0), False)])
def in_place_in_a_condition(x: torch.Tensor, c: bool) -> Tuple[torch.Tensor, bool]:
    y = x * 2
    ok = c and bool(y.add_(1).sum() > 0)
    return y, ok


@program(
    calls=lambda: [(torch.arange(3.0),), (torch.zeros(2),)],
    torchscript=False,
    raises=AssertionError,
)
def torch_assert(x: torch.Tensor) -> torch.Tensor:
    torch._assert(x.ndim == 1, f"{x.ndim} dims")
    torch._assert(x.sum() > 0, "nothing there")
    return x * 2


@program(args=lambda: (torch.arange(12.0).view(3, 4), torch.ones(2)), torchscript=False)
def data_of_another_tensor(x: torch.Tensor, y: torch.Tensor):
    total, shape = x.sum(), x.shape
    z = x.clone()
    row = z[0]
    z.data = y
    z.add_(1)
    x.data = y * 2
    return z, total, row * 2, shape, z.shape, z.sum(), x.shape[0], y


@program(args=lambda: (torch.arange(4.0),), torchscript=False)
def data_in_a_loop(x: torch.Tensor):
    for i in range(3):
        x.data = x.data * 2 + i
    return x * 1


@program(args=lambda: (torch.arange(4.0),), torchscript=False)
def gradient_and_parts_set(x: torch.Tensor):
    z = torch.complex(x, x)
    z.real = x * 3
    z.imag = 0 * x
    x.requires_grad = True
    (x * 2).sum().backward()
    before = x.grad
    x.grad = None
    return before, x.grad, x.requires_grad, z


@program(args=lambda: (torch.arange(4.0),), raises=TypeError, torchscript=False)
def data_that_is_no_tensor(x: torch.Tensor):
    x.data = 3
    return x


@program(
    args=lambda: (torch.arange(4.0, requires_grad=True), torch.tensor(float("nan"))),
    torchscript=False,
    grad=True,
)
def extremes_of_tensors(x: torch.Tensor, nan: torch.Tensor):
    most: Union[float, torch.Tensor] = 0.0
    for i in range(4):
        most = max(most, x[i] * 1.5)
    a, b = x.sum(), x.mean()
    return most, max(a, b, 2.0) * min(b, 7), max(nan, a), max(a, nan), max([b, a]), min((a, b))


@program(args=lambda: (torch.arange(4.0),), raises=RuntimeError, torchscript=False)
def extreme_of_long_tensors(x: torch.Tensor):
    return max(x, x * 2)


@program(
    calls=lambda: [(torch.tensor([3, 0]),), (torch.tensor([1.5]),)],
    raises=TypeError,
    torchscript=False,
)
def inverted(x: torch.Tensor) -> torch.Tensor:
    return ~x


@program(
    calls=lambda: [(torch.tensor([3, 0]),), (torch.tensor([1.5]),)],
    raises=NotImplementedError,
    torchscript=False,
)
def bitwise_not(x: torch.Tensor) -> torch.Tensor:
    return x.bitwise_not()
