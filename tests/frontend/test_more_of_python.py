"""What programs take from outside: versions, objects that say whether they are true, copies,
functions in lists, legacy constructors; and names that are no identifiers."""

from __future__ import annotations

import copy
import io
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

X = torch.linspace(-1, 1, 4)


class Available:
    def __init__(self, is_there: bool) -> None:
        self.is_there = is_there

    def __bool__(self) -> bool:
        return self.is_there


FAST = Available(False)


def of_an_object(x: Tensor):
    return x * 2 if FAST else x + 1


def test_a_global_object_is_asked_at_each_call() -> None:
    scripted = lt.script(of_an_object)
    for is_there in (False, True, False):
        FAST.is_there = is_there
        torch.testing.assert_close(scripted(X), of_an_object(X))


def test_version() -> None:
    def fn(x):
        is_old = torch.__version__ < "1.6"
        return x + 1 if torch.__version__ >= "1.13" and not is_old else x

    torch.testing.assert_close(lt.script(fn)(X), fn(X))


def test_copies() -> None:
    def fn(xs: list[Tensor], x: Tensor):
        more, own = copy.copy(xs), copy.deepcopy(x)
        more.append(own.add_(1))
        return len(xs), len(more), more[-1], x

    torch.testing.assert_close(lt.script(fn)([X], X), fn([X], X))
    given = [X]
    lt.script(fn)(given, X)
    assert len(given) == 1


def test_legacy_constructors() -> None:
    def fn(x):
        return torch.FloatTensor([1.0, 2.0]) + x[0], torch.LongTensor([1, 2])

    torch.testing.assert_close(lt.script(fn)(X), fn(X))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [(1.0, torch.tanh), (2.0, None)]

    def forward(self, x: Tensor):
        for factor, step in self.steps:
            x = x * factor
            if step is not None:
                x = step(x)
        return x


def test_functions_in_a_list() -> None:
    model = Stack()
    scripted = lt.script(model)
    torch.testing.assert_close(scripted(X), model(X))
    model.steps = [(1.0, torch.sin), (3.0, None)]
    torch.testing.assert_close(scripted(X), model(X))


class Telling(nn.Module):
    def name(self) -> str:
        return "telling"

    def forward(self, x: Tensor):
        if x.dim() > 1:
            raise ValueError(f"{self.name}, {self}, {x.dim}"[:30])
        return x, f"{self.name}", f"{self}"


def test_methods_and_modules_in_f_strings() -> None:
    model = Telling()
    scripted = lt.script(model)
    assert scripted(X)[1:] == model(X)[1:]
    with pytest.raises(ValueError, match="bound method Telling"):
        scripted(X[None])


class Hyphened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("a-b", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, "a-b")(x)


def through_file(compiled: Any) -> Any:
    file = io.BytesIO()
    lt.save(compiled, file)
    file.seek(0)
    return lt.load(file)


def test_a_submodule_whose_name_is_no_identifier() -> None:
    model = Hyphened()
    for compiled in (lt.trace(model, (X,)), lt.script(model)):
        torch.testing.assert_close(through_file(compiled)(X), model(X))


def test_a_loaded_function_shows_its_program() -> None:
    loaded = through_file(lt.script(of_plain))
    assert loaded.code
    assert "torch.add" in str(loaded.graph)
    loaded(X)
    assert "torch.add" in str(loaded.graph)


def of_plain(x: Tensor):
    return x + 1


class Unmade(nn.Module):
    def __init__(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_module_without_its_init() -> None:
    with pytest.raises(lt.CompileError, match=r"Unmade.__init__ has not called(.|\n)*super\(\)"):
        lt.script(Unmade())


def rows_between(x: Tensor):
    first, *rest, last = x
    return first, rest, last


def test_a_tensor_is_unpacked_with_a_rest() -> None:
    for n in (4, 2):
        x = torch.randn(n, 3)
        torch.testing.assert_close(lt.script(rows_between)(x), rows_between(x))
    with pytest.raises(ValueError, match="not enough values to unpack"):
        lt.script(rows_between)(torch.randn(1, 3))


def iterator_given(x: list[int]):
    return map(abs, x)


def iterator_measured(x: list[int]):
    return len(abs(v) for v in x)


def iterator_indexed(x: list[int]):
    rows = [[v, v] for v in x]
    pairs = zip(*rows, strict=False)
    return pairs[0]


def iterator_read_twice(x: list[int]):
    rows = [[v, v] for v in x]
    pairs = zip(*rows, strict=False)
    return list(pairs), list(pairs)


def rounded_tensor(x: list[int]):
    return round(torch.tensor(x))


def counted(x: list[int]):
    return [*x].numel()


def spread(x: list[int]):
    return {**[(v, v) for v in x]}


def sliced(x: list[int]):
    return {v: v for v in x}[1:]


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (iterator_given, "an iterator, which can only be read"),
        (iterator_measured, "an iterator, which can only be read"),
        (iterator_indexed, "an iterator, which can only be read"),
        (iterator_read_twice, "can be read only once"),
        (rounded_tensor, "a Tensor has no `__round__`"),
        (counted, "has no method 'numel'"),
        (spread, "which is no dict"),
        (sliced, "has no items `1:`"),
    ],
)
def test_what_python_refuses(fn: Any, why: str) -> None:
    with pytest.raises(lt.CompileError, match=why):
        lt.script(fn)([-1, 2])


def test_rows_of_unknown_number_become_columns() -> None:
    def fn(rows: list[list[int]]):
        first, *rest = zip(*rows, strict=False)
        two = rows[:2]
        sums = [a + b for a, b in zip(*two, strict=False)]
        return first, rest, sums, dict(zip(*two, strict=False))

    rows = [[1, 2, 3], [4, 5, 6]]
    assert lt.script(fn)(rows) == fn(rows)


def of_size(x: Tensor, n: int):
    return torch.zeros(n)


def of_dim(x: Tensor, n: int):
    return x.sum(n)


def of_dims(x: Tensor, n: int):
    return torch.cat([x, x], n)


@pytest.mark.parametrize("fn", [of_size, of_dim, of_dims])
def test_a_bool_is_no_size_or_dim(fn: Any) -> None:
    for f in (fn, lt.script(fn)):
        with pytest.raises(TypeError):
            f(X[None], True)
    torch.testing.assert_close(lt.script(fn)(X[None], 1), fn(X[None], 1))


def spread(v: Any):
    return {**v}


@pytest.mark.parametrize("value", ["ab", 3, None, torch.ones(2)])
def test_what_is_spread_in_a_dict_is_a_mapping(value: Any) -> None:
    scripted = lt.script(spread)
    scripted({"a": 1})
    with pytest.raises(TypeError, match="object is not a mapping"):
        scripted(value)


def rows_multiplied(x: Tensor):
    return math.prod(x)


def items_multiplied(x: Tensor, y: Tensor):
    return math.prod([x, y]), math.prod((2, 3)), math.prod([0.5, 4])


def test_the_product_of_a_tensor_is_that_of_its_rows() -> None:
    for x in (torch.arange(1.0, 7).view(2, 3), torch.tensor([2, 3]), torch.ones(0)):
        torch.testing.assert_close(lt.script(rows_multiplied)(x), math.prod(x))
    found, *others = lt.script(items_multiplied)(X, X + 1)
    torch.testing.assert_close(found, X * (X + 1))
    assert others == [6, 2.0]


def row_of(there: bool):
    return torch.zeros([there, 2])


def test_a_bool_in_a_list_of_sizes_is_refused_by_pytorch() -> None:
    with pytest.raises(TypeError, match="must be tuple of ints"):
        lt.script(row_of)(True)


class Sized:
    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self):
        return self.length


def length_of(sized: Sized):
    return len(sized)


def test_a_length_is_an_int_that_is_not_negative() -> None:
    scripted = lt.script(length_of)
    assert [scripted(Sized(n)) for n in (3, True)] == [3, 1]
    assert type(scripted(Sized(True))) is int
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        scripted(Sized(2.5))
    with pytest.raises(ValueError, match="should return >= 0"):
        scripted(Sized(-3))


class State(NamedTuple):
    keys: Tensor
    count: int = 1

    @property
    def double(self) -> int:
        return self.count * 2

    def total(self) -> int:
        return self.count + 1


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None

    def forward(self, x: Tensor) -> Any:
        if self.state is None:
            self.state = State(x)
        else:
            keys = torch.cat([self.state.keys, x])
            self.state = self.state._replace(keys=keys, count=self.state.total())
        return self.state._asdict(), self.state.double


def test_methods_of_a_named_tuple_that_may_be_none() -> None:
    plain, compiled = Cached(), lt.script(Cached())
    for _ in range(3):
        assert str(compiled(torch.ones(1))) == str(plain(torch.ones(1)))

    @lt.script
    def replaced(state: State | None) -> State:
        return state._replace(count=3)  # pyright: ignore[reportOptionalMemberAccess]

    assert replaced(State(torch.ones(1))).count == 3
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute '_replace'"):
        replaced(None)


@lt.script
def depth_of(n: int) -> int:
    return 0 if n == 0 else 1 + depth_of(n - 1)


def test_python_runs_recursive_calls_of_a_compiled_function() -> None:
    """The inner calls are uncompiled, and take a few of Python's frames each."""
    assert depth_of(200) == 200
    before = lt.cache_stats()
    assert depth_of(201) == 201
    assert lt.cache_stats().calls_eager == before.calls_eager
