"""Checks the options of a compiled function: `budget` and `tune`.

In: the user's arguments. Out: `Options`, or a LowtideError.

    options_of("8GB", False)      Options(budget_bytes=8_000_000_000, tune=False)
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.errors import LowtideError
from lowtide.execute.backend import Tiles
from lowtide.memory.sizes import budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`budget_bytes`: bytes that one call may allocate at its peak. `tune`: measure several
    schedules."""

    budget_bytes: int | None = None
    tune: bool = False

    @property
    def tiles(self) -> Tiles:
        """Return how kernels choose their tiles."""
        return "fastest" if self.tune else "usual"

    def given(self) -> dict[str, object]:
        """Return the options that were set, by the users' names."""
        found = {"budget": self.budget_bytes, "tune": self.tune}
        return {name: value for name, value in found.items() if value}


def options_of(budget: object, tune: object) -> Options:
    """Return the options for these arguments. Raises LowtideError if one is invalid."""
    if not isinstance(tune, bool):
        raise LowtideError(f"tune={tune!r} is neither True nor False")
    most = None if budget is None else budget_bytes(budget)
    return Options(budget_bytes=most, tune=tune)
