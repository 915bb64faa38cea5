"""Units and tables as text."""

from __future__ import annotations

import pytest

from lowtide.tables import format_bytes, format_ms, markdown_table, plain_table


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"), (0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (1536, "1.50 KiB"),
        (20 << 20, "20.0 MiB"), (463 << 20, "463 MiB"), (3 << 30, "3.00 GiB"), (-2048, "-2.00 KiB"),
    ],
)  # fmt: skip
def test_format_bytes(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (None, "-"), (0, "0.000 ms"), (0.051_234, "0.0512 ms"), (0.512_34, "0.512 ms"),
        (5.1234, "5.12 ms"), (51.234, "51.2 ms"), (3963.0, "3963 ms"),
    ],
)  # fmt: skip
def test_format_ms(time_ms: float | None, text: str) -> None:
    assert format_ms(time_ms) == text


def test_plain_table() -> None:
    assert plain_table(["name", "ms", "result"], [["eager", "12.5", "-"], ["b", "3", "equal"]]) == (
        "name     ms  result\n-----  ----  ------\neager  12.5  -\nb         3  equal"
    )


def test_markdown_table() -> None:
    assert markdown_table(["name", "ms"], [["a|b", "1"]]) == (
        "| name | ms |\n| --- | ---: |\n| a\\|b | 1 |"
    )
