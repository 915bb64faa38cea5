"""Records where a tensor was made, in a fraction of a microsecond.

In: the frame that called PyTorch. Out: a `Birth`: a weak reference to the tensor, the user's code
object and the instruction. The line number is looked up only when a message needs it. Frames of
PyTorch, Lowtide and the standard library are skipped, so that the line is the user's. The skipped
frames also tell whether the tensor was made by code that stores what it makes, such as an
optimizer: scopes leave such tensors alone.

    birth = note(t, frame_at(1))          # ~0.3 µs
    loc_of_birth(birth)                     # train.py:12

Lists hold births flat, field after field: a tuple for each would be one more object for Python's
garbage collector to visit, and as much memory as the weak reference.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sysconfig
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch

from lowtide.errors import UNKNOWN_LOC, Loc

_PACKAGES = tuple(
    os.path.join(os.path.abspath(path), "")
    for path in (os.path.dirname(torch.__file__), os.path.join(__file__, "..", "..", ".."))
)
_STDLIB = os.path.join(sysconfig.get_path("stdlib"), "")
_SITE = (os.path.join(_STDLIB, "site-packages"), os.path.join(_STDLIB, "dist-packages"))
_GENERATED = ("<eval_with_key>", "<frozen ", "<lowtide ")
# (part of the file name, function or "" for all): code that stores the tensors that it makes.
_KEEPING = (
    (os.path.join("torch", "optim", ""), ""),
    (os.path.join("torch", "amp", "grad_scaler.py"), "GradScaler._lazy_init_scale_growth_tracker"),
    (os.path.join("torch", "amp", "grad_scaler.py"), "GradScaler.unscale_"),
    (os.path.join("torch", "amp", "grad_scaler.py"), "GradScaler._check_inf_per_device"),
    (os.path.join("torch", "distributions", "utils.py"), "lazy_property.__get__"),
    (
        os.path.join("torch", "nn", "utils", "parametrize.py"),
        "_inject_property.<locals>.get_cached_parametrization",
    ),
    (os.path.join("torch", "nn", "utils", "weight_norm.py"), "WeightNorm.compute_weight"),
    (os.path.join("torch", "nn", "utils", "spectral_norm.py"), "SpectralNorm.compute_weight"),
    (os.path.join("torch", "nn", "utils", "spectral_norm.py"), "SpectralNorm.apply"),
    (os.path.join("torch", "nn", "utils", "prune.py"), "BasePruningMethod.apply_mask"),
    (
        os.path.join("torch", "utils", "data", "dataloader.py"),
        "_MultiProcessingDataLoaderIter._try_get_data",
    ),
    (os.path.join("torch", "distributed", "fsdp", "_flat_param.py"), ""),
    (os.path.join("torch", "distributed", "fsdp", "_fully_shard", ""), ""),
    (os.path.join("torch", "distributed", "algorithms", "ddp_comm_hooks", ""), ""),
    (os.path.join("torch", "_dynamo", "convert_frame.py"), ""),
    (os.path.join("torch", "utils", "checkpoint.py"), "_NoopSaveInputs.forward"),
)
_MOST_CODES = 10_000

# By id, since hashing a code object takes time proportional to the size of the function: code of
# the user, skipped code, and skipped code that stores what it makes.
USER_CODES: dict[int, CodeType] = {}
_skipped_codes: dict[int, CodeType] = {}
_keeping_codes: dict[int, CodeType] = {}


# A tensor, and the user's code and instruction that made it; `~instruction`, which is negative, if
# the code that made it stores it. A plain tuple: a NamedTuple takes four times as long to make.
Birth: TypeAlias = tuple[weakref.ref[torch.Tensor], CodeType | None, int]
# A flat list of births, field after field.
Births: TypeAlias = list[Any]
FIELDS = 3


def each(births: Births) -> Iterator[Birth]:
    """Yield the births of a flat list."""
    fields = iter(births)
    return zip(fields, fields, fields, strict=True)


def given_away(birth: Birth) -> Birth:
    """Return the birth without the mark that its maker stores the tensor: the user claims it."""
    ref, code, instruction = birth
    return ref, code, max(instruction, ~instruction)


def loc_of_birth(birth: Birth) -> Loc:
    """Return the user's line; `UNKNOWN_LOC` for a tensor whose creation was not seen."""
    _, code, instruction = given_away(birth)
    return UNKNOWN_LOC if code is None else loc_of(code, instruction)


def note(tensor: torch.Tensor, frame: FrameType | None) -> Birth:
    """Return the birth of a tensor that was made by a call from `frame`."""
    innermost, is_kept = frame, False
    while frame is not None:
        key = id(frame.f_code)
        if key not in _skipped_codes:
            if key in USER_CODES or (key not in _keeping_codes and is_users(frame.f_code)):
                break
            is_kept = is_kept or key in _keeping_codes
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return unseen(tensor)
    instruction = ~frame.f_lasti if is_kept else frame.f_lasti
    return weakref.ref(tensor), frame.f_code, instruction


def unseen(tensor: torch.Tensor) -> Birth:
    """Return the birth of a tensor whose creation was not seen."""
    return weakref.ref(tensor), None, 0


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code, from `frame` outwards; None if there is
    none."""
    while frame is not None and not is_users(frame.f_code):
        frame = frame.f_back
    return frame


def loc_of(code: CodeType, instruction: int) -> Loc:
    """Return the location of the instruction at byte offset `instruction` of `code`."""
    return _loc(code.co_filename, line_of(code, instruction), code.co_name)


def line_of(code: CodeType, instruction: int) -> int:
    """Return its line number."""
    for begin, end, line in code.co_lines():
        if begin <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def end_of_with(loc: Loc) -> Loc:
    """Return the last line of the `with` block that begins at `loc`; `loc` if there is none."""
    try:
        blocks = _withs("".join(linecache.getlines(loc.file)))
    # SystemError: rarely, while other threads parse, too (python/cpython#106905).
    except (SyntaxError, ValueError, SystemError):
        return loc
    ends = [end or loc.line for begin, body, end in blocks if begin <= loc.line < body]
    return _loc(loc.file, min(ends), loc.function) if ends else loc


@functools.lru_cache(maxsize=4)  # errors of one run are often in the same file
def _withs(source: str) -> list[tuple[int, int, int | None]]:
    """Return (line, first line of the body, last line) of each `with` block."""
    return [
        (node.lineno, node.body[0].lineno, node.end_lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.With | ast.AsyncWith)
    ]


def _loc(file: str, line: int, function: str) -> Loc:
    text = linecache.getline(file, line).rstrip("\n")
    return Loc(file=file, line=line, text=text, function=function)


def is_users(code: CodeType) -> bool:
    """Return whether the code is the user's; cached by id."""
    for known in (USER_CODES, _skipped_codes, _keeping_codes):
        if id(code) in known:
            return known is USER_CODES
    file: Any = code.co_filename
    is_stdlib = file.startswith(_STDLIB) and not file.startswith(_SITE)
    if not (is_stdlib or file.startswith((*_PACKAGES, *_GENERATED))):
        found = USER_CODES
    elif any(where in file and name in ("", code.co_qualname) for where, name in _KEEPING):
        found = _keeping_codes
    else:
        found = _skipped_codes
    if len(found) >= _MOST_CODES:
        found.clear()
    found[id(code)] = code
    return found is USER_CODES
