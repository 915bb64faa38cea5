"""What ops give on the meta device is remembered: it must be what they give when asked again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.memory import meta_cache
from tests.memory.calls import tensors
from tests.memory.cases import CASES

aten = torch.ops.aten
PROGRAMS = (
    "block", "unet", "convolutions", "gru", "lstm_deep", "transformer layer", "encoder at rest",
    "product_of_rows", "ordered", "gathered_rows", "halves", "solved",
    "frequencies_and_back", "layer_normed", "larger", "pooled", "smallest_k", "dropped", "mixed",
)  # fmt: skip


def form(x: Any) -> Any:
    if isinstance(x, Tensor):
        nbytes = x.untyped_storage().nbytes()
        return x.shape, x.stride(), x.dtype, x.layout, x.storage_offset(), nbytes, x.device
    return [form(item) for item in x] if isinstance(x, tuple | list) else x


def storages(x: Any) -> list[int]:
    return [t.untyped_storage()._cdata for t in tensors(x)]


class Known(dict[Any, Any]):
    """What is remembered; counts what is found."""

    hits = 0

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        self.hits += found is not None
        return found


@pytest.fixture
def asked_again(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Each answer from memory is compared with PyTorch's; which ops gave how many."""
    plain, known = meta_cache.run, Known()
    monkeypatch.setattr(meta_cache, "_given", known)
    seen: Counter[Any] = Counter()

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        known.hits = 0
        result = plain(func, args, kwargs)
        if known.hits:
            again = func(*args, **kwargs)
            assert form(again) == form(result), func
            if func._schema.is_mutable:
                assert again is args[0]
                assert result is args[0]
            elif again is not args[0]:
                assert set(storages(again)).isdisjoint(storages(args))
                assert set(storages(result)).isdisjoint(storages(args))
                assert len(set(storages(result))) == len(storages(result))
            seen[func] += 1
        return result

    monkeypatch.setattr(meta_cache, "run", run)
    return seen


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_pytorch_says(name: str, asked_again: Counter[Any]) -> None:
    chosen = next(c for c in CASES if c.name == name)
    torch.manual_seed(0)
    made: Any = chosen.make()
    args = chosen.inputs()
    if chosen.grad:
        for x in tensors(list(args)):
            if x.is_floating_point():
                x.requires_grad_()
    first = lt.script(made).memory(*args).peak_bytes
    asked_again.clear()
    assert lt.script(made).memory(*args).peak_bytes == first
    assert asked_again.total() > 0


def test_what_is_known_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (meta(4), meta(4, 5), meta(5, 4))
    first = meta_cache.run(aten.addmm.default, args, {})
    monkeypatch.setattr(torch._ops.OpOverload, "__call__", None)
    assert form(meta_cache.run(aten.addmm.default, args, {})) == form(first)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def of_int_tensor(number: Any) -> torch.dtype:
    return meta_cache.run(aten.add.Tensor, (meta(3, dtype=torch.int64), number), {}).dtype


def test_numbers_are_told_apart() -> None:
    for _ in range(2):
        assert of_int_tensor(1) is torch.int64
        assert of_int_tensor(1.0) is torch.float32
        assert of_int_tensor(True) is torch.int64
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert of_int_tensor(1.0) is torch.float64
    finally:
        torch.set_default_dtype(before)


def test_forms_are_told_apart() -> None:
    for x in (meta(4, 6), meta(6, 4).t(), meta(4, 6, dtype=torch.bfloat16), meta(1, 6)) * 2:
        found = meta_cache.run(aten.exp.default, (x,), {})
        assert form(found) == form(torch.exp(x))


def test_what_changes_the_form_of_its_argument_is_done() -> None:
    for _ in range(2):
        x = meta(2, 3)
        assert meta_cache.run(aten.t_.default, (x,), {}) is x
        assert x.shape == (3, 2)


def test_views_and_numbers_are_asked_for() -> None:
    for _ in range(2):
        x = meta(2, 3)
        view = meta_cache.run(aten._unsafe_view.default, (x, [6]), {})
        assert storages(view) == storages(x)
        one = torch.ones((), dtype=torch.float64)
        assert meta_cache.run(aten.mul.Tensor, (x, one), {}).dtype is torch.float32


@torch.library.custom_op("lowtide_tests::as_many_as", mutates_args=())
def as_many_as(x: Tensor) -> Tensor:
    return x.new_zeros(SIZE[0])


@as_many_as.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(SIZE[0])


SIZE = [3]


def test_operators_of_others_are_asked_each_time() -> None:
    op = torch.ops.lowtide_tests.as_many_as.default
    assert meta_cache.run(op, (meta(2),), {}).shape == (3,)
    SIZE[0] = 5
    assert meta_cache.run(op, (meta(2),), {}).shape == (5,)


def test_results_that_are_not_dense_are_pytorchs() -> None:
    places = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    op = aten._sparse_coo_tensor_with_dims_and_tensors.default
    args = (2, 0, [4, 4], places, meta(3))
    named = {"dtype": torch.float32, "layout": torch.sparse_coo, "device": torch.device("meta")}
    for _ in range(2):
        assert meta_cache.run(op, args, named).layout is torch.sparse_coo
    zeros = torch._efficientzerotensor((3,), device="meta")
    for _ in range(2):
        assert meta_cache.run(aten.mul.Tensor, (zeros, meta(3)), {})._is_zerotensor()


def test_many_forms_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_cache, "_MOST", 4)
    monkeypatch.setattr(meta_cache, "_given", {})
    for n in range(2, 20):
        assert meta_cache.run(aten.exp.default, (meta(n),), {}).shape == (n,)
        assert len(meta_cache._given) <= 4


def test_errors_are_pytorchs_each_time() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"broadcast|must match"):
            meta_cache.run(aten.add.Tensor, (meta(2), meta(3)), {})
