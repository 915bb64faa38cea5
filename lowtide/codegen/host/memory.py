"""The memory plan of a host program: its allocations and frees, read from its statements.

In: a host program, sizes, the number of threads. Out: `Event`s in the order of execution.

    take t2: f32[s0, 8]                          + t2             32*s0
    work k0.work = 64                            + k0.work         2*(64)
    free k0.work                                 - k0.work
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from lowtide.codegen.host.program import (
    MUCH_BYTES,
    Dense,
    Free,
    HostProgram,
    Loop,
    Over,
    Own,
    Size,
    Take,
    Tensor,
    View,
    Work,
)
from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.memory.plan import Event, LiveAllocation
from lowtide.texpr.index import Index, product
from lowtide.texpr.sizes import evaluate


def events(program: HostProgram, sizes: Mapping[str, int], threads: int) -> Iterator[Event]:
    """Yield the allocations and frees of one run. What is not freed is a result."""
    known = dict(sizes)
    own: dict[str, int] = {}  # sizes that the program computes
    held: dict[str, LiveAllocation] = {}
    whole: dict[str, str] = {}  # views, and the tensors that they are views of

    def taken(name: str, tensor: Tensor, kind: str, loc: Loc) -> Event:
        formula = product(tensor.shape) * tensor.dtype.itemsize
        held[name] = LiveAllocation(
            name=name, nbytes=evaluate(formula, known), kind=kind, loc=loc,
            formula=_with_numbers(formula, own),
        )  # fmt: skip
        return Event(held=held[name], takes=True)

    for statement in program.body:
        match statement:
            case Size(name=name, index=index):
                known[name] = own[name] = evaluate(index, known)
            case Take(name=name, tensor=tensor, kind=kind, loc=loc):
                yield taken(name, tensor, kind, loc)
            case Dense(name=name, of=of):
                yield taken(name, program.inputs[of], "temporary", UNKNOWN_LOC)
            case View(name=name, of=of):
                whole[name] = whole.get(of, of)
            case Own(name=name, tensor=tensor, kind=kind, loc=loc):
                event = taken(name, tensor, kind, loc)
                found = held.get(whole.get(name, ""))
                if found is not None and found.nbytes - event.held.nbytes < MUCH_BYTES:
                    yield Event(held=held.pop(whole[name]), takes=False)
                    held[name] = dataclasses.replace(found, name=name, kind=kind, loc=loc)
                yield Event(held=held[name], takes=True)
            case Over(name=name, tensor=tensor, kind=kind, of=of, loc=loc):
                if of in held:  # the memory of an input is the caller's
                    yield Event(held=held.pop(of), takes=False)
                    yield taken(name, tensor, kind, loc)
            case Work(name=name, thread_bytes=found):
                most = max(found, key=lambda index: evaluate(index, known))
                held[name] = LiveAllocation(
                    name=name, nbytes=threads * evaluate(most, known), kind="work memory",
                    loc=UNKNOWN_LOC, formula=f"{threads}*({_with_numbers(most, own)})",
                )  # fmt: skip
                yield Event(held=held[name], takes=True)
            case Loop(ran=ran, trips=trips) if ran:
                known[ran] = own[ran] = evaluate(trips, known)
            case Free(names=names):
                for name in names:
                    if name in held:
                        yield Event(held=held.pop(name), takes=False)
            case _:
                pass


def _with_numbers(index: Index, own: Mapping[str, int]) -> str:
    """Return the formula with the call's sizes put in."""
    return re.sub(r"[A-Za-z_]\w*", lambda m: str(own.get(m[0], m[0])), str(index))
