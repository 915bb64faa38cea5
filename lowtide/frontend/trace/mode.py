"""Sees every PyTorch call of a traced run, and tells the recorder its kind.

In: what `__torch_function__` is handed. Out: the call's own result (sizes with a memory), and ops
in the recorder.

    x.shape, x.size(0)            a size, symbolic            x.dtype, x.dim()   a constant
    bool(x), x.item(), x.numpy()  frozen, with a warning      x.add_(y), out=    mutate
    x[i], x[i] = v                getitem, setitem            anything else      one op

A call is seen at its outermost level only: what `F.multi_head_attention_forward` calls inside is
not. An exception is a function of PyTorch's that is called with what a program cannot hold, such as
a distance: the calls of its body are seen. Invariant: the user's exception goes through unchanged,
and its call is not recorded.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard

import torch
from torch.overrides import TorchFunctionMode

from lowtide.cpython import frame_at
from lowtide.frontend.script.mutation import is_inplace
from lowtide.frontend.trace.encode import has_traced, is_encodable, plain
from lowtide.frontend.trace.function_names import name_of
from lowtide.frontend.trace.places import here
from lowtide.frontend.trace.recorder import Recorder
from lowtide.torch_private.autograd import set_grad_enabled
from lowtide.torch_private.modes import transform, without_override_check
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import version

_SIZES: Final = frozenset(
    {"Tensor.shape", "Tensor.size", "Tensor.numel", "Tensor.nelement", "torch.numel"}
)
_READS: Final = {
    "Tensor.__bool__": "`bool` of a tensor",
    "Tensor.__int__": "`int` of a tensor",
    "Tensor.__float__": "`float` of a tensor",
    "Tensor.__complex__": "`complex` of a tensor",
    "Tensor.__index__": "a tensor used as an index of Python's",
    "Tensor.__contains__": "`in` of a tensor",
    "Tensor.item": "`.item()` of a tensor",
    "Tensor.tolist": "`.tolist()` of a tensor",
    "Tensor.numpy": "`.numpy()` of a tensor",
    "Tensor.__array__": "a tensor made an array",
    "Tensor.is_nonzero": "`is_nonzero` of a tensor",
    "torch.is_nonzero": "`is_nonzero` of a tensor",
    "Tensor.equal": "`equal` of two tensors",
    "torch.equal": "`equal` of two tensors",
    "Tensor.allclose": "`allclose` of two tensors",
    "torch.allclose": "`allclose` of two tensors",
}
_FROM_PYTHON: Final = frozenset(
    {"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.from_numpy", "torch.scalar_tensor"}
)
_HOOKS: Final = ("Tensor.register_hook", "Tensor.register_post_accumulate_grad_hook")
_RESULTLESS: Final = ("Tensor.backward", "torch.autograd.backward", "Tensor.retain_grad")
_ITERATE: Final = torch.Tensor.__iter__.__code__  # pyright: ignore[reportFunctionMemberAccess]
_ENTERS: Final = torch.no_grad.__enter__.__code__
_LEAVES: Final = torch.no_grad.__exit__.__code__


class TraceMode(TorchFunctionMode):
    """See the module's text."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        self._enabled = False  # or the user was warned
        self._no_grad = 0  # how many are entered
        self._transform = transform()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the call, and records it."""
        named = kwargs or {}
        if not self.recorder.is_live():
            return func(*args, **named)
        given = [plain(a) for a in args]
        given_named = {k: plain(v) for k, v in named.items()}
        if func is set_grad_enabled:
            self._grad_is_set(*given)
            return func(*given)
        found = name_of(func)
        if found is not None and _is_opened(func, found[0], [*args, *named.values()]):
            with self:
                return without_override_check(func)(*args, **named)
        is_set = found is not None and found[0] in _SETTERS
        if is_set and _is_its_own(*given):
            return func(*given)  # as `w.data = w.data.to(device)` is where `w` is there
        before = _versions(tensors_in([given, given_named]))
        shapes = [_shape(x) for x, _ in before]
        result = func(*given, **given_named)
        changed = is_set or any(_version(x) != version for x, version in before)
        news = [x for (x, _), old in zip(before, shapes, strict=True) if _shape(x) != old]
        self.recorder.renewed = {id(x) for x in (*news, *(given[:1] if is_set else ()))}
        if found is None:
            if tensors_in(result) or changed:
                raise self._not_recorded(f"`{getattr(func, '__name__', func)}`", "PyTorch's own")
            return result
        source, swapped = found
        operands = [args[1], args[0], *args[2:]] if swapped else list(args)
        return self._record(source, operands, named, result, changed)

    def _record(
        self, source: str, args: list[Any], kwargs: Mapping[str, Any], result: Any, changed: bool
    ) -> Any:
        recorder = self.recorder
        recorder.autocast.note(recorder.builder.block)
        inference = torch.is_inference_mode_enabled() and not self._inference
        is_off = not torch.is_grad_enabled() and (self._grad or self._no_grad > 0)
        recorder.grad_off = inference or is_off
        if source in _READS:
            self._frozen_read(source, args, result)
            return result
        if source == "Tensor.__getitem__":
            recorder.getitem(args[0], args[1], result)
        elif source == "Tensor.__setitem__":
            recorder.setitem(*args)
        elif source in _SIZES and args:
            return recorder.sizes(source, args[0], [*args[1:], *kwargs.values()], result)
        elif source == "Tensor.__deepcopy__":
            recorder.call("Tensor.clone", args[:1], {}, result, mutates=False)
        elif source == "Tensor.__len__":
            self._frozen_len(result)
        elif source in _HOOKS:
            what = "a hook of a tensor inside a traced function is not recorded"
            recorder.warn_frozen(what, here(recorder.stop), "a hook of what the call returns")
        elif tensors_in(result) or changed or source in _RESULTLESS:
            return self._call(source, args, kwargs, result, changed)
        return result

    def _call(
        self, source: str, args: list[Any], kwargs: Mapping[str, Any], result: Any, changed: bool
    ) -> Any:
        """Records a call that makes tensors or writes into some; gives the result of the run."""
        recorder = self.recorder
        if self._transform is None and transform() is not None:
            raise self._not_recorded(
                "a torch.func transform inside a traced function",
                "the transform around the traced function, or the batched operations themselves",
            )
        name = source.rpartition(".")[2]
        inplace = is_inplace(name) and not source.startswith("operator.")
        mutates = changed or inplace or kwargs.get("out") is not None
        data = args[0] if args else kwargs.get("data")
        if source in _FROM_PYTHON and not has_traced(recorder, data) and not _is_scalar(data):
            recorder.constant(result)
            return result
        if source == "Tensor.unbind" and _is_called_by(_ITERATE):
            place = here(recorder.stop)
            recorder.warn_frozen(f"iterating over a tensor is frozen as {len(result)} steps", place)
        fixed = self._is_fixed(source, [*args, *kwargs.values()])
        if not mutates and not recorder.grad_off and any(result is x for x in args):
            result = _another_name(result)
        recorder.call(source, args, kwargs, result, mutates=mutates)
        if fixed:
            recorder.fix(result)
        return result

    def _grad_is_set(self, enabled: bool) -> None:
        """Counts the `no_grad` that are entered in a run that began without gradients. Warns of
        `enable_grad`: for what it makes, a program has the mode of its call. (In a run that began
        with gradients, it is recorded inside `no_grad`, as is the end of that.)"""
        self._no_grad += _is_called_by(_ENTERS) - _is_called_by(_LEAVES)
        is_recorded = self._grad and not torch.is_grad_enabled()
        is_transform = self._transform is None and transform() is not None  # refused by itself
        if enabled and not (is_recorded or is_transform or self._enabled):
            self._enabled = True
            what = "torch.enable_grad inside a traced function is not recorded"
            place = here(self.recorder.stop)
            self.recorder.warn_frozen(what, place, "torch.enable_grad around the call")

    def _is_fixed(self, source: str, operands: list[Any]) -> bool:
        """Return whether the call returns the same each time, because its operands are
        constants."""
        tensors = tensors_in(operands)
        numbers = any(plain(x) is not x for x in operands)
        known = bool(tensors) or source in _FROM_PYTHON
        return known and not numbers and not any(map(self.recorder.depends, tensors))

    def _frozen_read(self, source: str, args: list[Any], result: Any) -> None:
        place = here(self.recorder.stop)
        text = repr(result) if isinstance(result, bool | int | float | complex) else ""
        if any(self.recorder.depends(x) for x in tensors_in(args)):
            value = f" as {text}" if text else ""
            self.recorder.warn_frozen(f"{_READS[source]} is frozen{value}", place)

    def _frozen_len(self, result: Any) -> None:
        place = here(self.recorder.stop)
        if not place.in_library:
            self.recorder.warn_frozen(
                f"`len` of a tensor is frozen as {result}", place, "x.shape[0]"
            )

    def _not_recorded(self, what: str, remedy: str) -> Exception:
        place = here(self.recorder.stop)
        return self.recorder.error(place, f"{what} cannot be recorded", remedy)


_SETTERS: Final = ("Tensor.data.__set__", "Tensor.grad.__set__")  # no version tells of them


def _is_opened(
    func: Callable[..., Any], source: str, operands: list[Any]
) -> TypeGuard[types.FunctionType]:
    """Return whether the body of this function of PyTorch's is recorded instead of the call, since
    a program cannot hold an operand: `F.triplet_margin_with_distance_loss` of a user's distance."""
    is_python = isinstance(func, types.FunctionType) and not source.startswith("Tensor.")
    return is_python and not all(map(is_encodable, operands))


def _is_its_own(x: torch.Tensor, data: torch.Tensor | None) -> bool:
    """Return whether `x.data = data` changes nothing, because the data is that of x."""
    if data is None:
        return False
    facts = [(t.data_ptr(), t.dtype, t.device, t.shape, t.stride()) for t in (x, data)]
    return facts[0] == facts[1]


def _is_scalar(data: Any) -> bool:
    return isinstance(data, bool | int | float | complex)


def _another_name(x: torch.Tensor) -> torch.Tensor:
    """Return a new tensor object over the same memory, if the call returned one of its arguments.
    Tensors are known by identity, and `x.float()` of floats is x itself."""
    return x.view_as(x) if x.layout is torch.strided else x


def _is_called_by(code: types.CodeType) -> bool:
    """Return whether this function of PyTorch's made the call, directly or a few frames above."""
    frame = frame_at(1)
    for _ in range(6):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code is code:
            return True
    return False


def _versions(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    return [(x, _version(x)) for x in tensors]


def _shape(x: torch.Tensor) -> Any:
    """Return the shape and strides, which `x.t_()` changes, and `torch.cat(..., out=x)` if x has
    another size."""
    return None if x.is_nested or x.layout is not torch.strided else (x.shape, x.stride())


def _version(x: torch.Tensor) -> int:
    """Return the number of in-place changes of the tensor; -1 for inference tensors."""
    return -1 if x.is_inference() else version(x)
