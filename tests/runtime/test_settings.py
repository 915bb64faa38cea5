from __future__ import annotations

import os
import sys

import pytest

from lowtide import config
from lowtide.errors import LowtideError


def test_defaults_need_no_variable():
    found = config.from_environment({})
    assert found.cache_dir.endswith("lowtide")
    assert 0 < found.arena_cap_bytes <= 2 << 30
    assert (found.disable, found.debug, found.compiler) == (False, config.Debug(), "")


@pytest.mark.skipif(sys.platform != "linux", reason="where caches are on Linux")
def test_kernels_are_where_the_user_keeps_caches():
    found = config.from_environment({"XDG_CACHE_HOME": "/caches"})
    assert found.cache_dir == "/caches/lowtide"
    assert config.from_environment({}).cache_dir == os.path.expanduser("~/.cache/lowtide")


def test_all_variables():
    found = config.from_environment(
        {
            "LOWTIDE_CACHE_DIR": "~/kernels",
            "LOWTIDE_DISABLE": "1",
            "LOWTIDE_DEBUG": "ir, kernels;fn=forward;dir=out",
            "LOWTIDE_CC": "clang -O1",
            "LOWTIDE_ARENA_BYTES": "512MiB",
        }
    )
    assert found.cache_dir == os.path.expanduser("~/kernels")
    assert found.disable
    assert found.debug.topics == {"ir", "kernels"}
    assert (found.debug.function, found.debug.directory) == ("forward", "out")
    assert found.debug.wants("ir", "forward")
    assert not found.debug.wants("ir", "backward")
    assert not found.debug.wants("time")
    assert found.compiler == "clang -O1"
    assert found.arena_cap_bytes == 512 << 20


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("LOWTIDE_DISABLE", "maybe", "1, 0"),
        ("LOWTIDE_ARENA_BYTES", "lots", "512MB"),
        ("LOWTIDE_ARENA_BYTES", "-5", "512MB"),
        ("LOWTIDE_DEBUG", "everything", "ir,tile,memory,kernels,cache,time"),
        ("LOWTIDE_DEBUG", "ir;function=f", ";fn=name"),
    ],
)
def test_nonsense_names_the_variable_and_what_is_allowed(variable: str, value: str, allowed: str):
    with pytest.raises(LowtideError) as caught:
        config.from_environment({variable: value})
    assert variable in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found_bytes"),
    [(17, 17), ("0", 0), ("512MB", 512 * 10**6), ("2GiB", 2 << 30), ("1.5 kib", 1536)],
)
def test_parse_bytes(text: str | int, found_bytes: int):
    assert config.parse_bytes(text) == found_bytes


@pytest.mark.parametrize("text", ["", "MB", "5 parsecs", "1e3", -1])
def test_parse_bytes_refuses(text: str | int):
    with pytest.raises(ValueError):
        config.parse_bytes(text)


def test_override_ends_with_its_block():
    before = config.current()
    with config.override(disable=True):
        assert config.current().disable
    assert config.current() is before
