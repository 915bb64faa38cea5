"""A cache of the results of PyTorch's ops on the meta device, by the forms of their operands.

In: an op and its arguments, on the meta device. Out: PyTorch's result. PyTorch's meta functions are
Python, and take up to a millisecond; a dry run calls thousands. Without data, the form of a result
depends on the forms of the operands only.

    addmm(b, x, y)     one call for these shapes, strides and dtypes; then `torch.empty_strided`
    x.sigmoid_()       one call; then `x`

Invariant: only PyTorch's own ops are cached, since others may read state of their owner. They
write nothing and return new tensors or their first argument, or write that element by element,
which preserves its form. Tensors that are not plain strided ones are not cached, nor 0-dim tensors:
one may be a wrapped Python number, which does not promote the dtype of others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import torch

from lowtide.torch_private.dispatch import schema_of
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import is_zero_tensor, storage_of

Tensor = torch.Tensor
_MOST: Final = 10_000  # cached calls
_MOST_ITEMS: Final = 64  # of a sequence among the arguments
_OURS: Final = ("aten", "prims")  # namespaces
_META: Final = torch.device("meta")
_TENSORS: Final = frozenset({Tensor, torch.nn.Parameter})
_SEQUENCES: Final = frozenset({list, tuple, torch.Size})
_VALUES: Final = frozenset({
    type(None), str, bool, int, float, complex,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip


class _Form(NamedTuple):
    """The metadata of a tensor that its memory depends on."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> Tensor:
        """Return a new meta tensor of this form."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=_META)


# The result of a call: the first argument, a tensor, or several of which some may be None.
_Given = Literal["first"] | _Form | tuple[_Form | None, ...]
_given: dict[Hashable, _Given] = {}


class _UnknownError(Exception):
    """The result may depend on more than forms."""


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of `func` for these arguments, from the cache if possible."""
    if not _depends_on_forms(func):
        return func(*args, **kwargs)
    try:
        key = func, _flags(), _part(args), _part([*kwargs.items()])
    except _UnknownError:
        return func(*args, **kwargs)
    given = _given.get(key)
    if given is None:
        result = func(*args, **kwargs)
        with contextlib.suppress(_UnknownError):
            _remember(key, _given_by(result, args, kwargs))
        return result
    if given == "first":
        return args[0]
    if isinstance(given, _Form):
        return given.made()
    return tuple(None if form is None else form.made() for form in given)


@functools.cache
def _depends_on_forms(func: Any) -> bool:
    schema = schema_of(func)
    if func.namespace not in _OURS:
        return False
    if schema.is_mutable:
        return torch.Tag.pointwise in func.tags and schema.name.endswith("_")
    returns = schema.returns
    return bool(returns) and all(r.alias_info is None and str(r.type) == "Tensor" for r in returns)


def _flags() -> tuple[Hashable, ...]:
    return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()


def _part(value: Any) -> Hashable:
    """Return the part of the key for an argument. Raises _UnknownError if it has none."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _TENSORS:
        return _form(value)
    if kind in _SEQUENCES and len(value) <= _MOST_ITEMS:
        return tuple(_part(item) for item in value)
    if kind in _VALUES:
        return kind, value  # as True, 1 and 1.0 are equal
    raise _UnknownError


def _form(x: Tensor) -> _Form:
    is_plain = x.is_meta and x.layout is torch.strided and not x.is_nested
    if not (is_plain and x.dim()) or x.is_conj() or x.is_neg() or is_zero_tensor(x):
        raise _UnknownError
    return _Form(x.shape, x.stride(), x.dtype)


def _given_by(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Given:
    if args and result is args[0]:
        return "first"
    storages = {storage_of(x) for x in tensors_in([*args, *kwargs.values()])}
    if type(result) is not tuple:
        return _fresh_form(result, storages)
    results = cast("tuple[Any, ...]", result)
    return tuple(None if x is None else _fresh_form(x, storages) for x in results)


def _fresh_form(x: Any, others: set[int]) -> _Form:
    """Return the form of a tensor that has a storage of its own, as large as its form needs."""
    if type(x) is not Tensor:
        raise _UnknownError
    form = _form(x)
    if (
        storage_of(x) in others
        or x.untyped_storage().nbytes() != form.made().untyped_storage().nbytes()
    ):
        raise _UnknownError
    others.add(storage_of(x))
    return form


def _remember(key: Hashable, given: _Given) -> None:
    if len(_given) >= _MOST:
        _given.clear()
    _given[key] = given
