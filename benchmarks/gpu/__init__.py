"""Values, times and memory on a GPU, program by program: `python -m benchmarks.gpu`.

    python -m benchmarks.gpu --minutes 12          the whole table, most important programs first
    python -m benchmarks.gpu attention --out DIR   one program, elsewhere than benchmarks/results
    python -m benchmarks.gpu --dry-run             small sizes, one round; simulated without a GPU

| file | owns |
| --- | --- |
| `programs` | what is measured: functions, sizes, precisions, how a result is judged |
| `jobs` | one measurement of one program: order and share of the time |
| `judge` | error against float64, and whether it is more than it may be |
| `worker` | a child process: checks and measures one job after another |
| `child` | the parent's view of it: time limits, crashes, a new one in its place |
| `report` | results as JSON and Markdown |
"""

import time

STARTED_S = (
    time.monotonic()
)  # before PyTorch is imported, which takes half a minute from a cold disk
