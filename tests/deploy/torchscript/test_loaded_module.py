"""What lt.load makes of a file of torch.jit.save is a compiled module like any other."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt
from tests.deploy.torchscript.archives import scripted
from tests.deploy.torchscript.compared import saved
from tests.deploy.torchscript.old_net import Headless, X, archive, loaded_by_torch
from tests.deploy.torchscript.programs_of_values import ReturnsItsLists

RAW = archive(**{"notes.txt": "hello"})


def both() -> tuple[Any, Any]:
    """Return Lowtide's module and torch.jit's, in eval mode."""
    return lt.load(RAW).eval(), loaded_by_torch(RAW).eval()


def same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted)


def ours(m: Any) -> Any:
    """Return the module after lt.save and lt.load."""
    file = io.BytesIO()
    lt.save(m, file)
    return lt.load(file.getvalue())


def test_calls_and_modes() -> None:
    m, old = both()
    same(m(X), old(X))
    assert not m.encoder.norm.training
    m.train(), old.train()
    for module in (m, old):
        torch.manual_seed(0)
        module.result = module(X, k=2)
    same(m.result, old.result)
    same(m.encoder.norm.running_mean, old.encoder.norm.running_mean)
    assert m.steps == old.steps == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_conversions(dtype: torch.dtype) -> None:
    m, old = both()
    assert m.to(dtype) is m
    same(m(X.to(dtype)), old.to(dtype)(X.to(dtype)))
    assert {b.dtype for b in m.buffers()} == {dtype, torch.int64}


def test_names() -> None:
    m, old = both()
    for ask in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert [n for n, _ in getattr(m, ask)()] == [n for n, _ in getattr(old, ask)()]
    assert list(m.state_dict()) == list(old.state_dict())
    assert m.original_name == old.original_name == "Net"
    assert repr(m) == repr(old).replace("RecursiveScriptModule", "ScriptModule")
    assert isinstance(m, lt.ScriptModule)


def test_state_dicts() -> None:
    m, old = both()
    state = {k: v + 1 for k, v in old.state_dict().items()}
    assert str(m.load_state_dict(state)) == str(old.load_state_dict(state))
    same(m(X), old(X))
    with pytest.raises(RuntimeError, match="Missing key"):
        m.load_state_dict({})


def test_parts_and_exported_methods() -> None:
    m, old = both()
    same(m.encoder(X), old.encoder(X))
    same(m.encoder.fc(X), old.encoder.fc(X))
    assert m.tied.weight is m.out.weight
    m(X), old(X)
    assert m.info(more=3) == old.info(more=3) == {"steps": 1, "more": 3}
    m.reset_states(), old.reset_states()
    same(m.state, old.state)
    assert m.info() == {"steps": 0, "more": -1}


def test_attributes_that_change() -> None:
    m, old = both()
    for module in (m, old):
        module.scale = 2.0
        module.steps = 10
        module.note = "new"
    same(m(X), old(X))
    assert (m.steps, m.seen, m.note) == (old.steps, old.seen, old.note) == (11, [5], "new")
    m.out = nn.Linear(6, 2)  # torch.jit takes no other module
    same(m(X), (m.out(m.encoder(X)) * 2.0).detach())


def test_constants_of_the_program_are_not_set() -> None:
    for module in both():
        with pytest.raises(RuntimeError, match="constant 'p'"):
            module.drop.p = 0.0


def test_ten_steps_of_training() -> None:
    m, old = both()
    for module in (m, old):
        module.train()
        module.drop.eval()
        steps = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        for k in range(10):
            steps.zero_grad()
            torch.manual_seed(k)
            module(X).pow(2).mean().backward()
            steps.step()
    same(dict(m.state_dict()), dict(old.state_dict()))
    m.requires_grad_(False)
    assert not m(X).requires_grad


def test_explain_memory_and_budget() -> None:
    m, old = both()
    explained = m.explain(X)
    assert "code/__torch__/" in str(explained)
    assert m.memory(X).peak_bytes > 0
    assert (m.steps, m.seen) == (0, [])
    bounded = lt.script(m, budget="1KB")
    with pytest.raises(lt.BudgetError):
        bounded(torch.rand(10_000, 4))
    assert "def forward(" in m.code
    assert m.graph.name == "forward"
    with lt.dispose_scope():
        same(m(X[:1]), old(X[:1]))


def test_saved_in_our_format() -> None:
    m, old = both()
    again = ours(m)
    same(again(X), old(X))
    again.reset_states(), old.reset_states()
    assert again.info(2) == old.info(2)
    again.train(), old.train()
    same(again.encoder(X), old.encoder(X))


def test_copies() -> None:
    m, old = both()
    shallow, deep = copy.copy(m), copy.deepcopy(m)
    assert shallow.out.weight is m.out.weight
    same(shallow(X), old(X))
    wanted = old(X)
    with torch.no_grad():
        m.out.weight.zero_()
    same(deep(X), wanted)
    assert deep.tied.weight is deep.out.weight
    assert deep.out.weight is not m.out.weight


class Adds(nn.Module):
    """Keeps what it computed, also in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.total = torch.jit.Attribute(torch.zeros(2), torch.Tensor)
        self.past = torch.jit.Attribute([], list[torch.Tensor])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + self.layer(x)
        self.past.append(self.total)
        return self.total


class Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, bool, bool]:
        return x + 1, torch.is_autocast_enabled(), torch.is_grad_enabled()


def test_a_copy_after_a_call() -> None:
    """Values with a gradient are cloned, as in torch.jit."""
    file = io.BytesIO()
    torch.jit.save(scripted(Adds()), file)
    m, x = lt.load(file.getvalue()), torch.ones(2)
    m(x)
    deep = copy.deepcopy(m)
    assert deep.total is not m.total
    assert deep.total is deep.past[0]
    assert deep.total.requires_grad
    same(deep(x), m(x))


def test_state_of_pytorch_is_asked_at_the_call() -> None:
    file = io.BytesIO()
    torch.jit.save(scripted(Asks()), file)
    old, new, x = loaded_by_torch(file.getvalue()), lt.load(file.getvalue()), torch.ones(2)
    for m in (new, ours(new)):
        same(m(x), old(x))
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            same(m(x)[0], old(x)[0])
            assert m(x)[1:] == old(x)[1:] == (False, False)  # autocast of CUDA is asked for


@pytest.mark.parametrize("change", [lambda m: m, ours], ids=["old", "ours"])
def test_pickles(change: Any) -> None:
    m, old = both()
    m = change(m)
    m.steps = 7
    found = pickle.loads(pickle.dumps({"net": m, "again": [m], "part": m.encoder}))
    again = found["net"]
    assert found["again"][0] is again
    assert (again.steps, again.training) == (7, False)
    same(again(X), old(X))
    same(found["part"](X), old.encoder(X))
    whole = nn.Sequential(m, nn.ReLU())
    same(pickle.loads(pickle.dumps(whole))(X), old(X).relu())


def test_a_loaded_function_is_pickled() -> None:
    f = lt.script(_twice)
    again = pickle.loads(pickle.dumps(ours(f)))
    same(again(X, 3), X * 3)


def _twice(x: torch.Tensor, n: int = 2) -> torch.Tensor:
    return x * n


def test_other_compiled_modules_are_pickled_too() -> None:
    compiled = lt.script(nn.Linear(2, 2))
    x = torch.rand(3, 2)
    assert torch.equal(pickle.loads(pickle.dumps(compiled))(x), compiled(x))


def test_where_it_is_loaded_from(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    path.write_bytes(RAW)
    _, old = both()
    for f in (RAW, path, str(path), io.BytesIO(RAW), path.open("rb")):
        same(lt.load(f).eval()(X), old(X))
    same(lt.load(f=str(path), map_location=None, _restore_shapes=True).eval()(X), old(X))


def test_map_location() -> None:
    for place in ("cpu", torch.device("cpu"), {"cpu": "cpu"}):
        assert lt.load(RAW, map_location=place).out.weight.device.type == "cpu"
    shown = lt.load(RAW, map_location="meta")
    assert {p.device.type for p in shown.parameters()} == {"meta"}


def test_extra_files() -> None:
    found: dict[str, Any] = {"notes.txt": "", "other": ""}
    lt.load(RAW, _extra_files=found)
    assert found == {"notes.txt": b"hello", "other": ""}


def test_without_forward() -> None:
    m = lt.load(archive(Headless()))
    same(m.twice(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(NotImplementedError, match="no forward"):
        m(torch.ones(3))
    same(ours(m).twice(torch.ones(3)), torch.full((3,), 2.0))


def test_inside_other_compiled_code() -> None:
    m, old = both()
    outer = nn.Sequential(m, nn.ReLU())
    same(lt.script(outer)(X), old(X).relu())
    same(lt.trace(lambda x: m(x) * 2, X)(X + 1), old(X + 1) * 2)
    same(lt.compile(m)(X), old(X))
    same(torch.compile(m, backend="eager")(X), old(X))
    same(torch.func.functional_call(m, dict(m.named_parameters()), (X,)), old(X))
    same(lt.freeze(m)(X), old(X))


def test_hooks_of_the_user() -> None:
    m, _ = both()
    seen: list[torch.Size] = []
    handle = m.register_forward_hook(lambda module, args, result: seen.append(result.shape))
    m(X)
    handle.remove()
    m(X)
    assert seen == [torch.Size([5, 2])]


def test_a_part_with_a_backward_hook() -> None:
    m, old = both()
    seen: list[int] = []
    m.register_full_backward_hook(lambda module, given, wanted: seen.append(len(wanted)))
    outer = lt.script(nn.Sequential(m, nn.ReLU()))
    same(outer(X), old(X).relu())
    outer(X).sum().backward()
    assert seen == [1]


def test_threads() -> None:
    m, old = both()
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(m.encoder(X).detach())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        same(result, old.encoder(X).detach())


def test_lists_that_are_returned_are_not_the_programs() -> None:
    loaded = lt.load(io.BytesIO(saved(torch.jit.script(ReturnsItsLists()))))
    rows, _ = loaded(1)
    rows.append(7)
    assert loaded(2) == ([1, 2], ({"a": [0, 1, 2]}, [1, 2]))


def test_an_int_beyond_64_bits_is_no_result() -> None:
    def squared(n: int) -> int:
        return n * n

    loaded = lt.load(io.BytesIO(saved(torch.jit.script(squared))))
    assert loaded(3) == 9
    with pytest.raises(OverflowError, match="64 bits"):
        loaded(2**40)
