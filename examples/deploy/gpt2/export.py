"""Writes a GPT-2-shaped model that takes one token a call as C: `python export.py FOLDER`.

The cache of keys and values is state of the library."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import lowtide as lt

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 96, 32, 4, 2, 64


class Block(nn.Module):
    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(HEADS, LENGTH, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(HEADS, LENGTH, WIDTH // HEADS))

    def forward(self, x: Tensor, pos: int) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(3, HEADS, WIDTH // HEADS).unbind(0)
        self.keys[:, pos] = k
        self.values[:, pos] = v
        scores = (self.keys @ q[:, :, None]).squeeze(2) / (WIDTH // HEADS) ** 0.5
        weights = scores.masked_fill(torch.arange(LENGTH) > pos, -torch.inf).softmax(-1)
        x = x + self.out((weights[:, None] @ self.values).reshape(WIDTH))
        y = nn.functional.gelu(self.wide(self.norm2(x)), approximate="tanh")
        return x + self.back(y)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.pos = 0

    def forward(self, token: Tensor) -> Tensor:
        """token: an int64 of no dims. Returns the most likely next one."""
        x = self.words(token) + self.places.weight[self.pos]
        for block in self.blocks:
            x = block(x, self.pos)
        self.pos += 1
        return (self.words.weight @ self.norm(x)).argmax()


def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


if __name__ == "__main__":
    print(
        lt.export_c(lt.script(model()), sys.argv[1], (torch.tensor(1),), name="gpt", weights="file")
    )
