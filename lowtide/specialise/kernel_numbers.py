"""Numbers and bools that kernels compute, so that values of pairs need not be stored.

In: ops that read a tensor of one element as a number, while values of pairs are alive. Out:
abstract values that are expressions of the tensor; raises Stop where Python has to read it.

    scale = d.mean().item()           t3[] = mean(d)          f64(t3[]), a float
    w = torch.exp(-d / scale)         t4[i, j] = exp(-d[i, j] / f32(f64(t3[])))
    if d.max() > 4: d = d / 2         d'[i, j] = d[i, j] / 2 if t5[] > 4 else d[i, j]

While no pairs are alive, a region ends at such an op. If the number outlives the region, it is read
from its tensor after the kernels. A number computed from it has no tensor: if that outlives the
region (`Escaped`), the region ends before the computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lowtide.ir import dtypes
from lowtide.ir.core import Block, Op, Value, free_values
from lowtide.ops import registry
from lowtide.specialise import torch_ops, varying
from lowtide.specialise.abstract import Abs, Map, Origin, Seq
from lowtide.specialise.layers import are_pairs, nbytes
from lowtide.specialise.lifting.inplace import root_of
from lowtide.specialise.region_boundaries import ITEM, Stop, is_item
from lowtide.specialise.stand_ins import UNKNOWN
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import as_index

_READS: Final = ("py.float", "py.bool", "py.not")  # of a tensor
_ARITHMETIC: Final = {
    "py.add": "add", "py.sub": "sub", "py.mul": "mul", "py.truediv": "div", "py.neg": "neg",
}  # fmt: skip
_COMPARISONS: Final = {
    "py.lt": "lt", "py.le": "le", "py.gt": "gt", "py.ge": "ge", "py.eq": "eq", "py.ne": "ne",
}  # fmt: skip
_TIMES: Final = 4  # points of a branch for each element of the largest value
_BYTES: Final = 4  # of an element, assumed
_WHY: Final = "it needs the values of a tensor"


class Escaped(Exception):
    """Raised if Python needs the result of this op after the region."""

    def __init__(self, op: Op) -> None:
        super().__init__(op.name)
        self.op = op


def is_kernel_number(x: Abs) -> bool:
    """Return whether the value is a number or bool that kernels compute from a tensor."""
    return isinstance(x.value, Expr) and any(True for _ in ex.loads(x.value))


def evaluated(run: Any, op: Op, operands: list[Abs]) -> Abs | None:
    """Return the result of the op as an expression; None if it reads neither a tensor nor such a
    number. Raises Stop."""
    if not operands or not (is_item(op) or op.name.startswith("py.")):
        return None
    reads = is_item(op) or op.name in _READS
    if reads and len(operands) == 1 and isinstance(operands[0].value, Val):
        found = _read(run, op, operands[0])
    elif any(map(is_kernel_number, operands)) and not any(map(varying.has_axis, operands)):
        found = _computed(run, op, operands)
        if found is None:
            raise Stop(_WHY)
    else:
        return None
    if found is not None:
        run.numbers_by[found] = op
    return found


def _read(run: Any, op: Op, x: Abs) -> Abs | None:
    """Return the only element of a tensor as an expression, None if the region must end here."""
    val = x.value
    assert isinstance(val, Val)
    is_float = val.dtype.is_float
    is_usual = is_float or val.dtype is dtypes.boolean
    if op.name in ("py.bool", "py.not"):
        is_usual = is_usual or not val.dtype.torch.is_complex
    elif op.name == "py.float":
        is_usual = is_float
    is_single = all(as_index(size).const == 1 for size in val.shape)
    if op in run.excluded or run.loop is not None or run.activity.in_loop:
        return None
    if not is_usual or not is_single or not run.pairs_alive():
        return None
    record: Any = registry.lookup("Tensor.detach")[0]
    detached = torch_ops.lowered(run, op, record, "view", (), [x])[0].value
    assert isinstance(detached, Val)
    element = run.b.load(detached, [0] * val.ndim)
    if is_float:
        element = ex.cast(element, dtypes.f64)
    if op.name in ("py.bool", "py.not"):
        truth = _truth(run, element)
        return Abs(truth if op.name == "py.bool" else varying.negated(truth), dynamic=True)
    return Abs(element, Origin(number_in, (x,), ITEM), dynamic=True)


def number_in(x: Any) -> Any:
    """Return the only element of a tensor as a number."""
    return UNKNOWN if x.is_meta else x.item()


def check_write(run: Any, x: Abs) -> None:
    """Raise Stop if a number is to be read from the tensor `x` after the kernels: `x` is about to
    change."""
    for number in run.numbers_by:
        origin = number.origin
        if isinstance(origin, Origin) and any(root_of(y) is root_of(x) for y in origin.operands):
            raise Stop("changes a tensor of which a number is read later")


def _truth(run: Any, element: Expr) -> Expr:
    if element.dtype is dtypes.boolean:
        return element
    return run.b.apply("ne", element, run.b.const(0, element.dtype))


def _computed(run: Any, op: Op, operands: list[Abs]) -> Abs | None:
    """Return the result of a Python op on such numbers, in float64 as in Python; None if kernels do
    not compute it."""
    if op in run.excluded:
        return None
    first = operands[0].value
    if op.name in ("py.bool", "py.not") and isinstance(first, Expr):
        truth = _truth(run, first)
        return Abs(truth if op.name == "py.bool" else varying.negated(truth), dynamic=True)
    args = [_double(x) for x in operands]
    known = [x for x in args if x is not None]
    if len(known) < len(args):
        return None
    if op.name in _COMPARISONS and len(known) == 2:
        return Abs(ex.apply(_COMPARISONS[op.name], known, dtypes.boolean), dynamic=True)
    if op.name == "py.float":
        return Abs(known[0], operands[0].origin, dynamic=True)
    fn = _ARITHMETIC.get(op.name)
    if fn is None or (fn == "div" and operands[1].value in (0, 0.0)):
        return None
    if fn == "div" and not isinstance(operands[1].value, int | float):
        return None  # the divisor may be 0, for which Python raises
    return Abs(ex.apply(fn, known, dtypes.f64), dynamic=True)


def _double(x: Abs) -> Expr | None:
    value = x.value
    if isinstance(value, Expr):
        return value if value.dtype is dtypes.f64 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > 1 << 53:
        return None
    return ex.const(float(value), dtypes.f64)


def check_escapes(run: Any, env: Mapping[Value, Abs], later: Sequence[Op]) -> None:
    """Raise Escaped if a later op reads a number that is computed from such a number."""
    for v in free_values(later):
        for x in _within(env[v]) if v in env else ():
            if is_kernel_number(x) and x.origin is None:
                raise Escaped(run.numbers_by[x])


def _within(x: Abs) -> Iterable[Abs]:
    if isinstance(x.value, Seq | Map):
        for e in x.value.elems:
            yield from _within(e)
    else:
        yield x


def stored_for(x: Abs) -> list[Abs]:
    """Return the tensors from which Python reads the numbers of a value after the kernels."""
    origins = (n.origin for n in _within(x) if is_kernel_number(n))
    return [t for o in origins if isinstance(o, Origin) for t in o.operands]


def pairs_alive(run: Any, env: Mapping[Value, Abs], block: Block, stop: int) -> bool:
    """Return whether a region that ends at op `stop` would store values of pairs."""
    made = {v for v in free_values(block.ops[stop:]) if v in env and env[v] not in run.live}
    return are_pairs(sum(nbytes(env[v], run.numbers) for v in made), run.given_bytes)


def most_points(run: Any, env: Mapping[Value, Abs]) -> int:
    """Return the most points of a branch that is computed whether taken or not: up to here, that
    takes less time than to store values of pairs."""
    return _TIMES * max(nbytes(x, run.numbers) // _BYTES for x in env.values())
