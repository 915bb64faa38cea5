"""Peels the first step of a loop after which the state has another shape or dtype.

In: as `lift`. Out: the loop's abstract results.

    h = torch.zeros(H)                          h = tanh(x[0] @ w + zeros)        [B, H]
    for t in range(T):                   ->     for t in range(1, T):
        h = torch.tanh(x[t] @ w + h)                h = tanh(x[t] @ w + h)        [B, H]

Examples: zeros that the first step broadcasts; a float32 state that becomes half precision under
autocast; a number that becomes a tensor of a dtype that cannot hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.ir.core import Op, Value
from lowtide.specialise.abstract import Abs, is_constant
from lowtide.specialise.lifting.lift import Lift, Unlike
from lowtide.specialise.lifting.ragged import Steps


def lifted(
    run: Any, op: Op, steps: Steps, carried: Sequence[Abs], env: dict[Value, Abs], scans: bool
) -> list[Abs]:
    """Return the carried values after the loop; raises NotLifted, and what specialising raises."""
    try:
        return Lift(run, op, steps, carried, env, scans).results()
    except Unlike:
        if steps.count is not None or not run.decide(steps.trips - 3):  # the rest must be a loop
            raise
        mark, derived, known = run.mark(), len(run.derived), set(env)
        (block,) = op.blocks
        env.update(zip(block.args, (Abs(0), *carried), strict=True))
        going, *after = run.inline(block, env)
        for v in [v for v in env if v not in known]:
            del env[v]
        try:
            if not is_constant(going) or not going.value:
                raise
            rest = Steps(trips=steps.trips - 1, skipped=1)
            return Lift(run, op, rest, after, env, scans).results()
        except Exception:
            run.reset(mark)
            for name in list(run.derived)[derived:]:
                del run.derived[name]
            raise
