"""Draws the statements of a sketch one by one, and tries each in eager PyTorch.

In: a rule of a grammar, which writes a statement with the help of a `Drawing`. Out: a sketch with
this statement, unless PyTorch rejects it, its result is too large, or no number of it is finite.

    def linear(d: Drawing) -> None:
        x = d.pick(lambda t: t.is_floating_point() and t.dim() >= 2)     the name of such a value
        d.let(f"self.{d.part(f'nn.Linear({d[x].shape[-1]}, 16)')}({x})")

`Drawing` knows the value of each name at the first sizes, so that a rule can ask for a value by its
dtype and dims.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tests.fuzz.loops import Node
from tests.fuzz.sketch import HEADER, Given, Sizes, Sketch, used

MOST_ELEMENTS = 6000
Test = Callable[[torch.Tensor], bool]


class Dropped(Exception):
    """The statement that was being drawn cannot be."""


class Drawing:
    """`r` draws; `env` has the values at the first sizes, `self` among them."""

    def __init__(self, seed: int, kind: str, sizes: tuple[Sizes, Sizes]) -> None:
        self.seed, self.kind, self.sizes = seed, kind, sizes
        self.r = random.Random(seed)
        self.dtype = "torch.float32"
        self.train = self.r.random() < 0.6
        self.grad = self.r.random() < 0.7
        self.inputs: list[Given] = []
        self.parts: list[str] = []
        self.nodes: list[Node] = []
        self.serial = 0
        self.env: dict[str, Any] = {"self": torch.nn.Module()}
        exec(HEADER, self.env)
        self.apparatus = set(self.env)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.env[name]

    # -- what there is --

    def names(self, test: Test | None = None) -> list[str]:
        """The tensors so far that pass the test, in order."""
        return [
            n
            for n, v in self.env.items()
            if n not in self.apparatus and isinstance(v, torch.Tensor) and (not test or test(v))
        ]

    def pick(self, test: Test | None = None) -> str:
        """One of them, most often one of the last."""
        names = self.names(test)
        if not names:
            raise Dropped
        return self.r.choice(names[-3:] if self.r.random() < 0.7 else names)

    def one_of(self, texts: Sequence[Any]) -> Any:
        return self.r.choice(texts)

    def chance(self, p: float) -> bool:
        return self.r.random() < p

    # -- what is added --

    def give(self, recipe: str, grad: str = "none") -> str:
        """A further argument."""
        name = f"x{len(self.inputs)}"
        given = Given(name=name, recipe=recipe, grad=grad)
        torch.manual_seed(len(self.inputs))
        value = made(given, self.sizes[0])
        if self.grad and grad != "none":
            value.requires_grad_()
            value = value * 1 if grad == "made" else value
        self.env[name] = value
        self.inputs.append(given)
        return name

    def part(self, text: str, kind: str = "module") -> str:
        """A submodule, buffer or parameter; its name."""
        name = f"p{len(self.parts)}"
        if kind == "buffer":
            line = f'self.register_buffer("{name}", {text})'
        elif kind == "parameter":
            line = f"self.{name} = nn.Parameter({text})"
        else:
            line = f"self.{name} = {text}"
        torch.manual_seed(len(self.parts))
        self._run(line)
        self.env["self"].to(eval(self.dtype)).train(self.train)
        self.parts.append(line)
        return name

    def let(self, expression: str) -> str:
        """`v3 = expression`; its name."""
        name = f"v{self.serial}"
        self.serial += 1
        self.add(Node(text=f"{name} = {expression}"))
        return name

    def lets(self, count: int, expression: str) -> list[str]:
        """`v3, v4 = expression`."""
        names = [f"v{self.serial + k}" for k in range(count)]
        self.serial += count
        self.add(Node(text=f"{', '.join(names)} = {expression}"))
        return names

    def do(self, text: str) -> None:
        """A statement that is no assignment of a new name."""
        self.add(Node(text=text))

    def add(self, node: Node) -> None:
        """Tries the statement; raises Dropped."""
        before = dict(self.env)
        self._run("".join(node.lines("")))
        fresh = [n for n, v in self.env.items() if before.get(n) is not v and n in self.names()]
        for name in fresh:
            if self[name].numel() > MOST_ELEMENTS:
                self.env.clear()
                self.env.update(before)
                raise Dropped
        self.nodes.append(node)

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        """What is drawn inside stands under `with torch.no_grad():`, or what `head` is."""
        outer, self.nodes = self.nodes, []
        try:
            with eval(head.removeprefix("with ").removesuffix(":"), self.env):
                yield
        finally:
            inside, self.nodes = tuple(self.nodes), outer
            if inside:
                self.nodes.append(Node(text=head, inside=inside))

    def _run(self, text: str) -> None:
        try:
            exec(text, self.env)
        except Exception as error:
            raise Dropped from error

    # -- the whole --

    def statements(
        self, grammar: Sequence[tuple[float, Callable[[Drawing], None]]], n: int
    ) -> None:
        """`n` rules of a grammar, by weight."""
        weights, rules = [w for w, _ in grammar], [f for _, f in grammar]
        torch.manual_seed(self.seed)
        wanted, tries = n, 0
        while wanted and tries < 8 * n:
            tries += 1
            before, (rule,) = len(self.nodes), self.r.choices(rules, weights)
            try:
                rule(self)
            except Dropped:
                if len(self.nodes) == before:
                    continue
            wanted -= 1

    def sketch(self, seed: int) -> Sketch:
        """What has been drawn, giving back what nothing used and some of the rest."""
        made = [n for n in self.names() if n.startswith("v")]
        text = [line for node in self.nodes for line in node.lines("")]
        whole = "".join(text)
        loose = [n for n in made if len(re.findall(rf"\b{n}\b", whole)) < 2]
        extra = [n for n in made if n not in loose and self.r.random() < 0.25]
        outputs = tuple(sorted({*loose[-5:], *extra[:4]}, key=lambda n: int(n[1:])))
        outputs = outputs or tuple(made[-1:]) or (self.inputs[0].name,)
        return used(
            Sketch(
                seed=seed,
                kind=self.kind,
                inputs=tuple(self.inputs),
                parts=tuple(self.parts),
                body=tuple(self.nodes),
                outputs=outputs,
                sizes=self.sizes,
                dtype=self.dtype,
                train=self.train,
                grad=self.grad,
            )
        )


def made(given: Given, sizes: Sizes) -> torch.Tensor:
    """The value of an argument, from PyTorch's generator as it stands."""
    return eval(given.recipe, {"torch": torch, "math": __import__("math"), **sizes})


def floats(*dims: int) -> Test:
    """Whether a tensor is of floats and, if any are named, of one of these numbers of dims."""
    return lambda t: t.is_floating_point() and (not dims or t.dim() in dims) and t.numel() > 0
