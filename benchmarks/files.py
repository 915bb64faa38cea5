"""Where results go: benchmarks/results/<date>-<cpu or gpu>[-<kind>].json."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

from lowtide.tools.machine import Machine

RESULTS = Path(__file__).parent / "results"


def write_results(
    machine: Machine, report: dict[str, Any], kind: str, output: Path | None = None
) -> Path:
    """Writes the report, with date and machine, to `output` or where results go; gives the path."""
    whole = {"date": datetime.date.today().isoformat(), "machine": machine.to_dict(), **report}
    slug = re.sub(r"[^a-z0-9]+", "-", (machine.gpu or machine.cpu).lower()).strip("-")
    suffix = f"-{kind}" if kind else ""
    path = output or RESULTS / f"{whole['date']}-{slug}{suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    return path
