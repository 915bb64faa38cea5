"""Makes the tensors of a TorchScript archive from its records; views still share memory.

In: an archive, and the arguments that a pickle gives to PyTorch's functions which rebuild tensors.
Out: tensors.

    ("storage", torch.FloatStorage, "0", "cpu", 6)                      record data/0 of 24 bytes
    _rebuild_tensor_v2(storage, 0, (3, 2), (1, 3), False, {})           a transposed view of it

Invariant: a record is read once, into memory of its own size, and only when a tensor asks for it.
Sizes, strides and offset are checked against the record before a tensor is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from lowtide.deploy import limits
from lowtide.deploy.archive import Archive
from lowtide.deploy.storages import Placed, reach
from lowtide.deploy.torchscript.pickles import Name
from lowtide.torch_private.private_names import (
    REBUILD_QUANTIZED,
    REBUILD_SPARSE,
    REBUILD_TENSOR,
)
from lowtide.torch_private.tensors import (
    empty_per_channel_quantized,
    empty_quantized,
    set_math_bits,
)

Check = Callable[[str, memoryview], None]

_MOST: Final = 2**63 - 1
# Names of storages. Those of `_NEW_NAMES` in lower case are the names of their dtypes.
_OLD_NAMES: Final = {
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32,
    "Long": torch.int64, "Half": torch.float16, "Float": torch.float32, "Double": torch.float64,
    "ComplexHalf": torch.complex32, "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128, "Bool": torch.bool,
}  # fmt: skip
_NEW_NAMES: Final = (
    *("BFloat16", "QInt8", "QUInt8", "QInt32", "QUInt4x2", "QUInt2x4", "UInt16", "UInt32"),
    *("UInt64", "Bits1x8", "Bits2x4", "Bits4x2", "Bits8", "Bits16", "Float8_e5m2"),
    *("Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu"),
    *("Float4_e2m1fn_x2", *(f"{sign}Int{n}" for sign in ("U", "") for n in range(1, 8))),
)
_DTYPES: Final[dict[str, torch.dtype]] = {
    f"torch.{name}Storage": dtype
    for name, dtype in (
        *_OLD_NAMES.items(),
        *((name, getattr(torch, name.lower(), None)) for name in _NEW_NAMES),
    )
    if dtype is not None  # this PyTorch may be older than the file's
}
_SPARSE, _SPARSE_CSR = 1, 2  # of PyTorch's layouts


@dataclass(frozen=True, slots=True)
class Stored:
    """A record with the dtype by which a pickle names it. `flat`: its bytes, on their device."""

    flat: torch.Tensor
    dtype: torch.dtype
    count: int


class Tensors:
    """The tensors of one pickle, whose records lie in `folder`. `check`: looks at the checksum of
    an entry, at once or later."""

    def __init__(self, archive: Archive, folder: str, place: Placed, check: Check) -> None:
        self.archive = archive
        self.folder = folder
        self.place = place
        self.check = check
        self._read: dict[str, tuple[str, torch.Tensor]] = {}

    def storage(self, key: tuple[object, ...]) -> Stored:
        """Return a record. Raises ValueError, or LoadError if the record is damaged."""
        if len(key) == 6 and key[-1] is None:  # PyTorch 1.4 wrote None: no view of a storage
            key = key[:-1]
        match key:
            case "storage", Name(kind), str(record), str(location), int(count) if count >= 0:
                pass
            case _:
                raise ValueError("a storage of other arguments")
        if kind not in _DTYPES:
            raise ValueError(f"{kind} is no storage of this PyTorch {torch.__version__}")
        known = self._read.get(record)
        if known is None:
            flat = self._flat(f"{self.folder}/{record}", location)
            known = self._read[record] = location, flat
        if known[0] != location:
            raise ValueError(f"record {record!r} is on {known[0]!r} and on {location!r}")
        dtype, flat = _DTYPES[kind], known[1]
        if count * dtype.itemsize > flat.numel():
            raise ValueError(f"record {record!r} has {flat.numel()} bytes, not {count} of {dtype}")
        return Stored(flat, dtype, count)

    def _flat(self, name: str, location: str) -> torch.Tensor:
        device = torch.device(location)
        if device.type == "meta":
            raise ValueError("a tensor on the meta device, which has no values")
        device = self.place(location)
        flat = torch.empty(self.archive.info(name).file_size, dtype=torch.uint8)
        if flat.numel():
            memory = memoryview(cast("Any", flat.numpy()))
            self.archive.read_into(name, memory)
            self.check(name, memory)
        return flat.to(device)

    def tensor(self, rebuild: str, arguments: tuple[object, ...]) -> torch.Tensor:
        """Return a tensor. Raises ValueError, TypeError or RuntimeError."""
        match arguments:
            case Stored() as s, offset, size, strides, bool(wanted), {}, *bits if (
                rebuild == REBUILD_TENSOR and len(bits) <= 1
            ):
                made = torch.empty(0, dtype=s.dtype, device=s.flat.device)
                made = _strided(made, s, offset, size, strides)
                if bits:
                    _set_bits(made, bits[0])
            case Stored() as s, offset, size, strides, tuple(), bool(wanted), {} if (
                rebuild == REBUILD_QUANTIZED
            ):
                made = _quantized(s, _extents(size), cast("tuple[object, ...]", arguments[4]))
                made = _strided(made, s, offset, size, strides)
            case int(layout), size, bool(wanted), *parts, {} if rebuild == REBUILD_SPARSE:
                made = _sparse(layout, _extents(size), parts)
            case _:
                raise ValueError(f"{rebuild} of other arguments")
        if wanted and not (made.dtype.is_floating_point or made.dtype.is_complex):
            raise ValueError(f"requires_grad of a tensor of {made.dtype}")
        return made.requires_grad_(wanted)


def _extents(value: object) -> tuple[int, ...]:
    if type(value) is not tuple or len(cast("Any", value)) > limits.DIMENSIONS:
        raise ValueError("sizes and strides are tuples of at most 64 numbers")
    found = cast("tuple[object, ...]", value)
    if any(type(n) is not int or n < 0 for n in found):
        raise ValueError("a size or stride that is no natural number")
    return cast("tuple[int, ...]", found)


def _strided(
    made: Any, stored: Stored, offset: object, size: object, strides: object
) -> torch.Tensor:
    """Return the tensor over its record."""
    extents, steps = _extents(size), _extents(strides)
    (begin,) = _extents((offset,))
    count = 1
    for extent in extents:
        count *= extent
    end = reach(begin, extents, steps) * stored.dtype.itemsize
    if count > _MOST or end > stored.flat.numel():
        raise ValueError(
            f"a tensor that ends at byte {end} of a record of {stored.flat.numel()} bytes"
        )
    return made.set_(stored.flat.untyped_storage(), begin, extents, steps)


def _set_bits(made: torch.Tensor, bits: object) -> None:
    """Mark the tensor's memory as holding the conjugate, or the negative, of its elements."""
    found = cast("dict[object, object]", bits) if type(bits) is dict else {bits: None}
    if not found.keys() <= {"conj", "neg"} or any(type(b) is not bool for b in found.values()):
        raise ValueError("other properties of a tensor than `conj` and `neg`")
    if found.get("conj") and not made.is_complex():
        raise ValueError(f"the conjugate of a tensor of {made.dtype}")
    set_math_bits(made, found)


def _quantized(stored: Stored, size: tuple[int, ...], scheme: tuple[object, ...]) -> torch.Tensor:
    """Return a quantized tensor without elements."""
    none = [0] * len(size)
    like = {"dtype": stored.dtype, "device": stored.flat.device}
    match scheme:
        case Name("torch.per_tensor_affine"), float(scale), int(zero):
            return empty_quantized(none, scale=scale, zero_point=zero, **like)
        case Name(kind), torch.Tensor() as scales, torch.Tensor() as zeros, int(axis) if (
            kind.startswith("torch.per_channel_affine") and 0 <= axis < len(size)
        ):
            if not tuple(scales.shape) == tuple(zeros.shape) == (size[axis],):
                raise ValueError(f"scales for other than {size[axis]} channels")
            made = {"scales": _small(scales), "zero_points": _small(zeros), "axis": axis}
            return empty_per_channel_quantized(none, **made, **like)
        case _:
            raise ValueError("another scheme of quantization")


def _sparse(layout: int, size: tuple[int, ...], parts: list[object]) -> torch.Tensor:
    if any(not isinstance(p, torch.Tensor) for p in parts):
        raise ValueError("indices and values are tensors")
    found: list[Any] = [_small(cast("torch.Tensor", p).detach()) for p in parts]
    if layout == _SPARSE and len(found) == 2:
        return torch.sparse_coo_tensor(found[0], found[1], size, check_invariants=True)
    if layout == _SPARSE_CSR and len(found) == 3:
        return torch.sparse_csr_tensor(found[0], found[1], found[2], size, check_invariants=True)
    raise ValueError(f"a sparse tensor of layout {layout} and {len(found)} parts")


def _small(part: torch.Tensor) -> torch.Tensor:
    """Return the tensor. Raises ValueError if it has more elements than its memory has, as an
    expanded tensor does: a damaged file could ask for any size."""
    if part.layout is not torch.strided or part.nbytes > part.untyped_storage().nbytes():
        raise ValueError("indices, values and scales without memory of their own")
    return part
