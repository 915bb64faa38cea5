"""What C code works on that a frame has called: the only place that knows how CPython keeps it.

In: the address of a frame object, and the instruction at which it stands. Out: the addresses of the
objects that C is working on: the operands of the instruction, which CPython keeps on the frame's
value stack until it is done, and what these lead to.

    total = torch.add(x.exp_(), y)      # at the call of exp_: two slots, the method and x
    list(map(torch.Tensor.exp_, [x]))   # list, a map; and by way of it exp_, an iterator, [x], x

Always: all is read as `reading` does, nothing is touched, as an operand may be gone at each moment.
Not through tensors, modules, functions and instances of Python's own classes, whose code has a
frame of its own. What C may take an object from that is not read, or is too much, is None: anything
may be in use. A call that has returned, and waits for Python's lock, works on nothing.

Source: `Include/internal/pycore_frame.h`, `Include/cpython/object.h`, `Python/compile.c` of each
version. `others.can_see` tries it out before it is relied on.
"""

from __future__ import annotations

import collections
import dis
import functools
import itertools
import sys
import sysconfig
import threading
import types
from collections.abc import Iterable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from lowtide.memory.scopes.reading import PAGE, WORD, block, blocks, is_address, words

# -- layouts -----------------------------------------------------------------------------------

_VERSIONS = ((3, 11), (3, 12), (3, 13))  # what is below is the same in all of them
# PyFrameObject: its _PyInterpreterFrame. In that: locals, and the value stack after them.
_FRAME, _LOCALS = 24, 72
# PyObject, in words: the type, and the rest.
_TYPE, _REST = 1, 2
_HEAD = 16  # words of an object that are read at first
# PyTypeObject, what of it is read; in words what calls its instances, flags, and its first base.
_TYPE_BYTES, _TYPE_CALL, _TYPE_FLAGS, _TYPE_BASE = 264, 16, 21, 32
# PySetObject, in words: its mask and its table, of two words for each place.
_SET_MASK, _SET_TABLE = 4, 5
_IS_HEAP, _IS_LIST, _IS_TUPLE, _IS_DICT, _IS_TYPE = 1 << 9, 1 << 25, 1 << 26, 1 << 29, 1 << 31
_MOST_OBJECTS = 4096
_MOST_LEVELS = 100
_MOST_BASES = 32
_MOST_INSTRUCTIONS = 50_000  # whose slots are known; of each some 200 bytes

Words: TypeAlias = tuple[int, ...]


def _is_usual() -> bool:
    is_locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
    is_plain = not hasattr(sys, "gettotalrefcount") and not hasattr(sys, "getobjects")
    return sys.implementation.name == "cpython" and is_locked and is_plain


HAS_LAYOUT = sys.version_info[:2] in _VERSIONS and _is_usual()

# -- instructions ------------------------------------------------------------------------------

_table: Any = getattr(dis, "_parse_exception_table")  # noqa: B009 - it is dis's own
# In 3.11 PRECALL is said to take the arguments, which lie there until CALL is done.
_IS_SPLIT = "PRECALL" in dis.opmap
# How many operands of a call there are beside `oparg`.
_CALLS = {"CALL": 2, "PRECALL": 2, "CALL_KW": 3}
# Those of others that threads often stand at; at the last they only wait for Python's lock.
_OPERANDS = {
    **dict.fromkeys(("FOR_ITER", "BEFORE_WITH", "BEFORE_ASYNC_WITH"), 1),
    **dict.fromkeys(("POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"), 1),
    **dict.fromkeys(("RESUME", "JUMP_BACKWARD", "YIELD_VALUE", "RETURN_GENERATOR"), 0),
}
_MOST_OPERANDS = 5  # of an instruction that is no call and runs C code: WITH_EXCEPT_START
# What they give lasts for as long as a call does, or is a tuple.
_LASTING = ("LOAD_", "LIST_TO_TUPLE", "CALL_INTRINSIC_1")
_ENDS = frozenset({
    "RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT",
})  # fmt: skip
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


class _Slots(NamedTuple):
    """Of a frame, from the first of its local variables on, those from `first` up to `end`.

    If it `is_call` the first is what is called, or empty, until it is what was returned. If it
    `is_star` the last is what its arguments were taken from, which may be gone if it `is_made` for
    this call.
    """

    first: int
    end: int
    is_call: bool = False
    is_star: bool = False
    is_made: bool = False


# By id of the code object, which it holds.
_slots: dict[int, tuple[CodeType, dict[int, _Slots]]] = {}


def _slots_at(code: CodeType, offset: int) -> _Slots:
    """What the instruction at byte `offset` works on; the whole stack where that is not known."""
    found = _slots.get(id(code))
    if found is None:
        found = code, _slots_of(code)
        if sum(len(slots) for _, slots in [*_slots.values()]) > _MOST_INSTRUCTIONS:
            _slots.clear()
        _slots[id(code)] = found
    begin = _count_of_locals(code)
    return found[1].get(offset) or _Slots(begin, begin + code.co_stacksize)


def _count_of_locals(code: CodeType) -> int:
    """Locals, cells that are no arguments, and what closures bring."""
    return len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)


def _slots_of(code: CodeType) -> dict[int, _Slots]:
    locals_count = _count_of_locals(code)
    depths = stack_depths(code)
    found: dict[int, _Slots] = {}
    makers: dict[int, str] = {}  # by slot, the instruction before this one that has filled it
    for at in dis.get_instructions(code):
        depth = depths.get(at.offset)
        if depth is None:
            continue
        arg = at.arg or 0
        is_star = at.opname == "CALL_FUNCTION_EX"
        if at.opname in _CALLS:
            depth += arg if _IS_SPLIT and at.opname == "CALL" else 0
            count = _CALLS[at.opname] + arg
        elif is_star:
            depth -= arg & 1  # the dict of arguments by name, which PyTorch's functions count
            count = 3
        else:
            count = _OPERANDS.get(at.opname, _MOST_OPERANDS)
        end = locals_count + depth
        is_call = is_star or at.opname in _CALLS
        is_made = is_star and not makers.get(depth - 1, "").startswith(_LASTING)
        found[at.offset] = _Slots(end - min(count, depth), end, is_call, is_star, is_made)
        after = depths[at.offset] + dis.stack_effect(at.opcode, at.arg, jump=False)
        makers[after - 1] = at.opname
    return found


def stack_depths(code: CodeType) -> dict[int, int]:
    """How many values lie on the stack before each instruction that can be reached, by offset.

    As CPython's compiler finds it: by the effect of each instruction along all jumps, and from the
    exception table.
    """
    instructions = list(dis.get_instructions(code))
    position = {at.offset: i for i, at in enumerate(instructions)}
    depths: dict[int, int] = {}
    waiting = [(0, _depth_at_start(code))]
    waiting += [(entry.target, entry.depth + entry.lasti + 1) for entry in _table(code)]
    while waiting:
        offset, depth = waiting.pop()
        while offset not in depths:
            depths[offset] = depth
            at = instructions[position[offset]]
            if at.opcode in _JUMPS:
                # 3.12 says that SEND takes a value when it jumps, which END_SEND does there.
                is_send = at.opname == "SEND" and sys.version_info[:2] == (3, 12)
                effect = 0 if is_send else dis.stack_effect(at.opcode, at.arg, jump=True)
                waiting.append((at.argval, depth + effect))
            if at.opname in _ENDS or position[offset] + 1 == len(instructions):
                break
            depth += dis.stack_effect(at.opcode, at.arg, jump=False)
            offset = instructions[position[offset] + 1].offset
    return depths


def _depth_at_start(code: CodeType) -> int:
    """Before 3.13 a generator is begun with a value that its first instruction takes off."""
    is_resumed = code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)
    return int(bool(is_resumed) and sys.version_info < (3, 13))


# -- objects -----------------------------------------------------------------------------------


class _OldSequence:
    def __getitem__(self, at: int) -> int:
        raise IndexError(at)


_DICT: dict[str, str] = {}
_LIST: list[str] = []
_iterators: tuple[Any, ...] = (
    *(iter(_LIST), iter(()), iter(_DICT), iter(_DICT.values()), iter(_DICT.items())),
    *(iter(set(_LIST)), iter(collections.deque(_LIST)), reversed(collections.deque(_LIST))),
    *(reversed(_LIST), reversed(_DICT), reversed(_DICT.values()), reversed(_DICT.items())),
    *(iter(int, 0), iter(_OldSequence()), _DICT.keys(), _DICT.values(), _DICT.items()),
)
# From which word to which objects of these types lead on.
_bodies: dict[type, tuple[int, int]] = {
    **{type(made): (_REST, type(made).__basicsize__ // WORD) for made in _iterators},
    **{
        kind: (_REST, kind.__basicsize__ // WORD)
        for kind in (map, zip, filter, enumerate, reversed, *vars(itertools).values())
        if isinstance(kind, type)
    },
    types.BuiltinFunctionType: (_REST + 1, _REST + 2),  # its self
    types.MethodType: (_REST, _REST + 2),  # function, self
    types.MethodWrapperType: (_REST + 1, _REST + 2),  # its self
    functools.partial: (_REST, _REST + 2),  # function, arguments
    staticmethod: (_REST, _REST + 1),  # function
    classmethod: (_REST, _REST + 1),
}
# From which C may take objects, though they are not read; the first have a size after the type.
_sets = (set, frozenset)
_sized = (collections.deque,)
_unread = (
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
    *(kind for kind, (_, end) in _bodies.items() if end > _HEAD),
)
# They lead nowhere, and are not looked at again.
_ends = (
    *(type(None), bool, int, float, str, bytes, type, types.ModuleType, types.FunctionType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType),
    *(type(threading.Lock()), type(threading.RLock())),
)
_BODIES = {id(kind): body for kind, body in _bodies.items() if kind not in _unread}
_SETS = frozenset(map(id, _sets))
_SIZED = frozenset(map(id, _sized))
_UNREAD = frozenset(map(id, _unread))
_ENDS_HERE = frozenset(map(id, _ends))
_KNOWN = _BODIES.keys() | _SETS | _SIZED | _UNREAD | _ENDS_HERE
_CALLED = frozenset(map(id, (types.BuiltinFunctionType, types.MethodDescriptorType)))
# While they work, their list is empty, and what they compare is known to them alone.
_HIDE = frozenset(map(id, (sorted, list.__dict__["sort"])))


class _Kind(NamedTuple):
    """Of a type what calls its instances, its flags and its first base; zeros of what is none."""

    call: int
    flags: int
    base: int


_lasting: dict[int, _Kind] = {}  # of types that never die


def know(*kinds: type) -> None:
    """Types that are met often, and stay."""
    _lasting.update((id(kind), _kind(id(kind))) for kind in kinds)


def _kind(address: int, is_meta: bool = False) -> _Kind:
    """Of the type at `address`, unless its own type is none."""
    known = _lasting.get(address)
    if known is not None:
        return known
    data = block(address, _TYPE_BYTES)
    fields = words(data) if data else (0,) * (_TYPE_BYTES // WORD)
    meta = fields[_TYPE]
    if meta != id(type) and (is_meta or not _kind(meta, True).flags & _IS_TYPE):
        return _Kind(0, 0, 0)
    kind = _Kind(fields[_TYPE_CALL], fields[_TYPE_FLAGS], fields[_TYPE_BASE])
    if not kind.flags & _IS_HEAP:
        _lasting[address] = kind
    return kind


def operands(frames: list[tuple[int, CodeType, int]]) -> set[int] | None:
    """What C works on that was called from these frames: by address, code object and instruction.
    None if it may be anything."""
    slots = [_slots_at(code, offset) for _, code, offset in frames]
    inner = blocks([(address + _FRAME, WORD) for address, _, _ in frames])
    begins = [0 if data is None else words(data)[0] + _LOCALS for data in inner]
    parts = [
        (begin + first * WORD, (end - first) * WORD)
        for begin, (first, end, *_) in zip(begins, slots, strict=True)
    ]
    stacks: list[Words] = [() if data is None else words(data) for data in blocks(parts)]
    heads = _heads({word for stack in stacks for word in stack})
    used: set[int] = set()
    for stack, (*_, is_call, is_star, is_made) in zip(stacks, slots, strict=True):
        # Not the second, where `partial` and methods put their own first argument meanwhile.
        if not stack or (is_call and stack[0] and not _is_called(stack[0], heads)):
            continue
        # Of a list that was given, and perhaps let go of, only C knows a copy.
        if is_star and (is_made or heads.get(stack[-1], (0, 0))[_TYPE] != id(tuple)):
            return None
        used.update(stack)
    return None if used & _HIDE else reach(used, heads)


def _is_called(address: int, heads: dict[int, Words]) -> bool:
    """Whether it is what a call calls, and not what one has returned."""
    head = heads.get(address)
    return head is not None and (head[_TYPE] in _CALLED or _kind(head[_TYPE]).call != 0)


def _heads(addresses: Iterable[int]) -> dict[int, Words]:
    """The first words of what is there, by address."""
    asked = [address for address in addresses if is_address(address)]
    found: dict[int, Words] = {}
    for address, data in zip(asked, blocks([(at, _HEAD * WORD) for at in asked]), strict=True):
        data = data or block(address, PAGE - address % PAGE)  # at the end of what is mapped
        if data is not None:
            found[address] = words(data[: _HEAD * WORD].ljust(_HEAD * WORD, b"\0"))
    return found


def reach(addresses: set[int], heads: dict[int, Words]) -> set[int] | None:
    """These and all that they lead to; None if it may be anything. `heads` are those known."""
    reached, waiting = set(addresses), set(addresses)
    known: dict[int, int] = {}
    for _ in range(_MOST_LEVELS):
        if not waiting:
            return reached
        heads.update(_heads(waiting - heads.keys()))
        found: set[int] = set()
        for address in waiting & heads.keys():
            kind = heads[address][_TYPE]
            if kind not in known:
                known[kind] = _known_kind(kind)
            further = _leads(address, heads[address], known[kind])
            if further is None:
                return None
            found.update(filter(is_address, further))
        waiting = found - reached
        reached |= waiting
        if len(reached) > _MOST_OBJECTS:
            return None
    return None


def _known_kind(kind: int) -> int:
    """The type itself, or the first of its bases that is one of C's that are known here: a class
    of Python's has what its base has."""
    at = kind
    for _ in range(_MOST_BASES):
        if at in _KNOWN:
            return at
        fields = _kind(at)
        if not fields.flags & _IS_HEAP:
            break
        at = fields.base
    return kind


def _leads(address: int, head: Words, kind: int) -> Words | None:
    """What an object leads to that is read as of this kind; None if that is not read, or too
    much."""
    size = head[_REST]
    if kind in _BODIES:
        first, end = _BODIES[kind]
        return head[first:end]
    if kind in _ENDS_HERE:
        return ()
    if kind in _UNREAD:
        return None
    if kind in _SETS:
        count = head[_SET_MASK] + 1
        if count > _MOST_OBJECTS:
            return None
        data = block(head[_SET_TABLE], 2 * count * WORD)
        return () if data is None else words(data)[::2]
    flags = _kind(kind).flags
    is_array = flags & (_IS_TUPLE | _IS_LIST)
    if not size or not (is_array or flags & _IS_DICT or kind in _SIZED):
        return ()
    if size > _MOST_OBJECTS or not is_array:
        return None
    items = address + (_REST + 1) * WORD if flags & _IS_TUPLE else head[_REST + 1]
    data = block(items, size * WORD)
    return () if data is None else words(data)
