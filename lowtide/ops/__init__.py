"""One record per operation: names, operands, eager meaning, lowering into tensor expressions.

Importing this package registers every family; see `registry` for the way in.
Left to PyTorch on purpose, with no record: random ops, sort and topk, cumulative ops, scatters,
convolutions and pooling, masks as indices, linear algebra beyond products, `item`.
"""

from lowtide.ops import (
    activations,
    arithmetic,
    attention,
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
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
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
]
