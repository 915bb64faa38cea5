"""The callables that are measured for one program.

In: a `Program`. Out: names, and for a name a function of the program's inputs. Frameworks are
imported when one of their variants is made, so that a process holds no more than it measures.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from lowtide.tools.programs import Program

EAGER, COMPILE, JAX, LOWTIDE = "eager", "torch.compile", "jax", "lowtide"

# What PyTorch itself offers for the same thing, written by hand for the machine.
PEERS: dict[str, tuple[str, Callable[..., object]]] = {
    "attention": ("sdpa", F.scaled_dot_product_attention),
    "matmul": ("torch.mm", torch.mm),
    "gaussian": ("cdist", lambda x, y, b: torch.exp(-(torch.cdist(x, y) ** 2)) @ b),
    "layer_norm": ("F.layer_norm", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)),
}

# How each was run; part of every report.
HOW = {
    EAGER: "plain call",
    COMPILE: "torch.compile(f, dynamic=False), default mode, warm",
    JAX: "jax.jit on the CPU, warm, block_until_ready, default threads",
    LOWTIDE: "lowtide.script(f), warm",
}


def variant_names(program: Program, device: str = "cpu") -> list[str]:
    """The variants that this installation can run, eager first; JAX's is that for the CPU."""
    names = [EAGER, COMPILE]
    if device == "cpu" and importlib.util.find_spec("jax") is not None:
        from benchmarks.jax_programs import JAX_PROGRAMS

        names += [JAX] if program.name in JAX_PROGRAMS else []
    if program.name in PEERS:
        names.append(PEERS[program.name][0])
    return [*names, LOWTIDE]


def make_variant(program: Program, name: str) -> Callable[..., object]:
    """The function of that name, compiled lazily at its first call. Takes torch tensors."""
    if name == EAGER:
        return program.function
    if name == COMPILE:
        torch._dynamo.config.recompile_limit = 64
        return torch.compile(program.function, dynamic=False)
    if name == LOWTIDE:
        import lowtide as lt

        compiled: Any = lt.script(program.function)
        return compiled
    if name == JAX:
        from benchmarks.jax_programs import jitted

        return jitted(program.name)
    return PEERS[program.name][1]


def prepare(name: str, args: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """The arguments as the variant wants them: JAX's arrays for JAX, tensors for all others."""
    if name != JAX:
        return args
    import jax.numpy as jnp

    return tuple(jnp.asarray(arg.numpy()) for arg in args)
