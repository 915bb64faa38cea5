"""The compiled forms of a region: a specialisation for a signature, an entry for exact sizes.

Split(s0 - 101 >= 0)          two signatures that a question about sizes separates
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

_ENV: Final = 1  # references by the driver's environment, until the region has run


@dataclass(frozen=True, slots=True, kw_only=True)
class Donatable:
    """Live-ins that end with the region: name in the Program by position."""

    names: Mapping[int, str]

    def alone(self, values: Sequence[Any]) -> tuple[str, ...]:
        """Return the names of those referenced only by `values` and the environment."""
        return tuple(n for k, n in self.names.items() if ownership.is_alone(values, k, _ENV))


Donations = tuple[tuple[str, str], ...]  # (result, input whose memory it takes)


@dataclass(slots=True, kw_only=True, eq=False)
class Specialisation:
    """Ops [start, stop) for one signature. `eager`: why PyTorch runs them, "" if kernels do.
    `whole`: they are all of the program, and PyTorch computes no gradient of a view.

    `gradient` and `eager_ops`: the backward pass, and the same ops for PyTorch to run; None if no
    output carries a gradient. `places`: the position of each Program tensor among the live-ins.
    `unsaved`: inputs of which the backward pass needs a copy. `differences`: from the nearest
    specialisation compiled before it. `io_bytes`: of inputs and outputs.
    `planned_io_bytes`: these at the largest sizes for which no better plan than `executable` was
    found. `searched_io_bytes`: these at the largest sizes for which none was searched.
    `excess_bytes`: bytes of all values beyond those up to which PyTorch is as fast, None if it is
    slower at all sizes. `reusing`: like `run`, with results written over dead operands (`reuse`),
    by these operands.
    """

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
    eager_ops: EagerRegion | None = None
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    unsaved: frozenset[str] = frozenset()
    differences: tuple[str, ...] = ()
    machine: str = "cpu"
    executable: Any = None
    run: Callable[..., tuple[Any, ...]] | None = None
    io_bytes: Index = field(default_factory=lambda: as_index(0))
    excess_bytes: Index | None = None
    planned_io_bytes: int = 0
    searched_io_bytes: int = 0
    reusing: dict[Donations, Callable[..., tuple[Any, ...]]] = field(
        default_factory=dict[Donations, "Callable[..., tuple[Any, ...]]"]
    )

    @property
    def advances(self) -> bool:
        """Return whether it contains any op."""
        return self.host is not None


@dataclass(slots=True, eq=False)
class Split:
    """Two signatures; the first is for sizes with `index >= 0`."""

    index: Index
    yes: Node | None = None
    no: Node | None = None


Node = Specialisation | Split


@dataclass(slots=True, eq=False)
class Entry:
    """A specialisation at exact sizes. `run` is None if PyTorch runs the ops. `donatable`: see
    `reuse`."""

    spec: Specialisation
    z: list[int]
    sizes: list[int]
    run: Callable[..., tuple[Any, ...]] | None
    eager: str = ""
    donatable: Donatable | None = None
