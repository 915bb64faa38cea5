"""`python -m lowtide.opt`: enters the compiler at a stage, shows the stages after it.

    python -m lowtide.opt --from simplify --pass fold_constants program.txt
    python -m lowtide.opt --from specialise --shape x=100x3,n=5 --to normalise program.txt
    python -m lowtide.opt --from normalise --rewrite softmax --size N=1000 < formulas.txt

In: what this command prints of the stage before, or the same text by hand. `specialise` and the
stages before read a Function, `tile` reads groups, `host` and `emit` read a tile program or a host
program, the others a Program. Groups and kernels may be those of several parts, as of a loop; their
host program is read from its own text only. From a host program, which has no kernels, `emit`
prints the driver and no C.
Exit status: 0 done, 2 what was given makes no sense.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from lowtide import compiler
from lowtide.budget.drivers import make_driver
from lowtide.budget.dry_run import DryRun
from lowtide.budget.dry_run_steps import KernelStep
from lowtide.codegen.c.driver import HostDialect
from lowtide.codegen.executable import compile_groups, compile_program
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
from lowtide.texpr.parser import parse_program
from lowtide.texpr.printer import print_program, sizes_of
from lowtide.texpr.rewrites import REWRITES
from lowtide.tile.parser import parse_groups
from lowtide.tile.printer import TileProgram
from lowtide.tools.explain_command import ArgumentFault, parse_dtype, parse_shape

LIKELY: Final = 64  # a size of which nothing is said
HEADING: Final = re.compile(r"^== (.*) ==\n", re.MULTILINE)  # what this command prints above a text
PASSES: Final[Mapping[str, Pass]] = {
    getattr(step, "__name__", ""): step
    for step in (*compiler.REROLL, *compiler.SIMPLIFY, *compiler.PREPARE)
}
COMPILED: Final[Mapping[str, tuple[str, ...]]] = {  # what of an executable's stages is shown
    "split": ("tensor expressions",), "normalise": ("normal form",), "fuse": ("groups",),
    "tile": ("tile program",), "host": ("host program",), "emit": ("driver", "C"),
}  # fmt: skip
TITLES: Final = [title for stage in list(COMPILED)[:4] for title in COMPILED[stage]]
Shown = Iterator[tuple[str, str]]
FUNCTION, PROGRAM = "a Function (`def …`)", "a Program (`input …`)"
GROUPS, TILES = "groups (`group k0`)", "a tile program (`kernel k0 …`)"
HOST = "a host program (`result …`)"


@dataclass(frozen=True, kw_only=True)
class Work:
    """A Program on its way. `hints`: likely sizes. `groups`: where it was read from these."""

    title: str
    program: Program
    hints: Mapping[str, int]
    groups: TileProgram | None = None

    def stages(self) -> list[tuple[str, str]]:
        """Return titles and texts of the code generator's stages."""
        if self.groups is not None:
            made = compile_groups(self.groups, self.hints)
            return (
                [*made.first.stages, ("C", made.first.source)]
                if self.groups.moving
                else made.stages
            )
        every = [e for d in self.program.defs.values() for e in ex.walk(d.expr)]
        scalars = dict.fromkeys(e.name for e in every if isinstance(e, ex.Scalar))
        made = compile_program(
            self.program, symbols=[*self.hints], scalars=[*scalars], hints=self.hints
        )
        return made.stages


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
        given = pairs(self.options.shape)
        values = [value_of(p, given, self.options) for p in self.function.params]
        for step in DryRun(make_driver(self.function, Options()), values).steps:
            if not isinstance(step, KernelStep):
                yield f"@{step.loc.line}", f"PyTorch runs {step.label}: {step.reason}"
            elif (host := step.entry.spec.host) is not None:
                title = f"@{step.loc.line}" if step.loc.line else ""
                self.work.append(Work(title=title, program=host.program, hints=step.numbers))
        yield from self.programs()

    def programs(self) -> Shown:
        yield from ((w.title, print_program(w.program)) for w in self.work)

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
        self.work = [replace(w, program=apply(w.program, w.hints)) for w in self.work]
        yield from self.programs()

    def compiled(self, *names: str) -> Shown:
        """Return the texts of the code generator, by stage."""
        for w in self.work:
            for title, text in w.stages():
                if title.rpartition(".")[2] in names:
                    yield f"{w.title} {title}".strip(), text


def pairs(text: str) -> dict[str, str]:
    """`x=100x3,n=5` by name."""
    found = [part.partition("=") for part in text.split(",") if part]
    if not all(equals for _, equals, _ in found):
        raise ArgumentFault(f"{text!r} is not of the form x=100x3,n=5")
    return {name.strip(): value.strip() for name, _, value in found}


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


def parts(text: str, kind: str, options: argparse.Namespace) -> Iterator[Work]:
    """The Program of each section; its groups, if these are what the text has."""
    before, *sections = HEADING.split(text)
    titled = zip(["", *sections[::2]], [before, *sections[1::2]], strict=True)
    for title, section in titled:
        if not section.strip():
            continue
        where = re.sub(rf"^\w+|\.?({'|'.join(TITLES)})$", "", title).strip()
        if kind == PROGRAM:
            program = parse_program(section)
            yield Work(title=where, program=program, hints=likely_sizes(program, options))
        else:
            made = parse_groups(section)
            hints = likely_sizes(made.fusion.normal, options)
            hints = {**dict.fromkeys(made.sizes, LIKELY), **hints}
            yield Work(title=where, program=made.fusion.program, hints=hints, groups=made)


def likely_sizes(program: Program, options: argparse.Namespace) -> dict[str, int]:
    """Sizes of a Program, as given or as usual."""
    sizes = {a.name: max(a.low or 0, LIKELY) for a in sizes_of(program)}
    return {**sizes, **{n: int(v) for n, v in pairs(options.size).items()}}


def stages(text: str, options: argparse.Namespace) -> Shown:
    """Titles and texts; raises ArgumentFault and LowtideError."""
    known = compiler.STAGES
    begin = known.index(choice("stage", options.begin, known))
    end = known.index(choice("stage", options.end or known[-1], known))
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
        this.work = list(parts(text, kind, options))
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
    add("--shape", default="", help="of a Function's parameters: x=100x3,n=5")
    add("--dtype", default="", help="where it is not float32: x=float64")
    add("--size", default="", help=f"likely sizes of a Program, {LIKELY} by default: N=1000")
    add("--grad", action="store_true", help="differentiate, by all floats")
    add("--wrt", default="", metavar="NAMES", help="differentiate, by these inputs: x,w")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text("utf-8")
        for title, shown in stages(text, options):
            print(f"== {title} ==\n{shown}\n")
    except (ArgumentFault, LowtideError, OSError, ValueError) as fault:
        print(f"opt: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
