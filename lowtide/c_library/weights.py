"""The weights of an exported model: constants in its C, or a file that the caller maps.

In: tensors. Out: the file's bytes, and the C that finds each tensor.

    header   8 bytes "LTWEIGHT", u32 format, u32 count, u64 checksum of the model's table
    table    for each tensor: u64 offset, u64 bytes, u64 FNV-1a of its bytes
    data     each tensor at a multiple of 64 bytes, little-endian

Invariant: a tensor that several entries read is there once. `open` reads header and table alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import torch

from lowtide.codegen.host.c_driver import ALIGNED

_MAGIC = b"LTWEIGHT"
_FORMAT = 1
_HEAD = struct.Struct("<8sIIQ")
_ROW = struct.Struct("<QQQ")
_PRIME, _BASIS, _MASK = 0x100000001B3, 0xCBF29CE484222325, (1 << 64) - 1


def checksum(raw: bytes) -> int:
    """Return FNV-1a over 8-byte words, the rest byte by byte."""
    found = _BASIS
    words = np.frombuffer(raw[: len(raw) // 8 * 8], dtype="<u8")
    for word in words.tolist():
        found = ((found ^ word) * _PRIME) & _MASK
    for byte in raw[len(raw) // 8 * 8 :]:
        found = ((found ^ byte) * _PRIME) & _MASK
    return found


@dataclass(slots=True)
class Table:
    """The tensors, in order. `name`: of the library. `is_constant`: they are constants in the C."""

    name: str
    is_constant: bool = True
    _raw: list[bytes] = field(default_factory=list[bytes])
    _places: dict[int, int] = field(default_factory=dict[int, int])
    _kept: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def add(self, tensor: torch.Tensor) -> None:
        """Add a tensor."""
        if id(tensor) in self._places:
            return
        whole = tensor.detach().cpu().contiguous()
        raw = (
            whole.view(torch.uint8).numpy().tobytes()
            if whole.dim()
            else bytes(whole.reshape(1).view(torch.uint8).numpy().tobytes())
        )
        known = next((k for k, r in enumerate(self._raw) if r == raw), None)
        if known is None:
            self._raw.append(raw)
            known = len(self._raw) - 1
        self._places[id(tensor)] = known
        self._kept.append(tensor)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(map(len, self._raw))

    def _offsets(self) -> list[int]:
        at = _HEAD.size + _ROW.size * len(self._raw)
        found: list[int] = []
        for raw in self._raw:
            at = -(-at // ALIGNED) * ALIGNED
            found.append(at)
            at += len(raw)
        return found

    def _rows(self) -> bytes:
        rows = zip(self._offsets(), self._raw, strict=True)
        return b"".join(_ROW.pack(at, len(raw), checksum(raw)) for at, raw in rows)

    def file(self) -> bytes:
        """Return the file's bytes."""
        rows = self._rows()
        made = bytearray(_HEAD.pack(_MAGIC, _FORMAT, len(self._raw), checksum(rows)) + rows)
        for at, raw in zip(self._offsets(), self._raw, strict=True):
            made.extend(b"\0" * (at - len(made)))
            made.extend(raw)
        return bytes(made)

    def place(self, tensor: torch.Tensor) -> str:
        """Return the C expression of a tensor's address."""
        k = self._places[id(tensor)]
        if self.is_constant:
            return f"{self.name}_weight_{k}"
        return f"(const char *)weights->bytes + {self._offsets()[k]}"

    def c_text(self, name: str, upper: str) -> str:
        """Return the constants, and the functions that open and verify a file."""
        if self.is_constant:
            constants = [_constant(name, k, raw) for k, raw in enumerate(self._raw)]
            externs = [f"LT_HIDDEN extern const uint64_t {name}_weight_{k}[{_words(raw)}];"
                       for k, raw in enumerate(self._raw)]  # fmt: skip
            return "\n".join([
                *externs, f"#ifndef {upper}_SET", *constants,
                f"{name}_status {name}_weights_open({name}_weights *w, const void *bytes, "
                f"size_t n) {{\n  if (!w) return {upper}_NULL;\n"
                "  w->bytes = bytes;\n  w->n_bytes = n;\n"
                f"  return {upper}_OK;\n}}",
                f"{name}_status {name}_weights_verify(const {name}_weights *w) "
                f"{{ (void)w; return {upper}_OK; }}",
                "#endif",
            ])  # fmt: skip
        rows, end = (
            self._rows(),
            max(
                (at + len(raw) for at, raw in zip(self._offsets(), self._raw, strict=True)),
                default=_HEAD.size,
            ),
        )
        head = f"0x{checksum(rows):016x}ULL"
        return f"""\
#define LT_TENSORS {len(self._raw)}
static uint64_t lt_word(const unsigned char *p) {{
  uint64_t v = 0;
  for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
  return v;
}}
static uint64_t lt_checksum(const unsigned char *p, uint64_t n) {{
  uint64_t found = 0x{_BASIS:x}ULL;
  for (uint64_t i = 0; i + 8 <= n; i += 8) found = (found ^ lt_word(p + i)) * 0x{_PRIME:x}ULL;
  for (uint64_t i = n / 8 * 8; i < n; i++) found = (found ^ p[i]) * 0x{_PRIME:x}ULL;
  return found;
}}
static int {name}_weights_are_open(const {name}_weights *w) {{
  const unsigned char *p = w ? w->bytes : 0;
  if (!p || (uintptr_t)p % {ALIGNED} || w->n_bytes < {end}) return 0;
  if (memcmp(p, "{_MAGIC.decode()}", 8)) return 0;
  if (lt_word(p + 8) != ((uint64_t)LT_TENSORS << 32 | {_FORMAT})) return 0;
  return lt_word(p + 16) == {head};
}}
#ifndef {upper}_SET
{name}_status {name}_weights_open({name}_weights *w, const void *bytes, size_t n) {{
  if (!w || !bytes) return {upper}_NULL;
  w->bytes = bytes;
  w->n_bytes = n;
  if (!{name}_weights_are_open(w)) return {upper}_BAD_WEIGHTS;
  if (lt_checksum((const unsigned char *)bytes + {_HEAD.size}, {len(rows)}) != {head})
    return {upper}_BAD_WEIGHTS;
  return {upper}_OK;
}}
{name}_status {name}_weights_verify(const {name}_weights *w) {{
  if (!{name}_weights_are_open(w)) return {upper}_BAD_WEIGHTS;
  const unsigned char *p = w->bytes;
  for (int64_t k = 0; k < LT_TENSORS; k++) {{
    const unsigned char *row = p + {_HEAD.size} + {_ROW.size} * k;
    const uint64_t at = lt_word(row), n = lt_word(row + 8);
    if (at > w->n_bytes || n > w->n_bytes - at) return {upper}_BAD_WEIGHTS;
    if (lt_checksum(p + at, n) != lt_word(row + 16)) return {upper}_BAD_WEIGHTS;
  }}
  return {upper}_OK;
}}
#endif"""


def _words(raw: bytes) -> int:
    return max(-(-len(raw) // 8), 1)


def _constant(name: str, k: int, raw: bytes) -> str:
    padded = raw + b"\0" * (8 * _words(raw) - len(raw))
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    text = ", ".join(f"0x{w:x}" for w in words)
    return (
        f"const uint64_t {name}_weight_{k}[{len(words)}] "
        f"__attribute__((aligned({ALIGNED}))) = {{{text}}};"
    )
