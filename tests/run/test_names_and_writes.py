"""A write is seen by every name of the memory, and carries gradients by none that is detached."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from lowtide.ir.core import print_function
from lowtide.ir.parser import parse_function
from lowtide.passes.private_writes import make_private_writes_plain
from tests.run.names_and_writes import MODES, agree

NAMES = {
    "detached": ["a.detach()", "a.detach()[0]", "a[0].detach()", "a.detach().view(-1)[1:]"],
    "views": ["a[0]", "a.view(-1)", "a.t()", "a[:, 1:]", "a.unsqueeze(0).expand(2, 2, 3)"],
    "perhaps views": ["a.reshape(-1)", "a.contiguous()", "a.to(torch.float32)", "a.float()[1]"],
    "copies": ["a.clone()", "a + 0", "a.detach().clone()", "a.double()"],
}
WRITES = [
    "a.mul_(3)", "a += x", "a[0] = x[1]", "a[:, 0] *= 2", "a.zero_()", "a[:] = 1.0",
    "a.copy_(x.exp())", "F.relu(a, inplace=True)", "a.t().add_(1)", "a.detach().mul_(2)",
    "a[a > 0] = 0.5", "a.view(-1)[2:].clamp_(-1, 1)",
]  # fmt: skip
UNDER = {"": "", "no_grad": "with torch.no_grad():", "if": "if x.sum() > -100:"}


def written(source: str, name: str) -> Callable[..., Any]:
    """The function of a source, which compilers can read."""
    file, space = f"<{name}>", {"torch": torch, "F": F}
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), space)
    return space["program"]


def program(names: list[str], write: str, under: str) -> str:
    lines = ["a = x * 2", *(f"v{k} = {name}" for k, name in enumerate(names))]
    lines += [under, f"    {write}"] if under else [write]
    parts = [f"v{k} * {'x' if names is NAMES['detached'] and k == 0 else 2}"
             for k in range(len(names))]  # fmt: skip
    lines.append(f"return {', '.join(parts)}, a * 1")
    return "\n".join(["def program(x):", *(f"    {line}" for line in lines)])


def one_of_two(x: Tensor) -> Tensor:
    y = x * 1
    first, _ = y.unbind()
    first.mul_(2)
    return y


def beside_two(x: Tensor) -> Tensor:
    y = x * 1
    first, _ = y.chunk(2)
    y.mul_(2)
    return first * 2


@pytest.mark.parametrize("write", [
    "z.add_(1)", "z[x > 0] = 1.0", "z[x[:, 0] > 0] = 1.0", "z.masked_fill_(x > 0, 2.0)",
    "z[:, 0] = 3.0", "z.fill_diagonal_(4.0)", "z.triu_(1)", "z.tril_(diagonal=-1)",
    "z[torch.arange(2), torch.arange(2)] = 5.0",
    "z.scatter_(1, torch.arange(2)[:, None], 6.0)", "z.zero_()",
])  # fmt: skip
def test_an_expanded_tensor_is_one_memory(write: str) -> None:
    """Its elements change together, or PyTorch refuses."""
    lines = ["def program(x):", "z = torch.ones(3).expand(2, 3)", write, "return z + x"]
    program = written("\n    ".join(lines), f"expanded {write}")
    agree(program, lambda: (values(2, 3, grad=False),), "script")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [one_of_two, beside_two])
def test_one_of_several_views(fn: Callable[..., Any], grad: bool) -> None:
    agree(fn, lambda: (values(2, 3, grad=grad),), "script")


def values(*shape: int, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


CELLS = [
    (kind, write, list(UNDER)[(k + j) % 3], mode)
    for k, write in enumerate(WRITES)
    for j, kind in enumerate(NAMES)
    for m, mode in enumerate(MODES)
    if j == 0 or (j + k) % 3 == m  # what is detached in each mode, the rest in turns
]


@pytest.mark.parametrize(("kind", "write", "under", "mode"), CELLS)
def test_names_of_what_is_written(kind: str, write: str, under: str, mode: str) -> None:
    if mode == "trace" and under == "if":
        under = ""  # which branch is taken is frozen
    f = written(program(NAMES[kind], write, UNDER[under]), f"{kind} {write} {under}")
    agree(f, lambda: (values(2, 3),), mode)


def two_in_turn(x):
    a = x * 2
    b = F.relu(a, inplace=True)
    F.hardtanh(a, -0.5, 0.5, inplace=True)
    return b * 1


def in_a_list(x):
    a = x * 2
    both = [a, x]
    F.relu(a, inplace=True)
    return both[0] * 1, a


def in_a_branch(x):
    a = x * 2
    if x.shape[0] > 1:
        F.silu(a, inplace=True)
    return a * 1


def under_no_grad(x):
    a = x * 2
    with torch.no_grad():
        F.relu(a, inplace=True)
    return a * x


def switched_off(x):
    a = x * 2
    torch.set_grad_enabled(False)
    F.relu(a, inplace=True)
    torch.set_grad_enabled(True)
    return a * 1


def under_autocast(x):
    a = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        F.relu(a, inplace=True)
    return a * x


def in_a_checkpoint(x):
    def part(a):
        b = a * 2
        c = F.relu(b, inplace=True)
        F.hardtanh(b, -0.5, 0.5, inplace=True)
        return c * 1

    return checkpoint(part, x, use_reentrant=False)


def carried_detached(x):
    a = x * 2
    old = a.detach()
    for _ in range(4):
        old = a.detach()
        a += x
        a = a * old
    return a, old


def written_by_rows(x):
    y = x * 2
    for k in range(2):
        y[k] = 0.0
    return y


def copies_that_leave(x):
    y = x * 2
    z = y + 1
    return y, y.clone(), F.softmax(x, 1), z.clone(), z, x.detach()


def wants_a_gradient(x):
    return torch.eye(3, requires_grad=True), torch.eye(3) * 2


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act, self.conv, self.norm = nn.ReLU(True), nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3)

    def forward(self, x):
        h = self.conv(x[None].transpose(1, 2))
        y = self.norm(self.conv(self.act(h)))
        y += h
        return self.act(y)


PROGRAMS = [
    two_in_turn, in_a_list, in_a_branch, under_no_grad, switched_off, under_autocast,
    in_a_checkpoint, carried_detached, written_by_rows, copies_that_leave, wants_a_gradient,
    Residual(),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: getattr(f, "__name__", "residual"))
def test_programs(f: Any, mode: str) -> None:
    if mode == "script" and f is switched_off:
        pytest.skip("a call that is no `with` is refused")
    agree(f, lambda: (values(2, 3),), mode)


@pytest.mark.parametrize("mode", MODES)
def test_an_embedding_scales_its_weight(mode: str) -> None:
    def looked_up(i, w):
        y = F.embedding(i, w, max_norm=1.0)
        return y, i.sum(1), i + 1, i != 3, w * 2

    indices = torch.tensor([[0, 1, 2], [4, 3, 1]])
    agree(looked_up, lambda: (indices.clone(), values(5, 3, grad=False)), mode)


def rewritten(text: str) -> str:
    return print_function(make_private_writes_plain(parse_function(text)), locs=False)


PRIVATE = """
def f(%x: Tensor, %w: Tensor) -> Tensor:
  %y: Tensor = call_torch(%x, %w) {target="F.conv2d", kwnames=()}
  %true: bool = const {value=True}
  %s: Tensor = torch.sin(%y)
  %z: Tensor = mutate(%y, %true) {target="F.relu", kwnames=("inplace",)}
  %a: Tensor = torch.mul(%y, %s)
  return(%a)
"""


def test_a_private_write_is_plain() -> None:
    text = rewritten(PRIVATE)
    assert "mutate" not in text
    assert "torch.relu" in text
    line = next(x for x in text.splitlines() if "torch.mul" in x)
    relu = next(x for x in text.splitlines() if "torch.relu" in x)
    assert relu.split(":")[0].strip() in line  # of what was written


@pytest.mark.parametrize(
    "line",
    [
        "%s: Tensor = torch.detach(%y)",
        "%s: Tensor = torch.contiguous(%y, %m)",
        "%s: Tensor = call_torch(%y) {target='F.interpolate', kwnames=()}",
        "%s: Tensor = mutate(%y, %x) {target='Tensor.add_', kwnames=()}",
    ],
)
def test_a_write_that_another_name_sees_stays(line: str) -> None:
    more = '%m: Any = call_torch() {target="torch.default_generator", kwnames=()}'
    text = PRIVATE.replace("%s: Tensor = torch.sin(%y)", f"{more}\n  {line}")
    assert "F.relu" in rewritten(text)


def test_a_convolution_and_its_activation_are_one_region() -> None:
    @lt.script
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.conv1d(x, w), inplace=True) * 2

    steps = layer.explain(values(1, 3, 5), values(2, 3, 1))
    assert len(steps.kernels) == 1
    assert "relu" in str(steps)
