"""`lt.profile()`: what every operator allocates, from which line, and what is live at the peak.

In: any PyTorch code. Out: a `Profile`, which can be read while it runs and afterwards.

    with lt.profile() as prof:
        loss = model(x).sum()
        loss.backward()
    print(prof.table(sort_by="self_bytes", row_limit=10))
    prof.live_at_peak()[0]      # 128 MiB aten::sub train.py:12 Net.pairs float32[256, 512, 256]
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lowtide import html
from lowtide.errors import LowtideError
from lowtide.memory.measure import quiet_gc
from lowtide.tables import format_bytes
from lowtide.tools.profiler import alive, watch
from lowtide.tools.profiler.attribute import Attribution
from lowtide.tools.profiler.records import Allocation
from lowtide.tools.profiler.rows import COLUMNS, Row, as_dicts, first_rows, make_rows, sort_rows
from lowtide.tools.profiler.session import Session
from lowtide.tools.profiler.text import table_text
from lowtide.tools.profiler.timeline import Timeline

if TYPE_CHECKING:
    import pandas

    from lowtide.tools.profiler.leaks import Leak

_MOST_SEARCHED = 50  # allocations whose holders are searched: the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """An allocation that is live at the peak. `holders`: what holds it now; empty if it was freed
    since, or nothing was found. `module`, `shape` and `dtype` may be unknown: "", None, ""."""

    nbytes: int
    op: str
    source: str
    module: str
    phase: str
    shape: tuple[int, ...] | None
    dtype: str
    device: str
    holders: tuple[str, ...]

    def __str__(self) -> str:
        shape = f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape is not None else ""
        what = filter(None, [format_bytes(self.nbytes), self.op, self.source, self.module, shape])
        held = f"  held by {'; '.join(self.holders)}" if self.holders else ""
        return "  ".join(what) + held


class Profile:
    """A profile of the code inside a `with` block; see the module's text."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._has_begun = False
        self._timeline = Timeline()
        self._waiting: list[Any] = []  # captures that are not in the timeline yet
        self._rows: list[Row] | None = None
        self._alive: alive.Snapshot | None = None
        self._remarks: list[str] = []

    # -- begin and end --

    def __enter__(self) -> Self:
        if self._has_begun:
            raise LowtideError("a profile can run only once; make another with lt.profile()")
        self._begin()
        self._has_begun = True
        return self

    def __del__(self) -> None:
        # A profile that was entered by hand and never left must not block the next one.
        session = getattr(self, "_session", None)
        if session is not None:
            with contextlib.suppress(Exception):  # on another thread, or at Python's end
                session.stop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._alive = alive.snapshot()

    def step(self) -> None:
        """Mark the end of a training step; see `leaks`. Call it on the thread that began the
        profile.

        Raises LowtideError if the profile does not run."""
        if self._session is None:
            raise LowtideError(
                "prof.step() marks a step of a running profile; call it inside `with`"
            )
        self._session.mark(watch.STEP)

    def _begin(self) -> None:
        session = Session()
        session.start()
        self._session = session

    def _end(self) -> None:
        if self._session is not None:
            capture = self._session.stop()
            self._session = None  # not before: `stop` raises on another thread
            self._remarks += [r for r in capture.remarks if r not in self._remarks]
            self._waiting.append(capture)
            self._rows = None

    def _read(self) -> Timeline:
        """Return the timeline up to now; a running profile is stopped and started again."""
        if not self._has_begun:
            raise LowtideError("nothing was profiled: write `with lt.profile() as prof:`")
        is_running = self._session is not None
        # This makes many objects, and a collection between two recordings would go unseen.
        with quiet_gc(collect=False):  # leaks() reports reference cycles
            if is_running:
                self._end()
            try:
                while self._waiting:
                    self._timeline.add(Attribution(self._waiting.pop(0)))
            finally:
                if is_running:
                    self._begin()
        return self._timeline

    # -- numbers --

    @property
    def peak_bytes(self) -> int:
        """The peak of the bytes allocated since the profile began, on the device where it is
        highest; see `peaks`."""
        return max(self.peaks.values(), default=0)

    @property
    def peaks(self) -> dict[str, int]:
        """`peak_bytes` of each device: `{"cpu": …, "cuda:0": …}`."""
        return {name: curve.peak_bytes for name, curve in self._read().curves.items()}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Texts on what could not be recorded; empty if everything was."""
        self._read()
        return tuple(self._remarks)

    def rows(self, sort_by: str = "self_bytes") -> list[Row]:
        """Return a row for each operator, line, module and phase. Raises LowtideError for an
        unknown column."""
        timeline = self._read()
        if self._rows is None:
            self._rows = make_rows(timeline)
        return sort_rows(self._rows, sort_by)

    def live_at_peak(self, device: str | None = None) -> list[Live]:
        """Return what is live at the peak of a device (by default the one with the highest), the
        largest first. The bytes add up to the peak."""
        timeline = self._read()
        name = timeline.main_device() if device is None else device
        curve = timeline.curves.get(name)
        if curve is None:
            return []
        live = timeline.live_at(curve.peak_order, name)
        holders = self._holders(live)
        return [_live(a, holders.get(a.born, ())) for a in live]

    def _holders(self, live: Sequence[Allocation]) -> dict[int, tuple[str, ...]]:
        from lowtide.tools.profiler.holders import Holders

        alive = [a for a in live if a.freed is None]
        found = self._tensors(alive)
        searched = alive[:_MOST_SEARCHED]
        with Holders({a.born: found.get(a.born, []) for a in searched}) as holders:
            return {a.born: holders.of(a) for a in searched}

    def leaks(self) -> list[Leak]:
        """Return the memory that outlived the step that allocated it, and what holds it; see
        `Leak`.

        Lists allocations of steps before the last that are alive now. A line that left memory only
        in the first step (the state of an optimizer, caches) is not listed. Raises LowtideError
        unless `prof.step()` was called at least twice."""
        from lowtide.tools.profiler.leaks import find_leaks

        timeline = self._read()
        if len(timeline.step_ends_ns) < 2:
            raise LowtideError(
                "leaks() compares steps: call prof.step() at the end of each, at least twice"
            )
        return find_leaks(timeline, self._tensors)

    def _tensors(self, allocations: Sequence[Allocation]) -> alive.Found:
        """Return the tensors in live allocations. After the profile's end: those of that moment,
        since their memory may have been reused."""
        tensors = self._alive if self._alive is not None else alive.snapshot()
        return alive.find_tensors(allocations, tensors)

    # -- output --

    def table(self, sort_by: str = "self_bytes", row_limit: int = 10) -> str:
        """Return the first `row_limit` rows as text, -1 for all, below a line with the peak."""
        return table_text(self.rows(sort_by), row_limit, self.peak_bytes, self.remarks)

    def __str__(self) -> str:
        return self.table()

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a data frame. Raises LowtideError if pandas is missing."""
        try:
            import pandas
        except ImportError as fault:
            raise LowtideError("this needs pandas: pip install 'lowtide[profile]'") from fault
        return pandas.DataFrame(as_dicts(self.rows()), columns=list(COLUMNS))

    def to_dict(self, sort_by: str = "self_bytes", row_limit: int = -1) -> dict[str, Any]:
        """Return the peak, the rows and what is live at the peak, for JSON."""
        rows = self.rows(sort_by)
        live = [dataclasses.asdict(one) for one in self.live_at_peak()]
        return {
            "peak_bytes": self.peak_bytes,
            "peaks": self.peaks,
            "rows": as_dicts(first_rows(rows, row_limit)),
            "live_at_peak": live,
            "remarks": list(self.remarks),
        }

    def plot(self, path: str | PathLike[str]) -> None:
        """Write memory over time as a PNG, SVG or PDF, by the suffix of `path`.

        Raises LowtideError for another suffix, or if matplotlib is missing."""
        from lowtide.tools.profiler.plot import check_picture, plot_timeline

        check_picture(path)
        plot_timeline(self._read(), path)

    def html(self, path: str | PathLike[str]) -> None:
        """Write one HTML page: memory over time, and tables that can be sorted."""
        Path(path).write_text(self._page(), encoding="utf-8")

    def _repr_pretty_(self, printer: Any, _is_cycle: bool) -> None:
        """Show the table in a terminal of IPython; `repr()` must not end a running profile."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """Return the page in a frame, in which its script runs apart from the notebook."""
        return html.frame(self._page(), height=760)

    def _page(self) -> str:
        from lowtide.tools.profiler.page import page_text

        timeline = self._read()
        curves = timeline.curves.items()
        live = [a for name, curve in curves for a in timeline.live_at(curve.peak_order, name)]
        return page_text(timeline, self.rows(), self._holders(live), self.remarks)

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write JSON for chrome://tracing or ui.perfetto.dev: operators, and live bytes."""
        from lowtide.tools.profiler.chrome import write_trace

        write_trace(self._read(), path)


def profile() -> Profile:
    """Return a profile: `with lt.profile() as prof:` records every operator and allocation inside.

    One profile runs at a time in a process, and not while torch.profiler runs. Python threads that
    start inside are recorded, and the work of a ThreadPoolExecutor; other earlier threads are not.
    """
    return Profile()


def _live(allocation: Allocation, holders: tuple[str, ...]) -> Live:
    return Live(
        nbytes=allocation.nbytes,
        op=allocation.op,
        source=allocation.place.source,
        module=allocation.place.module,
        phase=allocation.phase,
        shape=allocation.shape,
        dtype=allocation.dtype,
        device=allocation.device,
        holders=holders,
    )
