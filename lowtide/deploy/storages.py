"""Encodes tensors as rows over pieces of memory, and decodes them; views still share memory.

In: tensors of any strides, or rows and pieces. Out: rows of the manifest and the pieces of
`state.safetensors`, or tensors.

    a = torch.zeros(4, 4); b = a.t(); c = a[1]     one piece of 64 bytes, three rows with strides

A piece is the span of a storage that its tensors reach.
Invariant: a row is checked against its piece before its tensor is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from lowtide.deploy import limits
from lowtide.deploy.jsontext import Node
from lowtide.deploy.tensor_file import DTYPES, Piece
from lowtide.errors import LoadError

_COMPLEX: Final = {torch.complex32: "F16", torch.complex64: "F32", torch.complex128: "F64"}
DTYPE_NAMES: Final = {str(d).removeprefix("torch."): d for d in (*DTYPES, *_COMPLEX)}
_ALIGNED_BYTES: Final = 16
_TENSOR_CLASSES: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MOST: Final = 2**63 - 1

Placed = Callable[[str], torch.device]


def why_not(tensor: torch.Tensor) -> str:
    """Return why a tensor cannot be saved, "" if it can."""
    if type(tensor) not in _TENSOR_CLASSES:
        return f"a tensor of class {type(tensor).__name__}"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return "a tensor that is sparse, quantized or nested"
    if tensor.dtype not in DTYPES and tensor.dtype not in _COMPLEX:
        return f"a tensor of dtype {tensor.dtype}"
    return "a tensor on the meta device, which has no values" if tensor.is_meta else ""


@dataclass(slots=True)
class TensorTable:
    """The tensors of a file that is written."""

    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    hints: list[str] = field(default_factory=list[str])
    _known: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, tensor: torch.Tensor, hint: str) -> int:
        """Return the tensor's row. `hint`: the name of its piece, if it is the piece's first."""
        known = self._known.get(id(tensor))
        if known is None:
            known = self._known[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.hints.append(hint)
        return known

    def finish(self) -> tuple[list[object], dict[str, Piece], dict[str, torch.Tensor]]:
        """Return the rows, the pieces, and their memory."""
        groups: dict[object, list[int]] = {}
        plain = [t.detach().resolve_conj().resolve_neg() for t in self.tensors]
        for k, t in enumerate(plain):
            groups.setdefault(_storage_key(t, k), []).append(k)
        rows: list[object] = [None] * len(plain)
        pieces: dict[str, Piece] = {}
        memory: dict[str, torch.Tensor] = {}
        for members in groups.values():
            name = _free(self.hints[members[0]], pieces)
            group = [plain[k] for k in members]
            begin, end = _span(group)
            pieces[name] = _piece(group, begin, end)
            memory[name] = _flat(group[0], begin, end)
            for k in members:
                rows[k] = _row(self.tensors[k], plain[k], name, begin)
        return rows, pieces, memory


def _storage_key(t: torch.Tensor, k: int) -> object:
    storage = t.untyped_storage()
    return (t.device, storage.data_ptr()) if storage.nbytes() and t.numel() else (k,)


def _free(hint: str, taken: Mapping[str, object]) -> str:
    name, count = hint, 1
    while name in taken or name == "__metadata__":
        count += 1
        name = f"{hint}:{count}"
    return name


def reach(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the end of the range of elements that a tensor reaches."""
    if 0 in shape:
        return offset
    return offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1


def _span(group: list[torch.Tensor]) -> tuple[int, int]:
    """Return the range of bytes that the tensors reach; its begin is aligned for any dtype."""
    begin = min(int(t.storage_offset()) * t.element_size() for t in group)
    end = max(
        reach(int(t.storage_offset()), tuple(t.shape), t.stride()) * t.element_size() for t in group
    )
    return begin - begin % _ALIGNED_BYTES, max(begin, end)


def _piece(group: list[torch.Tensor], begin: int, end: int) -> Piece:
    first, nbytes = group[0], end - begin
    dtype = DTYPES.get(first.dtype) or _COMPLEX[first.dtype]
    pair = (2,) if first.dtype in _COMPLEX else ()
    if len(group) == 1 and first.is_contiguous() and nbytes == first.numel() * first.element_size():
        return Piece(dtype, (*first.shape, *pair), nbytes)
    if all(t.dtype == first.dtype for t in group):
        return Piece(dtype, (nbytes // first.element_size(), *pair), nbytes)
    return Piece("U8", (nbytes,), nbytes)


def _flat(t: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=t.device)
    return empty.set_(t.untyped_storage(), begin, (end - begin,), (1,)).cpu()


def _row(own: torch.Tensor, t: torch.Tensor, name: str, begin: int) -> object:
    return {
        "piece": name,
        "dtype": str(t.dtype).removeprefix("torch."),
        "shape": list(t.shape),
        "strides": list(t.stride()),
        "offset": t.storage_offset() - begin // t.element_size() if t.numel() else 0,
        "device": str(t.device),
        "requires_grad": own.requires_grad and own.is_leaf,
        "parameter": isinstance(own, torch.nn.Parameter),
    }


# ---- reading ----------------------------------------------------------------------------------


def tensors_of(rows: Node, pieces: dict[str, torch.Tensor], place: Placed) -> list[torch.Tensor]:
    """Return the tensors of all rows. `place`: gives the device for tensors saved on a device.
    Raises LoadError."""
    devices: dict[str, str] = {}
    for row in rows.items_of():
        row.only(*_ROW)
        name, device = row.get("piece").text(pieces), row.get("device").text()
        if devices.setdefault(name, device) != device:
            raise row.fail("one device for each piece")
        if not _holds_values(device):
            raise row.get("device").fail("a device whose tensors have values")
    moved = {name: pieces[name].to(place(device)) for name, device in devices.items()}
    return [_tensor(row, moved) for row in rows.items_of()]


def _holds_values(device: str) -> bool:
    """Return whether the text names a device whose tensors have values: any but `meta`."""
    try:
        return torch.device(device).type != "meta"
    except RuntimeError:
        return False


_ROW: Final = (
    *("piece", "dtype", "shape", "strides", "offset", "device", "requires_grad", "parameter"),
)


def _tensor(row: Node, pieces: Mapping[str, torch.Tensor]) -> torch.Tensor:
    flat = pieces[row.get("piece").text()]
    dtype = DTYPE_NAMES[row.get("dtype").text(DTYPE_NAMES)]
    shape = tuple(n.size() for n in row.get("shape").items_of(limits.DIMENSIONS))
    strides = tuple(n.size() for n in row.get("strides").row(len(shape)))
    offset, count = row.get("offset").size(), 1
    for extent in shape:
        count *= extent
    end = reach(offset, shape, strides)
    if count > _MOST or end * dtype.itemsize > flat.numel():
        raise row.fail(f"a tensor that lies in its piece of {flat.numel()} bytes")
    made: Any = torch.empty(0, dtype=dtype, device=flat.device)
    made = made.set_(flat.untyped_storage(), offset, shape, strides)
    wanted, is_float = row.get("requires_grad").flag(), dtype.is_floating_point or dtype.is_complex
    if wanted and not is_float:
        raise row.fail("requires_grad only of a float or complex dtype")
    if row.get("parameter").flag():
        return torch.nn.Parameter(made, requires_grad=wanted)
    return made.requires_grad_(wanted)


def placing(map_location: object) -> Placed:
    """Return the map of devices for `map_location`: None, a device, or {device: device}. Raises
    TypeError, and LoadError for a device that does not exist."""
    if isinstance(map_location, str | torch.device):
        device = torch.device(map_location)
        _check_device(device, f"map_location is {str(device)!r}")
        return lambda _: device
    table: dict[str, Any] = {}
    if isinstance(map_location, dict):
        table = {str(torch.device(k)): v for k, v in map_location.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    elif map_location is not None:
        raise TypeError(
            f"map_location is a device or {{device: device}}, not {map_location!r}; "
            "a function of (storage, location) is not supported"
        )

    def place(name: str) -> torch.device:
        return _check_device(table.get(name, name), f"the file has tensors on {name!r}")

    return place


def _check_device(name: str | torch.device, problem: str) -> torch.device:
    """Return the device. Raises LoadError if this machine or this PyTorch has no such device."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise LoadError(
            f"{problem}, which this machine does not have: lt.load(f, map_location='cpu') "
            f"({str(error).splitlines()[0]})"
        ) from error
    return device
