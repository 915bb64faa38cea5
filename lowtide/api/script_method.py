"""A module's compiled method: a ScriptFunction whose program also reads the module's own state.

In: the module that owns the state, a method's name, its Python function or a compiled Function.
Out: a `ScriptMethod`, called like the method.

    c.forward(x)      reads x's type, then the captured values and guards, then runs the driver
    c.fc.bias = None  the next call compiles a second variant, since a guard differs

Invariant: a `Variant` runs only for the submodules, the types of captured values and the guards'
values that it was compiled for.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from lowtide.api.script_function import ScriptFunction, defaults_of
from lowtide.budget.drivers import make_driver
from lowtide.budget.dry_run import DryRun
from lowtide.diagnostics import debug
from lowtide.diagnostics.tracebacks import entry_point, through_user_lines
from lowtide.diagnostics.warned import warn
from lowtide.errors import CompileError
from lowtide.execute.captures import (
    Reader,
    Values,
    hook_count,
    hooks_on_all,
    stands_for,
    tree,
    type_of_value,
)
from lowtide.execute.demands import demands
from lowtide.execute.differences import attribute, change, guard_change
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options
from lowtide.execute.parametrized import unchanged
from lowtide.frontend.script.module_methods import MethodProgram, compile_method, method_types
from lowtide.frontend.script.module_state import Callees, Guard, is_torch_class
from lowtide.frontend.script.outside import Assumptions, note_program, renewed
from lowtide.frontend.script.programs import ties_of
from lowtide.frontend.script.script import check_syntax
from lowtide.frontend.script.source import decorated, has_own_source
from lowtide.ir import types as t
from lowtide.ir.core import Function
from lowtide.memory import watching
from lowtide.specialise.signature import Ineligible
from lowtide.torch_private import torch_state

_MOST_VARIANTS: Final = 32  # per types of arguments, before they are forgotten
_CONTAINERS: Final = (list, tuple, dict)
_HOLDERS: Final = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
_SIMPLE_TYPES: Final = frozenset(
    {torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device}
)
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_reason = torch_state.reason


@dataclass(slots=True, eq=False)
class Variant:
    """A program, and what must hold of its modules; see the module's text."""

    driver: Driver
    reader: Reader
    kinds: tuple[type, ...]
    facts: Values
    hooks: tuple[Any, ...]
    containers: tuple[tuple[int, t.Type], ...]
    guards: tuple[Guard, ...] = ()
    submodules: tuple[Any, ...] = ()
    tree: Mapping[str, torch.nn.Module] = field(default_factory=dict[str, torch.nn.Module])
    hooks_on_all: tuple[int, ...] = field(default_factory=hooks_on_all)

    def fits_modules(self) -> bool:
        """Return whether the submodules are those for which the program was compiled."""
        find = self.reader.submodules
        return find is None or tuple(find()) == self.submodules

    def is_stale(self) -> bool:
        """Return whether a submodule was replaced, a hook registered, or a known class
        subclassed."""
        is_other = not self.fits_modules() or self.reader.hooks() != self.hooks
        is_other = is_other or hooks_on_all() != self.hooks_on_all
        return is_other or self.driver.is_outdated()

    def is_readable(self) -> bool:
        """Return whether the captured values exist, even if guards fail."""
        try:
            captured, _ = self.reader.read()
        except (KeyError, AttributeError):
            return False
        return tuple(map(type, captured)) == self.kinds

    def values(self) -> Values | None:
        """Return the present captured values; None if the program is not for them."""
        holds = self.driver.holds
        if holds is not None and not holds():
            return None
        find = self.reader.submodules
        if find is not None and tuple(find()) != self.submodules:
            return None
        try:
            captured, facts = self.reader.read()
        except (KeyError, AttributeError):
            return None
        if facts != self.facts or tuple(map(type, captured)) != self.kinds:
            return None
        if all(type_of_value(captured[k], type_) for k, type_ in self.containers):
            return captured
        return None

    def changed_numbers(self) -> set[str]:
        """Return the paths of numbers that are constants of the program and have changed."""
        try:
            facts = self.reader.read()[1]
        except (KeyError, AttributeError):
            return set()
        rows = zip(self.reader.guards, self.facts, facts, strict=True)
        numbers = (int, float)
        return {
            guard.path
            for guard, old, new in rows
            if guard.kind == "value" and type(old) is type(new) in numbers and old != new
        }

    def changed(self) -> tuple[str, ...]:
        """Return what has changed in the modules, as sentences for the user."""
        now = self.reader.tree()
        swapped = [_swapped(path, m, now.get(path)) for path, m in self.tree.items()]
        swapped += [_swapped(path, None, m) for path, m in now.items() if path not in self.tree]
        hooks = zip(self.reader.hooks(), self.hooks, strict=True)
        paths = (g.path for g in self.guards if g.kind == "hooks")
        found = [text for text in swapped if text]
        if not found and not self.fits_modules():
            found.append("the order of the submodules has changed")
        found += [
            f"the hooks of `{attribute(path)}` have changed"
            for path, (now_, before) in zip(paths, hooks, strict=True)
            if now_ != before
        ]
        if hooks_on_all() != self.hooks_on_all:
            found.append("the hooks on all modules have changed")
        if found:
            return tuple(found)
        try:
            captured, facts = self.reader.read()
        except (KeyError, AttributeError) as error:
            return (f"{error.args[0]!r} has been moved or deleted",)
        rows = zip(self.reader.guards, self.facts, facts, strict=True)
        found += [guard_change(guard, old, new) for guard, old, new in rows if old != new]
        types = zip(self.reader.paths, self.kinds, map(type, captured), strict=True)
        found += [
            change(f"type of `{attribute(path)}`", old.__name__, new.__name__)
            for path, old, new in types
            if old is not new
        ]
        found += [
            change(f"type of `{attribute(self.reader.paths[k])}`", type_, t.type_of(captured[k]))
            for k, type_ in self.containers
            if not type_of_value(captured[k], type_)
        ]
        return tuple(found)


def _swapped(path: str, before: object, now: object) -> str:
    """Return a sentence about a submodule that was replaced; "" if it was not."""
    if before is now:
        return ""
    kinds = [type(m).__name__ if m is not None else "not there" for m in (before, now)]
    if kinds[0] == kinds[1]:
        kinds = [f"one {kinds[0]}", f"another {kinds[0]}"]
    return change(f"`{attribute(path)}`", *kinds)


class ScriptMethod(ScriptFunction):
    """A compiled method; see the module's text. Safe to call from many threads."""

    _receivers = 1

    def __init__(
        self,
        root: torch.nn.Module,
        name: str,
        source: FunctionType | Function,
        *,
        frozen: bool = False,
        preserved: frozenset[str] = frozenset(),
    ) -> None:
        self._root = root
        self._name = self.__name__ = name
        self.__module__ = type(root).__module__
        self.__qualname__ = f"{type(root).__qualname__}.{name}"
        self._source = source
        self._recorded_with = tree(root) if isinstance(source, Function) else {}
        self.ties = ties_of(root, source) if isinstance(source, Function) else ()
        self._frozen, self._preserved = frozen, preserved
        if isinstance(source, FunctionType):
            if not is_torch_class(type(root)):
                check_syntax(source)
            self._of_defaults = decorated(source)
            self._defaults = defaults_of(self._of_defaults)
            self._signature = self._read_signature()
            parameters = list(self._signature.parameters.values())
            is_python = not has_own_source(source)
            self._fn = MethodType(source, root) if is_python else self._plainly(name)
            self.__lowtide_function__ = source
            self.__doc__ = source.__doc__
        else:
            parameters = _parameters(source)
            self._signature = inspect.Signature(parameters)
            self._fn = self._plainly(name)
        positional = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        self._arity = len(parameters) if positional else -1
        self._lock = threading.RLock()
        self._latest: dict[tuple[type, ...], Variant] = {}
        self._variants: dict[tuple[t.Type, ...], list[Variant]] = {}
        self._changing: set[str] = set()  # see `Knowledge`
        self._dropped: dict[tuple[t.Type, ...], tuple[str, ...]] = {}  # and why
        self._newest: Variant | None = None
        self._assumed: dict[tuple[t.Type, ...], Assumptions] = {}
        self._hooks_seen = -1
        self.callees: Callees = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the Python method."""
        if _is_compiling():
            return self._python(*args, **kwargs)
        if _reason():
            retry = MethodType(ScriptMethod.__call__, self)
            return watching.call(self.__qualname__, retry, self._python, _reason, args, kwargs)
        values = args
        if kwargs or len(args) != self._arity:
            values = self.bind(args, kwargs)
        variant = self._latest.get(tuple(map(type, values)))
        captured = None
        if variant is not None and RemovableHandle.next_id == self._hooks_seen:
            captured = variant.values()
        if variant is None or captured is None:
            with watching.aside():
                variant, captured = entry_point(self._find)(values)
        try:
            return variant.driver((*values, *captured))
        except Ineligible:
            return self._python(*args, **kwargs)
        except Exception as error:
            raise through_user_lines(error) from error.__cause__

    def _read_signature(self) -> inspect.Signature:
        assert self._of_defaults is not None
        signature = inspect.signature(self._of_defaults, follow_wrapped=False)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<lt.ScriptMethod {type(self._root).__name__}.{self._name}{self._signature}>"

    def __reduce__(self) -> Any:
        raise TypeError("a compiled method cannot be pickled: lt.save(module, file) instead")

    # -- programs --

    def set_options(self, options: Options) -> None:
        """See `Compiled.set_options`."""
        with self._lock:
            self.options = options
            for variant in self.variants():
                before = variant.driver
                variant.driver = made = make_driver(before.function, options, self._shown_name)
                made.leaves, made.holds, made.demands = before.leaves, before.holds, before.demands
                made.differences, made.computed = before.differences, before.computed

    @property
    def _shown_name(self) -> str:
        """The name in errors and warnings: `Net.forward`."""
        return f"{type(self._root).__name__}.{self._name}"

    def compile(self) -> None:
        """Compiles for the types of the annotations; raises CompileError."""
        with self._lock:
            if isinstance(self._source, FunctionType):
                types = tuple(method_types(self._source, ()).values())
                if types not in self._variants:
                    self._make(types)

    @property
    def root(self) -> torch.nn.Module:
        """The module that owns the state."""
        return self._root

    @property
    def source(self) -> FunctionType | Function:
        """The Python function or the IR from which the method is compiled."""
        return self._source

    @property
    def signature(self) -> inspect.Signature:
        """The parameters, without the module."""
        return self._signature

    def variants(self) -> list[Variant]:
        """Return the programs built so far, in order."""
        with self._lock:
            return [v for found in self._variants.values() for v in reversed(found)]

    def variant_for(self, types: tuple[t.Type, ...]) -> Variant:
        """Return the program for arguments of these types and the modules in their present
        state."""
        with self._lock:
            self._forget_stale()
            found = self._variants.get(types, ())
            fitting = (v for v in found if v.values() is not None)
            return next(fitting, None) or self._make(types)

    def anew(self, types: tuple[t.Type, ...], *, as_declared: bool = False) -> Variant:
        """Return a program in which all globals are constants, also those that have changed. It is
        not cached. `as_declared`: attributes that are declared Optional are read as such, whatever
        they are now."""
        assert isinstance(self._source, FunctionType)
        with self._lock:
            program = self._compiled(self._source, types, as_declared=as_declared)
            return self._variant(program.function, program.guards)

    def _find(self, values: Sequence[Any]) -> tuple[Variant, Values]:
        """Return the program for these arguments and the present state of the modules; build it if
        need be."""
        types = tuple(map(self._type_of, self._signature.parameters, values))
        with self._lock:
            self._forget_stale()
            for variant in self._variants.get(types, ()):
                captured = variant.values()
                if captured is not None:
                    break
            else:
                variant = self._make(types)
                captured = variant.reader.read()[0]
            kinds = tuple(map(type, values))
            if _SIMPLE_TYPES.issuperset(kinds) and not variant.driver.leaves:
                self._latest[kinds] = variant
            self._newest = variant
            return variant, captured

    def _forget_stale(self) -> None:
        """Drops programs made before a hook was registered, a submodule replaced, or a subclass
        defined."""
        for types, variants in self._variants.items():
            stale = [v for v in variants if v.is_stale()]
            if stale:
                self._dropped[types] = stale[0].changed()
                variants[:] = [v for v in variants if v not in stale]
                self._latest.clear()
        if self._newest is not None and self._newest not in self.variants():
            self._newest = None
        count = hook_count()
        if count != self._hooks_seen:
            self._latest.clear()
            self._hooks_seen = count

    def _compiled_for(self, types: tuple[t.Type, ...]) -> tuple[str, ...]:
        """Return why a new program is compiled: the differences from the nearest program before it.
        These are in its modules, or else in the types of the arguments."""
        changes = [v.changed() for v in self._variants.get(types, ())]
        changes += [self._dropped[types]] if types in self._dropped else []
        if changes:
            return min(changes, key=len)
        return self._new_types(types, self._variants)

    def _make(self, types: tuple[t.Type, ...]) -> Variant:
        self.check_submodules()
        with unchanged(self._root):
            return self._made(types)

    def check_submodules(self) -> None:
        """Raises CompileError where the program was recorded, or saved, and a submodule is another
        one now: there is no source to compile anew."""
        before = self._recorded_with
        now = tree(self._root) if before else {}
        for path in dict.fromkeys((*before, *now)):
            is_element = isinstance(before.get(path.rpartition(".")[0]), _HOLDERS)
            if path in before and not stands_for(now.get(path), before[path]):
                reason = (
                    f"{self._name}() was recorded or saved with the first, and knows nothing of"
                )
                problem = f"{_swapped(path, before[path], now.get(path))}; {reason} the second"
            elif path not in before and is_element:
                problem = f"`{attribute(path)}` was not there when {self._name}() was recorded"
            else:
                continue
            remedy = "lt.script or lt.trace of the module with the new one in it"
            raise CompileError(problem, remedy=remedy)
        for guard, same in zip(self.ties, Reader(self._root, (), self.ties).read()[1], strict=True):
            if not same:
                reason = f"`{attribute(guard.path)}` is no longer `{attribute(guard.other)}`"
                problem = f"{reason}, as it was when {self._name}() was recorded"
                raise CompileError(problem, remedy="one tensor for both, or lt.trace again")

    def _made(self, types: tuple[t.Type, ...]) -> Variant:
        if isinstance(self._source, Function):
            function, guards, leaves, assumed = self._source, self.ties, (), Assumptions()
        else:
            assumed = renewed(self._assumed.get(types), self.__name__, warn)
            varying = frozenset(assumed.varying)
            for variant in self._variants.get(types, ()):
                self._changing |= variant.changed_numbers()
            try:
                changing = frozenset(self._changing)
                program = self._compiled(self._source, types, varying=varying, changing=changing)
            except CompileError:
                if not self._changing:
                    raise
                program = self._compiled(self._source, types, varying=varying)  # must know them
            function, guards, leaves = program.function, program.guards, program.leaves
            assumed.found = program.assumed.found
            assumed.puts_more = program.assumed.puts_more
            assumed.methods = program.assumed.methods
            self._assumed[types] = assumed
        debug.show("ir", function.name, lambda: str(function))
        differences = self._compiled_for(types)
        variant = self._variant(function, guards)
        variant.driver.differences = assumed.differences or differences
        self._count += 1
        note_program(self._count, self.__name__, assumed, variant.driver.differences, warn)
        variant.driver.leaves, variant.driver.holds = leaves, assumed.holds()
        variant.driver.demands = demands(function, assumed)
        return self._keep(types, variant)

    def _compiled(
        self,
        source: FunctionType,
        types: tuple[t.Type, ...],
        *,
        as_declared: bool = False,
        varying: frozenset[tuple[int, str]] = frozenset(),
        changing: frozenset[str] = frozenset(),
    ) -> MethodProgram:
        program = compile_method(
            self._root,
            self._name,
            source,
            types,
            frozen=self._frozen,
            preserved=self._preserved,
            as_declared=as_declared,
            varying=varying,
            changing=changing,
        )
        for callee, called in program.callees.items():
            self.callees.setdefault(callee, {}).update(called)
        return program

    def _variant(
        self, function: Function, guards: tuple[Guard, ...], driver: Driver | None = None
    ) -> Variant:
        """Return a program bound to the present modules."""
        reader = Reader(self._root, function.captures, guards)
        captured, facts = reader.read()
        params = function.params[len(function.arguments) :]
        driver = driver or make_driver(function, self.options, self._shown_name)
        driver.computed = tuple(len(function.arguments) + k for k in reader.computed)
        return Variant(
            driver=driver,
            reader=reader,
            kinds=tuple(map(type, captured)),
            facts=facts,
            hooks=reader.hooks(),
            containers=tuple(
                (k, p.type) for k, p in enumerate(params) if isinstance(captured[k], _CONTAINERS)
            ),
            guards=guards,
            submodules=tuple(reader.submodules() if reader.submodules is not None else ()),
            tree=reader.tree(),
        )

    def _keep(self, types: tuple[t.Type, ...], variant: Variant) -> Variant:
        variants = self._variants.setdefault(types, [])
        if len(variants) >= _MOST_VARIANTS:
            variants.clear()
        variants.insert(0, variant)
        self._newest = variant
        return variant

    def program(self) -> Function:
        """Return the program that was built last."""
        with self._lock:
            if self._newest is None:
                self.compile()
            if self._newest is None:
                assert isinstance(self._source, Function)
                return self._source
            return self._newest.driver.function

    def resolve(self, values: tuple[Any, ...]) -> tuple[Driver, tuple[Any, ...]]:
        """Return the program for these arguments and the present state of the modules, and all its
        operands."""
        variant, captured = self._find(values)
        return variant.driver, (*values, *captured)

    def _dry_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, DryRun]:
        with unchanged(self._root):
            return super()._dry_run(args, kwargs)


class MethodMaker:
    """Makes a method whose programs come from elsewhere, such as a file."""

    def make(self, root: torch.nn.Module) -> ScriptMethod:
        """Return the method of this module."""
        raise NotImplementedError


def _parameters(function: Function) -> list[inspect.Parameter]:
    """Return the parameters of a program. A default that is no literal is omitted, and with it
    those of all parameters before it."""
    empty = inspect.Parameter.empty
    found: list[inspect.Parameter] = []
    defaults = function.defaults
    for p in reversed(function.arguments):
        defaults = defaults if p.name in defaults else dict[str, object]()
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        found.append(inspect.Parameter(p.name, kind, default=defaults.get(p.name, empty)))
    return found[::-1]
