"""Functions and modules of installed packages: compiled if they can be, else run by Python."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn

import lowtide as lt

_SOURCE = '''
import torch
from torch import nn


def doubled(x):
    return x * 2


def turned(x, pattern):
    try:
        a, b = pattern.split()
    except ValueError as error:
        raise KeyError(pattern) from error
    return (x.t() if a > b else x), len(pattern)


def applied(fn, x):
    return fn(x) + 1


class Ratio(float):
    """What only Python can make and multiply."""

    def __new__(cls, a, b):
        return super().__new__(cls, a / b)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.count = 0

    def forward(self, x):
        try:
            self.count += 1
        finally:
            pass
        return self.fc(x), self.count
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("made") / "site-packages"
    folder.mkdir()
    (folder / "of_others.py").write_text(_SOURCE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("of_others")
    sys.path.remove(str(folder))
    del sys.modules["of_others"]


def _targets(fn: Any) -> str:
    return str(fn.graph)


def test_what_compiles_is_compiled(package: Any) -> None:
    def fn(x: Tensor) -> Tensor:
        return package.doubled(x).exp()

    x = torch.rand(3)
    compiled = lt.script(fn)
    torch.testing.assert_close(compiled(x), fn(x))
    assert "py.call" not in _targets(compiled)


def test_what_does_not_is_run_by_python(package: Any) -> None:
    def fn(x: Tensor, pattern: str) -> tuple[Tensor, int]:
        y, n = package.turned(x * 2, pattern)
        return torch.softmax(y, -1) @ y.t(), n

    compiled = lt.script(fn)
    for pattern in ("a b", "b a"):
        ours, theirs = (torch.arange(6.0).view(2, 3).requires_grad_() for _ in range(2))
        found, expected = compiled(ours, pattern), fn(theirs, pattern)
        torch.testing.assert_close(found, expected)
        found[0].square().sum().backward()
        expected[0].square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    with pytest.raises(KeyError, match="abc"):
        compiled(torch.ones(2, 3), "abc")


def test_classes_that_python_makes(package: Any) -> None:
    def fn(x: Tensor) -> Tensor:
        return x * package.Ratio(x.shape[0], 4)

    torch.testing.assert_close(lt.script(fn)(torch.ones(3)), fn(torch.ones(3)))


def test_functions_of_the_user_are_still_refused(package: Any) -> None:
    def refused(x: Tensor) -> Tensor:
        try:
            return x
        finally:
            pass

    def fn(x: Tensor) -> Tensor:
        return package.applied(refused, x)

    with pytest.raises(lt.CompileError, match="`try` is not compiled"):
        lt.script(fn)(torch.ones(2))


def test_parts_of_a_model_that_python_runs(package: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = package.Counting()

        def forward(self, x: Tensor) -> tuple[Tensor, int, int]:
            before = self.part.count
            y, n = self.part(x.relu())
            return y.tanh(), n, before * 10 + self.part.count

    torch.manual_seed(0)
    plain, x = Net(), torch.randn(4, 3)
    scripted = lt.script(Net())
    scripted.load_state_dict(plain.state_dict())
    for _ in range(3):
        torch.testing.assert_close(scripted(x), plain(x))
    with pytest.raises(lt.CompileError, match="`try` is not compiled"):
        lt.script(package.Counting())


def test_functions_numbers_and_arrays_of_numpy() -> None:
    scale, table = np.float64(3.0), np.array([1.0, 2.0])

    def fn(x: Tensor, count: np.int64) -> Tensor:
        y = x.reshape(int(np.prod(x.shape[1:])), -1) / np.sqrt(x.shape[-1])
        for i in range(count):
            y = y + i
        return y * scale * float(table[1]) + torch.tensor(table)

    x, compiled = torch.rand(2, 3, 2), lt.script(fn)
    for count in (np.int64(2), np.int64(4)):
        torch.testing.assert_close(compiled(x, count), fn(x, count))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 4), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = torch.relu(self.layer(x))
        d = torch.distributions.Categorical(logits=logits)
        around = distributions.Normal(logits, self.scale.exp())
        far = distributions.kl_divergence(around, distributions.Normal(0.0, 1.0)).sum(-1) * 2
        action = d.sample()
        return d.log_prob(action), d.entropy().mean() * 3, around.rsample().tanh(), far, action


def test_distributions_are_pythons() -> None:
    plain, x = Policy(), torch.rand(6, 5)
    scripted: Any = lt.script(copy.deepcopy(plain))
    found: list[list[Tensor]] = []
    for policy in (plain, scripted):
        torch.manual_seed(3)
        results = policy(x)
        weighed = [r.sum() * k for k, r in enumerate(results[:-1], 1)]
        gradients = torch.autograd.grad(torch.stack(weighed).sum(), list(policy.parameters()))
        found.append([*results, *gradients, torch.get_rng_state()])
    torch.testing.assert_close(found[1], found[0])
    assert scripted.memory(x).notes


def test_what_is_installed() -> None:
    from lowtide.frontend.script.source import is_installed

    assert is_installed(np.prod)
    assert is_installed(np.float32)
    own = ModuleType("own")
    assert not any(map(is_installed, (torch.sum, lt.script, len, own, test_what_is_installed)))
