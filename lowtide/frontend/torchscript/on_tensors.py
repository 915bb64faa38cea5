"""Operators on tensors whose arguments PyTorch's functions take in another form.

In: the name of an operator, arguments in the order of its schema. Out: ops. `TABLE` has a row for
each name; `source_of` tells the function of PyTorch for all others.

    torch.slice(x, 1, 0, 5, 2)            →  x[:, 0:5:2]
    torch.index_put_(x, [None, i], v)     →  x[:, i] = v
    torch.embedding(w, i, -1, …)          →  F.embedding(i, w, …)
    torch.to(x, 6, False, False, None)    →  x.to(torch.float32)
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from types import BuiltinFunctionType, GetSetDescriptorType, MethodDescriptorType
from typing import Final

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import Call, Node
from lowtide.frontend.script.subscripts import Items, load
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.frontend.torchscript import codes
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.ir.interpret import callable_of
from lowtide.torch_private import torch_jit
from lowtide.torch_private.private_names import NN

Values = list[Value]
Keywords = dict[str, Value]
Row = Callable[[Context, Call, Values, Keywords], Node]
_LAST: Final = 2**63 - 1  # the end of a slice that has none


@functools.cache
def source_of(namespace: str, name: str) -> str:
    """Return the name by which records and PyTorch know the operator."""
    if namespace != "aten":
        return f"torch.ops.{namespace}.{name}"
    aten = f"aten::{name}"
    places = ("torch", "Tensor", NN.removesuffix("."))
    if name.endswith("_") and not name.endswith("__"):
        places = (places[1], places[0], places[2])
    for path in places:
        try:
            found = callable_of(f"{path}.{name}")
        except AttributeError:
            continue
        if _is_operator(found, path, aten):
            return f"{path}.{name}"
    return f"torch.ops.aten.{name}"


def _is_operator(found: object, path: str, aten: str) -> bool:
    """Return whether the object is PyTorch's own binding of the operator. A Python function is not:
    it may have other arguments."""
    if path == "Tensor":
        return isinstance(found, MethodDescriptorType | GetSetDescriptorType)
    if not isinstance(found, BuiltinFunctionType):
        return False
    try:
        return torch_jit.operator_name(found) == aten
    except AttributeError:
        return False


def _functional(row: str, name: str = "") -> Row:
    """Return a function of `torch.nn.functional`, whose names for the schema's arguments are in
    `row`; `-` is one that it lacks."""
    words = row.split()

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        given = dict(zip(words, args, strict=False)) | keywords
        given.pop("-", None)
        if "reduction" in given:
            given["reduction"] = _reduction(c, given["reduction"])
        first = given.pop(next(iter(given)))
        return torch_call(c, call.node, f"F.{name}", [first], given)

    return compile_call


_REDUCTIONS: Final = ("none", "mean", "sum")


def _reduction(c: Context, value: Value) -> Value:
    known = c.constant(value)
    if isinstance(known, int) and 0 <= known < len(_REDUCTIONS):
        return c.const(_REDUCTIONS[known])
    if value.type != t.INT:
        return value
    return c.builder.emit("list.get", [c.const(_REDUCTIONS), value], [t.STR]).result


def _embedding(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """A `padding_idx` of -1 is none."""
    named = dict(zip(("padding_idx", "scale_grad_by_freq", "sparse"), args[2:], strict=False))
    if "padding_idx" in named and c.constant(named["padding_idx"]) == -1:
        del named["padding_idx"]
    return torch_call(c, call.node, "F.embedding", [args[1], args[0]], named | keywords)


def _cdist(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """A mode of None is the default of PyTorch's function, whose modes are words."""
    given = dict(zip(("x1", "x2", "p", "compute_mode"), args, strict=False)) | keywords
    mode = given.pop("compute_mode", None)
    if mode is not None and c.constant(mode) is not None:
        return torch_call(c, call.node, "torch.ops.aten.cdist.default", args, keywords)
    return torch_call(c, call.node, "torch.cdist", [given.pop("x1"), given.pop("x2")], given)


def _spread(source: str, at: int) -> Row:
    """Return a function of PyTorch's that takes the tensors of a list as so many arguments."""

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        maker = c.builder.makers.get(args[at]) if len(args) > at else None
        if maker is not None and maker.name == "list.make":
            args, keywords = [*args[:at], *maker.operands], {}
        return torch_call(c, call.node, source, args, keywords)

    return compile_call


def _upsample(name: str, mode: str, row: str) -> Row:
    """Return `F.interpolate` by this mode, for the schema with a size or a list of scales."""
    words = row.split()

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        if len(args) + len(keywords) > len(words):
            return torch_call(c, call.node, source_of("aten", name), args, keywords)
        given = dict(zip(words, args, strict=False)) | keywords
        names = {"output_size": "size", "scale_factors": "scale_factor"}
        named = {names.get(k, k): v for k, v in given.items() if c.constant(v) is not None}
        first = named.pop("input")
        named["mode"] = c.const(mode)
        return torch_call(c, call.node, "F.interpolate", [first], named)

    return compile_call


def _full_slice(c: Context) -> Values:
    return [c.const(None)] * 3


def _subscript(call: Call) -> ast.Subscript:
    first = call.node.args[0] if call.node.args else call.node
    made = ast.Subscript(first, ast.Constant(0), ast.Load())
    return ast.copy_location(made, call.node)


def _slice(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    names = ("self", "dim", "start", "end", "step")
    given = dict(zip(names, args, strict=False)) | keywords
    dim = c.constant(given["dim"]) if "dim" in given else 0
    bounds = [given.get(k) or c.const(None) for k in names[2:]]
    bounds[1] = c.const(None) if c.constant(bounds[1]) == _LAST else bounds[1]
    bounds[2] = c.const(None) if c.constant(bounds[2]) == 1 else bounds[2]
    if not isinstance(dim, int):
        return torch_call(c, call.node, "torch.ops.aten.slice.Tensor", args, keywords)
    around = abs(dim) if dim >= 0 else -dim - 1
    others = [v for _ in range(around) for v in _full_slice(c)]
    if dim >= 0:
        items = Items(("slice",) * (around + 1), (*others, *bounds))
    else:
        items = Items(("ellipsis", *("slice",) * (around + 1)), (*bounds, *others))
    return load(c, _subscript(call), args[0], items)


def _index(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """New memory always, unlike `x[i]` of a tensor without dims."""
    maker = c.builder.makers.get(args[1])
    if maker is not None and maker.name == "list.make":
        args = [args[0], c.builder.tuple_make(maker.operands)]
    return torch_call(c, call.node, "torch.ops.aten.index.Tensor", args, keywords)


def _items(c: Context, listed: Value) -> Items | None:
    """Return what a list of indices means in brackets; None where its length is unknown."""
    maker = c.builder.makers.get(listed)
    if maker is None or maker.name not in ("list.make", "tuple.make"):
        return None
    words: list[str] = []
    operands: Values = []
    for index in maker.operands:
        if index.type == t.NONE:
            words.append("slice")
            operands += _full_slice(c)
        else:
            words.append("tensor")
            operands.append(index)
    return Items(tuple(words), tuple(operands))


def _index_put(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Compile `index_put_`. If it does not accumulate, it is an assignment to items."""
    adds = c.constant(args[3]) if len(args) > 3 else False
    items = _items(c, args[1])
    if items is None or adds is not False:
        return torch_call(c, call.node, "torch.ops.aten.index_put_.default", args, keywords)
    return c.builder.emit(
        "mutate",
        [args[0], *items.operands, args[2]],
        [args[0].type],
        target="Tensor.__setitem__",
        kwnames=(),
        spec=items.spec,
    ).result


_TO_DTYPE: Final = ("dtype", "non_blocking", "copy", "memory_format")


def _to(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return `x.to(device, dtype)`, `x.to(dtype)`, `x.to(other)`, by the second argument."""
    given: Keywords = {}
    if len(args) > 1:
        second = args[1].type.elem if isinstance(args[1].type, t.OptionalType) else args[1].type
        if t.is_tensor(second):
            names = ("other", *_TO_DTYPE[1:])
        elif second in (t.DEVICE, t.STR) or _is_device_form(c, args):
            names = ("device", *_TO_DTYPE)
        else:
            names = _TO_DTYPE
        given = dict(zip(names, args[1:], strict=False))
    given |= keywords
    given.pop("layout", None)  # PyTorch takes no other than the tensor's own
    decoded = {k: codes.decode_named(c, call.node, k, v) for k, v in given.items()}
    kept = {k: v for k, v in decoded.items() if c.constant(v) not in (None, False)}
    positional = [kept.pop(k) for k in ("other",) if k in kept]
    return torch_call(c, call.node, "Tensor.to", [args[0], *positional], kept)


def _is_device_form(c: Context, args: Values) -> bool:
    """Return whether a None in second place is a device. A dtype is then in third place."""
    is_none = args[1].type == t.NONE
    return is_none and len(args) > 2 and args[2].type in (t.INT, t.DTYPE, t.NONE)


def _size(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Of all dimensions it is a list, which equals a list."""
    found = torch_call(c, call.node, "Tensor.size", args, keywords)
    return found if args[1:] or keywords else c.list_of(found, call.node)


def _item(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return `x[i]` of a tensor."""
    return load(c, _subscript(call), args[0], Items(("int",), (args[1],)))


def _named(source: str) -> Row:
    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        return torch_call(c, call.node, source, args, keywords)

    return compile_call


def _is_none(negated: bool) -> Row:
    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        return c.py(call.node, "py.is_not" if negated else "py.is", *args)

    return compile_call


def _not(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.py(call.node, "py.not", c.truth(args[0]))


def _unwrap(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    (value,) = args
    if isinstance(value.type, t.OptionalType):
        return c.builder.emit("cast", [value], [value.type.elem]).result
    return value


def _same(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return args[0]


def _chunked(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    found = torch_call(c, call.node, "torch.chunk", args[:1], _word(("chunks", "dim"), args[1:]))
    return c.list_of(found, call.node)


def _split(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.list_of(torch_call(c, call.node, "Tensor.split", args, keywords), call.node)


def _word(names: tuple[str, ...], args: Values) -> Keywords:
    return dict(zip(names, args, strict=False))


def _tensor(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return `torch.tensor` and `torch.as_tensor`, also of a tensor."""
    named = {k: v for k, v in keywords.items() if v.type != t.NONE}
    if "dtype" in named:
        named["dtype"] = codes.decode_named(c, call.node, "dtype", named["dtype"])
    names = ("dtype", "device", "requires_grad")
    for name, value in zip(names, args[1:], strict=False):
        if value.type != t.NONE:
            named[name] = codes.decode_named(c, call.node, name, value)
    if c.constant(named.get("requires_grad", c.const(False))) is False:
        named.pop("requires_grad", None)
    return torch_call(c, call.node, "torch.tensor", args[:1], named)


def _is_contiguous(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    given = _word(("self", "memory_format"), args) | keywords
    named = {k: codes.decode_named(c, call.node, k, v) for k, v in given.items() if k != "self"}
    return torch_call(c, call.node, "Tensor.is_contiguous", args[:1], named)


_OPERATORS: Final = {
    **{f"__{n}__": f"operator.{n}_" for n in ("and", "or")},
    "__xor__": "operator.xor",
    "__lshift__": "operator.lshift",
    "__rshift__": "operator.rshift",
    "floordiv": "operator.floordiv",
    "linalg_vector_norm": "torch.linalg.vector_norm",
    **{
        f"{name}{n}d": f"F.{name}{n}d" for name in ("avg_pool", "adaptive_avg_pool") for n in (2, 3)
    },
}

TABLE: Final[dict[str, Row]] = {
    **{name: _named(source) for name, source in _OPERATORS.items()},
    "slice": _slice,
    "index": _index,
    "index_put_": _index_put,
    "to": _to,
    "size": _size,
    "shape": _size,
    "len": lambda c, call, args, keywords: torch_call(
        c, call.node, "Tensor.size", [args[0], c.const(0)], {}
    ),
    "__getitem__": _item,
    "__is__": _is_none(negated=False),
    "__isnot__": _is_none(negated=True),
    "__not__": _not,
    "unchecked_unwrap_optional": _unwrap,
    "_unwrap_optional": _unwrap,
    "embedding": _embedding,
    "tensor": _tensor,
    "as_tensor": _tensor,
    "chunk": _chunked,
    "split": _split,
    "is_contiguous": _is_contiguous,
    "data": _named("Tensor.detach"),
    "NumToTensor": _same,
    "linear": _functional("input weight bias", "linear"),
    "dropout": _functional("input p training", "dropout"),
    "batch_norm": _functional(
        "input weight bias running_mean running_var training momentum eps -", "batch_norm"
    ),
    "instance_norm": _functional(
        "input weight bias running_mean running_var use_input_stats momentum eps -", "instance_norm"
    ),
    "group_norm": _functional("input num_groups weight bias eps -", "group_norm"),
    "gelu": _functional("input", "gelu"),
    **{
        name: _functional("input", name)
        for name in ("silu", "mish", "hardswish", "hardsigmoid", "relu6")
    },
    "log_sigmoid": _functional("input", "logsigmoid"),
    "leaky_relu": _functional("input negative_slope", "leaky_relu"),
    "hardtanh": _functional("input min_val max_val", "hardtanh"),
    "softplus": _functional("input beta threshold", "softplus"),
    "softshrink": _functional("input lambd", "softshrink"),
    "glu": _functional("input dim", "glu"),
    "one_hot": _functional("tensor num_classes", "one_hot"),
    "pad": _functional("input pad mode value", "pad"),
    "cdist": _cdist,
    "einsum": _spread("torch.einsum", 1),
    "broadcast_tensors": _spread("torch.broadcast_tensors", 0),
    **{
        f"upsample_{mode}{n}d": _upsample(
            f"upsample_{mode}{n}d", word, f"input output_size {corners} scale_factors"
        )
        for mode, word, n, corners in (
            ("linear", "linear", 1, "align_corners"),
            ("bilinear", "bilinear", 2, "align_corners"),
            ("nearest", "nearest", 1, ""),
            ("nearest", "nearest", 2, ""),
        )
    },
    "scaled_dot_product_attention": _functional(
        "query key value attn_mask dropout_p is_causal", "scaled_dot_product_attention"
    ),
    "mse_loss": _functional("input target reduction", "mse_loss"),
    "l1_loss": _functional("input target reduction", "l1_loss"),
    "smooth_l1_loss": _functional("input target reduction beta", "smooth_l1_loss"),
    "huber_loss": _functional("input target reduction delta", "huber_loss"),
    "binary_cross_entropy": _functional("input target weight reduction", "binary_cross_entropy"),
    "binary_cross_entropy_with_logits": _functional(
        "input target weight pos_weight reduction", "binary_cross_entropy_with_logits"
    ),
    "kl_div": _functional("input target reduction", "kl_div"),
    "nll_loss_nd": _functional("input target weight reduction ignore_index", "nll_loss"),
    "cross_entropy_loss": _functional(
        "input target weight reduction ignore_index label_smoothing", "cross_entropy"
    ),
}

__all__ = ["TABLE", "UNKNOWN", "source_of"]
