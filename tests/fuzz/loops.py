"""Random differentiable programs made of loops, drawn from a seed.

    LoopProgram(
        inputs={"x": ("T", "B", "H"), "w": ("H", "H"), …},
        body=(Node("s0 = torch.zeros_like(x[0])"),
              Node("for i0 in range(x.shape[0]):", (Node("s0 = s0 * 0.5 + x[i0]"),))),
        outputs=("s0",),
        runs=({"T": 7, "B": 3, "H": 5}, …),
    )

Values are of five kinds, known by their sizes: a sequence [T, B, H], a state [B, H], a row [H], a
matrix [H, H] and a scalar. What a statement makes is smooth where the inputs are random numbers, so
that gradients can be compared. Sizes appear in the text only as `x.shape[d]`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

Sizes = Mapping[str, int]

SHAPES = {
    "sequence": ("T", "B", "H"), "state": ("B", "H"), "row": ("H",), "matrix": ("H", "H"),
    "scalar": (),
}  # fmt: skip
INPUTS = {
    "x": "sequence", "y": "sequence", "h": "state", "g": "state", "v": "row", "w": "matrix",
    "u": "matrix",
}  # fmt: skip
RUNS: tuple[Sizes, ...] = (
    {"T": 34, "B": 3, "H": 5}, {"T": 35, "B": 4, "H": 33}, {"T": 40, "B": 33, "H": 4},
    {"T": 36, "B": 35, "H": 37}, {"T": 4, "B": 3, "H": 6}, {"T": 3, "B": 36, "H": 34},
    {"T": 2, "B": 4, "H": 3}, {"T": 1, "B": 5, "H": 3},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A statement, with what stands inside of it."""

    text: str
    inside: tuple[Node, ...] = ()

    def lines(self, indent: str) -> Iterator[str]:
        """The statement as source."""
        yield f"{indent}{self.text}\n"
        for node in self.inside:
            yield from node.lines(indent + "    ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProgram:
    """`inputs`: the dims of each; `runs`: the sizes at which it is called, in order."""

    seed: int
    inputs: Mapping[str, tuple[str, ...]]
    body: tuple[Node, ...]
    outputs: tuple[str, ...]
    runs: tuple[Sizes, ...]

    @property
    def source(self) -> str:
        """The function as its user would write it."""
        body = "".join(line for node in self.body for line in node.lines("    "))
        result = "".join(f"{name}, " for name in self.outputs)
        return (
            "import torch\nimport torch.nn.functional as F\n\n\n"
            f"def program({', '.join(self.inputs)}):\n{body}    return ({result})\n"
        )

    def arguments(self, sizes: Sizes, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The inputs at these sizes, always the same numbers; "k" are T places below T."""
        generator = torch.Generator().manual_seed(self.seed)
        made: dict[str, torch.Tensor] = {}
        for name, dims in self.inputs.items():
            shape = [sizes[d] for d in dims]
            if name == "k":
                made[name] = torch.randint(0, sizes["T"], shape, generator=generator)
                continue
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
            if dims == SHAPES["matrix"]:
                numbers = numbers / max(1, sizes["H"]) ** 0.5
            made[name] = numbers.to(dtype)
        return made

    def __str__(self) -> str:
        runs = ", ".join(str(dict(r)) for r in self.runs)
        inputs = ", ".join(f"{n} [{', '.join(d)}]" for n, d in self.inputs.items())
        return f"# seed {self.seed}, runs {runs}\n# {inputs}\n{self.source}"


def generate(seed: int) -> LoopProgram:
    """The program of a seed."""
    return _Draw(seed).program()


class _Draw:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.r = random.Random(seed)
        self.serial = 0
        self.values = {kind: [n for n, k in INPUTS.items() if k == kind] for kind in SHAPES}
        self.made: list[str] = []

    def program(self) -> LoopProgram:
        body: list[Node] = []
        for _ in range(self.r.choice([1, 1, 1, 2])):
            draw = self.r.choices([f for f, _ in _BLOCKS], [weight for _, weight in _BLOCKS])[0]
            body += draw(self)
        source = "".join(line for node in body for line in node.lines(""))
        words = set(re.findall(r"[a-z]\w*", source))
        inputs = {n: SHAPES[k] for n, k in INPUTS.items() if n in words or n in "xh"}
        if "k" in words:
            inputs["k"] = ("T",)
        return LoopProgram(
            seed=self.seed,
            inputs=inputs,
            body=tuple(body),
            outputs=tuple(self.made),
            runs=tuple(self.r.sample(RUNS[:4], 1) + self.r.sample(RUNS, 1)),
        )

    # -- names and expressions --

    def name(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def made_as(self, kind: str, name: str) -> None:
        """What later statements may read, and the program returns."""
        self.values[kind].append(name)
        self.made.append(name)

    def pick(self, *texts: str) -> str:
        return self.r.choice(texts)

    def of(self, kind: str) -> str:
        return self.r.choice(self.values[kind])

    def state(self, leaves: list[str], depth: int = 2) -> str:
        """An expression of [B, H]. `leaves`: values of these sizes."""
        if depth == 0 or self.r.random() < 0.15:
            return self.r.choice(leaves)
        a, b = self.state(leaves, depth - 1), self.state(leaves, depth - 1)
        text = self.pick(
            "torch.tanh({a})", "torch.sigmoid({a})", "torch.sin({a})", "({a} + {b})", "({a} - {b})",
            "{a} * {b}", "({a} @ {w})", "({a} @ {w} + {b} @ {u})", "{a} * {v}", "({a} + {v})",
            "({a} - {a}.mean(1, keepdim=True))", "torch.softmax({a}, 1)", "F.relu({a})",
            "{a} * {b}.sum(1, keepdim=True).tanh()", "torch.maximum({a}, {b})",
            "torch.where({a} > {b}, {a}, 0.5 * {b})", "torch.cat([{a}[:, 1:], {a}[:, :1]], 1)",
            "{a}.clamp(-1.5, 2.0)", "{a} / (1 + {b} * {b})", "{a}.flip(1)", "torch.roll({a}, 1, 1)",
            "(torch.softmax({a} @ {a}.t(), 1) @ {b})", "F.layer_norm({a}, ({a}.shape[1],))",
            "torch.logsumexp({a}, 1, keepdim=True) * {b}", "{a}.amax(0) * {b}",
            "F.linear({a}, {w})", "({a}.unsqueeze(2) + {w}).logsumexp(1)",
            "({a}.unsqueeze(2) + {w}).max(1).values",
        )  # fmt: skip
        return text.format(a=a, b=b, w=self.of("matrix"), u=self.of("matrix"), v=self.of("row"))

    def at(self, i: str, shift: int = 0) -> str:
        """A row of a sequence, in an iteration of which i runs over all but `shift`."""
        s = self.of("sequence")
        choices = [f"{s}[{i}]"] * 5 + [f"{s}[{s}.shape[0] - 1 - {i}]", f"{s}[k[{i} : {i} + 1]][0]"]
        choices += [f"torch.index_select({s}, 0, k[{i} : {i} + 1])[0]", f"{s}[k[{i}]]"]
        if shift:
            choices += [f"{s}[{i} + {shift}]", f"{s}[{i} : {i} + {shift}].sum(0)"] * 2
        return self.r.choice(choices)

    def asked(self, i: str) -> str:
        """A condition that holds in some iterations."""
        least, n = self.r.randrange(5), f"{self.of('sequence')}.shape[0]"
        text = self.pick(
            "{i} > {least}", "{i} == {least}", "2 * {i} < {n}", "{i} % 11 > {least}",
            "{i} + {least} < {n}",
            "{i} >= {least} and {i} < {n} - 1", "not ({i} == {least} or {i} + 2 == {n})",
            "abs({i} - {least}) > 1", "({row}).sum() > 0", "({row})[0, 0] > 0 and {i} != {least}",
        )  # fmt: skip
        return text.format(i=i, n=n, least=least, row=self.at(i))

    def bounded(self, text: str) -> str:
        """Something that does not grow from step to step."""
        return self.pick("torch.tanh({})", "torch.sin({})", "torch.sigmoid({})").format(text)


Block = list[Node]


def _carries(d: _Draw) -> Block:
    """A recurrence, with sums, rows and slices beside it."""
    i, h, total, rows, out = (d.name(p) for p in ("t", "s", "total", "rows", "out"))
    shift = d.pick("", "", "1", "2")
    trip = f"x.shape[0] - {shift}" if shift else "x.shape[0]"
    before = [Node(text=f"{h} = {d.state(d.values['state'], 1)}")]
    names = [h, d.at(i, int(shift or 0)), *d.values["state"]]
    inside = _in_turns(d, i, h, names)
    if d.r.random() < 0.4:
        other = d.name("c")
        before.append(Node(text=f"{other} = torch.zeros_like({h})"))
        names.append(other)
        inside.insert(0, Node(text=f"{other} = {_next(d, other, names)}"))
        d.made_as("state", other)
    after: Block = []
    if d.r.random() < 0.4:
        before.append(Node(text=f"{total} = {d.pick('0.0', 'x.sum() * 0')}"))
        text = f"{total} = {total} + ({d.state([h, *names], 1)}).{d.pick('sum', 'mean')}()"
        inside.append(Node(text=text))
        d.made.append(total)
    if d.r.random() < 0.5:
        before.append(Node(text=f"{rows} = []"))
        inside.append(Node(text=f"{rows}.append({d.pick(h, d.state([h, *names], 1))})"))
        after.append(Node(text=f"{out} = torch.stack({rows}{d.pick('', '', ', 1')})"))
        d.made.append(out)
    elif d.r.random() < 0.6:
        before.append(Node(text=f"{out} = torch.zeros_like(x)"))
        inside.append(Node(text=f"{out}[{i}] = {h}"))
        d.made_as("sequence", out)
    d.made_as("state", h)
    head = (
        f"for {i} in {d.pick(f'range({trip})', f'range(1, {trip})', f'range({trip} - 1, -1, -1)')}:"
    )
    return [*before, Node(text=head, inside=tuple(inside)), *after]


def _in_turns(d: _Draw, i: str, h: str, names: list[str]) -> Block:
    """The step of a state: mostly the same in all iterations, or in some another one, or none."""
    step = Node(text=f"{h} = {_next(d, h, names)}")
    if d.r.random() < 0.75:
        return [step]
    turns = int(d.pick("2", "3", "4"))
    in_turns = d.pick(f"({i} + 1) % {turns} == {d.r.randrange(turns)}", f"{i} % {turns}")
    asked = d.pick(in_turns, d.asked(i))
    chosen = Node(text=f"if {asked}:", inside=(step,))
    if d.r.random() < 0.4:
        return [chosen]
    return [chosen, Node(text="else:", inside=(Node(text=f"{h} = {_next(d, h, names)}"),))]


def _next(d: _Draw, h: str, names: list[str]) -> str:
    if d.r.random() < 0.25:
        return f"torch.where({d.r.choice(names)} > 0, {d.bounded(d.state(names))}, {h})"
    mixed = d.state([h, h, *names])
    return d.pick(f"0.5 * {h} + 0.3 * {d.bounded(mixed)}", d.bounded(mixed), d.bounded(mixed))


def _fills(d: _Draw) -> Block:
    """Slices written, added to or scaled, whose iterations need nothing of each other."""
    i, out = d.name("t"), d.name("out")
    leaves = [d.at(i), *d.values["state"]]
    value = d.state(leaves)
    s = d.pick("x", d.of("sequence"))
    write = d.pick(
        f"{out}[{i}] = {value}", f"{out}[{i}] += {value}", f"{out}[x.shape[0] - 1 - {i}] = {value}",
        f"{out}[{i}, :, 1:] = ({value})[:, 1:]", f"{out}[{i}, 0] = ({value}).sum(0)",
        f"{out}[{i} : {i} + 1] += ({value}).unsqueeze(0)", f"{out}[{i}].copy_({value})",
        f"{out}[{i}].add_({value}, alpha=0.5)",
    )  # fmt: skip
    inside = [Node(text=write)]
    if d.r.random() < 0.3:
        inside = [Node(text=f"if {d.asked(i)}:", inside=tuple(inside))]
        if d.r.random() < 0.4:
            other = Node(text=f"{out}[{i}] {d.pick('=', '+=')} {d.state(leaves, 1)}")
            inside.append(Node(text="else:", inside=(other,)))
    if d.r.random() < 0.4:
        inside.append(Node(text=f"{out}[{i}] {d.pick('*=', '-=', '+=')} {d.state(leaves, 1)}"))
    begin = d.pick(f"torch.zeros_like({s})", f"torch.ones_like({s})", f"{s} * 2", f"{s}.clone()")
    d.made_as("sequence", out)
    return [
        Node(text=f"{out} = {begin}"),
        Node(text=f"for {i} in range(x.shape[0]):", inside=tuple(inside)),
    ]


def _shared_out(d: _Draw) -> Block:
    """Several writes in each iteration, whose parts meet, or do not."""
    i, out = d.name("t"), d.name("out")
    step = int(d.pick("2", "3"))
    leaves = [d.at(i), *d.values["state"]]
    writes: Block = []
    for _ in range(d.r.randrange(2, 4)):
        place = f"{step} * {i} + {d.r.randrange(step + 1)}"
        how = d.pick("=", "=", "=", "+=", "*=")
        wide = d.pick(f"{out}[{place}]", f"{out}[{place}]", f"{out}[{place} : {place} + 2]")
        writes.append(Node(text=f"{wide} {how} {d.state(leaves, 1)}"))
    d.made.append(out)
    return [
        Node(text=f"{out} = torch.ones_like(torch.cat([x, x, x, x[:1], x[:1], x[:1]]))"),
        Node(text=f"for {i} in range(x.shape[0]):", inside=tuple(writes)),
    ]


def _columns(d: _Draw) -> Block:
    """Two loops, one in the other, over elements or columns."""
    i, j, out = d.name("i"), d.name("j"), d.name("out")
    a, b = d.of("state"), d.of("matrix")
    write = d.pick(
        f"{out}[:, {j}] = ({a} * {b}[{j}]).sum(1)",
        f"{out}[{i}, {j}] = ({a}[{i}] * {b}[:, {j}]).sum().tanh()",
        f"{out}[{i}, {j}] += {a}[{i}, {j}] * {d.of('row')}[{j}]",
        f"{out}[{i}] += {a}[{i}] @ {b} * {d.of('row')}[{j}]",
        f"{out}[{i}] = {out}[{i}] + {a}[{i}, {j}] * {b}[{j}]",
    )
    inner = Node(text=f"for {j} in range(v.shape[0]):", inside=(Node(text=write),))
    outer = Node(text=f"for {i} in range(h.shape[0]):", inside=(inner,))
    d.made_as("state", out)
    return [Node(text=f"{out} = {d.pick('torch.zeros_like(h)', 'h * 0.5')}"), outer]


def _triangle(d: _Draw) -> Block:
    """Pairs of which each is looked at once, or those before each one."""
    i, j, out = d.name("i"), d.name("j"), d.name("out")
    s = d.of("sequence")
    n = f"{s}.shape[0]"
    steps = d.pick(
        f"{i}", f"{i} + 1", f"{i} + 1, {n}", f"{i}, {n}", f"{i} + 2, {n}", f"{n} - {i}",
        f"{i}, -1, -1",
    )  # fmt: skip
    pair = d.state([f"{s}[{i}]", f"{s}[{j}]", *d.values["state"]])
    write = d.pick(
        f"{out} = {out} + {pair}", f"{out} = {out} + ({pair}).tanh()",
        f"{out}[{i}, {j}] = ({pair}).mean()",
        f"{out}[{j}, {i}] += ({pair}).mean()", f"{out}[{i}] += ({pair}).sum(0)",
    )  # fmt: skip
    body = Node(text=write)
    if d.r.random() < 0.3:
        body = Node(text=f"if {d.pick(d.asked(i), d.asked(j), f'{i} != {j}')}:", inside=(body,))
    begin = f"torch.zeros_like({s}[0])"
    if "," in write.partition("]")[0]:
        begin = f"torch.zeros_like({s}[:, 0, :1] * {s}[:, 0, 0])"
    elif write.startswith(f"{out}["):
        begin = f"torch.zeros_like({s}[:, 0])"
    inner = Node(text=f"for {j} in range({steps}):", inside=(body,))
    d.made.append(out)
    return [
        Node(text=f"{out} = {begin}"),
        Node(text=f"for {i} in range({n}):", inside=(inner,)),
    ]


def _windows(d: _Draw) -> Block:
    """A convolution along time, by slices, added slices or unfold."""
    i, out = d.name("i"), d.name("out")
    s, v = d.of("sequence"), d.of("row")
    n = f"{s}.shape[0] - 2"
    d.made.append(out)
    match d.r.randrange(4):
        case 0:
            body = Node(text=f"{out} = {out} + {s}[{i} : {i} + {n}] * {v}[{i}]")
            return [
                Node(text=f"{out} = torch.zeros_like({s}[2:])"),
                Node(text=f"for {i} in range(3):", inside=(body,)),
            ]
        case 1:
            add = Node(text=f"{out}[{i} : {i} + 3] += {d.state([d.at(i), *d.values['state']], 1)}")
            return [
                Node(text=f"{out} = torch.zeros_like(torch.cat([{s}, {s}[:1], {s}[:1]]))"),
                Node(text=f"for {i} in range(x.shape[0]):", inside=(add,)),
            ]
        case 2:
            wide = d.name("wide")
            add = Node(text=f"{out} = {out} + {wide}[{i}] @ {v}[:3] * {i}")
            return [
                Node(text=f"{wide} = {s}.unfold(0, 3, 1)"),
                Node(text=f"{out} = torch.zeros_like({s}[0])"),
                Node(text=f"for {i} in range({wide}.shape[0]):", inside=(add,)),
            ]
        case _:
            read = d.pick(f"{s}[{i} : {i} + 3]", f"{s}[{i} : {i} + 3].flip(0)")
            rows = d.name("rows")
            append = Node(text=f"{rows}.append(({read} * {v}[:3, None, None]).sum(0).tanh())")
            return [
                Node(text=f"{rows} = []"),
                Node(text=f"for {i} in range({n}):", inside=(append,)),
                Node(text=f"{out} = torch.{d.pick('stack', 'cat', 'vstack')}({rows})"),
            ]


def _table(d: _Draw) -> Block:
    """A dynamic program: a table that is filled from its own earlier rows."""
    i, out = d.name("t"), d.name("out")
    leaves = [f"{out}[{i} - 1]", d.at(i), *d.values["state"]]
    step = d.pick(
        f"({out}[{i} - 1].unsqueeze(2) + {d.of('matrix')}).logsumexp(1) + {d.at(i)}",
        d.bounded(d.state([leaves[0], leaves[0], *leaves])),
        f"torch.maximum({out}[{i} - 1], {d.at(i)}) * 0.9",
        f"0.5 * {out}[{i} - 1] + 0.25 * {out}[{i} - 2] + {d.at(i)}",
    )
    start = 2 if "- 2" in step else 1
    before = [Node(text=f"{out} = torch.zeros_like(x)")]
    before += [Node(text=f"{out}[{n}] = {d.state(d.values['state'], 1)}") for n in range(start)]
    loop = Node(
        text=f"for {i} in range({start}, x.shape[0]):", inside=(Node(text=f"{out}[{i}] = {step}"),)
    )
    d.made_as("sequence", out)
    return [*before, loop]


def _nested_scan(d: _Draw) -> Block:
    """A recurrence in each iteration of another loop, or inner steps of one."""
    i, j, h, rows, out = (d.name(p) for p in ("i", "j", "s", "rows", "out"))
    leaves = [h, h, d.at(i), *d.values["state"]]
    inner = Node(text=f"{h} = {d.bounded(d.state(leaves))}")
    inner_loop = Node(text=f"for {j} in range({d.pick('2', '3', 'h.shape[0]')}):", inside=(inner,))
    reset = Node(text=f"{h} = {d.state([d.at(i), *d.values['state']], 1)}")
    begin = [Node(text=f"{h} = {d.of('state')} * 1.5"), Node(text=f"{rows} = []")]
    inside = (inner_loop, Node(text=f"{rows}.append({h})"))
    if d.r.random() < 0.5:
        inside = (reset, *inside)
    d.made_as("sequence", out)
    return [
        *begin,
        Node(text=f"for {i} in range(x.shape[0]):", inside=inside),
        Node(text=f"{out} = torch.stack({rows})"),
    ]


def _accumulators(d: _Draw) -> Block:
    """Accumulators that take numbers and several terms, and numbers that are counted beside them;
    some begin as numbers, some are read inside, some grow in an inner loop of few steps."""
    i, count, rows, out = (d.name(p) for p in ("t", "n", "rows", "out"))
    row = d.at(i)
    counts = d.r.random() < 0.5
    before: Block = [Node(text=f"{count} = {d.pick('0', '1', '3', '1.0')}")] * counts
    numbers = ["1", "-2", "0.5", i, *[count] * 2 * counts]
    inside: Block = []
    accumulators = [d.name("acc") for _ in range(d.r.randrange(1, 4))]
    for acc in accumulators:
        kind = d.pick("sum", "sum", "sum", "product", "extreme", "other")
        starts = ("0", "0.0", "1", "2.5") if kind in ("sum", "product") else ()
        begin = d.pick("torch.zeros_like(h)", "h * 1.5", "h.clone()", "h[0]", *starts)
        before.append(Node(text=f"{acc} = {begin}"))
        terms = [f"torch.tanh({other} + {row})" for other in accumulators if other is not acc]
        terms += [row, f"{row} * {d.r.choice(numbers)}", d.state([row, "h"], 1), f"{row}.mean()"]
        inside += _taken(d, acc, kind, [*terms, *numbers, *numbers, f"k[{i}]"], i, row)
    if counts:
        step = d.pick("{n} + 2", "{n} + 1", "{n} - 1", "{n} * 0.5", "{n} * 2 % 7", "7 - {n}")
        counted = Node(text=f"{count} = {step.format(n=count)}")
        inside.insert(d.r.randrange(len(inside) + 1), counted)
    after: Block = []
    if d.r.random() < 0.3:
        before.append(Node(text=f"{rows} = []"))
        read = Node(text=f"{rows}.append({d.r.choice(accumulators)} + {row})")
        inside.insert(d.r.randrange(len(inside) + 1), read)
        after.append(Node(text=f"{out} = torch.stack({rows})"))
        d.made.append(out)
    d.made += [*accumulators, *[count] * counts]
    n = "x.shape[0]"
    steps = d.pick(f"{n}", f"{n}", f"1, {n}", f"{n} - 1, -1, -1", f"0, {n}, 2", f"{n} - 2")
    return [*before, Node(text=f"for {i} in range({steps}):", inside=tuple(inside)), *after]


def _taken(d: _Draw, acc: str, kind: str, terms: list[str], i: str, row: str) -> Block:
    """What an accumulator takes in each iteration, some of it in an inner loop of few steps."""
    steps: Block = []
    for _ in range(d.r.randrange(1, 4)):
        steps.append(Node(text=d.pick(*_TAKES[kind]).format(a=acc, t=d.r.choice(terms))))
        if d.r.random() < 0.15:
            steps[-1] = Node(text=f"if {d.asked(i)}:", inside=(steps[-1],))
    if d.r.random() < 0.7:
        return steps
    j = d.name("j")
    trips = d.pick("1", "2", "3", f"min({i}, 2)", f"{i} % 3", f"3 - min({i}, 3)")
    more = Node(text=f"{acc} = {acc} {d.pick('+', '-')} {row} * {d.pick(j, '0.5')}")
    inner = Node(text=f"for {j} in range({trips}):", inside=(*steps, more))
    return [inner] if d.r.random() < 0.5 else [*steps, inner]


_TAKES = {  # how an accumulator takes a term; the last two kinds are of tensors
    "sum": ("{a} = {a} + {t}", "{a} = {a} - {t}", "{a} = {t} + {a}", "{a} += {t}", "{a} -= {t}"),
    "product": ("{a} = {a} * (1 + 0.01 * {t})", "{a} = {a} * 0.9", "{a} = {a} / 1.25"),
    "extreme": (
        "{a} = {a}.clamp(min=0.3)", "{a} = torch.maximum({a}, {t} + 0 * h)",
        "{a} = torch.minimum({t} + 0 * h, {a})",
    ),
    "other": (
        "{a} = {a} + {t}", "{a} = {a} - {t}", "{a} = 0.5 * {a} + {t}", "{a} = {t} - {a}",
        "{a} *= 0.5", "{a} = torch.where(h > 0, {a} + {t}, {a})", "{a} = torch.maximum({a}, h)",
    ),
}  # fmt: skip


def _straight(d: _Draw) -> Block:
    """A statement without a loop, so that loops have neighbours."""
    kind = d.pick("state", "sequence", "scalar")
    out = d.name("z")
    text = d.state(d.values["state"])
    if kind == "sequence":
        text = f"{d.of('sequence')} * {d.state(d.values['state'], 1)} + {d.of('row')}"
    elif kind == "scalar":
        text = f"({text}).{d.pick('sum', 'mean')}()"
    d.made_as(kind, out)
    return [Node(text=f"{out} = {text}")]


_BLOCKS: list[tuple[Callable[[_Draw], Block], float]] = [
    (_carries, 5), (_fills, 4), (_shared_out, 1.5), (_columns, 2), (_windows, 3), (_table, 2),
    (_nested_scan, 1.5), (_triangle, 1.5), (_accumulators, 5), (_straight, 2),
]  # fmt: skip
