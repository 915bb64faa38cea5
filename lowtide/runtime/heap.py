"""The heap of the C library, out of which PyTorch's tensors on the CPU come.

glibc keeps what was freed in pieces under 32 MiB: its pages stay resident, in holes that the next
tensor may not fit into. A `Trimmer` gives such pages back before they make a call hold more than it
may. Of other C libraries no holes are known, and there it does nothing.

    with trimming(Trimmer(most_bytes=512 << 20, growth_bytes=16 << 20)):
        ...        check() before each op: if what is resident might pass the limit, pages go back
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import torch

from lowtide.runtime import arena, libc
from lowtide.runtime.mapped import Mapped

BACKWARD: Final = "backward"  # and an op: by which the growth of its backward pass is known
COTANGENTS: Final = "cotangents"  # as an op: what the caller makes to go backward with
NONE_KNOWN: Final[Mapping[object, int]] = MappingProxyType({})
_FOLLOWED: Final = "lowtide.followed"  # in the metadata of a node
_MOST_NODES: Final = 64  # of one op
_NO_TASK: Final = -1
_NOISE_BYTES: Final = 1 << 19  # the kernel counts resident pages on each CPU, and adds up then
_FRESH_NS: Final = 50_000
_FRESH_BYTES: Final = 1 << 18  # more new pages no process touches in that time
_LONG_NS: Final = 500_000  # to count the heap's pieces: that is then not done again
_RESTS: Final = 10  # … for so many times as long
_MOST_STRAYS: Final = 4  # each looks through the heap in vain
_CALLS_ALONE: Final = 32

_ask_again_ns = 0


class Trimmer:
    """Of one call, and of the backward passes of its results. `most_bytes`: what may be resident
    beyond what is when this is made; `growth_bytes`: what one op adds at most; `growths`: the same
    by op, where it is known."""

    __slots__ = (
        "__weakref__", "_ends_task", "_growth_bytes", "_growths", "_mapped", "_most_bytes",
        "_start_bytes", "outer",
    )  # fmt: skip
    takes_heap = True  # whether results may lie over what the heap has, since its pages go back
    _is_tight = True  # whether the arena's free blocks go back, too

    def __init__(
        self, *, most_bytes: int, growth_bytes: int, growths: Mapping[object, int] = NONE_KNOWN
    ) -> None:
        self._most_bytes = most_bytes
        self._growth_bytes = growth_bytes
        self._growths = growths
        self._start_bytes = libc.resident_bytes()
        self._mapped = Mapped()
        self._ends_task = _NO_TASK  # the backward pass at whose end it is told
        self.outer = _around()

    def check(self, op: object = None, known_bytes: int = 0) -> None:
        """Before an op: see `make_room`. `known_bytes`: what it adds, if nobody here knows."""
        nbytes = self._growths.get(op, max(self._growth_bytes, known_bytes))
        if self.outer is not None:
            self.outer.check(op, nbytes)
        self.make_room(nbytes)

    def make_room(self, nbytes: int) -> None:
        """Gives free pages back if so much more might pass the limit beside them, those of the
        arena first, which come back for less; where that is not enough, ops run in pages of their
        own."""
        if self._frees(self._most_bytes - nbytes):
            self._mapped.off()
            return
        self._mapped.on()
        now_bytes = libc.resident_bytes()
        if now_bytes - self._start_bytes > self._most_bytes + _NOISE_BYTES:
            # neither of this call nor free: it would be looked for before each op
            self._start_bytes = now_bytes - (self._most_bytes - nbytes)

    def _frees(self, limit_bytes: int) -> bool:
        """Whether no more than so much is resident, after what can go has gone back; or nothing
        can."""
        end_bytes = self._start_bytes + limit_bytes
        if 0 < libc.resident_bytes() <= end_bytes:
            return True
        if self._is_tight:
            arena.empty_cache()
        if libc.resident_bytes() <= end_bytes or not libc.trim():
            return True
        return libc.resident_bytes() <= end_bytes

    def hand_out(self, known_bytes: int = 0) -> None:
        """After the call's last op, with its results alive: the caller may go backward.
        `known_bytes`: with so much, if that has not been told."""
        if cotangent_bytes := self._growths.get(COTANGENTS, known_bytes):
            self.make_room(cotangent_bytes)

    def end(self) -> None:
        """After the last op of the call, or of a backward pass."""
        self._mapped.off()

    def has_room(self, nbytes: int) -> bool:
        """Whether so much more may be resident, and any op's needs beside it."""
        now_bytes = libc.resident_bytes()
        more_bytes = now_bytes - self._start_bytes + nbytes + self._growth_bytes
        return self._is_tight and now_bytes > 0 and more_bytes <= self._most_bytes

    def is_short(self) -> bool:
        """Whether what is free now cannot stay beside any op's needs."""
        return self._is_tight and not self.has_room(0)

    def nodes(self, operands: Iterable[Any]) -> set[Any]:
        """Of the graph behind these, for `follow`: before the op, which may write into them."""
        return {x.grad_fn for x in _tensors(operands)}

    def follow(self, given: Container[Any], results: Iterable[Any], op: object = None) -> None:
        """Checks before the backward pass of an op, too, of which some have several nodes: those
        behind its results, but not behind what it was `given`."""
        todo: list[Any] = [x.grad_fn for x in _tensors(results) if x.requires_grad]
        if not todo:
            return
        left = _MOST_NODES
        while todo and left:
            node = todo.pop()
            if node is None or node in given or not self.stand_before(node, op):
                continue
            todo += [below for below, _ in node.next_functions]
            left -= 1

    def stand_before(self, node: Any, op: object) -> bool:
        """Checks before this node of a backward pass; False where it does, or it is a leaf's."""
        if _is_leaf(node) or _FOLLOWED in node.metadata:
            return False
        node.metadata[_FOLLOWED] = True
        node.register_prehook(functools.partial(self.before_node, (BACKWARD, op)))
        return True

    def before_node(self, op: object, *_: object) -> None:
        """A backward pass comes to a node."""
        self._before(op, 0)

    def _before(self, op: object, known_bytes: int) -> None:
        nbytes = self._growths.get(op, max(self._growth_bytes, known_bytes))
        if self.outer is not None:
            self.outer._before(op, nbytes)
        task = _graph_task()
        _now.backward = task, weakref.ref(self)
        self._make_room_for_node(nbytes)
        if self._mapped.is_on and self._ends_task != task:
            self._ends_task = task
            torch.autograd.Variable._execution_engine.queue_callback(self.end)  # pyright: ignore

    def _make_room_for_node(self, nbytes: int) -> None:
        self.make_room(nbytes)


class Strays:
    """What is known of calls that may not be as predicted, of which data decide what is run. When
    they have been so a few times nothing is looked for during the next calls, for others may have
    made them so; and a tenth of the time at most goes into looking through the heap."""

    __slots__ = ("_count", "_resume_ns")

    def __init__(self) -> None:
        self._count = self._resume_ns = 0

    def begin(self) -> bool:
        """A call begins: whether it is looked at."""
        self._count += self._count >= _MOST_STRAYS
        if self._count > _MOST_STRAYS + _CALLS_ALONE:
            self._count = 0
        return self._count < _MOST_STRAYS

    def are_left_alone(self) -> bool:
        """For now."""
        return self._count >= _MOST_STRAYS or time.monotonic_ns() < self._resume_ns

    def see(self, took_ns: int, has_strayed: bool) -> None:
        """A look, how long it took, and whether more was held than was predicted."""
        self._count += has_strayed
        if took_ns > _LONG_NS:
            self._resume_ns = time.monotonic_ns() + _RESTS * took_ns


class Guard(Trimmer):
    """Of a call that is to hold no more than was predicted. Pages go back where that would else be
    passed. The arena keeps its blocks, which are predicted, but where the call `is_tight`: then
    they are not. `strays`: of a call that may hold more than that, whatever goes back."""

    __slots__ = ("_is_tight", "_read_ns", "_room_bytes", "_strays")
    takes_heap = False

    def __init__(
        self,
        *,
        most_bytes: int,
        growths: Mapping[object, int],
        strays: Strays | None = None,
        is_tight: bool = False,
    ) -> None:
        super().__init__(most_bytes=most_bytes, growth_bytes=0, growths=growths)
        self._is_tight = is_tight
        self._read_ns = self._room_bytes = 0
        self._strays = strays

    def make_room(self, nbytes: int) -> None:
        """The same; where a small op follows soon, without a look."""
        if nbytes + _FRESH_BYTES <= self._room_bytes and is_fresh(self._read_ns):
            return
        if self._strays is None:
            super().make_room(nbytes)
        elif not self._strays.are_left_alone():
            begin_ns, start_bytes = time.monotonic_ns(), self._start_bytes
            super().make_room(nbytes)
            self._strays.see(time.monotonic_ns() - begin_ns, self._start_bytes != start_bytes)
        else:
            self._mapped.off()
            return
        self._read_ns = time.monotonic_ns()
        self._room_bytes = self._most_bytes - (libc.resident_bytes() - self._start_bytes)


class Apart(Guard):
    """Of such a call whose backward pass runs large ops that nobody stands before, as hooks do:
    what is not small lies in pages of its own there, from its first node to its end."""

    __slots__ = ()

    def _make_room_for_node(self, nbytes: int) -> None:
        if not self._mapped.is_on:
            self._frees(0)  # what the call has left free
            self._mapped.on()


class Observer:
    """Of a call of which nothing is known yet: `grown_bytes` more than at its start were resident
    before one of its ops, and `used_bytes` more of the heap in use: where there were free pages,
    the process need not grow. Of the latter some may be missed where the heap is slow to ask."""

    __slots__ = ("_read_ns", "_start_bytes", "_used_bytes", "grown_bytes", "used_bytes")
    takes_heap = False

    def __init__(self) -> None:
        self.grown_bytes = self.used_bytes = self._read_ns = 0
        self._start_bytes, self._used_bytes = libc.resident_bytes(), _used_bytes()

    def check(self, op: object = None, known_bytes: int = 0) -> None:
        """Before an op: a look, unless the last was just now."""
        if not is_fresh(self._read_ns):
            self.look()

    def look(self) -> None:
        """Now."""
        self.grown_bytes = max(self.grown_bytes, libc.resident_bytes() - self._start_bytes)
        self._read_ns = time.monotonic_ns()
        now_bytes = _used_bytes()
        if self._used_bytes is None:
            self._used_bytes = now_bytes  # since then
        elif now_bytes is not None:
            self.used_bytes = max(self.used_bytes, now_bytes - self._used_bytes)

    def nodes(self, operands: Iterable[Any]) -> set[Any]:
        """None are asked for."""
        return set()

    def follow(self, given: Container[Any], results: Iterable[Any], op: object = None) -> None:
        """Nothing of the backward pass."""


def _used_bytes() -> int | None:
    """What is in use of the heap, for which the C library counts all its free pieces: a million of
    them take it 30 ms. None where that was long, and just now."""
    global _ask_again_ns
    begin_ns = time.monotonic_ns()
    if begin_ns < _ask_again_ns:
        return None
    found_bytes = libc.used_bytes()
    end_ns = time.monotonic_ns()
    if end_ns - begin_ns > _LONG_NS:
        _ask_again_ns = end_ns + _RESTS * (end_ns - begin_ns)
    return found_bytes


Watch = Trimmer | Observer


def _nobody() -> None:
    return None


class _Now(threading.local):
    trimmer: Watch | None = None
    backward: tuple[int, Callable[[], Trimmer | None]] = _NO_TASK, _nobody  # and whose


_now = _Now()


def trimmer() -> Watch | None:
    """That of the call which this thread is in."""
    return _now.trimmer


@contextlib.contextmanager
def trimming(made: Watch | None) -> Generator[None]:
    """Inside, this thread runs the trimmer's call."""
    _end_what_failed()
    before, _now.trimmer = _now.trimmer, made
    try:
        yield
    finally:
        _now.trimmer = before
        if isinstance(made, Trimmer):
            made.end()


def make_room(nbytes: int) -> None:
    """Before what is no op takes memory, or the arena a block."""
    made = _now.trimmer if isinstance(_now.trimmer, Trimmer) else None
    while made is not None:
        made.make_room(nbytes)
        made = made.outer


def _around() -> Trimmer | None:
    """Of the call that a new one is a part of; in a backward pass, of the call that this is of."""
    if _now.trimmer is not None:
        return _now.trimmer if isinstance(_now.trimmer, Trimmer) else None
    made = _of_budget()
    while made is not None and made.outer is not None:
        made = made.outer
    return made


def _has_room(nbytes: int) -> bool:
    made = _of_budget()
    return made is not None and made.has_room(nbytes)


def _is_short() -> bool:
    made = _of_budget()
    return made is not None and made.is_short()


def _of_budget() -> Trimmer | None:
    """That of this thread's call or backward pass."""
    made = _now.trimmer
    if made is None and _now.backward[0] == _graph_task() != _NO_TASK:
        made = _now.backward[1]()
    return made if isinstance(made, Trimmer) else None


def _end_what_failed() -> None:
    """A backward pass of this thread that is over, and did not come to its end."""
    task, whose = _now.backward
    if task != _graph_task():
        _now.backward = _NO_TASK, _nobody
        if (made := whose()) is not None:
            made.end()


def _graph_task() -> int:
    """Which backward pass this thread is in."""
    return torch._C._current_graph_task_id()  # pyright: ignore


arena.set_room(_has_room, _is_short, make_room)


def is_fresh(read_ns: int) -> bool:
    """Whether what was read then is still nearly true."""
    return time.monotonic_ns() - read_ns < _FRESH_NS


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Those in lists, too."""
    found: list[torch.Tensor] = []
    for x in values:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, list | tuple):
            found += _tensors(cast("Iterable[Any]", x))
    return found


def _is_leaf(node: Any) -> bool:
    """Whether it adds to a gradient: such a node is its tensor's, for all graphs."""
    return hasattr(node, "variable")
