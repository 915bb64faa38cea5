"""Programs that were once refused, or once wrong, each with what it is about in its name."""

import collections
import enum
import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from tests.language import jit
from tests.language.support import call, module_program, program

DOUBLE = lambda x, k=2: x * k
STEPS = (lambda x: x + 1, lambda x: x - 1)


@program(calls=lambda: [(torch.ones(2),), (torch.ones(2), torch.zeros(2), torch.ones(2))])
def one_argument_of_many(*xs: Tensor):
    return len(xs), [x.sum() for x in xs]


@program(args=lambda: (torch.ones(2, dtype=torch.float16),), torchscript=False)
def dtype_of_a_tensor_that_is_not_kept(x: Tensor):
    like = x.new_ones(1).double()
    return x.to(like), x.type_as(like), x.to(x.new_zeros(3))


@program(calls=lambda: [(torch.ones(2, 3),), (torch.ones(0, 3),)], torchscript=False)
def one_of_two_variables_of_which_one_may_be_unbound(x: Tensor):
    other = x.sum(0)
    for t in range(x.shape[0]):
        row = x[t] * 2
    return row if x.shape[0] > 0 else other


@program(calls=lambda: [([1, "a", 2.5, None],), ([None],)], torchscript=False)
def one_class_of_several_or_none(values: List[Union[int, str, float, None]]):
    found: List[str] = []
    for value in values:
        if isinstance(value, int):
            found.append(f"int {value + 1}")
        elif isinstance(value, (str, type(None))):
            found.append("text or nothing")
        elif isinstance(value, float):
            found.append(f"float {value * 2}")
    return found


@program(calls=lambda: [(torch.ones(3, 2),), (torch.ones(40, 2),)], torchscript=False)
def shapes_as_text(x: Tensor):
    s = x.shape
    parts = [s[1:], s + (1,), (1,) + s, s * 2, s[::-1], tuple(s)]
    return f"{s} {x[1:].size()} {s[:1]!r}", str(s + s), [str(part) for part in parts], parts


@program(calls=lambda: [(None,), (2,), ("a",), (0.5,), ([1],)], torchscript=False)
def classes_in_any_form(v: Any):
    either = isinstance(v, str | None), isinstance(v, (int, (str, float)))
    steps = range(3)
    return (
        either,
        isinstance(v, type(None)),
        isinstance(v, (list, type(None))),
        (steps, v),
        (range(2), [v]),
    )


@program(calls=lambda: [(True, 2), (False, 3)], torchscript=False)
def deleted_in_a_branch(c: bool, n: int):
    a = [n]
    b = n
    if c:
        del b, a[0]
        b = 5
    else:
        b += 1
    for i in range(n):
        held = i + b
        del held
    return a, b


@program(calls=lambda: [(1,), (4,)], raises=UnboundLocalError, torchscript=False)
def deleted_in_a_loop(n: int):
    x = n
    for i in range(n):
        if i == 2:
            del x
        elif i < 2:
            x = x + i
    return x


@program(calls=lambda: [([1, 2, 3, 4], 3), ([1], 0)], torchscript=False)
def slices_as_values(xs: List[int], n: int):
    s = slice(1, n)
    either = slice(n) if n > 2 else slice(None, None, 2)
    ys = xs[:]
    ys[s] = [9]
    parts = [xs[p] for p in (slice(0, k) for k in range(n))]
    return xs[s], s.stop, s.step, xs[either], ys, parts, s, "abcd"[either], s == slice(1, n)


@program(args=lambda: (torch.arange(12.0).view(3, 4), slice(1, 3)), torchscript=False)
def slices_of_tensors(x: Tensor, s: slice):
    index = (slice(0, 2), 1)
    y = x.clone()
    y[s] += 1
    return x[s], x[:, s], x[..., s], x[index], y, s.start


@program(args=lambda: (torch.tensor([[3.0, 1.0], [2.0, 5.0]]),), torchscript=False)
def named_results_reach_the_caller(x: Tensor):
    found = x.max(0) if x.sum() > 0 else x.min(0)
    return found, found.values, x.sort(1), torch.topk(x, 1), x.median(0), torch.linalg.qr(x)


@program(args=lambda: (torch.tensor([[3.0, 1.0]]).max(0),), torchscript=False)
def named_results_as_arguments(r: Any):
    return r.values + 1, r.indices, r[0]


class Box:
    def __init__(self, items: List[int]):
        self.rows: List[List[int]] = [items]

    def put(self, row: List[int]) -> None:
        if len(self.rows) < 4:
            self.rows.append(row)


@program(args=lambda: ([7],), torchscript=False)
def list_that_grows_by_another_name(p: List[int]):
    box = Box([4])
    seen: List[int] = []
    for row in box.rows:
        seen.append(len(row))
        box.put(p)
    for row, k in zip(box.rows, [1, 2, 3, 4, 5]):
        if len(box.rows) < 6:
            box.rows.append([k])
    return seen, box.rows


@program(args=lambda: (torch.ones(2), collections.OrderedDict(a=1, b=2)), torchscript=False)
def ordered_dicts(x: Tensor, d: Dict[str, int]):
    made = collections.OrderedDict([("b", x), ("a", x * 2)])
    made["c"] = x + 1
    d.pop("a")
    d.setdefault("z", 5)
    d.update({"q": 1})
    return made, made.copy(), dict(made), d, d.popitem(), list(d)


@program(args=lambda: ([{"a": 1}, [1], (), (1,), "x", {}],), torchscript=False)
def kinds_of_any(values: List[Any]):
    return [(isinstance(v, dict), isinstance(v, list), isinstance(v, tuple)) for v in values]


@program(args=lambda: (torch.ones(2),), torchscript=False)
def lambdas_of_the_file(x: Tensor):
    return DOUBLE(x), DOUBLE(x, k=3), [step(x) for step in STEPS]


@dataclass
class Tagged:
    size: int
    tags: List[str] = field(default_factory=lambda: ["t"])


@program(args=lambda: (3,), torchscript=False)
def default_from_a_lambda(n: int):
    made = Tagged(n)
    made.tags.append("u")
    return made, Tagged(n).tags


@program(args=lambda: (torch.ones(2, 3, 4),), torchscript=False)
def rest_of_a_shape_is_a_list(x: Tensor):
    *lead, last = x.shape
    first, *rest = x.size()
    return lead, last, first, rest


@program(args=lambda: ([1, 2], "ff", 2.55), torchscript=False)
def keywords_of_builtins(xs: List[int], s: str, v: float):
    return (
        *(sum(xs, start=5), int(s, base=16), round(v, ndigits=1), complex(real=1, imag=2)),
        *(torch.device(type="cpu"), list(enumerate(xs, start=2)), max(xs, default=3)),
    )


@program(args=lambda: ([None, torch.ones(1)],), raises=AttributeError, torchscript=False)
def method_of_none(xs: List[Optional[Tensor]]):
    return xs[0].sum()


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@module_program(args=lambda: (torch.ones(2), Access.READ | Access.WRITE), torchscript=False)
class FlagsTogether(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mode = Access.READ | Access.WRITE
        self.none = Access(0)

    def forward(self, x: Tensor, mode: Access) -> Tuple[Tensor, Access, Access, bool]:
        if self.mode == mode and Access.WRITE in mode:
            x = x + 1
        return x, self.mode ^ Access.READ, ~mode, bool(self.none)


def _with_lambda_hook() -> nn.Module:
    made = Hooked()
    made.inner.register_forward_hook(lambda module, given, result: result * 2)
    return made


@module_program(make=_with_lambda_hook, args=lambda: (torch.ones(1, 2),), torchscript=False)
class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@jit.script
def total(n: int, *more: int) -> int:
    return n + sum(more)


@program(args=lambda: (3,), torchscript=False)
def scripted_with_star(n: int):
    return total(n), total(n, 1, 2)


@program(calls=lambda: [([1],), ([],)], raises=ValueError, torchscript=False)
def fewer_values_than_names_beside_a_starred_one(xs: List[int]):
    first, *rest, last = xs
    return first, rest, last


@program(calls=lambda: [([1],), ([],)], raises=ValueError, torchscript=False)
def least_of_none_that_nobody_uses(xs: List[int]):
    min(xs)
    return 1


@program(calls=lambda: [(1.0,), (0.0,)], raises=ValueError, torchscript=False)
def logarithm_that_nobody_uses(v: float):
    unused = math.log(v)
    return 1


@program(calls=lambda: [("a,b", ","), ("", "")], raises=ValueError, torchscript=False)
def split_that_nobody_uses(s: str, by: str):
    s.split(by)
    return 1


class Level(enum.IntEnum):
    LOW = 1


class Title(str, enum.Enum):
    MR = "Mr"


@program(args=lambda: (Level.LOW, Title.MR), torchscript=False)
def enums_that_are_numbers_and_strings(level: Level, title: Title):
    if isinstance(level, int) and isinstance(title, str):
        return isinstance(level, (str, float)), isinstance(title, enum.Enum), level + 1
    return None


@program(calls=lambda: [([1, 2],), ({"a": 7},), ({},)], raises=KeyError)
def list_of_ints_or_a_dict(v: Union[List[int], Dict[str, int]]):
    if isinstance(v, list):
        return v[0] + len(v)
    return v["a"]


@program(calls=lambda: [(torch.ones(2), [1], [1])])
def which_list_is_which_beside_tensors(x: Tensor, a: List[int], b: List[int]):
    c = a
    c *= 2
    d = [1, 2]
    e = d
    return x + 1, c is a, a is b, d is e, d is not [1, 2]


@program(calls=lambda: [(torch.ones(2), 2, [5]), (torch.ones(2), 0, [5])], torchscript=False)
def list_of_a_loop_takes_a_number_that_only_the_run_knows(x: Tensor, k: int, xs: List[int]):
    if k > 0:
        for _ in range(3):
            xs = [k] * 3
        xs += [x.argmax().item()]
    return x, xs


@program(args=lambda: ({"a": 1},), torchscript=False)
def views_of_a_dict_see_what_it_becomes(d: Dict[str, int]):
    keys, pairs = d.keys(), d.items()
    d["b"] = 2
    for k in range(2):
        d[str(k)] = len(keys)
    return list(keys), list(pairs), "b" in keys, sum(d.values())


@program(calls=lambda: [(7, 2), (torch.tensor(7), 2)], raises=TypeError, torchscript=False)
def divmod_of_tensors_is_none(a: Any, b: int):
    return divmod(a, b)


class Sized:
    def __divmod__(self, n: int):
        return "whole", n


@program(args=lambda: (2,), torchscript=False)
def divmod_of_an_object(n: int):
    return divmod(Sized(), n)


@program(calls=lambda: [(["a", "bc"],), ([],)], torchscript=False)
def longest_or_what_is_given_for_none(words: List[str]):
    return max(words, key=len, default=""), min(words, key=lambda w: -len(w), default=None)


@program(calls=lambda: [(["a", "bc"],), ([],)], raises=ValueError, torchscript=False)
def longest_of_none(words: List[str]):
    return max(words, key=len), max("q", "rs", key=len)


def _shifted(x: Tensor, **by: int):
    return x + sum(by.values())


@program(calls=lambda: [(torch.ones(1),), call(torch.ones(1), a=2.0)], torchscript=False)
def annotated_rest_of_keywords(x: Tensor, **more: float):
    return _shifted(x, a=1, b=2) * more.get("a", 1.0), list(more), "b" in more


@program(calls=lambda: [(torch.ones(2), [1, 2, 3], 5)], torchscript=False)
def list_of_two_names_that_a_loop_widens_by_one(x: Tensor, xs: List[int], k: int):
    zs = xs
    for _ in range(2):
        count = 0
        while len(xs) > 2 and count < 3:
            count += 1
            xs.append(x.argmax().item())
            zs += [k]
    return zs, xs


@program(calls=lambda: [(1,), ([1],), ((1, 2),), ("a",), ({"a": 1},)], torchscript=False)
def classes_by_their_names_in_typing(v: Any):
    return isinstance(v, Sequence), isinstance(v, Mapping), isinstance(v, (Tuple, List))


def _grown(xs: List[int], n: int) -> List[int]:
    xs.append(n)
    return xs


@program(calls=lambda: [([1, 2],)], torchscript=False)
def what_a_comprehension_runs_over_is_computed_once(xs: List[int]):
    first = [i + 1 for i in _grown(xs, 3)]
    return first, {i for i in _grown(xs, 4)}, any([i > 1 for i in _grown(xs, 5)]), xs


@program(calls=lambda: [(torch.ones(50, 3), 40, 0.5), (torch.ones(40, 3), 50, 2.0)])
def texts_of_numbers_beside_tensors(x: Tensor, k: int, r: float):
    y = x * k
    if f"{k}" == "40":
        y = y + 1
    if str(x.shape[0]) == "50":
        y = y * 2
    if str(k) in ("40", "41"):
        y = y - 3
    if ("a", str(r)) == ("a", "0.5"):
        y = y * 5
    return y, "%d" % k != "50"


@program(calls=lambda: [(torch.ones(50), 0.5, 40)], torchscript=False)
def numbers_of_lists_that_change_afterwards(x: Tensor, r: float, k: int):
    ys = [r, 1.0]
    most, total = max(ys), sum(ys)
    ys[0] = 7.0
    ys.append(5.0)
    words = [f"{k}", "b"]
    joined = ",".join(words)
    words.reverse()
    ys.append(min(ys))
    d = {"a": [r]}
    held = max(d["a"])
    d["a"].append(9.0)
    return x * most + total, most, total, joined, ys, words, held


@program(args=lambda: (torch.ones(2),), torchscript=False)
def variables(x: Tensor) -> Tensor:
    return torch.autograd.Variable(x, requires_grad=False) * 2


class _Asked:
    def __getattr__(self, name: str) -> float:
        if name == "gain":
            return 2.0
        raise AttributeError(name)


def _own() -> _Asked:
    asked = _Asked()
    asked.gain = 9.0
    return asked


@program(calls=lambda: [(_Asked(), 3.0), (_own(), 3.0)], torchscript=False)
def an_attribute_in_place_of_a_getattr(asked: _Asked, x: float) -> float:
    return asked.gain * x


class _Limited(NamedTuple):
    a: int
    b: float
    LIMIT = 7

    @classmethod
    def of(cls, a: int):
        return cls(a, a * 0.5)


@program(args=lambda: (3,), torchscript=False)
def members_of_a_named_tuple(n: int):
    pair = _Limited.of(n)
    return pair._fields, pair.LIMIT + n, pair.of(4).b


@module_program(calls=lambda: [(1,), (-3,), (7,)], raises=IndexError, torchscript=False)
class AskedOutOfRange(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.ReLU(), nn.Tanh(), nn.Sigmoid()])

    def forward(self, k: int):
        return self.parts[k](torch.ones(2))


@program(calls=lambda: [([3, 1, 3], (5, 1)), ([], ())], torchscript=False)
def spread_into_a_set(xs: List[int], ys: Tuple[int, ...]):
    return sorted({*xs}), sorted({7, *ys, *xs}), len({*xs, *ys})
