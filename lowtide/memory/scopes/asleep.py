"""Does a thread wait for something outside of the process: a file, a socket, a clock, a child?

In: the clock of a thread's CPU time, which on Linux names the thread. Out: True only where the
kernel says that it sits in one of the system calls below. No computation of PyTorch's does; it may
wait in `futex`, for its other threads.
"""

from __future__ import annotations

import platform
from typing import Final

# read, poll, select, nanosleep, connect, accept, recvfrom, recvmsg, wait4, flock, clock_nanosleep,
# epoll_wait, waitid, pselect6, ppoll, epoll_pwait, accept4, epoll_pwait2: by asm/unistd.h
_X86: Final = (0, 7, 23, 35, 42, 43, 45, 47, 61, 73, 230, 232, 247, 270, 271, 281, 288, 441)
_ARM: Final = (63, 101, 203, 202, 207, 212, 260, 32, 115, 95, 72, 73, 22, 242, 441)
_CALLS: Final = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), ())
_NAMES: Final = frozenset(str(number).encode() for number in _CALLS)
_IS_LINUX: Final = platform.system() == "Linux"


def is_asleep(clock: int) -> bool:
    """See the module's text. `clock`: of `time.pthread_getcpuclockid`."""
    if not (_IS_LINUX and _NAMES):
        return False
    try:
        with open(f"/proc/self/task/{~(clock >> 3)}/syscall", "rb") as found:
            return found.read(64).partition(b" ")[0] in _NAMES
    except OSError:  # no such thread, or a kernel that does not tell
        return False
