"""Gradients of a call in chunks: the backward pass runs each task again, and its gradient.

In: a `Job` whose arguments require gradients. Out: the results of its tasks, with a graph.

    loss = lt.map_chunks(chamfer, a, b, budget="200MB");  loss.backward()

A result that is cut gets its part of the cotangent, a sum the whole one. Of a minimum with
positions only the part that has it gets the cotangent; of `logsumexp` each its share. Axes along
which parts combine otherwise are not cut while gradients are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.autograd.function import once_differentiable

from lowtide.scale.arrays import Source
from lowtide.scale.chunk_plan import Index
from lowtide.scale.cutting import Join
from lowtide.scale.job import Job, PartKey

Tensor = torch.Tensor


def wanted(sources: Mapping[int, Source]) -> tuple[int, ...]:
    """Return the parameters whose gradients are recorded."""
    if not torch.is_grad_enabled():
        return ()
    return tuple(
        p for p, s in sources.items() if isinstance(s.array, Tensor) and s.array.requires_grad
    )


def run_with_gradients(job: Job, run: Callable[[], None], params: Sequence[int]) -> None:
    """Run the tasks, so that the job's results have a graph to these parameters."""
    tensors = [job.sources[p].array for p in params]
    found = cast("tuple[Tensor, ...]", _Mapped.apply(job, run, params, *tensors))  # pyright: ignore[reportUnknownMemberType]
    job.buffers.update(zip(_places(job), found, strict=True))


def _places(job: Job) -> list[tuple[int, int]]:
    return [(j, i) for j, join in enumerate(job.split.joins) for i in range(len(join.forms))]


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, job: Job, run: Callable[[], None], params: Sequence[int], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        run()
        ctx.job, ctx.params = job, params
        values = tuple(job.buffers[place] for place in _places(job))
        ctx.mark_non_differentiable(*(x for x in values if not _may_have_gradient(x)))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *values)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        job, params = cast("Job", ctx.job), cast("Sequence[int]", ctx.params)
        values = ctx.saved_tensors[len(params) :]
        places = _places(job)
        backward = _Backward(
            job, params, dict(zip(places, values, strict=True)),
            {p: c for p, c in zip(places, cotangents, strict=True) if c is not None},
        )  # fmt: skip
        return None, None, None, *backward.gradients()


class _Backward:
    def __init__(
        self,
        job: Job,
        params: Sequence[int],
        values: Mapping[tuple[int, int], Tensor],
        cotangents: Mapping[tuple[int, int], Tensor],
    ) -> None:
        self.job, self.params = job, params
        self.values, self.cotangents = values, cotangents

    def gradients(self) -> list[Tensor]:
        """Return the gradient of each parameter."""
        job = self.job
        whole = {p: torch.zeros_like(job.sources[p].array) for p in self.params}
        held: dict[PartKey, Tensor] = {}
        for index in job.plan.indices():
            keys = job.keys(index)
            held = {key: held[key] if key in held else job.part(key) for key in keys}
            parts = {
                key: x.detach().requires_grad_(key[0] in self.params) for key, x in held.items()
            }
            leaves = {key[0]: x for key, x in parts.items() if key[0] in self.params}
            with torch.enable_grad():
                results = job.plan.driver(job.arguments(parts, index))
            rows = [
                (r, c)
                for r, c in zip(results, self._given(index, results), strict=True)
                if c is not None and r.requires_grad
            ]
            if not rows or not leaves:
                continue
            found = torch.autograd.grad(
                [r for r, _ in rows], list(leaves.values()), [c for _, c in rows], allow_unused=True
            )
            for p, gradient in zip(leaves, found, strict=True):
                if cast("Tensor | None", gradient) is not None:
                    whole[p][job.slices((p, tuple(index[k] for k in job.split.cuts[p])))] += (
                        gradient
                    )
        return [whole[p] for p in self.params]

    def _given(self, index: Index, results: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the cotangents of a task's results."""
        found: list[Tensor | None] = [None] * len(results)
        for j, join in enumerate(self.job.split.joins):
            key = self.job.key_of(j, join, index)
            place = (j, 0)
            if key is None or place not in self.cotangents:
                continue
            where = self.job.result_slices(join, join.forms[0], key[1])
            result = results[join.outputs[0]]
            given = self.cotangents[place][where]
            found[join.outputs[0]] = self._share(join, index, place, where, given, result)
        return found

    def _share(
        self,
        join: Join,
        index: Index,
        place: tuple[int, int],
        where: tuple[slice, ...],
        given: Tensor,
        result: Tensor,
    ) -> Tensor:
        match join.rule.kind:
            case "min.dim" | "max.dim" if join.reduced:
                axis = join.reduced[0]
                span = self.job.plan.span(axis, index[axis])
                at = self.values[place[0], 1][where] // join.rule.inner
                given = torch.where((at >= span.start) & (at < span.stop), given, 0)
            case "logsumexp" if join.reduced:
                share = (result.detach() - self.values[place][where]).exp()
                given = given * share.nan_to_num(0.0)
            case _:
                given = given / join.divide if join.rule.divide else given
        return given.to(result.dtype)


def _may_have_gradient(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
