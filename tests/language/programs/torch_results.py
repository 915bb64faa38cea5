"""What PyTorch gives where no schema says so: several tensors if asked, or none at all."""

from typing import Any, List

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.language.support import call, module_program, program


def _x() -> Tensor:
    return torch.tensor([[1.0, 2, 2, 0], [0, 3, 1, 1], [5, 0, 0, 1], [2, 2, 2, 2]])


@program(args=lambda: (_x(),))
def unique_with_counts(x: Tensor):
    found = torch.unique(x, return_counts=True)
    values, counts = x.flatten().unique_consecutive(return_counts=True)
    return len(found), found[0] * 2, values + 1, counts, torch.unique(x) + 1


@program(args=lambda: (_x(),))
def pooled_with_indices(x: Tensor):
    found = F.max_pool2d(x[None, None], 2, return_indices=True)
    values, indices = F.adaptive_max_pool1d(x, 2, return_indices=True)
    return len(found), found[0] + 1, values * 2, indices, F.max_pool2d(x[None], 2) * 3


@program(args=lambda: (_x(),))
def nonzero_as_tuple(x: Tensor):
    found = x.nonzero(as_tuple=True)
    rows, columns = x.nonzero(as_tuple=True)
    return len(found), torch.stack(found), [t + 1 for t in found], x[rows, columns]


@program(calls=lambda: [call(_x()), call(_x().requires_grad_() * 2)], torchscript=False)
def has_a_history(x: Tensor):
    return x.grad_fn is None, x.nelement(), x.type().split(".")[0]


@program(args=lambda: (_x(),), torchscript=False)
def several_at_once(x: Tensor):
    both = torch.atleast_2d(x, x)
    n = torch.get_num_threads()
    return isinstance(both, Tensor), torch.stack(both), isinstance(n, int), max(n, 1) == n


def _counts() -> List[Any]:
    return [call([n, "a"]) for n in (2, torch.tensor(2), 2.5)]


@program(calls=_counts, raises=TypeError, torchscript=False)
def counted_by_any(xs: List[Any]):
    return [i for i in range(xs[0])]


@module_program(args=lambda: (torch.ones(3, 5, 3), torch.tensor([5, 2, 4])), torchscript=False)
class PackedByItsPath(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor, n: Tensor):
        packed = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]
