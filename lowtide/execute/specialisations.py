"""Compiled forms of a region: a specialisation for a signature, an entry for exact sizes.

Split(s0 - 101 >= 0)          two signatures told apart by a question about sizes
  yes: Specialisation         ops [start, stop) for one signature
  no:  Specialisation
Entry(spec, z=[1000], sizes=[1000], run)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lowtide.errors import Loc
from lowtide.execute.autograd_function import EagerRegion
from lowtide.execute.gradient import Gradient
from lowtide.execute.host_code import HostCode
from lowtide.ir.core import Value
from lowtide.runtime import ownership
from lowtide.specialise.abstract import Place
from lowtide.texpr.index import Index, as_index

_ENV: Final = 1  # the driver's environment has the value, too, until the region has run


@dataclass(frozen=True, slots=True, kw_only=True)
class Dying:
    """Live-ins that end with the region, by their place among them: the Program's name of each."""

    names: Mapping[int, str]

    def alone(self, values: Sequence[Any]) -> tuple[str, ...]:
        """Those that nobody has but `values` and the environment that these were taken from."""
        return tuple(n for k, n in self.names.items() if ownership.is_alone(values, k, _ENV))


Taken = tuple[tuple[str, str], ...]  # results, and the inputs in whose memory they lie


@dataclass(slots=True, kw_only=True, eq=False)
class Specialisation:
    """Ops [start, stop) for one signature. `eager`: why PyTorch runs them, "" if kernels do.
    `whole`: they are the program, and no view has a gradient that PyTorch computes.

    `gradient` and `again` are there where outputs carry gradients: the backward pass, and how
    PyTorch runs the same ops; `places` says where the Program's tensors are among the live-ins;
    `unsaved`: inputs of which the backward pass needs a copy.
    `differences`: from the nearest one that was compiled before it. `room`: what inputs and
    outputs take; `suits`: that at the largest sizes for which no better plan than `executable` was
    found; `looked`: at the largest ones for which none was looked for, as it takes little.
    `little`: what all its values take, if PyTorch is as quick where that is little. `over`: as
    `run`, with results over operands that nobody needs (`reuse`), by which these are."""

    stop: int
    finished: bool
    whole: bool
    reason: str
    loc: Loc
    results: list[Value]
    dead: list[Value]
    ops: int = 0
    eager: str = ""
    size_names: dict[str, str] = field(default_factory=dict[str, str])
    host: HostCode | None = None
    gradient: Gradient | None = None
    again: EagerRegion | None = None
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    unsaved: frozenset[str] = frozenset()
    differences: tuple[str, ...] = ()
    machine: str = "cpu"
    executable: Any = None
    run: Callable[..., tuple[Any, ...]] | None = None
    room: Index = field(default_factory=lambda: as_index(0))
    little: Index | None = None
    suits: int = 0
    looked: int = 0
    over: dict[Taken, Callable[..., tuple[Any, ...]]] = field(
        default_factory=dict[Taken, "Callable[..., tuple[Any, ...]]"]
    )

    @property
    def advances(self) -> bool:
        """Whether there is anything before `stop`."""
        return self.host is not None


@dataclass(slots=True, eq=False)
class Split:
    """Two signatures told apart by whether `index >= 0`."""

    index: Index
    yes: Node | None = None
    no: Node | None = None


Node = Specialisation | Split


@dataclass(slots=True, eq=False)
class Entry:
    """A specialisation at exact sizes. `run` is None where PyTorch runs the ops; see `reuse`."""

    spec: Specialisation
    z: list[int]
    sizes: list[int]
    run: Callable[..., tuple[Any, ...]] | None
    eager: str = ""
    dying: Dying | None = None
