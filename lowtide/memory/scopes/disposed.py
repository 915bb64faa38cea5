"""Turns the Python object of a tensor, its handle, into one whose every use raises.

In: a tensor, its birth, and what disposes it. Out: the same Python object, of class
`DisposedTensor`. The handle swaps its TensorImpl for one without memory. Views, tensors saved for
backward, `.grad` and other references in C++ keep the old impl, unchanged. If there are none, the
memory is free when `empty_out` returns, even if Python still refers to the handle.

    before:  h ──► impl ──► storage        loss.grad_fn ──► impl
    after:   h ──► hollow impl             loss.grad_fn ──► impl ──► storage

Invariant: every use raises, from Python and from C++. `DisposedTensor` refuses attributes, special
methods and `__torch_function__`. C++ dispatches calls on the hollow impl to a `__torch_dispatch__`
that raises. In two cases the impl stays, and only Python's uses raise:

- C++ holds a weak reference to it (after `retain_grad`). It is swapped at the end of this or a
  later scope, once nothing else refers to it.
- Another thread may be using the tensor in C++ (`threads.may_share`). The running call goes on, and
  the memory is freed with the last reference.
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
# So many handles share one `__dict__` with their births: one for each handle would take more memory
# than all else. No more share it, since the last handle to be freed keeps the births of all.
_TOGETHER = 16
_MANY = 500  # handles
_AHEAD = 10_000  # hollow tensors, 0.8 KB each, that are made before the first is used
# What PyTorch's C++ reads to find an override, and what its weak references read.
_HARMLESS = frozenset({
    "__class__", "__doc__", "__hash__", "__repr__", "__str__", "__weakref__",
    "__torch_function__", "__torch_dispatch__", "_fix_weakref",
})  # fmt: skip
# What `isinstance(t, nn.Parameter)` and the like read: they give False, not an error.
_ABSENT = frozenset({"_is_param", "_is_buffer"})
# What autograd's C++ asks in places where an exception would abort the process: of the results of a
# custom Function, and of a leaf. `requires_grad_` makes a handle a leaf where PyTorch skips
# `__torch_function__`.
_METADATA: dict[Any, Any] = {
    torch.ops.prim.device.default: torch.device("meta"),
    torch.ops.prim.layout.default: torch.strided,
    torch.ops.aten.sym_size.default: (),
}
# The attributes in which C++ caches the sizes that `__torch_dispatch__` returned.
_SIZES = frozenset({"_sym_sizes_capsule", "_sym_sizes_capsule_len"})
_NOT_USES = _HARMLESS | {
    "__dict__", "__dir__", "__getattribute__", "__init__", "__init_subclass__", "__new__",
    "__setattr__", "__sizeof__", "__subclasshook__", "__format__",
}  # fmt: skip


class Ending(NamedTuple):
    """The event that disposed a tensor. `code`, `instruction`: the user's. `how`: in words.
    `opened`: where the scope was opened. `is_block`: True if a `with` block ended."""

    code: CodeType | None
    instruction: int
    how: str
    opened: tuple[CodeType, int] | None = None
    is_block: bool = False

    def loc(self) -> Loc:
        """Return the line at which it happened."""
        if self.code is None:
            return UNKNOWN_LOC
        loc = loc_of(self.code, self.instruction)
        return end_of_with(loc) if self.is_block else loc

    def words(self) -> str:
        """Return a text such as `by the end of the dispose scope opened at train.py:10`."""
        return self.how if self.opened is None else f"{self.how} opened at {loc_of(*self.opened)}"


class _DisposedWhileTraced(DisposedTensorError, AssertionError):
    """Raised while Dynamo traces: it passes on an AssertionError, and wraps other errors."""

    __module__ = DisposedTensorError.__module__
    __qualname__ = DisposedTensorError.__qualname__


class _Hollow(torch.Tensor):
    """A tensor without memory, whose every dispatch raises; its impl replaces that of a handle."""

    # Static: PyTorch reads the attribute often, and need not bind a method.
    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _error_in(args, kwargs)


class DisposedTensor(torch.Tensor):
    """The class of a handle after its tensor was disposed. `repr`, `hash`, `id`, `is` work."""

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
            # In a copy of the shared dict: C++ may read this one while another thread runs.
            _set(self, "__dict__", {**object.__getattribute__(self, "__dict__"), name: value})
        # Autograd clears the hooks of a result that was changed in place, and ignores errors.
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
    """Return whether the handle was disposed."""
    return type(tensor) is DisposedTensor


def error_of(tensor: torch.Tensor) -> DisposedTensorError:
    """Return the error that a use of the tensor raises."""
    birth, ending = _obituary(tensor)
    born = UNKNOWN_LOC if birth is None else loc_of_birth(birth)
    is_traced = CompileContext.try_get() is not None
    kind = _DisposedWhileTraced if is_traced else DisposedTensorError
    return kind(born, ending.loc(), ending.words())


def empty_out(births: Births, ending: Ending) -> list[Birth]:
    """Dispose the handles. Memory without other references is freed before this returns, or with
    its last reference if another thread may be using it.

    Returns the births that were skipped: of tensors that their makers store, of handles that were
    disposed before, and of tensors whose class has `__slots__`: these cannot change their class.
    """
    is_shared = threads.may_share()
    skipped: list[Birth] = []
    hollows = _Hollows(0 if is_shared else _alive_of_many(births))
    ready = hollows.ready
    for begin in range(0, len(births), FIELDS * _TOGETHER):
        together = births[begin : begin + FIELDS * _TOGETHER]
        obituary = {_BIRTHS: together, _ENDING: ending}
        fields = iter(together)
        for ref, code, instruction in zip(fields, fields, fields):  # noqa: B905
            tensor = ref()
            # Inlined: a call for each tensor would take a tenth of the time.
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
                skipped.append((ref, code, instruction))
    return skipped


class _Hollows:
    """Makes hollow tensors. If `count` is large, most are made in advance: made one by one, each
    would reuse the memory of an impl that was just freed, and keep its page resident."""

    __slots__ = ("_left", "ready")

    def __init__(self, count: int) -> None:
        self._left = count if count >= _MANY else 0
        self.ready: list[Any] = []

    def take(self) -> Any:
        """Return one. Its class is Tensor, since swapping plain tensors is faster."""
        if not self.ready:
            count = min(max(self._left, 1), _AHEAD)
            self._left -= count
            for _ in range(count):
                made: Any = make_wrapper(*_HOLLOW)
                made.__class__ = _Tensor
                self.ready.append(made)
        return self.ready.pop()


def _alive_of_many(births: Births) -> int:
    """Return how many tensors are alive; 0 for few births, where the count is not needed."""
    if len(births) < FIELDS * _MANY:
        return 0
    return sum(type(ref()) is _Tensor for ref in births[::FIELDS])


def _is_emptied(ref: weakref.ref[torch.Tensor], obituary: dict[str, Any], is_shared: bool) -> bool:
    """Dispose a tensor of a subclass, which may override `__setattr__`. Returns False if it was
    disposed before, or has `__slots__`."""
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
    """Make Python's uses of the tensor raise; `release_pending` swaps the impl later."""
    tensor = ref()
    _pending[id(ref)] = ref
    _set(tensor, "__dict__", obituary)
    _set(tensor, "__class__", DisposedTensor)


def outside_dispatch_modes() -> AbstractContextManager[Any]:
    """Return a context in which no TorchDispatchMode of the user's is on."""
    if not dispatch_depth():
        return _NO_CONTEXT
    return no_dispatch_modes()


def release_pending() -> None:
    """Swap the impls of disposed handles that C++ held weakly. Those that a graph refers to, or
    that another thread may be using, wait for the end of the next scope."""
    if not _pending or threads.may_share():
        return
    for key, ref in [*_pending.items()]:
        tensor = ref()
        if type(tensor) is not DisposedTensor or _is_swapped(tensor) or _is_released(tensor):
            _pending.pop(key, None)


_NO_CONTEXT = contextlib.nullcontext()
# Positional arguments, which PyTorch parses faster: class, size, strides, storage offset, memory
# format, dtype, layout, device, pin_memory, requires_grad; and what is dispatched to Python: sizes
# and strides, the device, the layout.
_HOLLOW = (
    *(_Hollow, (), None, None, None, None),
    *(torch.strided, torch.device("meta"), False, False, "sizes", True, True),
)
# Disposed handles whose impl C++ held weakly, by id of the reference.
_pending: dict[int, weakref.ref[torch.Tensor]] = {}


def _is_swapped(tensor: torch.Tensor) -> bool:
    """Swap the handle's impl for a hollow one; False if C++ holds it weakly."""
    try:
        swap_contents(tensor, _Hollows(0).take())
    except RuntimeError:
        return False
    return True


def _is_released(tensor: torch.Tensor) -> bool:
    """Swap the impl of a tensor that C++ holds weakly, if nothing else refers to it."""
    # Autocast's cache refers to the leaves that it has cast.
    torch.clear_autocast_cache()
    if _is_swapped(tensor):
        return True
    # A copy of the shared dict: C++ sets attributes below.
    _set(tensor, "__dict__", {**object.__getattribute__(tensor, "__dict__")})
    with NoFunctionModes(), torch.inference_mode(False), torch.enable_grad():
        if use_count(tensor) > 1 or is_view(tensor):
            return False
        # No graph has saved the tensor, so new data cannot make a gradient wrong. The hook of
        # `retain_grad` moves to the grad_fn of an in-place op, to which nothing else refers here.
        version = version_unseen(tensor)
        _Tensor.data.__set__(tensor, _Tensor.new_empty(tensor, 0))
        try:
            _set(tensor, "__class__", _Tensor)
            _Tensor.detach_(_Tensor.mul_(tensor, 1))
        finally:
            _set(tensor, "__class__", DisposedTensor)
        set_versions((tensor,), (version,))
    return _is_swapped(tensor)


def _is_applied(frame: FrameType) -> bool:
    """Return whether the frame may call a custom Function."""
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
