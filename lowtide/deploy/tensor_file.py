"""Writes and reads `state.safetensors`: named pieces of memory, in Hugging Face's format.

In: tensors, or the stream of an entry. Out: bytes, or flat tensors of bytes.

    8 bytes: length of the header · JSON {name: {dtype, shape, data_offsets}} · data without gaps

Invariant: sizes and offsets are checked against each other and the stream before memory is
allocated; no piece is copied as a whole. The safetensors library can read the file.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

import torch

from lowtide.deploy import jsontext
from lowtide.deploy.jsontext import Node
from lowtide.errors import LoadError

_PIECE_BYTES: Final = 16 << 20
_HEADER_BYTES: Final = 100 << 20  # the limit of the safetensors library

# Complex numbers are pairs of floats: older versions of the library have no complex dtype.
DTYPES: Final[dict[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_BY_NAME: Final = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the header: the dtype and shape that the safetensors library sees."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def size_of(pieces: Mapping[str, Piece]) -> int:
    """Return the number of bytes of the data part."""
    return sum(p.nbytes for p in pieces.values())


def write(file: IO[bytes], pieces: Mapping[str, Piece], memory: Mapping[str, torch.Tensor]) -> None:
    """Write all pieces. `memory`: a contiguous CPU tensor for each."""
    header: dict[str, object] = {}
    end = 0
    for name, piece in pieces.items():
        header[name] = {
            "dtype": piece.dtype,
            "shape": list(piece.shape),
            "data_offsets": [end, end + piece.nbytes],
        }
        end += piece.nbytes
    text = jsontext.dump(header)
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    for name in pieces:
        for part in _bytes_of(memory[name]):
            file.write(part)


def _bytes_of(tensor: torch.Tensor) -> Iterator[bytes]:
    left, place = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    while left > 0:
        count = min(left, _PIECE_BYTES)
        yield ctypes.string_at(place, count)
        left, place = left - count, place + count


def read(file: IO[bytes], size_bytes: int) -> dict[str, torch.Tensor]:
    """Return the memory of each entry as a flat tensor of bytes. Raises LoadError."""
    header = _header(file, size_bytes)
    return {name: _filled(file, name, piece.nbytes) for name, piece in header.items()}


def _header(file: IO[bytes], size_bytes: int) -> dict[str, Piece]:
    raw = file.read(8)
    length = struct.unpack("<Q", raw)[0] if len(raw) == 8 else size_bytes
    if length > min(_HEADER_BYTES, size_bytes - 8):
        raise LoadError("state.safetensors has no valid header")
    text = file.read(length)
    pieces: dict[str, Piece] = {}
    end = 0
    for name, node in jsontext.parse(text, "the header of state.safetensors").items():
        if name == "__metadata__":
            continue
        piece, begin = _piece(node)
        if begin != end:
            raise node.fail("`data_offsets` that begin where the entry before ends")
        end += piece.nbytes
        pieces[name] = piece
    if end != size_bytes - 8 - length:
        raise LoadError(
            f"state.safetensors describes {end} bytes of data, but has a different number"
        )
    return pieces


def _piece(node: Node) -> tuple[Piece, int]:
    dtype = node.get("dtype").text()
    if dtype not in _BY_NAME:
        raise node.get("dtype").fail("a dtype of safetensors")
    shape = tuple(n.size() for n in node.get("shape").items_of(64))
    offsets = [n.size() for n in node.get("data_offsets").items_of(2)]
    nbytes = _BY_NAME[dtype].itemsize
    for extent in shape:
        nbytes *= extent
    if len(offsets) != 2 or offsets[1] - offsets[0] != nbytes:
        raise node.fail("`data_offsets` that fit dtype and shape")
    return Piece(dtype, shape, nbytes), offsets[0]


def _filled(file: IO[bytes], name: str, nbytes: int) -> torch.Tensor:
    made = torch.empty(nbytes, dtype=torch.uint8)
    begin = 0
    while begin < nbytes:
        part: Any = bytearray(file.read(min(nbytes - begin, _PIECE_BYTES)))
        if not part:
            raise LoadError(f"state.safetensors ends within {name!r}")
        made[begin : begin + len(part)].copy_(torch.frombuffer(part, dtype=torch.uint8))
        begin += len(part)
    return made
