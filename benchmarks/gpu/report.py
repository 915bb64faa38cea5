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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import Measured
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
    """Everything so far. `hello`: of the first child; `missing`: jobs for which there was no time;
    `settings`: of the command."""

    settings: dict[str, Any]
    commit: str
    hello: dict[str, Any] = field(default_factory=dict[str, Any])
    measured: list[Measured] = field(default_factory=list[Measured])
    missing: list[Job] = field(default_factory=list[Job])

    @property
    def stem(self) -> str:
        """Date and GPU, for file names."""
        gpu = str(self.hello.get("machine", {}).get("gpu", "")).partition(",")[0]
        slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "no-gpu"
        return f"{datetime.date.today().isoformat()}-{slug}-gpu"

    def write(self, folder: Path) -> Path:
        """Both files, each replaced at once; gives the Markdown's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in ((".json", self.to_json()), (".md", self.to_markdown())):
            new = folder / f".{self.stem}{ending}.new"
            new.write_text(text)
            os.replace(new, folder / f"{self.stem}{ending}")
        return folder / f"{self.stem}.md"

    def to_json(self) -> str:
        """All raw numbers."""
        whole = {
            "date": datetime.date.today().isoformat(),
            "commit": self.commit,
            "settings": self.settings,
            **{key: value for key, value in self.hello.items() if key != "kind"},
            "how": HOW,
            "jobs": [measured.to_dict() for measured in self.measured],
            "not_reached": [job.name for job in self.missing],
            "faults": self.faults(),
        }
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"

    def faults(self) -> list[str]:
        """What was wrong or failed in Lowtide, in eager mode or in this benchmark."""
        found: list[str] = []
        for measured in self.measured:
            if "error" in measured.facts:
                found.append(f"{measured.job.name}: {measured.facts['error']}")
            for name in (EAGER, LOWTIDE):
                known = measured.variants.get(name, {})
                if "error" in known and not _is_out_of_memory(name, known["error"]):
                    found.append(f"{measured.job.name}: {name}: {known['error']}")
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
            for says in [*_wrong(known), *([known["error"]] if "error" in known else [])]
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
        machine = self.hello.get("machine", {})
        parts = [
            f"# Lowtide on {machine.get('gpu', 'a GPU')}",
            _bullets([f"{key}: {value}" for key, value in self._facts(machine).items()]),
            f"## Times\n\n{_times(self.measured)}",
            f"## Memory and first calls\n\n{_memory(self.measured)}",
            f"## Values\n\n{_values(self.measured)}",
            f"## What failed\n\n{_bullets(self.faults()) or 'Nothing.'}",
            f"## What failed elsewhere\n\n{_bullets(self.peers_faults()) or 'Nothing.'}",
            f"## What PyTorch ran, and notes\n\n{_bullets(self.left_to_pytorch()) or 'Nothing.'}",
        ]
        if self.missing:
            names = _bullets([job.name for job in self.missing])
            parts.append(f"## Not reached in {self.settings['minutes']} minutes\n\n{names}")
        return "\n\n".join([*parts, HOW]) + "\n"

    def _facts(self, machine: dict[str, Any]) -> dict[str, object]:
        checks = self.hello.get("checks", [])
        return {
            "CPU": f"{machine.get('cpu')}, {machine.get('logical_cpus')} logical CPUs",
            "driver": self.hello.get("driver") or "unknown",
            "torch, Triton, Python": ", ".join(
                str(x) for x in (machine.get("torch"), self.hello.get("triton"),
                                 machine.get("python"))
            ),
            "commit": self.commit,
            "settings": ", ".join(f"{key} {value}" for key, value in self.settings.items()),
            **{x["name"]: x["detail"].replace("\n", "; ") for x in checks},
        }  # fmt: skip


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


def _title(measured: Measured) -> str:
    program = GPU_PROGRAMS[measured.job.program]
    return f"{program.title} ({measured.facts.get('sizes', '')})"


def _peer(measured: Measured) -> str | None:
    peer = GPU_PROGRAMS[measured.job.program].peer
    return peer[0] if peer else None


def _head(measured: Measured) -> list[str]:
    return [_title(measured), measured.job.precision, measured.job.mode]


def _median_ms(measured: Measured, name: str | None) -> float | None:
    times = measured.variants.get(name or "", {}).get("times_ms")
    return statistics.median(times) if times else None


def _times(found: Sequence[Measured]) -> str:
    headers = [
        "program", "precision", "pass", "eager", "torch.compile", "PyTorch's own", "Lowtide",
        "of eager", "of torch.compile",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for measured in found:
        peer, ours = _peer(measured), _median_ms(measured, LOWTIDE)
        cells = [_time_cell(measured, name) for name in (EAGER, COMPILE)]
        own = f"{peer} {_time_cell(measured, peer)}" if peer else ""
        ratios = [_ratio(_median_ms(measured, name), ours) for name in (EAGER, COMPILE)]
        rows.append([*_head(measured), *cells, own, _time_cell(measured, LOWTIDE), *ratios])
    return markdown_table(headers, rows)


def _time_cell(measured: Measured, name: str) -> str:
    time_ms = _median_ms(measured, name)
    known = measured.variants.get(name, {})
    if time_ms is None:
        return "skipped" if "skipped" in known.get("error", "") else (
            "failed" if "error" in known else "-"
        )  # fmt: skip
    return format_ms(time_ms * 1e6) + (" WRONG" if _wrong(known) else "")


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.2f}×" if theirs and ours else "-"


def _memory(found: Sequence[Measured]) -> str:
    headers = [
        "program", "precision", "pass", "eager", "torch.compile", "Lowtide", "predicted",
        "first call: torch.compile", "Lowtide",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for measured in found:
        known = {name: measured.variants.get(name, {}) for name in (EAGER, COMPILE, LOWTIDE)}
        peaks = [format_bytes(x.get("peak_bytes")) for x in known.values()]
        firsts = [known[name].get("first_call_s") for name in (COMPILE, LOWTIDE)]
        rows.append(
            [
                *_head(measured),
                *peaks,
                format_bytes(known[LOWTIDE].get("predicted_bytes")),
                *("-" if x is None else f"{x:.1f} s" for x in firsts),
            ]
        )
    return markdown_table(headers, rows)


def _values(found: Sequence[Measured]) -> str:
    headers = ["program", "precision", "pass", "checked at", "Lowtide", "torch.compile"]
    rows = [
        [
            *_head(measured),
            measured.facts.get("checked") or "not checked",
            *(_value_cell(measured.variants.get(name, {})) for name in (LOWTIDE, COMPILE)),
        ]
        for measured in found
    ]
    return markdown_table(headers, rows)


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
