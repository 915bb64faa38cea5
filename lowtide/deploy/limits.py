"""The format's version, and limits on the contents of a file.

In: nothing. Out: constants, such as 500,000 ops in a program. They are far above the needs of real
programs. They keep a hostile file from costing its reader much more memory or time than its size.
"""

from __future__ import annotations

import re
from typing import Final

FORMAT: Final = 1
OLDEST_FORMAT: Final = 1

MANIFEST: Final = "lowtide.json"
STATE: Final = "state.safetensors"
KERNELS: Final = "kernels/"

ENTRIES: Final = 20_000
MANIFEST_BYTES: Final = 256 << 20
CODE_BYTES: Final = 16 << 20
KERNEL_BYTES: Final = 64 << 20  # of one library
LINE_CHARS: Final = 1 << 20
OPS: Final = 500_000  # in one program
NESTING: Final = 80  # blocks in blocks
RATIO: Final = 200  # of a compressed entry, from RATIO_FROM_BYTES on
RATIO_FROM_BYTES: Final = 1 << 20
PROGRAMS: Final = 4096  # of one method
PATH_CHARS: Final = 1 << 26  # total length of the paths that programs read, counted per module
TUPLES: Final = 64  # depth of nested tuples in attributes
DIMENSIONS: Final = 64

# Of files of torch.jit.save. A pickle costs its reader at most 20 times its bytes and 200 bytes for
# each container. What is deflated, code and debug tables, is limited in total.
PICKLE_BYTES: Final = 256 << 20
PICKLE_CONTAINERS: Final = 2_000_000
PICKLE_NESTING: Final = 400  # an object and the dict of its attributes are two levels
PICKLE_UNFOLDED: Final = 10_000_000  # values in one container, shared ones counted each time
SCRIPT_BYTES: Final = 64 << 20  # of code, and of debug tables
SCRIPT_VERSION: Final = 10  # the newest version of the file format, that of PyTorch 1.12 to 2.13

# Each name in a text that Lowtide generates, and each name of an attribute, is one of these.
IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
MODULE_NAME: Final = re.compile(r"[^.\x00-\x1f/\\]{1,256}")


def is_identifier(name: object) -> bool:
    """Return whether this is a short ASCII name."""
    return isinstance(name, str) and IDENTIFIER.fullmatch(name) is not None


def is_public(name: object) -> bool:
    """Return whether this is a name that Python does not use: `x`, `_x`, but not `__x`."""
    return isinstance(name, str) and is_identifier(name) and not name.startswith("__")
