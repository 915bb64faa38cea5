"""Odd classes, odd threads, and what handles that end together share."""

from __future__ import annotations

import copy
import pathlib
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

import lowtide as lt
from lowtide.memory.scopes.scope import DisposeScope


class Slotted(torch.Tensor):
    __slots__ = ("note",)


def test_a_class_with_slots_is_left_alone() -> None:
    stats = lt.scope_statistics()
    stats.reset()
    with lt.dispose_scope():
        before = torch.ones(2)
        slotted = torch.ones(2).as_subclass(Slotted) + 1
        slotted.note = 3
        after = torch.ones(2)
    assert lt.is_disposed(before)
    assert lt.is_disposed(after)
    assert slotted.tolist() == [2, 2]
    assert slotted.note == 3
    for _ in range(2):
        with pytest.raises(TypeError, match="a Slotted cannot be disposed"):
            lt.dispose(slotted)
    with lt.dispose_scope() as scope:
        scope.attach(slotted)
    assert not lt.is_disposed(slotted)
    del slotted
    assert stats.thread_total_live == 0


def test_traded_tensors_keep_their_owners() -> None:
    with lt.dispose_scope() as outer:
        kept = torch.ones(2)
        with lt.dispose_scope() as scope:
            mine = torch.zeros(3)
            torch.utils.swap_tensors(kept, mine)
            assert outer.contains(kept)
            assert scope.contains(mine)
        with pytest.raises(lt.DisposedTensorError, match=r"torch\.zeros"):
            torch.utils.swap_tensors(kept, mine)
        assert kept.tolist() == [0, 0, 0]
    assert lt.is_disposed(kept)


@pytest.mark.parametrize("is_swapping", [True, False])
def test_modules_that_convert_by_trading(is_swapping: bool) -> None:
    futures = torch.__future__
    before = futures.get_swap_module_params_on_conversion()
    futures.set_swap_module_params_on_conversion(is_swapping)
    try:
        layer = torch.nn.BatchNorm1d(3)
        for _ in range(2):
            with lt.dispose_scope():
                layer.double().float()
                layer.load_state_dict({name: t + 1 for name, t in layer.state_dict().items()})
    finally:
        futures.set_swap_module_params_on_conversion(before)
    layer.eval()(torch.ones(2, 3)).sum().backward()
    assert layer.state_dict()["weight"].tolist() == [3, 3, 3]
    assert layer.state_dict()["running_mean"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("fused", [True, False])
def test_a_scaler_steps_in_one_scope_and_goes_on_in_the_next(fused: bool) -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for _ in range(4):
        with lt.dispose_scope():
            scaler.scale(layer(torch.ones(1, 2)).sum()).backward()
        with lt.dispose_scope():
            scaler.step(optimizer)  # a fused optimizer looks for infinities itself
        with lt.dispose_scope():
            scaler.update()
    assert scaler.get_scale() == 16


def test_where_a_quasi_random_engine_goes_on_is_its_own() -> None:
    engine, plain = (torch.quasirandom.SobolEngine(2, scramble=True, seed=1) for _ in range(2))
    for count in (2, 1, 3):
        with lt.dispose_scope() as scope:
            points = scope.detach(engine.draw(count))
            others = engine.draw(count)
        assert lt.is_disposed(others)
        assert points.equal(plain.draw(2 * count)[:count])


def test_attributes_that_tensors_share_stay_with_the_others() -> None:
    class Shared(torch.Tensor):
        pass

    a, b = (torch.ones(2).as_subclass(Shared) for _ in range(2))
    attributes = {"note": 5}
    a.__dict__ = b.__dict__ = attributes  # pyright: ignore[reportAttributeAccessIssue]
    lt.dispose(a)
    assert b.note == 5  # pyright: ignore[reportAttributeAccessIssue]
    assert attributes == {"note": 5}


def test_attributes_stay_with_what_autograd_holds() -> None:
    source = torch.ones(4)
    with lt.dispose_scope() as scope:
        base = source * 2
        base.note = "kept"  # pyright: ignore[reportAttributeAccessIssue]
        view = scope.detach(base[1:])
    again = view._base
    assert again is not base
    assert again is not None
    assert vars(again) == {"note": "kept"}
    assert again.tolist() == [2, 2, 2, 2]


def test_each_of_many_names_its_own_line() -> None:
    with lt.dispose_scope():
        first = [torch.ones(1) for _ in range(40)]
        second = [torch.ones(2) for _ in range(40)]
        third = first[0] + 1
    del first[3:30]
    for tensors, made in ((first, "ones(1)"), (second, "ones(2)"), ([third], "first[0] + 1")):
        for tensor in tensors:
            with pytest.raises(lt.DisposedTensorError) as caught:
                tensor.sum()
            assert made in caught.value.birth.text
            assert "with lt.dispose_scope" not in caught.value.birth.text


def test_a_scope_that_another_thread_ends() -> None:
    lt.scope_statistics().stop()  # which would keep the mode on
    depth = torch._C._len_torch_function_stack()
    with lt.dispose_scope() as scope:
        before = torch.ones(1)
        thread = threading.Thread(target=scope.dispose)
        thread.start()
        thread.join()
        after = torch.ones(1)
    assert lt.is_disposed(before)
    assert not lt.is_disposed(after)
    assert lt.current_dispose_scope() is None
    assert torch._C._len_torch_function_stack() == depth


def test_an_interrupt_while_a_scope_opens_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enters = DisposeScope.enter_context

    def interrupted(scope: DisposeScope) -> None:
        enters(scope)
        raise KeyboardInterrupt

    lt.scope_statistics().stop()
    depth = torch._C._len_torch_function_stack()
    with monkeypatch.context() as patch:
        patch.setattr(DisposeScope, "enter_context", interrupted)
        with pytest.raises(KeyboardInterrupt), lt.dispose_scope():
            pass
    assert lt.current_dispose_scope() is None
    assert torch._C._len_torch_function_stack() == depth


def test_cached_parametrizations_are_pytorchs() -> None:
    layer = parametrizations.orthogonal(torch.nn.Linear(3, 3))
    with parametrize.cached():
        with lt.dispose_scope() as scope:
            first = scope.detach(layer(torch.ones(2, 3)))
        assert layer(torch.ones(2, 3)).equal(first)


BEFORE_THE_FIRST = """
import torch
import lowtide as lt
graph = torch.autograd.graph
w = torch.ones(3, requires_grad=True)
with graph.saved_tensors_hooks(lambda t: [t], lambda found: found[0]), graph.save_on_cpu():
    with lt.dispose_scope() as scope:
        y = scope.detach((w * w.exp()).sum())
    w.exp()
y.backward()
torch.testing.assert_close(w.grad, 2 * w.exp())
"""


SHARDED = """
import contextlib, copy, sys
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
import lowtide as lt
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
first = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
data = torch.rand(4, 5, 4)

def trained(wrap, scope):
    torch.manual_seed(0)
    with scope():
        module = wrap(copy.deepcopy(first))
        optimizer = torch.optim.Adam(module.parameters())
    for x in data:
        with scope():
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
    return module(data[0]).detach()

def compressing(module):
    parallel = torch.nn.parallel.DistributedDataParallel(module)
    state = power.PowerSGDState(None, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, power.powerSGD_hook)
    return parallel

wraps = [torch.nn.parallel.DistributedDataParallel, lambda module: fully_shard(module, mesh=mesh)]
cpu = torch.device("cpu")
wraps += [compressing, lambda module: FullyShardedDataParallel(module, device_id=cpu)]
for wrap in wraps:
    plain, scoped = trained(wrap, contextlib.nullcontext), trained(wrap, lt.dispose_scope)
    torch.testing.assert_close(scoped, plain, rtol=0, atol=0)
dist.destroy_process_group()
"""


def run_alone(program: str, *args: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_hooks_entered_before_the_first_scope() -> None:
    run_alone(BEFORE_THE_FIRST)


@pytest.mark.slow
def test_what_a_sharded_module_gathers_is_its_own(tmp_path: pathlib.Path) -> None:
    run_alone(SHARDED, str(tmp_path / "store"))


def test_what_a_scope_inside_forward_saves_must_be_moved_out_of_it() -> None:
    class SineOf(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, is_moved: bool) -> torch.Tensor:
            with lt.dispose_scope() as scope:
                slope = x.cos()
                ctx.save_for_backward(scope.move_to_outer(slope) if is_moved else slope)
                return scope.move_to_outer(x.sin())

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            with lt.dispose_scope() as scope:
                return scope.move_to_outer(grad * ctx.saved_tensors[0]), None

    x = torch.randn(3, requires_grad=True)
    with lt.dispose_scope() as scope:
        moved, lost = (scope.detach(SineOf.apply(x, is_moved).sum()) for is_moved in (True, False))
    moved.backward()
    torch.testing.assert_close(x.grad, x.cos().detach())
    with pytest.raises(lt.DisposedTensorError):
        lost.backward()
    with lt.dispose_scope():
        _, pull = torch.func.vjp(torch.sin, x.detach())
    with pytest.raises(lt.DisposedTensorError):
        pull(torch.ones(3))


def adam_with_a_tensor_as_rate() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return torch.optim.Adam([parameter], lr=torch.tensor(0.1), foreach=False, capturable=False)


def test_options_of_an_optimizer_that_is_copied_or_changed_are_its_own() -> None:
    optimizer = adam_with_a_tensor_as_rate()
    with lt.dispose_scope():
        copied = copy.deepcopy(optimizer)
        loaded = pickle.loads(pickle.dumps(optimizer))
        optimizer.param_groups[0]["lr"] = torch.tensor(0.05)
        optimizer.step()
    for one in (optimizer, copied, loaded):
        assert not lt.is_disposed(one.param_groups[0]["lr"])
        with lt.dispose_scope():
            one.step()


def test_a_scope_is_named_that_has_ended_though_nothing_is_moved() -> None:
    with lt.dispose_scope() as ended:
        pass
    with lt.dispose_scope() as scope, pytest.raises(lt.ScopeError):
        scope.move_to_other(ended)
