"""What PyTorch's ops give on the meta device, remembered: there is no data that it could hang on.

In: an op and its arguments, on the meta device. Out: what PyTorch gives, without asking it again
where it was asked for operands of these forms before. It takes up to a millisecond to say what form
a sum has, in Python, and a rehearsal asks for thousands.

    addmm(b, x, y)     asked once for these shapes, strides and dtypes; then `torch.empty_strided`
    x.sigmoid_()       asked once; then `x`

Always: of ops that change nothing and give tensors of their own, and of those that change their
first argument element by element, which keeps its form. Not where a tensor is no plain strided one,
or without dims: it may be a number of Python's, beside which others keep their dtype.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import torch

Tensor = torch.Tensor
_MOST: Final = 10_000  # calls that are remembered
_META: Final = torch.device("meta")
_TENSORS: Final = frozenset({Tensor, torch.nn.Parameter})
_SEQUENCES: Final = frozenset({list, tuple, torch.Size})
_VALUES: Final = frozenset({
    type(None), str, bool, int, float, complex,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip


class _Form(NamedTuple):
    """Of a tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> Tensor:
        """Another of this form."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=_META)


# What a call gave: the first argument, a tensor, or several, of which some may be none.
_Given = Literal["first"] | _Form | tuple[_Form | None, ...]
_given: dict[Hashable, _Given] = {}


class _UnknownError(Exception):
    """It may hang on more than forms."""


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `func` gives for these arguments."""
    if not _hangs_on_forms(func):
        return func(*args, **kwargs)
    try:
        key = func, torch.get_default_dtype(), _part(args), _part([*kwargs.items()])
    except _UnknownError:
        return func(*args, **kwargs)
    given = _given.get(key)
    if given is None:
        result = func(*args, **kwargs)
        with contextlib.suppress(_UnknownError):
            _remember(key, _given_by(result, args))
        return result
    if given == "first":
        return args[0]
    if isinstance(given, _Form):
        return given.made()
    return tuple(None if form is None else form.made() for form in given)


@functools.cache
def _hangs_on_forms(func: Any) -> bool:
    schema = func._schema
    if schema.is_mutable:
        return torch.Tag.pointwise in func.tags and schema.name.endswith("_")
    returns = schema.returns
    return bool(returns) and all(r.alias_info is None and str(r.type) == "Tensor" for r in returns)


def _part(value: Any) -> Hashable:
    """Of a key: what the result hangs on."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _TENSORS:
        return _form(value)
    if kind in _SEQUENCES:
        return tuple(_part(item) for item in value)
    if kind in _VALUES:
        return kind, value  # as True, 1 and 1.0 are equal
    raise _UnknownError


def _form(x: Tensor) -> _Form:
    if not (x.is_meta and x.dim() and x.layout is torch.strided) or x.is_conj() or x.is_neg():
        raise _UnknownError
    return _Form(x.shape, x.stride(), x.dtype)


def _given_by(result: Any, args: Sequence[Any]) -> _Given:
    if args and result is args[0]:
        return "first"
    storages = {_storage(x) for x in _tensors(args)}
    if type(result) is not tuple:
        return _fresh_form(result, storages)
    results = cast("tuple[Any, ...]", result)
    return tuple(None if x is None else _fresh_form(x, storages) for x in results)


def _fresh_form(x: Any, others: set[int]) -> _Form:
    """Of a tensor with memory of its own, as much as its form needs."""
    if type(x) is not Tensor or _storage(x) in others:
        raise _UnknownError
    form = _form(x)
    if x.untyped_storage().nbytes() != form.made().untyped_storage().nbytes():
        raise _UnknownError
    others.add(_storage(x))
    return form


def _tensors(value: Any) -> Iterator[Tensor]:
    if type(value) in _TENSORS:
        yield value
    elif type(value) in _SEQUENCES:
        for item in value:
            yield from _tensors(item)


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _remember(key: Hashable, given: _Given) -> None:
    if len(_given) >= _MOST:
        _given.clear()
    _given[key] = given
