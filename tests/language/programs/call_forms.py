"""Calls that no overload of PyTorch takes: its own TypeError."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.language.support import program

X = torch.linspace(-1, 1, 6).view(2, 3)


@program(args=lambda: (X,), raises=TypeError, torchscript=False)
def kept_dims_without_dims(x: Tensor):
    return x.sum(keepdim=True)


@program(args=lambda: (X,), raises=TypeError, torchscript=False)
def an_axis_of_a_function_of_python(x: Tensor):
    return F.softmax(x, axis=1)


@program(args=lambda: (X,), raises=TypeError, torchscript=False)
def a_tensor_and_a_number_as_bounds(x: Tensor):
    return torch.clamp(x, x - 1, 0.5)


@program(args=lambda: (X,), raises=TypeError, torchscript=False)
def in_place_where_it_is_not(x: Tensor):
    return torch.relu(x, inplace=False)


@program(args=lambda: (X,), raises=TypeError, torchscript=False)
def a_mean_of_dims_that_are_none(x: Tensor):
    return x.prod(dim=None, keepdim=True)


@program(args=lambda: (X,))
def forms_of_sums(x: Tensor):
    return x.sum((0, 1), True), x.sum(dim=[0]), torch.sum(x, 1, keepdim=True), x.sum()


@program(calls=lambda: [(torch.Size([2, 3]),), ([2, 3],)], raises=AttributeError, torchscript=False)
def number_of_elements(size: torch.Size):
    return size.numel()


@program(args=lambda: (X,), torchscript=False)
def numbers_of_elements(x: Tensor):
    sizes = [x.shape, x.size()[1:], x.shape + x.shape]
    return [s.numel() for s in sizes], x.new_ones(x.shape.numel()) * x.shape[:1].numel()
