"""What Python does in corners: `:=` in branches, defaults of inner functions, subclasses behind a
declared class, messages that are computed only where a test fails, variables of loops."""

import collections.abc
import dataclasses
from typing import Any, ClassVar, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.language.support import call, module_program, program


class Shape:
    def __init__(self, width: float):
        self.width = width

    def area(self) -> float:
        return 0.0


class Square(Shape):
    def area(self) -> float:
        return self.width**2


class Named(Square):
    def __init__(self, width: float, name: str):
        super().__init__(width)
        self.name = name


class Holder:
    shape: Shape

    def __init__(self, shape: Shape):
        self.shape = shape


@program(calls=lambda: [call(Holder(Square(2.0))), call(Holder(Shape(2.0)))])
def method_of_a_subclass(holder: Holder):
    return holder.shape.area()


@program(args=lambda: (True,))
def method_of_a_subclass_that_was_chosen(flag: bool):
    holder = Holder(Square(2.0) if flag else Shape(1.0))
    return holder.shape.area()


@program(args=lambda: ([Shape(1.0), Square(2.0), Named(3.0, "n"), 4],))
def narrowed_to_a_base_class(values: List[Any]):
    found: List[Any] = []
    for value in values:
        if isinstance(value, Named):
            found.append(value.name)
        elif isinstance(value, Shape):
            found.append(value.area())
        else:
            found.append(value + 1)
    return found


@program(args=lambda: (2.0,))
def super_of_a_plain_class(width: float):
    named = Named(width, "n")
    return named.area(), type(named) is Named, type(named).__name__


@program(args=lambda: ([Shape(1.0), Named(2.0, "n"), 1, [1]],))
def what_objects_have(values: List[Any]):
    return [(hasattr(v, "name"), hasattr(v, "append"), getattr(v, "name", 9)) for v in values]


@program(calls=lambda: [call(Shape(1.0)), call(Named(2.0, "n")), call(torch.ones(2)), call(1)])
def what_an_object_has(value):
    return hasattr(value, "name"), hasattr(value, "shape"), callable(value)


@program(
    calls=lambda: [
        call(v) for v in (1, True, 2.5, "s", [1], (1, 2), {"a": 1}, {1}, None, torch.ones(2))
    ]
)
def instances_of_many(v):
    return (
        isinstance(v, int | float),
        isinstance(v, set),
        isinstance(v, object),
        isinstance(v, collections.abc.Sequence),
        isinstance(v, torch.nn.Parameter),
        isinstance(v, (tuple, dict)),
    )


@program(args=lambda: (torch.ones(2, 3), [2, 3]))
def a_size_is_no_list(x, sizes):
    doubled = x * 2
    one = (isinstance(x.shape, list), isinstance(x.shape, tuple), isinstance(x.shape, torch.Size))
    two = (isinstance(sizes, list), isinstance(sizes, tuple))
    return doubled, one, two


@program(refused=True, torchscript=False, args=lambda: (torch.ones(2), 2.5))
def range_of_a_float(x, n):
    for i in range(n):  # refused
        x = x + i
    return x


@program(args=lambda: (torch.Size([2, 3]),))
def size_is_a_tuple(size):
    return isinstance(size, tuple), isinstance(size, torch.Size)


@program(calls=lambda: [call(1), call(-1), call(0)])
def assigned_in_conditions(n: int):
    if (a := n) > 0 and (b := a + 1) > 1:
        return a, b
    c = (d := 5) if n else (d := 6)
    return c, d


@program(args=lambda: (0,), raises=UnboundLocalError)
def assigned_in_a_condition_not_met(n: int):
    n and (found := 3)
    return found


@program(calls=lambda: [call([1, 2, 3]), call([1])])
def assigned_in_comprehensions(xs: List[int]):
    total = 0
    sums = [(total := total + x) for x in xs]
    large = [y for x in xs if (y := x * 2) > 1]
    return sums, total, large, y


@program(calls=lambda: [call([4, 0, 1]), call([1, 5]), call([])])
def decided_before_the_end(xs: List[int]):
    seen: List[int] = []

    def noted(x: int) -> bool:
        seen.append(x)
        return x > 2

    return any(noted(x) for x in xs), all(10 // x < 5 for x in xs if x != 0), seen


@program(args=lambda: ([4, 0],))
def error_behind_the_decision(xs: List[int]):
    return any(8 // x == 2 for x in xs), all(8 // x > 2 for x in xs)


@program(args=lambda: (1,))
def read_in_one_branch(n: int):
    if n == 1:
        y = 5
    if n == 0:
        return y
    return n, y if n > 0 else 0


@program(calls=lambda: [call(3, True), call(0, True)])
def loop_variables_after_loops(n: int, flag: bool):
    for i in range(n):
        j = i
    if flag:
        j = 5
    for i in range(2):
        i = i * 10 + j
    return i, j


@program(calls=lambda: [call({}, "a"), call({"b": 2}, "a")])
def message_not_computed(d: Dict[str, int], key: str):
    assert key not in d, f"{key} is {d[key]}"
    return len(d)


@program(args=lambda: ({"a": 1}, "a"), raises=AssertionError)
def message_computed(d: Dict[str, int], key: str):
    assert key not in d, f"{key} is {d[key]}"
    return len(d)


class Failed(Exception):
    def __init__(self, message: str, code: int = 0):
        super().__init__(message, code)


@program(args=lambda: (7,), raises=Failed)
def raised_with_keywords(n: int):
    raise Failed("message", code=n)


@program(args=lambda: (3,))
def defaults_of_inner_functions(n: int):
    k = 1

    def scaled(a: int, /, b: int = k, *, c: int = 3) -> int:
        return a + b * 10 + c * 100

    k = 5
    return scaled(1), scaled(1, n), scaled(2, b=n, c=k)


@dataclasses.dataclass
class Log:
    start: int
    lines: List[int] = dataclasses.field(init=False, default_factory=list)
    count: int = dataclasses.field(init=False, default=4)
    scale: dataclasses.InitVar[int] = 3
    LIMIT: ClassVar[int] = 7

    def __post_init__(self, scale: int):
        self.start *= scale


@program(args=lambda: (1,))
def fields_that_init_does_not_take(n: int):
    log = Log(n)
    log.lines.append(log.LIMIT)
    log.count += 1
    return log, Log(n, 10)


class Link:
    following: Optional["Link"]

    def __init__(self, value: int):
        self.value = value
        self.following = None


@program(args=lambda: (3,))
def attributes_behind_optional(n: int):
    first = Link(n)
    first.following = Link(n + 1)
    current: Optional[Link] = first
    while current is not None:
        current.value *= 2
        last = current
        current = current.following
    first.following.value += 100
    return first.value, last.value, last is first.following


@program(args=lambda: ([torch.ones(2), None],))
def in_place_by_any_name(values: List[Optional[Tensor]]):
    for value in values:
        if value is not None:
            value.add_(1)
    return values


@module_program(calls=lambda: [call(torch.ones(2)), call(torch.ones(2))])
class SetsItsProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self._scale = 2.0
        self.weight = nn.Parameter(torch.ones(2))

    @property
    def scale(self) -> float:
        return self._scale * 2

    @scale.setter
    def scale(self, value: float):
        self._scale = value

    def forward(self, x: Tensor):
        self.scale = self._scale + 1
        return x * self.scale + self.weight, self._scale


@module_program(calls=lambda: [call(torch.ones(2)), call(torch.ones(2))])
class ChangedByAMethodOfAnIgnoredOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 1

    def forward(self, x: Tensor):
        before = self.count
        self.report()
        return x * self.count + before

    @torch.jit.ignore
    def report(self) -> None:
        self._increase()

    def _increase(self):
        self.count += 1


@program(args=lambda: (torch.arange(6.0).view(3, 2),))
def row_chosen_by_a_tensor(x: Tensor):
    row = x[x.sum(1).argmax()]
    row += 10
    return x, row, x[torch.tensor(0), 1:]


@program(args=lambda: ([1, 2],))
def tuple_of_unknown_length(xs: List[int]):
    return (*xs, 3), [*xs, 3]


@program(args=lambda: (torch.zeros(2, 2),))
def results_that_are_views(x: Tensor):
    same = +x
    turned = torch.einsum("ij->ji", x)
    diagonal = torch.einsum("ii->i", x)
    same += 1
    turned[0] = 5
    diagonal.add_(10)
    return x, same, turned, diagonal


@program(args=lambda: (torch.ones(2, 3),))
def shapes_spread(x: Tensor):
    return x.expand(4, *x.shape), [1, *x.shape], x.new_zeros(*x.shape[:1], *x.shape)


class _Holder:
    def __init__(self, callback: Any):
        self.callback = callback


@program(args=lambda: (3,), torchscript=False)
def called_value_of_unknown_type(n: int) -> int:
    held = _Holder(lambda v: v + n)
    functions: List[Any] = [held.callback, lambda v: v * n]
    total = 0
    for fn in functions:
        total += fn(2)
    return total


@program(calls=lambda: [(True,), (False,)], raises=TypeError, torchscript=False)
def none_has_no_items(safe: bool) -> int:
    x: Optional[List[int]] = None
    if not safe:
        return x[0]
    return 1


@program(calls=lambda: [(True,), (False,)], raises=AttributeError, torchscript=False)
def none_has_no_attributes(safe: bool) -> int:
    x = None
    if not safe:
        return x.total()
    return 1


@program(calls=lambda: [(0,), (1,), (2,), (3,), (4,)], raises=TypeError, torchscript=False)
def none_is_not_operated_on(which: int) -> int:
    x = None
    if which == 1:
        return 1 + x
    if which == 2:
        a, b = x
        return a
    if which == 3:
        for i in x:
            which += i
    if which == 4:
        return x()
    return which


@program(args=lambda: ([1, True, 2.0, "a"],), torchscript=False)
def type_of_unknown_values(xs: List[Any]) -> List[str]:
    out: List[str] = []
    for x in xs:
        if type(x) in (int, bool):
            out.append("whole")
        elif type(x) is float:
            out.append(type(x).__name__)
        else:
            out.append(str(type(x) is str))
    return out


@program(args=lambda: (10, 3), torchscript=False)
def range_as_a_value(n: int, k: int) -> Tuple[int, int, int, bool, bool, List[int]]:
    r = range(1, n, k)
    same = r == range(1, 9, 3)
    return len(r), r[1], r[-1] + 1, k + 1 in r, n not in range(n), list(r[1:])


@program(args=lambda: (5,), torchscript=False)
def range_given_back(n: int) -> Tuple[range, bool]:
    return range(n), range(0) == range(2, 2)


@program(args=lambda: (5,), torchscript=False)
def range_in_a_list(n: int) -> int:
    total = 0
    for r in [range(n), range(2, n)]:
        for i in r:
            total += i
    return total


class _Loose:
    def __init__(self, value: Any):
        self.value = value
        self.steps = [1]

    def add(self, n: int) -> None:
        self.value = self.value + n


def _value_of(loose: Any) -> Any:
    return loose.value


@program(args=lambda: ([_Loose(3), 1],), torchscript=False)
def attribute_read_before_it_changes(held: List[Any]) -> Tuple[int, int, int]:
    one = held[0]
    before = one.value
    also = _value_of(one)
    one.value = 10
    one.add(5)
    add = one.add
    add(1)
    return before, also, one.value


class _Bumped:
    def __init__(self, value: int):
        self.value = value

    def bump(self) -> int:
        self.value += 1
        return self.value


@program(args=lambda: ([_Bumped(3), 1],), torchscript=False)
def attributes_are_read_from_left_to_right(held: List[Any]) -> Tuple[int, bool, List[int]]:
    one = held[0]
    return one.value + one.bump(), one.value < one.bump() < 9, [one.value, one.bump()]


def _is_there(x: Optional[Tensor]) -> int:
    return 1 if x is not None else 2


@program(calls=lambda: [call([1, None, "a"]), call([1, torch.ones(2), "a"])])
def any_for_an_optional(xs: List[Any]):
    return _is_there(xs[1])
