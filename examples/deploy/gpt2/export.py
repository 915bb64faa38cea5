"""Writes a GPT-2-shaped model that takes one token a call as C: `python export.py FOLDER`.

The cache of keys and values is state of the library."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import lowtide as lt


class Block(nn.Module):
    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("keys", torch.zeros(heads, length, width // heads))
        self.register_buffer("values", torch.zeros(heads, length, width // heads))

    def forward(self, x: Tensor, pos: int) -> Tensor:
        heads, length, size = self.keys.shape
        q, k, v = self.qkv(self.norm1(x)).view(3, heads, size).unbind(0)
        self.keys[:, pos] = k
        self.values[:, pos] = v
        scores = (self.keys @ q[:, :, None]).squeeze(2) / size**0.5
        weights = scores.masked_fill(torch.arange(length) > pos, -torch.inf).softmax(-1)
        x = x + self.out((weights[:, None] @ self.values).reshape(heads * size))
        y = nn.functional.gelu(self.wide(self.norm2(x)), approximate="tanh")
        return x + self.back(y)


class Model(nn.Module):
    def __init__(
        self, words: int = 96, width: int = 32, heads: int = 4, layers: int = 2, length: int = 64
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, length) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.pos = 0

    def scores(self, token: Tensor) -> Tensor:
        """Return how likely each word is the next one."""
        x = self.words(token) + self.places.weight[self.pos]
        for block in self.blocks:
            x = block(x, self.pos)
        self.pos += 1
        return self.words.weight @ self.norm(x)

    def forward(self, token: Tensor) -> Tensor:
        """token: an int64 of no dims. Returns the most likely next one."""
        return self.scores(token).argmax()


def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


if __name__ == "__main__":
    print(
        lt.export_c(lt.script(model()), sys.argv[1], (torch.tensor(1),), name="gpt", weights="file")
    )
