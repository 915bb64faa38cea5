"""The parent's side of a child process that measures: time limits, crashes, a new one in its place.

In: jobs, one after another. Out: a `Measured` each, which says what failed. What a child was doing
when it crashed, hung or took too long is left out when the job is given to the next child.

    child = Child([sys.executable, "-m", "benchmarks.gpu.worker", "full"], log)
    measured = child.measure(job, seconds=20.0, limits=Limits(compile_s=60, stage_s=120))
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.jobs import Job
from benchmarks.gpu.measure import COMPILE

_START_S = 300.0  # for imports, and for what the first check compiles


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds: of torch.compile's first call, of any other stage; `end_s`: of time.monotonic()."""

    compile_s: float = 60.0
    stage_s: float = 120.0
    end_s: float = float("inf")

    def of(self, variant: str, stage: str) -> float:
        """How long a stage may take."""
        is_compiling = variant == COMPILE and stage == "first call"
        return self.compile_s if is_compiling else self.stage_s


@dataclass(kw_only=True)
class Measured:
    """One job: its own facts, and those of each variant."""

    job: Job
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    variants: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def take(self, event: Mapping[str, Any]) -> None:
        """What was measured first stays: later children find warm caches."""
        facts = {key: value for key, value in event.items() if key not in ("kind", "name")}
        if event["kind"] == "job":
            self.facts |= facts
        elif event["kind"] == "variant":
            known = self.variants.setdefault(event["name"], {})
            if "first_call_s" in known:
                facts.pop("first_call_s", None)
            known |= facts

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self.job), **self.facts, "variants": self.variants}


class Child:
    """A process that answers with events; started when first needed, again after a crash."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.command, self.log, self.env = list(command), log, dict(env)
        self.hello: dict[str, Any] = {}
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()

    def start(self) -> str:
        """Starts it, if it does not run; why it did not, "" if it did."""
        if self._process is not None and self._process.poll() is None:
            return ""
        self.starts += 1
        self._events = queue.Queue()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=self.env, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        reader = threading.Thread(
            target=_read, args=(self._process.stdout, self._events), daemon=True
        )
        reader.start()
        event = self._next(_START_S)
        if event is None or event["kind"] != "hello":
            return f"the child process did not start: {self.stop()}"
        self.hello = event
        return ""

    def measure(self, job: Job, seconds: float, limits: Limits) -> Measured:
        """All of a job that can be had, by as many children as that takes."""
        measured, skip = Measured(job=job), dict[str, str]()
        end_s = min(time.monotonic() + seconds, limits.end_s)
        while True:
            fault = self.start()
            if fault:
                measured.facts["error"] = fault
                return measured
            left_s = max(end_s - time.monotonic(), 1.0)
            variant, fault = self._attempt(measured, skip, left_s, limits)
            if not fault:
                return measured
            if not variant or variant in skip or time.monotonic() > limits.end_s:
                where = measured.variants.setdefault(variant, {}) if variant else measured.facts
                where["error"] = fault
                return measured
            skip[variant] = fault

    def _attempt(
        self, measured: Measured, skip: Mapping[str, str], seconds: float, limits: Limits
    ) -> tuple[str, str]:
        """One child's try. Which variant ended it, and how; "", "" if nothing did."""
        assert self._process is not None
        assert self._process.stdin is not None
        asked = {"job": dataclasses.asdict(measured.job), "seconds": seconds, "skip": skip}
        variant, stage = "", "start"
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError:
            return variant, f"{stage}: {self.stop()}"
        limit_s = limits.stage_s
        while True:
            event = self._next(min(limit_s, limits.end_s - time.monotonic()))
            if event is None:
                self.stop()
                return variant, f"{stage}: skipped, as it took more than {limit_s:.3g} s"
            if event["kind"] == "end":
                said = measured.variants.get(variant, {}).get("error", "")
                return variant, said or f"{stage}: {self.stop()}"
            if event["kind"] == "done":
                return "", ""
            if event["kind"] == "stage":
                variant, stage = event["variant"], event["stage"]
                limit_s = limits.of(variant, stage)
            else:
                measured.take(event)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next event; None if none came in time. The last one is `{"kind": "end"}`."""
        try:
            return self._events.get(timeout=max(seconds, 0.0))
        except queue.Empty:
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
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return f"{how}; {self._last_line()}".rstrip("; ")

    def _last_line(self) -> str:
        lines = [x for x in self.log.read_text(errors="replace").splitlines() if x.strip()]
        return lines[-1].strip()[:300] if lines else ""


def _read(stream: TextIO, events: queue.Queue[dict[str, Any]]) -> None:
    """Events until the process ends."""
    try:
        for line in stream:
            events.put(json.loads(line))
    except (ValueError, OSError):
        pass  # closed meanwhile, or half a line of a process that was ended
    events.put({"kind": "end"})
