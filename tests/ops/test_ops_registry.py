"""Records: every source exists in this PyTorch, signatures agree with PyTorch's, lookup by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_eager import title

from lowtide.ops.registry import (
    REQUIRED,
    OpRecord,
    all_records,
    by_name,
    lookup,
    parse_signature,
    resolve,
)

RECORDS = list(all_records())


Z = torch.complex(torch.arange(6.0), torch.arange(6.0).flip(0) - 2).reshape(2, 3)
TURNED = torch.arange(6).reshape(3, 2).t()  # no view of it has the sizes of PLAIN
PLAIN = torch.zeros(3, 2)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_record(record: OpRecord) -> None:
    for source in record.sources:
        assert resolve(source) is not None, source
        assert record in lookup(source)
    if record.lower is None:
        assert record.name == "put_in_part"  # which a pass adds, for PyTorch to run
        return
    assert record.doc or record.kind in ("pointwise", "composite", "reduction", "factory", "view",
                                         "copy")  # fmt: skip
    if record.name != "getitem":
        assert parse_signature(record.signature)[0] == record.params
        names = [p.name for p in record.params]
        assert len(set(names)) == len(names)
        takes = inspect.signature(record.lower).parameters.values()
        if not any(p.kind is p.VAR_POSITIONAL for p in takes):
            most = [p for p in takes if p.kind is p.POSITIONAL_OR_KEYWORD]
            least = [p for p in most if p.default is p.empty]
            assert len(least) <= len(record.params) + 1 <= len(most)


PYTHON_FUNCTIONS = [
    (r, s) for r in RECORDS for s in r.sources if inspect.isfunction(resolve(s)) and s[0] == "F"
]


@pytest.mark.parametrize(("record", "source"), PYTHON_FUNCTIONS, ids=lambda v: str(title(v))[:40])
def test_signature_is_pytorch_s(record: OpRecord, source: str) -> None:
    """Names, order and defaults of what is written in Python in PyTorch."""
    fn = resolve(source)
    fn = inspect.getclosurevars(fn).nonlocals.get("if_false", fn)  # of two that a flag chooses
    theirs = [p for p in inspect.signature(fn).parameters.values() if p.name != "out"]
    for mine, other in zip(record.params, theirs, strict=True):
        assert other.name in mine.keywords
        default = REQUIRED if other.default is other.empty else other.default
        assert mine.default == default or (mine.default is REQUIRED and default is REQUIRED)


def test_lookup_gives_overloads() -> None:
    assert {r.name for r in lookup("torch.max")} == {"max", "max.dim", "max.other"}
    assert [r.name for r in lookup("torch.nn.functional.relu")] == ["relu"]
    assert [r.name for r in lookup("torch.Tensor.size")] == ["size", "size.dim"]
    assert lookup("torch.sort") == ()


def test_parse_signature() -> None:
    params, results, names = parse_signature(
        "(self: Tensor, *shape: int[], p: Scalar|str? = 'fro', *, keepdim: bool = False, "
        "e: float = 1e-05) -> (Tensor values, Tensor indices)"
    )
    assert [p.name for p in params] == ["self", "shape", "p", "keepdim", "e"]
    assert params[1].variadic
    assert params[2].types == ("Scalar", "str")
    assert params[2].optional
    assert params[3].keyword_only
    assert params[4].default == 1e-05
    assert results == ("Tensor", "Tensor")
    assert names == ("values", "indices")
    with pytest.raises(ValueError):
        parse_signature("self: Tensor")


def test_eager_leaves_out_trailing_defaults() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert by_name("sum").eager(x, None, False, None) == 15
    assert by_name("sum").eager(x, [1], True, torch.float64).shape == (2, 1)
    assert by_name("reshape").eager(x, [3, -1]).shape == (3, 2)
    assert by_name("shape").eager(x) == (2, 3)
    assert by_name("mT").eager(x).shape == (3, 2)


def required(record: OpRecord) -> list[str]:
    return [p.types[0] for p in record.params if p.default is REQUIRED]


SYNONYMS = [
    record
    for record in RECORDS
    if len(record.sources) > 1 and required(record) in (["Tensor"], ["Tensor", "Tensor"])
]


def outcome(call: Callable[..., Any], *operands: object) -> object:
    try:
        return call(*operands)
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        return "raises"


@pytest.mark.parametrize("operand", [Z, Z[0], TURNED], ids=["complex", "vector", "turned"])
@pytest.mark.parametrize("record", SYNONYMS, ids=lambda r: r.name)
def test_names_of_a_record_mean_the_same(record: OpRecord, operand: torch.Tensor) -> None:
    """Also of what `lower` does not take, which PyTorch computes under the record's name."""
    count = len(required(record))
    operands = (operand, PLAIN if operand is TURNED else operand)[:count]
    wanted = outcome(record.eager, *operands, *(p.default for p in record.params[count:]))
    for source in record.sources:
        fn = resolve(source)
        found = outcome(fn if callable(fn) else fn.__get__, *operands)
        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted, source
        else:
            torch.testing.assert_close(found, wanted, equal_nan=True, check_stride=True, msg=source)
