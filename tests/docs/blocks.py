"""Fenced blocks of a Markdown page: those marked `python` are run, in order, as one module.

In: a page. Out: its blocks, or an AssertionError at the page's own line.

    ```python          ```text
    print(1 + 1)       2
    ```                ```

Invariant: a `text` block right behind a `python` block is what that one prints; `…` in it stands
for anything. A block's lines have the numbers that they have on the page, and their source can be
read by `inspect`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block; `line` is the page's line of its first."""

    kind: str
    text: str
    line: int
    printed: str | None = None  # what a `python` block prints, where the page says so


def blocks(page: str, kind: str) -> list[Block]:
    """The blocks of one kind, in order."""
    found: list[Block] = []
    matches = list(_FENCED.finditer(page))
    for k, match in enumerate(matches):
        following = matches[k + 1] if k + 1 < len(matches) else None
        is_output = (
            following is not None
            and following[1] == "text"
            and not page[match.end() : following.start()].strip()
        )
        if match[1] == kind:
            found.append(
                Block(
                    kind=kind,
                    text=match[2],
                    line=page.count("\n", 0, match.start(2)) + 1,
                    printed=following[2] if is_output and following is not None else None,
                )
            )
    return found


def run_page(path: Path, folder: Path, given: Mapping[str, object] | None = None) -> int:
    """Runs the `python` blocks of a page as one module, whose source is kept in `folder`; gives
    how many there are. `given`: names that the page takes for granted."""
    page = path.read_text(encoding="utf-8")
    found = blocks(page, "python")
    lines = [""] * (page.count("\n") + 1)
    for block in found:
        part = block.text.splitlines()
        lines[block.line - 1 : block.line - 1 + len(part)] = part
    name = f"page_{re.sub(r'[^a-z0-9]', '_', path.stem.lower())}"
    source = folder / f"{name}.py"
    source.write_text("\n".join(lines), encoding="utf-8")
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(source)
    vars(module).update(given or {})
    try:
        for block in found:
            _run(block, module, path, source)
    finally:
        del sys.modules[name]
    return len(found)


def _run(block: Block, module: ModuleType, path: Path, source: Path) -> None:
    text = "\n" * (block.line - 1) + block.text
    has_future = getattr(vars(module).get("annotations"), "compiler_flag", 0)
    code = compile(text, str(source), "exec", has_future, dont_inherit=True)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, vars(module))
    if block.printed is not None:
        pattern = ".*".join(re.escape(p) for p in block.printed.split("…"))
        printed = out.getvalue()
        assert re.fullmatch(pattern, printed, re.DOTALL), (
            f"{path.name}:{block.line} prints\n{printed}, the page says\n{block.printed}"
        )
