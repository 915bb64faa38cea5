"""Where the other threads are: in a call that may be computing with a tensor, or surely in none.

In: a thread, by its ident. Out: numbers, and the code that it runs; nothing of it is held.

    lock.acquire(); x.exp()             in `acquire`: at rest. In `exp`: it may have any tensor
    while True: n += 1                  where the loop goes back: at rest
    run_k0(pack(x.data_ptr()))          a driver of ours has addresses: in a call until it returns

Always: a frame of another thread is never held while that may run: it would keep what the thread
has, and change the counts of references by which its own scope knows a new tensor. Python lets
other threads run after calls, at the beginning of functions and where loops go back, and nowhere
else: so `stack_of` looks with instructions that are none of these.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dis import opname
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, truth
from types import CodeType, FrameType
from typing import Any, Final

import torch

_current_frames: Any = getattr(sys, "_current_frames")  # noqa: B009 - it is CPython's own
_clock_of: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
_ONCE: Final = ((),)
_instruction_of, _code_of = attrgetter("f_lasti"), attrgetter("f_code")
_file_of: Any = attrgetter("co_filename")
_name_of: Any = attrgetter("co_name")

_NOTHING: Final = "nothing"
# Methods that wait, and whose names no tensor's method has.
WAITS: Final = frozenset({"acquire", "get", "join", "poll", "sleep", "wait", "__enter__", _NOTHING})
_OF_TENSORS: Final = frozenset(dir(torch.Tensor))
# What PyTorch calls in the middle of operations.
_CALLED_BACK: Final = frozenset({"__torch_function__", "__torch_dispatch__"})
_MOST_KNOWN: Final = 10_000
# Where Python lets another thread run, and calls nothing.
_BETWEEN: Final = frozenset({"RESUME", "JUMP_BACKWARD"})
_CALLS: Final = frozenset({"CALL", "CALL_KW", "PRECALL"})
_METHODS: Final = frozenset({"LOAD_METHOD", "LOAD_ATTR"})
_SILENT: Final = frozenset({"CACHE", "PRECALL", "KW_NAMES"})
# Files of functions that hold addresses of tensors.
_PACKAGE: Final = os.path.abspath(os.path.join(__file__, "..", "..", ".."))
_WITH_ADDRESSES: Final = (
    "<lowtide driver>",
    *(os.path.join(_PACKAGE, part, "") for part in ("codegen", "runtime")),
)
# read, poll, select, nanosleep, connect, accept, recvfrom, recvmsg, wait4, flock, clock_nanosleep,
# epoll_wait, waitid, pselect6, ppoll, epoll_pwait, accept4, epoll_pwait2: by asm/unistd.h
_X86: Final = (0, 7, 23, 35, 42, 43, 45, 47, 61, 73, 230, 232, 247, 270, 271, 281, 288, 441)
_ARM: Final = (63, 101, 203, 202, 207, 212, 260, 32, 115, 95, 72, 73, 22, 242, 441)
_BY_MACHINE: Final[Mapping[str, tuple[int, ...]]] = {"x86_64": _X86, "aarch64": _ARM}
_OUTSIDE: Final = frozenset(
    str(number).encode()
    for number in _BY_MACHINE.get(platform.machine(), ())
    if platform.system() == "Linux"
)


@dataclass(frozen=True, slots=True)
class Stack:
    """A thread's frames by id, innermost first, the instructions and the code in which they are;
    its CPU clock, or -1."""

    frames: list[int]
    instructions: list[int]
    codes: list[CodeType]
    clock: int

    def call(self) -> tuple[int, int] | None:
        """The call in which it is: a frame, and the instruction there, or -1 if all of the frame is
        one. None if it is in none with a tensor: it is between two calls, or waits."""
        files: Iterator[str] = map(_file_of, self.codes)
        with_addresses = [*map(str.startswith, files, repeat(_WITH_ADDRESSES))]
        if True in with_addresses:
            outermost = max(at for at, has in enumerate(with_addresses) if has)
            return self.frames[outermost], -1
        called = [*map(_called, self.codes, self.instructions)]
        names = [*map(_name_of, self.codes)]
        if not (_OF_TENSORS.isdisjoint(called[1:]) and _CALLED_BACK.isdisjoint(names)):
            for at in range(len(called) - 1, 0, -1):
                # A function of the name that is called is Python's own, and no tensor's.
                is_method = called[at] in _OF_TENSORS and names[at - 1] != called[at]
                if is_method or names[at - 1] in _CALLED_BACK:
                    return self.frames[at], self.instructions[at]
        return None if called[0] in WAITS else (self.frames[0], self.instructions[0])

    def is_in(self, call: tuple[int, int]) -> bool:
        """Whether it is in that call: what it called may have called Python."""
        frame, instruction = call
        if frame not in self.frames:
            return False
        return instruction in (-1, self.instructions[self.frames.index(frame)])


def idents() -> list[int]:
    """Of all threads that run Python, the calling one's too."""
    return [*chain.from_iterable(starmap(_current_frames, _ONCE))]


def stack_of(ident: int) -> Stack | None:
    """Where that thread is; None if it has ended."""
    first: list[FrameType] = []
    walked: list[FrameType] = []
    clocks: list[int] = []
    frames: list[int] = []
    instructions: list[int] = []
    codes: list[CodeType] = []
    looks = starmap(_current_frames, _ONCE)
    steps: Any = chain(first, repeat("f_back"))
    outwards: Iterator[FrameType] = takewhile(truth, accumulate(steps, getattr))
    all_clocks = map(_clock_of or _no_clock, (ident,))
    all_ids = map(id, walked)
    all_instructions, all_codes = map(_instruction_of, walked), map(_code_of, walked)
    # From here on nothing is called by Python, and no loop goes back, until all frames are dropped.
    # A thread must not be asked for its clock after its end: nothing is made between that
    # Python's collector would count.
    (found,) = looks
    if ident in found:
        clocks += all_clocks
        first += (found[ident],)
        found = None
        walked += outwards
        frames += all_ids
        instructions += all_instructions
        codes += all_codes
        del first[:], walked[:]
    found = None
    return Stack(frames, instructions, codes, clocks[0]) if frames else None


def waits_outside(stack: Stack, call: tuple[int, int]) -> bool:
    """Whether the kernel says that the call waits for a file, a socket, a time or a child. Not if
    it has called Python, which waits."""
    if call[0] != stack.frames[0] or stack.clock == -1 or not _OUTSIDE:
        return False
    place = f"/proc/self/task/{~(stack.clock >> 3)}/syscall"
    # It has ended, or the kernel does not tell.
    with contextlib.suppress(OSError), open(place, "rb") as file:
        return file.read(64).partition(b" ")[0] in _OUTSIDE
    return False


def cpu_ns(clock: int) -> int:
    """The CPU time that a thread has taken, or the time where that is not known."""
    if clock != -1:
        with contextlib.suppress(OSError):  # it has ended
            return time.clock_gettime_ns(clock)
    return time.monotonic_ns()


def _no_clock(_: int) -> int:
    return -1


def _called(code: CodeType, at: int) -> str:
    """The name of the method that the instruction at byte `at` calls with plain values; _NOTHING if
    it calls nothing at all, "" if that is not known."""
    key = id(code), at
    known = _known.get(key)
    if known is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[key] = code, _name_called(code, at)
    return known[1]


# The code is held, or another might get its id.
_known: dict[tuple[int, int], tuple[CodeType, str]] = {}


def _name_called(code: CodeType, at: int) -> str:
    units = code.co_code
    name = opname[units[at]] if at >= 0 else ""
    if name in _BETWEEN:
        return _NOTHING
    if name == "BEFORE_WITH":
        return "__enter__"
    if name not in _CALLS:
        return ""
    missing = units[at + 1] + (name == "CALL_KW")
    for back in range(at - 2, -1, -2):
        name, is_wide = opname[units[back]], back > 1 and opname[units[back - 2]] == "EXTENDED_ARG"
        if name in _SILENT:
            continue
        if is_wide or not name.startswith("LOAD_"):
            return ""
        if name in _METHODS:
            index = units[back + 1] >> (name == "LOAD_ATTR" and sys.version_info >= (3, 12))
            return "" if missing else code.co_names[index]
        missing -= 1
    return ""
