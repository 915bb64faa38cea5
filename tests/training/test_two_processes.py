"""Training by two processes over gloo: compiled blocks in DDP, FSDP2 and torch.compile's DDP give
the gradients of one process."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lowtide as lt

pytestmark = [pytest.mark.long, pytest.mark.slow]
WORLD = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)
        self.unused = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def wide() -> nn.Sequential:
    """A net of several of DDP's buckets."""
    torch.manual_seed(0)
    pairs = ((nn.Linear(n, 512), nn.Tanh()) for n in (16, 512, 512, 512))
    return nn.Sequential(*(m for pair in pairs for m in pair), nn.Linear(512, 4))


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, 16), torch.randn(8, 4)


def one_process(net: nn.Module) -> dict[str, Tensor]:
    x, y = data()
    (net(x) - y).square().mean().backward()
    return {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


def compiled_blocks(net: Net) -> Net:
    """Compile per block, so that each block's gradients are there before those of the one before
    it are computed."""
    for k, block in enumerate(net.blocks):
        net.blocks[k] = lt.script(block)
    return net


def check(net: nn.Module, rank: int, plain: Callable[[], nn.Module] = made) -> None:
    """Compare the gradients of this process's half of the batch, averaged, with those of one."""
    x, y = (t.chunk(WORLD)[rank] for t in data())
    (net(x) - y).square().mean().backward()
    for name, expected in one_process(plain()).items():
        parameters = dict(net.named_parameters())
        found = next(p.grad for n, p in parameters.items() if n.endswith(name))
        assert found is not None, name
        whole = found.full_tensor() if hasattr(found, "full_tensor") else found
        torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-6)


def ddp(rank: int, folder: Path) -> None:
    net = DistributedDataParallel(compiled_blocks(made()), find_unused_parameters=True)
    check(net, rank)


def ddp_views(rank: int, folder: Path) -> None:
    net = compiled_blocks(made())
    net.unused.requires_grad_(False)
    wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    for _ in range(2):
        wrapped.zero_grad(set_to_none=False)
        check(wrapped, rank)


def ddp_whole(rank: int, folder: Path) -> None:
    """DDP around a module that is compiled as a whole."""
    net = made()
    del net.unused
    check(DistributedDataParallel(lt.script(net)), rank)


def ddp_split_graphs(rank: int, folder: Path) -> None:
    """torch.compile around DDP splits graphs at its buckets."""
    check(lt.compile(DistributedDataParallel(wide(), bucket_cap_mb=1)), rank, wide)


def fsdp(rank: int, folder: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    net = made()
    net.unused.requires_grad_(False)
    for block in net.blocks:
        block.compile(backend="lowtide")
        fully_shard(block)
    fully_shard(net)
    check(net, rank)


def checkpoint(rank: int, folder: Path) -> None:
    """A checkpoint of compiled blocks loads into the plain module."""
    net = DistributedDataParallel(compiled_blocks(made()), find_unused_parameters=True)
    if rank == 0:
        torch.save(net.module.state_dict(), folder / "net.pt")
    dist.barrier()
    plain = made()
    with torch.no_grad():
        for p in plain.parameters():
            p.zero_()
    plain.load_state_dict(torch.load(folder / "net.pt"))
    x, _ = data()
    torch.testing.assert_close(plain(x), net(x))


def _process(rank: int, port: int, f: Callable[..., Any], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD
    )
    try:
        f(rank, folder)
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("f", [ddp, ddp_views, ddp_whole, ddp_split_graphs, fsdp, checkpoint])
def test_gradients_are_those_of_one_process(f: Callable[..., Any], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_process, (port, f, tmp_path), nprocs=WORLD)
