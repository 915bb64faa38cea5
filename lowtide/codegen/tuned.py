"""Compiles a Program in several tilings, and times them to find the fastest.

In:  a Program, as for `executable.compile_program`.
Out: a `Tuned`, with the interface of `Executable`. Sizes with equal numbers of bits are a class.
     The first call of a class times the tilings on its tensors, or reads an earlier result on disk.

    exp(-d) @ b, 5000 x 5000 x 64      usual 31 ms   few rows 33   long sweeps 27   → long sweeps

A tiling that needs much more memory than the cost model's (`ROOM`, `SHARE`) is not timed. One that
takes more than `GAIN` of the usual time is not chosen.
Invariant: before the choice, the predicted peak is the largest peak of all these tilings.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lowtide.codegen.executable import Executable, compile_program
from lowtide.codegen.kernels import KernelInfo, Kernels
from lowtide.codegen.machines import Kind
from lowtide.errors import BackendError
from lowtide.memory.plan import Event, RunPeak
from lowtide.runtime import facts
from lowtide.runtime.block_kernels import KernelFault
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index

LEAST_ROUNDS, MOST_ROUNDS = 3, 40
SECONDS = 0.3  # for each tiling, after the first rounds
ROOM = 1 << 20  # bytes that a tiling may need beyond the usual one …
SHARE = 0.02  # … and this share of the usual one's
GAIN = 0.97  # of the usual time: a smaller gain is noise
SLOW = 1.5  # times the best time: after the first rounds, such a tiling is dropped
_FACTS = "tilings"  # the results' kind in `runtime/facts`

Class = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The fastest tiling. `times`: milliseconds of each tiling; empty if read from disk."""

    tiling: str
    executable: Executable
    times: Mapping[str, float]


class Tuned:
    """See the module's text; its interface is that of `Executable`."""

    def __init__(
        self,
        program: Program,
        *,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
        machine: str,
    ) -> None:
        self.program = program
        self.symbols = tuple(symbols)
        self.kind = Kind(machine=machine)
        self._compile = functools.cache(
            functools.partial(
                compile_program,
                program,
                symbols=symbols,
                scalars=scalars,
                hints=hints,
                machine=machine,
            )
        )
        self.usual = self._plan("")
        self._found: dict[Class, Found] = {}
        self._latest = Found(tiling="", executable=self.usual, times={})
        self._lock = threading.RLock()

    def reusable_inputs(self, inputs: Collection[str]) -> Mapping[str, str]:
        """Return nothing: to be timed, a call runs several times on the same inputs."""
        return {}

    def input_under(self, name: str) -> str:
        return ""

    def write(self) -> None:
        """Print the kernels of the usual tiling: see `Executable`."""
        self.usual.write()

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        return self._at(sizes).too_wide(sizes)

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        return self._at(sizes).time_ns(sizes)

    def _plan(self, tiling: str) -> Executable:
        return self._compile(tiling=tiling)

    def __call__(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float]
    ) -> list[Tensor]:
        key = self._class(tensors, sizes)
        found = self._found.get(key) or self._find(key, tensors, sizes, numbers)
        return found.executable(tensors, sizes, numbers)

    def _class(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> Class:
        device = tensors[0].get_device() if tensors else -1
        return (device, *(n.bit_length() for n in sizes))

    def _find(
        self,
        key: Class,
        tensors: Sequence[Tensor],
        sizes: Sequence[int],
        numbers: Sequence[float],
    ) -> Found:
        usual = _parts(self.usual)
        if not usual or not usual[0].settle(usual[0].device_of(tensors)):
            return self._latest  # a CUDA graph is recorded; the next call tries again
        with self._lock:
            if key not in self._found:
                call = (tensors, sizes, numbers)
                known = dict(zip(self.symbols, sizes, strict=True))
                name = self._name(key, tensors)
                found = self._remembered(name, known)
                if found is None:
                    found = self._measured(known, call)
                    if min(found.times.values()) == float("inf"):
                        return found  # none ran; the next call tries again
                    facts.write(_FACTS, name, {"tiling": found.tiling})
                self._found[key] = self._latest = found
            return self._found[key]

    def _name(self, key: Class, tensors: Sequence[Tensor]) -> str:
        """Return a hash of what the choice depends on: machine, class of sizes, kernels."""
        usual = _parts(self.usual)
        parts = (usual[0].identity(tensors), repr(key), *(x.source for x in usual))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _remembered(self, name: str, sizes: Mapping[str, int]) -> Found | None:
        """Return the choice of an earlier process, None if there is none or it does not compile."""
        tiling = facts.read(_FACTS, name).get("tiling", "?")
        if tiling not in self.kind.tilings:
            return None
        ways = _compiled(dict(self._ways(sizes, [tiling])))
        return Found(tiling=tiling, executable=ways[tiling], times={}) if ways else None

    def _measured(self, sizes: Mapping[str, int], call: tuple[Any, ...]) -> Found:
        ways = _compiled(dict(self._ways(sizes, self.kind.tilings)))
        times = _times({n: functools.partial(_run, w, call) for n, w in ways.items()})
        best = min(times, key=times.__getitem__)
        best = best if times[best] < GAIN * times[""] else ""
        return Found(tiling=best, executable=ways[best], times=times)

    def _ways(
        self, sizes: Mapping[str, int], tilings: Iterable[str]
    ) -> Iterator[tuple[str, Executable]]:
        """Yield the tilings whose kernels differ, and that need little more memory."""
        most = (1 + SHARE) * self.usual.memory(sizes).peak_bytes + ROOM
        seen: set[tuple[str, ...]] = set()
        for tiling, made in _planned(self._plan, tilings):
            text = tuple(x.source for x in _parts(made))
            if text not in seen and made.memory(sizes).peak_bytes <= most:
                yield tiling, made
            seen.add(text)

    def _at(self, sizes: Mapping[str, int]) -> Executable:
        """Return the executable chosen for these sizes; without a choice, that with most memory."""
        bits = tuple(sizes[n].bit_length() for n in self.symbols)
        found = list(self._found.items())  # at once: another thread may add to them
        known = [f.executable for key, f in found if key[1:] == bits]
        ways = known or [way for _, way in self._ways(sizes, self.kind.tilings)]
        return max(ways, key=lambda way: way.memory(sizes).peak_bytes)

    # -- inspection --

    @property
    def kernels(self) -> list[KernelInfo]:
        found = self._latest
        note = f'; tiling "{found.tiling}", by measurement' if found.tiling else ""
        return [replace(k, note=k.note + note) for k in found.executable.kernels]

    @property
    def refusals(self) -> tuple[str, ...]:
        return self._latest.executable.refusals

    @property
    def stages(self) -> list[tuple[str, str]]:
        """The times of the tilings, then the stages of the latest choice: see `Executable`."""
        rows = sorted(self._latest.times.items(), key=lambda row: row[1])
        text = "\n".join(f"{ms:10.3f} ms  {name or 'usual'}" for name, ms in rows)
        return [*([("tilings", text)] if text else []), *self._latest.executable.stages]

    def memory(self, sizes: Mapping[str, int]) -> RunPeak:
        return self._at(sizes).memory(sizes)

    def events(self, sizes: Mapping[str, int]) -> Iterator[Event]:
        return self._at(sizes).events(sizes)


def compile_least(
    program: Program,
    *,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    machine: str,
) -> Executable:
    """Return the executable of the tiling with the least peak at `hints`; see `compile_program`."""
    plan = functools.partial(
        compile_program,
        program,
        symbols=symbols,
        scalars=scalars,
        hints=hints,
        machine=machine,
    )
    ways = (way for _, way in _planned(lambda n: plan(tiling=n), Kind(machine=machine).tilings))
    return min(ways, key=lambda way: way.memory(hints).peak_bytes)


def _planned(
    plan: Callable[[str], Executable], tilings: Iterable[str]
) -> Iterator[tuple[str, Executable]]:
    """Yield the program in each tiling, except tilings that the planner fails at. A failure at the
    usual tiling is raised."""
    for tiling in tilings:
        try:
            made = plan(tiling)
        except AssertionError:
            if not tiling:
                raise
            continue
        yield tiling, made


def _parts(way: Executable) -> list[Kernels]:
    return list(way.kernels_by_head.values())


def _compiled(ways: Mapping[str, Executable]) -> dict[str, Executable]:
    """Return the executables that compile, and the usual one, whose error its first run raises."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = {n: [pool.submit(x.bound) for x in _parts(w)] for n, w in ways.items()}
    return {n: w for n, w in ways.items() if not n or all(map(_is_made, made[n]))}


def _is_made(kernels: Any) -> bool:
    return not isinstance(kernels.exception(), BackendError)


def _run(way: Executable, call: tuple[Any, ...]) -> float:
    """Return the milliseconds of one call; infinity if a launch fails or memory runs out."""
    first = _parts(way)[0]
    settle = functools.partial(first.settle, first.device_of(call[0]))
    settle()
    start = time.perf_counter_ns()
    try:
        way(*call)
    except (KernelFault, torch.OutOfMemoryError):
        return float("inf")
    settle()
    return (time.perf_counter_ns() - start) / 1e6


def _times(ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return the least milliseconds of each tiling. They take turns, after one untimed call."""
    for way in ways.values():
        way()
    best, spent = dict.fromkeys(ways, float("inf")), dict.fromkeys(ways, 0.0)
    for k in range(MOST_ROUNDS):
        limit = SLOW * min(best.values())
        for name, way in ways.items():
            is_known = spent[name] > SECONDS * 1e3 or (name and best[name] > limit)
            if k >= LEAST_ROUNDS and is_known:
                continue
            spent[name] += (ms := way())
            best[name] = min(best[name], ms)
    return best
