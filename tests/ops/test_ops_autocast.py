"""The tables of `ops.autocast` against PyTorch: the ops that it calls, and in which dtypes.

Fake tensors are of any device, so that the rows for CUDA are checked without one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from against_eager import complete
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lowtide.ir.dtypes import from_torch
from lowtide.ops.autocast import LEFT, LOWER, WIDE, operand_dtype
from lowtide.ops.registry import Param, all_records, by_name

F32, BF16 = torch.float32, torch.bfloat16
X, CLASSES = torch.rand(4, 4), torch.tensor([0, 1, 2, 3])
# Of ops in a row whose operands cannot be guessed.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "addmm": (X, X, X),
    "addmv": (X[0], X, X[0]),
    "baddbmm": (X[None], X[None], X[None]),
    "bilinear": (X, X, X[None]),
    "bmm": (X[None], X[None]),
    "conv1d": (X[None], X[..., None]),
    "conv2d": (X[None, :, :, None], X[..., None, None]),
    "conv3d": (X[None, :, :, None, None], X[..., None, None, None]),
    "cross_entropy": (X, CLASSES),
    "einsum": ("ij,jk->ik", [X, X]),
    "group_norm": (X[None], 2),
    "mv": (X, X[0]),
    "nll_loss": (X, CLASSES),
    "prelu": (X, X[0, :1]),
    "rms_norm": (X, [4]),
    "layer_norm": (X, [4]),
    "scaled_dot_product_attention": (X[None], X[None], X[None]),
}
GUESSES = {"Tensor": X, "Tensor[]": [X, X], "int": 1, "int[]": [1], "float": 0.5, "Scalar": 2.0,
           "bool": False, "dtype": F32}  # fmt: skip
# The ops of ATen's differ, the dtype does not: sums and norms of half precision are added up in
# float32 anyway; on CUDA PyTorch rounds the log-probabilities within cross_entropy to the lower
# dtype, to take their mean in float32.
SAME_BY_VALUE = {"prod", "sum", "linalg.vector_norm", "softmin", "cross_entropy"}


class Calls(TorchDispatchMode):
    """Notes each op of ATen's, but for casts, with the dtypes and sizes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.__name__ not in ("_to_copy.default", "detach.default", "device.default"):
            leaves = tree_leaves((args, kwargs, found))
            tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
            self.seen.append((str(func), [(x.dtype, tuple(x.shape)) for x in tensors]))
        return found


@contextmanager
def autocast(device: str, on: bool) -> Iterator[None]:
    """Also where the device is not to be had, which `torch.autocast` refuses."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, on)
    torch.set_autocast_dtype(device, BF16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.clear_autocast_cache()


def calls(name: str, operands: Sequence[Any], device: str, on: bool) -> tuple[Any, Any]:
    record = by_name(name)
    with FakeTensorMode():
        fake = tree_map(lambda x: _moved(x, device), complete(record, list(operands)))
        with autocast(device, on), Calls() as log:
            found = record.eager(*fake)
    return log.seen, [x.dtype for x in tree_leaves(found) if isinstance(x, torch.Tensor)]


def _moved(x: Any, device: str) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def cast(operands: Any, dtype: torch.dtype) -> Any:
    def visit(x: Any) -> Any:
        is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.to(dtype) if is_float else x

    return tree_map(visit, list(operands))


def guessed(params: Sequence[Param]) -> list[Any]:
    needed = itertools.takewhile(lambda p: not p.optional and "REQUIRED" in repr(p.default), params)
    return [GUESSES[p.types[0]] for p in needed]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tables(device: str) -> None:
    for name in LOWER[device] | WIDE[device]:
        operands = SAMPLES.get(name) or guessed(by_name(name).params)
        to = operand_dtype(name, device, from_torch(BF16))
        assert to is not None
        for given in (F32, BF16):
            found = calls(name, cast(operands, given), device, True)
            expected = calls(name, cast(operands, to.torch), device, False)
            if name in SAME_BY_VALUE:
                found, expected = found[1], expected[1]
            assert found == expected, (name, given)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_others_take_their_operands_as_they_are(device: str) -> None:
    tried = 0
    for record in all_records():
        name = record.name
        if record.lower is None or name in LOWER[device] | WIDE[device] | LEFT[device]:
            continue
        for given in (F32, BF16):
            try:
                operands = cast(guessed(record.params), given)
                expected = calls(name, operands, device, False)
            except Exception:  # the guess does not fit
                break
            assert calls(name, operands, device, True) == expected, (name, given)
            tried += 1
    assert tried > 250


def test_padding_that_repeats() -> None:
    constant = (torch.rand(1, 4, 4).bfloat16(), [1, 1], "constant", 0.0)
    assert calls("pad", constant, "cpu", True) == calls("pad", constant, "cpu", False)
