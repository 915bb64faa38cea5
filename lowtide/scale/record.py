"""Notes which chunks of `out` are complete, so that a second run resumes.

In: the arrays of the results, and a digest of the plan. Out: a `Record`.

    out.lowtide.json beside a memory map; the attribute "lowtide" of an array of Zarr or HDF5
    {"plan": "5f0c…", "complete": ["0:3,1", …], "parts": {"0:3": 2212294583, …}}

A chunk is noted after it has been written. `parts` are checksums of the arguments' parts: if one of
them differs, nothing is resumed. The record is removed when the call is complete.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from lowtide.scale.arrays import flush_store, mapping_of

_NAME: Final = "lowtide"
_SECONDS: Final = 0.5  # between two writes


class Record:
    """See the module's text."""

    def __init__(self, array: Any, digest: str) -> None:
        self.array, self.digest = array, digest
        self.complete = set[str]()
        self.parts: dict[str, int] = {}
        self._written = time.monotonic()
        self._read()

    @staticmethod
    def beside(arrays: Sequence[Any], digest: str) -> Record | None:
        """Return the record of these results; None if they are not on disk."""
        if not all(_file_of(a) is not None or _attributes_of(a) is not None for a in arrays):
            return None
        return Record(arrays[0], digest)

    def has(self, key: str) -> bool:
        """Return whether the chunk is complete."""
        return key in self.complete

    def has_part(self, key: str, found: int) -> bool:
        """Return whether a part of an argument is the same as when its chunk was computed."""
        return self.parts.get(key) == found

    def note_part(self, key: str, found: int) -> None:
        """Note the checksum of a part."""
        self.parts.setdefault(key, found)

    def note(self, key: str) -> None:
        """Note that a chunk is complete."""
        self.complete.add(key)
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def clear(self) -> None:
        """Forget all chunks."""
        self.complete.clear()
        self.parts.clear()

    def write(self) -> None:
        """Write the record."""
        facts = {"plan": self.digest, "complete": sorted(self.complete), "parts": self.parts}
        file, attributes = _file_of(self.array), _attributes_of(self.array)
        if file is not None:
            new = file.with_name(f"{file.name}.new")
            new.write_text(json.dumps(facts))
            os.replace(new, file)
        elif attributes is not None:
            flush_store(self.array)
            attributes[_NAME] = json.dumps(facts)
            flush_store(self.array)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the record: `out` is complete."""
        file, attributes = _file_of(self.array), _attributes_of(self.array)
        if file is not None:
            file.unlink(missing_ok=True)
        elif attributes is not None and _NAME in attributes:
            del attributes[_NAME]

    def _read(self) -> None:
        file, attributes = _file_of(self.array), _attributes_of(self.array)
        text: Any = None
        if file is not None and file.exists():
            text = file.read_text()
        elif attributes is not None and _NAME in attributes:
            text = attributes[_NAME]
        try:
            facts: Any = json.loads(text) if text else {}
        except ValueError:
            return
        if facts.get("plan") == self.digest:
            self.complete = set(facts["complete"])
            self.parts = dict(facts["parts"])


def _file_of(array: Any) -> Path | None:
    """Return the place of a record beside a memory map."""
    name = getattr(array, "filename", None)
    if not isinstance(array, np.memmap) or mapping_of(cast("Any", array)) is None or name is None:
        return None
    return Path(f"{name}.lowtide.json")


def _attributes_of(array: Any) -> Any:
    """Return the attributes of an array of Zarr or HDF5."""
    found = getattr(array, "attrs", None)
    return found if hasattr(found, "__setitem__") and not isinstance(array, np.ndarray) else None
