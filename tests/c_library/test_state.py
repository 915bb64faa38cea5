"""What a program changes of its module is a state that the caller keeps: called step by step, C
gives what the module gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from tests.c_library.calling import BAD_INDEX, NULL, OK, Library, sanitized


class Denoiser(nn.Module):
    """A GRU over frames, one frame a call."""

    h: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(8, 16), nn.Linear(16, 8)
        self.register_buffer("h", torch.zeros(1, 16))

    def forward(self, frame: Tensor) -> Tensor:
        self.h = self.cell(frame, self.h)
        return frame * torch.sigmoid(self.out(self.h))


class Cache(nn.Module):
    """Attention over the tokens so far, one token a call."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(2, 40, 8))
        self.register_buffer("values", torch.zeros(2, 40, 8))
        self.pos = 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(3, 2, 8).unbind(0)
        self.keys[:, self.pos] = k
        self.values[:, self.pos] = v
        self.pos += 1
        scores = (self.keys @ q[:, :, None]).squeeze(2) / 8**0.5
        weights = scores.masked_fill(torch.arange(40) >= self.pos, -torch.inf).softmax(-1)
        return (weights[:, None] @ self.values).reshape(16)


class Average(nn.Module):
    """In place, with a count, a float and a flag; another method reads what is kept."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(6))
        self.count, self.decay, self.is_new = 3, 1.0, True

    def forward(self, x: Tensor) -> Tensor:
        self.total.mul_(0.5).add_(x)
        self.count += 1
        self.decay = self.decay * 0.5
        if self.is_new and float(x.sum()) > 0:
            self.is_new = False
            self.total[2:4] = 0.0
        return self.total / self.count

    @lt.export
    def now(self, x: Tensor) -> tuple[Tensor, int, float, bool]:
        return self.total + x, self.count, self.decay, self.is_new


def frames(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(n, generator=generator) for _ in range(9)]


class Copied(nn.Module):
    """A cache as transformers write it: by index_copy_, at a place that is a tensor."""

    keys: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 12, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.index_copy_(1, self.place, x.view(2, 1, 4))
        self.place.add_(1)
        hidden = torch.arange(12) >= self.place
        scores = (self.keys @ x.view(2, 4, 1)).squeeze(2).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1)[:, None] @ self.keys).view(8)


MODELS: dict[str, tuple[Callable[[], nn.Module], list[Tensor]]] = {
    "denoiser": (Denoiser, [x[None] for x in frames(8)]),
    "cache": (Cache, frames(16)),
    "average": (Average, frames(6)),
    "copied": (Copied, frames(8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_steps(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make().eval()
    compiled = lt.script(model)
    lt.export_c(compiled, tmp_path, (inputs[0],))
    assert "largest difference" in sanitized(tmp_path)
    library = Library(tmp_path)
    assert library.start(1 << 14) == OK
    with torch.no_grad():
        for x in inputs:
            expected = model(x).contiguous()
            out = torch.zeros_like(expected)
            assert library("forward", (), (x,), [out]) == OK
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_the_example_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    model = Average().eval()
    lt.export_c(lt.script(model), tmp_path, (torch.rand(6),))
    assert (model.count, model.decay, model.is_new) == (3, 1.0, True)
    assert torch.equal(model.total, torch.ones(6))


def test_methods_share_the_state(tmp_path: Path) -> None:
    model = Average().eval()
    x = torch.rand(6)
    lt.export_c(lt.script(model), tmp_path, {"now": (x,), "forward": (x,)})
    library = Library(tmp_path)
    library.start(1 << 10)
    kinds = (torch.int64, torch.float64, torch.bool)
    for y in (x, -x, x * 2):
        expected, out = model(y), torch.zeros(6)
        assert library("forward", (), (y,), [out]) == OK
        torch.testing.assert_close(out, expected)
        total, *numbers = model.now(y)
        got = [torch.zeros(6), *(torch.zeros(1, dtype=kind) for kind in kinds)]
        assert library("now", (), (y,), got) == OK
        torch.testing.assert_close(got[0], total)
        assert [e.item() for e in got[1:]] == numbers


def test_a_cache_that_is_full_and_no_state(tmp_path: Path) -> None:
    lt.export_c(lt.script(Cache().eval()), tmp_path, (torch.rand(16),))
    library, x, out = Library(tmp_path), torch.rand(16), torch.zeros(16)
    library.start(1 << 14)
    for _ in range(40):
        assert library("forward", (), (x,), [out]) == OK
    assert library("forward", (), (x,), [out]) == BAD_INDEX
    library.state = None
    assert library.c.model_state_init(None, None) == NULL


class Grown(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


class Noted(nn.Module):
    def forward(self, x: Tensor, into: Tensor) -> Tensor:
        into.add_(x)
        return x * 2


class Added(nn.Module):
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.place += 1
        return x * self.place


@pytest.mark.parametrize(
    ("make", "args", "words"),
    [
        (Added, (torch.rand(4),), "write `a = a \\+ b`"),
        (Grown, (torch.rand(1, 4),), "changes the size of an attribute; preallocate"),
        (Noted, (torch.rand(4), torch.rand(4)), "writes into a tensor that it is given"),
    ],
)
def test_what_is_refused(make: Any, args: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(lt.ExportError, match=words):
        lt.export_c(lt.script(make()), tmp_path / "out", args)
