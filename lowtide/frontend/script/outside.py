"""Assumptions about names from outside a program: globals, closures, attributes of objects.

In: each name that the compiler looked up, its holder (a dict of globals, a closure's cell or an
object), and the value that it found, or that there was none. Out: `holds()`, which every call runs
before the program.

    RATE = 0.5                      def holds():
    def f(x):                           return (g["RATE"] is 0.5 and g["helper"] is helper
        return helper(abs(x)) * RATE            and helper.__code__ is … and "abs" not in g)

Invariant: if a name has another value than when the program was compiled, the next call compiles a
new program. The new program reads a global number at each call; other values are assumed again.
Tensors are never assumed: they are captured, and read at each call. Names of installed packages are
assumed not to change, without a check.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch

from lowtide.frontend.script.source import is_installed, is_installed_file
from lowtide.ir.core import Value

_CONTAINERS = (list, tuple, dict, set, frozenset)
_NUMBERS = (int, float)
_MADE_ANEW = (MethodType, BuiltinFunctionType)  # by each look at it, if it is a method


class _Items(tuple[Any, ...]):
    """The contents of a container."""

    __slots__ = ()


class Presence:
    """Records whether there was an attribute of this name, whatever its value."""

    __slots__ = ("is_there",)

    def __init__(self, is_there: bool) -> None:
        self.is_there = is_there


class _Answer:
    """Stands for a holder about which a predicate is assumed."""

    __slots__ = ("ask",)

    def __init__(self, ask: Callable[[], object]) -> None:
        self.ask = ask


Row = tuple[Any, str, object]  # holder, name, what was there
_Key = tuple[int, str, type]


@dataclass(slots=True)
class Assumptions:
    """The assumptions of one program, by holder and name. `varying`: globals that have changed
    before. `counts`: how often, by name. `differences`: the assumptions of the previous program
    that failed. `log`: each read, in order. `live`: containers, by id, that are not constants of
    the program because it changes them. `assigned`: attributes that it assigns, with their holders.
    `puts_more`: it puts new types into a list or dict of the caller. `called`, `methods`: names of
    methods that objects must not override, by value and by operand."""

    found: dict[_Key, Row] = field(default_factory=dict["_Key", "Row"])
    log: list[Row] = field(default_factory=list["Row"])
    varying: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    counts: Counter[str] = field(default_factory=Counter[str])
    differences: tuple[str, ...] = ()
    live: dict[int, object] = field(default_factory=dict[int, object])
    assigned: dict[tuple[int, str], object] = field(default_factory=dict[tuple[int, str], object])
    puts_more: bool = False
    called: dict[Value, set[str]] = field(default_factory=dict["Value", set[str]])
    methods: dict[int | str, frozenset[str]] = field(
        default_factory=dict[int | str, frozenset[str]]
    )

    def settle_methods(self, places: Mapping[int | str, Value]) -> None:
        """Finish the program's assumptions. `places`: arguments by number, captures by path."""
        rows = ((k, self.called[v]) for k, v in places.items() if v in self.called)
        self.methods = {k: frozenset(names) for k, names in rows}

    def is_live(self, obj: object) -> bool:
        """Return whether the program reads the object itself, not a copy: it changes it, or the
        object holds tensors or itself, or computes items, as a defaultdict does."""
        return id(obj) in self.live or hasattr(type(obj), "__missing__") or _is_unlike(obj, ())

    def note_read(self, holder: object, name: str, kept: object) -> None:
        """Note a read that is checked elsewhere: the value, its required type, or the captured
        value."""
        is_container = isinstance(kept, _CONTAINERS)
        self.log.append((holder, name, _items(cast("object", kept)) if is_container else kept))

    def note(self, holder: object, name: str, found: object) -> None:
        """Assume this value. `holder`: a dict of globals, a closure's cell, or an object."""
        if not isinstance(found, torch.Tensor):  # it is captured
            one: Any = found
            is_copy = isinstance(found, _CONTAINERS) and not self.is_live(one)
            self._keep(holder, name, _items(one) if is_copy else one)

    def note_presence(self, holder: object, name: str, is_there: bool) -> None:
        """Assume that `holder` has, or lacks, an attribute of this name."""
        self._keep(holder, name, Presence(is_there))

    def note_function(self, fn: FunctionType) -> None:
        """Assume the code of a function that is part of the program."""
        if may_change(fn):
            has_defaults = fn.__defaults__ or fn.__kwdefaults__
            for name in ("__code__", *(_DEFAULTS if has_defaults else ())):
                found: object = getattr(fn, name)
                is_dict = name == "__kwdefaults__" and found is not None
                self._keep(fn, name, _items(found) if is_dict else found)

    def note_class(self, obj: object) -> None:
        """Assume that the object's class is unchanged."""
        self._keep(obj, "__class__", type(obj))

    def note_member(self, mro: Sequence[type], name: str) -> None:
        """Assume that a method or property is found in the first class that has it."""
        owner = next(k for k in mro if name in vars(k))
        if may_change(mro[0]) or may_change(owner):
            found = getattr(mro[0], name, None)
            is_first = found is getattr(owner, name) or isinstance(found, _MADE_ANEW)
            holder = mro[0] if is_first else owner
            self.note(holder, name, getattr(holder, name))

    def note_contents(self, name: str, held: object) -> None:
        """Assume the contents of a list, dict or set whose holder cannot change."""
        if _is_mutable(held):
            self.note(_holders.setdefault(id(held), {name: held}), name, held)

    def note_answer(self, holder: object, name: str, ask: Callable[[], object]) -> None:
        """Assume the result of `ask()` on the holder, a list or dict."""
        if (id(holder), name, _Answer) not in self.found:
            self.found[id(holder), name, _Answer] = _Answer(ask), name, _items(ask())

    def _keep(self, holder: object, name: str, kept: object) -> None:
        self.log.append((holder, name, kept))
        kind = Presence if isinstance(kept, Presence) else object
        self.found.setdefault((id(holder), name, kind), (holder, name, kept))

    def has_data(self) -> bool:
        """Return whether anything other than code was assumed."""
        code = (FunctionType, BuiltinFunctionType, type, ModuleType, CodeType, Presence)
        rows = self.found.values()
        return any(n not in _DEFAULTS and not isinstance(found, code) for _, n, found in rows)

    def holds(self) -> Callable[[], bool] | None:
        """Return a predicate that all assumptions hold; None if there are none."""
        names: dict[str, Any] = {"same": same}
        tests: list[str] = []
        of_classes = [row for row in self.found.values() if row[1] == "__class__"]
        if of_classes:  # there may be very many
            names |= {
                "objects": [h for h, _, _ in of_classes],
                "kinds": [k for _, _, k in of_classes],
            }
            tests.append("[*map(type, objects)] == kinds")
        for k, (holder, name, found) in enumerate(self.found.values()):
            if name == "__class__":
                continue
            names[f"h{k}"], names[f"v{k}"] = holder, found
            now = _text(holder, f"h{k}", name)
            if isinstance(found, Presence):
                tests.append(_presence_text(holder, f"h{k}", name, found.is_there))
            elif isinstance(found, _Items):
                names[f"v{k}"] = was = now_at(holder, name)
                names[f"f{k}"] = _test_of(was, found)
                is_one = "" if _is_mutable(was) else f"{now} is v{k} or "
                tests.append(f"({is_one}f{k}({now}))")
            elif isinstance(found, (*_NUMBERS, str)):
                tests.append(f"({now} is v{k} or same({now}, v{k}))")
            elif now_at(holder, name) is found:
                tests.append(f"{now} is v{k}")
            elif isinstance(found, _MADE_ANEW):
                tests.append(f"{now} == v{k}")
        if not tests:
            return None
        text = (
            "def holds():\n try:\n"
            f"  return {' and '.join(tests)}\n"
            " except Exception:\n  return False"  # of a property of the user's, too
        )
        exec(text, names)
        return cast("Callable[[], bool]", names["holds"])

    def changed(self) -> list[tuple[Any, str, object, object]]:
        """Return (holder, name, old value, new value) of each assumption that fails."""
        rows = ((h, n, was, now_at(h, n)) for h, n, was in self.found.values())
        return [row for row in rows if not same(row[2], row[3])]


def _is_unlike(obj: object, outer: tuple[object, ...]) -> bool:
    """Return whether a copy of the container would behave differently. `outer`: containers around
    it."""
    if isinstance(obj, torch.Tensor):
        return True
    if not isinstance(obj, list | tuple | dict):
        return False
    if any(obj is o for o in outer):
        return True
    one: Any = cast("object", obj)
    held: list[object] = list(one.values() if isinstance(obj, dict) else one)
    return any(_is_unlike(x, (*outer, one)) for x in held)


_ABSENT = object()
_DEFAULTS = ("__defaults__", "__kwdefaults__")
_holders: dict[int, dict[str, object]] = {}  # they keep what they hold, and so its id
_OFTEN = 8  # programs that were built since the same name had changed
_MANY = 32  # programs of one function, for whatever reason


def renewed(before: Assumptions | None, program: str, warn: Callable[[str], None]) -> Assumptions:
    """Return the initial assumptions of the program that replaces one with `before`: numbers that
    have changed are read at each call. Warns about a name that changes often."""
    if before is None:
        return Assumptions()
    changed = before.changed()
    varying = {
        (id(h), n)
        for h, n, was, now in changed
        if type(cast("object", h)) is dict and type(was) in _NUMBERS and type(now) is type(was)
    }
    counts = before.counts + Counter(name for _, name, _, _ in changed)
    names = (name for _, name, _, _ in changed)
    often = next((n for n in names if before.counts[n] < _OFTEN <= counts[n]), None)
    if often is not None:
        warn(
            f"{program} is recompiled whenever `{often}` changes, so far {_OFTEN} times; "
            "pass it as an argument, which is read at each call"
        )
    differences = tuple(_difference(h, n, was, now) for h, n, was, now in changed)
    return Assumptions(varying=before.varying | varying, counts=counts, differences=differences)


def note_program(
    count: int,
    program: str,
    assumed: Assumptions,
    differences: Sequence[str],
    warn: Callable[[str], None],
) -> None:
    """Warns once about a function that gets a new program again and again, such as one for each
    class of its arguments. `count`: its programs; `differences`: why the last one was built."""
    has_warned = any(often >= _OFTEN for often in assumed.counts.values())
    if count == _MANY and differences and not has_warned:
        warn(
            f"{program} was compiled {_MANY} times, the last time because {differences[0]}; "
            "each program takes time to compile, and is kept"
        )


def _difference(holder: object, name: str, was: object, now: object) -> str:
    name = f"{holder.__name__}.{name}" if isinstance(holder, FunctionType) else name
    if isinstance(was, Presence) or now is _ABSENT:
        return f"`{name}` {'was deleted' if now is _ABSENT else 'did not exist before'}"
    return f"`{name}` was replaced by another {type(now).__name__}"


def holder_of(fn: FunctionType, name: str) -> Any:
    """Return the cell or the globals where the function finds this name; None for a builtin."""
    free = fn.__code__.co_freevars
    if name in free:
        return (fn.__closure__ or ())[free.index(name)]
    return fn.__globals__ if name in fn.__globals__ else None


def still_finds(holder: object, name: str, found: object) -> bool:
    """Return whether another look-up finds the same object, not a new one."""
    return isinstance(found, _CONTAINERS) or same(found, now_at(holder, name))


def is_installed_code(fn: object) -> bool:
    """Return whether the callee belongs to Python, PyTorch or an installed package."""
    fn = fn.__func__ if isinstance(fn, MethodType) else fn
    owner = fn if isinstance(fn, type | FunctionType) else type(fn)
    return isinstance(fn, BuiltinFunctionType) or not may_change(owner)


def may_change(owner: object) -> bool:
    """Return whether the owner's attributes may change; those of PyTorch and installed packages do
    not."""
    if isinstance(owner, ModuleType):
        file = getattr(owner, "__file__", None)
        return not is_installed_file(file) and not _is_stdlib(owner.__name__)
    if not isinstance(owner, type | FunctionType):
        return True  # an object of whatever class
    module = str(getattr(owner, "__module__", ""))
    return not _is_stdlib(module) and not is_installed(owner)


def _is_stdlib(module: str) -> bool:
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root in ("torch", "lowtide")


def _text(holder: object, at: str, name: str) -> str:
    if type(holder) is dict:
        return f"{at}[{name!r}]"
    if isinstance(holder, _Answer):
        return f"{at}.ask()"
    return f"{at}.cell_contents" if isinstance(holder, CellType) else f"{at}.{name}"


def _presence_text(holder: object, at: str, name: str, is_there: bool) -> str:
    if type(holder) is dict:
        return f"{name!r} {'in' if is_there else 'not in'} {at}"
    return f"{'' if is_there else 'not '}hasattr({at}, {name!r})"


def now_at(holder: Any, name: str) -> object:
    if type(holder) is dict:
        return cast("dict[str, object]", holder).get(name, _ABSENT)
    if isinstance(holder, _Answer):
        return holder.ask()
    name = "cell_contents" if isinstance(holder, CellType) else name
    try:
        return getattr(holder, name, _ABSENT)
    except (ValueError, KeyError):  # an empty cell; what a `__getattr__` raises
        return _ABSENT


def same(a: object, b: object) -> bool:
    if isinstance(a, Presence):
        return a.is_there == (b is not _ABSENT)
    if isinstance(a, _Items):
        return a == _items(b)
    if isinstance(a, _MADE_ANEW):
        return a == b
    return a is b or (type(a) is type(b) and _items(a) == _items(b))


def _items(x: object) -> object:
    """Return what a program may have taken as constant: contents of containers, value and type of
    numbers and strings, identity of other objects."""
    kind = type(x)
    if isinstance(x, Mapping):
        held = cast("Mapping[object, object]", x)
        return _Items((kind, *((_items(k), _items(v)) for k, v in held.items())))
    if isinstance(x, list | tuple):
        return _Items((kind, *map(_items, cast("Sequence[object]", x))))
    if isinstance(x, set | frozenset):
        return _Items((kind, frozenset(map(_items, cast("frozenset[object]", x)))))
    if x is None or isinstance(x, (*_NUMBERS, str, complex)):
        return kind, x if x == x else "nan", str(x) if x == 0 else ""  # the sign of a zero
    return _Itself(x)


def _test_of(x: Any, items: _Items) -> Callable[[Any], bool]:
    """Return a predicate that a container has the same contents. Plain contents are compared with
    `==` and by type, since `True == 1`; others part by part."""
    kind: type = x.__class__
    values: Callable[[Any], Any] = dict[Any, Any].values if kind is dict else iter
    if kind not in (list, dict) or not all(map(_is_plain, values(x))):
        return lambda now: _items(now) == items
    held: Any = x.copy()
    keys, kinds = [*held], [*map(type, values(held))]
    return lambda now: (
        now.__class__ is kind
        and [*map(type, values(now))] == kinds  # first: what else is in it may not be comparable
        and now == held
        and [*now] == keys
    )


def _is_mutable(x: object) -> bool:
    """Return whether the container may hold something else later."""
    if isinstance(x, tuple | frozenset):
        return any(map(_is_mutable, cast("tuple[object, ...]", x)))
    return isinstance(x, _CONTAINERS)


def _is_plain(x: object) -> bool:
    """Return whether `==` on the value is fast, and equality decides everything but the type."""
    return x is None or type(x) in (bool, int, float, str) or isinstance(x, FunctionType | type)


class _Itself:
    """Equal only to the wrapper of the same object."""

    __slots__ = ("obj",)

    def __init__(self, obj: object) -> None:
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.obj is self.obj

    def __hash__(self) -> int:
        return id(self.obj)
