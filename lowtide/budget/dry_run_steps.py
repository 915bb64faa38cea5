"""The steps of a dry run: the kernels of a region, or an op that PyTorch runs.

KernelStep(region=…, entry=…, loc=train.py:12)
TorchStep(op=torch.sort, reason="has no kernel")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lowtide.errors import Loc
from lowtide.execute.gradient import Pass
from lowtide.execute.region import Region
from lowtide.execute.specialisations import Entry
from lowtide.ir.core import Op


@dataclass(slots=True, kw_only=True)
class KernelStep:
    """The kernels of a region. `taken`: results that are written over operands."""

    region: Region
    entry: Entry
    loc: Loc
    taken: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def numbers(self) -> dict[str, int]:
        """Return the size symbols and their values."""
        host = self.entry.spec.host
        assert host is not None
        return dict(zip(host.symbols, self.entry.sizes, strict=True))

    def executable(self) -> Any:
        """Return the compiled program."""
        return self.region.executable(self.entry.spec, self.entry)

    def names(self) -> dict[str, str]:
        """Return the user's names of the program's inputs."""
        live = self.region.ops.live_ins
        return {
            n: self.region.shown_name(live[place.position])
            for n, place in self.entry.spec.places.items()
        }

    def in_place(self) -> dict[str, str]:
        """Return the user's name of the operand that each such result overwrites."""
        places, live = self.entry.spec.places, self.region.ops.live_ins
        return {n: self.region.shown_name(live[places[x].position]) for n, x in self.taken.items()}

    def refusals(self) -> list[str]:
        """Return why PyTorch runs the region or its backward pass: a launch was refused."""
        gradient = self.entry.spec.gradient
        backward = [] if gradient is None else gradient.executables
        found = [why for made in (self.executable(), *backward) for why in made.refusals]
        return list(dict.fromkeys(found))

    def backward(self) -> Pass | None:
        """Return the kernels of the whole backward pass, None if there is none."""
        gradient = self.entry.spec.gradient
        if gradient is None:
            return None
        self.executable()  # chooses what is saved
        return gradient.whole(self.numbers)


@dataclass(slots=True, kw_only=True)
class TorchStep:
    """An op that PyTorch or Python runs."""

    op: Op
    reason: str

    @property
    def loc(self) -> Loc:
        """Return the op's source line."""
        return self.op.loc

    @property
    def label(self) -> str:
        """Return PyTorch's name of the op."""
        return str(self.op.attrs.get("target") or self.op.name).removeprefix("torch.")


Step: TypeAlias = KernelStep | TorchStep
