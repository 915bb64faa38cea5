"""The made key functions give what `exact_key` gives; where a tensor is special, it decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lowtide.execute.keys import key_function, whole_key
from lowtide.specialise.signature import Ineligible

X = torch.rand(4, 5)
VALUES: list[tuple[Any, ...]] = [
    (),
    (X,),
    (X.T,),
    (X[:, :3], X[::2], X.expand(3, 4, 5)),
    (nn.Parameter(X, requires_grad=False), X.double(), torch.tensor(1)),
    (X, 3, -1, True, None, "mean", torch.float32, torch.device("cpu"), 1 << 50),
    (0.5, -0.0, float("nan"), float("inf")),
    (X.clone().requires_grad_(), X),
    ([X, 2], X, (1, 1.5), {"a": X, 3: (X.T,)}, torch.Size([1])),
    ([], (), {}),
]
NEGATED = torch.complex(X, X).conj().imag  # lazily
SPECIAL = {
    "sparse": X.to_sparse(),
    "meta": torch.empty(3, device="meta"),
    "negated": NEGATED,
    "nested": torch.nested.nested_tensor([X, X[:2]]),
}


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("values", VALUES, ids=len)
def test_the_same_key(values: tuple[Any, ...], floats: bool) -> None:
    made = key_function(tuple(map(type, values)), floats)
    assert made is not None
    assert made(values) == whole_key(values, floats)
    assert hash(made(values)) == hash(whole_key(values, floats))


@pytest.mark.parametrize("name", SPECIAL)
def test_special_tensors_are_left_to_exact_key(name: str) -> None:
    special = SPECIAL[name]
    made = key_function((torch.Tensor, torch.Tensor), False)
    assert made is not None
    for values in ((X, special), (special, X)):
        with pytest.raises(Ineligible) as expected:
            whole_key(values, False)
        with pytest.raises(Ineligible) as got:
            made(values)
        assert str(got.value) == str(expected.value)


def test_objects_have_no_key_function() -> None:
    assert key_function((torch.Tensor, object), False) is None


def test_a_special_tensor_in_a_list_is_found() -> None:
    made = key_function((torch.Tensor, list), False)
    assert made is not None
    with pytest.raises(Ineligible):
        made((X, [NEGATED]))


def test_other_values_other_keys() -> None:
    made = key_function((torch.Tensor, int), False)
    assert made is not None
    keys = [made(v) for v in ((X, 1), (X, 2), (X.T, 1), (X.double(), 1), (X[:, :4], 1))]
    assert len(set(keys)) == len(keys)
