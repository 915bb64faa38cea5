"""What every record declares that it may do, against what eager PyTorch does.

Each op is run with operands of its kind, each of its flags on and off: what is not said to draw
leaves the generator as it was, what is not said to write leaves its operands, and passes that share
and remove ops leave results, random state and operands as eager mode has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from against_eager import complete
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.effects import Effects
from lowtide.ir.interpret import run
from lowtide.ir.opdefs import effects_of, is_removable, is_shareable
from lowtide.ir.signature import result_type
from lowtide.ops.registry import REQUIRED, OpRecord, all_records
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.dead_code import eliminate_dead_code

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of what PyTorch deprecates

X = torch.linspace(-2.0, 2.0, 16).view(4, 4)
ROWS = torch.tensor([3, 0, 3, 2])
LAYERS = (False, 1, 0.0, False, False, False)
SAMPLES: dict[str, Sequence[Any]] = {
    "addmv": (X[0], X, X[0]),
    "baddbmm": (X[None], X[None], X[None]),
    "batch_norm": (X, X[0].clone(), X[1].abs()),
    "bilinear": (X, X, X[None]),
    "binary_cross_entropy": (X.sigmoid(), X.sigmoid()),
    **{f"bitwise_{name}": (ROWS, ROWS) for name in ("and", "or", "xor")},
    **{f"bitwise_{side}_shift": (ROWS, ROWS) for side in ("left", "right")},
    "bitwise_not": (ROWS,),
    "invert": (ROWS,),
    "bmm": (X[None], X[None]),
    "broadcast_shapes": ([[4, 4], [4]],),
    "broadcast_tensors": ([X, X[0]],),
    "clamp": (X, 0.0),
    "cross_entropy": (X, ROWS),
    "diag_embed": (X,),
    **dict.fromkeys(("dot", "vdot"), (X[0], X[1])),
    "einsum": ("ij,jk->ik", [X, X]),
    **{f"{name}_pool1d": (X[None], 2) for name in ("avg", "max", "adaptive_avg", "adaptive_max")},
    **{f"{name}_pool2d": (X[None], 2) for name in ("avg", "max", "adaptive_avg", "adaptive_max")},
    **{
        f"{name}_pool3d": (X.view(1, 4, 2, 2), 2)
        for name in ("avg", "max", "adaptive_avg", "adaptive_max")
    },
    "conv_transpose1d": (X[None], X[..., None]),
    "conv_transpose2d": (X[None, :, :, None], X[..., None, None]),
    "conv_transpose3d": (X[None, :, :, None, None], X[..., None, None, None]),
    "interpolate": (X[None], 3),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), (X[:, :, None].expand(4, 4, 2), 2)),
    "conv1d": (X[None], X[..., None]),
    "conv2d": (X[None, :, :, None], X[..., None, None]),
    "conv3d": (X[None, :, :, None, None], X[..., None, None, None]),
    "embedding": (ROWS, X),
    "flip": (X, [0]),
    "gather": (X, 0, ROWS[None]),
    "getitem": (("int",), X, 1),
    "index": (X, (torch.tensor([1]),)),
    "group_norm": (X[None], 2),
    "gru": (X[None, :1], X[:1, None], [torch.ones(12, 4)] * 2, *LAYERS),
    "lstm": (X[None, :1], [X[:1, None]] * 2, [torch.ones(16, 4)] * 2, *LAYERS),
    **dict.fromkeys(("rnn_tanh", "rnn_relu"), (X[None, :1], X[:1, None], [X, X], *LAYERS)),
    "gru_cell": (X, X, torch.ones(12, 4), torch.ones(12, 4)),
    "index_add": (X, 0, ROWS, X),
    "index_select": (X, 0, ROWS),
    "instance_norm": (X[None], X[0].clone(), X[1].abs()),
    "layer_norm": (X, [4]),
    "logsumexp": (X, [0]),
    "lstm_cell": (X, [X, X], torch.ones(16, 4), torch.ones(16, 4)),
    **dict.fromkeys(("masked_sum", "masked_mean"), (X, X > 0)),
    "masked_fill": (X, X > 0, 1.0),
    "meshgrid": ([X[0], X[1]],),
    "movedim": (X, [0], [1]),
    "multi_head_attention": (
        *(X, X, X, 4, 2, X.repeat(3, 1), None, None, None, False, 0.5, X, None, False),
    ),
    "mv": (X, X[0]),
    "nll_loss": (X, ROWS),
    "one_hot": (ROWS, 5),
    "outer": (X[0], X[1]),
    "cross": (X[:, :3], X[:, :3], 1),
    "linalg.cross": (X[:, :3], X[:, :3]),
    "pad": (X, [1, 1]),
    "permute": (X, [1, 0]),
    "prelu": (X, X[0, :1]),
    "rms_norm": (X, [4]),
    "rnn_relu_cell": (X, X, X, X),
    "rnn_tanh_cell": (X, X, X, X),
    "roll": (X, [1], [0]),
    "scaled_dot_product_attention": (X[None], X[None], X[None]),
    "put_in_part": (X, ROWS, ROWS, 2.0, ROWS[:, None], ROWS, 4, 4, False),
    "scatter.src": (X, 0, ROWS[None], X),
    "scatter.value": (X, 0, ROWS[None, :1].expand(1, 4), 2.0),
    "scatter_add": (X, 0, ROWS[None], X),
    "take_along_dim": (X, ROWS[None], 0),
    "Tensor.where": (X, X > 0, X),
    "unfold": (X[None, None], 2),
    "unflatten": (X, 0, [2, 2]),
    "unsqueeze": (X, 0),
    "view.dtype": (X, torch.int32),
    "where": (X > 0, X, X),
}
GUESSES: dict[str, Any] = {
    "Tensor": X, "Tensor[]": [X, X], "int": 1, "int[]": [4, 4], "float": 0.5, "Scalar": 2.0,
    "bool": False, "dtype": torch.float64, "device": "cpu", "any": 1.0, "number": 2,
}  # fmt: skip
SWITCHES: dict[str, tuple[Any, ...]] = {"bool": (True, False), "float": (0.0, 0.5)}


def guessed(record: OpRecord) -> list[Any]:
    """Operands of an op, the optional ones left at their defaults."""
    if record.name in SAMPLES:
        return complete(record, list(SAMPLES[record.name]))
    needed = itertools.takewhile(lambda p: p.default is REQUIRED, record.params)
    return complete(record, [None if p.optional else GUESSES[p.types[0]] for p in needed])


def variants(record: OpRecord) -> Iterator[list[Any]]:
    """These operands; and with each flag and each probability both ways, one or two at a time."""
    base = guessed(record)
    yield base
    if record.name == "getitem":
        return
    places = [
        (k, SWITCHES[p.types[0]]) for k, p in enumerate(record.params) if p.types[0] in SWITCHES
    ]
    for chosen in (*itertools.combinations(places, 1), *itertools.combinations(places, 2)):
        for values in itertools.product(*(v for _, v in chosen)):
            found = list(base)
            for (k, _), value in zip(chosen, values, strict=True):
                found[k] = value
            yield found


def copied(value: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, value)


def is_same(a: Any, b: Any) -> bool:
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) if isinstance(x, Tensor) else x == y
        for x, y in pairs
    )


def constants(record: OpRecord, operands: Sequence[Any]) -> list[Any]:
    """As a pass sees them: tensors are not known."""
    first = 1 if record.name == "getitem" else 0
    return [
        ... if any(isinstance(x, Tensor) for x in tree_leaves(v)) else v for v in operands[first:]
    ]


RECORDS = list(all_records())


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_what_is_declared(record: OpRecord) -> None:
    tried = 0
    for operands in variants(record):
        given = copied(operands)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        try:
            record.eager(*given)
        except Exception:
            assert tried, "the first operands must fit"
            continue
        tried += 1
        known = record.effects_of(constants(record, operands))
        assert Effects.DRAWS in known or torch.equal(torch.get_rng_state(), before), operands
        assert Effects.WRITES in known or is_same(given, operands), operands
        assert known in record.effects_of([...] * len(operands)), "the less is known, the more"


def twice(record: OpRecord, operands: Sequence[Any]) -> tuple[Function, list[Any]]:
    """A program that calls the op two times with equal operands, and a third time for nothing; it
    returns whether the two results are equal."""
    params: list[Value] = []
    ops: list[Op] = []
    given: list[Any] = []

    def value_of(x: Any) -> Value:
        if isinstance(x, list | tuple) and any(isinstance(v, Tensor) for v in x):
            made = Value("", t.ListType(t.TENSOR))
            ops.append(Op(name="list.make", operands=[value_of(v) for v in x], results=[made]))
            return made
        if isinstance(x, Tensor):
            params.append(Value(f"x{len(params)}", t.TENSOR))
            given.append(x)
            return params[-1]
        x = tuple(x) if isinstance(x, list) else x
        ops.append(Op(name="const", attrs={"value": x}, results=[Value("", t.ANY)]))
        return ops[-1].result

    attrs: dict[str, Any] = {}
    if record.name == "getitem":
        attrs["spec"], *operands = operands
    read = [value_of(x) for x in operands]
    types = [result_type(text) for text in record.results]
    calls = [
        Op(
            name=f"torch.{record.name}",
            operands=list(read),
            attrs=attrs,
            results=[Value("", r) for r in types],
        )
        for _ in range(3)
    ]
    ops += calls
    compared = [Value("", t.ANY) for _ in types]
    firsts = [list(call.results) for call in calls[:2]]
    for made in firsts:
        for k, x in enumerate(made):
            if x.type == t.ListType(t.TENSOR):
                made[k] = Value("", t.TENSOR)
                ops.append(Op(name="list.get", operands=[x, value_of(0)], results=[made[k]]))
    for x, y, same in zip(*firsts, compared, strict=True):
        name = "torch.eq" if x.type == t.TENSOR else "py.eq"
        ops.append(Op(name=name, operands=[x, y], results=[same]))
    whole = Value("", t.ANY)
    ops.append(Op(name="tuple.make", operands=compared, results=[whole]))
    ops.append(Op(name="return", operands=[whole]))
    return Function("twice", Block(params, ops), t.ANY), given


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_what_passes_make_of_equal_calls(record: OpRecord) -> None:
    for operands in variants(record):
        try:
            record.eager(*copied(operands))
        except Exception:
            continue
        if record.name.startswith(("empty", "new_empty")):
            continue  # nobody knows whether two are equal
        function, given = twice(record, operands)
        found: list[Any] = []
        for program in (
            function,
            eliminate_dead_code(function),
            eliminate_dead_code(eliminate_common_subexpressions(function)),
        ):
            written = copied(given)
            torch.manual_seed(0)
            found.append((run(program, *written), written, torch.get_rng_state()))
        assert is_same(found[1], found[0]), operands
        assert is_same(found[2], found[0]), operands


def test_a_name_that_no_table_has_may_do_anything() -> None:
    for op in (Op(name="call_torch", attrs={"target": "torch.relu"}), Op(name="torch.of_no_table")):
        assert effects_of(op) == Effects.ALL
        assert not is_removable(op)
        assert not is_shareable(op)
