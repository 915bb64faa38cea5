"""What is outside the language: the exact words, the caret, the remedy."""

# ruff: noqa
from __future__ import annotations

import struct
import textwrap
from collections.abc import Callable
from typing import Any, Dict, List

import pytest
import torch

import lowtide as lt
from lowtide.errors import CompileError
from lowtide.frontend.script.script import check_syntax, script_function
from lowtide.ir.types import INT, TENSOR

WEIGHT = torch.ones(3)


def _message(fn: Callable[..., Any]) -> str:
    with pytest.raises(CompileError) as caught:
        script_function(fn)
    first, _, rest = str(caught.value).partition("\n")
    assert first.startswith(f"{__file__}:{caught.value.loc.line}: ")
    return first.partition(": ")[2] + "\n" + rest


def _decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


ERRORS: list[tuple[Callable[..., Any], str]] = []


def error(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        ERRORS.append((fn, textwrap.dedent(text).strip("\n")))
        return fn

    return add


@error("""
    `yield` is not compiled
        yield x
        ^
    write instead: return a list or a tuple
""")
def uses_yield(x):
    yield x


@error("""
    `try` is not compiled
        try:
        ^
    write instead: a test before the call, with `if`
""")
def uses_try(x):
    try:
        return x
    except ValueError:
        return x


@error("""
    the name 'missing' is not defined
        return missing(x)
               ^
    write instead: an argument or a global of it
""")
def undefined(x):
    return missing(x)


@error("""
    'z' is used before it is assigned
        y = z + x
            ^
    write instead: `z = ...` first
""")
def used_before(x):
    y = z + x
    z = y
    return z


@error("""
    a Tensor has no attribute 'foo'
        return x.foo()
               ^
    write instead: an attribute of Tensor, or an annotation with the type that it really has
""")
def no_attribute(x):
    return x.foo()


@error("""
    `n + 'a'` does not take (int, str)
        return n + "a"
               ^
    write instead: str() of the int, or int() or float() of the str
""")
def bad_operands(n: int):
    return n + "a"


@error("""
    len does not take (int)
        return len(n)
               ^
    write instead: a list, a tuple, a dict, a str or a tensor
""")
def len_of_an_int(n: int):
    return len(n)


@error("""
    the name 'hh' is not defined
        return hh * 2  # noqa: F821
               ^
    write instead: `h`
""")
def no_such_name(x):
    h = torch.relu(x)
    return hh * 2  # noqa: F821


@error("""
    a value of type str has no attribute 'encode'
        return s.encode()
               ^
    write instead: a function marked `@lt.ignore` that does it, called in its place
""")
def no_method_of_the_language(s: str):
    return s.encode()


@error("""
    a value of type List[int] has no attribute 'push'
        xs.push(3)
        ^
    write instead: `append`
""")
def name_of_another_language(xs: List[int]):
    xs.push(3)


@error("""
    a value of type Dict[str, int] has no attribute 'has_key'
        return d.has_key("a")
               ^
    write instead: `in`
""")
def name_of_python_2(d: Dict[str, int]):
    return d.has_key("a")


@error("""
    a value of type str has no attribute 'reverse'
        return s.reverse()
               ^
    write instead: `[::-1]`
""")
def method_of_lists(s: str):
    return s.reverse()


@error("""
    a value of type List[int] has no attribute 'lenght'
        return x.shape.lenght
               ^
    write instead: `len(…)`
""")
def misspelt_length(x):
    return x.shape.lenght


@error("""
    the Python object struct.calcsize cannot be called in compiled code
        return x * struct.calcsize("i")
                   ^
    write instead: a function of PyTorch or math, a builtin, a Python `def`, or a function marked `@lt.ignore` that does it, called in its place
""")
def call_of_another_library(x):
    return x * struct.calcsize("i")


@error("""
    3 values are unpacked to 2 names
        a, b = (x, x, x)
        ^
    write instead: 3 names
""")
def bad_unpack(x):
    a, b = (x, x, x)
    return a


@error("""
    max() of one tensor, row by row
        return max(x)
               ^
    write instead: x.max()
""")
def python_max(x):
    return max(x)


class Outer:
    class Inner:
        @staticmethod
        @_decorated
        def method(
            x,
        ):
            é = x
            return é + é.foo


error("""
    a Tensor has no attribute 'foo'
        return é + é.foo
                   ^
        write instead: an attribute of Tensor, or an annotation with the type that it really has
""")(Outer.Inner.method)


@pytest.mark.parametrize(("fn", "text"), ERRORS, ids=[fn.__name__ for fn, _ in ERRORS])
def test_error_text(fn: Callable[..., Any], text: str) -> None:
    found = _message(fn).split("\n")
    expected = text.split("\n")
    assert [line.strip() for line in found] == _with_lines(fn, expected)
    caret = next((i for i, line in enumerate(found) if line.strip() == "^"), 0)
    wanted = next(i for i, line in enumerate(expected) if line.strip() == "^")
    code = found[caret - 1]
    assert found[caret].index("^") - (len(code) - len(code.lstrip())) == expected[wanted].index(
        "^"
    ) - (len(expected[wanted - 1]) - len(expected[wanted - 1].lstrip()))


def _with_lines(fn: Callable[..., Any], expected: list[str]) -> list[str]:
    with pytest.raises(CompileError) as caught:
        script_function(fn)
    line = caught.value.loc.line
    texts = [e.strip() for e in expected]
    for k in range(9):
        texts = [e.replace(f"{{line-{k}}}", str(line - k)) for e in texts]
    return texts


def test_syntax_is_checked_before_anything_is_compiled() -> None:
    with pytest.raises(CompileError, match="`yield` is not compiled"):
        check_syntax(uses_yield)
    check_syntax(undefined)  # only syntax


def test_lambda() -> None:
    with pytest.raises(CompileError) as caught:
        check_syntax(lambda x: x)
    assert "a lambda is not compiled" in str(caught.value)
    assert "check_syntax(lambda x: x)" in str(caught.value)


def _caret(text: str) -> str:
    """The code from the caret on."""
    _, code, caret, *_ = text.split("\n")
    return code[caret.index("^") :]


def test_lambda_beside_others() -> None:
    def shown(f: Callable[..., Any]) -> str:
        with pytest.raises(CompileError) as caught:
            check_syntax(f)
        return _caret(str(caught.value))

    both = (lambda x: x + 1, "a", lambda x: x and x.sum())
    assert shown(both[0]).startswith("lambda x: x + 1")
    assert shown(both[2]).startswith("lambda x: x and")
    inner = (lambda name: lambda x: [name, x])("lambda")
    assert shown(inner).startswith("lambda x: [name")
    assert shown(lambda: lambda y: y).startswith("lambda: lambda y")


def test_no_source() -> None:
    names: dict[str, Any] = {}
    exec("def f(x):\n    return x", names)
    with pytest.raises(CompileError, match="the source of 'f' .* is not available"):
        script_function(names["f"])
    with pytest.raises(CompileError, match="'len' is not a Python function"):
        script_function(len)


def test_too_many_arguments() -> None:
    with pytest.raises(CompileError, match="takes 1 arguments, 2 were given"):
        script_function(no_attribute, [TENSOR, INT])


def test_error_in_an_inlined_function_points_into_it() -> None:
    def outer(x):
        return no_attribute(x)

    with pytest.raises(CompileError) as caught:
        script_function(outer)
    assert caught.value.loc.function == "no_attribute"
    assert caught.value.loc.text.strip() == "return x.foo()"


def of_lowtide(x):
    lt.patch_torch_jit()
    return x + 1


def test_a_library_function_is_refused_at_the_users_line() -> None:
    with pytest.raises(CompileError, match=r"patch_torch_jit\(\) is not compiled") as caught:
        lt.script(of_lowtide)(torch.ones(3))
    assert caught.value.loc.file == __file__
