"""Records of a region, grouped by what decides their fields.

RegionOps       the ops and the values around them: decided when the block is planned
Aliasing        what the Function writes, lends and returns
RegionContext   where it runs, and its names
Signatures      what calls have shown: the levels of sizes, the specialisations
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lowtide.execute.backend import Tiles
from lowtide.execute.differences import Facts
from lowtide.execute.specialisations import Node
from lowtide.ir.aliases import Statistics
from lowtide.ir.core import Block, Op, Value
from lowtide.specialise.signature import Alike, Levels, Spot


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOps:
    """The ops of `block` from `start` on."""

    block: Block
    start: int
    end: int  # the first op that ends every trace
    is_parted: bool  # whether only PyTorch's graph, which needs a node there, ends it at `end`
    live_ins: list[Value]
    live_at: Sequence[set[Value]]  # by position: values that this op or later ones use
    layers: frozenset[int]  # positions at which repeated layers begin
    owned: frozenset[Value]  # values of which only PyTorch's code has seen a reference; see `reuse`

    def until(self, stop: int) -> list[Op]:
        """Return the ops before `stop`."""
        return self.block.ops[self.start : stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aliasing:
    """The values of a Function that others see, or that share memory with what is written."""

    mutates: bool = False  # whether any op writes into a tensor
    changed: frozenset[Value] = frozenset()  # values that share memory with what an op writes
    statistics: Statistics = field(default_factory=Statistics)  # what norms in training may write
    lent: frozenset[Value] = frozenset()  # values that the caller may write
    returned: frozenset[Value] = frozenset()  # values that may alias a result


NO_ALIASING: Final = Aliasing()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionContext:
    """Facts about the driver around a region, and the user's names."""

    name: str
    shown: Mapping[Value, str]  # the user's names of captured values
    tiles: Tiles  # see `backend`
    is_repeated: bool  # whether it runs in a loop of the driver
    may_recompute: bool  # see `Builder`


@dataclass(slots=True, kw_only=True, eq=False)
class Signatures:
    """The second cache, and what decides the signature of a call. Changed under the region's
    lock."""

    classes: dict[tuple[Any, ...], Node] = field(default_factory=dict[tuple[Any, ...], Node])
    levels: Levels = field(default_factory=Levels)  # which sizes are constants, which symbols
    alike: Alike = field(default_factory=Alike)  # groups of sizes that are equal in each call
    small: dict[Spot, set[int]] = field(default_factory=dict[Spot, set[int]])  # ints seen
    count: int = 0  # specialisations made
    history: list[Facts] = field(default_factory=list[Facts])  # of each of them
