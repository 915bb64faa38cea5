"""A disposed tensor raises wherever Python touches it: never a crash, never values."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing.reduction
import operator
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lowtide as lt


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2


@lt.script
def compiled(a, b):
    return (a[:, None] - b[None, :]).abs().sum()


def a_disposed_tensor(*shape: int) -> torch.Tensor:
    with lt.dispose_scope():
        made = torch.ones(*(shape or (2, 2)))
    return made  # noqa: RET504 - made and ended on two lines


def ones() -> torch.Tensor:
    return torch.ones(2, 2)


def iterate(t: torch.Tensor) -> None:
    for _ in t:
        pass


WAYS: dict[str, Callable[[Any], Any]] = {
    # attributes
    "shape": lambda t: t.shape,
    "dtype": lambda t: t.dtype,
    "device": lambda t: t.device,
    "data": lambda t: t.data,
    "grad": lambda t: t.grad,
    "grad_fn": lambda t: t.grad_fn,
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "T": lambda t: t.T,
    "_version": lambda t: t._version,
    "__dict__": lambda t: t.__dict__,
    "no such name": lambda t: t.nonsense,
    "hasattr": lambda t: hasattr(t, "shape"),
    "set an attribute": lambda t: setattr(t, "x", 1),
    "set requires_grad": lambda t: setattr(t, "requires_grad", True),
    "set data": lambda t: setattr(t, "data", ones()),
    "set grad": lambda t: setattr(t, "grad", ones()),
    "shape of the class": lambda t: torch.Tensor.shape.__get__(t),
    # methods
    "size": lambda t: t.size(),
    "item": lambda t: t.item(),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "detach": lambda t: t.detach(),
    "clone": lambda t: t.clone(),
    "to": lambda t: t.to(torch.float64),
    "cpu": lambda t: t.cpu(),
    "view": lambda t: t.view(-1),
    "backward": lambda t: t.backward(),
    "register_hook": lambda t: t.register_hook(print),
    "data_ptr": lambda t: t.data_ptr(),
    "untyped_storage": lambda t: t.untyped_storage(),
    "resize_": lambda t: t.resize_(4),
    "set_": lambda t: t.set_(),
    "add_": lambda t: t.add_(1),
    "share_memory_": lambda t: t.share_memory_(),
    "method of the class": lambda t: torch.Tensor.add(t, 1),
    "as_subclass of the class": lambda t: torch.Tensor.as_subclass(t, torch.Tensor),
    # operators
    "t + 1": lambda t: t + 1,
    "1 + t": lambda t: 1 + t,
    "x + t": lambda t: ones() + t,
    "x @ t": lambda t: ones() @ t,
    "x += t": lambda t: operator.iadd(ones(), t),
    "t += 1": lambda t: operator.iadd(t, 1),
    "-t": lambda t: -t,
    "abs": abs,
    "t == 1": lambda t: t == 1,
    "x == t": lambda t: ones() == t,
    "t < 1": lambda t: t < 1,
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "len": len,
    "iter": iterate,
    "in": lambda t: 1 in t,
    "reversed": reversed,
    "t[0]": lambda t: t[0],
    "t[0] = 1": lambda t: operator.setitem(t, 0, 1),
    "x[t]": lambda t: ones()[t],
    "x[0] = t": lambda t: operator.setitem(ones(), 0, t),
    "list[t]": lambda t: [1, 2][t],
    "format": lambda t: f"{t:.2f}",
    # functions
    "torch.add": lambda t: torch.add(ones(), t),
    "torch.cat": lambda t: torch.cat([ones(), t]),
    "torch.stack": lambda t: torch.stack((t, ones())),
    "out=": lambda t: torch.add(ones(), ones(), out=t),
    "torch.tensor": lambda t: torch.tensor(t),
    "torch.tensor of a list": lambda t: torch.tensor([t]),
    "torch.as_tensor": lambda t: torch.as_tensor(t),
    "torch.Tensor": lambda t: torch.Tensor(t),
    "torch.LongTensor": lambda t: torch.LongTensor(t),
    "torch.save": lambda t: torch.save(t, io.BytesIO()),
    "torch.ops": lambda t: torch.ops.aten.add.Tensor(ones(), t),
    "torch.where": lambda t: torch.where(ones() > 0, t, 0.0),
    "torch.einsum": lambda t: torch.einsum("ij,jk->ik", ones(), t),
    "foreach": lambda t: torch._foreach_add([ones(), t], 1.0),
    "F.linear": lambda t: F.linear(ones(), t),
    "F.relu": F.relu,
    "F.mse_loss": lambda t: F.mse_loss(ones(), t),
    "nn.Linear": lambda t: torch.nn.Linear(2, 2)(t),
    "nn.Parameter": lambda t: torch.nn.Parameter(t),
    "autograd.backward": torch.autograd.backward,
    "autograd.grad": lambda t: torch.autograd.grad(ones().requires_grad_().sum(), t),
    "autograd.Function": lambda t: Double.apply(t),
    "x.grad = t": lambda t: setattr(ones(), "grad", t),
    "copy_": lambda t: ones().copy_(t),
    "set_ from": lambda t: torch.empty(0, device="meta").set_(t),
    "vmap": lambda t: torch.vmap(torch.sin)(t),
    "a compiled function": lambda t: compiled(t[0], torch.ones(3)),
    "a compiled function, direct": lambda t: compiled(torch.ones(3), t),
    "torch.optim": lambda t: torch.optim.SGD([t], lr=0.1),
    "lt.alias": lt.alias,
    # the world outside
    "np.asarray": np.asarray,
    "np.array": np.array,
    "np.add": lambda t: np.add(np.ones((2, 2)), t),
    "np.from_dlpack": np.from_dlpack,
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "from_dlpack": torch.from_dlpack,
    "__array__": lambda t: t.__array__(),
    "__array_interface__": lambda t: t.__array_interface__,
    "__cuda_array_interface__": lambda t: t.__cuda_array_interface__,
    "pickle": pickle.dumps,
    "ForkingPickler": multiprocessing.reduction.ForkingPickler.dumps,
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
}
# PyTorch's C++ looks at the tensor before it asks anybody, and refuses it in words of its own.
REFUSED_BY_PYTORCH: dict[str, Callable[[Any], Any]] = {
    "x.data = t": lambda t: setattr(ones(), "data", t),
    "torch.Size": lambda t: torch.Size([t]),
    "memoryview": memoryview,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_use_raises(way: str) -> None:
    t = a_disposed_tensor()
    with pytest.raises(lt.DisposedTensorError) as found:
        WAYS[way](t)
    assert found.value.birth.text.strip() == "made = torch.ones(*(shape or (2, 2)))"
    assert "end of the dispose scope opened at" in found.value.how
    assert found.value.end.line == found.value.birth.line


@pytest.mark.parametrize("way", REFUSED_BY_PYTORCH)
def test_pytorch_refuses_the_rest(way: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED_BY_PYTORCH[way](a_disposed_tensor())


@pytest.mark.parametrize("way", WAYS)
def test_every_use_raises_inside_a_scope(way: str) -> None:
    t = a_disposed_tensor()
    with lt.dispose_scope(), pytest.raises(lt.DisposedTensorError):
        WAYS[way](t)


def test_what_works() -> None:
    t = a_disposed_tensor()
    text = repr(t)
    assert text.startswith("<disposed tensor, made at ")
    assert f"{__file__}:" in text
    assert str(t) == text
    assert f"{t!r}" == text
    assert hash(t) == id(t)
    assert t is not None
    assert isinstance(t, torch.Tensor)
    assert not isinstance(t, torch.nn.Parameter)
    assert torch.is_tensor(t)
    assert lt.is_disposed(t)
    assert weakref.ref(t)() is t
    assert {t: 1}[t] == 1
    assert gc.is_tracked(t)


def test_the_error_names_both_lines_and_what_to_write() -> None:
    with lt.dispose_scope() as scope:
        made = torch.ones(3)
        doubled = F.relu(made * 2)
        scope.dispose_everything()
        first = made
    with pytest.raises(lt.DisposedTensorError) as found:
        doubled.sum()
    error = found.value
    assert isinstance(error, lt.LowtideError)
    assert isinstance(error, RuntimeError)
    assert error.birth.text.strip() == "doubled = F.relu(made * 2)"
    assert error.end.text.strip() == "scope.dispose_everything()"
    assert f"{__file__}:{error.birth.line}" in str(error)
    assert f"{__file__}:{error.end.line}" in str(error)
    assert "move_to_outer_dispose_scope" in str(error)
    assert "made at" in repr(first)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_with_block_ends_at_its_last_line() -> None:
    with lt.dispose_scope():
        made = torch.ones(3)
        for _ in range(2):
            made = made * 2  # the last line
    with pytest.raises(lt.DisposedTensorError) as found:
        made.sum()
    assert found.value.end.text.strip() == "made = made * 2  # the last line"


def test_parameters_and_subclasses_too() -> None:
    class Named(torch.Tensor):
        pass

    p = torch.nn.Parameter(torch.ones(2))
    named = torch.ones(2).as_subclass(Named)
    lt.dispose(p, named)
    for t in (p, named):
        with pytest.raises(lt.DisposedTensorError):
            t.shape  # noqa: B018


def test_attributes_of_the_tensor_go_with_it() -> None:
    t, other = torch.ones(2), torch.ones(2)
    t.cache = other  # type: ignore[attr-defined]
    gone = weakref.ref(other)
    del other
    lt.dispose(t)
    assert gone() is None


SCRIPT = """
import faulthandler; faulthandler.enable()
import sys; sys.path.insert(0, {tests!r})
import torch, gc
import lowtide as lt
import test_disposed as here
ways = {{**here.WAYS, **here.REFUSED_BY_PYTORCH}}
for round in range(3):
    for name, way in ways.items():
        try:
            way(here.a_disposed_tensor())
        except (RuntimeError, TypeError):
            continue
        raise SystemExit(f"{{name}} did not raise")
    gc.collect()
print(len(ways))
"""


def test_nothing_crashes_in_a_process_of_its_own() -> None:
    import pathlib

    script = SCRIPT.format(tests=str(pathlib.Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout
    assert int(done.stdout) >= 60
