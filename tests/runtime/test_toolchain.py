from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide import config
from lowtide.errors import BackendError
from lowtide.runtime import cache, probe, toolchain


def test_the_compiler_and_its_target(cache_dir: Path):
    found = toolchain.compiler()
    assert found.kind in ("gcc", "clang", "zig")
    assert found.version
    assert found.target.vector_bytes in (16, 32, 64)
    assert ("-mprefer-vector-width=512" in found.flags) == (found.target.vector_bytes == 64)


def test_the_compiler_is_asked_once_for_all_processes(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    first = toolchain.compiler()
    toolchain._compiler.cache_clear()
    monkeypatch.setattr(toolchain, "run", None)  # a second question would fail
    assert toolchain.compiler() == first


def test_damaged_facts_are_asked_anew(cache_dir: Path):
    first = toolchain.compiler()
    (facts,) = (cache_dir / "lowtide-1" / "targets").iterdir()
    for text in ("", "[1]", "{}", "{"):
        facts.write_text(text)
        toolchain._compiler.cache_clear()
        assert toolchain.compiler() == first


def without(flag: str) -> list[str]:
    """The flags of the compiler in use but this one."""
    return [f for f in toolchain.compiler().flags if f != flag]


def test_the_probe_finds_the_fault_of_gcc_12(cache_dir: Path):
    found = toolchain.compiler()
    if found.kind != "gcc" or not found.version.startswith("12."):
        pytest.skip("another compiler")
    assert toolchain.probe_faults(found.command, found.flags) == ()
    faults = toolchain.probe_faults(found.command, without("-fno-delete-null-pointer-checks"))
    assert faults == ("it leaves out calls of functions that write to scratch memory",)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("-fwrapv", "overflow of an int"),
        ("-fno-strict-aliasing", "an int and a float"),
        ("-ffp-contract=off", r"rounds a\*b\+c once"),
    ],
)
def test_the_probe_tells_flags_apart(cache_dir: Path, flag: str, words: str):
    """gcc takes the leave that it is given; others may not."""
    found = toolchain.compiler()
    if found.kind != "gcc" or "fma" not in found.target.features:
        pytest.skip("another compiler, or a CPU without fma")
    (fault,) = toolchain.probe_faults(found.command, without(flag))
    assert re.search(words, fault)


@pytest.mark.parametrize(
    ("flag", "words"),
    [("-ffinite-math-only", "NaN for impossible"), ("-fassociative-math", "in another order")],
)
def test_fast_math_of_a_wrapper_is_found(cache_dir: Path, flag: str, words: str):
    found = toolchain.compiler()
    flags = [*found.flags, flag, "-fno-signed-zeros", "-fno-trapping-math"]
    (fault,) = toolchain.probe_faults(found.command, flags)
    assert words in fault


def test_fast_math_in_the_command_of_the_compiler_has_no_effect(cache_dir: Path):
    found = toolchain.compiler()
    assert toolchain.probe_faults([*found.command, "-ffast-math"], found.flags) == ()


def test_a_compiler_that_fails_the_probe_is_refused(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probe, "faults", lambda path: ("it adds wrongly",))
    words = "gcc .*does not compile kernels rightly: it adds wrongly; point LOWTIDE_CC at another"
    if toolchain.find_command()[0].rpartition("/")[2] != "gcc":
        words = words.removeprefix("gcc ")
    with pytest.raises(BackendError, match=words):
        toolchain.compiler()
    monkeypatch.setattr(toolchain, "run", None)  # the verdict is kept: nobody asks again
    with pytest.raises(BackendError, match=words):
        toolchain.compiler()


def test_flags_that_a_compiler_does_not_know_are_left_out(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        toolchain, "_MEANING", {k: ("-fno-such-thing", *v) for k, v in toolchain._MEANING.items()}
    )
    flags = toolchain.compiler().flags
    assert "-fno-such-thing" not in flags
    assert {"-fwrapv", "-fno-delete-null-pointer-checks"} <= {*flags}


def test_identity_covers_compiler_and_cpu(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    first = toolchain.compiler().identity
    monkeypatch.setattr(toolchain, "cpu_identity", lambda: "another machine")
    toolchain._compiler.cache_clear()
    assert toolchain.compiler().identity != first


def test_no_compiler_says_what_to_install(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain, "zig_path", lambda: "")
    with pytest.raises(BackendError, match=r"apt install gcc.*pip install lowtide\[zig\]"):
        toolchain.compiler()


def test_a_compiler_asked_for_by_name_must_be_there(cache_dir: Path):
    with (
        config.override(compiler="/nowhere/gcc"),
        pytest.raises(BackendError, match="LOWTIDE_CC='/nowhere/gcc' was not found"),
    ):
        toolchain.compiler()


def test_a_program_that_is_no_compiler(cache_dir: Path):
    with (
        config.override(compiler="true"),
        pytest.raises(BackendError, match="does not work as a C compiler"),
    ):
        toolchain.compiler()


def test_zig_is_the_last_resort(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    if not toolchain.zig_path():
        pytest.skip("the ziglang package is not installed")
    monkeypatch.setenv("PATH", "")
    assert toolchain.find_command() == (toolchain.zig_path(), "cc")


def test_zig_compiles_and_its_library_loads(cache_dir: Path):
    if not toolchain.zig_path():
        pytest.skip("the ziglang package is not installed")
    with config.override(compiler=toolchain.zig_path()):
        assert toolchain.compiler().kind == "zig"
        source = '__attribute__((visibility("default"))) int seven(void) { return 7; }'
        assert cache.load_library(source, "seven").seven() == 7


def test_importing_starts_no_process_and_no_torch():
    program = (
        "import subprocess, sys\n"
        "def forbid(*args, **kwargs): raise AssertionError\n"
        "subprocess.Popen = forbid\n"
        "import lowtide.config, lowtide.runtime.cache\n"
        "print(*(m for m in ('torch', 'filelock') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
