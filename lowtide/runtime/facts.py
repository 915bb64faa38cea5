"""Small facts on disk: the version of a compiler, the fastest schedule. Text by name.

In: a kind of facts, a key. Out: what any process wrote under it; {} if there is nothing, or it is
damaged. It never raises: a fact that cannot be stored is found anew by each process.

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
    """The facts of a key."""
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
    """Keeps the facts of a key for later processes."""
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
