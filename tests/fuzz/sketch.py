"""A random program as a user would write it: a module or a function, and how it is called.

    Sketch(
        seed=3,
        inputs=(Given("x0", "torch.randn(B, 7, 16)", "leaf"),),
        parts=("self.p0 = nn.Linear(16, 32)",),
        body=(Node("v0 = self.p0(x0)"), Node("v0.mul_(2)")),
        outputs=("v0",),
        sizes=({"B": 3}, {"B": 5}),
    )

stands for a class with this `__init__` and `forward`; without `parts`, for a function.
`str(sketch)` is a file that runs by itself, and prints the eager and the compiled results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tests.fuzz.loops import Node

Sizes = Mapping[str, int]

HEADER = """\
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
"""
_MAIN = '''

def inputs(call, {names}):
    """Fresh arguments; `leaf` ones require a gradient, `made` ones come from such."""
    torch.manual_seed(call)
    return [{recipes}]


if __name__ == "__main__":
    import copy

    import lowtide as lt

    def seen(f, call, sizes):
        given = inputs(call, **sizes)
        for x, grad in zip(given, {grads}):
            x.requires_grad_(grad != "none")
        args = [x * 1 if g == "made" else x for x, g in zip(given, {grads})]
        torch.manual_seed(1000 + call)
        out = f(*args)
        wanted = [y for y in out if isinstance(y, torch.Tensor) and y.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(y) for y in wanted])
        return out, args, [x.grad for x in given]

    torch.set_grad_enabled({grad})
    torch.manual_seed(0)
    made = {made}
    ways = {{
        "eager": lambda f: f,
        "script": lt.script,
        "trace": lambda f: lt.trace(f, tuple(inputs(0, **{first}))),
        "compile": lt.compile,
    }}
    for way, build in ways.items():
        f = build(copy.deepcopy(made))
        for call, sizes in enumerate({calls}):
            try:
                print(way, call, *seen(f, call, sizes), sep="\\n  ")
            except Exception as error:
                print(way, call, repr(error))
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An argument. `recipe`: an expression of the sizes, drawn anew for each call. `grad`: "leaf"
    (it requires a gradient), "made" (it was computed from one that does) or "none"."""

    name: str
    recipe: str
    grad: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """`sizes`: of the first two calls, and of the third, which only script has. `dtype`: of the
    module's parameters. `ways`: how it is compiled."""

    seed: int
    kind: str
    inputs: tuple[Given, ...]
    parts: tuple[str, ...]
    body: tuple[Node, ...]
    outputs: tuple[str, ...]
    sizes: tuple[Sizes, Sizes]
    dtype: str = "torch.float32"
    train: bool = True
    grad: bool = True
    ways: tuple[str, ...] = ("script", "trace", "compile")
    calls: int = 3

    @property
    def source(self) -> str:
        """The class, or the function, as its user would write it."""
        names = ", ".join(i.name for i in self.inputs)
        result = "".join(f"{name}, " for name in self.outputs)
        if not self.parts:
            body = "".join(text for node in self.body for text in node.lines("    "))
            return f"{HEADER}\n\ndef Program({names}):\n{body}    return ({result})\n"
        body = "".join(text for node in self.body for text in node.lines("        "))
        parts = "".join(f"        {part}\n" for part in self.parts)
        return (
            f"{HEADER}\n\nclass Program(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n{parts}\n    def forward(self, {names}):\n{body}"
            f"        return ({result})\n"
        )

    @property
    def wide(self) -> str:
        """The source with every float dtype float64."""
        return widened(self.source)

    def runs(self, way: str) -> Iterator[tuple[int, Sizes]]:
        """The calls: the number, which seeds the arguments, and the sizes."""
        for call in range(min(self.calls, 3 if way == "script" else 2)):
            yield call, self.sizes[call // 2]

    def __str__(self) -> str:
        made = f"Program().to({self.dtype}).train({self.train})" if self.parts else "Program"
        calls = [dict(self.sizes[0]), dict(self.sizes[0]), dict(self.sizes[1])][: self.calls]
        main = _MAIN.format(
            names=", ".join(self.sizes[0]),
            recipes=", ".join(i.recipe for i in self.inputs),
            grads=[i.grad if self.grad else "none" for i in self.inputs],
            made=made,
            grad=self.grad,
            first=dict(self.sizes[0]),
            calls=calls,
        )
        return f"# seed {self.seed}, {self.kind}, {', '.join(self.ways)}\n{self.source}{main}"


_DTYPES = re.compile(r"torch\.(float32|bfloat16|float16)\b")
_CASTS = re.compile(r"\.(half|bfloat16|float)\(\)")


def widened(text: str) -> str:
    """Source text with float64 for the narrower float dtypes."""
    return _CASTS.sub(".double()", _DTYPES.sub("torch.float64", text))


# ---- making it small ----------------------------------------------------------------------------


def with_less(s: Sketch) -> Iterator[Sketch]:
    """Sketches with one thing less; some of them do not run."""
    if len(s.ways) > 1:
        for way in s.ways:
            yield replace(s, ways=(way,))
    if s.calls > 1:
        yield replace(s, calls=s.calls - 1)
    if s.grad:
        yield replace(s, grad=False)
    for k in range(len(s.outputs) if len(s.outputs) > 1 else 0):
        yield used(replace(s, outputs=s.outputs[:k] + s.outputs[k + 1 :]))
    for body in _shorter(s.body):
        yield used(replace(s, body=body))
    for k, node in enumerate(s.body):  # an operand in the place of a result
        target, equals, text = node.text.partition(" = ")
        if not equals or not target.isidentifier():
            continue
        for operand in dict.fromkeys(re.findall(r"\b[vx]\d+\b", text)):
            rest = tuple(_renamed(n, target, operand) for n in s.body[k + 1 :])
            outputs = tuple(dict.fromkeys(operand if o == target else o for o in s.outputs))
            yield used(replace(s, body=s.body[:k] + rest, outputs=outputs))
    for k, given in enumerate(s.inputs):
        if given.grad != "none":
            plain = replace(given, grad="none")
            yield replace(s, inputs=(*s.inputs[:k], plain, *s.inputs[k + 1 :]))


def _shorter(body: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    for k in reversed(range(len(body))):
        yield body[:k] + body[k + 1 :]
        if body[k].inside:
            yield body[:k] + body[k].inside + body[k + 1 :]
            for inside in _shorter(body[k].inside):
                if inside:
                    yield (*body[:k], replace(body[k], inside=inside), *body[k + 1 :])


def _renamed(node: Node, name: str, by: str) -> Node:
    inside = tuple(_renamed(n, name, by) for n in node.inside)
    return Node(text=re.sub(rf"\b{name}\b", by, node.text), inside=inside)


def used(s: Sketch) -> Sketch:
    """Without parts and inputs that nothing names."""
    text = "".join(line for node in s.body for line in node.lines("")) + " ".join(s.outputs)
    names = set(re.findall(r"\w+", text))
    parts = tuple(p for p in s.parts if part_name(p) in names)
    inputs = tuple(i for i in s.inputs if i.name in names) or s.inputs[:1]
    return replace(s, parts=parts, inputs=inputs)


def part_name(part: str) -> str:
    """`p0` of `self.p0 = nn.ReLU()` and of `self.register_buffer("p0", …)`."""
    found = re.search(r"self\.(p\d+)|\"(p\d+)\"", part)
    assert found is not None, part
    return found[1] or found[2]
