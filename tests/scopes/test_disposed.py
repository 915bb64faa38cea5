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
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

import lowtide as lt


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2


class Returning(torch.autograd.Function):
    """Gives back what stands in a list, which autograd does not look into."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, found: list[Any]) -> Any:
        return found[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad, None


class Dirtying(Returning):
    """Says that it has changed it, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, found: list[Any]) -> Any:
        ctx.mark_dirty(found[0])
        return found[0]


class ReturningBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, found: list[Any]) -> torch.Tensor:
        ctx.found = found
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.found[0], None


class Saving(torch.autograd.Function):
    """Keeps it for backward, by `save_for_backward` or as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, found: list[Any], plainly: bool) -> torch.Tensor:
        if plainly:
            ctx.kept = found[0]
        else:
            ctx.save_for_backward(found[0])
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        kept = ctx.kept if hasattr(ctx, "kept") else ctx.saved_tensors[0]
        return grad * kept, None, None


def leaf() -> torch.Tensor:
    return torch.ones(2, 2, requires_grad=True)


def hooked(register: str, result: Any) -> None:
    """A hook that gives the disposed tensor to PyTorch."""
    layer = torch.nn.Linear(2, 2)
    getattr(layer, register)(lambda *_: result)
    layer(leaf()).sum().backward()


def loaded(t: Any, assign: bool) -> None:
    layer = torch.nn.Linear(2, 2)
    layer.load_state_dict({"weight": t, "bias": torch.ones(2)}, assign=assign)
    layer(ones())


@lt.script
def listed(tensors: list[torch.Tensor]):
    return tensors[0] + tensors[1]


@lt.script
def compiled(a, b):
    return (a[:, None] - b[None, :]).abs().sum()


def a_disposed_tensor(*shape: int) -> torch.Tensor:
    with lt.dispose_scope():
        made = torch.ones(*(shape or (2, 2)))
    return made  # noqa: RET504 - made and ended on two lines


def ones() -> torch.Tensor:
    return torch.ones(2, 2)


def without_functions(fn: Callable[..., Any], *args: Any) -> None:
    """What a `__torch_function__` of the user's does."""
    with torch._C.DisableTorchFunctionSubclass():
        fn(*args)


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
    # autograd, modules and their like
    "forward returns it": lambda t: Returning.apply(leaf(), [t]).sum(),
    "forward dirties and returns it": lambda t: Dirtying.apply(leaf(), [t]).sum(),
    "forward returns it, run by C++": lambda t: (
        super(torch.autograd.Function, Returning).apply(leaf(), [t]).sum()
    ),
    "backward of a custom Function returns it": lambda t: (
        ReturningBackward.apply(leaf(), [t]).sum().backward()
    ),
    "save_for_backward": lambda t: Saving.apply(leaf(), [t], False).sum().backward(),
    "kept by ctx": lambda t: Saving.apply(leaf(), [t], True).sum().backward(),
    "a gradient": lambda t: (leaf() * 2).backward(t),
    "inputs of backward": lambda t: leaf().sum().backward(inputs=[t]),
    "a gradient hook's": lambda t: hooked("register_full_backward_hook", (t,)),
    "a forward hook's": lambda t: hooked("register_forward_hook", t),
    "a pre-hook's": lambda t: hooked("register_forward_pre_hook", (t,)),
    "checkpoint": lambda t: torch.utils.checkpoint.checkpoint(torch.sin, t, use_reentrant=False),
    "load_state_dict": lambda t: loaded(t, assign=False),
    "load_state_dict, assigned": lambda t: loaded(t, assign=True),
    "functional_call": lambda t: torch.func.functional_call(
        torch.nn.Linear(2, 2), {"weight": t}, (ones(),)
    ),
    "func.grad": lambda t: torch.func.grad(torch.sum)(t),
    "func.vjp": lambda t: torch.func.vjp(torch.sin, t),
    "closed over by vmap": lambda t: torch.vmap(lambda x: x + t)(ones()),
    "clip_grad_norm_": lambda t: torch.nn.utils.clip_grad_norm_([t], 1.0),
    "parameters_to_vector": lambda t: torch.nn.utils.parameters_to_vector([t]),
    "pad_sequence": lambda t: torch.nn.utils.rnn.pad_sequence([t, ones()]),
    "init": torch.nn.init.xavier_uniform_,
    "DataLoader": lambda t: list(torch.utils.data.DataLoader([t, t], batch_size=2)),
    "lr": lambda t: torch.optim.SGD([leaf()], lr=t),
    "Normal": lambda t: torch.distributions.Normal(t, 1.0),
    "nested": lambda t: torch.nested.nested_tensor([t]),
    "sparse": lambda t: torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.long), t),
    "without functions of subclasses": lambda t: without_functions(torch.add, ones(), t),
    "a compiled function, in a list": lambda t: listed([ones(), t]),
    "lt.Sequential": lambda t: lt.Sequential(torch.nn.Linear(2, 2))(t),
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
    "torch.full": lambda t: torch.full((2,), t),
    "alpha=": lambda t: torch.add(ones(), ones(), alpha=t),
    "torch.jit.trace": lambda t: torch.jit.trace(torch.sin, ones())(t),
    "backward returns it": lambda t: hooked("register_full_backward_pre_hook", (t,)),
    "torch.Size": lambda t: torch.Size([t]),
    "memoryview": memoryview,
    "assert_close": lambda t: torch.testing.assert_close(ones(), t),
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
    assert f"{t!r}" == f"{t}" == text
    assert hash(t) == id(t)
    assert t is not None
    assert isinstance(t, torch.Tensor)
    assert not isinstance(t, torch.nn.Parameter)
    assert torch.is_tensor(t)
    assert lt.is_disposed(t)
    assert weakref.ref(t)() is t
    assert {t: 1}[t] == 1
    assert gc.is_tracked(t)


def test_weak_dicts_of_pytorchs_go_on() -> None:
    """They ask a tensor for `_fix_weakref` whenever they look at it."""
    outer = torch.ones(1)
    names = WeakTensorKeyDictionary({outer: "outer"})
    with lt.dispose_scope():
        t = torch.ones(1)
        names[t] = "t"
        ref = TensorWeakRef(t)
    assert ref() is t
    assert names[t] == "t"
    assert sorted(names.values()) == ["outer", "t"]
    del t
    assert ref() is None
    assert list(names.values()) == ["outer"]


def test_one_that_was_not_seen_being_made_names_no_line_for_it(stats: lt.ScopeStatistics) -> None:
    stats.stop()
    t = torch.ones(1)
    lt.dispose(t)
    assert repr(t).startswith(f"<disposed tensor, disposed at {__file__}:")
    with pytest.raises(lt.DisposedTensorError, match="made where no scope saw it"):
        t.sum()


def test_the_error_passes_through_dynamo_as_it_is() -> None:
    """Dynamo wraps errors in its own, except a few kinds."""
    from torch._guards import CompileContext, compile_context

    t = a_disposed_tensor()
    with compile_context(CompileContext(None)), pytest.raises(lt.DisposedTensorError) as found:
        t.shape  # noqa: B018
    assert isinstance(found.value, AssertionError)
    assert type(pickle.loads(pickle.dumps(found.value))) is lt.DisposedTensorError


@pytest.mark.slow
@pytest.mark.parametrize("fullgraph", [False, True])
def test_functions_compiled_by_dynamo_raise_it(fullgraph: bool) -> None:
    def work(x: Any) -> torch.Tensor:
        return torch.cat([torch.ones(2, 2), x]) * 2

    module = torch.nn.Linear(2, 2)
    of_function = torch.compile(work, backend="lowtide", fullgraph=fullgraph)
    of_module = torch.compile(module, backend="lowtide", fullgraph=fullgraph)
    of_function(ones())
    of_module(ones())
    lt.dispose(module.weight)
    with pytest.raises(lt.DisposedTensorError):
        of_function(a_disposed_tensor())
    with pytest.raises(lt.DisposedTensorError):
        of_module(ones())


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


METHODS = """
import faulthandler; faulthandler.enable()
import sys, warnings; sys.path.insert(0, {tests!r})
warnings.simplefilter("ignore")
import torch
import test_disposed as here
skipped = ("__class__", "__del__", "__init_subclass__", "__subclasshook__", "__new__")
methods = [getattr(torch.Tensor, name) for name in dir(torch.Tensor) if name not in skipped]
methods = [method for method in methods if callable(method)]
with torch._C.DisableTorchFunctionSubclass():
    for is_leaf in (False, True):
        t, called = here.a_disposed_tensor(), 0
        for method in methods:
            for args in ((t,), (t, 1), (t, here.ones()), (here.leaf() * 1, t)):
                called += 1
                if is_leaf:
                    torch.Tensor.requires_grad_(t)
                try:
                    method(*args)
                except Exception:
                    pass
        try:
            torch.add(t, t)
        except here.lt.DisposedTensorError:
            continue
        raise SystemExit("it is no longer disposed")
print(called)
"""


def test_methods_without_functions_of_subclasses_do_not_crash() -> None:
    import pathlib

    script = METHODS.format(tests=str(pathlib.Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout
    assert int(done.stdout) >= 2000


@pytest.mark.parametrize("name", [
    "shape", "size", "stride", "numel", "nelement", "dim", "ndim", "ndimension", "nbytes", "device",
    "layout", "data_ptr", "storage_offset", "is_contiguous", "contiguous", "H",
    "mT", "adjoint", "is_cpu", "is_meta", "is_sparse_csr", "to_dense", "diag", "fliplr",
])  # fmt: skip
def test_metadata_without_functions_of_subclasses_raises(name: str) -> None:
    t = a_disposed_tensor()
    found = getattr(torch.Tensor, name)
    use = found if callable(found) else found.__get__
    with torch._C.DisableTorchFunctionSubclass():
        for _ in range(2):
            with pytest.raises(lt.DisposedTensorError, match=r"test_disposed\.py"):
                use(t)


def test_a_leaf_without_functions_of_subclasses_raises() -> None:
    t = a_disposed_tensor()
    with torch._C.DisableTorchFunctionSubclass():
        torch.Tensor.requires_grad_(t)
        for use in (torch.Tensor.relu, torch.Tensor.clone, lambda t: torch.Tensor.reshape(t, 1)):
            with pytest.raises(lt.DisposedTensorError, match=r"test_disposed\.py"):
                use(t)
