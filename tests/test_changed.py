"""Which tests a change asks for."""

from __future__ import annotations

from tests.changed import ALWAYS, FAR_FILES, ROOT, choose, folders_of


def test_a_pass_asks_for_texts_first_and_for_what_imports_it() -> None:
    found = choose(["lowtide/passes/reroll.py"])
    assert found.first == {*ALWAYS, "tests/passes/test_pass_texts.py"}
    assert "tests/passes/test_reroll.py" in found.home
    assert "tests/grad/test_no_grad.py" in found.far  # by `lowtide` itself
    assert "tests/language/test_language.py" in found.far
    assert found == choose(["lowtide/passes/reroll.py"])


def test_files_that_are_tested_elsewhere_than_their_room() -> None:
    printer = choose(["lowtide/codegen/host/printer.py"])
    assert "tests/host/test_host_programs.py" in printer.first
    assert (
        "tests/passes/test_pass_texts.py" in choose(["lowtide/specialise/near_constants.py"]).first
    )


def test_the_folders_of_a_room_come_first_in_the_sample() -> None:
    lifting = choose(["lowtide/specialise/lifting/stencils.py"])
    assert "tests/loops/test_stencils.py" in lifting.home
    assert not any(n.startswith("tests/run/") for n in lifting.home)
    executor = choose(["lowtide/execute/executor.py"])
    assert {n.rsplit("/", 1)[0] for n in executor.home} == {"tests/run"}


def test_files_that_pytest_reads() -> None:
    found = choose(["lowtide/passes/reroll.py"])
    assert found.collected > found.first | found.home | found.near
    assert len(found.collected & found.far) == FAR_FILES < len(found.far)
    assert found.collected == choose(["lowtide/passes/reroll.py"]).collected


def test_each_room_has_a_folder_of_tests() -> None:
    files = [p.relative_to(ROOT).as_posix() for p in ROOT.glob("lowtide/*/*.py")]
    folders = {folder for path in files for folder in folders_of(path)}
    assert [f for f in folders if not any((ROOT / f).glob("test_*.py"))] == []


def test_what_no_import_reaches_is_left_out() -> None:
    found = choose(["tests/fuzz/loops.py"])
    assert "tests/texpr/test_program_text.py" in found.near
    assert "tests/texpr/test_partition_texts.py" not in found.near | found.far


def test_files_of_tests_and_texts_ask_for_their_tests() -> None:
    changed = ["tests/passes/text/reroll.txt", "tests/runtime/test_arena.py", "docs/api.md"]
    found = choose(changed)
    assert found.first >= {
        "tests/passes/test_pass_texts.py", "tests/runtime/test_arena.py",
        "tests/docs/test_pages.py",
    }  # fmt: skip
    assert "tests/runtime/test_arena.py" not in found.near | found.far


def test_fixtures_for_all_ask_for_a_sample_of_all() -> None:
    assert len(choose(["tests/conftest.py"]).far) > 100
