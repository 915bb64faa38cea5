"""`lt.profile()`: what every operator allocates, from which line, and what is live at the peak.

In: any PyTorch code. Out: a `Profile`, to be asked while it runs or after.

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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

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

_MOST_ASKED = 50  # pieces whose holders are looked for: the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A piece of memory that is live at the peak. `holders` says who holds it still, empty where
    it was freed since or nothing was found; `module`, `shape` and `dtype` may be unknown."""

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
    """A profile, running between `with` and its end; see the module's text."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._has_begun = False
        self._timeline = Timeline()
        self._waiting: list[Any] = []  # captures that nobody asked for yet
        self._rows: list[Row] | None = None
        self._alive: alive.Snapshot | None = None
        self._remarks: list[str] = []

    # -- from begin to end --

    def __enter__(self) -> Self:
        if self._has_begun:
            raise LowtideError("a profile runs once; make another with lt.profile()")
        self._begin()
        self._has_begun = True
        return self

    def __del__(self) -> None:
        # One that was begun by hand and is gone stands in no other's way.
        session = getattr(self, "_session", None)
        if session is not None:
            with contextlib.suppress(Exception):  # another thread's, or Python ends
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
        """Marks the end of a training step; see `leaks`. On the thread that profiles."""
        if self._session is None:
            raise LowtideError(
                "prof.step() marks a step of a running profile; this one runs no more"
            )
        self._session.mark(watch.STEP)

    def _begin(self) -> None:
        session = Session()
        session.start()
        self._session = session

    def _end(self) -> None:
        if self._session is not None:
            capture = self._session.stop()
            self._session = None  # not before: on another thread it is refused, and runs on
            self._remarks += [r for r in capture.remarks if r not in self._remarks]
            self._waiting.append(capture)
            self._rows = None

    def _read(self) -> Timeline:
        """Everything up to now; a running profile is interrupted for it."""
        if not self._has_begun:
            raise LowtideError("nothing was profiled: write `with lt.profile() as prof:`")
        is_running = self._session is not None
        # Many small objects are made, and between two recordings nobody sees what is freed.
        with quiet_gc(collect=False):  # leaks() tells what waits in cycles
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
        """The most bytes that were live at once of those allocated since the profile began; on the
        device where that is most, see `peaks`."""
        return max(self.peaks.values(), default=0)

    @property
    def peaks(self) -> dict[str, int]:
        """`peak_bytes` of each device: `{"cpu": …, "cuda:0": …}`."""
        return {name: curve.peak_bytes for name, curve in self._read().curves.items()}

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be seen, in words; empty if everything was."""
        self._read()
        return tuple(self._remarks)

    def rows(self, sort_by: str = "self_bytes") -> list[Row]:
        """All operators, by line, module and phase. Raises LowtideError for an unknown column."""
        timeline = self._read()
        if self._rows is None:
            self._rows = make_rows(timeline)
        return sort_rows(self._rows, sort_by)

    def live_at_peak(self, device: str | None = None) -> list[Live]:
        """What is live at the peak, the largest first; its bytes add up to `peak_bytes`."""
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

        found = self._tensors([a for a in live if a.freed is None])
        asked = [a for a in live if a.freed is None][:_MOST_ASKED]
        with Holders({a.born: found.get(a.born, []) for a in asked}) as holders:
            return {a.born: holders.of(a) for a in asked}

    def leaks(self) -> list[Leak]:
        """Memory that outlived the step it was made in, and who holds it; see `Leak`.

        Reported is what was made in a step before the last and is alive now, from lines that leave
        something behind step after step, or that did so after the first step. What only the first
        step made (the state of an optimizer, caches) is not. Raises LowtideError unless
        `prof.step()` was called at least twice."""
        from lowtide.tools.profiler.leaks import find_leaks

        timeline = self._read()
        if len(timeline.step_ends_ns) < 2:
            raise LowtideError(
                "leaks() compares steps: call prof.step() at the end of each, at least twice"
            )
        return find_leaks(timeline, self._tensors)

    def _tensors(self, allocations: Sequence[Allocation]) -> alive.Found:
        """The tensors in what is alive. After the end only those that were there at the end: their
        memory may have been given to others since."""
        tensors = self._alive if self._alive is not None else alive.snapshot()
        return alive.find_tensors(allocations, tensors)

    # -- how it is shown --

    def table(self, sort_by: str = "self_bytes", row_limit: int = 10) -> str:
        """The first `row_limit` rows as text, under a line with the peak; -1 for all rows."""
        return table_text(self.rows(sort_by), row_limit, self.peak_bytes, self.remarks)

    def __str__(self) -> str:
        return self.table()

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a data frame. Needs pandas: `pip install 'lowtide[profile]'`."""
        pandas = _extra("pandas")
        return pandas.DataFrame(as_dicts(self.rows()), columns=list(COLUMNS))

    def to_dict(self, sort_by: str = "self_bytes", row_limit: int = -1) -> dict[str, Any]:
        """Peak, rows and what is live at the peak, ready for JSON."""
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
        """Memory over time as a PNG, SVG or PDF, by the ending of `path`. Needs matplotlib.

        Raises LowtideError for another ending, or if matplotlib is missing."""
        from lowtide.tools.profiler.plot import check_picture, plot_timeline

        check_picture(path)
        plot_timeline(self._read(), path)

    def html(self, path: str | PathLike[str]) -> None:
        """One page that needs no other file: memory over time, and tables that sort."""
        from lowtide.tools.profiler.page import write_page

        timeline = self._read()
        curves = timeline.curves.items()
        live = [a for name, curve in curves for a in timeline.live_at(curve.peak_order, name)]
        write_page(timeline, self.rows(), self._holders(live), self.remarks, path)

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """JSON for chrome://tracing or ui.perfetto.dev: operators, and memory as a counter."""
        from lowtide.tools.profiler.chrome import write_trace

        write_trace(self._read(), path)


def profile() -> Profile:
    """`with lt.profile() as prof:` records every operator and allocation inside; see `Profile`.

    One at a time in a process, and not beside torch.profiler. Python threads that are started
    inside are followed, and work that a ThreadPoolExecutor does; other threads that ran before are
    not."""
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


def _extra(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as fault:
        raise LowtideError(f"this needs {module}: pip install 'lowtide[profile]'") from fault
