"""The language reference, `docs/language.md`, made of the tables that the compiler uses.

In: `language.md` beside this file, prose with `{{name}}` where a table belongs. Out: the page.

    python -m lowtide.frontend.reference            prints it
    python -m lowtide.frontend.reference --write    writes docs/language.md

Invariant: every list of names on the page comes from the table that compiles these names. A new
row that the page has no words for is an error here, not a gap there.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

from lowtide.frontend.reference.tables import TABLES

PAGE: Final = Path(__file__).parents[3] / "docs" / "language.md"
TEMPLATE: Final = Path(__file__).parent / "language.md"
_COLUMNS: Final = 100
_NO_PROSE: Final = ("|", "#", "<", "```")


def page() -> str:
    """Return the text of docs/language.md; raises KeyError for a table that is not there."""
    text = TEMPLATE.read_text(encoding="utf-8")
    return wrapped(re.sub(r"\{\{(\w+)\}\}", lambda found: TABLES[found[1]](), text))


def wrapped(text: str) -> str:
    """Return Markdown with lines of prose of at most 100 columns; tables and code stay."""
    lines: list[str] = []
    is_code = False
    rest = text.split("\n")
    while rest:
        line = rest.pop(0)
        is_code ^= line.lstrip().startswith("```")
        if is_code or len(line) <= _COLUMNS or line.lstrip().startswith(_NO_PROSE):
            lines.append(line)
            continue
        bullet = re.match(r"\s*(?:[-*] |\d+\. )?", line)
        indent = " " * len(bullet[0]) if bullet is not None else ""
        parts = [line.rstrip()]
        while rest and re.match(rf"{indent}[^\s|#`<*-]", rest[0]):
            parts.append(rest.pop(0).strip())
        lines += textwrap.wrap(
            " ".join(parts), _COLUMNS, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)
