"""`explain()`: the kernels and PyTorch's ops of a call, in the order in which they run.

boxes: 1 kernel, 0 ops left to PyTorch, peak 4,000 bytes
kernel boxes.py:12
  k0 -> out                          one sweep over [i, j]
    min        boxes.py:14
    mul        boxes.py:15
PyTorch  boxes.py:17  nonzero        has no kernel
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from lowtide import html
from lowtide.budget.dry_run import DryRun
from lowtide.budget.dry_run_steps import KernelStep
from lowtide.budget.memory import MemoryPlan, plan_memory
from lowtide.budget.repeats import Repeat, folded
from lowtide.budget.value_words import ValueWords
from lowtide.errors import Loc
from lowtide.texpr.sizes import evaluate

_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """One kernel: what it stores, which ops it fuses and where they stand in the user's file."""

    name: str
    outputs: tuple[str, ...]
    ops: tuple[tuple[str, str], ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLine:
    """A value kept for the backward pass. `formula`: its bytes in the sizes."""

    op: str
    loc: str
    nbytes: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardLine:
    """The backward pass of a region: the values saved for it, and its kernels. `peak_bytes`:
    gradients and work memory. `scatters`: gradients that PyTorch adds up; `adds`: that kernels add
    up, in any order. `at_once`: the kernels of the forward pass compute the gradients."""

    saved: tuple[SavedLine, ...]
    kernels: tuple[KernelLine, ...]
    peak_bytes: int
    scatters: int = 0
    adds: int = 0
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLine:
    """A run of ops that became kernels; `backward` where inputs require grad."""

    loc: str
    kernels: tuple[KernelLine, ...]
    signature: str = ""
    backward: BackwardLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchLine:
    """An op that PyTorch (or Python) runs."""

    op: str
    loc: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompilation:
    """A program, or a region of it, that was compiled although an earlier one was there.

    `facts`: how it differs from the nearest earlier one: "dtype of `x` was float32, is float64"."""

    loc: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a call; prints as text. `plain`: why nothing of it is compiled, "" if it
    is. `compiled_again`: why programs of earlier calls were of no use."""

    name: str
    plain: str
    steps: tuple[RegionLine | TorchLine, ...]
    memory: MemoryPlan
    notes: tuple[str, ...]
    compiled_again: tuple[Recompilation, ...] = ()

    @property
    def regions(self) -> tuple[RegionLine, ...]:
        """The compiled parts, in order."""
        return tuple(s for s in self.steps if isinstance(s, RegionLine))

    @property
    def kernels(self) -> tuple[KernelLine, ...]:
        """All kernels, in order."""
        return tuple(k for r in self.regions for k in r.kernels)

    @property
    def torch_ops(self) -> tuple[TorchLine, ...]:
        """The ops that PyTorch runs, in order."""
        return tuple(s for s in self.steps if isinstance(s, TorchLine))

    @property
    def peak_bytes(self) -> int:
        """The predicted peak in bytes."""
        return self.memory.peak_bytes

    def _title(self) -> str:
        kernels, left = len(self.kernels), len(self.torch_ops)
        return (
            f"{self.name}: {kernels} kernel{'s' * (kernels != 1)}, "
            f"{left} op{'s' * (left != 1)} left to PyTorch"
        )

    def __str__(self) -> str:
        lines = [f"{self._title()}, peak {self.peak_bytes:,} bytes"]
        if self.memory.fails:
            lines.append(f"such a call fails: {self.memory.fails}")
        if self.plain:
            lines.append(f"a call with these arguments runs as plain Python: {self.plain}")
        for r in self.compiled_again:
            lines.extend(f"compiled again at {r.loc}: {fact}" for fact in r.facts)
        for step in folded(self.steps):
            lines.extend(_step_text(step))
        lines.append(f"peak {self.peak_bytes:,} bytes = {self.memory.formula}")
        lines.extend(f"note: {n}" for n in self.notes)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.page(*self.html_parts())

    def html_parts(self) -> list[str]:
        """Return the explanation as HTML, without the style: a card for each kernel and each op
        left to PyTorch, then the memory plan, which has the notes."""
        facts = (f"compiled again at {r.loc}: {f}" for r in self.compiled_again for f in r.facts)
        plain = f"a call with these arguments runs as plain Python: {self.plain}"
        return [
            html.heading(self._title()),
            *([html.line(plain, "bad")] if self.plain else []),
            *(html.line(fact, "faint") for fact in facts),
            *(card for step in folded(self.steps) for card in _step_html(step)),
            *self.memory.html_parts(),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as for JSON."""
        return {
            "name": self.name,
            "plain": self.plain,
            "compiled_again": [
                {"loc": r.loc, "facts": list(r.facts)} for r in self.compiled_again
            ],
            "regions": [
                {
                    "loc": r.loc,
                    "signature": r.signature,
                    "kernels": [
                        {"name": k.name, "outputs": list(k.outputs), "note": k.note,
                         "ops": [{"op": op, "loc": loc} for op, loc in k.ops]}
                        for k in r.kernels
                    ],
                    "backward": None if r.backward is None else {
                        "saved": [asdict(s) for s in r.backward.saved],
                        "kernels": len(r.backward.kernels),
                        "peak_bytes": r.backward.peak_bytes,
                        "scatters": r.backward.scatters,
                        "adds": r.backward.adds,
                        "at_once": r.backward.at_once,
                    },
                }
                for r in self.regions
            ],
            "torch": [{"op": s.op, "loc": s.loc, "reason": s.reason} for s in self.torch_ops],
            "memory": self.memory.to_dict(),
            "notes": list(self.notes),
        }  # fmt: skip


def explain(name: str, dry_run: DryRun, plain: str = "") -> Explanation:
    """Return the explanation of a call from its dry run."""
    memory = plan_memory(dry_run, plain)
    steps: list[RegionLine | TorchLine] = []
    for step in dry_run.steps:
        if isinstance(step, KernelStep):
            steps.append(_region(step))
        else:
            steps.append(TorchLine(op=step.label, loc=step.loc.shown(), reason=step.reason))
    return Explanation(
        name=name,
        plain=plain,
        steps=tuple(steps),
        memory=memory,
        notes=memory.notes,
        compiled_again=_recompilations(dry_run),
    )


def _recompilations(dry_run: DryRun) -> tuple[Recompilation, ...]:
    found = {(dry_run.function.loc.shown(), dry_run.differences): None}
    for step in dry_run.steps:
        if isinstance(step, KernelStep):
            found[step.loc.shown(), step.entry.spec.differences] = None
    return tuple(Recompilation(loc=loc, facts=facts) for loc, facts in found if facts)


def _region(step: KernelStep) -> RegionLine:
    host = step.entry.spec.host
    assert host is not None
    inputs = [
        f"{i.name}: {i.dtype}[{', '.join(map(str, i.shape))}]" for i in host.program.inputs.values()
    ]
    return RegionLine(
        loc=step.loc.shown(),
        kernels=_kernels(step.executable(), step.names(), step.in_place()),
        signature=", ".join(inputs),
        backward=_backward(step),
    )


def _kernels(
    executable: Any, names: Mapping[str, str], in_place: Mapping[str, str] = _NOTHING
) -> tuple[KernelLine, ...]:
    """Return the lines of a region's kernels. `names`: the user's, of inputs; `in_place`: of
    operands that outputs overwrite."""
    words, found = ValueWords(executable.kernels, names), list[KernelLine]()
    for k in executable.kernels:
        outputs = tuple(words.of(n)[0] for n in k.outputs)
        placed = [f"{words.of(n)[0]} over {in_place[n]}" for n in k.outputs if n in in_place]
        note = words.in_text(k.note)
        note = f"{note}; in place: {', '.join(placed)}" if placed else note
        found.append(KernelLine(name=k.name, outputs=outputs, ops=_places(k.ops), note=note))
    return tuple(found)


def _backward(step: KernelStep) -> BackwardLine | None:
    made, gradient = step.backward(), step.entry.spec.gradient
    if made is None or gradient is None:
        return None
    saved = tuple(
        SavedLine(
            op=s.op,
            loc=s.loc.shown(),
            nbytes=evaluate(s.nbytes, step.numbers),
            formula=str(s.nbytes),
        )
        for s in gradient.saved
        if s.output < 0
    )
    if made.executable is None:
        at_once = gradient.value_and_grad is not None
        return BackwardLine(saved=saved, kernels=(), peak_bytes=0, at_once=at_once)
    return BackwardLine(
        saved=saved,
        kernels=_kernels(made.executable, step.names()),
        peak_bytes=made.executable.memory(step.numbers).peak_bytes,
        scatters=len(made.scatters),
        adds=made.adds,
    )


def _step_text(step: object) -> list[str]:
    if isinstance(step, TorchLine):
        return [f"PyTorch  {step.op:<20} {step.loc}  {step.reason}"]
    if isinstance(step, Repeat):
        often = f"{step.most:,}" if step.least == step.most else f"{step.least:,} to {step.most:,}"
        inner = (line for part in step.part for line in _step_text(part))
        return [f"{often} times, one after another:", *(f"  {line}" for line in inner)]
    assert isinstance(step, RegionLine)
    lines = [f"region at {step.loc}"]
    for k in step.kernels:
        lines.append(f"  {k.name} -> {', '.join(k.outputs)}  {k.note}".rstrip())
        lines.extend(f"    {op:<20} {loc}" for op, loc in k.ops)
    return lines if step.backward is None else [*lines, *_backward_text(step.backward)]


def _step_html(step: object) -> list[str]:
    if isinstance(step, TorchLine):
        head = f"<b>PyTorch</b> {html.code(step.op)} {html.code(step.loc)}"
        return [html.card(head, html.line(step.reason, "faint"), kind="left")]
    if isinstance(step, Repeat):
        often = f"{step.most:,}" if step.least == step.most else f"{step.least:,} to {step.most:,}"
        inner = (one for part in step.part for one in _step_html(part))
        return [html.card(html.line(f"{often} times, one after another"), *inner)]
    assert isinstance(step, RegionLine)
    cards = [_kernel_html(k) for k in step.kernels]
    if step.backward is not None:
        said = (html.line(text.strip()) for text in _backward_lines(step.backward))
        cards.append(html.card(*said, *map(_kernel_html, step.backward.kernels)))
    return cards


def _kernel_html(k: KernelLine) -> str:
    head = f"<b>kernel {html.text(k.name)}</b> → {html.code(', '.join(k.outputs))}"
    rows = [[html.code(op), html.code(loc)] for op, loc in k.ops]
    note = [html.line(k.note, "faint")] if k.note else []
    return html.card(head, *note, *([html.table(("op", "line"), rows, ())] if rows else []))


def _backward_lines(b: BackwardLine) -> list[str]:
    """Return the lines of a backward pass that come before its kernels."""
    lines = [f"  backward: {len(b.kernels)} kernels, peak {b.peak_bytes:,} bytes"]
    if b.at_once:
        lines = ["  backward: found together with the output, for it is a single value"]
    if b.scatters:
        lines[0] += f", {b.scatters} scatters by PyTorch"
    if b.adds:
        lines[0] += f", {b.adds} scatters added by kernels"
    return lines + [f"    saved {s.nbytes:,} bytes = {s.formula}   {s.op} {s.loc}" for s in b.saved]


def _backward_text(b: BackwardLine) -> list[str]:
    lines = _backward_lines(b)
    for k in b.kernels:
        lines.append(f"    {k.name} -> {', '.join(k.outputs)}  {k.note}".rstrip())
        lines.extend(f"      {op:<18} {loc}" for op, loc in k.ops if loc)
    return lines


def _places(ops: list[tuple[str, Loc]]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((op, loc.shown()) for op, loc in ops))
