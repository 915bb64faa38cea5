"""What a traced function takes and gives: nests, keywords, aliases, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import agree, same

import lowtide as lt
from lowtide.errors import CompileError, LowtideError

R = torch.rand


def test_nested_inputs() -> None:
    def fn(batch, rest):
        return batch["x"] * rest[0] + rest[1][0], {"y": batch["y"]}

    x = R(3)
    traced = lt.trace(fn, ({"x": x, "y": x + 1}, [x, (x,)]))
    a, b, c, d = R(5), R(5), R(5), R(5)
    given = {"y": b, "x": a}  # another order
    same(traced(given, [c, (d,)]), fn(given, [c, (d,)]))
    with pytest.raises(TypeError, match=r"`batch` of fn\(\) has the keys"):
        traced({"x": a}, [c, (d,)])
    with pytest.raises(TypeError, match=r"argument `rest`"):
        traced(given, [c])


def test_a_lone_dict_is_one_argument() -> None:
    traced = lt.trace(lambda d: d["a"] + 1, {"a": R(2)})
    assert traced({"a": torch.zeros(3)}).tolist() == [1, 1, 1]


def test_a_list_is_the_arguments() -> None:
    assert lt.trace(torch.add, [R(2), R(2)])(torch.ones(3), torch.ones(3)).tolist() == [2, 2, 2]


def test_keywords() -> None:
    def fn(x, y, *, scale=None):
        return x - y if scale is None else (x - y) * scale

    traced = lt.trace(fn, (R(3),), example_kwarg_inputs={"y": R(3), "scale": R(3)})
    x, y, s = R(4), R(4), R(4)
    same(traced(x, y=y, scale=s), fn(x, y, scale=s))
    same(traced(scale=s, y=y, x=x), fn(x, y, scale=s))
    with pytest.raises(TypeError, match="missing argument: 'scale'"):
        traced(x, y)
    with pytest.raises(TypeError, match="'other'"):
        traced(x, y, scale=s, other=x)
    with pytest.raises(TypeError, match="a float"):
        traced(x, y, scale=2.0)


def test_none_stays_none() -> None:
    traced = lt.trace(lambda x, y: x if y is None else x + y, (R(2), None))
    x = R(3)
    same(traced(x, None), x)
    same(traced(x), x)
    with pytest.raises(TypeError, match="traced with None"):
        traced(x, x)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    def fn(x):
        return x * 2 + x.numel(), x.sum()

    agree(lt.trace(fn, R(shape)), fn, (R(shape),))


def test_equal_arguments_are_told_apart() -> None:
    x = R(3)
    traced = lt.trace(lambda a, b: a - 2 * b, (x, x))
    a, b = R(4), R(4)
    same(traced(a, b), a - 2 * b)
    same(traced(a, a), a - 2 * a)


def test_overlapping_inputs_change_together() -> None:
    def fn(a, b):
        a.add_(1)
        return b * 2

    traced = lt.trace(fn, (R(3), R(3)))
    for call in (traced, fn):
        x = torch.zeros(4)
        assert call(x, x[1:]).tolist() == [2, 2, 2]


def test_returned_input_is_the_input() -> None:
    traced = lt.trace(lambda x, y: (y, x + y), (R(2), R(2)))
    x, y = R(3), R(3)
    assert traced(x, y)[0] is y


def test_a_size_that_is_returned_follows_the_input() -> None:
    traced = lt.trace(lambda x: torch.full((x.shape[0],), x.shape[1]), R(2, 3))
    assert traced(R(4, 7)).tolist() == [7, 7, 7, 7]


# -- bad input ------------------------------------------------------------------------------------


def test_number_as_input() -> None:
    with pytest.raises(CompileError, match=r"argument `n` of fn\(\) is an int \(3\)"):
        lt.trace(lambda_named("fn", lambda x, n: x * n), (R(2), 3))


def lambda_named(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    fn.__name__ = name
    return fn


def test_nested_number_as_input() -> None:
    with pytest.raises(CompileError, match=r"argument `x\['a'\]\[1\]` of .* is a str"):
        lt.trace(lambda x: x["a"][0], ({"a": [R(2), "no"]},))


@pytest.mark.parametrize(
    ("result", "what"), [(3, "an int"), ("s", "a str"), (object(), "an object")]
)
def test_results_that_are_no_tensors(result: object, what: str) -> None:
    with pytest.raises(CompileError, match=rf"the result\[1\] of traced\(\) is {what}"):
        lt.trace(lambda x: (x, result), R(2))


def test_no_inputs() -> None:
    with pytest.raises(CompileError, match="without inputs"):
        lt.trace(torch.add)


def test_exceptions_go_through_and_leave_nothing() -> None:
    before = torch.jit.is_tracing

    class Mine(Exception):
        pass

    error = Mine("here")

    def fn(x):
        assert torch.jit.is_tracing()
        assert torch._C._is_tracing()
        raise error

    with pytest.raises(Mine) as caught:
        lt.trace(fn, R(2))
    assert caught.value is error
    assert torch.jit.is_tracing is before
    assert not lt.is_tracing()
    assert not torch._C._is_tracing()
    assert not torch._C._is_torch_function_mode_enabled()


def test_nested_traces() -> None:
    with pytest.raises(LowtideError, match="inside a traced function"):
        lt.trace(lambda x: lt.trace(torch.sin, x)(x), R(2))


def test_what_cannot_be_recorded() -> None:
    with pytest.raises(CompileError, match="a Generator"):
        lt.trace(lambda x: x + torch.rand(x.shape[0], generator=torch.Generator()), R(2))


def test_tune_is_checked() -> None:
    with pytest.raises(LowtideError, match="tune"):
        lt.trace(torch.sin, R(2), tune="yes")  # pyright: ignore


def test_transforms_inside() -> None:
    for transform in (torch.func.vmap, torch.func.grad):
        with pytest.raises(CompileError, match=r"torch\.func transform .*\n.*\n.*\n.*around"):
            lt.trace(lambda x, t=transform: t(lambda r: (r * 2).sum())(x), R(3))
    traced = lt.trace(lambda x: (x * 2).sum(), R(3))
    assert torch.func.grad(traced)(R(3)).tolist() == [2, 2, 2]


def test_data_set() -> None:
    def fn(x, y):
        z = x * 2
        z.data = y
        z.grad = y * 3
        y += 1
        return z + x, z.grad

    traced = lt.trace(fn, (R(2), R(2)))
    x, y = torch.rand(3), torch.rand(3)
    for got, want in zip(traced(x, y.clone()), fn(x, y.clone()), strict=True):
        assert torch.equal(got, want)


def test_data_set_to_itself_is_nothing() -> None:
    weight = torch.nn.Parameter(R(3))

    def fn(x):
        weight.data = weight.data.to(x.device)
        return x * weight

    x = R(3)
    assert torch.equal(lt.trace(fn, R(3))(x), fn(x))


def test_a_cast_to_a_legacy_tensor_type() -> None:
    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.type(torch.DoubleTensor) + x.type(torch.LongTensor)

    x = torch.rand(3) * 5
    traced = lt.trace(cast, (x,))
    assert torch.equal(traced(x + 1), cast(x + 1))


def test_a_cast_that_changed_nothing_is_a_tensor_of_its_own() -> None:
    """`x.float()` of the floats of the example is x; of the halves of a call it is not."""

    def fn(x):
        return (x.float() * x.float().mean()).type_as(x), x.contiguous() + 1, x

    traced = lt.trace(fn, R(2, 3))
    for x in (R(2, 3), R(2, 3).bfloat16(), R(3, 2).double().t()):
        same(traced(x), fn(x))
