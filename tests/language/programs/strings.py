"""Strings: methods, formatting, slicing, iteration, conversion."""

from typing import Dict, List, Tuple

import torch

from tests.language.support import program


@program(args=lambda: ("Hello World",))
def case_methods(s: str) -> List[str]:
    return [s.upper(), s.lower(), s.swapcase(), s.title(), s.capitalize()]


@program(args=lambda: ("  a b  ",))
def strip_methods(s: str) -> List[str]:
    return [s.strip(), s.lstrip(), s.rstrip(), "xxaxx".strip("x")]


@program(calls=lambda: [("hello.weight",), ("bias",)])
def starts_ends(s: str) -> Tuple[bool, bool]:
    return s.startswith("hello"), s.endswith("weight")


@program(args=lambda: ("a,b,,c",))
def split_comma(s: str) -> List[str]:
    return s.split(",")


@program(args=lambda: ("  the quick  fox ",))
def split_whitespace(s: str) -> List[str]:
    return s.split()


@program(args=lambda: ("a.b.c.d",))
def split_limits(s: str) -> Tuple[List[str], List[str]]:
    return s.split(".", 2), s.rsplit(".", 1)


@program(args=lambda: ("one\ntwo\nthree",))
def splitlines(s: str) -> List[str]:
    return s.splitlines()


@program(args=lambda: (["x", "y", "z"],))
def joined(xs: List[str]) -> str:
    return ", ".join(xs) + "|" + "".join(xs)


@program(args=lambda: ("banana",))
def find_methods(s: str) -> List[int]:
    return [s.find("an"), s.rfind("an"), s.find("zz"), s.count("a"), s.index("n"), s.find("a", 2)]


@program(args=lambda: ("banana",))
def replaced(s: str) -> Tuple[str, str]:
    return s.replace("an", "AN"), s.replace("a", "o", 2)


@program(args=lambda: ("abc123",))
def predicates(s: str) -> List[bool]:
    return [
        s.isalnum(),
        s.isalpha(),
        s.isdigit(),
        s[3:].isdigit(),
        s[:3].isalpha(),
        s.islower(),
        s.isupper(),
        " ".isspace(),
    ]


@program(args=lambda: ("42",))
def padding(s: str) -> List[str]:
    return [s.zfill(5), s.ljust(5) + "|", s.rjust(5), s.center(6, "*")]


@program(args=lambda: ("key=value=x",))
def partitions(s: str) -> Tuple[str, str, str]:
    head, sep, tail = s.partition("=")
    a, _, b = s.rpartition("=")
    return head + tail, a, b


@program(args=lambda: ("layer1.0.conv",), torchscript=False)
def remove_affixes(s: str) -> Tuple[str, str]:
    return s.removeprefix("layer1."), s.removesuffix(".conv")


@program(args=lambda: ("abcdef",))
def indexing(s: str) -> List[str]:
    return [s[0], s[-1], s[1:3], s[:2], s[-2:], s[::2], s[::-1]]


@program(args=lambda: ("abc",))
def contains(s: str) -> Tuple[bool, bool, bool]:
    return "b" in s, "x" in s, "x" not in s


@program(args=lambda: ("abc", "abd"))
def comparison(a: str, b: str) -> List[bool]:
    return [a == b, a != b, a < b, a > b, a <= b, a >= b]


@program(args=lambda: ("ab", 3), torchscript=False)
def multiplication(s: str, n: int) -> Tuple[str, str]:
    return s * n, "-" * 4


@program(args=lambda: ("héllo",), torchscript=False)
def iteration(s: str) -> List[str]:
    out: List[str] = []
    for c in s:
        out.append(c + c)
    return out


@program(args=lambda: ("abca",))
def letter_counts(s: str) -> Dict[str, int]:
    counts: Dict[str, int] = {}
    for c in s:
        if c in counts:
            counts[c] += 1
        else:
            counts[c] = 1
    return counts


@program(args=lambda: ("A",))
def ord_and_chr(s: str) -> Tuple[int, str]:
    return ord(s), chr(ord(s) + 1)


@program(args=lambda: ("3", "1e3"))
def parsing(a: str, b: str) -> Tuple[int, float, float]:
    return int(a), float(b), float("-2.5")


@program(args=lambda: ("ff",), torchscript=False)
def parsing_with_base(a: str) -> Tuple[int, int]:
    return int(a, 16), int("101", 2)


@program(args=lambda: ("x1",), raises=ValueError)
def parsing_fails(a: str) -> int:
    return int(a)


@program(args=lambda: (3, 2.5, True))
def str_of_values(n: int, f: float, b: bool) -> List[str]:
    return [str(n), str(f), str(b), str(None), str("s")]


@program(args=lambda: ([1, 2], (1, "a")), torchscript=False)
def str_of_containers(xs: List[int], p: Tuple[int, str]) -> List[str]:
    return [str(xs), str(p), str({"a": 1.5}), str(["x"])]


@program(args=lambda: (3, "w"))
def fstring_simple(n: int, s: str) -> str:
    return f"n={n} s={s} sum={n + 1}"


@program(args=lambda: (3, 2.34567), torchscript=False)
def fstring_formats(n: int, f: float) -> List[str]:
    return [
        f"{n:03d}",
        f"{f:.2f}",
        f"{f:8.3f}|",
        f"{n:>5}",
        f"{n:<5}|",
        f"{f:e}",
        f"{n:,}",
        f"{n:x}",
    ]


@program(args=lambda: ("it's",), torchscript=False)
def fstring_conversion(s: str) -> str:
    return f"{s!r} {s!s}"


@program(args=lambda: (4, 7), torchscript=False)
def fstring_nested_width(n: int, width: int) -> str:
    return f"{n:{width}d}|{n=}"


@program(args=lambda: (3, "w", 1.5), torchscript=False)
def format_method(n: int, s: str, f: float) -> List[str]:
    return ["{} and {}".format(n, s), "{0} {1} {0}".format(s, n), "value {}".format(f)]


@program(args=lambda: (3, 1.23456), torchscript=False)
def format_method_specs(n: int, f: float) -> List[str]:
    return ["{:04d}".format(n), "{:.3f}".format(f), "{name}: {v:>6.2f}".format(name="k", v=f)]


@program(args=lambda: (3, "w", 1.5))
def percent_format(n: int, s: str, f: float) -> List[str]:
    return ["%d items" % n, "%s has %d" % (s, n), "%f%%" % f]


@program(args=lambda: (3, 1.5), torchscript=False)
def percent_widths(n: int, f: float) -> List[str]:
    return ["%05d" % n, "%.3f" % f, "%-5s|" % "ab", "%x" % 255]


@program(args=lambda: ("a",))
def concatenation(s: str) -> str:
    s += "b"
    t = "cd"
    return s + t


@program(args=lambda: ("abc",))
def length_and_empty(s: str) -> Tuple[int, bool, bool]:
    return len(s), len("") == 0, s == ""


@program(args=lambda: ("", "x"), torchscript=False)
def truth_of_strings(a: str, b: str) -> Tuple[bool, str]:
    return bool(a), a or b


@program(args=lambda: ('tab\t"quote" \\ é \u00e9 \x41',))
def escapes(s: str) -> str:
    return s + "\n\t\\\"'" + r"\n" + """triple "x" """


@program(args=lambda: ("racecar",))
def palindrome(s: str) -> bool:
    for i in range(len(s) // 2):
        if s[i] != s[len(s) - 1 - i]:
            return False
    return True


@program(args=lambda: ("Hello, World", 3))
def caesar(s: str, k: int) -> str:
    out = ""
    for c in s:
        if c.isalpha():
            base = ord("A") if c.isupper() else ord("a")
            out += chr((ord(c) - base + k) % 26 + base)
        else:
            out += c
    return out


@program(args=lambda: ("the cat sat on the mat",))
def word_index(s: str) -> Tuple[List[int], Dict[str, int]]:
    vocab: Dict[str, int] = {}
    ids: List[int] = []
    for w in s.split(" "):
        if w not in vocab:
            vocab[w] = len(vocab)
        ids.append(vocab[w])
    return ids, vocab


@program(args=lambda: ("3+4*2",))
def calculator(s: str) -> int:
    total = 0
    term = 1
    number = 0
    for c in s + "+":
        if c.isdigit():
            number = number * 10 + int(c)
        elif c == "*":
            term *= number
            number = 0
        else:
            total += term * number
            term = 1
            number = 0
    return total


@program(args=lambda: (torch.ones(2), "mean"))
def mode_by_string(x: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "sum":
        return x.sum()
    elif reduction == "mean":
        return x.mean()
    else:
        return x


@program(args=lambda: ("ab", "abc"))
def edit_distance(a: str, b: str) -> int:
    row = [j for j in range(len(b) + 1)]
    for i in range(len(a)):
        prev = row[0]
        row[0] = i + 1
        for j in range(len(b)):
            cost = 0 if a[i] == b[j] else 1
            here = min(row[j + 1] + 1, row[j] + 1, prev + cost)
            prev = row[j + 1]
            row[j + 1] = here
    return row[len(b)]


@program(args=lambda: (["b", "a", "c"],))
def sorted_strings(xs: List[str]) -> Tuple[List[str], str]:
    ys = sorted(xs)
    xs.sort(reverse=True)
    return ys, xs[0]


@program(args=lambda: ("x",))
def string_list_comprehension(s: str) -> List[str]:
    return [s + str(i) for i in range(3)]
