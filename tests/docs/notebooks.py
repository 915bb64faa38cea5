"""The notebooks of docs/notebooks: each is its page in another form, without outputs.

In: `docs/notebooks/NAME.md`. Out: `NAME.ipynb`, whose cells are the page's text and `python`
blocks.

    python -m tests.docs.notebooks --write     writes them
    python -m tests.docs.notebooks             runs them in a kernel, as the full tier does
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
# Needs ipykernel and nbclient: pip install 'lowtide[docs]'.
KERNEL = "python3"
NEEDS = {"dask.md": "distributed", "cubed.md": "cubed"}  # packages of other extras
_FENCED = re.compile(r"^```(\w+)\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
_SELF = re.compile(r"^\*This page is also a .*\*\n\n?", re.MULTILINE)


def pages() -> list[Path]:
    """The pages, in order."""
    return sorted(FOLDER.glob("*.md"))


def notebook_text(page: str) -> str:
    """A page as a notebook. What a `text` block says a cell prints is left out."""
    cells: list[dict[str, Any]] = []
    end = 0

    def add(kind: str, text: str) -> None:
        text = text.strip("\n")
        if not text:
            return
        lines = text.splitlines(keepends=True)
        cell: dict[str, Any] = {"cell_type": kind, "id": f"c{len(cells)}", "metadata": {}}
        code: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
        cells.append({**cell, **code, "source": lines})

    page = _SELF.sub("", page)
    for block in _FENCED.finditer(page):
        add("markdown", page[end : block.start()])
        if block[1] == "python":
            add("code", block[2])
        end = block.end()
    add("markdown", page[end:])
    named = {"display_name": "Python 3", "language": "python", "name": KERNEL}
    made = {
        "cells": cells,
        "metadata": {"kernelspec": named, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def run(path: Path) -> str:
    """Runs a notebook in a kernel of its own, in an empty folder; gives the error, "" if none."""
    import nbclient
    import nbformat

    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            book, timeout=600, kernel_name=KERNEL, resources={"metadata": {"path": folder}}
        )
        try:
            client.execute()
        except nbclient.exceptions.CellExecutionError as error:
            return str(error)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs.notebooks", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write them, from the pages")
    options = parser.parse_args()
    failed = 0
    for page in pages():
        path = page.with_suffix(".ipynb")
        if options.write:
            path.write_text(notebook_text(page.read_text(encoding="utf-8")), encoding="utf-8")
            continue
        needed = NEEDS.get(page.name)
        if needed is not None and importlib.util.find_spec(needed) is None:
            print(f"left out {path.name}: {needed} is not installed")
            continue
        begun = time.monotonic()
        error = run(path)
        print(f"{'FAILED' if error else 'passed'} {path.name} {time.monotonic() - begun:.0f} s")
        if error:
            failed += 1
            print(error)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
