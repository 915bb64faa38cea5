"""Stores small facts on disk, such as the version of a compiler or the fastest tiling.

In: a kind of facts, a key. Out: the texts, by name, that a process wrote under the key; {} if there
are none, or the file is damaged. Nothing is raised: without a folder, each process measures anew.

    <cache_dir>/lowtide-1/<kind>/<key>.json
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import cast

from lowtide.runtime import folder


def read(kind: str, key: str) -> dict[str, str]:
    """Return the facts of a key."""
    root = folder.trusted()
    if not root:
        return {}
    try:
        with open(os.path.join(root, kind, f"{key}.json"), encoding="utf-8") as file:
            data: object = json.load(file)
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(k): str(v) for k, v in cast("dict[object, object]", data).items()}


def write(kind: str, key: str, facts: Mapping[str, str]) -> None:
    """Store the facts of a key for later processes."""
    root, temporary = folder.trusted(), ""
    if not root:
        return
    try:
        path = os.path.join(folder.subfolder(root, kind), f"{key}.json")
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(facts, file)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
