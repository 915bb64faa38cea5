"""Which tests a change asks for."""

from __future__ import annotations

from tests.changed import choose


def test_a_pass_asks_for_texts_first_and_for_what_imports_it() -> None:
    found = choose(["lowtide/passes/reroll.py"])
    assert found.first == {"tests/passes/test_pass_texts.py", "tests/test_imports.py"}
    assert "tests/passes/test_reroll.py" in found.near
    assert "tests/grad/test_no_grad.py" in found.far  # by `lowtide` itself
    assert "tests/language/test_language.py" in found.far
    assert found == choose(["lowtide/passes/reroll.py"])


def test_files_that_are_tested_elsewhere_than_their_room() -> None:
    printer = choose(["lowtide/codegen/host/printer.py"])
    assert "tests/host/test_host_programs.py" in printer.first
    assert (
        "tests/passes/test_pass_texts.py" in choose(["lowtide/specialise/near_constants.py"]).first
    )


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
