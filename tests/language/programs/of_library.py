"""Functions of the standard library, which Python runs."""

import heapq
import json
import logging
import os
import random
import re
from typing import Dict, List

import torch
from torch import Tensor, nn

from tests.language.support import module_program, program

_PAIR = re.compile(r"(\w+)=(\d+)")
_LOG = logging.getLogger(__name__)


@program(calls=lambda: [("a=1 b=22",), ("none",)], torchscript=False)
def parsed(text: str):
    found = {k: int(v) for k, v in _PAIR.findall(text)}
    first = _PAIR.search(text)
    digits = [m.group() for m in re.finditer(r"\d", text)]
    return found, first.group(1) if first is not None else None, digits, re.sub("[a-z]", "_", text)


@program(calls=lambda: [([3, 1, 2],), ([],)], torchscript=False)
def sorted_by_a_heap(xs: List[int]):
    heap, out = [], []
    for x in xs:
        heapq.heappush(heap, (x, str(x)))
    while heap:
        out.append(heapq.heappop(heap))
    return out, heapq.nlargest(2, xs)


@program(args=lambda: (torch.ones(2), {"a": 1}), torchscript=False)
def read_and_written(x: Tensor, d: Dict[str, int]):
    random.seed(3)
    factor = random.random() * json.loads(json.dumps(d))["a"]
    return x * factor, random.randint(0, 9), os.path.join("a", "b"), os.environ.get("NOT_THERE")


@module_program(calls=lambda: [(torch.ones(2),)] * 3, torchscript=False)
class DrawsFromItsOwn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(3)

    def forward(self, x: Tensor):
        _LOG.debug("shape %s", x.shape)
        if self.random.random() < 0.5:
            return x * 2
        return x * self.random.choice([3, 4])


@program(args=lambda: ("1a2",), refused=True)
def matches_read_twice(text: str):
    found = re.finditer(r"\d", text)
    first = [m.group() for m in found]
    return first, list(found)  # refused
