"""lt.Sequential: the results of nn.Sequential, and nothing left in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt
from lowtide.memory.measure import measure_peak

MIB = 1 << 20


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Identity(), nn.Flatten(), nn.Linear(8, 2)]


def test_it_is_nn_sequential_otherwise() -> None:
    ours, plain = lt.Sequential(*layers()), nn.Sequential(*layers())
    x = torch.randn(3, 4)
    torch.testing.assert_close(ours(x), plain(x), rtol=0, atol=0)
    assert isinstance(ours, nn.Sequential)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    assert len(ours[1:3]) == 2
    assert type(ours[1:3]) is lt.Sequential
    x.sum()


def test_what_layers_made_in_between_is_disposed() -> None:
    seen: list[Any] = []
    model = lt.Sequential(*layers())
    for layer in model:
        layer.register_forward_hook(lambda module, args, out: seen.append(out))
    x = torch.randn(3, 4)
    y = model(x)
    assert not lt.is_disposed(x)
    assert not lt.is_disposed(y)
    assert [lt.is_disposed(t) for t in seen] == [True, True, True, True, False]


def test_the_result_is_the_surrounding_scopes() -> None:
    model = lt.Sequential(*layers())
    with lt.dispose_scope() as scope:
        y = model(torch.randn(3, 4))
        assert scope.contains(y)
    assert lt.is_disposed(y)


def test_a_result_that_is_the_input_is_left_alone() -> None:
    x = torch.randn(3)
    assert lt.Sequential()(x) is x
    assert lt.Sequential(nn.Identity(), nn.Identity())(x) is x
    view = lt.Sequential(nn.Flatten(0), nn.Identity())(x)
    assert view.data_ptr() == x.data_ptr()
    x.sum()


def test_gradients_are_the_same() -> None:
    found = []
    for kind in (lt.Sequential, nn.Sequential):
        model = kind(*layers())
        x = torch.ones(3, 4, requires_grad=True)
        model(x).square().sum().backward()
        found.append([x.grad, *(p.grad for p in model.parameters())])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)


def test_layers_that_return_several_tensors() -> None:
    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x * 3

    class Join(nn.Module):
        def forward(self, parts: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"sum": parts[0] + parts[1], "first": parts[0]}

    result = lt.Sequential(Split(), Join())(torch.ones(2))
    assert result["sum"].tolist() == [5, 5]
    assert result["first"].tolist() == [2, 2]


def test_an_error_in_a_layer_passes() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lt.Sequential(*layers())(torch.ones(3, 5))
    assert lt.current_dispose_scope() is None


def test_compilers_of_source_code_read_it_as_plain_sequential() -> None:
    model, x = lt.Sequential(*layers()), torch.randn(3, 4)
    for scripted in (torch.jit.script(model), lt.script(model), lt.script(nn.Sequential(model))):
        torch.testing.assert_close(scripted(x), model(x))


def test_layers_that_keep_their_results_need_no_collector() -> None:
    """A layer that stores what it made, as a visualiser does, adds nothing to the peak."""

    class Keeping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = [x + 1]
            return self.last[0]

    def peak(kind: type[nn.Sequential]) -> int:
        model = kind(*(Keeping() for _ in range(8)))
        x = torch.ones(MIB)
        with torch.no_grad():
            return measure_peak(lambda: model(x))[0].peak_bytes

    assert peak(nn.Sequential) >= 8 * 4 * MIB
    assert peak(lt.Sequential) <= 2 * 4 * MIB + MIB


def test_frames_of_compilers_see_plain_sequential() -> None:
    model = lt.Sequential(*layers())
    x = torch.randn(3, 4)
    traced = torch.jit.trace(model, (x,))
    torch.testing.assert_close(traced(x), model(x))


def test_compilers_of_frames_see_one_graph() -> None:
    model = lt.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))
