"""A module as people saved them with torch.jit.save: state, an exported method, shared parts."""

# torch.jit reads the annotations of classes, which may not be text.
import io
import warnings
from typing import Dict, List, Optional  # noqa: UP035

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.fc(x)))


class Net(nn.Module):
    steps: int
    seen: List[int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.out = nn.Linear(6, 2)
        self.tied = self.out
        self.register_buffer("state", torch.zeros(2))
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.steps = 0
        self.scale = 0.5
        self.seen = []
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, k: int = 1) -> Tensor:
        self.steps += k
        self.seen.append(x.size(0))
        y = self.out(self.encoder(x)) * self.scale * self.mask
        if self.training:
            y = self.drop(y)
        self.state += y.detach().mean(0)
        return y

    @torch.jit.export
    def reset_states(self) -> None:
        self.state.zero_()
        self.steps = 0

    @torch.jit.export
    def info(self, more: Optional[int] = None) -> Dict[str, int]:  # noqa: UP006, UP045
        return {"steps": self.steps, "more": -1 if more is None else more}


class Headless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    @torch.jit.export
    def twice(self, x: Tensor) -> Tensor:
        return x * self.w * 2


def quietly(fn, *args):
    """Call torch.jit without its warning that it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return fn(*args)


def scripted(net: nn.Module | None = None) -> torch.jit.ScriptModule:
    """Return what torch.jit makes of a module, by default of a Net of seeded weights."""
    torch.manual_seed(0)
    return quietly(torch.jit.script, Net() if net is None else net)


def archive(net: nn.Module | None = None, **extra: str) -> bytes:
    """Return the file that torch.jit.save writes."""
    file = io.BytesIO()
    quietly(torch.jit.save, scripted(net), file, extra)
    return file.getvalue()


def loaded_by_torch(raw: bytes) -> torch.jit.ScriptModule:
    """Return what torch.jit.load makes of a file."""
    return quietly(torch.jit.load, io.BytesIO(raw))


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
