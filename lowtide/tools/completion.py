"""`lowtide completion`: completion of commands and options, for bash, zsh and fish.

In: the parser of the command line. Out: a script for the shell.

    eval "$(lowtide completion bash)"              in ~/.bashrc; zsh likewise
    lowtide completion fish | source               in config.fish

Where a command takes a file or a target, the shell completes files.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. `options`: with their help; `values`: of a positional argument with choices."""

    name: str
    help: str
    options: dict[str, str]
    values: tuple[str, ...]


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell: "bash", "zsh" or "fish"."""
    found = commands(parser)
    if shell == "fish":
        return _fish(found)
    bash = _bash(found)
    return bash if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{bash}"


def commands(parser: argparse.ArgumentParser) -> list[Command]:
    """Return the commands of a parser, in order."""
    choice: Any = next(a for a in _actions(parser) if "_choices_actions" in vars(a))
    listed: list[Any] = choice._choices_actions  # argparse has no public name for it
    helps: dict[str, str] = {a.dest: a.help or "" for a in listed}
    found: list[Command] = []
    for name, command in choice.choices.items():
        actions = _actions(command)
        options = {
            word: action.help or ""
            for action in actions
            for word in action.option_strings
            if word.startswith("--")
        }
        values = [v for a in actions if not a.option_strings for v in a.choices or ()]
        found.append(
            Command(name=name, help=helps[name], options=options, values=tuple(map(str, values)))
        )
    return found


def _actions(parser: argparse.ArgumentParser) -> list[Any]:
    return vars(parser)["_actions"]


def _bash(found: list[Command]) -> str:
    cases = "\n".join(
        f'    {c.name}) words="{" ".join(c.values)}" options="{" ".join(c.options)}" ;;'
        for c in found
    )
    names = " ".join(c.name for c in found)
    return f"""\
_lowtide() {{
  local words="{names}" options="--help --version" typed="${{COMP_WORDS[COMP_CWORD]}}"
  (( COMP_CWORD > 1 )) && case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="" ;;
  esac
  [[ "$typed" == -* ]] && words="$options"
  COMPREPLY=($(compgen -W "$words" -- "$typed"))
}}
complete -o default -F _lowtide lowtide"""


def _fish(found: list[Command]) -> str:
    lines = [
        f"complete -c lowtide -n __fish_use_subcommand -a {c.name} -d {_quoted(c.help)}"
        for c in found
    ]
    for c in found:
        begin = f'complete -c lowtide -n "__fish_seen_subcommand_from {c.name}"'
        lines += [f"{begin} -a {value}" for value in c.values]
        lines += [
            f"{begin} -l {word.removeprefix('--')} -d {_quoted(said)}"
            for word, said in c.options.items()
        ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
