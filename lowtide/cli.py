"""The command line: reads arguments and calls; everything else is imported when it is needed.

    lowtide demo --quick          lowtide doctor            lowtide cache --json
    lowtide completion bash
    lowtide try pkg.mod:fn --shape 1000x4,500x4
    lowtide explain pkg.mod:fn --shape 1000x4,500x4 --dtype float32 --html out.html
    lowtide memory pkg.mod:fn --shape 1000x4,500x4 --backward
    lowtide reduce pkg.mod:fn --shape 1000x4,500x4
    lowtide inspect old.pt --code     lowtide convert old.pt new.lt
    lowtide export model.lt out/ --shape 1000x4
    lowtide profile --rows 20 --html report.html train.py --epochs 1
    lowtide profile -m pkg.train --epochs 1

Exit status: 0 done, 1 it ran and something is wrong, 2 the arguments make no sense, 130 Ctrl-C;
of `profile`, the script's own.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lowtide.errors import LowtideError

# What `lowtide COMMAND --help` shows first.
_EXAMPLES = {
    "demo": "lowtide demo --quick",
    "doctor": "lowtide doctor\nlowtide doctor --json > doctor.json",
    "cache": "lowtide cache\nlowtide cache clear",
    "try": "lowtide try pkg.mod:fn --shape 1000x4,500x4\n"
    "lowtide try 'pkg.mod:Net(8)' --shape 32x8 --backward",
    "explain": "lowtide explain pkg.mod:fn --shape 1000x4,500x4\n"
    "lowtide explain pkg.mod:fn --shape 1000x4,500x4 --html stages.html",
    "memory": "lowtide memory pkg.mod:Net --shape 32x3x224x224\n"
    "lowtide memory pkg.mod:fn --shape 1000x4,500 --dtype float32,int64 --backward",
    "reduce": "lowtide reduce pkg.mod:fn --shape 1000x4,500x4",
    "inspect": "lowtide inspect old.pt\nlowtide inspect old.pt --code",
    "convert": "lowtide convert old.pt new.lt",
    "export": "lowtide export model.lt out/ --shape 1000x4",
    "completion": 'eval "$(lowtide completion bash)"',
    "profile": "lowtide profile train.py --epochs 1\n"
    "lowtide profile --rows 20 --html report.html train.py\nlowtide profile -m pkg.train",
}
_DESCRIPTION = """\
A memory-first JIT compiler for PyTorch code.

your own code:
  lowtide try pkg.mod:fn --shape 1000x4,500x4   time, peak, results of both
  lowtide memory pkg.mod:Net --shape 8x3x64x64  the predicted peak; runs nothing
  lowtide profile train.py --epochs 1           which lines of it allocate what

a first look:
  lowtide doctor                                is the machine ready?
  lowtide demo --quick                          three programs, two minutes
"""


def app(arguments: Sequence[str] | None = None) -> int:
    """Run one command, given by `arguments` or the process. Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except LowtideError as fault:  # a device that is not there, a setting that makes no sense
        print(f"lowtide: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `lowtide demo | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """A parser whose help begins with examples, and that names the nearest command of a wrong
    one."""

    def add_examples(self, examples: str) -> None:
        said = "\n".join(f"  {line}" for line in examples.splitlines())
        self.description = f"{self.description or ''}\n\nfor example:\n{said}".lstrip()
        self.formatter_class = argparse.RawDescriptionHelpFormatter

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)'", message)
        if wrong is None:
            super().error(message)
        near = difflib.get_close_matches(wrong[1], _EXAMPLES, n=1)
        guess = f"; did you mean `lowtide {near[0]}`?" if near else ""
        names = ", ".join(_EXAMPLES)
        self.exit(2, f"lowtide: there is no command {wrong[1]!r}{guess}\ncommands: {names}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lowtide",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_VersionAction, help="print the version of Lowtide and of torch"
    )
    parser.set_defaults(run=lambda _: parser.print_help(sys.stderr) or 2)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="three programs under eager, torch.compile and Lowtide, side by side"
    )
    demo.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to run")
    demo.add_argument("--quick", action="store_true", help="small sizes, for a first look")
    demo.add_argument("--json", action="store_true", help="print the results as JSON")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="what Lowtide finds on this machine")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(run=_doctor)

    cache = commands.add_parser("cache", help="the compiled kernels on disk")
    cache.add_argument("action", nargs="?", choices=["stats", "clear", "path"], default="stats")
    cache.add_argument("--json", action="store_true", help="print the answer as JSON")
    cache.set_defaults(run=_cache)

    tried = commands.add_parser(
        "try", help="eager PyTorch against Lowtide on your own function: time, peak, results"
    )
    _add_target(tried)
    tried.add_argument("--backward", action="store_true", help="of a training step: gradients, too")
    tried.set_defaults(run=_try)

    explain = commands.add_parser(
        "explain", help="how a function or module is compiled for given shapes"
    )
    _add_target(explain)
    explain.add_argument(
        "--html", metavar="FILE", default="", help="write each stage of the compilation as a page"
    )
    explain.set_defaults(run=_explain)

    memory = commands.add_parser("memory", help="the predicted peak of a function; runs nothing")
    _add_target(memory)
    memory.add_argument(
        "--backward", action="store_true", help="of a step of training: inputs require gradients"
    )
    memory.set_defaults(run=_memory)

    reduce = commands.add_parser(
        "reduce", help="where a result is wrong: the smallest part that is, and the stage"
    )
    _add_target(reduce)
    reduce.set_defaults(run=_reduce)

    inspect = commands.add_parser(
        "inspect", help="what a file of torch.jit.save or lt.save holds; runs nothing"
    )
    inspect.add_argument("file", help="a file that torch.jit.save or lt.save wrote")
    inspect.add_argument("--code", action="store_true", help="print the program, with line numbers")
    inspect.add_argument("--json", action="store_true", help="print the answer as JSON")
    inspect.set_defaults(run=_inspect)

    convert = commands.add_parser("convert", help="write a file of torch.jit.save as lt.save does")
    convert.add_argument("old", help="a file that torch.jit.save or lt.save wrote")
    convert.add_argument("new", help="the file to write; it is replaced when it is complete")
    convert.add_argument("--json", action="store_true", help="print the answer as JSON")
    convert.set_defaults(run=_convert)

    export = commands.add_parser("export", help="write a function, module or file as a C library")
    _add_target(export)
    export.add_argument("directory", help="the folder to write into")
    export.add_argument("--name", default="model", help="the prefix of files and functions")
    export.add_argument(
        "--weights", default="auto", choices=("auto", "constants", "file"), help="where they go"
    )
    export.set_defaults(run=_export)

    completion = commands.add_parser(
        "completion", help='completion of these commands: eval "$(lowtide completion bash)"'
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.set_defaults(run=_completion)

    profile = commands.add_parser("profile", help="run a script; which lines allocate what")
    _add_profile(profile)
    profile.set_defaults(run=_profile)
    for name, command in commands.choices.items():
        command.add_examples(_EXAMPLES[name])
    return parser


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "target",
        metavar="pkg.mod:fn",
        help="a function, an nn.Module or a method of one, plain or compiled; "
        "`make()` and `Net(8, bias=False)` are called",
    )
    command.add_argument(
        "--shape",
        default="",
        help="one shape for each tensor, e.g. 1000x4,500x4; `scalar` has no axes",
    )
    command.add_argument(
        "--dtype", default="float32", help="one dtype for all, or one for each: float32,int64"
    )
    command.add_argument("--json", action="store_true", help="print the answer as JSON")


def _add_profile(command: argparse.ArgumentParser) -> None:
    command.add_argument("--sort", default="self_bytes", metavar="COLUMN", help="self_bytes, …")
    command.add_argument("--rows", type=int, default=10, help="rows of the table; -1 for all")
    command.add_argument("--html", metavar="FILE", help="write a page with the timeline")
    command.add_argument("--plot", metavar="FILE", help="write a picture: .png, .svg")
    command.add_argument("--trace", metavar="FILE", help="write a trace for chrome://tracing")
    command.add_argument(
        "--json", action="store_true", help="print JSON; the script's output goes to stderr"
    )
    command.add_argument(
        "-m", dest="module", action="store_true", help="script.py is a module's name: pkg.train"
    )
    command.add_argument("script", metavar="script.py", help="run as the main program")
    command.add_argument("args", nargs=argparse.REMAINDER, help="what the script gets")


class _VersionAction(argparse.Action):
    """`--version`, whose text is made on demand because it costs an import of torch."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from lowtide.tools.machine import this_machine

        machine = this_machine()
        print(f"lowtide {machine.lowtide}, torch {machine.torch}, Python {machine.python}")
        parser.exit()


def _demo(options: argparse.Namespace) -> int:
    from lowtide.tools.demo import run_demo

    return run_demo(is_quick=options.quick, as_json=options.json, device=options.device)


def _doctor(options: argparse.Namespace) -> int:
    import dataclasses

    from lowtide.tools.doctor import missing, render, run_checks

    checks = run_checks()
    if options.json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        print(render(checks))
    return 0 if missing(checks) is None else 1


def _cache(options: argparse.Namespace) -> int:
    from lowtide.runtime import cache
    from lowtide.tables import format_bytes

    answer: dict[str, Any] = {"path": str(cache.path())}
    text = answer["path"]
    if options.action != "path":
        size = cache.clear() if options.action == "clear" else cache.size()
        verb = "removed " if options.action == "clear" else ""
        answer |= {"action": options.action, "kernels": size.entries, "bytes": size.entry_bytes}
        text = f"{verb}{size.entries} kernels, {format_bytes(size.entry_bytes)}, in {text}"
    print(json.dumps(answer, indent=2) if options.json else text)
    return 0


def _try(options: argparse.Namespace) -> int:
    from lowtide.tools.try_command import try_target

    def ask() -> int:
        found = try_target(options.target, options.shape, options.dtype, options.backward)
        _say(json.dumps(found.to_dict(), indent=2) if options.json else found)
        return 0 if found.works else 1

    return _reported("try", ask)


def _explain(options: argparse.Namespace) -> int:
    from lowtide.tools.explain_command import explain

    ask = functools.partial(explain, page=options.html)
    return _reported("explain", lambda: _answer("explain", ask, options))


def _memory(options: argparse.Namespace) -> int:
    from lowtide.tools.explain_command import predict

    ask = functools.partial(predict, backward=options.backward)
    return _reported("memory", lambda: _answer("memory", ask, options, _show_plan))


def _reduce(options: argparse.Namespace) -> int:
    from lowtide.tools.reduce_command import reduce

    def ask() -> int:
        found = reduce(options.target, options.shape, options.dtype)
        _say(json.dumps(found.to_dict(), indent=2) if options.json else found)
        return 1 if found.stage else 0

    return _reported("reduce", ask)


def _say(answer: object) -> None:
    """Print an answer, after the end of the progress line."""
    from lowtide.diagnostics.progress import settle

    settle()
    print(answer)


def _show_plan(plan: Any) -> None:
    if sys.stdout.isatty():
        from lowtide.diagnostics.progress import settle
        from lowtide.tools.memory_table import print_plan

        settle()
        print_plan(plan)
    else:
        _say(plan)


def _answer(
    command: str,
    ask: Callable[[str, str, str], Any],
    options: argparse.Namespace,
    show: Callable[[Any], None] | None = None,
) -> int:
    found = ask(options.target, options.shape, options.dtype)
    fails = getattr(found, "memory", found).fails
    if options.json:
        _say(json.dumps(found.to_dict(), indent=2))
    elif not fails:
        (show or _say)(found)
    if fails:
        said = f"write other shapes than {options.shape}; such a call fails: {fails}"
        print(f"lowtide {command}: {said}", file=sys.stderr)
    return 2 if fails else 0


def _inspect(options: argparse.Namespace) -> int:
    from lowtide.tools.archive_commands import code_of, inspect, render

    def ask() -> int:
        found = inspect(options.file)
        if options.json:
            code = {"code": found.code} if options.code else {}
            _say(json.dumps({**found.to_dict(), **code}, indent=2))
        else:
            _say(code_of(found) if options.code else render(found))
        return 1 if found.missing else 0

    return _reported("inspect", ask, options.file)


def _convert(options: argparse.Namespace) -> int:
    from lowtide.tools.archive_commands import convert

    def ask() -> int:
        convert(options.old, options.new)
        if options.json:
            size = os.path.getsize(options.new)
            _say(json.dumps({"old": options.old, "new": options.new, "bytes": size}, indent=2))
        return 0

    return _reported("convert", ask, options.old)


def _export(options: argparse.Namespace) -> int:
    from lowtide.tools.export_command import export

    def ask() -> int:
        found = export(
            options.target, options.directory, options.shape, options.dtype, options.name,
            options.weights,
        )  # fmt: skip
        _say(json.dumps(found.to_dict(), indent=2) if options.json else found)
        return 0

    return _reported("export", ask, "")


def _reported(command: str, ask: Callable[[], int], file: str | None = None) -> int:
    """Return the exit status of `ask`, or of its error, which is printed. `file`: what it reads;
    None: an OSError is the user's program's."""
    from lowtide.diagnostics.progress import progress
    from lowtide.tools.explain_command import ArgumentFault

    try:
        with progress(f"lowtide {command}"):
            return ask()
    except ArgumentFault as fault:
        print(f"lowtide {command}: {fault}", file=sys.stderr)
        return 2
    except OSError as fault:
        if file is None or isinstance(fault, BrokenPipeError):
            raise
        print(f"lowtide {command}: {fault.filename or file}: {fault.strerror}", file=sys.stderr)
        return 2
    except LowtideError as fault:
        where = f"{file}: " if file else ""
        print(f"lowtide {command}: {where}{fault}", file=sys.stderr)
        return 1


def _completion(options: argparse.Namespace) -> int:
    from lowtide.tools.completion import script

    print(script(_parser(), options.shell))
    return 0


def _profile(options: argparse.Namespace) -> int:
    from lowtide.tools.profile_command import profile_script

    return profile_script(options)


if __name__ == "__main__":
    sys.exit(app())
