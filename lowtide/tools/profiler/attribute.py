"""Combines PyTorch's events and the notes to operators and memory events with source lines.

In: a `Capture`. Out: an `Attribution`: operators, and memory events in order of time.

An operator is what the user's code or autograd called: `aten::sub`. The bytes of the `aten::empty`
inside it count as `aten::sub`'s. An operator in which the user's code runs again (a custom autograd
function, a region of torch.compile) is split into the operators that this code calls.

    forward    its line is that of the latest note before it, on its thread
    backward   its line is that of the forward operator with the node's sequence number
    freed      may happen outside of operators, when Python frees a tensor
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lowtide.tools.profiler import watch
from lowtide.tools.profiler.clock import ClockMap, Notes
from lowtide.tools.profiler.records import BACKWARD, FORWARD, NOWHERE, OPTIMIZER, Operator, Place
from lowtide.tools.profiler.session import Capture

OUTSIDE = "(outside operators)"
_MEMORY = "[memory]"
_NODE = "autograd::engine::evaluate_function: "
# Names of ranges that PyTorch records around operators.
_RANGES = (
    "Torch-Compiled Region",
    "TorchDynamo ",
    "## Call CompiledFxGraph",
    "CompiledFunction",
    "Optimizer.",
)


class MemoryEvent(NamedTuple):
    """An allocation of `nbytes`, or a free if negative, and the operator in which it happened."""

    time_ns: int
    address: int
    nbytes: int
    device: str
    operator: Operator | None


@dataclass(slots=True)
class _Around:
    """The context of an event: the phase, and the backward node around it."""

    phase: str = FORWARD
    node_place: Place | None = None  # the place of the node's forward operator
    node_begin_ns: int = 0


class Attribution:
    """The operators and memory events of one capture, in order of time."""

    def __init__(self, capture: Capture) -> None:
        self.operators: list[Operator] = []
        self.memory: list[MemoryEvent] = []
        self.steps_ns: list[int] = []
        self._by_sequence: dict[int, Place] = {}
        roots = [(e.start_time_ns, e.start_tid, e) for e in capture.events]
        roots.sort(key=lambda root: root[0])
        self.begin_ns = roots[0][0] if roots else 0
        self._read_notes(capture, (root[2] for root in roots))
        for _, thread, event in roots:
            self._visit(event, thread, _Around())
        if self._main_clock is not None:
            for time_ns, address, nbytes in capture.arena:
                at_ns = self._main_clock(time_ns)
                self.memory.append(MemoryEvent(at_ns, address, nbytes, "cpu", None))
        self.memory.sort(key=lambda event: event.time_ns)
        self.operators.sort(key=lambda operator: operator.begin_ns)
        self.end_ns = max([self.begin_ns, *(o.end_ns for o in self.operators)])

    def _read_notes(self, capture: Capture, roots: Iterable[Any]) -> None:
        anchors: dict[int, list[int]] = {}
        thread_of: dict[int, int] = {}
        waiting = list(roots)
        while waiting:
            event = waiting.pop()
            name = event.name
            if name == _MEMORY:
                continue  # has no children; reading that of so many events would be slow
            waiting += event.children
            if name.startswith(watch.ANCHOR):
                index = int(name.removeprefix(watch.ANCHOR))
                anchors.setdefault(index, []).append(event.start_time_ns)
                thread_of[index] = event.start_tid
        self.notes: dict[int, Notes] = {}
        self.threads: dict[int, str] = {}
        self._main_clock: ClockMap | None = None
        self._main_notes: Notes | None = None
        for watcher in capture.watchers:
            thread = thread_of.get(watcher.index)
            if thread is None:
                continue
            clock = ClockMap(watcher.anchors, sorted(anchors[watcher.index]))
            self.notes[thread] = Notes(watcher, clock)
            self.threads[thread] = watcher.thread_name
            if watcher.index == 0:
                self._main_clock, self._main_notes = clock, self.notes[thread]

    # -- the tree of events --

    def _visit(self, event: Any, thread: int, around: _Around) -> None:
        name: str = event.name
        if name == _MEMORY:
            self._allocation_outside(event, _recorded_bytes(event), thread, around)
        elif not name.startswith("["):  # such as "[OutOfMemory]"
            if name.startswith("lowtide."):
                self._own_mark(event, name, thread, around)
            elif name.startswith(_NODE):
                self._node(event, name.removeprefix(_NODE), thread)
            elif _is_range(event, name):
                phase = OPTIMIZER if name.startswith("Optimizer.") else around.phase
                inner = _Around(phase, around.node_place, around.node_begin_ns)
                self._range(event, name, thread, inner)
            elif event.children and self._has_notes_within(event, thread):
                self._range(event, name, thread, around)
            else:
                self._operator(event, name, thread, around)

    def _own_mark(self, event: Any, name: str, thread: int, around: _Around) -> None:
        if name.startswith(watch.OP):
            self._operator(event, "lowtide::" + name.removeprefix(watch.OP), thread, around)
        elif name.startswith(watch.ARENA):
            self._allocation_outside(event, _marked_bytes(name), thread, around)
        elif name == watch.STEP:
            self.steps_ns.append(event.start_time_ns)
        elif name == watch.INSIDE:
            for child in event.children:
                self._visit(child, thread, around)

    def _operator(self, event: Any, name: str, thread: int, around: _Around) -> None:
        operator = self._new_operator(event, name, thread, around)
        sequence = event.extra_fields.sequence_number
        if sequence >= 0:
            self._by_sequence[sequence] = operator.place
        waiting = event.children
        while waiting:
            deeper: list[Any] = []
            for child in waiting:
                name = child.name
                if name == _MEMORY:
                    self._allocation(child, _recorded_bytes(child), operator)
                elif name.startswith(watch.ARENA):
                    self._allocation(child, _marked_bytes(name), operator)
                elif not name.startswith("["):
                    deeper += child.children
                    sequence = child.extra_fields.sequence_number
                    if sequence >= 0:
                        self._by_sequence[sequence] = operator.place
            waiting = deeper

    def _node(self, event: Any, name: str, thread: int) -> None:
        name = name.rpartition("::")[2]
        begin_ns = event.start_time_ns
        place = self._by_sequence.get(event.extra_fields.sequence_number)
        if place is None:  # AccumulateGrad, or the forward pass was not recorded
            place = self._noted(thread, begin_ns)
        around = _Around(BACKWARD, place, begin_ns)
        if self._has_notes_within(event, thread):
            self._range(event, name, thread, around)
        else:
            self._operator(event, name, thread, around)

    def _range(self, event: Any, name: str, thread: int, around: _Around) -> None:
        """Visit a range of operators. Allocations directly in it make it an operator itself."""
        own: Operator | None = None
        inside_ns = 0
        for child in event.children:
            if child.name == _MEMORY:
                if own is None:
                    own = self._new_operator(event, name, thread, around)
                self._allocation(child, _recorded_bytes(child), own)
            else:
                inside_ns += child.duration_time_ns
                self._visit(child, thread, around)
        if own is None and name.startswith(_RANGES[0]):
            own = self._new_operator(event, name, thread, around)
        if own is not None:
            own.self_ns = max(own.self_ns - inside_ns, 0)

    def _new_operator(self, event: Any, name: str, thread: int, around: _Around) -> Operator:
        begin_ns, end_ns = event.start_time_ns, event.end_time_ns
        operator = Operator(
            name=name,
            phase=around.phase,
            place=self._place(thread, begin_ns, around),
            thread=thread,
            begin_ns=begin_ns,
            end_ns=end_ns,
            self_ns=end_ns - begin_ns,
        )
        self.operators.append(operator)
        return operator

    def _allocation_outside(
        self, event: Any, what: tuple[int, int, str], thread: int, around: _Around
    ) -> None:
        is_freed = what[1] <= 0
        operator = None if is_freed else self._new_operator(event, OUTSIDE, thread, around)
        self._allocation(event, what, operator)

    def _allocation(
        self, event: Any, what: tuple[int, int, str], operator: Operator | None
    ) -> None:
        nbytes = what[1]
        if operator is not None:
            if nbytes > 0:
                operator.allocated_bytes += nbytes
            else:
                operator.freed_bytes -= nbytes
        self.memory.append(MemoryEvent(event.start_time_ns, *what, operator))

    # -- source lines --

    def _place(self, thread: int, time_ns: int, around: _Around) -> Place:
        if around.node_place is not None:
            notes = self.notes.get(thread)
            if notes is None or not notes.within(around.node_begin_ns, time_ns):
                return around.node_place
        return self._noted(thread, time_ns)

    def _noted(self, thread: int, time_ns: int) -> Place:
        # On autograd's own threads: the place of the first thread, which waits in backward().
        notes = self.notes.get(thread) or self._main_notes
        return notes.before(time_ns) if notes is not None else NOWHERE

    def _has_notes_within(self, event: Any, thread: int) -> bool:
        notes = self.notes.get(thread)
        if notes is None:
            return False
        return notes.within(event.start_time_ns, event.end_time_ns)


def _is_range(event: Any, name: str) -> bool:
    if name.startswith("aten::"):
        return False
    return name.startswith(_RANGES) or event.extra_fields.scope.name == "USER_SCOPE"


def _recorded_bytes(event: Any) -> tuple[int, int, str]:
    """Return (address, bytes, device) of an allocator's event; bytes are negative for a free."""
    fields = event.extra_fields
    return fields.ptr, fields.alloc_size, _name_of_device(fields.device)


def _marked_bytes(name: str) -> tuple[int, int, str]:
    """The same for an event of the arena, which its name encodes."""
    nbytes, _, address = name.removeprefix(watch.ARENA).partition(" ")
    return int(address), int(nbytes), "cpu"


@functools.cache
def _name_of_device(device: Any) -> str:
    return str(device)
