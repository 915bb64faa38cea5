"""Random modules that keep state, and steps that change the state between calls.

In: a seed. Out: a `Story`, always the same one, such as

    self.h0 = None                                          in __init__
    self.h0 = x if self.h0 is None else self.h0 + x         in forward
    steps=("call", "call", "m.h0 = None", "call", "m.eval()", "call")

A module has a few attributes of the kinds below, each with statements that read and write it. A
step calls the module, sets an attribute, an item or a submodule, changes its mode, or copies it.
`state_check` runs the story in eager PyTorch and compiled.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What an attribute `$` begins as, statements of forward, what others do to it."""

    first: Sequence[str]
    uses: Sequence[str]
    changes: Sequence[str] = ()


_TENSOR = "torch.full((2, 3), 0.5)"

KINDS: dict[str, Kind] = {
    "none": Kind(
        first=["None", _TENSOR],
        uses=[
            "if $ is not None:\n    x = x + $\n$ = x",
            "$ = x if $ is None else $ + x",
            "if $ is None:\n    $ = x * 2\nelse:\n    x = x - $",
            "if $ is not None and $.sum() > 0:\n    x = x * 0.5",
        ],
        changes=["$ = None", f"$ = {_TENSOR}"],
    ),
    "dict": Kind(
        first=["{'k': None}", "{}", f"{{'k': {_TENSOR}}}", "{'k': None, 'v': None}"],
        uses=[
            "if 'k' in $ and $['k'] is not None:\n    x = x + $['k']\n$['k'] = x",
            "k = $.get('k')\nif k is not None:\n    x = x + k\n$['k'] = x",
            "$['n'] = x.sum()",
            "for name in $:\n    if $[name] is not None:\n        x = x + 1",
            "x = x + len($)",
            "if 'v' not in $:\n    $['v'] = None\nif $['v'] is None:\n    $['v'] = x",
        ],
        changes=["$['k'] = None", f"$['k'] = {_TENSOR}", "$.clear()", "$ = {'k': None}"],
    ),
    "list": Kind(
        first=["[]", "[None]", "[None, None]", f"[{_TENSOR}]"],
        uses=[
            "if len($) > 0 and $[-1] is not None:\n    x = x + $[-1]\n$.append(x)",
            "if len($) > 0:\n    $[0] = x",
            "for y in $:\n    if y is not None:\n        x = x + y",
            "if len($) > 2:\n    $.pop(0)",
            "last = $[-1] if len($) > 0 else None\nx = x if last is None else x * 0.5 + last",
            "$ = [x, None]",
        ],
        changes=["$.append(None)", f"$.append({_TENSOR})", "$.clear()", "$ = []"],
    ),
    "layers": Kind(
        first=["[[None, None] for _ in range(2)]", "[[], []]", "[{}, {}]"],
        uses=[
            "for i in range(2):\n    x = x + len($[i])",
            "x = x + len($[0]) * 2",
            "for row in $:\n    x = x + len(row)",
        ],
        changes=["$[0] = $[1]"],
    ),
    "pairs": Kind(
        first=["[[None, None] for _ in range(2)]"],
        uses=[
            "for i in range(2):\n    if $[i][0] is None:\n        $[i][0] = x\n    else:\n"
            "        x = x + $[i][0]\n        $[i][1] = x",
            "for row in $:\n    row[1] = x * 2\nif $[1][1] is not None:\n    x = x + $[1][1]",
        ],
        changes=["$[0] = [None, None]", f"$[1][0] = {_TENSOR}"],
    ),
    "tuple": Kind(
        first=["(None, None)", f"(None, {_TENSOR})"],
        uses=[
            "if $[0] is not None:\n    x = x + $[0]\n$ = (x, x)",
            "a, b = $\nif b is not None:\n    x = x - b\n$ = (b, x)",
        ],
        changes=["$ = (None, None)"],
    ),
    "mixed": Kind(
        first=["[0]", "[1.5]"],
        uses=[
            "if isinstance($[0], int):\n    $[0] = x\nelse:\n    x = x + $[0]",
            "$[0] = $[0] + 1\nx = x * 2",
        ],
        changes=["$[0] = 3", f"$[0] = {_TENSOR}"],
    ),
    "count": Kind(
        first=["0", "3"],
        uses=["$ += 1\nx = x * $", "x = x + $", "if $ > 2:\n    x = -x\n$ += 1",
              "for _ in range($):\n    x = x * 0.5", "$ = $ % 3 + 1"],
        changes=["$ = 1", "$ = 7"],
    ),
    "rate": Kind(
        first=["0.5", "2.0"],
        uses=["x = x * $", "$ = $ * 0.9\nx = x + $", "if $ > 1:\n    x = x + 1"],
        changes=["$ = 3.0", "$ = 0.25"],
    ),
    "flag": Kind(
        first=["True", "False"],
        uses=["if $:\n    x = x + 1", "$ = not $\nx = x * 2 if $ else x", "x = x + $"],
        changes=["$ = True", "$ = False"],
    ),
    "mode": Kind(
        first=["'a'", "'b'"],
        uses=["x = x + 1 if $ == 'a' else x - 1", "$ = 'b' if $ == 'a' else 'a'\nx = x + len($)"],
        changes=["$ = 'c'", "$ = 'a'"],
    ),
    "buffer": Kind(
        first=["buffer"],
        uses=["x = x + $", "$ += x.mean(0)", "$ = $ * 0.5 + x.mean(0)", "$.mul_(0.5)"],
        changes=["$ = torch.ones(3)", "$.fill_(2)"],
    ),
    "config": Kind(
        first=["Config()"],
        uses=["x = x * $.scale", "if $.kind == 'plain':\n    x = x + 1", "$.steps += 1",
              "if $.last is not None:\n    x = x + $.last\n$.last = x",
              "for _ in range($.steps):\n    x = x + 0.5"],
        changes=["$.scale = 3.0", "$.kind = 'other'", "$.last = None", "$ = Config()",
                 "$.steps = 1"],
    ),
    "record": Kind(
        first=["Record()"],
        uses=["if $.k is None:\n    $.k = x\nelse:\n    x = x + $.k", "$.n += 1\nx = x * $.n",
              "$.items.append(x)\nx = x + len($.items)"],
        changes=["$.k = None", "$.n = 4", "$ = Record()", "$.items.clear()"],
    ),
    "part": Kind(
        first=["nn.Linear(3, 3)", "nn.Dropout(0.5)", "nn.BatchNorm1d(3)"],
        uses=["x = $(x)", "if self.training:\n    x = $(x)"],
        changes=["$ = nn.Linear(3, 3)"],
    ),
    "inner": Kind(first=["Inner()"], uses=["x = $(x)"],
                  changes=["$.h = None", "$.seen['n'] = 0", "$.count = 5"]),
}  # fmt: skip

_HEAD = """from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional

import torch
from torch import Tensor, nn


class Config:
    scale = 1.5
    kind = "plain"
    steps = 2
    last: Optional[Tensor] = None


@dataclass
class Record:
    k: Optional[Tensor] = None
    n: int = 1
    items: List[Tensor] = field(default_factory=list)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = None
        self.seen = {"n": 0}
        self.count = 0

    def forward(self, x):
        self.count += 1
        self.seen["n"] = self.seen["n"] + 1
        if self.h is not None:
            x = x + self.h * 0.5
        self.h = x
        return x + self.count + self.seen["n"]


"""


@dataclass(frozen=True, slots=True)
class Story:
    """`attributes`: (name, kind, first value); `uses`: statements of forward; `steps`: what is
    done, "call" or "copy" or "files" or a statement on `m`."""

    seed: int
    attributes: tuple[tuple[str, str, str], ...]
    uses: tuple[str, ...]
    steps: tuple[str, ...]

    @property
    def source(self) -> str:
        """The module, as `Program`."""
        lines = [
            "class Program(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
        ]
        for name, _, first in self.attributes:
            made = f"self.register_buffer({name!r}, torch.zeros(3))"
            lines.append(f"        {made if first == 'buffer' else f'self.{name} = {first}'}")
        lines.append("    def forward(self, x):")
        for use in self.uses:
            lines += [f"        {line}" for line in use.splitlines()]
        lines.append("        return x")
        return _HEAD + "\n".join(lines) + "\n"

    def __str__(self) -> str:
        told = "\n".join(f"# {step}" for step in self.steps)
        return f"# seed {self.seed}\n{self.source}\n{told}"

    def less(self) -> list[Story]:
        """The story without one of its steps, statements or attributes."""
        found = [replace(self, steps=_without(self.steps, k)) for k in range(len(self.steps))]
        found += [replace(self, uses=_without(self.uses, k)) for k in range(len(self.uses))]
        for k, (name, _, _) in enumerate(self.attributes):
            if not any(f".{name}" in text for text in (*self.uses, *self.steps)):
                found.append(replace(self, attributes=_without(self.attributes, k)))
        return found


def _without(items: tuple[Any, ...], k: int) -> tuple[Any, ...]:
    return items[:k] + items[k + 1 :]


def generate(seed: int) -> Story:
    """The story of a seed."""
    r = random.Random(seed)
    kinds = r.sample(list(KINDS), r.choice([1, 2, 2, 3, 3, 4]))
    attributes = tuple(
        (f"{kind}{k}", kind, r.choice(KINDS[kind].first)) for k, kind in enumerate(kinds)
    )
    uses = [
        use.replace("$", f"self.{name}")
        for name, kind, _ in attributes
        for use in r.sample(KINDS[kind].uses, min(len(KINDS[kind].uses), r.choice([1, 1, 2, 3])))
    ]
    r.shuffle(uses)
    steps: list[str] = []
    for _ in range(r.choice([3, 4, 5, 6])):
        steps.append("call")
        name, kind, _ = r.choice(attributes)
        changes = KINDS[kind].changes
        drawn = r.random()
        if drawn < 0.45 and changes:
            steps.append(r.choice(changes).replace("$", f"m.{name}"))
        elif drawn < 0.55:
            steps.append(r.choice(["m.train()", "m.eval()"]))
        elif drawn < 0.63:
            steps.append("copy")
        elif drawn < 0.71:
            steps.append("files")
    return Story(seed, attributes, tuple(uses), (*steps, "call"))
