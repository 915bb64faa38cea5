"""The parent's side of a child process that measures: time limits, crashes, a new one in its place.

In: jobs, one after another. Out: a `Measured` each, which says what failed. What a child was doing
when it crashed, hung or took too long is left out when the job is given to the next child. After
two starts in a row that failed there is no child any more, and `lost` says why.

    limits = Limits(compile_s=60, stage_s=90)
    child = Child([sys.executable, "-m", "benchmarks.gpu.worker", "full"], log, env)
    measured = child.measure(job, seconds=20.0, limits=limits)
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.jobs import Job
from benchmarks.gpu.measure import COMPILE, EAGER

OVER = "the time was over"
SKIPPED = "skipped, as it took more than"
_START_S = 240.0  # at most, for imports; a disk may be slow at first
_MOST_STARTS = 2  # in a row
_LEAST_S = 20.0  # of a stage, though that is more than a third of what is left
_KILLED_S = 10.0  # until a killed process is gone: a GPU that hangs may keep it

_Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds: of torch.compile's first call, of any other stage; `end_s`: of time.monotonic()."""

    compile_s: float = 60.0
    stage_s: float = 90.0
    end_s: float = float("inf")

    @property
    def left_s(self) -> float:
        """Of the whole time."""
        return max(self.end_s - time.monotonic(), 0.0)

    def of(self, variant: str, stage: str) -> float:
        """How long a stage may take that begins now: one that hangs leaves time for others."""
        is_compiling = variant == COMPILE and stage == "first call"
        limit_s = self.compile_s if is_compiling else self.stage_s
        return min(limit_s, max(self.left_s / 3, _LEAST_S))


@dataclass(kw_only=True)
class Measured:
    """One job: its own facts, and those of each variant."""

    job: Job
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    variants: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def take(self, event: Mapping[str, Any]) -> None:
        """What was measured first stays: later children find warm caches."""
        facts = {key: x for key, x in event.items() if key not in ("kind", "name", "error")}
        variant = event["name"] if event["kind"] == "variant" else ""
        known = self._of(variant)
        if "first_call_s" in known:
            facts.pop("first_call_s", None)
        known |= facts
        if "error" in event:
            self.fail(variant, event["error"])

    def fail(self, variant: str, says: str) -> None:
        """Notes what failed, of a variant or, "", of the job, behind what had failed before."""
        known = self._of(variant)
        before = known.get("error", "")
        if says not in before:
            known["error"] = f"{before}; then {says}" if before else says

    def _of(self, variant: str) -> dict[str, Any]:
        return self.variants.setdefault(variant, {}) if variant else self.facts

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self.job), **self.facts, "variants": self.variants}


class Child:
    """A process that answers with events; started when first needed, again after a crash."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.command, self.log, self.env = list(command), log, dict(env)
        self.hello: dict[str, Any] = {}
        self.starts = 0
        self.lost = ""
        # By program and mode the variants that took too long: in another precision they do, too.
        self._slow: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict[str, str])
        self._process: subprocess.Popen[str] | None = None
        self._events: queue.Queue[_Event] = queue.Queue()

    def start(self, limits: Limits) -> str:
        """Starts it, if it does not run; why it did not, "" if it did."""
        if self._process is not None and self._process.poll() is None:
            return ""
        self.stop()
        faults: list[str] = []
        while not self.lost and limits.left_s > 0:
            fault = self._start(min(_START_S, limits.left_s / 2))
            if not fault:
                return ""
            faults.append(fault)
            if len(faults) == _MOST_STARTS:
                self.lost = f"no child process starts: {'; then '.join(dict.fromkeys(faults))}"
        return self.lost or OVER

    def _start(self, seconds: float) -> str:
        self.starts += 1
        self._events = queue.Queue()
        try:
            with self.log.open("a") as log:
                self._process = subprocess.Popen(
                    self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    text=True, encoding="utf-8", env=self.env, start_new_session=True,
                )  # fmt: skip
        except OSError as fault:
            return str(fault)
        assert self._process.stdout is not None
        reader = threading.Thread(
            target=_read, args=(self._process.stdout, self._events), daemon=True
        )
        reader.start()
        event = self._next(seconds)
        if event is None:
            self.stop()
            return f"no answer in {seconds:.0f} s"
        if event["kind"] != "hello":
            return self.stop()
        self.hello = self.hello or event
        return ""

    def checks(self, limits: Limits) -> list[dict[str, Any]]:
        """What `lowtide doctor` says of the machine, and what failed meanwhile."""
        found: list[dict[str, Any]] = []
        fault = self.start(limits) or self._ask({}, found.append, limits)[1]
        if fault:
            found.append({"name": "checks", "ok": False, "detail": fault, "remedy": ""})
        return [{key: x for key, x in check.items() if key != "kind"} for check in found]

    def measure(self, job: Job, seconds: float, limits: Limits) -> Measured:
        """All of a job that can be had, by as many children as that takes."""
        measured, end_s = Measured(job=job), time.monotonic() + seconds
        slow = self._slow[job.program, job.mode]
        skip = dict(slow)
        while True:
            fault = self.start(limits)
            if fault:
                measured.fail("", fault)
                return measured
            before = {name: known.get("error") for name, known in measured.variants.items()}
            left_s = max(end_s - time.monotonic(), 1.0)
            asked = {"job": dataclasses.asdict(job), "seconds": left_s, "skip": skip}
            variant, fault = self._ask(asked, measured.take, limits)
            if not fault:
                return measured
            says = measured.variants.get(variant, {}).get("error")
            if says == before.get(variant):  # else the child has told why it ended
                measured.fail(variant, fault)
            if SKIPPED in fault and variant not in ("", EAGER):
                slow[variant] = f"{fault} in {job.name}"
            if not variant or variant in skip or OVER in fault:
                return measured
            skip[variant] = says or fault

    def _ask(
        self, asked: Mapping[str, Any], take: Callable[[_Event], None], limits: Limits
    ) -> tuple[str, str]:
        """One child's try. Which variant ended it, and how; "", "" if nothing did."""
        assert self._process is not None
        assert self._process.stdin is not None
        variant, stage = "", "start"
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError:
            return variant, f"{stage}: {self.stop()}"
        limit_s = limits.of(variant, stage)
        while True:
            event = self._next(min(limit_s, limits.left_s))
            if event is None:
                self.stop()
                is_over = limits.left_s <= 0
                return variant, f"{stage}: {OVER if is_over else f'{SKIPPED} {limit_s:.3g} s'}"
            if event["kind"] == "end":
                return variant, f"{stage}: {self.stop()}"
            if event["kind"] == "done":
                return "", ""
            if event["kind"] == "stage":
                variant, stage = event["variant"], event["stage"]
                limit_s = limits.of(variant, stage)
            else:
                take(event)

    def _next(self, seconds: float) -> _Event | None:
        """The next event; None if none came in time. The last one is `{"kind": "end"}`."""
        end_s = time.monotonic() + seconds
        while True:
            left_s = end_s - time.monotonic()
            is_dead = self._process is None or self._process.poll() is not None
            try:
                return self._events.get(timeout=min(max(left_s, 0.0), 1.0))
            except queue.Empty:
                if is_dead:  # and what it has started holds its pipes
                    return {"kind": "end"}
            if left_s <= 0:
                return None

    def stop(self) -> str:
        """Ends it, and what it started; how it had ended."""
        process, self._process = self._process, None
        if process is None:
            return "not running"
        try:
            status = process.wait(timeout=0.5)
            how = f"crashed with {signal.Signals(-status).name}" if status < 0 else (
                f"ended with status {status}"
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            how = "did not answer"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # compilers that it runs are of its group
        try:
            process.wait(_KILLED_S)
        except subprocess.TimeoutExpired:
            how += "; it cannot be killed"
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        return f"{how}; {self._last_line()}".rstrip("; ")

    def _last_line(self) -> str:
        lines = [x for x in self.said().splitlines() if x.strip()]
        return lines[-1].strip()[:300] if lines else ""

    def said(self) -> str:
        """What all children have written to stderr."""
        try:
            return self.log.read_text("utf-8", errors="replace")
        except OSError:
            return ""


def _read(stream: TextIO, events: queue.Queue[_Event]) -> None:
    """Events until the process ends."""
    with stream:
        for line in stream:
            with contextlib.suppress(json.JSONDecodeError):  # half a line of a process that ended
                events.put(json.loads(line))
    events.put({"kind": "end"})
