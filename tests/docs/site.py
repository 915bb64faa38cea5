"""Checks a built site: every link and picture leads to a file and, after `#`, to an element of it.

    python -m tests.docs.site build/site     exit status 1 if a link is dead; each is printed

In: a folder of HTML. The generator checks links of Markdown; this reads what it made of them, and
of HTML in pages and docstrings. Links to other servers are not followed.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINKS = {"a": ("href",), "link": ("href",), "img": ("src",), "script": ("src",)}
_LINKS["source"] = ("srcset", "src")


class _Page(HTMLParser):
    """The names of elements, and the links, of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names.update(v for k in ("id", "name") if (v := given.get(k)))
        self.links += [v for k in _LINKS.get(tag, ()) if (v := given.get(k))]


def dead_links(folder: Path) -> list[str]:
    """Each dead link as `page.html: link`."""
    paths = sorted(folder.rglob("*.html"))
    pages = {p.resolve(): _Page(p.read_text(encoding="utf-8")) for p in paths}
    dead: list[str] = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            base = folder if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            name = unquote(parts.fragment)
            found = pages.get(target)
            if not target.exists() or (name and found and name not in found.names):
                dead.append(f"{path.relative_to(folder.resolve())}: {link}")
    return dead


def main(folder: str) -> int:
    dead = dead_links(Path(folder))
    print("\n".join(dead) if dead else f"no dead link in {folder}")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
