"""What other people's models have in them, through a file: hooks of PyTorch's own, modules of
torch.fx, ops of aten, methods with names of nn.Module, packed weights."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch import Tensor, nn
from torch import _weight_norm as normed  # as PyTorch's own modules import it
from torch.nn.utils import prune

import lowtide as lt
from lowtide.deploy.torch_names import ATEN, may_call
from tests.deploy.roundtrip import through_file

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def equal(c: Any, *args: Any) -> Any:
    """The loaded one, which gives what the compiled one gives."""
    loaded = through_file(c)
    torch.testing.assert_close(loaded(*args), c(*args))
    return loaded


# ---- ops --------------------------------------------------------------------------------------


def packet(x: Tensor) -> Tensor:
    return torch.ops.aten.relu(x)


def overload(x: Tensor) -> Tensor:
    return torch.ops.aten.add.Tensor(x, torch.ops.aten.relu.default(x))


def inplace(x: Tensor) -> Tensor:
    y = x.clone()
    torch.ops.aten.relu_(y)
    return y


def several(x: Tensor) -> Tensor:
    values, indices = torch.ops.aten.max.dim(x, 1)
    return values + indices


def private(x: Tensor) -> Tensor:
    return torch._softmax(x, 1, False) + torch._cast_Float(x, False) + torch._dim_arange(x, 1)


def shape(x: Tensor) -> Tensor:
    return torch._shape_as_tensor(x)


def of_nn(x: Tensor) -> Tensor:
    return torch._C._nn.upsample_nearest1d(x[None], [6], None)


def fake(x: Tensor) -> Tensor:
    return torch._fake_quantize_learnable_per_tensor_affine(
        x, torch.ones(1), torch.zeros(1), 0, 255, 1.0
    )


def imported(x: Tensor) -> Tensor:
    return normed(x, torch.ones(2, 1), 0)


def shifted(x: Tensor) -> Tensor:
    n = (x * 4).int()
    n <<= 1
    return n


@pytest.mark.parametrize(
    "fn",
    [packet, overload, inplace, several, private, shape, of_nn, fake, imported, shifted],
)
def test_ops(fn: Callable[[Tensor], Tensor]) -> None:
    torch.testing.assert_close(equal(lt.script(fn), X)(X), fn(X))
    torch.testing.assert_close(equal(lt.trace(fn, (X,)), X)(X), fn(X))


def unsafe(x: Tensor) -> Tensor:
    return torch._unsafe_index(x, [torch.tensor([0])])


def of_file(x: Tensor) -> Tensor:
    return x + torch.ops.aten.from_file("/etc/passwd", size=1)


def read(x: Tensor) -> Tensor:
    return x + torch.from_file("/etc/passwd", size=1)


@pytest.mark.parametrize(
    ("fn", "remedy"),
    [
        (unsafe, "write instead: the public function of torch or F"),
        (of_file, "write instead: the function of torch or F that calls this op"),
        (read, "write instead: a call of it in Python"),
    ],
)
def test_ops_that_are_not_saved(fn: Any, remedy: str) -> None:
    with pytest.raises(lt.CompileError, match=remedy):
        lt.save(lt.script(fn), io.BytesIO())


def of_layouts(x: Tensor) -> Tensor:
    if x.layout == torch.sparse_csr:
        x = x.to_dense()
    elif x.is_sparse:
        return x.to_sparse_csr()
    return x + 1


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_methods_that_only_compute() -> None:
    loaded = equal(lt.script(of_layouts), X)
    assert loaded(X.to_sparse()).layout == torch.sparse_csr
    assert all(may_call(f"Tensor.{name}") for name in ("to_sparse_csr", "crow_indices", "q_scale"))
    for name in (
        *("set_", "data_ptr", "record_stream", "apply_", "map_", "numpy", "share_memory_"),
        *(
            "register_hook",
            "sparse_resize_",
            "rename",
            "__reduce_ex__",
            "unsafe_split",
            "refine_names",
        ),
        *("pin_memory", "untyped_storage", "storage", "module_load", "refine_names"),
    ):
        assert not may_call(f"Tensor.{name}"), name


class Irreps(tuple[int, ...]):
    pass


class WithUnread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.irreps, self.pair = Irreps((1, 2)), (1, [Irreps((1,))])
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def test_what_no_program_reads_may_be_of_any_class() -> None:
    assert not hasattr(equal(lt.script(WithUnread()), X), "irreps")


def test_names() -> None:
    assert may_call("torch.ops.aten.add.Tensor")
    for target in (
        *("torch.ops.aten.from_file", "torch.ops.aten.relu.op", "torch.ops.aten.relu.__class__"),
        *("torch.ops.aten.relu.default.op", "torch.ops.aten", "torch.ops.aten.", "torch.ops.load"),
        *(
            "torch.ops.aten.set_",
            "torch.ops.aten.relu.",
            "torch.ops.prim.Print",
            "torch._from_blob",
        ),
    ):
        assert not may_call(target), target
    bad = ("file", "load", "save", "ptr", "print", "blob", "unsafe", "map_", "hook")
    assert [n for n in ATEN if any(word in n for word in bad)] == []


# ---- hooks of PyTorch's own -------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = norm(nn.Conv1d(1, 2, 3))
        self.fc = norm(nn.Linear(3, 2))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x)).relu()


def pruned(module: nn.Module) -> nn.Module:
    return prune.l1_unstructured(module, "weight", 0.4)


def train(module: Any, x: Tensor) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    losses: list[float] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (module(x) - 1).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm, pruned])
def test_norms_of_weights(norm: Any) -> None:
    x = torch.ones(2, 1, 5, dtype=torch.float64)
    compiled = lt.script(Normed(norm))
    assert "call_module" not in str(compiled.graph)
    loaded = equal(compiled.eval(), x)
    expected = train(Normed(norm).eval(), x)
    assert train(compiled, x) == pytest.approx(expected)
    assert train(loaded, x) == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_traced_norm_of_weights() -> None:
    x = torch.ones(2, 1, 5, dtype=torch.float64)
    loaded = equal(lt.trace(Normed(nn.utils.weight_norm), x), x)
    assert train(loaded, x) == pytest.approx(train(Normed(nn.utils.weight_norm), x))


def test_a_file_cannot_reach_past_a_tensor() -> None:
    """PyTorch's kernel of `_weight_norm` reads as many elements of g as v has rows."""

    def scaled(v: Tensor, g: Tensor) -> Tensor:
        return normed(v, g, 0)

    loaded = through_file(lt.script(scaled))
    v = torch.randn(2000, 4)
    torch.testing.assert_close(loaded(v, torch.ones(1)), v / v.norm(dim=1, keepdim=True))
    with pytest.raises(RuntimeError, match="must match"):
        loaded(v, torch.ones(0))
    for name in ("torch._C._nn.rrelu_with_noise", "torch.ops.aten._weight_norm", "torch._ctc_loss"):
        assert not may_call(name)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.utils.weight_norm(nn.LSTM(3, 3), "weight_hh_l0")

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_assignment_that_does_more_is_not_saved() -> None:
    module = Recurrent()
    compiled = lt.script(module)
    torch.testing.assert_close(compiled(X), module(X))
    with pytest.raises(lt.CompileError, match=r"`weight_hh_l0` of LSTM, whose __setattr__"):
        lt.save(compiled, io.BytesIO())


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_norm_is_taken_away() -> None:
    outer = nn.Sequential(nn.utils.weight_norm(Weighted(), "w"))
    compiled = lt.script(outer)
    torch.testing.assert_close(compiled(X), outer(X))
    nn.utils.remove_weight_norm(outer[0], "w")
    torch.testing.assert_close(compiled(X), outer(X))
    assert "attr.set" not in str(compiled.graph)


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.count += 1


def test_an_object_of_the_users_as_a_hook_is_called() -> None:
    outer, hook = nn.Sequential(Weighted()), Counting()
    outer[0].register_forward_pre_hook(hook)
    compiled = lt.script(outer)
    compiled(X), compiled(X)
    assert hook.count == 2


class Setting(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        setattr(self, "seen", x * 2)  # noqa: B010
        return self.seen + 1


def test_setattr() -> None:
    module, compiled = Setting(), lt.script(Setting())
    torch.testing.assert_close(compiled(X), module(X))
    torch.testing.assert_close(compiled.seen, module.seen)


# ---- modules of torch.fx ----------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).relu()


class Adding(torch.fx.GraphModule):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) + 1


def test_modules_of_fx() -> None:
    module = torch.fx.symbolic_trace(Plain())
    equal(lt.script(module), X)
    equal(lt.trace(module, X), X)
    outer = lt.script(nn.Sequential(module, nn.ReLU()))
    assert "call_module" not in str(outer.graph)
    loaded = equal(outer, X)
    torch.testing.assert_close(loaded[0](X), module(X))


def test_a_call_of_its_own_is_kept() -> None:
    module = Adding(Plain(), torch.fx.symbolic_trace(Plain()).graph)
    torch.testing.assert_close(lt.script(nn.Sequential(module))(X), module(X))
    with pytest.raises(lt.CompileError, match="its class defines __call__"):
        lt.save(lt.script(module), io.BytesIO())


# ---- names of nn.Module -----------------------------------------------------------------------


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1

    @lt.export
    def half(self, x: Tensor) -> Tensor:
        return x / 2

    @lt.export
    def to(self, x: Tensor, n: int) -> Tensor:
        return x * n


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Half()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.half(self.fc(self.inner(x)))


class Train(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1

    @lt.export
    def children(self, x: Tensor) -> Tensor:
        return x / 2


class Wrap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1

    @lt.export
    def _method(self, x: Tensor) -> Tensor:
        return x / 2


def test_methods_that_convert_and_move() -> None:
    loaded = equal(lt.script(Half()), X)
    torch.testing.assert_close(loaded.half(X), X / 2)
    torch.testing.assert_close(loaded.to(X, 3), X * 3)
    outer = equal(lt.script(Outer()), X)
    torch.testing.assert_close(outer.inner.half(X), X / 2)
    assert outer.double().fc.weight.dtype == torch.float64  # the whole is still converted
    assert outer.eval().inner.training is False


@pytest.mark.parametrize("cls", [Train, Wrap])
def test_methods_that_nn_module_needs(cls: type[nn.Module]) -> None:
    with pytest.raises(lt.CompileError, match=r"py:\d+: the method .*\(\) cannot be saved") as told:
        lt.save(lt.script(cls()), io.BytesIO())
    assert "write instead: another name for the method" in str(told.value)


# ---- quantized --------------------------------------------------------------------------------


def test_packed_weights() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(Plain(), {nn.Linear}, dtype=torch.qint8)
        compiled = lt.script(module)
        torch.testing.assert_close(compiled(X), module(X))
    with pytest.raises(lt.CompileError) as told:
        lt.save(compiled, io.BytesIO())
    assert "test_more_is_saved.py" in str(told.value)
    assert "'fc._packed_params._packed_params'" in str(told.value)
    assert "write instead: the module before torch.ao.quantization" in str(told.value)
    with pytest.raises(lt.CompileError) as told:
        lt.trace(module, X)
    assert "return self.fc(x).relu()" in str(told.value)
    assert "write instead: lt.script of the module" in str(told.value)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_that_were_never_called_take_a_state(kind: type[nn.RNNBase]) -> None:
    c = lt.script(kind(3, 2))
    x, h = X[:, None], torch.ones(1, 1, 2)
    equal(c, x)
    equal(c, x, (h, 2 * h) if kind is nn.LSTM else h)


RATE = 1.0


def by_rate(x: Tensor) -> Tensor:
    return x * RATE


class ByRate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * RATE


def test_a_global_number_that_has_changed_is_saved_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for made in (lt.script(by_rate), lt.script(ByRate())):
        for rate in (1.0, 2.0, 3.0):
            monkeypatch.setitem(globals(), "RATE", rate)
            made(X)
        monkeypatch.setitem(globals(), "RATE", 7.0)
        assert torch.equal(through_file(made)(X), X * 7)


# ---- old names ---------------------------------------------------------------------------------


def old_names(x: Tensor) -> Tensor:
    return x + torch.FloatTensor([1.0, 2.0, 3.0]) + torch.DoubleTensor([1, 2, 3])


def test_old_constructors() -> None:
    compiled = lt.script(old_names)
    torch.testing.assert_close(compiled(X), old_names(X))
    equal(compiled, X)


class Exported(nn.Module):
    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return 1, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        self.training = state[1]

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_an_exported_getstate_is_refused() -> None:
    with pytest.raises(lt.CompileError, match="the __getstate__ of Exported is exported"):
        lt.save(lt.script(nn.Sequential(Exported())), io.BytesIO())


def labelled(x: Tensor) -> Tensor:
    with torch.profiler.record_function("double"):
        return x * 2


def test_labels_for_the_profiler() -> None:
    equal(lt.script(labelled), X)
