"""A handle without a tensor: what every use of it raises, and how a handle becomes one.

In: a tensor, its birth, and what ends it. Out: the same Python object, of class `DisposedTensor`.
The handle gives up its TensorImpl and gets another, without memory, whose every dispatch raises. So
views, saved-for-backward tensors, `.grad` and other C++ holders keep theirs, unchanged; if there is
none, the memory is free when `empty_out` returns, whatever still refers to the handle.

    before:  h ──► impl ──► storage        loss.grad_fn ──► impl
    after:   h ──► nothing                 loss.grad_fn ──► impl ──► storage

Always: Python's way to a tensor is closed twice. `DisposedTensor` refuses attributes, special
methods and `__torch_function__`; what asks C++ directly meets a tensor of PyTorch's Python dispatch
key, whose `__torch_dispatch__` refuses. A handle that C++ holds weakly (after `retain_grad`) cannot
be exchanged: it is closed to Python, and let go of as soon as nothing else holds it. Where another
thread may be using the tensor in C++ (`threads.may_share`) the handle is closed, too, but keeps its
impl: the call that is running goes on with it, and the memory goes with the last reference.
"""

from __future__ import annotations

import contextlib
import weakref
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from lowtide.cpython import frame_at
from lowtide.errors import UNKNOWN_LOC, DisposedTensorError, Loc
from lowtide.memory.scopes import threads
from lowtide.memory.scopes.allocation_sites import (
    FIELDS,
    Birth,
    Births,
    each,
    end_of_with,
    loc_of,
    loc_of_birth,
)
from lowtide.memory.scopes.tensor_trees import tensors_in
from lowtide.torch_private.autograd import set_versions
from lowtide.torch_private.graph_capture import CompileContext
from lowtide.torch_private.modes import NoFunctionModes, dispatch_depth, no_dispatch_modes
from lowtide.torch_private.tensors import (
    is_view,
    make_wrapper,
    swap_contents,
    use_count,
    version_unseen,
)

_Tensor: Any = torch.Tensor
_set: Any = object.__setattr__
_BIRTHS, _ENDING = "_lowtide_births", "_lowtide_ending"
# So many handles that end together share one dict, which says what they were: one for each would
# be the largest thing made for it. Few, as the last handle to go keeps the account of all.
_TOGETHER = 16
_MANY = 500  # handles
_AHEAD = 10_000  # hollow tensors, 0.8 KB each, that are made before the first is used
# How PyTorch's C++ finds whom to ask; and what its weak references ask of what they refer to.
_HARMLESS = frozenset({
    "__class__", "__doc__", "__hash__", "__repr__", "__str__", "__weakref__",
    "__torch_function__", "__torch_dispatch__", "_fix_weakref",
})  # fmt: skip
# What `isinstance(t, nn.Parameter)` and its like look for: False, rather than an error.
_ABSENT = frozenset({"_is_param", "_is_buffer"})
# What autograd asks where it can take no error, and would end the process: of what a custom
# Function returns, and of a leaf, which a handle becomes by `requires_grad_` where PyTorch asks no
# `__torch_function__`.
_METADATA: dict[Any, Any] = {
    torch.ops.prim.device.default: torch.device("meta"),
    torch.ops.prim.layout.default: torch.strided,
    torch.ops.aten.sym_size.default: (),
}
# The attributes in which C++ keeps the sizes that it was told.
_SIZES = frozenset({"_sym_sizes_capsule", "_sym_sizes_capsule_len"})
_NOT_USES = _HARMLESS | {
    "__dict__", "__dir__", "__getattribute__", "__init__", "__init_subclass__", "__new__",
    "__setattr__", "__sizeof__", "__subclasshook__", "__format__",
}  # fmt: skip


class Ending(NamedTuple):
    """What disposed a tensor: the user's instruction, and in words; `is_block`: a `with` ended."""

    code: CodeType | None
    instruction: int
    how: str
    opened: tuple[CodeType, int] | None = None
    is_block: bool = False

    def loc(self) -> Loc:
        """The line at which it happened."""
        if self.code is None:
            return UNKNOWN_LOC
        loc = loc_of(self.code, self.instruction)
        return end_of_with(loc) if self.is_block else loc

    def words(self) -> str:
        """For people: `by the end of the dispose scope opened at train.py:10`."""
        return self.how if self.opened is None else f"{self.how} opened at {loc_of(*self.opened)}"


class _DisposedWhileTraced(DisposedTensorError, AssertionError):
    """Dynamo passes on an AssertionError as it is, and wraps others in one of its own."""

    __module__ = DisposedTensorError.__module__
    __qualname__ = DisposedTensorError.__qualname__


class _Hollow(torch.Tensor):
    """A tensor without memory, whose every dispatch raises; exchanged for the one of a handle."""

    # Static, as no method need be bound then when PyTorch looks whether there is one.
    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _error_in(args, kwargs)


class DisposedTensor(torch.Tensor):
    """What a handle is after its tensor was disposed. `repr`, `hash`, `id` and `is` work."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _error_in(args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METADATA and (_is_applied(frame_at(1)) or _needs_gradient(args[0])):
            return _METADATA[func]
        raise _error_in(args, kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name in _HARMLESS:
            return object.__getattribute__(self, name)
        if name in _SIZES:
            return object.__getattribute__(self, name)
        if name in _ABSENT:
            raise AttributeError(name)
        raise error_of(self)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _SIZES:
            # In a dict of its own, for C++ to read when another thread may run.
            _set(self, "__dict__", {**object.__getattribute__(self, "__dict__"), name: value})
        # Of a result that was changed in place; whether it fails is not looked at.
        elif not (name == "_backward_hooks" and _is_applied(frame_at(1))):
            raise error_of(self)

    def __dir__(self) -> list[str]:
        return []

    def __repr__(self, *, tensor_contents: object = None) -> str:
        birth, ending = _obituary(self)
        born = UNKNOWN_LOC if birth is None else loc_of_birth(birth)
        made = f"made at {born}, " if born.line else ""
        return f"<disposed tensor, {made}disposed at {ending.loc()} {ending.words()}>"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        if format_spec:
            raise error_of(self)
        return repr(self)


def _refuse(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    raise error_of(self)


_special = {name for name in dir(torch.Tensor) if name[:2] == name[-2:] == "__"}
for _name in _special - _NOT_USES:
    if callable(getattr(torch.Tensor, _name, None)):
        setattr(DisposedTensor, _name, _refuse)


def is_gone(tensor: torch.Tensor) -> bool:
    """Whether the handle was disposed."""
    return type(tensor) is DisposedTensor


def error_of(tensor: torch.Tensor) -> DisposedTensorError:
    """What its use raises."""
    birth, ending = _obituary(tensor)
    born = UNKNOWN_LOC if birth is None else loc_of_birth(birth)
    is_traced = CompileContext.try_get() is not None
    kind = _DisposedWhileTraced if is_traced else DisposedTensorError
    return kind(born, ending.loc(), ending.words())


def empty_out(births: Births, ending: Ending) -> list[Birth]:
    """Turn handles into disposed ones; what nobody else holds is freed before this returns, or with
    its last reference if another thread may be using it.

    Out: the births that were passed over: of tensors that their makers keep, of handles that were
    disposed before, and of tensors of a class with slots of its own, which cannot change its class.
    """
    is_shared = threads.may_share()
    passed_over: list[Birth] = []
    hollows = _Hollows(0 if is_shared else _alive_of_many(births))
    ready = hollows.ready
    for begin in range(0, len(births), FIELDS * _TOGETHER):
        together = births[begin : begin + FIELDS * _TOGETHER]
        obituary = {_BIRTHS: together, _ENDING: ending}
        fields = iter(together)
        for ref, code, instruction in zip(fields, fields, fields):  # noqa: B905
            tensor = ref()
            # The common case here: to call a function for each tensor is a tenth of it.
            if type(tensor) is _Tensor and instruction >= 0:
                if is_shared:
                    tensor.__dict__ = obituary
                    tensor.__class__ = DisposedTensor
                    continue
                attributes = tensor.__dict__
                hollow = ready.pop() if ready else hollows.take()
                try:
                    swap_contents(tensor, hollow)
                except RuntimeError:
                    _close(ref, obituary)
                    continue
                if attributes:
                    hollow.__dict__ = attributes
                tensor.__dict__ = obituary
                tensor.__class__ = DisposedTensor
            elif tensor is not None and not (
                instruction >= 0 and _is_emptied(ref, obituary, is_shared)
            ):
                passed_over.append((ref, code, instruction))
    return passed_over


class _Hollows:
    """Tensors for handles, as many as end together. Of many some are made ahead: one by one each
    would lie where one that was exchanged before has been, and keep its page resident."""

    __slots__ = ("_left", "ready")

    def __init__(self, count: int) -> None:
        self._left = count if count >= _MANY else 0
        self.ready: list[Any] = []

    def take(self) -> Any:
        """One of class Tensor, as the exchange is quicker between plain ones."""
        if not self.ready:
            count = min(max(self._left, 1), _AHEAD)
            self._left -= count
            for _ in range(count):
                made: Any = make_wrapper(*_HOLLOW)
                made.__class__ = _Tensor
                self.ready.append(made)
        return self.ready.pop()


def _alive_of_many(births: Births) -> int:
    """How many are alive; 0 where there are few, and it makes no difference."""
    if len(births) < FIELDS * _MANY:
        return 0
    return sum(type(ref()) is _Tensor for ref in births[::FIELDS])


def _is_emptied(ref: weakref.ref[torch.Tensor], obituary: dict[str, Any], is_shared: bool) -> bool:
    """A tensor of a subclass, which may have a way of its own to set attributes."""
    tensor = ref()
    kind = type(tensor)
    if tensor is None or kind is DisposedTensor:
        return False
    attributes: Any = tensor.__dict__
    hollow: Any = make_wrapper(*_HOLLOW)
    try:
        hollow.__class__ = kind
        if not is_shared:
            swap_contents(tensor, hollow)
    except TypeError:  # a class with slots
        return False
    except RuntimeError:
        _close(ref, obituary)
        return True
    if not is_shared:
        _set(hollow, "__dict__", attributes)
    _set(tensor, "__class__", DisposedTensor)
    _set(tensor, "__dict__", obituary)
    return True


def _close(ref: weakref.ref[torch.Tensor], obituary: dict[str, Any]) -> None:
    """A tensor that C++ holds weakly: closed to Python, and let go of by `release_pending`."""
    tensor = ref()
    _pending[id(ref)] = ref
    _set(tensor, "__dict__", obituary)
    _set(tensor, "__class__", DisposedTensor)


def outside_dispatch_modes() -> AbstractContextManager[Any]:
    """No TorchDispatchMode of the user's sees how handles are emptied."""
    if not dispatch_depth():
        return _NO_CONTEXT
    return no_dispatch_modes()


def release_pending() -> None:
    """Let go of handles that are closed because C++ held them weakly, unless a graph needs them or
    another thread may be using them: those wait for the next end."""
    if not _pending or threads.may_share():
        return
    for key, ref in [*_pending.items()]:
        tensor = ref()
        if type(tensor) is not DisposedTensor or _is_exchanged(tensor) or _let_go(tensor):
            _pending.pop(key, None)


_NO_CONTEXT = contextlib.nullcontext()
# In their places, which spares PyTorch a third of the work: class, size, strides, storage offset,
# memory format, dtype, layout, device, pinned, gradient; what `__torch_dispatch__` is asked for:
# sizes and strides, the device, the layout.
_HOLLOW = (
    *(_Hollow, (), None, None, None, None),
    *(torch.strided, torch.device("meta"), False, False, "sizes", True, True),
)
# Handles that are closed and that C++ held weakly, by id of the reference.
_pending: dict[int, weakref.ref[torch.Tensor]] = {}


def _is_exchanged(tensor: torch.Tensor) -> bool:
    """Give the handle another impl; False if C++ holds its own weakly."""
    try:
        swap_contents(tensor, _Hollows(0).take())
    except RuntimeError:
        return False
    return True


def _let_go(tensor: torch.Tensor) -> bool:
    """Exchange a tensor that C++ holds weakly, if nothing else holds it."""
    # Autocast holds the leaves that it has cast.
    torch.clear_autocast_cache()
    if _is_exchanged(tensor):
        return True
    # Of its own, as C++ sets attributes on the way.
    _set(tensor, "__dict__", {**object.__getattribute__(tensor, "__dict__")})
    with NoFunctionModes(), torch.inference_mode(False), torch.enable_grad():
        if use_count(tensor) > 1 or is_view(tensor):
            return False
        # Nothing saved it, so that new data can make no gradient wrong. The hook of `retain_grad`
        # moves to the grad_fn of the last operation in place, which here nobody else has.
        version = version_unseen(tensor)
        _Tensor.data.__set__(tensor, _Tensor.new_empty(tensor, 0))
        try:
            _set(tensor, "__class__", _Tensor)
            _Tensor.detach_(_Tensor.mul_(tensor, 1))
        finally:
            _set(tensor, "__class__", DisposedTensor)
        set_versions((tensor,), (version,))
    return _is_exchanged(tensor)


def _is_applied(frame: FrameType) -> bool:
    """Whether it may be a frame that calls a custom Function."""
    return "apply" in frame.f_code.co_names


def _needs_gradient(tensor: torch.Tensor) -> bool:
    with NoFunctionModes():
        return _Tensor.requires_grad.__get__(tensor)


def _obituary(tensor: torch.Tensor) -> tuple[Birth | None, Ending]:
    attributes = object.__getattribute__(tensor, "__dict__")
    births = each(attributes.get(_BIRTHS, []))
    birth = next((birth for birth in births if birth[0]() is tensor), None)
    return birth, attributes.get(_ENDING, Ending(None, 0, "by other means"))


def _error_in(args: Any, kwargs: Any) -> DisposedTensorError:
    for tensor in tensors_in((args, kwargs or {})):
        if type(tensor) is DisposedTensor:
            return error_of(tensor)
    return DisposedTensorError(UNKNOWN_LOC, UNKNOWN_LOC, "by other means")
