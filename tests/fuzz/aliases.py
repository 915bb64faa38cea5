"""Random programs in which several names stand for one list, drawn from a seed.

In: a seed. Out: an `AliasProgram`, such as

    AliasProgram(
        seed=3,
        body=(Node("c.append(a)"),
              Node("for r in c:", (Node("r.append(n)"),)),
              Node("t = (a, keep(b, n))")),
    )

Rows are lists of ints: the argument `p`, `a`, `b`, those inside the argument `q` and `c`, those in
the pair `t`, the dict `d` and the object `box`. Statements alias them, append, pop, pass them to
functions and methods, and change them in loops and branches. A program returns all of its lists, so
that the caller can compare which ones are identical.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.loops import Node

HEADER = """\
from typing import Dict, List, Tuple


class Box:
    def __init__(self, items: List[int]):
        self.items = items
        self.rows: List[List[int]] = [items]

    def take(self, row: List[int]) -> List[int]:
        before = self.items
        self.items = row
        return before

    def put(self, row: List[int], n: int) -> None:
        if len(self.rows) < 6:
            self.rows.append(row)
        for held in self.rows:
            if len(held) < 7:
                held.append(n)


def keep(row: List[int], n: int) -> List[int]:
    if len(row) < 8:
        row.append(n)
    return row


def fresh(row: List[int]) -> List[int]:
    made = row[:]
    made.reverse()
    return made


def pick(rows: List[List[int]], k: int) -> List[int]:
    for i, row in enumerate(rows):
        if i == k:
            return row
    return [k]


def longest(rows: List[List[int]], other: List[int]) -> List[int]:
    best = other
    for row in rows:
        if len(row) > len(best):
            best = row
    return best


def swapped(t: Tuple[List[int], int], row: List[int]) -> Tuple[List[int], int]:
    t[0].insert(0, t[1])
    return row, len(t[0])


"""
BEGIN = """\
def program(p: List[int], q: List[List[int]], n: int):
    a = [n, 1]
    b = a
    c = [p, [2]]
    t = (p, 3)
    d: Dict[str, List[int]] = {"x": a}
    box = Box([4])
    k = n
"""
END = "    return p, q, a, b, c, t, d, box.items, box.rows, k, a is b, c[:1] == q[:1]\n"
RUNS = (([1, 2], [[5], [6, 7]], 0), ([], [[8]], 1), ([3], [[1], [], [2, 3]], 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasProgram:
    """The statements between `BEGIN` and `END`."""

    seed: int
    body: tuple[Node, ...]

    @property
    def source(self) -> str:
        lines = (line for node in self.body for line in node.lines("    "))
        return f"{HEADER}{BEGIN}{''.join(lines)}{END}"

    def __str__(self) -> str:
        return f"# seed {self.seed}\n{self.source.removeprefix(HEADER)}"


def generate(seed: int) -> AliasProgram:
    """The program of a seed."""
    drawing = _Drawing(random.Random(seed))
    return AliasProgram(seed=seed, body=tuple(drawing.block(3, 7)))


class _Drawing:
    """Draws statements; `loops` are the variables of the loops around."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.rows = ["p", "a", "b"]
        self.count = 0

    def block(self, depth: int, most: int) -> list[Node]:
        """Statements, nested at most so deep."""
        nodes: list[Node] = []
        for _ in range(self.r.randint(1, most)):
            nodes += self.statement(depth)
        return nodes

    def statement(self, depth: int) -> list[Node]:
        """One statement, or an `if` and its `else`."""
        kinds: list[Callable[[int], list[Node]]] = [self.change, self.change, self.bind, self.hold]
        if depth:
            kinds += [self.branch, self.loop]
        return self.r.choice(kinds)(depth)

    def row(self) -> str:
        """An expression that is a row, most often one that others have."""
        one = self.one_of(self.rows)
        return self.one_of(
            [
                *(one, one, one, "t[0]", "box.items", 'd["x"]', f"{self.nest()}[0]"),
                *(f"{self.nest()}[-1]", f"pick({self.nest()}, {self.number()})"),
                *(f"keep({one}, {self.number()})", f"fresh({one})", f"box.take({one})"),
                *(
                    f"{one}[1:]",
                    f"list({one})",
                    f"longest({self.nest()}, {one})",
                    f"{one} + [{self.number()}]",
                ),
                *(f"({one} if {self.test()} else {self.one_of(self.rows)})", "sorted(a)"),
            ]
        )

    def nest(self) -> str:
        """A variable or attribute that is a list of rows."""
        return self.one_of(["c", "c", "q", "box.rows"])

    def number(self) -> str:
        """An int."""
        return self.one_of(["n", "k", "1", "2", f"len({self.one_of(self.rows)})"])

    def test(self) -> str:
        """A condition."""
        one, other = self.one_of(self.rows), self.one_of(self.rows)
        return self.one_of(
            [
                *(f"k % 2 == {self.r.randint(0, 1)}", f"n > {self.r.randint(0, 1)}"),
                *(f"len({one}) > {self.r.randint(0, 3)}", f"{one} is {other}", f"{one} == {other}"),
                *(f"{self.number()} in {one}", f"len({self.nest()}) > 2"),
            ]
        )

    def change(self, depth: int) -> list[Node]:
        """A row or a nest is changed in place."""
        row, nest, number = self.one_of(self.rows), self.nest(), self.number()
        longer = [f"{row}.append({number})", f"{row} += [{number}]", f"{row}.insert(0, {number})"]
        nested = [f"{nest}.append({self.row()})", f"{nest}.insert(0, {self.row()})"]
        shorter = [f"k += {row}.pop()", f"del {row}[0]", f"{row}.pop(0)", f"{row}[-1] = {number}"]
        match self.r.randint(0, 5):
            case 0 | 1:
                return [Node(text=f"if len({row}) < 8:", inside=(self.node(longer),))]
            case 2:
                return [Node(text=f"if len({nest}) < 5:", inside=(self.node(nested),))]
            case 3:
                return [Node(text=f"if len({row}) > 1:", inside=(self.node(shorter),))]
            case 4:
                popped = [f"{nest}.pop()", f"{nest}.reverse()", f"{nest}[0] = {self.row()}"]
                return [Node(text=f"if len({nest}) > 1:", inside=(self.node(popped),))]
            case _:
                other = [f"{row}.reverse()", f"{row}.sort()", f"{row}[:] = [{number}, k]"]
                other += [f"box.put({row}, {number})", f"{row}.clear()", f"k = k * 2 + {number}"]
                return [self.node(other)]

    def bind(self, depth: int) -> list[Node]:
        """A name becomes that of another list."""
        name = self.one_of(["a", "b", "b", f"r{self.count}"])
        made = [Node(text=f"{name} = {self.row()}")]
        if name not in self.rows and depth == 3:  # then it is always assigned
            self.count += 1
            self.rows.append(name)
        return made

    def hold(self, depth: int) -> list[Node]:
        """A tuple, a dict or an object holds a row."""
        return [
            self.node(
                [
                    *(f"t = ({self.row()}, {self.number()})", f"t = swapped(t, {self.row()})"),
                    *(f'd["x"] = {self.row()}', f'd["y"] = {self.row()}'),
                    *(f"box.items = {self.row()}", f"box = Box({self.row()})"),
                    *(f"c = [{self.row()}, {self.row()}]", "c = q", "c = box.rows"),
                    *(
                        "b = a = [k]",
                        "c += [a][: 5 - len(c)]",
                        "c = [a] * 2",
                        "*c, b = q + [a]",
                        "c = [b, *q]",
                    ),
                    *(f"add = lambda m: keep(a, m) if m else b; b = add({self.number()})",),
                    *("c = [keep(r, k) for r in q if r is not a]", "d = {'x': b, 'y': a}"),
                    *("c = [r for r in q]", "a, b = b, a", "a, k = t", f"box.take({self.row()})"),
                    *("q, c = c, q", "c = q[:]", 'a = d.get("y", b)', 'b = d.pop("y", a)'),
                ]
            )
        ]

    def branch(self, depth: int) -> list[Node]:
        """An `if`, often with an `else`."""
        made = [Node(text=f"if {self.test()}:", inside=tuple(self.block(depth - 1, 3)))]
        if self.r.random() < 0.5:
            made.append(Node(text="else:", inside=tuple(self.block(depth - 1, 3))))
        return made

    def loop(self, depth: int) -> list[Node]:
        """A loop over numbers, over rows, or while something holds."""
        name = f"i{depth}"
        head = self.one_of(
            [
                *(f"for {name} in range(3):", f"for {name} in range(n + 1):"),
                *(f"for {name} in {self.nest()}[:3]:", f"for {name} in [a, b, p]:"),
                *(f"for {name} in (a, t[0], {self.row()}):", f"for {name} in {self.nest()}:"),
                *(f"for {name} in d.values():", f"for _, {name} in enumerate({self.nest()}):"),
                *(
                    f"for {name} in reversed({self.nest()}[:2]):",
                    f"while len(b) > 1 and w{depth} < 3:",
                ),
                *(f"for {name}, x{depth} in zip({self.nest()}, c):", f"for {name}, _ in [t, t]:"),
            ]
        )
        outer = list(self.rows)
        if "range" not in head and "while" not in head:
            self.rows += [name, name]
        inside = self.block(depth - 1, 3)
        if "while" in head:
            inside.insert(0, Node(text=f"w{depth} += 1"))
        if self.r.random() < 0.3 and "for" in head:
            inside.append(
                Node(text=f"if {self.test()}:", inside=(self.node(["break", "continue"]),))
            )
        self.rows = outer
        begin = [Node(text=f"w{depth} = 0")] if "while" in head else []
        return [*begin, Node(text=head, inside=tuple(inside))]

    def node(self, texts: Sequence[str]) -> Node:
        return Node(text=self.one_of(texts))

    def one_of(self, texts: Sequence[str]) -> str:
        return self.r.choice(texts)
