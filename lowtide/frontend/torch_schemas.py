"""Infers the result types of PyTorch's functions from PyTorch's own schemas.

In: a target ("torch.cumsum", "Tensor.sort", "F.conv2d") and the types of its arguments.
Out: types and names of the results; one value of type Any if nothing is known.

    results_of("Tensor.sort", (TENSOR,), {})  →  Results((TENSOR, TENSOR), ("values", "indices"))

A table in this module comes first, then the schemas, then the annotations of Python functions.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import BuiltinFunctionType
from typing import Any, cast

import torch
import torch.nn.functional

from lowtide.ir import types as t
from lowtide.ir.interpret import callable_of
from lowtide.ir.signature import accepts, result_type
from lowtide.ir.types import Type
from lowtide.torch_private import torch_jit
from lowtide.torch_private.private_names import TRACING_STATE


@dataclass(frozen=True, slots=True)
class Results:
    """The types of a call's results. Several are a tuple, with `names` for its fields."""

    types: tuple[Type, ...]
    names: tuple[str, ...] = ()


_TENSOR = Results((t.TENSOR,))
_ANY = Results((t.ANY,))

# Functions with one result, or more if a flag is set: `F.max_pool2d(x, 2, return_indices=True)`.
_VARYING = frozenset({
    *(f"{root}.unique{n}" for root in ("torch", "Tensor") for n in ("", "_consecutive")),
    *(f"F.{kind}max_pool{n}d" for kind in ("", "adaptive_", "fractional_") for n in (1, 2, 3)),
})  # fmt: skip
_MORE_RESULTS = ("return_inverse", "return_counts", "return_indices")
# Number of positional arguments before the first such flag.
_BEFORE = {"unique": 2, "unique_consecutive": 1, "adaptive": 2, "max": 6, "fractional": 4}
# Functions and attributes that give a tensor, which no schema or annotation says.
_TENSORS = frozenset({
    *(f"Tensor.{n}" for n in (
        "H", "T", "apply_", "as_subclass", "bfloat16", "bool", "byte", "cdouble", "cfloat", "char",
        "double", "float", "half", "int", "long", "map_", "map2_", "new", "new_tensor", "short",
        "share_memory_", "to_sparse_coo", "cuda", "cpu",
    )),
    *(f"torch.{n}" for n in (
        "asarray", "cdist", "dsmm", "from_dlpack", "from_numpy", "frombuffer", "get_rng_state",
        "hsmm", "matrix_rank", "norm", "saddmm", "spmm", "stft", "tensordot",
    )),
})  # fmt: skip

# Results of Python functions and properties, which have no schema, or one that is wrong.
_KNOWN: dict[str, Type] = {
    "Tensor.tolist": t.ANY,
    "Tensor.item": t.NUMBER,
    "Tensor.dtype": t.DTYPE,
    "Tensor.device": t.DEVICE,
    "Tensor.layout": t.LAYOUT,
    "Tensor.shape": t.ListType(t.INT),
    "Tensor.ndim": t.INT,
    "Tensor.nbytes": t.INT,
    "Tensor.itemsize": t.INT,
    "Tensor.requires_grad": t.BOOL,
    "Tensor.is_leaf": t.BOOL,
    "Tensor.is_cuda": t.BOOL,
    "Tensor.is_cpu": t.BOOL,
    "Tensor.is_sparse": t.BOOL,
    "Tensor.is_quantized": t.BOOL,
    "Tensor.is_meta": t.BOOL,
    "Tensor.is_mkldnn": t.BOOL,
    "Tensor.is_contiguous": t.BOOL,
    "Tensor.get_device": t.INT,
    "Tensor.data_ptr": t.INT,
    "Tensor.ndimension": t.INT,
    "Tensor.nelement": t.INT,
    "Tensor.is_shared": t.BOOL,
    "Tensor.is_nested": t.BOOL,
    "Tensor.is_mps": t.BOOL,
    "Tensor.is_sparse_csr": t.BOOL,
    "Tensor.dim": t.INT,
    "Tensor.numel": t.INT,
    "Tensor.stride": t.ListType(t.INT),
    "Tensor.name": t.optional(t.STR),
    "Tensor.grad": t.optional(t.TENSOR),
    "Tensor.numpy": t.ANY,
    "Tensor.backward": t.NONE,
    "torch.is_tensor": t.BOOL,
    "torch.is_autocast_enabled": t.BOOL,
    "torch.is_grad_enabled": t.BOOL,
    "torch.get_default_dtype": t.DTYPE,
    "torch.get_num_threads": t.INT,
    "torch.get_num_interop_threads": t.INT,
    "torch.promote_types": t.DTYPE,
    "torch.result_type": t.DTYPE,
    "torch.manual_seed": t.ANY,
    # Their schemas are wrong: a tuple whose elements may be None; an object or None.
    "torch.autograd.grad": t.ANY,
    TRACING_STATE: t.ANY,
    "torch.autograd.forward_ad.unpack_dual": t.TupleType(
        (t.TENSOR, t.optional(t.TENSOR)), ("primal", "tangent")
    ),
    "operator.contains": t.BOOL,
}


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument of a schema; satisfies `signature.ParamLike`."""

    name: str
    types: tuple[str, ...]
    optional: bool
    keyword_only: bool
    has_default: bool
    is_out: bool


@dataclass(frozen=True, slots=True)
class _Schema:
    arguments: tuple[_Argument, ...]
    results: tuple[str, ...]
    names: tuple[str, ...]


def results_of(target: str, args: Sequence[Type], keywords: Mapping[str, Type]) -> Results:
    """Return the result types of calling the target with positional and keyword arguments of these
    types."""
    if target in _KNOWN and not (target == "Tensor.stride" and len(args) > 1):
        return Results((_KNOWN[target],))
    if target in _VARYING:
        return _TENSOR if not _asks(target, args, keywords) else _ANY
    schemas = _schemas(target)
    for schema in schemas:
        if _takes(schema, args, keywords):
            return _results(schema)
    plain = [s for s in schemas if not any(a.is_out for a in s.arguments)]
    for schema in plain:
        if _could_take(schema, args, keywords):
            return _results(schema)
    return _ANY if plain else _annotated(target)


def chosen(aten: str, args: Sequence[Type], keywords: Mapping[str, Type]) -> Any:
    """Return the overload of an operator ("aten::mm") that accepts these types, as PyTorch's own
    schema object; else the first that accepts this number of arguments; else None."""
    raw = torch_jit.schemas(aten)
    rows = [(s, _schema(s)) for s in raw]
    for fits in (_takes, _could_take):
        for own, schema in rows:
            if fits(schema, args, keywords):
                return own
    return None


def _asks(target: str, args: Sequence[Type], keywords: Mapping[str, Type]) -> bool:
    """Return whether a call of a `_VARYING` function may return more than one tensor."""
    name = target.rpartition(".")[2]
    before = _BEFORE[name if name in _BEFORE else name.partition("_")[0]]
    return any(k in keywords for k in _MORE_RESULTS) or len(args) > before


def _could_take(schema: _Schema, args: Sequence[Type], keywords: Mapping[str, Type]) -> bool:
    """Return whether the schema accepts this number of arguments and these keywords, whatever their
    types."""
    names = {name for a in schema.arguments for name in (a.name, *_ALIASES.get(a.name, ()))}
    lists = any(a.types[0].endswith("[]") for a in schema.arguments)
    places = sum(not a.keyword_only for a in schema.arguments)
    return keywords.keys() <= names and (len(args) <= places or lists)


def is_attribute(name: str) -> bool:
    """Return whether `Tensor.NAME` is a property, so that it is read without a call."""
    found = getattr(torch.Tensor, name, None)
    return found is not None and not callable(found)


@cache
def torch_paths() -> Mapping[int, str]:
    """Return the path of each function of PyTorch by its `id`, for `from torch import relu`."""
    roots: list[tuple[str, Any]] = [("F", torch.nn.functional), ("torch", torch)]
    for name in ("linalg", "fft", "special"):
        roots.append((f"torch.{name}", getattr(torch, name)))
    found: dict[int, str] = {}
    for path, module in roots:
        members = cast("dict[str, object]", vars(module))
        for name, member in members.items():
            if callable(member) and not name.startswith("_") and not inspect.isclass(member):
                found[id(member)] = f"{path}.{name}"
    for name in ("grad", "backward"):
        found[id(getattr(torch.autograd, name))] = f"torch.autograd.{name}"
    for name, member in vars(torch).items():  # `from torch import _weight_norm`
        if name.startswith("_") and isinstance(member, BuiltinFunctionType):
            found.setdefault(id(member), f"torch.{name}")
    return found


@cache
def _schemas(target: str) -> tuple[_Schema, ...]:
    root, _, name = target.partition(".")
    if root == "Tensor":
        aten = f"aten::{name}"
    elif root == "operator":
        aten = f"aten::__{name}__"
    else:
        try:
            aten = torch_jit.operator_name(callable_of(target))
        except AttributeError:
            aten = None
    if aten is None:
        return ()
    return tuple(_schema(s) for s in torch_jit.schemas(aten))


def _schema(raw: Any) -> _Schema:
    arguments = tuple(_argument(a) for a in raw.arguments)
    results = tuple(_type_text(str(r.type))[0] for r in raw.returns)
    names = tuple(str(r.name) for r in raw.returns)
    return _Schema(arguments, results, names if all(names) else ())


def _argument(raw: Any) -> _Argument:
    text, optional = _type_text(str(raw.type))
    alias = raw.alias_info
    return _Argument(
        name=str(raw.name),
        types=tuple(text.split("|")),
        optional=optional,
        keyword_only=bool(raw.kwarg_only),
        has_default=bool(raw.has_default_value()),
        is_out=bool(raw.kwarg_only) and alias is not None and bool(alias.is_write),
    )


_TEXTS = {
    "number": "Scalar",
    "Device": "device",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
    "Generator": "Generator",
    "int": "int|dtype|layout|memory_format",  # schemas print ScalarType and other enums as int
}
_RESULT_TYPES = ("Tensor", "int", "float", "bool", "str", "Scalar", "dtype", "device", "complex")


def _type_text(text: str) -> tuple[str, bool]:
    """Return a schema's type in the notation of `lowtide.ops`, and whether None is accepted."""
    if text.startswith("Optional["):
        return _type_text(text[len("Optional[") : -1])[0], True
    if text.startswith("List["):
        inner = _type_text(text[len("List[") : -1])[0]
        return f"{inner.split('|')[0]}[]", False
    return _TEXTS.get(text, text), False


def _takes(schema: _Schema, args: Sequence[Type], keywords: Mapping[str, Type]) -> bool:
    left = dict(keywords)
    rest = list(args)
    for a in schema.arguments:
        name = next((k for k in (a.name, *_ALIASES.get(a.name, ())) if k in left), None)
        if name is not None:
            given = left.pop(name)
        elif rest and not a.keyword_only:
            given = rest.pop(0)
        elif a.has_default:
            continue
        else:
            return False
        if not accepts(a, given) and not accepts(a, t.tuple_of(given)):
            return False
    return not rest and not left


_ALIASES = {"self": ("input",), "dim": ("axis",), "keepdim": ("keepdims",)}


def _results(schema: _Schema) -> Results:
    types: list[Type] = []
    for text in schema.results:
        first = text.split("|")[0]
        known = first.removesuffix("[]") in _RESULT_TYPES
        types.append(result_type(first) if known else t.ANY)
    if not types:
        return Results((t.NONE,))
    return Results(tuple(types), schema.names if len(types) > 1 else ())


_PYTHON: dict[object, Type] = {
    torch.Tensor: t.TENSOR,
    bool: t.BOOL,
    int: t.INT,
    float: t.FLOAT,
    str: t.STR,
    type(None): t.NONE,
}


@cache
def _annotated(target: str) -> Results:
    """Return the result types by `_TENSORS`, else by the annotation of the Python function."""
    if target in _TENSORS:
        return _TENSOR
    try:
        hints = typing.get_type_hints(callable_of(target))
    except (TypeError, NameError, AttributeError):
        hints = {}
    if "return" not in hints:
        return _TENSOR if target.startswith("F.") else _ANY
    result = hints["return"]
    if typing.get_origin(result) is tuple:
        elems = typing.get_args(result)
        if Ellipsis in elems:  # tuple[Tensor, ...], as of `torch.unravel_index`
            return _ANY
        return Results(tuple(_PYTHON.get(e, t.ANY) for e in elems))
    return Results((_PYTHON.get(result, t.ANY),))
