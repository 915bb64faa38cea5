"""Explains why a program was recompiled: the facts that changed.

In: the assumptions of a compiled program, as facts {(subject, context): value}, and the facts of
earlier ones. Out: sentences about the nearest earlier one, in the user's names.

    {("dtype of `x`", "Tensor"): "float32", ("rank of `x`", "Tensor"): "2"}     earlier
    {("dtype of `x`", "Tensor"): "float64", ("rank of `x`", "Tensor"): "2"}     now
    →   "dtype of `x` was float32, is float64"

Invariant: facts in different contexts (the sizes of tensors of rank 2 and of rank 3) are not
compared; the context's own difference (the rank) is a fact, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from lowtide.frontend.script.module_state import Guard
from lowtide.ir import types as t
from lowtide.specialise.signature import LEAST, Binding, Code, Dense, is_mapping
from lowtide.texpr.index import Index

Facts = Mapping[tuple[str, str], str]

_MOST_SHOWN = 60  # characters of a value


def differences(now: Facts, earlier: Iterable[Facts]) -> tuple[str, ...]:
    """Return the differences from the nearest earlier program (the latest of equally near ones), as
    sentences; none if there is no earlier one."""
    best: tuple[str, ...] = ()
    for facts in earlier:
        found = tuple(
            change(subject, facts[subject, context], value)
            for (subject, context), value in now.items()
            if facts.get((subject, context), value) != value
        )
        if found and (not best or len(found) <= len(best)):
            best = found
    return best


def change(subject: str, before: object, now: object) -> str:
    """Return a changed fact as a sentence."""
    return f"{subject} was {before}, is {now}"


def type_facts(names: Iterable[str], types: Sequence[t.Type]) -> Facts:
    """Return the facts of a program: the types of its arguments."""
    rows = zip(names, types, strict=True)
    return {(f"type of `{name}`", ""): str(type_) for name, type_ in rows}


def signature_facts(
    binding: Binding, names: Sequence[str], assumed: Mapping[Index, bool], sizes: Mapping[str, str]
) -> Facts:
    """Return the facts of a specialisation: its signature, and the side taken at each split.
    `names`: of the live-ins. `sizes`: the user's expression for each symbol."""
    found = dict(_SignatureFacts(binding, names).facts)
    for index, holds in assumed.items():
        text = re.sub(r"[sndvi]\d+", lambda m: sizes.get(m[0], m[0]), str(index))
        found[f"`{text} >= 0`", ""] = str(holds)
    return found


class _SignatureFacts:
    """The facts of a `Binding`, read in the order in which its parts were made."""

    def __init__(self, binding: Binding, names: Sequence[str]) -> None:
        self.facts: dict[tuple[str, str], str] = {}
        self._forms = iter(binding.key)
        self._first: dict[str, str] = {}
        for name, value in zip(names, binding.values, strict=True):
            self._describe(name, value)

    def _describe(self, name: str, value: Any) -> None:
        form = next(self._forms)
        kind = "None" if value is None else type(value).__name__
        kind = "Tensor" if isinstance(value, torch.Tensor) else kind
        self.facts[f"type of `{name}`", ""] = kind
        if isinstance(value, torch.Tensor):
            self._tensor(name, value, form)
        elif is_mapping(value):
            self.facts[f"keys of `{name}`", ""] = shown(list(form[1:]))
            for key, element in cast("dict[Any, Any]", value).items():
                self._describe(f"{name}[{key!r}]", element)
        elif isinstance(value, tuple | list):
            self.facts[f"length of `{name}`", ""] = str(form[1])
            for i, element in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                self._describe(f"{name}[{i}]", element)
        elif type(value) is int:
            self.facts[f"`{name}`", kind] = self._number(name, form[1], "any int")
        elif type(value) is float:
            self.facts[f"`{name}`", kind] = str(value) if form[1] else "any float"
        elif form[1] != "":
            self.facts[f"`{name}`", kind] = shown(form[1])

    def _tensor(self, name: str, tensor: torch.Tensor, form: tuple[Any, ...]) -> None:
        _, shape, strides, *_ = form
        self.facts[f"dtype of `{name}`", ""] = str(tensor.dtype).removeprefix("torch.")
        self.facts[f"rank of `{name}`", ""] = str(len(shape))
        records = tensor.requires_grad and torch.is_grad_enabled()
        self.facts[f"whether `{name}` requires grad", ""] = str(records)
        rank = f"rank {len(shape)}"
        for d, code in enumerate(shape):
            size = f"{name}.shape[{d}]"
            self.facts[f"`{size}`", rank] = self._number(size, code, "any size")
        self.facts[f"layout of `{name}`", rank] = _layout(strides)

    def _number(self, name: str, code: Code, anything: str) -> str:
        if isinstance(code, int):
            return str(code)
        first = self._first.setdefault(code, name)
        if first != name:
            return f"equal to `{first}`"
        least = LEAST.get(code[0])
        return anything if least is None else f"any size above {least - 1}"


def _layout(strides: tuple[Code, ...] | Dense | None) -> str:
    if strides is None:
        return "contiguous"
    if isinstance(strides, Dense):
        return f"dense, its dims in the order {strides.order}"
    return f"({', '.join(str(s) if isinstance(s, int) else 'any' for s in strides)})"


# ---- facts about modules ------------------------------------------------------------------------


def guard_change(guard: Guard, before: object, now: object) -> str:
    """Return a sentence about a guard whose value has changed."""
    path = f"`{attribute(guard.path)}`"
    match guard.kind:
        case "none":
            return change(path, *("None" if v else "not None" for v in (before, now)))
        case "same":
            return change(f"`{attribute(guard.path)} is {attribute(guard.other)}`", before, now)
        case "has":
            return change(f"whether {path} exists", before, now)
        case "type":
            return change(f"type of {path}", *(getattr(v, "__name__", v) for v in (before, now)))
        case "fits":
            return f"the elements of {path} are no longer {guard.other}"
        case "hooks":
            return f"hooks of {path} changed"
        case _:
            return change(path, shown(before), shown(now))


def attribute(path: str) -> str:
    """Return the user's name for a captured value: `self.fc.weight`, or the name of a global."""
    if path.startswith("@"):
        return path.partition("|")[2] or path
    return f"self.{path}" if path else "self"


def shown(value: object) -> str:
    """Return a value's text, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
