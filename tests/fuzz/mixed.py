"""Random programs that mix numbers, strings, containers and tensors, drawn from a seed.

    MixedProgram(
        seed=3,
        body=(Node("n = len(s) // 2"),
              Node("for i0 in range(3):", (Node("v = v + xs[i0] * x"),)),
              Node("d['b'] = n if flag else round(r)")),
    )

Every name of `BEGIN` has values of one kind (`ints`, `floats`, …), and for each kind there is a
table of expressions with holes for expressions of other kinds: `$int // $int`. The name `v` is a
number on some paths and a tensor on others, `o` is an int or None. The program returns all that it
has, so that whoever runs it can compare values, types and what became of the arguments.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tests.fuzz.loops import Node

HEADER = """\
import math
from typing import Dict, List, Optional, Tuple

import torch
from torch import Tensor


class Account:
    def __init__(self, total: float):
        self.total = total
        self.items: List[int] = []
        self.last: Optional[Tensor] = None

    def add(self, n: int) -> int:
        if n < 0:
            return len(self.items)
        if len(self.items) < 9:
            self.items.append(n)
        self.total += n
        return n

    def mean(self) -> float:
        return self.total / len(self.items) if len(self.items) > 0 else 0.0

    def keep(self, x: Tensor) -> Tensor:
        before = self.last
        self.last = x
        return x if before is None else before + x


def clip(n: int, low: int = 0, high: int = 9) -> int:
    if n < low:
        return low
    return high if n > high else n


def pick(xs: List[int], k: int) -> Optional[int]:
    for i, n in enumerate(xs):
        if i == k:
            return n
    return None


def grow(xs: List[int], n: int) -> List[int]:
    if len(xs) < 8:
        xs.append(n)
    return xs


def both(x: Tensor, n: int, scale: float = 2.0) -> Tuple[Tensor, int]:
    while n > 3:
        n -= 2
        x = x * scale
    return x + n, n


def label(words: List[str], sep: str = "-") -> str:
    return sep.join([w[:1].upper() + w[1:] for w in words])


"""
BEGIN = """\
def program(x: Tensor, n: int, r: float, s: str, flag: bool, xs: List[int], ys: List[float],
            ts: List[Tensor], ws: List[str], d: Dict[str, int], o: Optional[int]):
    k, q, b, m = 3, 0.5, not flag, s + "."
    y = x * 2
    v = 0.0
    t = (n, s)
    e: Dict[int, float] = {1: r}
    u: Dict[str, Tensor] = {"a": x}
    zs = xs
    acc = Account(r)
"""
END = """\
    results = x, n, r, s, flag, xs, ys, ts, ws, d, o, k, q, b, m, y, v, t, e, u, zs
    return results, acc.total, acc.items, acc.last
"""

NAMES: Final[Mapping[str, Sequence[str]]] = {
    "int": ("n", "k"), "float": ("r", "q"), "str": ("s", "m"), "bool": ("flag", "b"),
    "tensor": ("x", "y"), "ints": ("xs", "zs"), "floats": ("ys",), "tensors": ("ts",),
    "strs": ("ws",), "counts": ("d",), "rates": ("e",), "named": ("u",), "any": ("v",),
    "maybe": ("o",), "pair": ("t",),
}  # fmt: skip

# What an expression of a kind may be; `$int` is filled with an expression of that kind, `$@int`
# with a name of it.
FORMS: Final[Mapping[str, Sequence[str]]] = {
    "int": (
        "clip($int)", "clip($int, high=$int)", "len(grow($@ints, $int))", "acc.add($int)",
        "both($tensor, $int)[1]", "len(acc.items)", "clip(n=$int, low=-$int)",
        "$int + $int", "$int - $int", "$int * $int % 1000", "$int // $int",
        "$int % $int", "-$int", "abs($int)", "max($int, $int)", "min($int, $int, 4)",
        "len($str)", "len($ints)", "len($counts)", "int($float)", "int($bool)",
        "$ints[$int]", "$ints[-1]", "$counts['a']", "$counts.get($str, $int)",
        "sum($ints)", "($int if $bool else $int)", "x.shape[$int % 2]", "x.size(-1)",
        "$int & $int", "$int | 5", "$int ^ $int", "~$int", "1 << $int % 8", "$int >> 1",
        "round($float)", "math.floor($float)", "math.ceil($float)", "$str.count('a')",
        "$str.find('b')", "$ints.index($int)", "$ints.count($int)", "ord($str[0])",
        "($maybe or $int)", "($int if $maybe is None else $int)", "$pair[0]",
        "max($ints)", "min($ints)", "sum([i * i for i in $ints])", "int($str)",
        "divmod($int, $int)[1]", "$tensor.dim()", "int($tensor.sum())", "2 ** ($int % 6)",
        "$tensor.argmax().item()", "len([w for w in $strs if $bool])", "int('7')",
    ),
    "float": (
        "acc.total", "acc.mean()", "both($tensor, $int, $float)[0].sum().item()",
        "$float + $int", "$float - $float", "$float * 0.5", "$int / $int",
        "$float / $float", "$float // $float", "$float % $float", "-$float",
        "abs($float)", "max($float, $float)", "min($floats)", "math.sqrt(abs($float))",
        "float($int)", "float($bool)", "$floats[$int]", "$rates[1]",
        "$rates.get($int, $float)", "sum($floats)", "($float if $bool else $float)",
        "$tensor.sum().item()", "float($tensor.mean())", "round($float, 1)", "float('2.5')",
        "math.exp(-abs($float))", "$int * $float + $int", "($float + 1) ** 2 % 100",
        "sum([f * 2 for f in $floats])", "math.pow($float, 2) % 50", "float('inf')",
    ),
    "bool": (
        "acc.last is None", "pick($ints, $int) is None", "acc.items == $ints",
        "$int < $int", "$int == $int", "$float >= $float", "$int != $float",
        "0 <= $int < 5", "$bool and $bool", "$bool or $bool", "not $bool",
        "$str == $str", "$str < $str", "$str in $strs", "$int in $ints",
        "$int not in $ints", "$str in $counts", "'a' in $str", "$str.startswith('a')",
        "$str.isdigit()", "$maybe is None", "$maybe is not None and $int > 0",
        "isinstance($any, int)", "isinstance($any, Tensor)", "bool($int)", "bool($tensor.any())",
        "$tensor.sum() > $float", "$ints == $ints", "$strs != $strs", "$int in (1, 2, 3)",
        "any([i > 1 for i in $ints])", "all([len(w) > 0 for w in $strs])", "$bool != $bool",
        "$@ints is $@ints", "$@ints is not $ints", "$any is None",
        "bool($str)", "len($ints) == 0", "$pair[1] == $str", "$bool ^ $bool",
    ),
    "str": (
        "label($strs)", "label($strs, $str)", "label(words=$strs)[:9]",
        "$str + $str[:3]", "$str[:2] * 2", "$str.upper()", "$str.lower()", "$str[::-1]",
        "$str[1:]", "$str[-1:]", "$str.replace('a', 'bc')", "str($int)", "str($bool)",
        "f'{$@int}-{$@str}'", "f'{$float:.2f}'", "'%d' % $int", "'%s:%d' % ($str, $int)",
        "'{}'.format($int)", "','.join($strs)", "($str if $bool else $str)",
        "$strs[$int]", "$str.strip()", "$pair[1]", "$str.split('.')[0]", "str($float)",
        "$str.title()", "$str.rjust(4)", "$str.zfill(3)", "'b' + $str[0:1]", "f'{$int:03d}'",
        "str($ints)", "f'{$@maybe}'", "chr(97 + $int % 5)", "max($strs)",
    ),
    "tensor": (
        "both($tensor, $int)[0]", "both($tensor, $int, scale=0.5)[0]", "acc.keep($tensor)",
        "$tensor + $int", "$tensor * $float", "$tensor - $tensor", "$tensor * $bool",
        "$tensor / $int", "$float - $tensor", "$tensor // 2", "$tensor.clone()",
        "$tensors[$int]", "$named['a']", "$named.get($str, $tensor)", "torch.relu($tensor)",
        "torch.full((2, 3), $float)", "($tensor if $bool else $tensor)", "-$tensor",
        "$tensor.clamp(min=$float)", "torch.stack($tensors).sum(0)", "$tensor + $any",
        "torch.where($tensor > $float, $tensor, $float)", "$tensor[:1] + $tensor",
        "torch.zeros(2, 3) + len($str)", "$tensor * (1 if $maybe is None else 2)",
        "torch.tensor($floats).sum() + $tensor", "$tensor % 3", "torch.maximum($tensor, y)",
    ),
    "ints": (
        "grow($ints, $int)", "acc.items",
        "[$int, $int]", "$ints[1:]", "$ints[::-1]", "$ints + [$int]", "[$int] * 3",
        "sorted($ints)", "[i * $int % 97 for i in $ints]", "[i for i in $ints if i > $int]",
        "list(range($int % 5))", "$ints.copy()", "[len(w) for w in $strs]", "$ints[-2:]",
        "list($counts.values())", "sorted($ints, reverse=True)", "list($tensor.shape)",
        "[i + j for i, j in zip($ints, $ints)]", "[i for i, w in enumerate($strs)]",
        "($ints if $bool else $ints)", "[int(f) for f in $floats]", "list(reversed($ints))",
    ),
    "floats": (
        "[$float, $float]", "$floats[1:]", "$floats + [$float]", "[f * 0.5 for f in $floats]",
        "sorted($floats)", "[float(i) for i in $ints]", "$floats[::2]", "$tensor[0].tolist()",
        "[$float for _ in range($int % 4)]", "list($rates.values())",
    ),
    "strs": (
        "[$str, $str]", "$strs[1:]", "sorted($strs)", "$strs + [$str]", "$str.split('.')",
        "[w.upper() for w in $strs]", "list($counts.keys())", "[str(i) for i in $ints]",
        "$strs[::-1]", "[w for w in $strs if 'a' in w]", "list($str)",
    ),
    "tensors": (
        "[$tensor, $tensor]", "$tensors[1:]", "$tensors + [$tensor]", "[z * 2 for z in $tensors]",
        "[$tensor for _ in range(2)]", "list($named.values())",
    ),
    "counts": (
        "{'a': $int, 'b': $int}", "{w: len(w) for w in $strs}", "dict($counts)",
        "{w: i for i, w in enumerate($strs)}", "$counts.copy()",
    ),
    "rates": ("{1: $float, $int: $float}", "{i: i * $float for i in $ints}"),
    "named": ("{'a': $tensor, $str: $tensor}", "{'a': $tensor}"),
    "any": (
        "$int", "$float", "$tensor", "$bool", "$any + $int", "$any * 2", "$any + $tensor",
        "($int if $bool else $tensor)", "($float if $bool else $tensor)", "$any - $float",
        "-$any", "abs($any)", "$any / 2", "$any // 2", "2 * $any", "$any ** 2",
    ),
    "maybe": ("None", "pick($ints, $int)", "$int", "($int if $bool else None)", "$maybe"),
    "pair": ("($int, $str)", "$pair", "(len($ints), $str)"),
}  # fmt: skip

# Statements that write something in place, or several names: `$INT` is filled with a name.
WRITES: Final[Sequence[str]] = (
    "$INT += $int", "$INT *= 2", "$INT %= 50", "$INT //= $int", "$FLOAT -= $float",
    "$FLOAT /= $float", "$STR += $str[:2]", "$@ints.append($int)", "$@ints.pop()",
    "$@ints.pop(0)", "$@ints.insert($int, $int)", "$@ints.extend($ints[:3])", "$@ints.sort()",
    "$@ints.reverse()", "$@ints.remove($int)", "$@ints[$int] = $int", "$@ints[1:2] = $ints[:2]",
    "del $@ints[0]", "$INTS += [$int]", "$@ints[0] += $int", "$@floats.append($float)",
    "$@strs.append($str)", "$@strs[0] = $str", "$@counts[$str] = $int", "$@counts['a'] += $int",
    "$@counts.pop($str, 0)", "del $@counts[$str]", "$@counts.update({'z': $int})",
    "$@counts.setdefault($str, $int)", "$@counts.clear()", "$@rates[$int] = $float",
    "$@named[$str] = $tensor", "$@tensors.append($tensor)", "$@tensors[0] = $tensor",
    "$INT, $INT = $int, $int", "$INT, $STR = $pair", "$INT, $INT = divmod($int, $int)",
    "$FLOAT, $INT = $float, $int", "$ANY = $ANY + $int", "$ANY += $tensor",
    "$TENSOR += $tensor", "$TENSOR = $tensor.clone()", "$TENSOR[0] = $float",
    "$TENSOR.mul_($float)", "$INT, *$INTS = [$int] + $ints", "$BOOL = not $bool",
    "acc.add($int)", "acc.total *= $float", "acc.items.append($int)", "acc = Account($float)",
    "acc.last = $tensor", "grow($@ints, $int)", "$TENSOR, $INT = both($tensor, $int)",
    "$INT += acc.add($int)", "acc.items = $ints", "$INTS = acc.items",
    "$MAYBE = $maybe", "$ANY *= $float", "assert $int < 900", "$BOOL &= $bool",
)  # fmt: skip

LOOPS: Final[Sequence[str]] = (
    "for i$depth in range(3):", "for i$depth in range($int % 4):", "for i$depth in $ints[:4]:",
    "for w$depth in $strs[:3]:", "for i$depth, w$depth in enumerate($strs[:3]):",
    "for z$depth in $tensors[:3]:", "for w$depth in $str[:3]:", "for f$depth in $floats[:3]:",
    "for w$depth, i$depth in list($counts.items())[:3]:", "for i$depth in range(4, 0, -2):",
    "for w$depth in sorted($counts.keys())[:3]:",
    "for i$depth, f$depth in zip($ints[:3], $floats[:3]):",
    "for i$depth in reversed($ints[:3]):", "while len($ints) > 2 and c$depth < 3:",
)  # fmt: skip
_RAISING: Final = 0.1  # of the statements may raise in one of the calls
_OF_LOOPS: Final = {"i": "int", "w": "str", "z": "tensor", "f": "float"}
_HOLE: Final = re.compile(r"\$(@?)(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedProgram:
    """The statements between `BEGIN` and `END`."""

    seed: int
    body: tuple[Node, ...]

    @property
    def source(self) -> str:
        lines = (line for node in self.body for line in node.lines("    "))
        return f"{HEADER}{BEGIN}{''.join(lines)}{END}"

    def __str__(self) -> str:
        return f"# seed {self.seed}\n{self.source.removeprefix(HEADER)}"


def runs() -> list[tuple[Any, ...]]:
    """The arguments of each call."""
    x = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.25, -0.5]])
    return [
        (x.clone(), 2, 1.5, "ab", True, [1, 2, 3], [0.5, 2.0], [x + 1], ["a", "b"], {"a": 1}, None),
        (x * 3, -5, -0.25, "", False, [], [], [x, -x], [], {}, 4),
        (x - 1, 0, 7.0, "b.a1", True, [4, -2], [1.0], [x], ["x", "ab", "c"], {"b": 2, "a": -3}, 0),
    ]


def generate(seed: int) -> MixedProgram:
    """The program of a seed."""
    drawing = _Drawing(random.Random(seed))
    body: tuple[Node, ...] = ()
    for _ in range(drawing.r.randint(3, 12)):
        more = drawing.statement(2)
        may_raise = drawing.r.random() < _RAISING and not more[-1].inside
        raising = _raises((*body, *more))
        if raising <= may_raise:
            body = (*body, *more)
        if raising == may_raise == 1:
            break  # what raises is kept where its value is read: nothing may be put in its place
    return MixedProgram(seed=seed, body=body)


def _raises(body: tuple[Node, ...]) -> int:
    """In how many of the calls plain Python raises."""
    scope: dict[str, Any] = {}
    try:
        exec(MixedProgram(seed=0, body=body).source, scope)
    except SyntaxError:
        return len(runs())
    count = 0
    for args in runs():
        try:
            scope["program"](*args)
        except Exception:
            count += 1
    return count


class _Drawing:
    """Draws statements; `names` are those that may be read, by kind."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.names: dict[str, list[str]] = {kind: [*names] for kind, names in NAMES.items()}

    def block(self, depth: int, most: int) -> list[Node]:
        """Statements, nested at most so deep."""
        nodes: list[Node] = []
        for _ in range(self.r.randint(1, most)):
            nodes += self.statement(depth)
        return nodes

    def statement(self, depth: int) -> list[Node]:
        """One statement, or an `if` and its `else`."""
        kind = self.r.random()
        if depth and kind < 0.2:
            made = [Node(text=f"if {self.of('bool', 2)}:", inside=tuple(self.block(depth - 1, 3)))]
            if self.r.random() < 0.5:
                made.append(Node(text="else:", inside=tuple(self.block(depth - 1, 3))))
            return made
        if depth and kind < 0.4:
            return self.loop(depth)
        if kind < 0.65:
            return [Node(text=self.filled(self.r.choice(WRITES), 1))]
        name = self.r.choice([*FORMS, "any", "int", "float", "tensor", "str"])
        return [Node(text=f"{self.r.choice(NAMES[name])} = {self.of(name, 2)}")]

    def loop(self, depth: int) -> list[Node]:
        """A loop whose variables are read inside."""
        head = self.filled(self.r.choice(LOOPS).replace("$depth", str(depth)), 1)
        before = {kind: list(names) for kind, names in self.names.items()}
        targets = head.partition(" in ")[0] if head.startswith("for") else ""
        for name in re.findall(r"\b([iwzf])\d", targets):
            self.names[_OF_LOOPS[name]] += [f"{name}{depth}"] * 2
        inside = self.block(depth - 1, 3)
        if self.r.random() < 0.3:
            way = self.r.choice(["break", "continue"])
            inside.append(Node(text=f"if {self.of('bool', 1)}:", inside=(Node(text=way),)))
        self.names = before
        if targets:
            return [Node(text=head, inside=tuple(inside))]
        count = Node(text=f"c{depth} += 1")
        return [Node(text=f"c{depth} = 0"), Node(text=head, inside=(count, *inside))]

    def of(self, kind: str, depth: int) -> str:
        """An expression of a kind."""
        if not depth or self.r.random() < 0.25:
            return self.r.choice(self.names[kind])
        text = self.filled(self.r.choice(FORMS[kind]), depth - 1)
        return text if re.fullmatch(r"[\w.]+|\(.*\)|\[[^]]*\]", text) else f"({text})"

    def filled(self, form: str, depth: int) -> str:
        """The form with its holes filled; those in capitals by names that are written."""

        def fill(hole: re.Match[str]) -> str:
            is_name, kind = hole.groups()
            if kind.isupper():
                return self.r.choice(NAMES[kind.lower()])
            return self.r.choice(self.names[kind]) if is_name else self.of(kind, depth)

        return _HOLE.sub(fill, form)
