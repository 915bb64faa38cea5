"""The records of a profile: operators and allocations, each with the source line that caused it.

Times are nanoseconds from the start of the profile.

    Place("train.py", 12, "Net.encoder").source      "train.py:12"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


class Place(NamedTuple):
    """A line of the user's code, and the dotted path of the module in whose forward it ran."""

    file: str = ""
    line: int = 0
    module: str = ""

    @property
    def source(self) -> str:
        """`file:line`, "" if unknown."""
        return f"{self.file}:{self.line}" if self.file else ""


NOWHERE = Place()


@dataclass(slots=True, kw_only=True)
class Operator:
    """A call of an operator by the user's code or by autograd, with the operators inside it."""

    name: str
    phase: str
    place: Place
    thread: int
    begin_ns: int
    end_ns: int
    self_ns: int  # without operators that have their own records
    allocated_bytes: int = 0
    freed_bytes: int = 0
    step: int = 0


@dataclass(slots=True, kw_only=True)
class Allocation:
    """An allocation. `freed_ns`, `freed`: None if it outlives the profile.

    `born`, `freed`: positions in the order of all memory events, since times may be equal. `shape`,
    `dtype`: of the first tensor that was seen in it; None and "" if none was.
    """

    nbytes: int
    address: int
    device: str
    born_ns: int
    born: int
    freed_ns: int | None = None
    freed: int | None = None
    op: str = ""
    phase: str = FORWARD
    place: Place = NOWHERE
    step: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = ""
