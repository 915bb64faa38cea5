"""One record per operation: names, operands, eager meaning, lowering into tensor expressions.

Importing this package registers every family; see `registry` for the way in.
Left to PyTorch on purpose, with no record: random ops, sort and topk, cumulative ops, scatters
that do not add, convolutions and pooling, masks as indices, linear algebra beyond products, `item`.
"""

from lowtide.ops import (
    activations,
    additions,
    arithmetic,
    attention,
    cells,
    comparison,
    contractions,
    conversions,
    einsum,
    extremes,
    factories,
    gathers,
    indexing,
    joins,
    losses,
    moments,
    normalisation,
    norms,
    rearrange,
    reductions,
    shapes,
    slicing,
    ternary,
    unary,
    views,
    windows,
)

__all__ = [
    "activations",
    "additions",
    "arithmetic",
    "attention",
    "cells",
    "comparison",
    "contractions",
    "conversions",
    "einsum",
    "extremes",
    "factories",
    "gathers",
    "indexing",
    "joins",
    "losses",
    "moments",
    "normalisation",
    "norms",
    "rearrange",
    "reductions",
    "shapes",
    "slicing",
    "ternary",
    "unary",
    "views",
    "windows",
]
