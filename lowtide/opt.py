"""`python -m lowtide.opt`: enters the compiler at a stage, shows the stages after it.

    python -m lowtide.opt --from simplify --pass fold_constants program.txt
    python -m lowtide.opt --from specialise --shape x=100x3,n=5 --to normalise program.txt
    python -m lowtide.opt --from normalise --rewrite softmax --size N=1000 < formulas.txt

In: what this command prints of the stage before, or the same text by hand. `specialise` and the
stages before read a Function, `tile` reads groups, `host` and `emit` read a tile program or a host
program, the others a Program. Where that has several parts, as of a loop, all sections are read:
`interface`, and one for each part, which says how often it runs (`loop step: T`). From a host
program, which has no kernels, `emit` prints the driver and no C.
Exit status: 0 done, 2 what was given makes no sense.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from lowtide import compiler
from lowtide.budget.drivers import make_driver
from lowtide.budget.dry_run import DryRun
from lowtide.budget.dry_run_steps import KernelStep
from lowtide.codegen.c.driver import HostDialect
from lowtide.codegen.executable import PROGRAM as PROGRAM_TITLE
from lowtide.codegen.executable import Executable, compile_parts, compile_program
from lowtide.codegen.host.build import Stage
from lowtide.codegen.host.parser import parse_host
from lowtide.codegen.host.printer import print_host
from lowtide.codegen.host.python import python_text
from lowtide.errors import LowtideError
from lowtide.execute.options import Options
from lowtide.ir.core import Function, Value, print_function
from lowtide.ir.literals import parse_literal
from lowtide.ir.parser import parse_function
from lowtide.ir.types import TENSOR
from lowtide.passes.run import Pass, run
from lowtide.texpr import expr as ex
from lowtide.texpr.autodiff import gradients
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, Size
from lowtide.texpr.partition import Part
from lowtide.texpr.printer import print_program, sizes_of
from lowtide.texpr.rewrites import REWRITES
from lowtide.tile.part_texts import (
    Interface,
    PartText,
    parse_interface,
    parse_part,
    print_head,
    print_interface,
)
from lowtide.tools.explain_command import ArgumentFault, parse_dtype, parse_shape

LIKELY: Final = 64  # a size of which nothing is said
HEADING: Final = re.compile(r"^== (.*) ==\n", re.MULTILINE)  # what this command prints above a text
PASSES: Final[Mapping[str, Pass]] = {
    getattr(step, "__name__", ""): step
    for step in (*compiler.WRITTEN, *compiler.REROLL, *compiler.SIMPLIFY, *compiler.PREPARE)
}
COMPILED: Final[Mapping[str, tuple[str, ...]]] = {  # what of an executable's stages is shown
    "split": ("tensor expressions",), "normalise": ("normal form",), "fuse": ("groups",),
    "tile": ("tile program",), "host": ("host program",), "emit": ("driver", "C"),
}  # fmt: skip
TITLES: Final = [title for stage in list(COMPILED)[:4] for title in COMPILED[stage]]
INTERFACE: Final = "interface"  # the title of what stands above the parts of a Program
TITLE: Final = re.compile(
    rf"(\w*) ?(.*?) ?((?:(?:loop|part|strip)\d+\.)*)({'|'.join([*TITLES, INTERFACE])})?", re.DOTALL
)
Shown = Iterator[tuple[str, str]]
FUNCTION, PROGRAM = "a Function (`def …`)", "a Program (`input …`)"
GROUPS, TILES = "groups (`group k0`)", "a tile program (`kernel k0 …`)"
HOST = "a host program (`result …`)"


@dataclass(frozen=True, kw_only=True)
class Work:
    """A Program on its way. `hints`: likely sizes. If its parts were read, by the prefix of their
    kernels' names, `program` is its interface only."""

    title: str
    program: Program
    hints: Mapping[str, int]
    interface: Interface | None = None
    parts: Mapping[str, PartText] = field(default_factory=dict[str, PartText])

    def executable(self) -> Executable:
        """Plan the kernels."""
        if self.interface is not None:
            return compile_parts(self.interface, self.parts, self.hints)
        every = [e for d in self.program.defs.values() for e in ex.walk(d.expr)]
        scalars = dict.fromkeys(e.name for e in every if isinstance(e, ex.Scalar))
        return compile_program(
            self.program, symbols=[*self.hints], scalars=[*scalars], hints=self.hints
        )

    def stages(self, *names: str) -> Shown:
        """Yield titles and texts of the code generator's stages of these names."""
        made = self.executable()
        is_split = any(stage.head for stage in made.parts)
        around = set(steps_with_loops(made.parts)) if names[0] in TITLES else set[str]()
        if is_split and names[0] in TITLES:
            yield INTERFACE, print_interface(made.interface, self.program)
        for title, text in made.stages:
            _, _, name = title.rpartition(".")
            if title in around or (name in names and not (is_split and title == PROGRAM_TITLE)):
                yield title, text

    def texts(self) -> Shown:
        """Yield titles and texts of its Programs."""
        if self.interface is None:
            yield "", print_program(self.program)
            return
        yield INTERFACE, print_interface(self.interface, self.program)
        for head, text in self.parts.items():
            yield f"{head}{PROGRAM_TITLE}", print_head(text.part) + print_program(text.part.program)

    def rewritten(self, apply: Callable[[Program, Mapping[str, int]], Program]) -> Work:
        """Return it with a rewrite of each Program."""

        def part(text: PartText) -> PartText:
            program = text.part.program
            hints = {**likely_sizes(sizes_of(program)), **self.hints}
            return replace(text, part=replace(text.part, program=apply(program, hints)))

        if self.interface is None:
            return replace(self, program=apply(self.program, self.hints))
        return replace(self, parts={head: part(text) for head, text in self.parts.items()})


def steps_with_loops(stages: Iterable[Stage]) -> Iterator[str]:
    """Yield titles of the Programs of steps that contain loops: these have no kernels."""
    for stage in stages:
        if stage.kernels is None:
            yield f"{stage.head}{PROGRAM_TITLE}"
            yield from steps_with_loops(stage.within)


def choice(kind: str, name: str, known: Collection[str]) -> str:
    """The name; raises ArgumentFault, which lists those there are."""
    if name not in known:
        raise ArgumentFault(f"there is no {kind} {name!r}; write one of {', '.join(known)}")
    return name


@dataclass
class Run:
    """The state of a run. Stages change it, and yield titles and texts."""

    options: argparse.Namespace
    function: Function | None = None
    work: list[Work] = field(default_factory=list[Work])

    def ir(self) -> Shown:
        assert self.function is not None
        yield "", print_function(self.function).rstrip()

    def simplify(self) -> Shown:
        assert self.function is not None
        if name := self.options.one_pass:
            self.function = run(self.function, [PASSES[choice("pass", name, PASSES)]])
        else:
            self.function = compiler.simplified(self.function)
        yield from self.ir()

    def specialise(self) -> Shown:
        assert self.function is not None
        given = pairs(",".join(self.options.shape))
        names = [p.name for p in self.function.params]
        known_names("--shape", given, names)
        known_names("--dtype", pairs(self.options.dtype), names)
        values = [value_of(p, given, self.options) for p in self.function.params]
        dry_run = DryRun(make_driver(self.function, Options()), values)
        if dry_run.fails:
            raise ArgumentFault(f"a call with these arguments raises: {dry_run.fails}")
        for step in dry_run.steps:
            if not isinstance(step, KernelStep):
                yield f"@{step.loc.line}", f"PyTorch runs {step.label}: {step.reason}"
            elif (host := step.entry.spec.host) is not None:
                title = f"@{step.loc.line}" if step.loc.line else ""
                self.work.append(Work(title=title, program=host.program, hints=step.numbers))
        yield from self.programs()

    def programs(self) -> Shown:
        yield from ((f"{w.title} {title}".strip(), x) for w in self.work for title, x in w.texts())

    def differentiate(self) -> Shown:
        wanted = self.options.wrt.split(",")
        if not (self.options.grad or any(wanted) or self.options.begin == "differentiate"):
            return
        for w in list(self.work):
            names = [choice("input", n, w.program.inputs) for n in wanted if n] or None
            program = gradients(w.program, names)
            self.work.append(replace(w, title=f"{w.title} backward".strip(), program=program))
        yield from self.programs()

    def rewrite(self) -> Shown:
        apply = REWRITES[choice("rewrite", self.options.rewrite, REWRITES)]
        self.work = [w.rewritten(apply) for w in self.work]
        yield from self.programs()

    def compiled(self, *names: str) -> Shown:
        """Yield the texts of the code generator, by stage."""
        for w in self.work:
            yield from ((f"{w.title} {title}".strip(), text) for title, text in w.stages(*names))


def pairs(text: str) -> dict[str, str]:
    """`x=100x3,n=5` by name."""
    found = [part.partition("=") for part in text.split(",") if part]
    if not all(equals for _, equals, _ in found):
        raise ArgumentFault(f"{text!r} is not of the form x=100x3,n=5")
    return {name.strip(): value.strip() for name, _, value in found}


def known_names(option: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise ArgumentFault if an option gives a value for a name that is not in the text."""
    for name in given:
        if name not in known:
            raise ArgumentFault(
                f"{option} gives `{name}`; the text has {', '.join(known) or 'none'}"
            )


def size_of(name: str, text: str) -> int:
    """Return the int. Raises ArgumentFault."""
    if not text.isdecimal():
        raise ArgumentFault(f"{text!r} is not a size; write --size {name}=1000")
    return int(text)


def value_of(p: Value, given: Mapping[str, str], options: argparse.Namespace) -> Any:
    """A meta tensor of the shape that is given for a parameter; or the number."""
    if p.name not in given:
        raise ArgumentFault(f"--shape says nothing of `{p.name}`; write --shape {p.name}=100x3")
    if p.type != TENSOR:
        return parse_literal(given[p.name])
    dtype = pairs(options.dtype).get(p.name, "float32")
    return torch.empty(parse_shape(given[p.name]), dtype=parse_dtype(dtype), device="meta")


def kind_of(text: str) -> str:
    """Return the kind of a text."""
    marks = {
        FUNCTION: r"\s*def ",
        TILES: r"kernel k\d+ ",
        GROUPS: r"group k\d+\b",
        HOST: r"result\b",
    }
    return next((k for k, mark in marks.items() if re.search(f"^{mark}", text, re.M)), PROGRAM)


def reads(stage: str) -> tuple[str, ...]:
    """The kinds of texts that a stage begins with."""
    if compiler.STAGES.index(stage) <= compiler.STAGES.index("specialise"):
        return (FUNCTION,)
    return {"tile": (GROUPS,), "host": (TILES, HOST), "emit": (TILES, HOST)}.get(stage, (PROGRAM,))


def parts(text: str, options: argparse.Namespace) -> Iterator[Work]:
    """Yield what each section has, or all sections of the parts of a Program."""
    sections = [s for s in titled(text) if s.text.strip()]
    found = dict.fromkeys(s.stage for s in sections if s.stage in compiler.STAGES)
    if len(found) > 1:
        raise ArgumentFault(f"one stage at a time, not {', '.join(found)}")
    given = {n: size_of(n, v) for n, v in pairs(options.size).items()}
    while sections:
        first, sizes = sections.pop(0), dict[str, Index]()
        if first.name == INTERFACE:
            made = parse_interface(first.text, sizes)
            known = [a for i in sizes.values() for a in i.atoms() if isinstance(a, Size)]
            hints = dict.fromkeys(made.sizes, LIKELY) | likely_sizes(known) | given
            texts: dict[str, PartText] = {}
            while sections and sections[0].head:
                s = sections.pop(0)
                texts[s.head] = parse_part(s.text, sizes)
            yield Work(
                title=first.where, program=made.program, hints=hints, interface=made, parts=texts
            )
            continue
        part = parse_part(first.text, sizes)
        groups, program = part.groups, part.part.program
        if first.head or not isinstance(part.part, Part) or (groups and groups.moving):
            raise ArgumentFault(f"a part needs the section `{INTERFACE}` above it, and all others")
        if groups is None:
            hints = likely_sizes(sizes_of(program)) | given
            yield Work(title=first.where, program=program, hints=hints)
        else:
            hints = dict.fromkeys(groups.sizes, LIKELY)
            hints |= likely_sizes(sizes_of(groups.fusion.normal)) | given
            made = Interface(program=program, same={}, sizes=groups.sizes, numbers=groups.numbers)
            yield Work(
                title=first.where, program=program, hints=hints, interface=made, parts={"": part}
            )


@dataclass(frozen=True)
class Section:
    """A text of what is read, and what its title says: `fuse @3 loop0.groups`."""

    stage: str
    where: str
    head: str
    name: str
    text: str


def titled(text: str) -> Iterator[Section]:
    """Yield the sections of a text. What is before the first title has none."""
    before, *sections = HEADING.split(text)
    yield Section("", "", "", "", before)
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        found = TITLE.fullmatch(title)
        assert found is not None
        stage, where, head, name = (x or "" for x in found.groups())
        yield Section(stage, where, head, name, section)


def likely_sizes(sizes: Iterable[Size]) -> dict[str, int]:
    """Return the usual values of sizes."""
    return {a.name: max(a.low or 0, LIKELY) for a in sizes}


def stages(text: str, options: argparse.Namespace) -> Shown:
    """Titles and texts; raises ArgumentFault and LowtideError."""
    known = compiler.STAGES
    begin = known.index(choice("stage", options.begin, known))
    end = known.index(choice("stage", options.end or known[-1], known))
    if end < begin:
        raise ArgumentFault(f"--to {options.end} comes before --from {options.begin}")
    wanted = reads(known[begin])
    if not HEADING.sub("", text).strip():
        raise ArgumentFault("the text is empty")
    kind = kind_of(text)
    if kind not in wanted:
        raise ArgumentFault(f"--from {known[begin]} reads {' or '.join(wanted)}, not {kind}")
    if kind in (HOST, FUNCTION) and len(found := HEADING.findall(text)) > 1:
        raise ArgumentFault(f"one text at a time, not {len(found)}: {', '.join(found)}")
    if kind == HOST:
        host = parse_host(HEADING.sub("", text, 1))
        shown = {"host": print_host(host), "emit": python_text(host, HostDialect())}
        yield from ((stage, shown[stage]) for stage in known[begin : end + 1])
        return
    this = Run(options)
    if kind == FUNCTION:
        this.function = parse_function(HEADING.sub("", text, 1))
    else:
        this.work = list(parts(text, options))
        if begin <= known.index("split") and any(w.interface for w in this.work):
            raise ArgumentFault(f"--from {known[begin]} reads a whole Program, not its parts")
    for stage in known[begin : end + 1]:
        if stage == "normalise" and options.rewrite:
            found = this.rewrite()
        elif stage in COMPILED:
            found = this.compiled(*COMPILED[stage])
        else:
            found = getattr(this, stage)()
        for title, shown in found:
            yield f"{stage} {title}".strip(), shown


def main(arguments: Sequence[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m lowtide.opt", description=__doc__, formatter_class=raw
    )
    add = parser.add_argument
    add("file", nargs="?", default="-", help="the text; - for what comes in")
    add("--from", dest="begin", default="ir", metavar="STAGE", help=" ".join(compiler.STAGES))
    add("--to", dest="end", default="", metavar="STAGE", help="the last one that is shown")
    add("--pass", dest="one_pass", default="", metavar="NAME", help="of simplify, this one only")
    add("--rewrite", default="", metavar="NAME", help="of normalise, this one only")
    add("--shape", action="append", default=[], help="of a Function's parameters: x=100x3,n=5")
    add("--dtype", default="", help="where it is not float32: x=float64")
    add("--size", default="", help=f"likely sizes of a Program, {LIKELY} by default: N=1000")
    add("--grad", action="store_true", help="differentiate, by all floats")
    add("--wrt", default="", metavar="NAMES", help="differentiate, by these inputs: x,w")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.file == "-" else _read(options.file)
        for title, shown in stages(text, options):
            print(f"== {title} ==\n{shown}\n")
    except (ArgumentFault, LowtideError, OSError, ValueError) as fault:
        print(f"opt: {fault}", file=sys.stderr)
        return 2
    return 0


def _read(name: str) -> str:
    try:
        return Path(name).read_text("utf-8")
    except OSError as fault:
        raise ArgumentFault(f"{name} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ArgumentFault(
            f"{name} is not text. A stage's text is what this command or explain() prints"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
