"""The user's words for values and buffers of kernels, for `memory()` and `explain()`.

In: the kernels of a program, and the user's names of its inputs. Out: a word and a place.

    t25        amin               boxes.py:14
    ct_x1      gradient of w      boxes.py:14
    k0.work    kernel k0          the line of its first op
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lowtide.errors import UNKNOWN_LOC, Loc

_NAME: Final = re.compile(r"\b(?:ct_\w+|s[vi]\d+_\w+|[tx]\d+\w*)\b")
_SCATTER: Final = re.compile(r"s([vi])\d+_(\w+)")
_COTANGENT: Final = "ct_"
_WORK: Final = ".work"


class ValueWords:
    """See the module's text. `names`: the user's names of inputs."""

    def __init__(self, kernels: Iterable[Any], names: Mapping[str, str]) -> None:
        self.names = names
        self.values: dict[str, tuple[str, Loc]] = {}
        self.places: dict[str, Loc] = {}  # of kernels, and of what they write
        for k in kernels:
            self.values |= k.values
            first = next((loc for _, loc in k.ops if loc.line), UNKNOWN_LOC)
            for name in (k.name, *k.outputs):
                self.places.setdefault(name, first)

    def of(self, name: str) -> tuple[str, Loc]:
        """Return the word and the place of a value, or of a kernel's work memory."""
        if name.endswith(_WORK):
            kernel = name.removesuffix(_WORK)
            return f"kernel {kernel}", self.places.get(kernel, UNKNOWN_LOC)
        word, loc = self._word(name), self.values.get(name, ("", UNKNOWN_LOC))[1]
        return word, loc if loc.line else self.places.get(name, UNKNOWN_LOC)

    def in_text(self, text: str) -> str:
        """Return the text with the words in place of names."""
        return _NAME.sub(lambda found: self._word(found[0]), text)

    def _word(self, name: str) -> str:
        if found := _SCATTER.fullmatch(name):
            part = "addends" if found[1] == "v" else "places"
            return f"{part} of the {self._word(_COTANGENT + found[2])}"
        if name.startswith(_COTANGENT):
            of = name.removeprefix(_COTANGENT)
            return f"gradient of {self.names.get(of) or self._op(name) or of}"
        return self.names.get(name) or self._op(name) or name

    def _op(self, name: str) -> str:
        return self.values.get(name, ("", UNKNOWN_LOC))[0].partition(".")[0]  # not the overload
