"""What a profile consists of: operators and allocations, each with the place that caused it.

In: nothing. Out: plain records. Times are nanoseconds from the start of the profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


class Place(NamedTuple):
    """A line of the user's, and the dotted path of the module whose forward it was called in."""

    file: str = ""
    line: int = 0
    module: str = ""

    @property
    def source(self) -> str:
        """`file:line`, or "" where it is not known."""
        return f"{self.file}:{self.line}" if self.file else ""


NOWHERE = Place()


@dataclass(slots=True, kw_only=True)
class Operator:
    """One call of an operator as the user or autograd made it; what it calls itself is in it."""

    name: str
    phase: str
    place: Place
    thread: int
    begin_ns: int
    end_ns: int
    self_ns: int  # without the operators that have records of their own
    allocated_bytes: int = 0
    freed_bytes: int = 0
    step: int = 0


@dataclass(slots=True, kw_only=True)
class Allocation:
    """A piece of memory from its birth to its end; `freed_ns` is None if it outlives the profile.

    `born` and `freed` are places in the order of all events of memory, where times may be equal.
    `shape` and `dtype` are the first tensor's that was seen to lie in it, "" and () if none was.
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
