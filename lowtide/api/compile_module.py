"""`lt.script(module)` and `lt.freeze`: compile a module at once, by its annotations.

In: an nn.Module. Out: a `ScriptModule`. A frozen module has a private copy of all that it reads:
numbers, bools and strings are constants of its programs, and its tensors are copies. Later changes
of the original have no effect on it.

    lt.script(nn.Linear(3, 4)).weight       the module's own parameter
    lt.freeze(nn.Linear(3, 4).eval())       copies
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any, cast

import torch

from lowtide.api.script_method import ScriptMethod
from lowtide.api.script_module import ScriptModule, entry_points, make_or_get, wrap
from lowtide.errors import CompileError
from lowtide.execute.options import Options
from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.script.module_state import root_of
from lowtide.memory import watching


def script_module(
    module: torch.nn.Module, example_inputs: object, options: Options
) -> ScriptModule:
    """Compiles a module: forward and all methods marked `@lt.export`, by their annotations.

    `example_inputs`: tuples of arguments of forward, or {module: tuples}; each is compiled for too.
    Raises CompileError."""
    if isinstance(module, ScriptModule):
        keep_module_to(module, options)
        return module
    if torch_jit_twins.is_module(module):
        module = torch_jit_twins.module_twin(module)
    if "_modules" not in vars(module):
        raise CompileError(
            f"{type(module).__name__}.__init__ has not called nn.Module's",
            remedy="`super().__init__()` at its beginning",
        )
    made = wrap(module)
    keep_module_to(made, options)
    for name in entry_points(module):
        make_or_get(made, name).compile()
    if isinstance(example_inputs, dict):
        example_inputs = cast("dict[Any, Any]", example_inputs).get(module)
    for args in cast("Any", example_inputs or ()):
        with torch.no_grad():
            cast("Any", made.forward).memory(*(args if isinstance(args, tuple) else (args,)))
    return made


def keep_module_to(module: ScriptModule, options: Options) -> None:
    """Set the options of all methods, also for later calls. Default options change nothing."""
    if options == Options():
        return
    module.__dict__["_lowtide_call_options"] = options
    for method in list(module.__dict__.values()):
        if isinstance(method, ScriptMethod):
            method.set_options(options)


def freeze(
    mod: torch.nn.Module,
    preserved_attrs: Sequence[str] | None = None,
    optimize_numerics: bool = True,
) -> ScriptModule:
    """Return a copy of the module in eval mode, without parameters, compiled for what its
    attributes are.

    `preserved_attrs`: attributes that stay changeable, and methods to compile beside forward.
    Raises CompileError.
    """
    del optimize_numerics  # kernels give what eager PyTorch gives, rounding aside, in any case
    with watching.aside():  # what it holds is its own
        return _frozen(mod, frozenset(preserved_attrs or ()))


def _frozen(mod: torch.nn.Module, preserved: frozenset[str]) -> ScriptModule:
    for name in preserved:
        owner = functools.reduce(getattr, name.split(".")[:-1], mod)
        if not hasattr(owner, name.rpartition(".")[2]):
            problem = f"{type(root_of(mod)).__name__} has no attribute {name!r} to preserve"
            raise CompileError(problem, remedy="names of attributes or methods that it has")
    if vars(mod).get("_lowtide_given"):  # traced or loaded: its programs are what they are
        finished = copy.deepcopy(cast("ScriptModule", mod)).eval()
        _without_parameters(root_of(finished))
        return finished
    root = copy.deepcopy(root_of(mod)).eval()
    _without_parameters(root)
    made = wrap(root, frozen=True, preserved=preserved)
    methods = [n for n in preserved if callable(getattr(type(root), n, None))]
    for name in dict.fromkeys((*entry_points(root), *methods)):
        make_or_get(made, name).compile()
    return made


def _without_parameters(root: torch.nn.Module) -> None:
    """Parameters become buffers, which are not saved as state; one that is shared stays so."""
    made: dict[torch.nn.Parameter, torch.Tensor] = {}
    for module in root.modules():
        own = vars(module)
        for name, parameter in own["_parameters"].items():
            if parameter is not None and parameter not in made:
                made[parameter] = parameter.detach()
            own["_buffers"][name] = None if parameter is None else made[parameter]
            own["_non_persistent_buffers_set"].add(name)
        own["_parameters"].clear()
