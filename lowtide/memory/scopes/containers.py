"""What objects that C code works on lead to: the items of a list, the arguments of a `partial`.

In: addresses of objects, which may be gone. Out: the addresses that can be reached from there
through tuples, lists, dicts, sets, iterators, partials, bound methods of C and generators that
wait: what C code may take an object from while it works. All is read, nothing is touched.

    reach([id(map(torch.Tensor.exp_, [x]))])     # {…, id(x)}

Always: not through tensors, modules, classes, functions and instances of Python's own classes,
whose code runs in frames of its own. What is not known is no container; what comes to more than
some thousand objects is given up: None, anything may be reached.
"""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from lowtide.memory.scopes.layouts import (
    DEQUE_ITEMS,
    GENERATOR_STATE,
    IS_DICT,
    IS_HEAP,
    IS_LIST,
    IS_TUPLE,
    KEYS_BYTES,
    KEYS_KIND,
    LOCALS,
    LOG_INDEX_BYTES,
    MOST_SHARED,
    REST,
    TOP,
    TYPE,
    TYPE_BASE,
    TYPE_BYTES,
    TYPE_CALL,
    TYPE_FLAGS,
    USABLE_AND_COUNT,
)  # fmt: skip
from lowtide.memory.scopes.reading import PAGE, WORD, block, blocks, is_address, words

_MOST_OBJECTS = 4096
_MOST_WORDS = 1 << 20
_HEAD = 16  # words of an object that are read at first

Words: TypeAlias = tuple[int, ...]
# From an object's head what it leads to; None if it is too much.
Leads: TypeAlias = Callable[[int, Words], "Words | None"]


def _read(address: int, count: int) -> Words | None:
    """So many words, or as many as there are; None if it is too much."""
    if count > _MOST_WORDS:
        return None
    if count <= 0 or not is_address(address):
        return ()
    to_end_of_page = (PAGE - address % PAGE) // WORD
    data = block(address, count * WORD) or block(address, min(count, to_end_of_page) * WORD)
    return () if data is None else words(data)


def _body(kind: type) -> Leads:
    count = kind.__basicsize__ // WORD

    def lead(address: int, head: Words) -> Words | None:
        return head[REST:count] if count <= _HEAD else _read(address, count)

    return lead


def _tuple(address: int, head: Words) -> Words | None:
    size = head[REST]
    first = REST + 1
    return head[first : first + size] if size <= _HEAD - first else _read(address + 24, size)


def _list(address: int, head: Words) -> Words | None:
    return _read(head[REST + 1], head[REST])


def _dict(address: int, head: Words) -> Words | None:
    keys, values = head[REST + 2], head[REST + 3]
    data = block(keys, KEYS_BYTES)
    if data is None or data[LOG_INDEX_BYTES] > _HEAD * 2:
        return ()
    usable, count = words(data[USABLE_AND_COUNT:])
    entries = keys + KEYS_BYTES + (1 << data[LOG_INDEX_BYTES])
    found = _read(entries, count * (2 if data[KEYS_KIND] else 3))
    # Beside the keys, if others share them; after their sizes.
    shared = _read(values, min(1 + usable + count, MOST_SHARED))
    return None if found is None or shared is None else found + shared


def _set(address: int, head: Words) -> Words | None:
    mask, table = head[REST + 2], head[REST + 3]
    return _read(table, 2 * (mask + 1))


def _deque(address: int, head: Words) -> Words | None:
    size, at = head[REST], head[REST + 1]
    found: list[int] = []
    while at and len(found) < min(size, _MOST_WORDS) + DEQUE_ITEMS:
        part = _read(at, DEQUE_ITEMS + 2)
        if not part:
            break
        found += part[1:]  # as C does, to the right
        at = part[-1]
    return None if size > _MOST_WORDS else tuple(found)


def _generator(kind: type) -> Leads:
    """Locals and stack of one that waits; one that runs has a frame on its thread."""
    first = kind.__basicsize__  # of its locals, which end it

    def lead(address: int, head: Words) -> Words | None:
        data = block(address, first)
        if data is None:
            return ()
        frame = first - LOCALS
        waits = data[frame - GENERATOR_STATE] > 127  # below zero
        top = int.from_bytes(data[frame + TOP :][:4], "little", signed=True)
        return _read(address + first, top) if waits else ()

    return lead


_DICT: dict[str, str] = {}
_DEQUE: deque[str] = deque()
_SET: set[str] = set()
_LIST: list[str] = []
_iterators: tuple[object, ...] = (
    *(iter(_LIST), iter(()), iter(_DICT), iter(_DICT.values()), iter(_DICT.items()), iter(_SET)),
    *(iter(_DEQUE), reversed(_DEQUE), reversed(_LIST), reversed(_DICT), iter(int, 0)),
    *(reversed(_DICT.values()), reversed(_DICT.items())),
    *(_DICT.keys(), _DICT.values(), _DICT.items()),
)
_bodies: set[type] = {
    *(types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType, types.MappingProxyType),
    *(functools.partial, operator.methodcaller, operator.itemgetter, operator.attrgetter),
    *(map, zip, filter, enumerate, reversed, slice),
    *map(type, _iterators),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
}


class _OldSequence:
    def __getitem__(self, at: int) -> int:
        raise IndexError(at)


class _Callable:
    def __call__(self) -> None: ...


_bodies |= {type(iter(_OldSequence()))}  # pyright: ignore
_leads: dict[int, Leads] = {id(kind): _body(kind) for kind in _bodies}
_leads |= {id(tuple): _tuple, id(list): _list, id(dict): _dict, id(deque): _deque}
_leads |= {id(set): _set, id(frozenset): _set}
_generators: tuple[type, ...] = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_leads |= {id(kind): _generator(kind) for kind in _generators}
_by_flag: tuple[tuple[int, Leads], ...] = ((IS_TUPLE, _tuple), (IS_LIST, _list), (IS_DICT, _dict))
# Types that lead nowhere and never die, so that they need not be looked at again.
_nowhere: set[int] = set()
# They run Python code, in a frame that is seen, and do nothing else to what they are given.
_run_python: frozenset[int] = frozenset(map(id, (exec, eval, __build_class__)))
# While they work, their list is empty, and what they compare is known to them alone.
_hide: frozenset[int] = frozenset(map(id, (sorted, list.__dict__["sort"])))


def know_kinds(*kinds: type) -> None:
    """Classes that lead nowhere, and stay."""
    _nowhere.update(map(id, kinds))


def heads_of(addresses: Iterable[int]) -> dict[int, Words]:
    """The first words of what is there, by address."""
    asked = [address for address in addresses if is_address(address)]
    found: dict[int, Words] = {}
    for address, data in zip(asked, blocks([(at, _HEAD * WORD) for at in asked]), strict=True):
        data = data or block(address, PAGE - address % PAGE)  # at the end of what is mapped
        if data is not None:
            found[address] = words(data.ljust(_HEAD * WORD, b"\0"))
    return found


def runs_python(address: int, heads: dict[int, Words], deep: int = 8) -> bool:
    """Whether a call of it runs Python code, in a frame of its own, and nothing else."""
    if address in _run_python:
        return True
    head = heads.get(address) or heads_of([address]).get(address)
    if head is None or not deep:
        return False
    kind = head[TYPE]
    if kind == id(types.FunctionType):
        return True
    if kind in (id(types.MethodType), id(functools.partial)):
        return runs_python(head[REST], heads, deep - 1)
    if kind in _nowhere or kind in _leads:
        return False
    flags, call, _ = _of_type(kind)
    return bool(flags & IS_HEAP) and call == _call_by_python()


def reach(addresses: Iterable[int], heads: dict[int, Words]) -> set[int] | None:
    """These and all that they lead to; None if that is too much to say. `heads` are those known."""
    reached = set(addresses)
    if not reached.isdisjoint(_hide):
        return None
    waiting, count = list(reached), 0
    leads: dict[int, Leads | None] = {}
    while waiting:
        heads |= heads_of(address for address in waiting if address not in heads)
        found: set[int] = set()
        for address in waiting:
            head = heads.get(address)
            if head is None:
                continue
            kind = head[TYPE]
            if kind not in leads:
                leads[kind] = _lead_of(kind)
            lead = leads[kind]
            further = () if lead is None else lead(address, head)
            if further is None:
                return None
            found.update(further)
        waiting = [word for word in found - reached if is_address(word)]
        count += len(waiting)
        if count > _MOST_OBJECTS:
            return None
        reached |= found
    return reached


def _lead_of(kind: int, deep: int = 64) -> Leads | None:
    """How objects of this type lead on: as those of the one in C that it derives from."""
    lead = _leads.get(kind)
    if lead is not None or kind in _nowhere or not deep:
        return lead
    flags, _, base = _of_type(kind)
    lead = next((lead for flag, lead in _by_flag if flags & flag), None)
    if lead is None and flags & IS_HEAP:
        return _lead_of(base, deep - 1)
    if lead is None and flags:  # never dies
        _nowhere.add(kind)
    return lead


def _of_type(kind: int) -> tuple[int, int, int]:
    """Its flags, what calls its instances, and the type that it derives from."""
    data = block(kind, TYPE_BYTES)
    fields = words(data) if data else (0,) * (TYPE_BYTES // WORD)
    return fields[TYPE_FLAGS // WORD], fields[TYPE_CALL // WORD], fields[TYPE_BASE // WORD]


@functools.cache
def _call_by_python() -> int:
    """What calls an instance of a class of Python's."""
    return _of_type(id(_Callable))[1]
