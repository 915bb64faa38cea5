"""`lowtide completion`: what bash offers, and that the other shells get every command."""

from __future__ import annotations

import subprocess

import pytest

from lowtide.cli import app


def offered(script: str, *words: str) -> set[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _lowtide; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True
    )
    return {*done.stdout.split()}


@pytest.fixture
def bash(capsys: pytest.CaptureFixture[str]) -> str:
    assert app(["completion", "bash"]) == 0
    return capsys.readouterr().out


def test_bash_offers_commands_values_and_options(bash: str) -> None:
    assert offered(bash, "lowtide", "ex") == {"explain", "export"}
    assert offered(bash, "lowtide", "cache", "c") == {"clear"}
    assert {"--shape", "--html"} <= offered(bash, "lowtide", "explain", "--")
    assert offered(bash, "lowtide", "profile", "tr") == set()  # files


def test_zsh_and_fish_know_the_commands(capsys: pytest.CaptureFixture[str], bash: str) -> None:
    assert app(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.endswith(bash)
    assert app(["completion", "fish"]) == 0
    fish = capsys.readouterr().out
    assert "-a doctor -d 'what Lowtide finds on this machine'" in fish
    assert '"__fish_seen_subcommand_from explain" -l html' in fish
