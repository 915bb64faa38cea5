"""Tensors of every kind that PyTorch makes: layouts, quantized, nested, complex, subclasses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lowtide as lt
from lowtide.memory.scopes.tensor_trees import tensors_in

pytestmark = pytest.mark.filterwarnings("ignore")


class Sub(torch.Tensor):
    pass


class Made(torch.Tensor):
    """By `_make_subclass` of what may be a list."""

    @staticmethod
    def __new__(cls, data: Any) -> Made:
        return torch.Tensor._make_subclass(cls, torch.as_tensor(data))


class Noted(Sub):
    """With an `__init__` of its own, one of a hierarchy."""

    def __init__(self, data: Any, note: str = "") -> None:
        super().__init__()
        self.note = note


class Deeper(Noted):
    def __init__(self, data: Any) -> None:
        super().__init__(data, note="deeper")


class Same(torch.Tensor):
    """Gives back what is one already."""

    def __new__(cls, data: Any) -> Any:
        return data if isinstance(data, cls) else torch.as_tensor(data).as_subclass(cls)


class Single(torch.Tensor):
    """One for all."""

    it: Any = None

    def __new__(cls) -> Any:
        cls.it = torch.ones(2).as_subclass(cls) if cls.it is None else cls.it
        return cls.it


class SingleNoted(Single):
    it: Any = None

    def __init__(self) -> None:
        super().__init__()


def ragged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])


def complex_ones() -> torch.Tensor:
    return torch.ones(3, dtype=torch.complex64)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.rand(3, 4), 0.1, 3, torch.qint8)


KINDS: dict[str, Callable[[], Any]] = {
    "quantized": quantized,
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.rand(3, 4), torch.full((3,), 0.1), torch.zeros(3, dtype=torch.long), 0, torch.quint8
    ),
    "dequantized": lambda: quantized().dequantize(),
    "int_repr": lambda: quantized().int_repr(),
    "mkldnn": lambda: torch.rand(3, 4).to_mkldnn().relu(),
    "COO": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 4)).coalesce(),
    "values of COO": lambda: torch.rand(3, 4).to_sparse().values(),
    "a sparse leaf": lambda: torch.rand(3, 4).to_sparse().requires_grad_(),
    "CSR": lambda: torch.rand(3, 4).to_sparse_csr(),
    "BSR": lambda: torch.rand(4, 4).to_sparse_bsr((2, 2)),
    "nested": ragged,
    "parts of nested": lambda: list(ragged().unbind()),
    "view_as_real": lambda: torch.view_as_real(complex_ones()),
    "conj": lambda: complex_ones().conj(),
    "imag of conj": lambda: complex_ones().conj().imag,
    "float8": lambda: torch.empty(3, dtype=torch.float8_e4m3fn),
    "a subclass of a list": lambda: Sub([1.0, 2.0]),
    "a subclass of a tensor": lambda: Sub(torch.rand(3)),
    "a subclass of a size": lambda: Sub(3),
    "a subclass with __new__": lambda: Made([1.0, 2.0]),
    "a subclass with __init__": lambda: Noted([1.0, 2.0]),
    "a subclass of one": lambda: Deeper([1.0, 2.0]),
    "what may be one already": lambda: Same(Same([1.0, 2.0])),
    "computed by a subclass": lambda: Sub([1.0, 2.0]) + 1,
    "Variable": lambda: torch.autograd.Variable(torch.rand(2)),
    "functionalize": lambda: torch.func.functionalize(torch.sin)(torch.rand(3)),
    "grad_and_value": lambda: torch.func.grad_and_value(torch.sum)(torch.rand(3)),
    "jacfwd": lambda: torch.func.jacfwd(torch.sin)(torch.rand(3)),
    "cond": lambda: torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.rand(3),)),
    "checkpoint": lambda: torch.utils.checkpoint.checkpoint(
        torch.sin, torch.rand(3, requires_grad=True), use_reentrant=True
    ),
    "mapped from a file": lambda: None,
}


@pytest.fixture(scope="module", autouse=True)
def written(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("kinds") / "ones.pt"
    torch.save(torch.ones(3), path)
    KINDS["mapped from a file"] = lambda: torch.load(path, mmap=True)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_the_scopes(kind: str, stats: lt.ScopeStatistics) -> None:
    make = KINDS[kind]
    make()  # what PyTorch makes once for all
    gc.collect()
    stats.reset()
    with lt.dispose_scope() as scope:
        made = list(tensors_in(make()))
        assert all(scope.contains(tensor) for tensor in made)
    for tensor in made:
        with pytest.raises(lt.DisposedTensorError, match=r"test_kinds\.py") as caught:
            tensor.sum()
        assert caught.value.birth.file == __file__
        assert "disposed tensor" in repr(tensor)
    assert stats.thread_total_live == 0

    with lt.dispose_scope():
        with lt.dispose_scope() as scope:
            moved = scope.move_to_outer(make())
        assert not any(lt.is_disposed(tensor) for tensor in tensors_in(moved))
        repr(moved)
        with lt.dispose_scope() as scope:
            detached = scope.detach(make())
    assert all(lt.is_disposed(tensor) for tensor in tensors_in(moved))
    assert not any(lt.is_disposed(tensor) for tensor in tensors_in(detached))
    repr(detached)
    live = [weakref.ref(tensor) for tensor in tensors_in(detached)]
    assert stats.thread_total_live == len(live)
    del detached
    gc.collect()
    assert all(ref() is None for ref in live)
    assert stats.thread_total_live == 0


@pytest.mark.parametrize("kind", [Single, SingleNoted])
def test_what_a_class_hands_out_again_is_not_the_scopes(kind: Any) -> None:
    lt.scope_statistics().stop()
    kind.it = None
    x, one = Same([1.0]), kind()
    with lt.dispose_scope() as scope:
        assert Same(x) is x
        assert kind() is one
        assert not scope.contains(x)
        assert not scope.contains(one)
    assert x.item() == 1
    assert one.tolist() == [1, 1]


def test_a_subclass_is_born_where_it_is_called() -> None:
    with lt.dispose_scope():
        made = Deeper([1.0])
    with pytest.raises(lt.DisposedTensorError) as caught:
        made.sum()
    assert caught.value.birth.text.strip() == "made = Deeper([1.0])"


def test_tensors_around_others_take_them_along() -> None:
    class Around(torch.Tensor):
        """The older way: no `__tensor_flatten__`."""

        inside: torch.Tensor

        @staticmethod
        def __new__(cls, inside: torch.Tensor) -> Around:
            made: Any = torch.Tensor._make_wrapper_subclass(cls, inside.shape)
            made.inside, made.itself = inside, made
            return made

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise NotImplementedError

    with lt.dispose_scope() as scope:
        data, mask = torch.ones(3), torch.tensor([True, False, True])
        masked = scope.detach(torch.masked.masked_tensor(data, mask))
        around = scope.detach(Around(torch.ones(2)))
        left = Around(torch.ones(2))
    assert masked.sum().get_data().item() == 2
    assert around.inside.tolist() == [1, 1]
    assert lt.is_disposed(left.inside)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_pinned_batches_are_the_scopes(workers: int, stats: lt.ScopeStatistics) -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(6.0)), batch_size=2, pin_memory=True, num_workers=workers
    )
    gc.collect()
    stats.reset()
    with lt.dispose_scope() as scope:
        batches = [batch for (batch,) in loader]
        assert all(scope.contains(batch) for batch in batches)
        assert sum(batch.sum().item() for batch in batches) == 15
    assert all(lt.is_disposed(batch) for batch in batches)
    del batches
    gc.collect()
    assert stats.thread_total_live == 0
