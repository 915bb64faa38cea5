"""Parameter types: annotations, defaults, and the kinds of what the caller gives."""

# ruff: noqa
from __future__ import annotations

from typing import List, Optional, Sequence, Tuple, TypeVar, Union

import pytest
import torch
from torch import Tensor

from lowtide.frontend import torch_schemas
from lowtide.frontend.script.decorators import ignore
from lowtide.frontend.script.language import annotate, is_scripting
from lowtide.frontend.script.script import script_function, signature_types
from lowtide.ir.interpret import run
from lowtide.ir.types import FLOAT, INT, NONE, STR, TENSOR, ListType, OptionalType, tuple_of


def annotated(
    a: Tensor,
    b: "torch.Tensor",
    c: Optional[Tensor],
    d: Tensor | None,
    e: List[int],
    f: list[Tensor],
    g: Tuple[int, float],
    h: Sequence[float],
    i: Union[Tensor, None],
    j: torch.dtype,
    k: Unknown,  # noqa: F821
    l,  # noqa: E741
    m=3,
    n=0.5,
    o="sum",
    p=None,
):
    return a


def test_annotations_and_defaults() -> None:
    types = [str(t) for t in signature_types(annotated).values()]
    assert types == [
        "Tensor",
        "Tensor",
        "Optional[Tensor]",
        "Optional[Tensor]",
        "List[int]",
        "List[Tensor]",
        "(int, float)",
        "List[float]",
        "Optional[Tensor]",
        "dtype",
        "Tensor",
        "Tensor",
        "int",
        "float",
        "str",
        "Optional[Tensor]",
    ]


def test_what_the_caller_gives_wins() -> None:
    types = signature_types(annotated, [None, None, NONE, TENSOR, None, ListType(TENSOR)])
    assert (types["c"], types["d"]) == (NONE, TENSOR)
    assert signature_types(annotated, [INT])["a"] == INT


def test_defaults_are_kept() -> None:
    fn = script_function(annotated)
    assert fn.defaults == {"m": 3, "n": 0.5, "o": "sum", "p": None}
    assert str(fn).startswith("def annotated(%a: Tensor, %b: Tensor, %c: Optional[Tensor], ")


def optional(x, mask: Optional[Tensor] = None):
    if mask is None:
        return x
    return x * mask


def test_none_is_decided_while_building() -> None:
    assert [op.name for op in script_function(optional, [TENSOR, NONE]).walk()].count("if") == 0
    assert [op.name for op in script_function(optional, [TENSOR, TENSOR]).walk()].count("if") == 0
    fn = script_function(optional, [TENSOR, OptionalType(TENSOR)])
    assert [op.name for op in fn.walk()].count("if") == 1
    x = torch.ones(2)
    assert torch.equal(run(fn, x), x)
    assert torch.equal(run(fn, x, x + 1), x + 1)


def scripting(x):
    if is_scripting() and torch.jit.is_scripting():
        xs = annotate(List[Tensor], [])
        xs.append(x)
        return xs
    return [x, x]


def test_is_scripting() -> None:
    assert len(run(script_function(scripting), torch.ones(1))) == 1


@pytest.mark.parametrize(
    ("target", "args", "types"),
    [
        ("torch.cumsum", (TENSOR, INT), ["Tensor"]),
        ("Tensor.sort", (TENSOR,), ["Tensor", "Tensor"]),
        ("torch.topk", (TENSOR, INT), ["Tensor", "Tensor"]),
        ("F.conv2d", (TENSOR, TENSOR), ["Tensor"]),
        ("torch.linalg.svd", (TENSOR,), ["Tensor", "Tensor", "Tensor"]),
        ("torch.unbind", (TENSOR,), ["List[Tensor]"]),
        ("Tensor.is_contiguous", (TENSOR,), ["bool"]),
        ("Tensor.stride", (TENSOR,), ["List[int]"]),
        ("torch.split", (TENSOR, ListType(INT)), ["List[Tensor]"]),
        ("torch.randn", (INT, INT), ["Tensor"]),
        ("F.dropout", (TENSOR, FLOAT), ["Tensor"]),
        ("torch.einsum", (STR, TENSOR, TENSOR), ["Tensor"]),
        ("torch.meshgrid", (TENSOR, TENSOR), ["List[Tensor]"]),
        ("torch.broadcast_tensors", (TENSOR, TENSOR), ["List[Tensor]"]),
        ("Tensor.split", (TENSOR, INT), ["List[Tensor]"]),
        ("torch.allclose", (TENSOR, TENSOR), ["bool"]),
        ("torch.var_mean", (TENSOR,), ["Tensor", "Tensor"]),
    ],
)
def test_results_of_torch_functions(target: str, args: tuple, types: list[str]) -> None:
    found = torch_schemas.results_of(target, args, {})
    assert [str(t) for t in found.types] == types


def test_sort_has_names() -> None:
    assert torch_schemas.results_of("Tensor.sort", (TENSOR,), {}).names == ("values", "indices")
    assert tuple_of(INT, INT) != ListType(INT)


Given = TypeVar("Given")


@ignore
def give_back(flag: bool, given: Given) -> Given:
    return given


def test_a_function_left_to_python_gives_what_it_is_given() -> None:
    def of_tensors(x: Tensor):
        return give_back(True, x).add(1)

    def of_numbers(n: int):
        return give_back(flag=False, given=[n])

    for fn, expected in ((of_tensors, TENSOR), (of_numbers, ListType(INT))):
        (call,) = (op for op in script_function(fn).walk() if op.name == "py.call")
        assert call.result.type == expected
