"""What a budgeted call takes, in a process that has done nothing else.

`python -m tests.memory.budget_alone third|least` prints the budget and what was measured, in bytes.
A heap that other tests have left keeps blocks that this one's convolutions could use, or has to
grow where it could not.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import lowtide as lt
from lowtide.memory.measure import measure_peak
from tests.memory.cases import Unet
from tests.quickly import compile_quickly


def main() -> None:
    torch.manual_seed(0)
    net, x = Unet(24), torch.rand(8, 3, 128, 128)
    with torch.no_grad():
        free: Any = lt.script(net)
        budget = free.memory(x).peak_bytes // 3
        if sys.argv[1] == "least":
            try:
                lt.script(net, budget=1)(x)
            except lt.BudgetError as refused:
                budget = refused.least_bytes
        limited: Any = lt.script(net, budget=budget)
        limited(x)
        measured = measure_peak(lambda: limited(x), release=lt.empty_cache)[0].peak_bytes
    print(json.dumps({"budget": budget, "measured": measured}))


if __name__ == "__main__":
    compile_quickly()
    main()
