"""Generates the function that computes the key of a call, for the types of its live-ins.

In: the Python types of the live-ins. Out: a function that returns the same as `signature.exact_key`
for such values, without dispatch on each one; None for types of which only the class is known.

    (Tensor, int)  →  def key(values):
                          a, b, = values
                          if not a.is_cpu or a.layout is not strided or …:
                              return exact(values)
                          return (default_dtype(), settings().interpret_blocks,
                                  a.dtype, (shape := a.shape),
                                  (a.is_contiguous() and 1 not in shape) or a.stride(),
                                  a.requires_grad and grad_on(), int, b,)

Invariant: the key equals that of `exact_key`, which is called for special tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from lowtide import config
from lowtide.ir.core import Op, Value, free_values
from lowtide.specialise.signature import PLAIN_TYPES, TENSOR_TYPES, exact_key
from lowtide.torch_private.tensors import is_zero_tensor

Key = tuple[Any, ...]
KeyOf = Callable[[Sequence[Any]], Key]

_settings = config.current
_default_dtype = torch.get_default_dtype
_SPECIAL: Final = (
    "not {0}.is_cpu or {0}.layout is not strided or {0}.is_neg() or is_zero_tensor({0}) "
    "or {0}.is_nested"
)
_MAX_FUNCTIONS: Final = 4096  # functions held; then all are dropped


@dataclass(slots=True, eq=False)
class Keys:
    """Computes the keys of a region's calls. `floats`: keys include the values of floats. `places`:
    the positions of the live-ins that keys include, which are those that some trace has read; None
    for all."""

    floats: bool = False
    places: tuple[int, ...] | None = None
    _reach: int = 0
    _functions: dict[tuple[type, ...], KeyOf | None] = field(
        default_factory=dict[tuple[type, ...], "KeyOf | None"]
    )

    def of(self, values: Sequence[Any]) -> Key:
        """Return the key of a call with these live-ins. Raises Ineligible."""
        if self.places is not None:
            values = [values[k] for k in self.places]
        kinds = tuple(map(type, values))
        try:
            key_of = self._functions[kinds]
        except KeyError:
            if len(self._functions) >= _MAX_FUNCTIONS:
                self._functions.clear()
            key_of = self._functions.setdefault(kinds, key_function(kinds, self.floats))
        return key_of(values) if key_of is not None else whole_key(values, self.floats)

    def hold_floats(self) -> None:
        """Include the values of floats in keys from now on."""
        self.floats = True
        self._functions.clear()

    def has_read(self, ops: Sequence[Op], live_ins: Sequence[Value]) -> bool:
        """Record that a trace has read these ops, the first ones of the region, and no more. Return
        whether that changes which live-ins keys include."""
        if len(ops) <= self._reach:
            return False
        self._reach = len(ops)
        used = free_values(ops)
        before = self.places
        places = tuple(k for k, v in enumerate(live_ins) if v in used)
        self.places = places if len(places) < len(live_ins) else None
        return self.places != before


def whole_key(values: Sequence[Any], floats: bool) -> Key:
    """Return the key of a call. `floats`: include the values of floats. Raises Ineligible."""
    return tuple(exact_key(values, [_default_dtype(), _settings().interpret_blocks], floats))


def key_function(kinds: Sequence[type], floats: bool) -> KeyOf | None:
    """Return the function that computes the key of values of exactly these types; see
    `whole_key`."""
    names = [f"v{k}" for k in range(len(kinds))]
    known: dict[str, Any] = {
        "strided": torch.strided,
        "grad_on": torch.is_grad_enabled,
        "default_dtype": _default_dtype,
        "settings": _settings,
        "is_zero_tensor": is_zero_tensor,
        "nest": lambda value: exact_key((value,), [], floats),
        "exact": lambda values: whole_key(values, floats),  # pyright: ignore[reportUnknownArgumentType]
    }
    parts, special = ["default_dtype()", "settings().interpret_blocks"], list[str]()
    for name, kind in zip(names, kinds, strict=True):
        known[f"t_{name}"] = kind
        if kind in TENSOR_TYPES:
            special.append(_SPECIAL.format(name))
            parts += [
                f"{name}.dtype",
                f"(shape := {name}.shape)",
                f"({name}.is_contiguous() and 1 not in shape) or {name}.stride()",
                f"{name}.requires_grad and grad_on()",
            ]
        elif kind is float:
            parts += [f"t_{name}", *([f"{name}.hex()"] if floats else [])]
        elif kind is int or kind in PLAIN_TYPES:
            parts += [f"t_{name}", name]
        elif kind is dict or issubclass(kind, tuple | list):
            parts.append(f"*nest({name})")
        else:
            return None
    lines = ["def key(values):"]
    lines += [f"    {', '.join(names)}, = values"] if names else []
    lines += [f"    if {' or '.join(special)}: return exact(values)"] if special else []
    lines += [f"    return ({', '.join(parts)},)"]
    exec("\n".join(lines), known)
    return known["key"]
