"""`lowtide explain --html`: each stage of a compilation side by side, as one HTML page.

In: a compiled function and arguments, which may be meta tensors. Out: a page that loads no file. A
click on a line marks the lines of all stages that come from the same source line:

    boxes.py:14  h = torch.min(a, b)  →  t3[i, j] = min(a[i], b[j])  →  t9[i] = sum[j](min(…))  →  C

The page is made from the texts of the stages. A value has the line in its comment (`# min
boxes.py:14`). A text without comments, such as C, has the names of values: `s_t9` is of `t9`, and
so are the registers that a store of `t9` needs.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import Any, Final

from lowtide.errors import Loc

_REPORT: Final = "lowtide.memory.report"
_AROUND: Final = 2  # source lines that are shown around those of the program
_SHOWN: Final = ("normal form", "tile program", "C", "triton")  # at first, beside the source
_COMMENT: Final = re.compile(r"# (?:(\S+) )?(\S+):(\d+)$")
_DEFINITION: Final = re.compile(r"^(\w+)\[[^=]*\]: \w+ = ")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_PREFIXED: Final = re.compile(r"^[a-z]{1,2}_(?=[A-Za-z])")  # `p_t7`, `s_t7` in C
_REGISTER: Final = re.compile(r"\b[ar]\d+\b")
_ASSIGNED: Final = re.compile(r"^\s*(?:(\w+) )?([ar]\d+) [-+*]?= ?(.*)$")

Place = tuple[str, int]  # a file's name and a line
Tags = frozenset[Place]
NO_TAGS: Final[Tags] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pane:
    """One text. `region`: the first source line of the region, "" if there is one only."""

    title: str
    region: str
    lines: tuple[tuple[str, Tags], ...]


@dataclass(slots=True)
class _Values:
    """The values of one Program: their source lines, and which values each one reads."""

    places: dict[str, Tags] = field(default_factory=dict[str, Tags])
    reads: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def add(self, text: str) -> None:
        """Add the definitions of a text; those that are known keep their lines."""
        kept = {found[1] for line in text.splitlines() if (found := _DEFINITION.match(line))}
        for line in text.splitlines():
            if found := _DEFINITION.match(line):
                name, words = found[1], set(_WORD.findall(line[found.end() :]))
                own = _place(line)
                inlined = self._inlined(words, kept) | self._inlined(self.reads.get(name, ()), kept)
                self.places[name] = self.places.get(name, NO_TAGS) | own | inlined
                self.reads.setdefault(name, set()).update(words)

    def _inlined(self, words: Iterable[str], kept: set[str]) -> Tags:
        """Return the lines of values that no longer have a definition of their own."""
        seen, todo, found = set[str](), list(words), set[Place]()
        while todo:
            name = todo.pop()
            if name in seen or name in kept or name not in self.places:
                continue
            seen.add(name)
            found |= self.places[name]
            todo += self.reads.get(name, ())
        return frozenset(found)

    def tags(self, line: str) -> Tags:
        """Return the source lines of a line of text: those of the value that it defines, that of
        its comment, or those of all values that it names."""
        if found := _DEFINITION.match(line):
            return self.places[found[1]]
        return _place(line) or self.of(line)

    def of(self, line: str) -> Tags:
        """Return the lines of all values that a line of text names."""
        found = set[Place]()
        for word in _WORD.findall(line):
            found |= self.places.get(word) or self.places.get(_PREFIXED.sub("", word), NO_TAGS)
        return frozenset(found)


def panes(sources: Iterable[Loc], stages: Sequence[tuple[str, str]]) -> list[Pane]:
    """Return the source and the stages as texts with tags. `sources`: places in the program."""
    made = [*_source_panes(sources)]
    values: dict[tuple[str, bool], _Values] = {}
    for title, text in stages:
        name, _, region = title.partition("@")
        known = values.setdefault((region, name.startswith("backward")), _Values())
        known.add(text)
        lines = text.rstrip().splitlines()
        in_c = name.rpartition(" ")[2].rpartition(".")[2] in ("C", "C++")
        flow: Mapping[int, Tags] = _registers(lines, known) if in_c else {}
        tagged = ((line, known.tags(line) | flow.get(k, NO_TAGS)) for k, line in enumerate(lines))
        made.append(Pane(title=name, region=region, lines=tuple(tagged)))
    return made


def _place(line: str) -> Tags:
    found = _COMMENT.search(line)
    return frozenset({(os.path.basename(found[2]), int(found[3]))}) if found else NO_TAGS


def _registers(lines: Sequence[str], values: _Values) -> Mapping[int, Tags]:
    """Return the tags of lines of C that compute registers, from the stores of these. A block's
    registers are its own: the search ends where the block of the store begins."""
    depths: list[int] = []
    depth = 0
    for line in lines:
        depth -= line.count("}") if line.lstrip().startswith("}") else 0
        depths.append(depth)
        depth += line.count("{") - (0 if line.lstrip().startswith("}") else line.count("}"))
    found: dict[int, Tags] = {}
    for k, line in enumerate(lines):
        tags = values.of(line) if re.match(r"\s*\w*store\w*\(", line) else NO_TAGS
        wanted = set(_REGISTER.findall(line)) if tags else set[str]()
        for j in range(k - 1, -1, -1):
            if not wanted or depths[j] < depths[k]:
                break
            assigned = _ASSIGNED.match(lines[j])
            if assigned is None or assigned[2] not in wanted:
                continue
            found[j] = found.get(j, NO_TAGS) | tags
            if assigned[1]:  # declared here
                wanted.discard(assigned[2])
            wanted.update(_REGISTER.findall(assigned[3]))
    return found


def _source_panes(sources: Iterable[Loc]) -> Iterator[Pane]:
    """Yield a pane for each file, with the lines of the program and some around them."""
    files: dict[str, dict[int, str]] = {}
    for loc in sources:
        if loc.line:
            files.setdefault(loc.file, {})[loc.line] = loc.text
    for file, own in files.items():
        name, whole = os.path.basename(file), linecache.getlines(file)
        wanted = {m for n in own for m in range(n - _AROUND, n + _AROUND + 1)}
        shown = [n for n in sorted(wanted) if n in own or 1 <= n <= len(whole)]
        lines: list[tuple[str, Tags]] = []
        for before, number in zip([shown[0] - 1, *shown], shown, strict=False):
            if number != before + 1:
                lines.append(("   ⋮", NO_TAGS))
            text = whole[number - 1].rstrip() if number <= len(whole) else own[number]
            tags = frozenset({(name, number)}) if number in own else NO_TAGS
            lines.append((f"{number:>4}  {text}", tags))
        yield Pane(title=name, region="", lines=tuple(lines))


def places_in(function: Any) -> list[Loc]:
    """Return the places of the ops of a program, a Function of the IR."""
    return [function.loc, *(op.loc for op in function.walk())]


def page_text(name: str, said: str, made: Sequence[Pane]) -> str:
    """Return the page. `name`: of the function; `said`: one line about its compilation."""
    used = {tag for pane in made for _, tags in pane.lines for tag in tags}
    numbers = {tag: k for k, tag in enumerate(sorted(used))}
    sources = {pane.title for pane in made if pane.title in {file for file, _ in used}}
    choices: list[str] = []
    texts: list[str] = []
    first = next((pane.region for pane in made if pane.region), "")
    for k, pane in enumerate(made):
        title = pane.title + (f" · line {pane.region}" if pane.region else "")
        short = pane.title.rpartition(".")[2]
        is_shown = pane.title in sources or (short in _SHOWN and pane.region in ("", first))
        pressed = "true" if is_shown else "false"
        choices.append(f'<button aria-pressed="{pressed}" data-pane="{k}">{escape(title)}</button>')
        hidden = "" if is_shown else " hidden"
        lines = "".join(_line_html(text, tags, numbers) for text, tags in pane.lines)
        texts.append(
            f'<section class="pane" data-pane="{k}"{hidden} aria-label="{escape(title)}">'
            f'<h2>{escape(title)}</h2><div class="text" tabindex="0">{lines}</div></section>'
        )
    folder = resources.files(_REPORT)
    parts = {
        "title": escape(f"{name}: stages of its compilation"),
        "name": escape(name),
        "said": escape(said),
        "css": _read(folder, "page.css") + _read(folder, "stages.css"),
        "choices": "".join(choices),
        "panes": "".join(texts),
        "js": _read(folder, "stages.js"),
    }
    page = _read(folder, "stages.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)


def _line_html(text: str, tags: Tags, numbers: Mapping[Place, int]) -> str:
    if not tags:
        return f"<div>{escape(text) or ' '}</div>"
    found = sorted(numbers[tag] for tag in tags)
    hue = found[0] * 137 % 360  # neighbours differ
    words = " ".join(map(str, found))
    return f'<div class="of" data-of="{words}" style="--hue:{hue}">{escape(text)}</div>'


def _read(folder: Any, name: str) -> str:
    return folder.joinpath(name).read_text(encoding="utf-8")


def write_page(compiled: Any, args: Sequence[Any], path: str) -> None:
    """Write the page of a call of a compiled function to `path`."""
    explanation = compiled.explain(*args)
    made = panes(places_in(compiled.program()), compiled.stages(*args))
    said = str(explanation).splitlines()[0].partition(": ")[2]
    with open(path, "w", encoding="utf-8") as file:
        file.write(page_text(explanation.name, said, made))
