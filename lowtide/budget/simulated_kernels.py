"""Simulates kernels and backward passes on the meta device, to count their memory.

In: a `Ledger`, and an executable with its memory plan. Out: entries of the ledger.

    simulate(ledger, exe, symbols)([a, b], sizes, numbers)   meta outputs; enters the memory
    backward(ledger, results)                                runs the engine on dense cotangents
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lowtide.budget.value_words import ValueWords
from lowtide.errors import UNKNOWN_LOC
from lowtide.memory.ledger import Ledger
from lowtide.memory.plan import Event
from lowtide.runtime import ownership
from lowtide.texpr.sizes import evaluate

_TRUE = torch.tensor(True, device="cpu")
Tensor = torch.Tensor


def simulate(
    ledger: Ledger, executable: Any, symbols: Sequence[str], names: Mapping[str, str]
) -> Callable[..., Sequence[Tensor]]:
    """Return a function that stands for a compiled program; see the module's text. `names`: the
    user's, of inputs."""

    words = functools.cache(lambda: ValueWords(executable.kernels, names))  # if a plan is shown

    def run(
        tensors: Sequence[Tensor], sizes: Sequence[int], numbers: object, *_: object
    ) -> list[Tensor]:
        if executable is None:
            return []
        program = executable.program
        known = dict(zip(symbols, sizes, strict=True))
        given = dict(zip(program.inputs, tensors, strict=True))
        events = (_with_sizes(e, known) for e in executable.events(known))
        left = ledger.play(events, lambda name: words().of(name))
        made: list[Tensor] = []
        with ledger.paused():
            for name in program.results:
                d = program.defs[name]
                shape = tuple(evaluate(s, known) for s in d.shape)
                under = executable.input_under(name)
                made.append(
                    ownership.in_memory_of(given[under], shape)
                    if under
                    else torch.empty(shape, dtype=d.dtype.torch, device="meta")
                )
        for name, tensor in zip(program.results, made, strict=True):
            if executable.input_under(name):  # its memory is counted already
                continue
            ledger.adopt(tensor, left.pop(name))
        for entry in left.values():
            ledger.end(entry)
        return [*made, *[_TRUE.clone() for _ in program.checks]]

    return run


def _with_sizes(event: Event, known: Mapping[str, int]) -> Event:
    """Return its formula with the sizes of the call, such as `<1000>`, for its own symbols."""
    text = re.sub(r"[A-Za-z_]\w*", lambda m: f"<{known.get(m[0], m[0])}>", event.held.formula)
    return Event(held=dataclasses.replace(event.held, formula=text), takes=event.takes)


def backward(ledger: Ledger, results: Sequence[Tensor]) -> list[str]:
    """Run the backward pass of every result that carries a gradient; return notes about what is not
    counted.

    Each result gets its own cotangent, which counts; gradients count if they are newly
    allocated."""
    carrying = [x for x in results if x.requires_grad]
    if not carrying:
        return []
    ledger.at("of the result", UNKNOWN_LOC, "gradient")
    ledger.watch(carrying)
    cotangents = [torch.ones_like(x) for x in carrying]
    ledger.python_has(cotangents)  # so that the engine does not accumulate into them
    try:
        with torch.autograd.set_detect_anomaly(False):  # it would read values
            torch.autograd.backward(carrying, cotangents)
    except (RuntimeError, NotImplementedError) as fault:
        words = re.split(r"[.\n]", str(fault))[0]
        return [f"the backward pass is not counted from here on: {words}"]
    finally:
        ledger.backward_ends()
    return []
