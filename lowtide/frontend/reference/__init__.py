"""The language reference, `docs/language.md`, made of the tables that the compiler uses.

In: `language.md` beside this file, prose with `{{name}}` where a table belongs. Out: the page.

    python -m lowtide.frontend.reference            prints it
    python -m lowtide.frontend.reference --write    writes docs/language.md

Invariant: every list of names on the page comes from the table that compiles these names. A new
row that the page has no words for is an error here, not a gap there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from lowtide.frontend.reference.tables import TABLES

PAGE: Final = Path(__file__).parents[3] / "docs" / "language.md"
TEMPLATE: Final = Path(__file__).parent / "language.md"


def page() -> str:
    """Return the text of docs/language.md; raises KeyError for a table that is not there."""
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: TABLES[found[1]](), text)
