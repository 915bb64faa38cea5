"""What Python and PyTorch add to the rules of who owns a tensor (docs/dispose-scopes.md)."""

from __future__ import annotations

import copy
import functools
import gc
import io
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import lowtide as lt
from lowtide.memory import watching
from lowtide.memory.scopes import watch


def test_parameters_are_the_modules() -> None:
    with lt.dispose_scope() as scope:
        layer = nn.Linear(3, 4)
        own = nn.Parameter(torch.ones(3))
        layer.double()
        assert not any(scope.contains(p) for p in (*layer.parameters(), own))
    assert layer(torch.ones(1, 3, dtype=torch.float64)).shape == (1, 4)
    assert own.sum() == 3


def test_buffers_are_the_modules_however_they_come_in() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.ones(2))
            self.b = nn.Buffer(torch.ones(2))
            self.register_buffer("c", None)

    with lt.dispose_scope():
        module = Cached()
        module.c = torch.full((2,), 3.0)
        module.a = module.a * 2
        copied = copy.deepcopy(module)
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        loaded = Cached()
        loaded.c = torch.zeros(2)
        loaded.load_state_dict(torch.load(file), assign=True)
        converted = copy.deepcopy(module).double()
    for other in (module, copied, loaded, converted):
        assert [b.tolist() for b in (other.a, other.b, other.c)] == [[2, 2], [1, 1], [3, 3]]


def test_conversion_by_a_function_of_ones_own() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(3))
    with lt.dispose_scope():
        assert norm._apply(lambda t: t * 1) is norm
    norm(torch.randn(5, 3))


def test_plain_attributes_of_a_module_are_the_scopes() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(3)

    with lt.dispose_scope():
        module = Cached()
    with pytest.raises(lt.DisposedTensorError, match=r"self\.table = torch\.arange\(3\)"):
        module.table.sum()


def _weight_normed() -> Any:
    return nn.utils.weight_norm(nn.Linear(3, 3))


def _spectral_normed() -> Any:
    return nn.utils.spectral_norm(nn.Linear(3, 3))


def _pruned() -> Any:
    return prune.l1_unstructured(nn.Linear(3, 3), "weight", 0.3)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("make", [_weight_normed, _spectral_normed, _pruned])
def test_weights_that_hooks_of_pytorch_set_are_the_modules(make: Any) -> None:
    with lt.dispose_scope():
        layer = make()
    for step in range(3):
        assert layer.weight.shape == (3, 3)
        with torch.set_grad_enabled(step < 2), lt.dispose_scope():
            y = layer(torch.ones(2, 3))
        assert lt.is_disposed(y)
    before = layer.weight.clone()
    assert torch.equal(copy.deepcopy(layer.eval()).weight, before)
    with lt.dispose_scope() as scope:
        layer(torch.ones(2, 3))
        scope.attach(layer.weight)
    assert lt.is_disposed(layer.weight)


def test_a_disposed_tensor_becomes_no_buffer() -> None:
    with lt.dispose_scope():
        gone = torch.ones(2)
    with pytest.raises(lt.DisposedTensorError, match="gone = torch"):
        nn.Module().register_buffer("table", gone)


def test_attributes_of_ctx_are_the_scopes() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, is_saved: bool) -> torch.Tensor:
            factor = x.detach() * 2
            ctx.save_for_backward(factor)
            ctx.factor = None if is_saved else factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (saved,) = ctx.saved_tensors
            return grads[0] * (saved if ctx.factor is None else ctx.factor), None

    leaf = torch.ones(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        loss, other = scope.detach(*(Scaled.apply(leaf, saved).sum() for saved in (True, False)))
    loss.backward()
    torch.testing.assert_close(leaf.grad, torch.full((3,), 2.0))
    with pytest.raises(lt.DisposedTensorError, match=r"factor = x\.detach"):
        other.backward()


def test_batch_norm_keeps_its_statistics() -> None:
    norm = nn.BatchNorm1d(3)
    for _ in range(3):
        with lt.dispose_scope():
            norm(torch.randn(5, 3))
    assert norm.num_batches_tracked == 3


def test_grad_made_by_backward_stays() -> None:
    p = nn.Parameter(torch.ones(3))
    for step in (1, 2):
        with lt.dispose_scope() as scope:
            (p * 2).sum().backward()
            seen = p.grad
            assert not scope.contains(seen)
        assert p.grad.tolist() == [2 * step] * 3
        assert seen is p.grad


def test_grad_set_by_hand_stays() -> None:
    p = nn.Parameter(torch.ones(3))
    with lt.dispose_scope():
        g = torch.ones(3)
        p.grad = g
    assert p.grad is g
    assert g.tolist() == [1, 1, 1]


def test_grad_of_a_leaf_of_the_scope_ends_with_it() -> None:
    with lt.dispose_scope():
        x = torch.ones(3, requires_grad=True)
        (x * x).sum().backward()
        assert x.grad is not None
    assert lt.is_disposed(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
        lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2),
        lambda p: Signed(p),
    ],
)
def test_optimizer_state_stays_and_training_is_the_same(make: Any) -> None:
    def train(scoped: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = make(list(model.parameters()))
        x, y = torch.randn(16, 4), torch.randn(16, 1)

        def step() -> None:
            def loss() -> torch.Tensor:
                optimizer.zero_grad()
                found = ((model(x) - y) ** 2).mean()
                found.backward()
                return found

            optimizer.step(loss)

        for _ in range(4):
            if scoped:
                with lt.dispose_scope():
                    step()
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            else:
                step()
        return [p.detach().clone() for p in model.parameters()]

    for ours, plain in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)


class Signed(torch.optim.Optimizer):
    """An optimizer of the user's own, whose state is made in the user's file."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(0.9).add_(p.grad)
                p.sub_(mean.sign(), alpha=0.01)


def test_a_disposed_parameter_stops_its_optimizer_with_a_clear_error() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    lt.dispose(model.weight)
    with pytest.raises(lt.DisposedTensorError, match=r"by dispose\(\)"):
        optimizer.step()
    with pytest.raises(lt.DisposedTensorError):
        model(torch.ones(1, 2))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
def test_options_of_an_optimizer_are_its_own(make: Any) -> None:
    with lt.dispose_scope():
        layer = nn.Linear(2, 2)
        optimizer = make(layer.parameters(), lr=torch.tensor(0.1))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer.add_param_group(
            {"params": [nn.Parameter(torch.ones(2))], "lr": torch.tensor(1.0)}
        )
    for _ in range(2):
        with lt.dispose_scope():
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            schedule.step()
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.025)
    assert optimizer.param_groups[1]["lr"].item() == pytest.approx(0.25)


def test_what_pytorch_makes_when_first_asked_is_its_own() -> None:
    """A gradient scaler's state, a distribution's other parameter."""
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    choice = torch.distributions.Categorical(probs=torch.tensor([0.5, 0.5]))
    for _ in range(2):
        with lt.dispose_scope():
            loss = scaler.scale(layer(torch.ones(1, 2)).sum())
            loss.backward()
            choice.log_prob(torch.tensor(1))
        assert lt.is_disposed(loss)
        with lt.dispose_scope():
            scaler.unscale_(optimizer)
        with lt.dispose_scope():
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() == 4
    assert choice.logits.shape == (2,)
    double = torch.distributions.AffineTransform(0.0, 2.0, cache_size=1)
    with lt.dispose_scope() as scope:
        doubled = scope.detach(double(torch.ones(2) * 3))
    assert double.inv(doubled).tolist() == [3, 3]


def test_a_cache_of_ones_own_owns_nothing() -> None:
    cache: dict[int, torch.Tensor] = {}

    @functools.cache
    def table(size: int) -> torch.Tensor:
        return lt.detach_from_dispose_scope(torch.arange(size))

    with lt.dispose_scope():
        cache[3] = torch.arange(3)
        table(3)
    with pytest.raises(lt.DisposedTensorError, match=r"cache\[3\] = torch\.arange\(3\)"):
        cache[3].sum()
    assert table(3).tolist() == [0, 1, 2]


def test_views_of_outer_tensors_end_and_the_tensor_stays() -> None:
    x = torch.arange(6.0)
    with lt.dispose_scope():
        view = x[2:4]
        view += 1
        same = x.view(2, 3)
    assert lt.is_disposed(view)
    assert lt.is_disposed(same)
    assert x.tolist() == [0, 1, 3, 4, 4, 5]


def test_a_view_moved_out_keeps_the_memory_of_its_base() -> None:
    with lt.dispose_scope() as scope:
        base = torch.arange(6.0)
        view = scope.move_to_outer(base[2:4])
    assert lt.is_disposed(base)
    gc.collect()
    torch.ones(1000)
    view += 1
    assert view.tolist() == [3, 4]
    assert view._base is not None
    assert view._base.tolist() == [0, 1, 3, 4, 4, 5]


@pytest.mark.parametrize("share", [lambda t: t.numpy(), np.asarray, np.from_dlpack])
def test_numpy_keeps_what_it_shares(share: Any) -> None:
    with lt.dispose_scope():
        t = torch.full((1 << 20,), 3.0)
        array = share(t)
    assert lt.is_disposed(t)
    del t
    gc.collect()
    torch.zeros(1 << 20)
    assert array.sum() == 3 << 20


def test_arrays_survive_their_tensors() -> None:
    array = np.ones(4)
    with lt.dispose_scope() as scope:
        made = [
            torch.from_numpy(array), torch.as_tensor(array), torch.from_dlpack(array),
            torch.frombuffer(bytearray(8), dtype=torch.uint8), torch.tensor(array),
            torch.Tensor([1.0, 2.0]),
        ]  # fmt: skip
        assert all(scope.contains(t) for t in made)
        made[0] += 1
    assert all(lt.is_disposed(t) for t in made)
    assert array.tolist() == [2, 2, 2, 2]


def test_copies_and_transforms_are_the_scopes() -> None:
    x, outer = torch.ones(3), torch.ones(3)
    with lt.dispose_scope() as scope:
        value, pull = torch.func.vjp(lambda a: a * outer, x)
        made = [
            copy.deepcopy(x), *copy.deepcopy([x, outer]), value, *pull(outer),
            torch.vmap(lambda a: a * 2)(x), torch.func.grad(torch.sum)(x),
            torch.func.hessian(lambda a: (a**3).sum())(x), torch.nested.nested_tensor([x]),
            *torch.func.jvp(torch.sin, (x,), (outer,)),
        ]  # fmt: skip
        theirs = [torch.func.vjp(lambda a: a, x)[0], torch.func.vjp(lambda a: outer, x)[0]]
        assert theirs[0] is x
        assert theirs[1] is outer
        assert all(scope.contains(t) for t in made)
    assert all(lt.is_disposed(t) for t in made)
    assert x.sum() + outer.sum() == 6


def test_forward_and_backward_hooks_run_inside() -> None:
    layer = nn.Linear(2, 2)
    features: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []

    def forward_hook(module: Any, args: Any, out: torch.Tensor) -> None:
        features.append(out)
        kept.append(lt.detach_from_dispose_scope(lt.alias(out.detach())))

    layer.register_forward_hook(forward_hook)
    layer.weight.register_hook(lambda g: norms.append(g.norm()))
    with lt.dispose_scope():
        layer(torch.ones(1, 2)).sum().backward()
    with lt.dispose_scope():
        torch.autograd.grad(layer(torch.ones(1, 2)).sum(), layer.weight)
    assert len(features) == len(norms) == 2
    assert all(lt.is_disposed(t) for t in (*features, *norms))
    assert kept[0].shape == (1, 2)


def test_hooks_on_a_thread_of_the_engine() -> None:
    """A GPU's part of a backward pass runs there, with the modes of the thread that waits."""
    made: list[torch.Tensor] = []
    own: list[torch.Tensor] = []
    mode = watch.state().mode

    def on_the_engines() -> None:
        torch._C._push_on_torch_function_stack(mode)
        made.append(torch.ones(3))
        with watching.aside():
            own.append(torch.ones(3))
        made.append(torch.ones(3))
        torch._C._pop_torch_function_stack()

    def hook(_: torch.Tensor) -> None:
        thread = threading.Thread(target=on_the_engines)
        thread.start()
        thread.join()

    leaf = torch.ones(3, requires_grad=True)
    leaf.register_hook(hook)
    with lt.dispose_scope() as scope:
        leaf.exp().sum().backward()
        assert all(map(scope.contains, made))
    assert [lt.is_disposed(t) for t in (*made, *own)] == [True, True, False]
    leaf.exp().sum().backward()  # without a scope
    assert not any(map(lt.is_disposed, made[2:]))


def test_saved_for_backward_survives_the_scope() -> None:
    x = torch.randn(4, 4, requires_grad=True)

    def loss(keep: list[torch.Tensor]) -> torch.Tensor:
        a = (x @ x).relu()
        b = a * a.exp() + x
        c = torch.nn.functional.layer_norm(b.sigmoid(), (4,))
        keep += [a, b, c]
        return (c * b).sum()

    expected = torch.autograd.grad(loss([]), x)[0]
    kept: list[torch.Tensor] = []
    with lt.dispose_scope() as scope:
        total = scope.move_to_outer(loss(kept))
    assert all(lt.is_disposed(t) for t in kept)
    torch.testing.assert_close(torch.autograd.grad(total, x)[0], expected, rtol=0, atol=0)


def test_double_backward_after_the_scope() -> None:
    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        y = x**3
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        scope.move_to_outer(g)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(h, 6 * x)


def test_custom_functions_find_what_they_saved() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            square = x * x
            ctx.save_for_backward(x, square)
            ctx.plain = square
            return square * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            _, square = ctx.saved_tensors
            assert lt.is_disposed(ctx.plain)
            return 3 * square * grad

    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        inner = x * 1
        y = scope.move_to_outer(Cube.apply(inner))
    (g,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(g, 3 * x * x)


@pytest.mark.parametrize("pack", [lambda t: t, lambda t: ("cpu", t.clone()), lambda t: [t.cpu()]])
def test_what_hooks_pack_is_the_graphs(pack: Any) -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            (x,) = ctx.saved_tensors
            return 3 * x * x * grad

    def unpack(packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else packed[-1]

    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope, torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        inner = x * 2
        y = scope.move_to_outer((Cube.apply(inner) * inner.exp()).sum())
    y.backward()
    expected = torch.autograd.grad(((2 * x) ** 3 * (2 * x).exp()).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_in_place_changes_are_still_noticed() -> None:
    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        a = x * 2
        same = scope.move_to_outer(a.detach())
        y = scope.move_to_outer((a * a).sum())
    same.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_retained_gradients_do_not_stand_in_the_way() -> None:
    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        a = x * 2
        a.retain_grad()
        saved = x * 3
        saved.retain_grad()
        y = scope.move_to_outer((saved * saved).sum())
    for t in (a, saved):
        with pytest.raises(lt.DisposedTensorError):
            t.sum()
    y.backward()
    assert torch.allclose(x.grad, 18 * x)


@pytest.mark.parametrize("use", [torch.tensor, torch.Tensor, torch.utils.dlpack.to_dlpack])
def test_after_retain_grad_nothing_comes_through_c(use: Any) -> None:
    """What C++ reads without asking Python is closed as soon as nobody else has the tensor."""
    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        gone = x * 2
        gone.retain_grad()
        same = scope.move_to_outer(gone.detach())
        unsaved = scope.move_to_outer((gone * 3).sum() + (same * x).sum())
        over = x * 2
        over.retain_grad()
        (over * over).sum().backward()
        saved = x * 2
        saved.retain_grad()
        square = scope.move_to_outer((saved * saved).sum())
    for t in (gone, over):
        with pytest.raises(lt.DisposedTensorError):
            use(t)
    x.grad = None
    unsaved.backward()  # `same` has the version and the values that were saved
    assert torch.equal(x.grad, same + 6)
    square.backward()
    with lt.dispose_scope():
        pass
    with pytest.raises(lt.DisposedTensorError):
        use(saved)


def test_leaves_that_autocast_has_cast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with lt.dispose_scope() as scope:
            w = torch.randn(4, 4, requires_grad=True)
            y = scope.move_to_outer((torch.ones(4, 4) @ w).float().sum())
        with pytest.raises(lt.DisposedTensorError):
            torch.tensor(w)
        y.backward()


def test_backward_on_other_threads() -> None:
    import threading

    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        a = x.exp()
        losses = [scope.move_to_outer((a * k).sum()) for k in range(1, 5)]
        threads = [
            threading.Thread(target=y.backward, kwargs={"retain_graph": True}) for y in losses
        ]
        for thread in threads[:2]:
            thread.start()
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.allclose(x.grad, 10 * x.detach().exp())


def test_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(4, 4)
    x = torch.randn(2, 4, requires_grad=True)
    with lt.dispose_scope() as scope:
        y = scope.move_to_outer(checkpoint(layer, x * 1, use_reentrant=False).sum())
    y.backward()
    assert torch.allclose(x.grad, layer.weight.sum(0).expand(2, 4))


def test_lists_and_dicts_hold_disposed_handles() -> None:
    losses: list[torch.Tensor] = []
    for step in range(3):
        with lt.dispose_scope():
            losses.append(torch.tensor(float(step)))
    assert all(lt.is_disposed(t) for t in losses)


def collate(rows: list[Any]) -> torch.Tensor:
    return torch.stack([row[0] for row in rows])


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_the_scopes_in_which_they_are_fetched(workers: int) -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2))
    loader = DataLoader(data, batch_size=2, num_workers=workers, collate_fn=collate)
    seen: list[torch.Tensor] = []
    with lt.dispose_scope() as scope:
        for batch in loader:
            assert scope.contains(batch)
            seen.append(batch)
    assert len(seen) == 3
    assert all(lt.is_disposed(t) for t in seen)
    total = 0.0
    for batch in loader:
        with lt.dispose_scope() as scope:
            assert not scope.contains(batch)
            total += batch.sum().item()
    assert total == 66


def test_outputs_of_compiled_functions() -> None:
    @lt.script
    def pairs(a, b):
        return (a[:, None] - b[None, :]).abs()

    a, b = torch.randn(700), torch.randn(600)
    with lt.dispose_scope() as scope:
        large, small = pairs(a, b), pairs(a[:40], b[:40])
        assert scope.contains(large)
        assert scope.contains(small)
        kept = scope.move_to_outer(pairs(a, b))
    assert lt.is_disposed(large)
    assert lt.is_disposed(small)
    torch.testing.assert_close(kept, (a[:, None] - b[None, :]).abs())
    torch.testing.assert_close(pairs(a, b), kept)  # what was compiled inside is not the scope's
