"""`LOWTIDE_DEBUG`: prints stages as they run, to standard error or to numbered files.

LOWTIDE_DEBUG=ir,kernels              to standard error
LOWTIDE_DEBUG='ir;fn=boxes;dir=out'   out/0000-boxes-ir.txt, ...
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from lowtide import config

_serial = itertools.count()


def planned(region: str, make: Callable[[], Any], sizes: Mapping[str, int], which: str = "") -> Any:
    """Return the kernels of a region, planned by `make`. Prints their stages, the generated source,
    their memory at these sizes and the time of planning. `which`: the pass, forward or backward."""
    begin = time.perf_counter_ns()
    executable = make()
    spent = (time.perf_counter_ns() - begin) / 1e6
    function, topics = region.partition(":")[0], config.current().debug.topics
    # the texts of a large program take a while
    stages: list[tuple[str, str]] = executable.stages if topics & {"tile", "kernels"} else []
    for k, (stage, text) in enumerate(stages):
        topic = "kernels" if k == len(stages) - 1 else "tile"
        found = f"{which}{stage} {region}\n{text}"
        show(topic, function, lambda found=found: found)
    show("memory", function, lambda: f"{which}{region}: {executable.memory(sizes)}")
    show("time", function, lambda: f"{which}{region}: kernels planned in {spent:.1f} ms")
    return executable


def show(topic: str, function: str, text: Callable[[], str]) -> None:
    """Show a text if its topic is wanted; the text is made only then."""
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
