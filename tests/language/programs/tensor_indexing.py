"""Tensor indexing and index assignment in all mixes."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from tests.language.support import program


def _x() -> torch.Tensor:
    return torch.arange(24.0).reshape(2, 3, 4)


@program(args=lambda: (_x(),))
def ints(x: torch.Tensor) -> List[torch.Tensor]:
    return [x[0], x[-1], x[1, 2], x[0, -1, 3], x[1][2][0]]


@program(args=lambda: (_x(),))
def slices(x: torch.Tensor) -> List[torch.Tensor]:
    return [x[:, 1:], x[:1], x[..., ::2], x[:, :, 1:3], x[:, -2:, :-1], x[1:1]]


@program(args=lambda: (_x(),))
def ellipsis_and_none(x: torch.Tensor) -> List[torch.Tensor]:
    return [x[..., 0], x[0, ...], x[None], x[:, None, 1], x[..., None], x[0, ..., None, 1]]


@program(args=lambda: (_x(), 1, 2))
def computed(x: torch.Tensor, i: int, n: int) -> List[torch.Tensor]:
    return [x[i], x[:, i : i + n], x[i - 1, n], x[..., : n + 1], x[:, -n:]]


@program(args=lambda: (_x(),))
def masks(x: torch.Tensor) -> List[torch.Tensor]:
    m = x[0] > 5
    return [x[x > 10], x[0][m], x[:, m], x[torch.tensor([True, False])]]


@program(args=lambda: (_x(), torch.tensor([1, 0, 1])), torchscript=False)
def index_tensors(x: torch.Tensor, i: torch.Tensor) -> List[torch.Tensor]:
    return [x[i], x[:, i], x[i, i], x[..., i], x[i, :, 0], x[0, i, 1:]]


@program(args=lambda: (_x(), torch.tensor([[0], [1]]), torch.tensor([0, 2])))
def index_tensors_broadcast(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return x[i, j]


@program(args=lambda: (_x(),))
def list_indices(x: torch.Tensor) -> List[torch.Tensor]:
    return [x[[0, 1]], x[:, [2, 0]], x[[0, 1], [1, 2]]]


@program(args=lambda: (_x(), torch.tensor(1)))
def index_by_scalar_tensor(x: torch.Tensor, i: torch.Tensor) -> List[torch.Tensor]:
    return [x[i], x[0, i], x[:, i]]


@program(args=lambda: (_x(),))
def assign_ints(x: torch.Tensor) -> torch.Tensor:
    x[0, 0, 0] = 100
    x[1] = -1.5
    x[-1, -1] = torch.ones(4)
    return x


@program(args=lambda: (_x(),))
def assign_slices(x: torch.Tensor) -> torch.Tensor:
    x[:, 1:, ::2] = 0
    x[..., -1] = torch.tensor([7.0, 8.0, 9.0])
    x[0, :2] = x[1, 1:] * 2
    return x


@program(args=lambda: (_x(),))
def assign_masks(x: torch.Tensor) -> torch.Tensor:
    x[x > 20] = 0
    x[:, x[0, :, 0] > 3] = -1
    x[x == 0] = torch.tensor(50.0)
    return x


@program(args=lambda: (_x(), torch.tensor([1, 0])))
def assign_index_tensors(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x[i, 0] = torch.zeros(4)
    x[:, i] = 3.0
    x[0, i, i] = torch.tensor([10.0, 20.0])
    return x


@program(args=lambda: (_x(),))
def assign_none_and_ellipsis(x: torch.Tensor) -> torch.Tensor:
    x[:, None, 0] = torch.ones(2, 1, 4)
    x[...] = x + 1
    x[..., 0:1] = 5
    return x


@program(args=lambda: (_x(),))
def assign_whole(x: torch.Tensor) -> torch.Tensor:
    x[:] = 2
    return x


@program(args=lambda: (_x(),))
def augmented(x: torch.Tensor) -> torch.Tensor:
    x[0] += 1
    x[:, 1] *= 2
    x[..., -1] -= x[..., 0]
    x[1, 2, 3] /= 4
    return x


@program(args=lambda: (_x(),))
def augmented_masks(x: torch.Tensor) -> torch.Tensor:
    x[x > 10] *= -1
    x[torch.tensor([0])] += 100
    return x


@program(args=lambda: (_x(),))
def slice_is_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x[:, 1:]
    y += 100
    y[0][0] = 0
    return x


@program(args=lambda: (_x(),))
def mask_is_a_copy(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    y = x[x > 5]
    y += 100
    return x, y


@program(args=lambda: (_x(),))
def nested_index_assignment(x: torch.Tensor) -> torch.Tensor:
    x[0][1] = 9
    x[1][:, 2] = -9
    x[0, 1:][0, 0] = 77
    return x


@program(args=lambda: (torch.zeros(3, dtype=torch.int64),))
def assign_with_cast(x: torch.Tensor) -> torch.Tensor:
    x[0] = 2.9
    x[1] = True
    x[2:] = torch.tensor([3.7])
    return x


@program(args=lambda: (_x(), 3))
def assign_in_loops(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(x.size(0)):
        for j in range(n):
            x[i, j] = i * 10 + j
            if j > 0:
                x[i, j] += x[i, j - 1]
    return x


@program(args=lambda: (_x(), None))
def slice_with_optional(x: torch.Tensor, stop: Optional[int]) -> torch.Tensor:
    return x[:, :stop]


@program(args=lambda: (_x(),))
def slice_variable_bounds(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    out: List[torch.Tensor] = []
    for i in range(0, n, 2):
        out.append(x[:, i : min(i + 2, n)].sum(dim=1))
    return torch.stack(out)


@program(args=lambda: (torch.zeros(4), [3, 1]))
def assign_from_list_of_ints(x: torch.Tensor, ids: List[int]) -> torch.Tensor:
    for k, i in enumerate(ids):
        x[i] = k + 1
    return x


@program(args=lambda: (torch.arange(5),))
def flip_and_roll(x: torch.Tensor) -> List[torch.Tensor]:
    return [x.flip(0), x.roll(2), torch.cat([x[-1:], x[:-1]])]


@program(args=lambda: (_x(),), raises=IndexError)
def too_many_indices(x: torch.Tensor) -> torch.Tensor:
    return x[0, 0, 0, 0]


@program(args=lambda: (_x(), 9), raises=IndexError)
def out_of_bounds(x: torch.Tensor, i: int) -> torch.Tensor:
    return x[i]


@program(args=lambda: (torch.zeros(2, 2),))
def assign_list_of_values(x: torch.Tensor) -> torch.Tensor:
    x[0] = torch.tensor([1.0, 2.0])
    x[1, 0], x[1, 1] = 3.0, 4.0
    return x


@program(args=lambda: (torch.zeros(6),))
def window_sums(x: torch.Tensor) -> torch.Tensor:
    for i in range(6):
        x[i] = i * i
    out = torch.zeros(4)
    for i in range(4):
        out[i] = x[i : i + 3].sum()
    return out


@program(args=lambda: (_x(), slice(0, 1)), optional=True, torchscript=False)
def slice_object(x: torch.Tensor, s: slice) -> torch.Tensor:
    return x[s]


@program(args=lambda: (_x(),), torchscript=False)
def tuple_as_index(x: torch.Tensor) -> torch.Tensor:
    where = (0, 1)
    return x[where]


def _offsets() -> Tuple[Tensor, Tensor]:
    return torch.arange(12.0).view(6, 2), torch.tensor([2, 0, 3])


@program(args=_offsets)
def rows_between_offsets(x: Tensor, lengths: Tensor) -> List[Tensor]:
    ends = torch.cat([torch.zeros(1, dtype=torch.long), torch.cumsum(lengths, 0)])
    rows: List[Tensor] = []
    for i in range(lengths.numel()):
        rows.append(x[ends[i] : ends[i + 1]])
    return rows


@program(args=_offsets)
def stores_between_offsets(x: Tensor, n: Tensor) -> Tuple[Tensor, Tensor]:
    y = x * 1
    y[n[1] : n[0]] = 7
    y[n[0] : n[2], n[1]] += 3
    return y, y[:: n[0]] * 2


@program(args=_offsets, torchscript=False)
def sizes_that_are_tensors(x: Tensor, n: Tensor):
    y = (x + 1).view(n[2], -1)
    return y.narrow(0, n[0], 1), torch.arange(n[0], n[2] * 2), x.repeat(n[0], n[2])


@program(
    calls=lambda: [
        (torch.arange(27.0).view(3, 3, 3), (0, 2), [(0, 1), (1, 2)]),
        (torch.arange(27.0).view(3, 3, 3), (1, 1), [(2, 0)]),
    ],
    torchscript=False,
)
def tuples_of_ints(x: Tensor, two: Tuple[int, int], more: List[Tuple[int, int]]):
    y = x.clone()
    y[:, two] = -1.0
    y[more[0]] = 5.0
    return x[:, two], x[two], x[..., two], x[two, :], [x[t] for t in more], x[more[0]], y, x[:, ()]
