"""Types in comments, as in Python 2: `# type: (Tensor, int) -> Tensor`."""

from typing import Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.language.support import module_program, program


@program(args=lambda: (torch.ones(2), 3))
def one_line(x, n):
    # type: (Tensor, int) -> Tensor
    return x * n


@program(args=lambda: (torch.ones(2), [1, 2], "s"))
def several_types(x, xs, s):
    # type: (Tensor, List[int], str) -> Tuple[Tensor, int, str]
    return x, sum(xs), s + "!"


@program(
    calls=lambda: [(torch.ones(2), None), (torch.ones(2), torch.ones(2))],
)
def optional_in_comment(x, y):
    # type: (Tensor, Optional[Tensor]) -> Tensor
    if y is None:
        return x
    return x + y


@program(args=lambda: (torch.ones(2), 2, [1.5]))
def argument_a_line(
    x,  # type: Tensor
    n,  # type: int
    fs,  # type: List[float]
):
    # type: (...) -> Tensor
    for f in fs:
        x = x * f + n
    return x


@program(args=lambda: (3,), torchscript=False)
def local_comments(n):
    # type: (int) -> Dict[str, List[int]]
    out = {}  # type: Dict[str, List[int]]
    xs = []  # type: List[int]
    for i in range(n):
        xs.append(i)
    out["xs"] = xs
    return out


@program(args=lambda: (3,), torchscript=False)
def optional_local(n):
    # type: (int) -> int
    best = None  # type: Optional[int]
    for i in range(n):
        if best is None:
            best = i
        elif i > best:
            best = i
    if best is None:
        return -1
    return best


@program(args=lambda: (torch.zeros(2),))
def returns_none(x):
    # type: (Tensor) -> None
    x.add_(1)


def _helper(a, b=2):
    # type: (int, int) -> int
    return a * b


@program(args=lambda: (4,))
def comments_on_helper(n):
    # type: (int) -> int
    return _helper(n) + _helper(n, 5)


@program(args=lambda: (torch.ones(2), 2.0))
def comment_with_qualified_names(x, f):
    # type: (torch.Tensor, float) -> torch.Tensor
    return x * f  # type: ignore


@module_program(args=lambda: (torch.ones(2, 3), 2), torchscript=False)
class CommentModule(nn.Module):
    def __init__(self):
        # type: () -> None
        super(CommentModule, self).__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x, n=1):
        # type: (Tensor, int) -> Tuple[Tensor, List[Tensor]]
        steps = []  # type: List[Tensor]
        for _ in range(n):
            x = self.step(x)
            steps.append(x)
        return x, steps

    def step(self, x):
        # type: (Tensor) -> Tensor
        return torch.tanh(self.fc(x))
