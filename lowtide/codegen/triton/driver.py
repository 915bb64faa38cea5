"""The driver of a program on a GPU: Python source that allocates and launches, nothing else.

def run(tensors, sizes, numbers):
    x, y, = tensors
    N, M, = sizes
    t3 = empty((N, M), dtype=torch.float32, device=x.device)
    launch_k0(programs, reach, x, y, t3, N, M, W_c=power(C))
    return [t3]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowtide.codegen.choices import choice_lines
from lowtide.codegen.drivers import dies, opening
from lowtide.codegen.triton.kernel import BlockText
from lowtide.texpr.expr import Def, Program
from lowtide.tile.ir import Kernel
from lowtide.tile.matmul import Matmul


def driver_text(
    program: Program,
    shaped: Mapping[str, Def],
    inputs: Sequence[str],
    symbols: Sequence[str],
    scalars: Sequence[str],
    texts: Sequence[BlockText],
    kernels: Sequence[Kernel],
    products: Mapping[str, Matmul],
) -> str:
    """Python source of `run(tensors, sizes, numbers) -> list[Tensor]`. `shaped`: each definition
    with the dims that its tensor has."""
    lines = opening(inputs, symbols, scalars)
    lines.append(f"    device = {inputs[0]}.device" if inputs else "    device = home")
    for k, (text, kernel) in enumerate(zip(texts, kernels, strict=True)):
        for name in kernel.outputs:
            d = shaped[name]
            shape = "".join(f"{size}," for size in d.shape)
            kind = f"dtype={d.dtype.torch}, device=device"
            lines.append(f"    {name} = empty(({shape}), {kind})")
        given = [*text.tensors, *text.sizes, *text.numbers]
        given += [f"{w}=power({extent})" for w, extent in text.widths.items()]
        head = [str(text.programs), f"max([{', '.join(map(str, (0, *text.reach)))}])"]
        launch = f"launch_{text.name}({', '.join([*head, *given])})"
        lines.extend(choice_lines(text.name, products[text.name], launch) if text.name in products
                     else [f"    {launch}"])  # fmt: skip
        dead = [n for n in text.tensors if n in program.defs and dies(n, k, texts, program)]
        if dead:
            lines.append(f"    del {', '.join(dead)}")
    lines.append(f"    return [{', '.join([*program.results, *program.checks])}]")
    return "\n".join(lines) + "\n"
