"""Time, peak memory and results of several versions of one function, side by side.

In: named callables, and arguments for all of them. Out: a `Comparison` with one row for each
callable, which prints as a table. Each is called once to warm up, once to measure its peak memory,
then several times, alternating with the others, to measure its time. The row of a callable that
raises says "failed"; its error is below the table.

    >>> lt.compare({"eager": f, "lowtide": lt.script(f)}, (boxes1, boxes2))
    name     min      median   peak      first call  max abs diff  agrees
    -------  -------  -------  --------  ----------  ------------  ------
    eager    3963 ms  3970 ms  3.17 GiB     3980 ms  -             -
    lowtide  33.2 ms  34.0 ms   463 MiB      112 ms  0             yes
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lowtide import html
from lowtide.diagnostics.progress import say
from lowtide.errors import LowtideError
from lowtide.memory.available import is_out_of_memory
from lowtide.memory.measure import (
    Timing,
    measure_peak,
    same_random_numbers,
    time_alternating,
    time_call,
)
from lowtide.tables import format_bytes, format_ms, plain_table
from lowtide.tools.difference import Difference, difference
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import version

_HEADERS = ("name", "min", "median", "peak", "first call", "max abs diff", "agrees")
_AGREES = {None: "-", True: "yes", False: "NO"}


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """The measurements of one callable; None where it failed. `error`: why, empty if it ran.

    `peak_bytes`: everything live at the peak, with the result, without the arguments. `max_abs`,
    `max_rel`: the largest differences from the first callable's result. `agrees`: whether they are
    within the tolerance. The three are None for the first callable.
    """

    name: str
    min_ms: float | None = None
    median_ms: float | None = None
    first_call_ms: float | None = None
    peak_bytes: int | None = None
    peak_method: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    agrees: bool | None = None
    note: str = ""
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    """The rows, in the order in which the callables were given."""

    rows: tuple[ComparisonRow, ...]

    def __getitem__(self, name: str) -> ComparisonRow:
        """Return the row of that name. Raises KeyError."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Return `{"rows": [{"name": …, "min_ms": …, …}, …]}`, for JSON."""
        return {"rows": [dataclasses.asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        said = [f"{r.name}: {r.error or r.note}" for r in self.rows if r.error or r.note]
        return "\n".join([plain_table(_HEADERS, [_cells(row) for row in self.rows]), *said])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.page(self.html_table())

    def html_table(self) -> str:
        """Return the rows as an HTML table, without the style."""
        rows = list[list[str]]()
        for row in self.rows:
            *cells, agrees = _cells(row)
            said = row.error or f"{agrees} {row.note}".rstrip()
            rows.append([html.text(cell) for cell in (*cells, said)])
        return html.table(_HEADERS, rows, range(1, 6))


def compare(
    variants: Mapping[str, Callable[..., object]],
    args: Sequence[Any] = (),
    *,
    repeats: int = 10,
    seconds: float = 2.0,
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Call each of `variants` with `args` and compare time, peak memory and results.

    `repeats`, `seconds`: limits on the timed calls of each variant. `rtol`, `atol`: a result agrees
    with the first one if each element differs by at most `atol + rtol * |first|`; the defaults
    depend on the dtype, see `tools/difference`. All calls get the same arguments: the row of a
    function that changes them says so, and later calls see the change. All variants draw the same
    random numbers; afterwards torch's generators have their earlier state. Raises LowtideError if
    `variants` is not a dict of functions or is empty, or `args` is not a list or tuple. An error
    that a variant raises is in its row.
    """
    if not isinstance(args, list | tuple):
        raise LowtideError(
            f"args is a {type(args).__name__}; pass a tuple of arguments: "
            'compare({"eager": f}, (x,))'
        )
    if not isinstance(variants, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LowtideError(
            f"variants is a {type(variants).__name__}; pass a dict of functions by name: "
            'compare({"eager": f}, (x,))'
        )
    if not variants:
        raise LowtideError('compare needs at least one callable: compare({"eager": f}, args)')
    for name, function in variants.items():
        if not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
            raise LowtideError(
                f"variants[{name!r}] is of type {type(function).__name__}, not a function; "
                'pass a dict of functions by name: compare({"eager": f}, (x,))'
            )
    for name, given in {"rtol": rtol, "atol": atol}.items():
        if given is not None and not given >= 0:
            raise LowtideError(f"{name} is {given}; pass a number that is not negative, or None")
    calls = {name: partial(_called, function, args) for name, function in variants.items()}
    rows: dict[str, ComparisonRow] = {}
    reference = _Reference()
    for name, call in calls.items():
        say(f"first call and peak of {name}")
        try:
            before = _versions(args)
            with same_random_numbers():
                row = _check(name, call, reference, rtol, atol)
            if _versions(args) != before:
                row = dataclasses.replace(row, note=f"changes its arguments. {row.note}".rstrip())
            rows[name] = row
        except Exception as fault:
            rows[name] = ComparisonRow(name=name, error=describe_error(fault))
    faults: dict[str, str] = {}
    working = {
        name: _guard(name, call, faults) for name, call in calls.items() if not rows[name].error
    }
    say("timing")
    with same_random_numbers():
        timings = time_alternating(working, repeats=repeats, seconds=seconds)
    for name, timing in timings.items():
        rows[name] = _with_times(rows[name], timing, faults.get(name, ""))
    return Comparison(tuple(rows[name] for name in variants))


def describe_error(fault: BaseException) -> str:
    """Return the class of an exception and the first line of its message, or two if the first ends
    in `:`; of a failed allocation, how much it was."""
    if is_out_of_memory(fault):
        wanted = re.search(r"allocate (\d+) bytes", str(fault))
        return (
            f"out of memory: {format_bytes(int(wanted[1]))} at once" if wanted else "out of memory"
        )
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(fault).__name__}: {said}" if said else type(fault).__name__


def _called(function: Callable[..., object], args: Sequence[Any]) -> object:
    return function(*args)


def _versions(args: Sequence[Any]) -> list[int]:
    """Return the version counter of each tensor, which counts in-place writes."""
    return [version(tensor) for tensor in tensors_in(args) if not tensor.is_inference()]


def _copied(value: object) -> object:
    """Return a copy: a result may be an argument or a buffer, which later calls change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, list | tuple):
        items = [_copied(item) for item in value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return items if isinstance(value, list) else tuple(items)
    return value


class _Reference:
    """A copy of the first callable's result, to which the others are compared."""

    is_set = False
    value: object = None


def _guard(name: str, call: Callable[[], object], faults: dict[str, str]) -> Callable[[], object]:
    """Return `call`, except that its first exception is stored in `faults` and ends its calls."""

    def guarded() -> object:
        if name in faults:
            return None
        try:
            return call()
        except Exception as fault:
            faults[name] = describe_error(fault)
            return None

    return guarded


def _check(
    name: str,
    call: Callable[[], object],
    reference: _Reference,
    rtol: float | None,
    atol: float | None,
) -> ComparisonRow:
    first_ns, result = time_call(call)
    device = next((x.device for x in tensors_in(result)), None)
    del result
    peak, result = measure_peak(call, device=device)
    found: Difference | None = None
    if reference.is_set:
        found = difference(reference.value, result, rtol=rtol, atol=atol)
    else:
        reference.value, reference.is_set = _copied(result), True
    return ComparisonRow(
        name=name,
        first_call_ms=first_ns / 1e6,
        peak_bytes=peak.peak_bytes,
        peak_method=peak.method,
        max_abs=found.max_abs if found else None,
        max_rel=found.max_rel if found else None,
        agrees=found.agrees if found else None,
        note=found.note if found else "",
    )


def _with_times(row: ComparisonRow, timing: Timing, error: str) -> ComparisonRow:
    if error:
        return ComparisonRow(name=row.name, error=error)
    return dataclasses.replace(row, min_ms=timing.min_ns / 1e6, median_ms=timing.median_ns / 1e6)


def _cells(row: ComparisonRow) -> list[str]:
    if row.error:
        return [row.name, "-", "-", "-", "-", "-", "failed"]
    return [
        row.name,
        format_ms(row.min_ms),
        format_ms(row.median_ms),
        format_bytes(row.peak_bytes),
        format_ms(row.first_call_ms),
        "-" if row.max_abs is None else f"{row.max_abs:.2g}",
        _AGREES[row.agrees],
    ]
