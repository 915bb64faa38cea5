"""The folder for cached files: the user's cache folder if it can be trusted, else a private one.

In:  `Config.cache_dir`. Out: `trusted()`, a folder that outlives the process, or None; `private()`,
     a folder of this process alone, removed when it exits.

    <cache_dir>/lowtide-1/kernels/…   libraries        /failed/…   sources that did not compile
                         /targets/…   compiler facts   /locks/…    one file per lock
                         /tilings/…   the fastest ones, measured

Invariant: only this user and root can put a file into either folder. Code is loaded from them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import sys
import tempfile
import warnings

from lowtide import config

_LAYOUT = "lowtide-1"  # the number changes with the layout of the files
_warned: set[str] = set()
_private: tuple[int, str] | None = None  # process id, path


def trusted() -> str | None:
    """Return the folder of files that outlive the process. None, with one warning, if it is not
    safe."""
    reason = fault()
    if reason is None:
        return os.path.join(config.current().cache_dir, _LAYOUT)
    warn_once(
        f"the cache folder {config.current().cache_dir} is not used: {reason}; each process "
        "compiles its kernels anew. Set LOWTIDE_CACHE_DIR to a folder that only you can write to"
    )
    return None


def fault() -> str | None:
    """Return why the cache folder cannot be used, None if it can. A missing folder is made."""
    root = os.path.join(config.current().cache_dir, _LAYOUT)
    try:
        return _fault(root)
    except FileNotFoundError:
        return _make(root)
    except OSError as error:
        return str(error)


def private() -> str:
    """Return the folder of this process, made at the first call. Raises OSError if that fails."""
    global _private
    if _private is None or _private[0] != os.getpid():  # a forked child makes its own
        _private = (os.getpid(), tempfile.mkdtemp(prefix="lowtide-"))
    return _private[1]


def warn_once(message: str) -> None:
    """Show a warning, unless this process has shown it before."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def subfolder(root: str, name: str) -> str:
    """Return the path of `root/name`. A missing folder is made. Raises OSError."""
    path = os.path.join(root, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    return path


def _make(root: str) -> str | None:
    try:
        os.makedirs(os.path.dirname(root), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process made it meanwhile
            os.mkdir(root, 0o700)
        return _fault(root)
    except OSError as error:
        return str(error)


def _fault(root: str) -> str | None:
    """Return why others could put files into `root`, None if they cannot. Raises OSError."""
    inner = os.lstat(root)
    outer = os.stat(os.path.dirname(root))
    if not stat.S_ISDIR(inner.st_mode):
        return f"{root} is not a folder"
    if sys.platform == "win32":  # the access list of a user's folder closes it to others
        return None
    owners = (os.geteuid(), 0)
    if inner.st_uid not in owners or outer.st_uid not in owners:
        return "it belongs to another user"
    shared = stat.S_IWGRP | stat.S_IWOTH
    if inner.st_mode & shared:
        return f"others may write to it; `chmod go-w {root}` if that is not meant"
    if outer.st_mode & shared and not outer.st_mode & stat.S_ISVTX:
        path = os.path.dirname(root)
        return f"others may write to it; `chmod go-w {path}` if that is not meant"
    return None


def _remove_private() -> None:
    if _private is not None and _private[0] == os.getpid():
        shutil.rmtree(_private[1], ignore_errors=True)


atexit.register(_remove_private)
