"""Trains a handwritten convolution on scikit-learn's digits, to 97 % of the test images.

    pip install 'lowtide[examples]'
    python examples/digits.py                       compiled; digits.png shows how it went
    python examples/digits.py --eager --epochs 3    the same model and data in plain PyTorch

The layer is loops over channels and outputs, as one would explain it. `lt.script` lifts both loops,
so that the layer and its gradients are a few kernels; the training loop is PyTorch's usual one.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

import lowtide as lt

ACCURACY = 0.97  # of the test images, after EPOCHS
EPOCHS, BATCH, SEED = 30, 100, 0
CHANNELS, SIZE, CLASSES = 16, 3, 10


class Conv2d(nn.Module):
    """A convolution without padding. x: [N, C, H, W] -> [N, outputs, H - size + 1, W - size + 1]"""

    def __init__(self, channels: int, outputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        bound = (channels * size * size) ** -0.5
        self.weights = nn.Parameter(torch.empty(outputs, channels, size * size))
        nn.init.uniform_(self.weights, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w = x.shape[0], x.shape[2] - self.size + 1, x.shape[3] - self.size + 1
        windows = F.unfold(x, self.size).view(n, x.shape[1], self.size * self.size, h * w)
        result = torch.zeros(n, self.weights.shape[0], h * w)
        for c in range(x.shape[1]):
            for o in range(self.weights.shape[0]):
                result[:, o] += self.weights[o, c] @ windows[:, c]
        return result.view(n, self.weights.shape[0], h, w)


class Classifier(nn.Module):
    """Digits of 8 by 8 pixels -> logits of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Conv2d(1, CHANNELS, SIZE)
        self.hidden = nn.Linear(CHANNELS * 36, 64)
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(torch.relu(self.conv(x)).flatten(1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """x: [N, 1, 8, 8] with values in [0, 1]; y: [N]."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(slots=True)
class History:
    """One entry an epoch: the mean loss, and the accuracy on the test images."""

    losses: list[float] = field(default_factory=list[float])
    accuracies: list[float] = field(default_factory=list[float])


def load() -> Digits:
    """The 1,797 digits that come with scikit-learn, shuffled; every fifth is a test image."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(SEED))
    x = torch.from_numpy(found.images).float()[order, None] / 16
    y = torch.from_numpy(found.target).long()[order]
    test = torch.arange(len(y)) % 5 == 0
    return Digits(train_x=x[~test], train_y=y[~test], test_x=x[test], test_y=y[test])


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How many images of all it tells, from 0 to 1."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train(model: nn.Module, data: Digits, epochs: int, console: Console) -> History:
    """Adam on batches in a new order each epoch; a bar shows how far it is."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(SEED)
    history = History()
    columns = (
        TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  test {task.fields[test]:.1%}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    batches = len(data.train_y) // BATCH
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=epochs * batches, epoch=0, loss=0.0, test=0.0)
        for epoch in range(epochs):
            order = torch.randperm(len(data.train_y), generator=generator)
            total = 0.0
            for rows in order[: batches * BATCH].view(batches, BATCH):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data.train_x[rows]), data.train_y[rows])
                loss.backward()
                optimizer.step()
                total += float(loss.detach())
                progress.advance(bar)
            history.losses.append(total / batches)
            history.accuracies.append(accuracy(model, data.test_x, data.test_y))
            told = {"epoch": epoch + 1, "loss": history.losses[-1], "test": history.accuracies[-1]}
            progress.update(bar, **told)
    return history


def plot(history: History, model: nn.Module, data: Digits, path: Path) -> None:
    """Loss and accuracy by epoch, and the test images that the model is least sure of."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with torch.no_grad():
        sure, told = torch.softmax(model(data.test_x), 1).max(1)
    figure = plt.figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    axes = left.subplots()
    epochs = range(1, len(history.losses) + 1)
    axes.plot(epochs, history.losses, color="tab:blue")
    axes.set(xlabel="epoch", yscale="log")
    axes.set_ylabel("mean loss", color="tab:blue")
    beside = axes.twinx()
    beside.plot(epochs, [100 * a for a in history.accuracies], color="tab:orange")
    beside.axhline(100 * ACCURACY, color="tab:orange", linestyle=":", linewidth=1)
    beside.set_ylabel("test images told, %", color="tab:orange")
    right.suptitle("least sure of", fontsize=11)
    for k, cell in zip(sure.argsort()[:12].tolist(), right.subplots(3, 4).flat, strict=True):
        is_right = bool(told[k] == data.test_y[k])
        cell.imshow(data.test_x[k, 0].numpy(), cmap="gray_r")
        cell.set_title(
            f"{int(told[k])}" if is_right else f"{int(told[k])}, is {int(data.test_y[k])}",
            color="black" if is_right else "tab:red", fontsize=9,
        )  # fmt: skip
        cell.axis("off")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: list[str] | None = None) -> float:
    """Trains, prints what came of it, saves the plot; gives the accuracy on the test images."""
    parser = argparse.ArgumentParser(prog="digits.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--eager", action="store_true", help="run the model as plain PyTorch")
    parser.add_argument("--plot", type=Path, default=Path("digits.png"), metavar="PNG")
    args = parser.parse_args(argv)
    console = Console()
    torch.manual_seed(SEED)
    made, data = Classifier(), load()
    model = made if args.eager else lt.script(made)
    begun = time.perf_counter()
    history = train(model, data, args.epochs, console)
    took = time.perf_counter() - begun
    plot(history, model, data, args.plot)
    console.print(
        f"{history.accuracies[-1]:.1%} of {len(data.test_y)} test images after {args.epochs} "
        f"epochs, {took:.1f} s{'' if args.eager else ', compiling included'}; {args.plot}"
    )
    return history.accuracies[-1]


if __name__ == "__main__":
    main()
