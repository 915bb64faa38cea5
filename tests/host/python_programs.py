"""Programs of numbers, strings and lists: each is called with every tuple of its arguments."""

from __future__ import annotations

import math

import torch


def shifts(n: int):
    s = 1
    for i in range(n):
        s = (s >> 1) ^ i
    return s


def crc(data: list[int]):
    c = 0xFFFFFFFF
    for b in data:
        c = c ^ b
        for _ in range(8):
            if c & 1:
                c = (c >> 1) ^ 0xEDB88320
            else:
                c = c >> 1
    return c ^ 0xFFFFFFFF


def collatz(n: int):
    k = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        k += 1
    return k


def fibonacci(n: int):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a, b


def primes(n: int):
    found: list[int] = []
    for k in range(2, n):
        for p in found:
            if k % p == 0:
                break
        else:
            found.append(k)
    return found


def sieve(n: int):
    left = [True] * n
    i = 2
    while i * i < n:
        for j in range(i * i, n, i):
            left[j] = False
        i += 1
    found = 0
    for k in range(2, n):
        if left[k]:
            found += 1
    return found


def position(xs: list[int], k: int):
    for i, x in enumerate(xs):
        if x == k:
            return i
    return -1


def counted(text: str):
    d: dict[str, int] = {}
    for w in text.split():
        if w in d and len(w) > 1:
            d[w] += 1
        else:
            d[w] = 1
    told = ""
    for k, v in d.items():
        told += f"{k}={v:03d};{{}}"
    return told, d


def product(xs: list[list[float]], ys: list[list[float]]):
    out: list[list[float]] = []
    for row in xs:
        r: list[float] = []
        for j in range(len(ys[0])):
            s = 0.0
            for k in range(len(ys)):
                s += row[k] * ys[k][j]
            r.append(s)
        out.append(r)
    return [[v * 2 for v in r] for r in out]


def grown_while_read(xs: list[int]):
    ys = xs
    n = 0
    for x in xs:
        if n < 3:
            ys.append(x + 10)
        n += 1
    return n, xs


def appended_in_nested_loops(n: int):
    out: list[list[int]] = [[1, 2]]
    to: list[int] = []
    for _ in range(n):
        row = out[len(out) - 1]
        for x in row:
            if len(to) < 9:
                to.append(x)
        out.append(to)
    return out


def overwritten_start(k: int, m: int):
    s = m
    for _ in range(k):
        t = 7
        for j in range(s):
            t = t + j
        s = t % 5
    return s


def swapped_in_branches(a: int, b: int, n: int):
    for i in range(n):
        if i % 3 == 0:
            a, b = b, a + i
        elif i % 3 == 1:
            a = a * 2
            b = b - a
    return a, b


def nested_choice(x: float, y: float):
    best = x if x > y else (y if y > 0 else 0.5)
    is_odd = x > 1 or (y > 1 and x < y)
    return best, is_odd, not is_odd, x is y


def counts_down(n: int, step: int):
    s: list[int] = []
    for i in range(n, 0, step):
        s.append(i)
    return s


def kept_after_loop(xs: list[int]):
    last = -1
    for x in xs:
        before = last
        last = x
        if before > last:
            break
    return last


def flags(xs: list[int]):
    found = False
    where = 0
    for i in range(len(xs)):
        found = xs[i] == 3
        where = i if found else where
        if found:
            break
    return found, where


def while_with_two_ends(n: int):
    i = 0
    total = 0
    while True:
        i += 1
        if i % 2 == 0:
            continue
        total += i
        if total > n:
            break
    return i, total


def numbers(a: int, b: float):
    return (
        max(a, b), min(a, 3), abs(-b), round(b, 1), divmod(a, 3), a ** 2, a ** -1, -a // 2, a % -3,
        int(b), float(a), bool(a), str(b), math.sqrt(abs(a)), math.floor(b), a < b <= 10,
        math.inf * a,
    )  # fmt: skip


def lists(xs: list[int]):
    ys = xs[1:] + [len(xs)]  # noqa: RUF005
    ys.insert(0, 5)
    ys.reverse()
    ys.sort(reverse=True)
    del ys[0]
    ys[0] = 8
    zs = sorted(xs, key=lambda x: -x)
    return ys, zs, xs.index(max(xs)), 2 in xs, ys * 2, sum(xs), xs[::-1], tuple(xs)


def dicts(keys: list[str]):
    d = {k: len(k) for k in keys}
    gone = d.pop(keys[0])
    d.setdefault("z", 9)
    for k in d:
        d[k] = d[k] * 2
    return d, gone, d.get("no"), d.get("no", 3), list(d.keys()), "z" in d


def strings(s: str, n: int):
    parts = s.upper().split("-")
    return f"{s!r}:{n:>4}|{n}", "-".join(parts), s * 2, "%d", s[1:3], s == "a"


def boxes(x: torch.Tensor, limit: float):
    b = x.tolist()
    keep: list[int] = []
    for i in range(len(b)):
        fine = True
        for j in keep:
            w = min(b[i][2], b[j][2]) - max(b[i][0], b[j][0])
            h = min(b[i][3], b[j][3]) - max(b[i][1], b[j][1])
            both = max(0.0, w) * max(0.0, h)
            areas = (b[i][2] - b[i][0]) * (b[i][3] - b[i][1])
            areas += (b[j][2] - b[j][0]) * (b[j][3] - b[j][1])
            if both / (areas - both) > limit:
                fine = False
                break
        if fine:
            keep.append(i)
    return keep


def around_tensors(x: torch.Tensor, n: int):
    k = 1
    for i in range(n):
        k = (k * 7 + i) % 11
    y = x * k
    names: list[str] = []
    while k > 0:
        names.append(str(k))
        k -= 3
    return y, ",".join(names), k


_BOXES = torch.tensor(
    [[0.0, 0, 2, 2], [0.1, 0, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4.1], [9, 9, 10, 12]]
)


def reads_a_list_that_it_replaces(xs: list[int]):
    last, kept = 0, [1, 2]
    for _ in xs:
        last = kept[-1]
        kept = [x + 1 for x in xs]
    total = sum(kept)
    kept = []
    for x in xs:
        kept.append(x * total)
    return last, kept, total


def indexed_by_what_tolist_gave(x: torch.Tensor, y: torch.Tensor):
    b, total = x.tolist(), 0.0
    for i in y.tolist():
        if b[i][0] > 0:
            total += b[i][1]
        else:
            b[i][0] = total
            b[i] += [1.0]
    return total, b


def runs_over_what_tolist_gave(x: torch.Tensor, limit: float):
    total, at = 0.0, -1
    for k, v in enumerate(x.tolist()):
        if v > limit:
            break
        total += v * k
        at = k
    else:
        total = -1.0
    xs = x.tolist()
    for v in xs:
        if v < 0:
            continue
        if v == limit:
            return total, at
        total += v
        xs[0] = -5.0
        total -= xs[0]
    for row in [xs, xs]:
        for v in row:
            at += 1 if v > 0 else 0
    return total, at, xs


def reads_one_iterator_twice(x: torch.Tensor):
    xs, n = x.tolist(), 0
    for a in xs:
        for b in xs:
            n += 1 if a < b else 10
        xs = [a]
    return xs, n


def adds_in_place(x: torch.Tensor, ys: list[int]):
    total = x.tolist()
    before = total
    total += ys
    other = total
    other *= 2
    count = 0
    for v in before:
        count += len(total) if v > 1 else 1
    return total, before, other, count


def tested_at_both_ends(n: int, m: int):
    k, steps = n, 0
    while k != 1 and k < 99:
        k = k // 2 if k % 2 == 0 else 3 * k + 1
        steps += 1
    left = m
    while left > 0:
        left -= 3
        if left == 4:
            break
        steps += left
    else:
        steps = -steps
    while left + m > m:  # the second test differs
        m, left = left, m - 5
    xs = [n, m]
    while len(xs) < 5:
        xs = [*xs, len(xs)]
    while xs[0] != 7:
        xs[0] = 7
    i = 1
    while i < n:
        i += i
    return k, steps, left, m, xs, i


def keeps_what_a_branch_leaves(s: str, n: int):
    told = ""
    for i in range(n):
        s = s + str(i % 10)
        t = s
        if len(s) > 5:
            s = s[2:] + t[:1]
        elif len(s) > 4:
            told += s
        u = n - i
        if u % 2 == 0:
            u = u * 3
        told += t[-1:] + str(u)
    return s, told


def breaks_in_branches(xs: list[int], limit: int):
    total = 0
    for x in xs:
        big = x > limit
        if big:
            total += 100
        else:
            total += x
        if big:
            break
    for x in xs:
        big = x > limit
        if not big:
            total -= x
        if big:
            break
        total *= 2
    return total


def divisor(a: int, b: int):
    while b:
        a, b = b, a % b
    return a


def while_any_is_left(text: str, limit: int):
    steps = 0
    while text and steps < limit:
        text = text[1:]
        steps += 1
    return text, steps


def sorted_by_bubbles(xs: list[int]):
    for i in range(len(xs)):
        for j in range(len(xs) - 1 - i):
            if xs[j] > xs[j + 1]:
                xs[j], xs[j + 1] = xs[j + 1], xs[j]
    return xs


def reads_through_another_name(xs: list[int], n: int):
    ys = xs
    before = xs[0] + xs[0]
    for _ in range(n):
        if xs[0] > 0:
            ys[0] -= 1
        before += xs[0] + ys[0]
    ys.insert(0, 7)
    return before, xs[0], len(xs), xs[0] + len(ys)


PROGRAMS = [
    (divisor, [(12, 18), (5, 0), (0, 5)]),
    (while_any_is_left, [("", 3), ("abc", 0), ("abc", 2), ("ab", 9)]),
    (sorted_by_bubbles, [([],), ([3, 1, 2, 2],)]),
    (reads_through_another_name, [([2, 5], 4), ([0], 1), ([1], 0)]),
    (
        runs_over_what_tolist_gave,
        [(torch.tensor(v), 2.0) for v in ([], [1.0, 3.0], [1.0, -1.0, 0.5], [-1.0, 2.0])],
    ),
    (reads_one_iterator_twice, [(torch.tensor(v),) for v in ([], [1], [3, 1, 2])]),
    (adds_in_place, [(torch.tensor([1, 2]), [5]), (torch.tensor([3]), [])]),
    (tested_at_both_ends, [(1, 0), (27, 9), (6, 10), (7, 7)]),
    (keeps_what_a_branch_leaves, [("", 0), ("a", 9)]),
    (breaks_in_branches, [([], 3), ([1, 2], 3), ([1, 4, 2], 3)]),
    (
        indexed_by_what_tolist_gave,
        [(torch.tensor([[1.0, 2.0], [-3.0, 4.0]]), torch.tensor(v)) for v in ([0, 1, 0], [], [1])],
    ),
    (reads_a_list_that_it_replaces, [([3],), ([5, 4],), ([],)]),
    (shifts, [(0,), (1,), (50,)]),
    (crc, [([],), ([1, 255, 7],)]),
    (collatz, [(1,), (27,)]),
    (fibonacci, [(0,), (1,), (90,)]),
    (sieve, [(50,), (2,), (0,)]),
    (primes, [(2,), (3,), (60,)]),
    (position, [([], 1), ([4, 5, 6], 6), ([4, 5], 9)]),
    (counted, [("",), ("a bb a bb cc bb",)]),
    (product, [([[1.0, 2.0]], [[3.0], [4.0]])]),
    (grown_while_read, [([1, 2],), ([],)]),
    (appended_in_nested_loops, [(0,), (1,), (4,)]),
    (overwritten_start, [(0, 3), (5, 3), (4, 0)]),
    (swapped_in_branches, [(1, 2, 0), (1, 2, 7)]),
    (nested_choice, [(1.5, 0.5), (0.5, 1.5), (-1.0, -2.0), (-3.0, -2.0)]),
    (counts_down, [(7, -2), (0, -1)]),
    (kept_after_loop, [([],), ([1, 2, 1, 5],), ([3],)]),
    (flags, [([],), ([1, 3, 3],), ([2],)]),
    (while_with_two_ends, [(0,), (30,)]),
    (numbers, [(3, 2.55), (-7, 0.5)]),
    (lists, [([3, 1, 2],)]),
    (dicts, [(["a", "bb"],)]),
    (strings, [("a-b", 3), ("a", 12345)]),
    (boxes, [(_BOXES, 0.5), (_BOXES[:0], 0.5)]),
    (around_tensors, [(torch.ones(3), 0), (torch.ones(3), 5)]),
]


def divides(xs: list[int]):
    s = 0
    for x in xs:
        s += 1
        s += 10 // x
    return s


def looks_up(d: dict[str, int], keys: list[str]):
    total = 0
    for k in keys:
        value = (
            d
            [k]
        )  # fmt: skip
        total += value
    return total


def reads_beyond(xs: list[int]):
    total = 0
    for i in range(5):
        y = xs[i]
        z = y + 1
        total += z
    return total


def checks(n: int):
    for i in range(n):
        assert i < 3, f"{i} is too many"
    return n


def raises(n: int):
    for i in range(n):
        if i == 2:
            raise ValueError("two", i)
    return n


def unpacks(rows: list[list[int]]):
    s = 0
    for row in rows:
        a, b = row
        s += a * b
    return s


def no_steps(n: int):
    s = 0
    for i in range(0, 10, n):
        s += i
    return s


def unbound(n: int):
    for i in range(n):
        x = i
    return x


FAILING = [
    (divides, ([1, 0],)),
    (looks_up, ({"a": 1}, ["a", "b"])),
    (reads_beyond, ([1, 2],)),
    (checks, (5,)),
    (raises, (4,)),
    (unpacks, ([[1, 2], [3]],)),
    (no_steps, (0,)),
    (unbound, (0,)),
]
