"""`python -m lowtide.frontend.reference [--write]`: see the package."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowtide.frontend.reference import PAGE, page


def main(arguments: Sequence[str]) -> int:
    """Prints the page or writes it; the exit status."""
    if arguments == ["--write"]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if arguments:
        print("usage: python -m lowtide.frontend.reference [--write]", file=sys.stderr)
        return 2
    print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
