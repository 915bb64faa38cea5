"""A random program: its inputs as recipes, its statements as source text.

    Program(
        inputs=(Input("x0", f32, ("N", 3), …),),
        lines=(Line("v0", "x0.abs()", …),),
        outputs=("v0",),
    )

is, as its user would write it,

    def program(x0):
        v0 = x0.abs()
        return (v0,)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

Dim = str | int  # the name of a size, or a constant
Sizes = Mapping[str, int]

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """`values`: "grid" (small multiples of 1/4, on which sums and products are exact), "normal",
    "index" (below the size `below`). `layout`: how it lies in memory. `salt`: how many of a
    thousand elements are NaN, an infinity or -0.0."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    values: str = "grid"
    layout: str = "contiguous"
    salt: int = 0
    below: Dim = 0
    negative: bool = False  # indices may count from the end

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)

    def make(self, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
        """The tensor at these sizes."""
        shape = self.shape(sizes)
        match self.layout:
            case "transposed":
                return self._filled(shape[::-1], sizes, generator).permute(
                    *reversed(range(len(shape)))
                )
            case "strided":
                wide = [2 * n + 1 for n in shape]
                return self._filled(wide, sizes, generator)[tuple(slice(1, None, 2) for _ in wide)]
            case "inner":
                wide = [*shape[:-1], shape[-1] + 3]
                return self._filled(wide, sizes, generator)[..., 1 : 1 + shape[-1]]
            case "expanded":
                row = self._filled((1, *shape[1:]), sizes, generator)
                return row.expand(shape)
            case _:
                return self._filled(shape, sizes, generator)

    def _filled(
        self, shape: tuple[int, ...] | list[int], sizes: Sizes, generator: torch.Generator
    ) -> torch.Tensor:
        dtype = DTYPES[self.dtype]
        if self.values == "index":
            top = sizes[self.below] if isinstance(self.below, str) else self.below
            low = -top if self.negative else 0
            high = max(top, low + 1)
            return torch.randint(low, high, tuple(shape), generator=generator).to(dtype)
        if self.dtype == "bool":
            return torch.randint(0, 2, tuple(shape), generator=generator).bool()
        if not dtype.is_floating_point:
            low = 0 if self.dtype == "u8" else -9
            return torch.randint(low, 10, tuple(shape), generator=generator).to(dtype)
        if self.values == "grid":
            x = torch.randint(-12, 13, tuple(shape), generator=generator).to(dtype) / 4
        else:
            x = torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)
        if self.salt and x.numel():
            self._salted(x, generator)
        return x

    def _salted(self, x: torch.Tensor, generator: torch.Generator) -> None:
        count = math.ceil(x.numel() * self.salt / 1000)
        at = torch.randint(0, x.numel(), (count,), generator=generator)
        kinds = torch.tensor([math.nan, math.inf, -math.inf, -0.0], dtype=x.dtype)
        x.view(-1)[at] = kinds[torch.randint(0, 4, (count,), generator=generator)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`targets = text`. `sharp`: operands that must be exact, since the result jumps with them.
    `inner`: rounds within, as sums do."""

    targets: tuple[str, ...]
    text: str
    uses: tuple[str, ...]
    sharp: tuple[str, ...] = ()
    inner: bool = False

    def __str__(self) -> str:
        return f"{', '.join(self.targets)} = {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`runs`: the sizes at which it is called, in order."""

    seed: int
    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    runs: tuple[Sizes, ...]

    @property
    def source(self) -> str:
        """The function as its user would write it."""
        names = ", ".join(i.name for i in self.inputs)
        body = "".join(f"    {line}\n" for line in self.lines)
        result = "".join(f"{name}, " for name in self.outputs)
        return (
            "import torch\nimport torch.nn.functional as F\n\n\n"
            f"def program({names}):\n{body}    return ({result})\n"
        )

    def arguments(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        """The inputs at these sizes, always the same ones."""
        generator = torch.Generator().manual_seed(self.seed)
        return {i.name: i.make(sizes, generator) for i in self.inputs}

    def __str__(self) -> str:
        inputs = "".join(f"# {i}\n" for i in self.inputs)
        runs = ", ".join(str(dict(r)) for r in self.runs)
        return f"# seed {self.seed}, runs {runs}\n{inputs}{self.source}"
