"""`LOWTIDE_DEBUG`: stages shown while they happen, on standard error or as numbered files.

LOWTIDE_DEBUG=ir,kernels              to standard error
LOWTIDE_DEBUG='ir;fn=boxes;dir=out'   out/0000-boxes-ir.txt, ...
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable

from lowtide import config

_serial = itertools.count()


def is_on() -> bool:
    """Whether anything is to be shown."""
    return bool(config.current().debug.topics)


def show(topic: str, function: str, text: Callable[[], str]) -> None:
    """Shows a text if its topic is asked for; it is made only then."""
    debug = config.current().debug
    if not debug.wants(topic, function):
        return
    if not debug.directory:
        print(f"---- {topic} of {function} ----\n{text()}", file=sys.stderr)
        return
    os.makedirs(debug.directory, exist_ok=True)
    name = f"{next(_serial):04d}-{function}-{topic}.txt"
    with open(os.path.join(debug.directory, name), "w", encoding="utf-8") as file:
        file.write(text() + "\n")
