"""Tensors that are disposed while other threads compute with them; run in a process of its own.

python -m tests.scopes.threads_alone        prints how often each came first, or crashes
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

import lowtide as lt

ROUNDS = 8
SIDE = 700
USES: dict[str, Callable[[Tensor], object]] = {
    "exp": lambda x: x.exp().sum(),
    "sum": lambda x: x.sum() + x.amax(),
    "matmul": lambda x: x @ x,
    "sort": lambda x: x.sort().values.cumsum(0),
    "std": lambda x: x.std(1).softmax(0),
    "gradient": lambda x: (x * x.tanh()).sum().backward(),
    "views": lambda x: x.t()[1:].reshape(-1).clone().contiguous().add_(x.flatten()[0]),
    "convolution": lambda x: nn.functional.conv2d(x[None, None], x[:3, :3][None, None]),
    "in place": lambda x: x.detach().mul_(1.5).sub_(x.detach()),
    "copies": lambda x: (x.double(), x.numpy(force=True), x.to(torch.float16), x.tolist()[0]),
    "many": lambda x: torch.stack([torch.cat([x, x]), torch.cat([x.neg(), x])]),
}


def compete(use: Callable[[Tensor], object], seen: Counter[str]) -> None:
    """Another thread uses a tensor, and the scope ends a little later each time."""
    box: list[Tensor] = []
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        while go.wait() and box:
            go.clear()
            try:
                use(box[0])
                seen["computed"] += 1
            except lt.DisposedTensorError:
                seen["disposed"] += 1
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    for k in range(ROUNDS):
        done.clear()
        with lt.dispose_scope():
            box[:] = [torch.rand(SIDE + k, SIDE + k).requires_grad_()]
            go.set()
            time.sleep(0.0007 * k)
        done.wait()
    box.clear()
    go.set()
    thread.join()


def main() -> None:
    """All uses, one after the other."""
    for name, use in USES.items():
        seen = Counter[str]()
        compete(use, seen)
        print(name, dict(seen), flush=True)


if __name__ == "__main__":
    main()
