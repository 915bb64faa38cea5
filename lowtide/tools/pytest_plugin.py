"""The pytest plugin: limits on the memory of a test, predicted and measured.

In: tests with the markers `lowtide_peak` and `lowtide_limit`. Out: a failure where a limit is
exceeded, which names the lines that hold the most.

    @pytest.mark.lowtide_peak("24 MB")       predicted, of each call of a compiled function
    @pytest.mark.lowtide_limit("24 MB")      measured, of the whole test
    def test_loss(): ...

Nothing of PyTorch is imported before a marked test runs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any, Final, cast

import pytest

from lowtide.errors import LowtideError
from lowtide.memory.sizes import budget_bytes

PEAK: Final = "lowtide_peak"
LIMIT: Final = "lowtide_limit"
_HELP: Final = {
    PEAK: "fail if the predicted peak of a call of a Lowtide-compiled function is above bytes",
    LIMIT: "fail if the test allocates more than bytes at its measured peak",
}
_MOST_LINES = 5  # of what is alive at the peak


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    for name, text in _HELP.items():
        config.addinivalue_line("markers", f'{name}(bytes): {text}, such as "24 MB"')


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Report a marker that makes no sense when its file is collected."""
    made = yield
    items = cast("list[object]", made if isinstance(made, list) else [made])
    for item in items:
        if isinstance(item, pytest.Item):
            for name in _HELP:
                _limit_bytes(item, name)
    return cast("object", made)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test and check its limits, unless it fails by itself."""
    peak_bytes, limit_bytes = _limit_bytes(item, PEAK), _limit_bytes(item, LIMIT)
    if peak_bytes is None and limit_bytes is None:
        return (yield)
    with ExitStack() as around:
        calls: Any = None
        profile: Any = None
        if peak_bytes is not None:
            from lowtide.budget.observed_calls import predicted_calls

            calls = around.enter_context(predicted_calls())
        if limit_bytes is not None:
            import lowtide

            profile = around.enter_context(lowtide.profile())
        result = yield
    faults: list[str] = []
    if peak_bytes is not None:
        faults += _predicted_fault(calls.largest, peak_bytes)
    if limit_bytes is not None:
        faults += _measured_fault(profile, limit_bytes)
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
    return result


def _limit_bytes(item: pytest.Item, name: str) -> int | None:
    """Return the limit that a marker sets; None without the marker. Raises CollectError."""
    mark = item.get_closest_marker(name)
    if mark is None:
        return None
    example = f'@pytest.mark.{name}("24 MB")'
    if len(mark.args) != 1 or mark.kwargs:
        raise pytest.Collector.CollectError(
            f"{item.nodeid}: {name} takes one argument, a number of bytes: {example}"
        )
    try:
        return budget_bytes(mark.args[0], name)
    except LowtideError as fault:
        text = str(fault).replace("is not a budget", "is not a limit")
        raise pytest.Collector.CollectError(f"{item.nodeid}: {text}: {example}") from None


def _predicted_fault(largest: Any, limit_bytes: int) -> list[str]:
    if largest is None:
        return [f"{PEAK}: the test called no function that Lowtide compiles, so nothing is known"]
    name, plan = largest
    if plan.peak_bytes <= limit_bytes:
        return []
    head = (
        f"{PEAK}: a call of {name}() has a predicted peak of {plan.peak_bytes:,} bytes, "
        f"the limit is {limit_bytes:,}"
    )
    return [head, *_first(list(map(str, plan.buffers)))]


def _measured_fault(profile: Any, limit_bytes: int) -> list[str]:
    if profile.peak_bytes <= limit_bytes:
        return []
    head = (
        f"{LIMIT}: the test allocates {profile.peak_bytes:,} bytes at its peak, "
        f"the limit is {limit_bytes:,}"
    )
    return [head, *_first([f"  {one}" for one in profile.live_at_peak()]), *profile.remarks]


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"  … and {more} more"] if more > 0 else [])]
