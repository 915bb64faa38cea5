"""Results as JSON and as Markdown, written anew after each program.

In: a `Report` that grows. Out: `<date>-<gpu>-gpu.json` and `.md`; `faults` is empty where every
value was right and nothing failed.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import OVER, Measured
from benchmarks.gpu.jobs import Job
from benchmarks.gpu.measure import COMPILE, EAGER, LOWTIDE
from benchmarks.gpu.programs import GPU_PROGRAMS
from lowtide.tables import format_bytes, format_ms, markdown_table

HOW = (
    "Times are medians of rounds, a call each, between two CUDA events; the variants of a row ran "
    "in turns in one process, warm. A first call compiles; it is quicker where a cache is warm. "
    "Memory is the peak of PyTorch's allocator beyond what was there before the call, its results "
    "counted. Values: the largest error against float64, as a multiple of eager's own; `right` "
    "where no element is off by more than 4 times eager's largest error and 4 ULP. "
    "Training is a forward and a backward pass. `tf32`: products of float32 may use tensor cores "
    "in all variants; in `float32` rows none may, cuDNN's neither."
)


@dataclass(kw_only=True)
class Report:
    """Everything so far. `hello`: of the first child; `checks`: what `lowtide doctor` says;
    `failures`: of the command itself; `missing`: jobs that were not begun; `settings`: of the
    command."""

    settings: dict[str, Any]
    commit: str
    hello: dict[str, Any] = field(default_factory=dict[str, Any])
    checks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    failures: list[str] = field(default_factory=list[str])
    measured: list[Measured] = field(default_factory=list[Measured])
    missing: list[Job] = field(default_factory=list[Job])

    @property
    def machine(self) -> dict[str, Any]:
        """What the first child said of it."""
        return self.hello.get("machine") or {}

    @property
    def stem(self) -> str:
        """Date and GPU, for file names."""
        gpu = str(self.machine.get("gpu", "")).partition(",")[0]
        slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "no-gpu"
        return f"{datetime.date.today().isoformat()}-{slug}-gpu"

    def write(self, folder: Path) -> Path:
        """Both files, each replaced at once; gives the Markdown's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in ((".json", self.to_json()), (".md", self.to_markdown())):
            new = folder / f".{self.stem}{ending}.new"
            new.write_text(text, encoding="utf-8")
            os.replace(new, folder / f"{self.stem}{ending}")
        return folder / f"{self.stem}.md"

    def to_json(self) -> str:
        """All raw numbers."""
        whole = {
            "date": datetime.date.today().isoformat(),
            "commit": self.commit,
            "settings": self.settings,
            **{key: value for key, value in self.hello.items() if key != "kind"},
            "checks": self.checks,
            "how": HOW,
            "jobs": [measured.to_dict() for measured in self.measured],
            "not_reached": [job.name for job in self.missing],
            "faults": self.faults(),
        }
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"

    def faults(self) -> list[str]:
        """What was wrong or failed in Lowtide, in eager mode or in this benchmark."""
        found = list(self.failures)
        for measured in self.measured:
            if error := _failed(measured.facts):
                found.append(f"{measured.job.name}: {error}")
            for name in (EAGER, LOWTIDE):
                error = _failed(measured.variants.get(name, {}))
                if error and not _is_out_of_memory(name, error):
                    found.append(f"{measured.job.name}: {name}: {error}")
            for note in _wrong(measured.variants.get(LOWTIDE, {})):
                found.append(f"{measured.job.name}: lowtide is WRONG: {note}")
        return found

    def peers_faults(self) -> list[str]:
        """What failed or was wrong elsewhere; no fault of this project's."""
        return [
            f"{measured.job.name}: {name}: {says}"
            for measured in self.measured
            for name, known in measured.variants.items()
            if name not in (EAGER, LOWTIDE)
            for says in filter(None, [*_wrong(known), _failed(known)])
        ]

    def left_to_pytorch(self) -> list[str]:
        """Which ops and regions did not become kernels, and what Lowtide said about it."""
        found: list[str] = []
        for measured in self.measured:
            ours = measured.variants.get(LOWTIDE, {})
            says = [*ours.get("left", ()), *ours.get("warnings", ()), *ours.get("notes", ())]
            if ours.get("plain"):
                says.insert(0, f"all of it: {ours['plain']}")
            found.extend(f"{measured.job.name}: {what}" for what in says)
        return found

    def to_markdown(self) -> str:
        """Tables, then what failed."""
        parts = [
            f"# Lowtide on {self.machine.get('gpu', 'a GPU')}",
            _bullets([f"{key}: {value}" for key, value in self._facts().items()]),
            f"## Times\n\n{_table(self.measured, _TIMES, _times)}",
            f"## Memory and first calls\n\n{_table(self.measured, _MEMORY, _memory)}",
            f"## Values\n\n{_table(self.measured, _VALUES, _values)}",
            f"## What failed\n\n{_bullets(self.faults()) or 'Nothing.'}",
            f"## What failed elsewhere\n\n{_bullets(self.peers_faults()) or 'Nothing.'}",
            f"## What PyTorch ran, and notes\n\n{_bullets(self.left_to_pytorch()) or 'Nothing.'}",
        ]
        unreached = [*self._unfinished(), *(job.name for job in self.missing)]
        if unreached:
            title = f"## Not reached in {self.settings['minutes']} minutes"
            parts.append(f"{title}\n\n{_bullets(unreached)}")
        return "\n\n".join([*parts, HOW]) + "\n"

    def _unfinished(self) -> list[str]:
        """Jobs during which the time was over."""
        return [
            f"{measured.job.name}: {known['error']}"
            for measured in self.measured
            for known in (measured.facts, *measured.variants.values())
            if OVER in known.get("error", "")
        ]

    def _facts(self) -> dict[str, object]:
        machine = self.machine
        return {
            "CPU": f"{machine.get('cpu')}, {machine.get('logical_cpus')} logical CPUs",
            "driver": self.hello.get("driver") or "unknown",
            "torch, Triton, Python": ", ".join(
                str(x) for x in (machine.get("torch"), self.hello.get("triton"),
                                 machine.get("python"))
            ),
            "commit": self.commit,
            "settings": ", ".join(f"{key} {value}" for key, value in self.settings.items()),
            **{x["name"]: x["detail"].replace("\n", "; ") for x in self.checks},
        }  # fmt: skip


def _failed(known: dict[str, Any]) -> str:
    """What failed, "" where nothing but the time was missing."""
    error: str = known.get("error", "")
    return "" if OVER in error else error


def _is_out_of_memory(name: str, error: str) -> bool:
    """Of eager mode that is a result; Lowtide is there to prevent it."""
    return name == EAGER and "OutOfMemoryError" in error


def _wrong(known: dict[str, Any]) -> list[str]:
    return [
        f"{v['name']}: {v['note']}, error {v['error']:.3g}, eager's {v['eager_error']:.3g}, "
        f"values up to {v['scale']:.3g}"
        for v in known.get("verdicts", ())
        if v["note"]
    ]


def _table(
    found: Sequence[Measured], headers: Sequence[str], cells: Callable[[Measured], list[str]]
) -> str:
    """A row a job; `cells`: of the columns behind its name."""
    rows: list[list[str]] = []
    for measured in found:
        title = GPU_PROGRAMS[measured.job.program].title
        title = f"{title} ({measured.facts.get('sizes', '')})"
        rows.append([title, measured.job.precision, measured.job.mode, *cells(measured)])
    return markdown_table(["program", "precision", "pass", *headers], rows)


def _median_ms(measured: Measured, name: str) -> float | None:
    times = measured.variants.get(name, {}).get("times_ms")
    return statistics.median(times) if times else None


_TIMES = (
    "eager", "torch.compile", "PyTorch's own", "Lowtide", "of eager", "of torch.compile",
)  # fmt: skip


def _times(measured: Measured) -> list[str]:
    peer, ours = GPU_PROGRAMS[measured.job.program].peer, _median_ms(measured, LOWTIDE)
    cells = [_time_cell(measured, name) for name in (EAGER, COMPILE)]
    own = f"{peer[0]} {_time_cell(measured, peer[0])}" if peer else ""
    ratios = [_ratio(_median_ms(measured, name), ours) for name in (EAGER, COMPILE)]
    return [*cells, own, _time_cell(measured, LOWTIDE), *ratios]


def _time_cell(measured: Measured, name: str) -> str:
    time_ms = _median_ms(measured, name)
    known = measured.variants.get(name, {})
    if time_ms is None:
        return "skipped" if "skipped" in known.get("error", "") else (
            "failed" if "error" in known else "-"
        )  # fmt: skip
    return format_ms(time_ms) + (" WRONG" if _wrong(known) else "")


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.2f}×" if theirs and ours else "-"


_MEMORY = (
    "eager", "torch.compile", "Lowtide", "predicted", "first call: torch.compile", "Lowtide",
)  # fmt: skip


def _memory(measured: Measured) -> list[str]:
    known = {name: measured.variants.get(name, {}) for name in (EAGER, COMPILE, LOWTIDE)}
    peaks = [*(x.get("peak_bytes") for x in known.values()), known[LOWTIDE].get("predicted_bytes")]
    firsts = [known[name].get("first_call_s") for name in (COMPILE, LOWTIDE)]
    return [*map(format_bytes, peaks), *("-" if x is None else f"{x:.1f} s" for x in firsts)]


_VALUES = ("checked at", "Lowtide", "torch.compile")


def _values(measured: Measured) -> list[str]:
    checked = measured.facts.get("checked") or "not checked"
    return [checked, *(_value_cell(measured.variants.get(x, {})) for x in (LOWTIDE, COMPILE))]


def _value_cell(known: dict[str, Any]) -> str:
    verdicts = known.get("verdicts")
    if not verdicts:
        return "-"
    shares = [_share(v) for v in verdicts]
    is_right = not any(v["note"] for v in verdicts)
    return f"{'right' if is_right else 'WRONG'}, {max(shares):.2g}"


def _share(verdict: dict[str, Any]) -> float:
    """Error by eager's error; 0 where there is none."""
    error, own = float(verdict["error"]), float(verdict["eager_error"])
    if math.isnan(error) or not error:
        return 0.0
    return error / own if own else math.inf


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))
