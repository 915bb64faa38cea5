"""Hooks into PyTorch: detach tensors that a module or optimizer stores, see those that modes miss.

In: PyTorch. Out: `install`, called when the first scope opens, which hooks into PyTorch:

| what happens inside a scope                             | what the hook does                    |
| ------------------------------------------------------- | ------------------------------------- |
| a parameter or buffer is set, converted or unpickled    | detaches it: the module owns it       |
| an optimizer gets options, steps, or loads its state    | detaches the tensors of its state     |
| `p.grad = g`                                            | detaches g                            |
| a saved-tensor hook packs a tensor                      | detaches the packed value             |
| a transform of a distribution caches a tensor           | detaches the cached tensor            |
| a quasi-random engine draws                             | detaches the engine's state           |
| `swap_tensors(a, b)`                                    | each handle keeps its owner           |
| a DataLoader with workers returns a batch               | the innermost scope owns it           |
| from_numpy, `torch.Tensor(…)`, `Subclass(…)`, vmap, …   | records the new tensor                |
| autograd's engine runs                                  | the user's hooks run inside the scope |

Other containers, such as a user's list or dict, own nothing: `detach_from_dispose_scope` is for
those.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch.autograd.variable import Variable
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import dlpack

from lowtide.cpython import frame_at
from lowtide.memory.scopes import watch
from lowtide.memory.scopes.allocation_sites import unseen
from lowtide.memory.scopes.constructed import constructed, count_references
from lowtide.memory.scopes.disposed import error_of, is_gone
from lowtide.memory.scopes.hidden import hide, hide_with_callees
from lowtide.memory.scopes.tensor_log import LOCK, Bag
from lowtide.memory.scopes.tensor_trees import tensors_in, with_parts
from lowtide.memory.scopes.watch import FRESH_SHARED, Place, owner_of, see, state
from lowtide.torch_private.autograd import (
    RUN_BACKWARD,
    pop_saved_hooks,
    push_saved_hooks,
    top_saved_hooks,
)
from lowtide.torch_private.modes import (
    UNWRAPPERS,
    function_modes,
    insert_function_mode,
    remove_function_mode,
)
from lowtide.torch_private.tensors import NEXT_OF_WORKERS
from lowtide.torch_private.torch_jit import ScriptList

Attach = Callable[[torch.Tensor, Place], None]  # `ownership.attach`
_installed: list[bool] = []
_PACKAGE = __name__.rpartition(".")[0]
# Modules whose functions call the user's functions and layers, which Dynamo should compile.
_CALLERS = (".decorate", ".sequential")
# Functions that make tensors and that PyTorch shows to no mode.
_UNSEEN: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch, ("from_numpy", "frombuffer", "from_dlpack")),
    (dlpack, ("from_dlpack",)),
    *UNWRAPPERS,
    (Variable, ("__new__",)),
)
_is_dynamo_compiling: Any = torch.compiler.is_dynamo_compiling


def keep(value: Any) -> None:
    """Detach every tensor of the nest from its scope, with inner tensors of subclasses."""
    for tensor in with_parts(value):
        detach(tensor)


def detach(tensor: torch.Tensor, only_from: Place | None = None) -> None:
    """Detach a tensor from its scope, or only from the scope `only_from`."""
    if is_gone(tensor):
        return
    with LOCK:
        place = only_from or owner_of(tensor)
        if not isinstance(place, Place) or place is place.thread.loose:
            return
        birth = place.take(tensor)
        if birth is not None:
            place.thread.loose.add(tensor, birth)
            place.thread.detached += 1


def meet(tensor: torch.Tensor) -> Place:
    """Return the place that holds the tensor. One that was never seen is added to the place of the
    thread outside all scopes."""
    place = owner_of(tensor)
    if isinstance(place, Place):
        return place
    loose = state().loose
    loose.counts.created += 1
    loose.add(tensor, unseen(tensor))
    return loose


def install(attach: Attach) -> None:
    """Hook into PyTorch, once for the process. `attach`: `ownership.attach`."""
    if _installed:
        return
    _installed.append(True)
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE) and not name.endswith(_CALLERS):
            hide(module)
    for function in (function_modes, insert_function_mode, remove_function_mode):
        hide_with_callees(function)
    watch.on_grad_set = keep
    watch.on_foreign = _detach_foreign_parts
    nn_module.register_module_parameter_registration_hook(_registered)
    nn_module.register_module_buffer_registration_hook(_registered)
    register_optimizer_step_post_hook(_stepped)
    _after(torch.nn.Module, "__setstate__", _module_changed)
    _after(torch.nn.Module, "_apply", _module_changed)
    _after(torch.optim.Optimizer, "add_param_group", _group_added)
    _after(torch.optim.Optimizer, "__setstate__", _optimizer_restored)
    _after(torch.autograd.graph.saved_tensors_hooks, "__init__", _hooks_made)
    _after(torch.quasirandom.SobolEngine, "draw", _drawn)
    for name in ("__call__", "_inv_call"):
        _after(torch.distributions.Transform, name, _transformed)
    _after(torch.Tensor, "__init__", constructed)
    count_references()
    for owner, names in _UNSEEN:
        for name in names:
            if hasattr(owner, name):
                _seen(owner, name)
    _watched(torch.autograd, RUN_BACKWARD)
    _hooks_open()
    _handing_out(*NEXT_OF_WORKERS, attach)
    _trading(torch.utils, "swap_tensors")


def _registered(module: Any, name: str, value: Any) -> None:
    if is_gone(value):
        raise error_of(value)
    if state().open and value is not None:
        keep(value)


def _detach_foreign_parts(tensor: torch.Tensor, given: set[int]) -> None:
    """Detach the inner tensors of a tensor that scopes do not own, except the op's operands."""
    keep([part for part in with_parts(tensor) if id(part) not in given])


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    _optimizer_restored(optimizer)


def _optimizer_restored(optimizer: Any, *_: Any) -> None:
    if state().open:
        keep([dict(optimizer.state), *map(_options, optimizer.param_groups)])


def _group_added(optimizer: Any, *_: Any) -> None:
    if state().open:
        keep(_options(optimizer.param_groups[-1]))


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Return the group without the optimised tensors: the optimizer does not own them."""
    return {name: value for name, value in group.items() if name != "params"}


def _module_changed(module: Any, *_: Any, **__: Any) -> None:
    if state().open:
        keep([list(module._parameters.values()), list(module._buffers.values())])


def _hooks_made(hooks: Any, *_: Any, **__: Any) -> None:
    """Detach what the hooks pack, even if it is the tensor itself: the graph owns it."""
    hooks.pack_hook = _packing(hooks.pack_hook)


def _hooks_open() -> None:
    """The same for hooks that this thread entered before the first scope."""
    below: list[tuple[Any, Any]] = []
    while (top := top_saved_hooks(True)) is not None:
        below.append(top)
        pop_saved_hooks()
    for pack, unpack in reversed(below):
        push_saved_hooks(_packing(pack), unpack)


def _packing(pack: Any) -> Any:
    if isinstance(pack, torch.fx.GraphModule):  # a compiler inlines it into its graph
        return pack

    def packed(tensor: torch.Tensor) -> Any:
        found = pack(tensor)
        if state().open:
            keep(found)
        return found

    return packed


def _transformed(transform: Any, *_: Any, **__: Any) -> None:
    if state().open and transform._cache_size:
        keep(transform._cached_x_y)


def _drawn(engine: Any, *_: Any, **__: Any) -> None:
    """Detach the engine's state; the caller's scope owns the points."""
    if state().open:
        keep(engine.quasi)


def _after(owner: Any, name: str, then: Any) -> None:
    """Replace the method by one that calls `then` with the arguments after each call."""
    plain = getattr(owner, name)
    # `object.__init__` takes no arguments once it is called by a method that overrides it.
    is_empty = plain is object.__init__

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = None if is_empty else plain(self, *args, **kwargs)
        then(self, *args, **kwargs)
        return result

    setattr(owner, name, method)


def _holding(owner: Any, name: str) -> None:
    """Let C++ refer to `self` while the method calls a function of the user's, which may dispose
    it."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        held = None if is_gone(self) else ScriptList([self])
        try:
            return plain(self, *args, **kwargs)
        finally:
            del held

    setattr(owner, name, method)


def _seen(owner: Any, name: str) -> None:
    """Replace the function by one that records its result."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        if _is_dynamo_compiling():
            return plain(*args, **kwargs)
        made = plain(*args, **kwargs)
        if sys.getrefcount(made) <= FRESH_SHARED:  # else it existed before
            see(made, frame_at(1))
        return made

    setattr(owner, name, function)


def _handing_out(owner: Any, name: str, attach: Attach) -> None:
    """Make the innermost scope the owner of each batch when the loader returns it.

    Batches of several workers arrive in another order. Until it is returned, a batch is the
    loader's.
    """
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def method(self: Any) -> Any:
        batch = plain(self)
        place = watch.current()
        if place is not None:
            for tensor in tensors_in(batch):
                if owner_of(tensor) is None:
                    see(tensor, frame_at(1))
                else:
                    attach(tensor, place)
        return batch

    setattr(owner, name, method)


def _trading(owner: Any, name: str) -> None:
    """PyTorch refuses to swap tensors with weak references: those of scopes are removed before."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def function(t1: Any, t2: Any) -> Any:
        for tensor in (t1, t2):
            if is_gone(tensor):
                raise error_of(tensor)
        with LOCK:
            held = [_taken(tensor) for tensor in (t1, t2)]
            try:
                return plain(t1, t2)
            finally:
                for tensor, (place, code, instruction) in zip((t1, t2), held, strict=True):
                    if place is not None:
                        place.add(tensor, (weakref.ref(tensor), code, instruction))

    setattr(owner, name, function)


def _taken(tensor: torch.Tensor) -> tuple[Bag | None, CodeType | None, int]:
    """Take the tensor from its place; return both with its birth, less the weak reference."""
    place = owner_of(tensor)
    birth = None if place is None else place.take(tensor)
    return (None, None, 0) if birth is None else (place, *birth[1:])


def _watched(owner: Any, name: str) -> None:
    """Replace the function by one in which the mode stays on; PyTorch turns it off in its own
    functions. The innermost scope owns what hooks make, on any thread."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        thread = state()
        if not thread.open:
            return plain(*args, **kwargs)
        holder = object()
        before, thread.lent = thread.lent, watch.current()
        thread.switch_on(holder)
        try:
            return plain(*args, **kwargs)
        finally:
            thread.lent = before
            thread.switch_off(holder)

    setattr(owner, name, function)


# At import: the first scope may open inside a function that these call.
for _name in ("apply_", "map_", "map2_"):
    _holding(torch.Tensor, _name)
