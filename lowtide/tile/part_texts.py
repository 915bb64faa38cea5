"""The parts of a Program as text, and back.

In:  a part: a Program, one step of a loop, or one strip of rows. Out: the lines before its Program,
     groups or kernels, which say how often it runs; and the interface of the whole Program, which
     cannot be derived from the parts. Raises ParseError.

    sizes T                             loop step: T
    input p: f32[T, 8] strides (8, 1)   carried old = h from h0
    output s                            kept h
    same last = h_end                   ends h_end = h
                                        input p: …

A plain part has no such lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index
from lowtide.texpr.parser import IndexReader, Line, ProgramParser, parse_program
from lowtide.texpr.partition import Loop, Part
from lowtide.texpr.printer import input_line, size_lines, sizes_of
from lowtide.tile.parser import parse_groups
from lowtide.tile.printer import TileProgram
from lowtide.tile.strips import Strips

_HEAD: Final = re.compile(r"(?:loop|carried|kept|ends|block|until|why|strips|total) ")
_GROUP: Final = re.compile(r"^group k\d+\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartText:
    """A part that was read. `groups`: with its groups, perhaps with kernels, if the text has
    them."""

    part: Part | Loop | Strips
    groups: TileProgram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The inputs and results of a Program. `program` has no definitions. `same`: results that are a
    part's value under another name; `sizes`, `numbers`: those of a call, in order."""

    program: Program
    same: Mapping[str, str]
    sizes: Sequence[str]
    numbers: Sequence[str]


# -- text of data --


def print_head(part: Part | Loop | Strips) -> str:
    """Return the lines that say how often a part runs, each with its end; "" for a plain part."""
    match part:
        case Loop():
            lines = _loop_lines(part)
        case Strips():
            lines = _strips_lines(part)
        case Part():
            lines = iter(())
    return "".join(f"{line}\n" for line in lines)


def _loop_lines(loop: Loop) -> Iterator[str]:
    yield f"loop {loop.step}: {loop.trips}{' reverse' if loop.reverse else ''}"
    for name, (source, init) in loop.carried.items():
        yield f"carried {name} = {source} from {init}"
    if loop.stacked:
        yield f"kept {', '.join(sorted(loop.stacked))}"
    yield from (f"ends {end} = {name}" for name, end in loop.ends.items())
    yield from (f"block {name} = {', '.join(of)}" for name, of in loop.blocks.items())
    if loop.until:
        yield f"until {loop.until}"
    if loop.why:
        yield f"why {loop.why!r}"


def _strips_lines(strips: Strips) -> Iterator[str]:
    yield f"strips {strips.extent} by {strips.count}"
    for before, name in strips.totals.items():
        yield f"total {before} = {name} from {strips.identities[before]!r}"


def print_interface(made: Interface, whole: Program) -> str:
    """Return the text of an interface. `whole`: a Program with all sizes and their bounds."""

    def words(**found: Sequence[str]) -> list[str]:
        return [f"{word} {', '.join(names)}" for word, names in found.items() if names]

    program = made.program
    return "\n".join((
        *words(sizes=made.sizes, numbers=made.numbers),
        *size_lines({a.name: a for a in sizes_of(whole)}.values()),
        *map(input_line, program.inputs.values()),
        *words(output=program.results, check=program.checks),
        *(f"same {name} = {of}" for name, of in made.same.items()),
    ))  # fmt: skip


# -- data of text --


def parse_part(text: str, sizes: dict[str, Index]) -> PartText:
    """Return the part that a text shows. `sizes`: symbols that exist already; new ones are
    added."""
    lines = text.splitlines()
    heads = [Line(k, line) for k, line in enumerate(lines, 1) if _HEAD.match(line)]
    body = "\n".join("" if _HEAD.match(line) else line for line in lines)
    groups = parse_groups(body, sizes) if _GROUP.search(body) else None
    program = parse_program(body, sizes) if groups is None else groups.fusion.program
    part = _Head(program, sizes).part(heads) if heads else Part(program=program)
    return PartText(part=part, groups=groups)


def parse_interface(text: str, sizes: dict[str, Index]) -> Interface:
    """Return the interface that a text shows. Adds its sizes."""
    return _InterfaceParser(text, sizes).interface()


class _Head:
    """Reads the lines of one part. Attributes are named as those of `Loop` and `Strips`."""

    def __init__(self, program: Program, sizes: dict[str, Index]) -> None:
        self.program = program
        self.read = IndexReader(sizes)
        self.carried: dict[str, tuple[str, str]] = {}
        self.stacked: list[str] = []
        self.ends: dict[str, str] = {}
        self.blocks: dict[str, tuple[str, ...]] = {}
        self.until = self.why = ""
        self.totals: dict[str, str] = {}
        self.identities: dict[str, float] = {}
        self.heads: dict[str, Callable[[Line], None]] = {
            "carried": self.carry, "kept": lambda line: self.stacked.extend(line.names()),
            "ends": self.end, "block": self.block, "until": self.last, "why": self.reason,
            "total": self.total,
        }  # fmt: skip

    def part(self, lines: Sequence[Line]) -> Loop | Strips:
        first, *others = lines
        word = first.name()
        make = {"loop": self.loop, "strips": self.strips}.get(word)
        if make is None:
            first.position = 0
            raise first.fail("`loop` or `strips` before it")
        for line in others:
            name = line.name()
            if name not in self.heads:
                line.position = 0
                raise line.fail("one part a text")
            self.heads[name](line)
            line.end()
        made = make(first)
        first.end()
        return made

    def loop(self, line: Line) -> Loop:
        step = line.name()
        line.need(":")
        trips = self.read.index(line)
        return Loop(
            program=self.program, step=step, trips=trips, why=self.why,
            reverse=line.skip("reverse"), carried=self.carried, stacked=frozenset(self.stacked),
            ends=self.ends, blocks=self.blocks, until=self.until,
        )  # fmt: skip

    def strips(self, line: Line) -> Strips:
        extent = self.read.index(line)
        line.need("by")
        return Strips(
            program=self.program, extent=extent, count=int(line.take("number", "a number")),
            totals=self.totals, identities=self.identities,
        )  # fmt: skip

    def pair(self, line: Line) -> tuple[str, str]:
        name = line.name()
        line.need("=")
        return name, line.name()

    def carry(self, line: Line) -> None:
        name, source = self.pair(line)
        line.need("from")
        self.carried[name] = source, line.name()

    def end(self, line: Line) -> None:
        end, name = self.pair(line)
        self.ends[name] = end

    def block(self, line: Line) -> None:
        name = line.name()
        line.need("=")
        self.blocks[name] = tuple(line.names())

    def last(self, line: Line) -> None:
        self.until = line.name()

    def reason(self, line: Line) -> None:
        self.why = line.string()

    def total(self, line: Line) -> None:
        before, name = self.pair(line)
        line.need("from")
        self.totals[before], self.identities[before] = name, line.value()


class _InterfaceParser(ProgramParser):
    def __init__(self, text: str, sizes: dict[str, Index]) -> None:
        super().__init__(text, sizes)
        self.words: dict[str, list[str]] = {"sizes": [], "numbers": [], "output": [], "check": []}
        self.same: dict[str, str] = {}
        self.heads = {"size": self.size, "input": self.input, "same": self.alias}
        self.heads |= {name: self.adder(found) for name, found in self.words.items()}

    def adder(self, found: list[str]) -> Callable[[Line], None]:
        """Return what adds the names of a line to a list."""
        return lambda line: found.extend(line.names())

    def alias(self, line: Line) -> None:
        name = line.name()
        line.need("=")
        self.same[name] = line.name()

    def interface(self) -> Interface:
        made, words = self.program(), self.words
        program = Program(inputs=made.inputs, outputs=words["output"], checks=words["check"])
        return Interface(
            program=program, same=self.same, sizes=words["sizes"], numbers=words["numbers"]
        )
