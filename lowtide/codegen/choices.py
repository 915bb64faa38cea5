"""The text of a driver where a matrix product has two ways: a kernel, or PyTorch's own.

In: a `Matmul`, the text of its kernel's launch. Out: lines that run the faster one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from lowtide.texpr.index import Index
from lowtide.tile.matmul import LEAST_POINTS, Matmul, Matrix

# A region that needs no gradients may be given tensors that require them: `x.detach() @ y`.
MATMUL: Final = torch.no_grad()(torch.matmul)


def choice_lines(name: str, m: Matmul, launch: str) -> list[str]:
    """PyTorch's matrix product or the kernel, whichever was faster at such sizes."""
    left, right, result = (
        f"{x.source}.as_strided(({_tuple(x.sizes)}), ({_tuple(x.strides)}), {x.offset}{base})"
        for x, base in ((m.left, _base(m.left)), (m.right, _base(m.right)), (m.result, ""))
    )
    sizes = _tuple(dict.fromkeys((*m.left.sizes, m.right.sizes[-1])))
    return [
        f"    if {m.points} < {LEAST_POINTS}:",
        f"        {launch}",
        "    else:",
        f"        choice_{name}.run(({sizes}), {m.left.source}.device, lambda: {launch},",
        f"            lambda: matmul({left}, {right}, out={result}))",
    ]


def _base(x: Matrix) -> str:
    return f" + {x.source}.storage_offset()"


def _tuple(sizes: Iterable[Index]) -> str:
    return "".join(f"{size}, " for size in sizes)
