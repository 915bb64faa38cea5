"""A region's code by itself, for what is run without PyTorch: see `deploy/c_library`.

In: a region, its live-ins in an example. Out: a `Standing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowtide.errors import Loc
from lowtide.execute.host_code import HostCode
from lowtide.execute.region import Region
from lowtide.specialise.signature import CPU, LEAST, Binding
from lowtide.texpr.build import Val
from lowtide.texpr.index import Index, as_index

_ANY: Final = -(2**62)  # the least value of an int that is not a size


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`reason`: why the code is not for the whole region, "" if it is; `guards`: (index, whether it
    is >= 0) for all sizes that the code is for; `dims`: where each symbol stands, in the user's
    words; `least`: its least value; `dtypes`, `shapes`: of the live-ins."""

    reason: str
    loc: Loc
    host: HostCode | None
    numbers: Mapping[str, int]
    guards: tuple[tuple[Index, bool], ...]
    dims: Mapping[str, Sequence[str]]
    least: Mapping[str, int]
    dtypes: Sequence[Any]
    shapes: Sequence[tuple[Index, ...]]


def standing(region: Region, values: Sequence[Any]) -> Standing:
    """See the module's text."""
    with region.lock:
        binding, spec = region.specialisation(list(values), CPU)
        slot = region.tree_slot(binding)
    is_whole = spec.finished and spec.host is not None
    abstract = [x.value for x in binding.abstract()[1]]
    tensors = [x if isinstance(x, Val) else None for x in abstract]
    return Standing(
        reason=spec.eager or ("" if is_whole else spec.reason or "is not compiled"),
        loc=spec.loc,
        host=spec.host,
        numbers=dict(binding.numbers),
        guards=tuple(slot.assumed.items()),
        dims=_dims(region, binding),
        least={n: LEAST.get(n[0], _ANY) for n in binding.numbers},
        dtypes=[None if x is None else x.dtype for x in tensors],
        shapes=[() if x is None else tuple(map(as_index, x.shape)) for x in tensors],
    )


def _dims(region: Region, binding: Binding) -> dict[str, list[str]]:
    """Return for each symbol all expressions of the user's that have its value."""
    found: dict[str, list[str]] = {}
    for symbol, spots in binding.spots.items():
        for place, dim, _ in spots:
            name = region.shown_name(region.live_ins[place.position])
            found.setdefault(symbol, []).append(name if dim < 0 else f"{name}.shape[{dim}]")
    return found
