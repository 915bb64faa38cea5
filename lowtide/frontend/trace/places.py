"""The user's line of a recorded call, and warnings about what a trace freezes there.

In: the Python stack. Out: a `Loc`, or a `TracerWarning` at that line.

    model.py:12: `bool` of a tensor is frozen as True
        if x.sum() > 0:
    the recorded program takes the same way for every input; write instead: lt.script(forward)

Invariant: frames of PyTorch and of Lowtide are passed over, unless there is no other.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import types
import warnings
from dataclasses import dataclass

import torch

from lowtide import errors
from lowtide.cpython import frame_at
from lowtide.errors import Loc
from lowtide.torch_private.torch_jit import TracerWarning as TorchTracerWarning


class TracerWarning(TorchTracerWarning):
    """The recorded program may differ from the Python function; the text says where and why."""


def _folder(file: str | None) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(file or "")), "")


_TORCH = _folder(torch.__file__)
_OURS = _folder(errors.__file__)
_PLUMBING = (contextlib.__file__, functools.__file__)
_DISPATCH = tuple(
    os.path.join(_TORCH, *path)
    for path in (("overrides.py",), ("_tensor.py",), ("_ops.py",), ("nn", "functional.py"))
)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's. `in_library`: PyTorch's own code is between it and the recorder."""

    frame: types.FrameType
    loc: Loc
    in_library: bool


def here(stop: types.FrameType | None = None) -> Place:
    """Return the innermost user line. `stop`: the frame where the traced call began."""
    frame: types.FrameType | None = frame_at(1)
    library: types.FrameType | None = None
    last = frame
    while frame is not None and frame is not stop:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH):
            if library is None and not file.startswith(_DISPATCH):
                library = frame
        elif not file.startswith((_OURS, *_PLUMBING)):
            return Place(frame, _loc(frame), library is not None)
        last, frame = frame, frame.f_back
    found = library or frame or last
    assert found is not None
    return Place(found, _loc(found), library is not None)


def _loc(frame: types.FrameType) -> Loc:
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line, frame.f_globals).rstrip("\n")
    return Loc(file=file, line=line, text=text, function=frame.f_code.co_name)


def warn_frozen(what: str, place: Place, remedy: str = "") -> None:
    """Warn that something of the run became a constant of the recorded program."""
    name = place.loc.function
    better = remedy or f"lt.script({name})" if name.isidentifier() else remedy or "lt.script"
    warn(f"{what}; the recorded program keeps that for every input. Write instead: {better}", place)


def warn(text: str, place: Place) -> None:
    """Issue a `TracerWarning` that shows the user's line."""
    loc = place.loc
    line = f"\n    {loc.text.strip()}" if loc.text.strip() else ""
    warnings.warn_explicit(
        f"{loc}: {text}{line}",
        TracerWarning,
        filename=loc.file,
        lineno=loc.line,
        module=str(place.frame.f_globals.get("__name__", "<traced>")),
        registry=place.frame.f_globals.setdefault("__warningregistry__", {}),
    )
