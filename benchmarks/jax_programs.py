"""The programs once more, in JAX, for the comparison. Compiled by `jax.jit` for the CPU.

In: names of `lowtide.tools.programs`. Out: functions of JAX arrays that return after the work is
done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")


def _boxes(boxes1: Any, boxes2: Any) -> Any:
    x_min1, y_min1, x_max1, y_max1 = jnp.split(boxes1, 4, axis=1)
    x_min2, y_min2, x_max2, y_max2 = jnp.split(boxes2, 4, axis=1)
    heights = jnp.minimum(y_max1, y_max2.T) - jnp.maximum(y_min1, y_min2.T)
    widths = jnp.minimum(x_max1, x_max2.T) - jnp.maximum(x_min1, x_min2.T)
    return jnp.maximum(heights, 0) * jnp.maximum(widths, 0)


def _similarity(x: Any, y: Any) -> Any:
    return (jnp.abs(x[:, :, None] - y[:, None, :]) < 1).sum(axis=0)


def _pair_distance(a: Any, b: Any) -> Any:
    return ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)


def _chamfer(a: Any, b: Any) -> Any:
    d = _pair_distance(a, b)
    return d.min(1), d.min(0)


def _gaussian(x: Any, y: Any, b: Any) -> Any:
    return jnp.exp(-_pair_distance(x, y)) @ b


def _nearest_centre(x: Any, centres: Any) -> Any:
    return _pair_distance(x, centres).argmin(1)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])
    return jax.nn.softmax(scores, axis=-1) @ v


def _linear_cross_entropy(x: Any, weight: Any, target: Any) -> Any:
    logits = x @ weight.T
    chosen = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - chosen).mean()


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


JAX_PROGRAMS: dict[str, Callable[..., Any]] = {
    "boxes": _boxes,
    "similarity": _similarity,
    "chamfer": _chamfer,
    "gaussian": _gaussian,
    "nearest_centre": _nearest_centre,
    "attention": _attention,
    "linear_cross_entropy": _linear_cross_entropy,
    "layer_norm": _layer_norm,
    "matmul": _matmul,
}


def jitted(name: str) -> Callable[..., Any]:
    """The JAX program of that name, which waits for its result."""
    compiled = jax.jit(JAX_PROGRAMS[name])
    return lambda *args: jax.block_until_ready(compiled(*args))
