"""What exported C takes: contiguous tensors, ints of the kernels, sizes that only decide, names."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

OK, BAD_SIZE = 0, 1


def called(folder: Path, name: str, sizes: tuple[int, ...], args: tuple[Any, ...]) -> int:
    run = ctypes.CDLL(str(folder / "libmodel.so"))[f"model_{name}"]
    work = torch.empty(1 << 20, dtype=torch.uint8)
    at = (work.data_ptr() + 63) // 64 * 64
    given = [
        ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int64(a) for a in args
    ]
    rest = None, ctypes.c_void_p(at), ctypes.c_size_t((1 << 20) - 64), None
    return run((ctypes.c_int64 * len(sizes))(*sizes), *given, *rest)


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 7).t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


@pytest.mark.parametrize("example", [torch.randn(40, 50).t(), torch.randn(50, 80)[:, ::2]])
def test_an_example_of_other_strides(example: Tensor, tmp_path: Path) -> None:
    lt.export_c(lt.script(product), tmp_path, (example, torch.randn(40, 3)))
    x, y, out = torch.randn(60, 45), torch.randn(45, 3), torch.zeros(60, 3)
    assert called(tmp_path, "product", (60, 45), (x, y, out)) == OK
    torch.testing.assert_close(out, x @ y, rtol=1e-4, atol=1e-5)


def test_weights_of_other_strides(tmp_path: Path) -> None:
    model = Transposed().eval()
    lt.export_c(lt.script(model), tmp_path, (torch.randn(40, 7),))
    x, out = torch.randn(60, 7), torch.zeros(60, 5)
    assert called(tmp_path, "forward", (60,), (x, out)) == OK
    torch.testing.assert_close(out, model(x).detach(), rtol=1e-4, atol=1e-5)


def rows(x: Tensor, n: int) -> Tensor:
    return x.view(n, -1).sum(1)


def shifted(x: Tensor, n: int) -> Tensor:
    return x * n + 1


def test_ints_that_are_constants_are_checked(tmp_path: Path) -> None:
    x, out = torch.randn(80, 6), torch.zeros(60)
    lt.export_c(lt.script(rows), tmp_path, (x, 40))
    assert called(tmp_path, "rows", (0,), (x, 40, out)) == OK
    torch.testing.assert_close(out[:40], rows(x, 40), rtol=1e-5, atol=1e-5)
    assert called(tmp_path, "rows", (0,), (x, 60, out)) == BAD_SIZE


def test_ints_are_what_the_sizes_say(tmp_path: Path) -> None:
    x, out = torch.randn(40, 6), torch.zeros(40, 6)
    lt.export_c(lt.script(shifted), tmp_path, (x, 50))
    assert called(tmp_path, "shifted", (40, 70), (x, 70, out)) == OK
    torch.testing.assert_close(out, shifted(x, 70))
    assert called(tmp_path, "shifted", (40, 70), (x, 50, out)) == BAD_SIZE


def decided(x: Tensor, other: Tensor) -> Tensor:
    if other.shape[0] > 100:
        return x * 2
    return x + 1


def test_sizes_that_only_decide(tmp_path: Path) -> None:
    x, other, out = torch.randn(40), torch.randn(50), torch.zeros(40)
    lt.export_c(lt.script(decided), tmp_path, (x, other))
    assert called(tmp_path, "decided", (40, 50), (x, other, out)) == OK
    torch.testing.assert_close(out, x + 1)
    assert called(tmp_path, "decided", (40, 101), (x, other, out)) == OK
    torch.testing.assert_close(out, x * 2)


def added(double: Tensor, sizes: Tensor, out0: Tensor, wörk: Tensor, t_x: float) -> Tensor:
    return double + sizes * out0 - wörk * t_x


def scattered(x: Tensor, places: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], x.shape[1]).index_add(0, places, x)


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (added, (*(torch.randn(4, 40).unbind(0)), 2.5)),
        (added, (*(torch.randn(4, 40).unbind(0)), float("inf"))),
        (scattered, (torch.randn(40, 5), torch.randint(0, 40, (40,)))),
    ],
)
def test_the_c_is_taken(program: Any, args: Any, tmp_path: Path) -> None:
    assert "largest difference 0\n" in lt.export_c(lt.script(program), tmp_path, args).selftest()


def pool(x: Tensor) -> Tensor:
    return x.mean(0)


def test_a_function_is_named_like_a_type_of_the_header(tmp_path: Path) -> None:
    found = lt.export_c(lt.script(pool), tmp_path, (torch.randn(40, 5),))
    assert found.functions == ("model_pool_",)
    assert "largest difference 0\n" in found.selftest()


def test_complex_tensors_have_no_c(tmp_path: Path) -> None:
    with pytest.raises(lt.ExportError, match="complex64"):
        lt.export_c(lt.script(product), tmp_path, (torch.randn(40, 40, dtype=torch.complex64),) * 2)
