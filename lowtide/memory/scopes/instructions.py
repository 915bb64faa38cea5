"""Which slots of a frame's value stack an instruction works on, while it is in the middle of it.

In: a code object and the instruction at which a frame stands. Out: a range of slots, counted from
the first of its local variables: CPython keeps the operands there until the instruction is done.

    total = torch.add(x.exp_(), y)          # at the call of exp_: two slots, the method and x

The depth at each instruction is found as CPython's compiler finds it, once for each code object: by
`dis.stack_effect` along all jumps, and from the exception table. Lower slots belong to instructions
to come, and are nothing that C is working on; higher ones are left over from earlier calls.
"""

from __future__ import annotations

import dis
import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType
from typing import Any, NamedTuple

_table: Any = getattr(dis, "_parse_exception_table")  # noqa: B009 - it is dis's own
_INSTRUCTION_BYTES = 2
# How many operands an instruction has beside `oparg`, and how often that counts. What is not here
# is taken to work on the whole stack. The last are done with the stack where Python lets other
# threads run.
_OPERANDS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("CALL", "PRECALL"), (2, 1)),
    "CALL_KW": (3, 1),
    "CALL_FUNCTION_EX": (3, 1),
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "CONTAINS_OP"), (2, 0)),
    **dict.fromkeys(("STORE_ATTR", "DELETE_SUBSCR", "SEND", "FORMAT_VALUE"), (2, 0)),
    **dict.fromkeys(("FORMAT_WITH_SPEC", "CALL_INTRINSIC_2", "IMPORT_NAME"), (2, 0)),
    **dict.fromkeys(("STORE_SUBSCR", "BINARY_SLICE", "LOAD_SUPER_ATTR"), (3, 0)),
    "STORE_SLICE": (4, 0),
    "WITH_EXCEPT_START": (5, 0),
    **dict.fromkeys(("UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT", "UNARY_POSITIVE"), (1, 0)),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "DELETE_ATTR", "IMPORT_FROM"), (1, 0)),
    **dict.fromkeys(("FOR_ITER", "GET_ITER", "GET_AITER", "GET_ANEXT", "GET_AWAITABLE"), (1, 0)),
    **dict.fromkeys(("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"), (1, 0)),
    **dict.fromkeys(("UNPACK_SEQUENCE", "UNPACK_EX", "GET_LEN", "TO_BOOL"), (1, 0)),
    **dict.fromkeys(("BEFORE_WITH", "BEFORE_ASYNC_WITH", "FORMAT_SIMPLE"), (1, 0)),
    **dict.fromkeys(("CALL_INTRINSIC_1", "CONVERT_VALUE", "POP_TOP", "STORE_FAST"), (1, 0)),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE"), (1, 0)),
    **dict.fromkeys(("POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"), (1, 0)),
    **dict.fromkeys(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"), (1, 0)),
    **dict.fromkeys(("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"), (1, 0)),
    **dict.fromkeys(("RESUME", "JUMP_BACKWARD", "YIELD_VALUE", "RETURN_GENERATOR"), (0, 0)),
}
# In 3.11 PRECALL is said to take the arguments, which lie there until CALL is done.
_IS_SPLIT = "PRECALL" in dis.opmap
_CALLS = frozenset({"CALL", "PRECALL", "CALL_KW", "CALL_FUNCTION_EX"})
_ENDS = frozenset({
    "RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT",
})  # fmt: skip
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


class Slots(NamedTuple):
    """Those from `first` up to `end`; `is_call`: the first, or the second if that is empty, is what
    is called."""

    first: int
    end: int
    is_call: bool


class Instructions:
    """The operands of each instruction of one code object, which it keeps alive."""

    __slots__ = ("_found", "code", "slots")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        # Locals, cells that are no arguments, and what closures bring.
        locals_count = len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)
        self.slots = locals_count + code.co_stacksize
        self._found: dict[int, Slots] | None = None

    def operands(self, offset: int) -> Slots:
        """Of the instruction at byte `offset`; all slots of the stack where it is not known."""
        if self._found is None:
            self._found = self._find()
        locals_count = self.slots - self.code.co_stacksize
        return self._found.get(offset) or Slots(locals_count, self.slots, False)

    def _find(self) -> dict[int, Slots]:
        locals_count = self.slots - self.code.co_stacksize
        depths = stack_depths(self.code)
        found: dict[int, Slots] = {}
        for at in dis.get_instructions(self.code):
            depth = depths.get(at.offset)
            if depth is None:
                continue
            if at.opname == "CALL" and _IS_SPLIT:
                depth += at.arg or 0
            fixed, each = _OPERANDS.get(at.opname, (depth, 0))
            count = min(depth, fixed + each * (at.arg or 0))
            end = locals_count + depth
            found[at.offset] = Slots(end - count, end, at.opname in _CALLS)
        return found


def stack_depths(code: CodeType) -> dict[int, int]:
    """How many values lie on the stack before each instruction that can be reached, by offset."""
    instructions = list(dis.get_instructions(code))
    position = {at.offset: i for i, at in enumerate(instructions)}
    handlers = [(e.start, e.end, e.target, e.depth + e.lasti + 1) for e in _table(code)]
    depths: dict[int, int] = {}
    waiting = [(0, _depth_at_start(code))]
    waiting += [(target, depth) for _, _, target, depth in handlers]
    while waiting:
        offset, depth = waiting.pop()
        while offset not in depths:
            depths[offset] = depth
            at = instructions[position[offset]]
            arg = at.arg
            if at.opcode in _JUMPS:
                # 3.12 says that SEND takes a value when it jumps, which END_SEND does there.
                is_send = at.opname == "SEND" and sys.version_info[:2] == (3, 12)
                effect = 0 if is_send else dis.stack_effect(at.opcode, arg, jump=True)
                waiting.append((at.argval, depth + effect))
            if at.opname in _ENDS or position[offset] + 1 == len(instructions):
                break
            depth += dis.stack_effect(at.opcode, arg, jump=False)
            offset = instructions[position[offset] + 1].offset
    return depths


def _depth_at_start(code: CodeType) -> int:
    """Before 3.13 a generator is begun with a value that its first instruction takes off."""
    is_resumed = code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)
    return int(bool(is_resumed) and sys.version_info < (3, 13))
