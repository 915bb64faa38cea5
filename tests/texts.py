"""Text tests: what a pass or rewrite makes of a text, where it acts and where it must not.

    == fires: what is unused goes (n=3, x=4x2)      inputs that it is run on: sizes and numbers
    …text before…
    ==>
    …text after…
    == refuses: what prints stays
    …text…

`pytest --update-golden` writes what comes out now after `==>`; read the difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_KERNEL = re.compile(r"^kernel .*(?:\n .*)*", re.MULTILINE)
_HEAD = re.compile(r"== (fires|refuses): ([^(\n]*?)(?: \(([^)\n]*)\))?\n")
ARROW = "==>\n"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of a file; `after` is "" where the text must stay as it is."""

    file: Path
    title: str
    fires: bool
    given: dict[str, str]
    before: str
    after: str

    @property
    def name(self) -> str:
        """Of the pass or rewrite."""
        return self.file.stem

    def __str__(self) -> str:
        return f"{self.name}: {self.title}"

    def check(self, after: str, update: bool) -> None:
        """Compares the text after, or writes it into the file."""
        if not self.fires:
            assert after.strip() == self.before.strip(), f"{self} is rewritten:\n{after}"
            return
        assert after.strip() != self.before.strip(), f"{self} stays as it is"
        if update:
            old, text = f"{self.before}{ARROW}{self.after}", self.file.read_text()
            assert text.count(old) == 1, f"{self} is in the file twice"
            self.file.write_text(text.replace(old, f"{self.before}{ARROW}{after.strip()}\n\n"))
        else:
            assert after.strip() == self.after.strip()


def cases_of(folder: Path) -> list[Case]:
    """All cases of the files in a folder; each file has both kinds."""
    found: list[Case] = []
    for file in sorted(folder.glob("*.txt")):
        _, *parts = _HEAD.split(file.read_text())
        rows = list(zip(*(parts[k::4] for k in range(4)), strict=True))
        assert {row[0] for row in rows} == {"fires", "refuses"}, f"{file} has one kind of case only"
        for kind, title, given, text in rows:
            before, arrow, after = text.partition(ARROW)
            assert bool(arrow) == (kind == "fires"), f"{file}: {title}: `==>` where it fires"
            pairs = (part.split("=") for part in (given or "").split(", ") if part)
            found.append(
                Case(
                    file=file, title=title, fires=kind == "fires", given=dict(pairs),
                    before=before, after=after,
                )
            )  # fmt: skip
    return found


def kernels_in(text: str) -> str:
    """What a tile program has of kernels, without the groups that they compute."""
    return "\n".join(_KERNEL.findall(text))
