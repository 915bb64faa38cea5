"""`warnings.warn` in a program names the line that it names in Python, also out of a file."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


def deprecated(text: str) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    warnings.warn(text, category=RuntimeWarning, stacklevel=1)
    warnings.warn(text)  # noqa: B028


class Warns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        deprecated("first")
        if x.sum() > 0:
            deprecated("second")
        return x


def shown(run: Any) -> list[tuple[object, ...]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(torch.ones(2))
    return [(w.category, str(w.message), w.filename, w.lineno) for w in found]


def test_warnings_are_at_the_users_line() -> None:
    made = lt.script(Warns())
    file = io.BytesIO()
    lt.save(made, file)
    file.seek(0)
    assert len(shown(Warns())) == 6
    assert shown(made) == shown(Warns())
    assert shown(lt.load(file)) == shown(Warns())


def test_filters_are_obeyed() -> None:
    made = lt.script(Warns())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            made(torch.ones(2))
    assert len(found) == 6
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=__name__, category=RuntimeWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(RuntimeWarning, match="first"):
            made(torch.ones(2))


def test_many_programs_are_warned_of_once() -> None:
    """Such as one for each function that is passed. The warning names what keeps changing."""

    def times(k: int) -> Any:
        return lambda x: x * k

    @lt.script
    def apply(x: int, fn: Any) -> int:
        return fn(x)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert [apply(2, times(k)) for k in range(40)] == [2 * k for k in range(40)]
    (message,) = [str(w.message) for w in found]
    assert message.startswith("apply was compiled 32 times, the last time because type of `fn` was")


class Red:
    text = ""


class Green:
    text = ""


class Blue:
    text = ""


def test_one_name_of_three_classes_is_warned_of() -> None:
    """All three change each time, so that the count of the name goes past the limit."""

    @lt.script
    def total() -> int:
        return len(Red.text) + len(Green.text) + len(Blue.text)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for k in range(12):
            Red.text = Green.text = Blue.text = "x" * k
            assert total() == 3 * k
    (message,) = [str(w.message) for w in found]
    assert message.startswith("total is recompiled whenever `text` changes")
