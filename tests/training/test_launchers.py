"""Compiled blocks under torchrun, Accelerate and Lightning: two processes on the CPU.

The two packages are no dependency of the tests; with them, `./dev test full` runs these."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
HEAD = """
import torch, lowtide as lt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def block():
    return lt.script(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)))

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=4)
"""
PLAIN = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = DistributedDataParallel(nn.Sequential(block(), nn.Linear(16, 1)))
rank = dist.get_rank()
((net(torch.full((4, 8), 1.0 + rank))) ** 2).mean().backward()
mine = torch.cat([p.grad.flatten() for p in net.parameters()])
both = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(both, mine)
assert torch.equal(both[0], both[1]) and mine.abs().sum() > 0
print("equal")
dist.destroy_process_group()
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = nn.Sequential(block(), nn.Linear(16, 1))
net, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), data)
for x, y in data:
    loss = ((net(x) - y) ** 2).mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
found = accelerator.gather(torch.cat([p.detach().flatten() for p in net.parameters()])[None])
assert len(found) == 2 and torch.equal(found[0], found[1])
assert "0.0.weight" in accelerator.unwrap_model(net).state_dict()
print("equal")
"""
LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.block, self.out = block(), nn.Linear(16, 1)

    def training_step(self, batch, index):
        x, y = batch
        return ((self.out(self.block(x)) - y) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=".",
    )
    trainer.fit(model, data)
    trainer.save_checkpoint("model.ckpt")
    again = Model.load_from_checkpoint("model.ckpt")
    assert torch.equal(again.out.bias, model.out.bias)
    print("equal")
"""


def run(folder: Path, text: str, *launcher: str) -> str:
    script = folder / "train.py"
    script.write_text(HEAD + text)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *launcher, str(script)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_torchrun(tmp_path: Path) -> None:
    assert run(tmp_path, PLAIN, *TORCHRUN).count("equal") == 2


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="no accelerate")
def test_accelerate(tmp_path: Path) -> None:
    assert run(tmp_path, ACCELERATE, *TORCHRUN).count("equal") == 2


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="no lightning")
def test_lightning(tmp_path: Path) -> None:
    assert run(tmp_path, LIGHTNING).count("equal") == 2
