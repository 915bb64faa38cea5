"""The result of `lt.load`: functions and methods whose programs come from a file.

In: programs, and the signature of the Python function they were made from. Out: a `LoadedFunction`,
or a `MethodMaker`, from which a ScriptModule makes its method.

    loaded(x, 2)      runs the program for (Tensor, int); an error lists the programs if none fits

Invariant: a program runs only for arguments of its types, and only if its guards have the values
from when it was compiled.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.api.pickled import reduced
from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_method import MethodMaker, ScriptMethod, Variant
from lowtide.deploy.adopted import adoptable, adopted
from lowtide.deploy.fitting import Program, Types, fitting, for_types, no_program
from lowtide.deploy.states import held, holds, other_state
from lowtide.execute.driver import Driver
from lowtide.frontend.script.module_state import Guard
from lowtide.ir import types as t
from lowtide.ir.core import Function
from lowtide.ir.types import Type


class LoadedFunction(ScriptFunction):
    """A function from a file."""

    def __init__(self, name: str, signature: inspect.Signature, programs: list[Program]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__lowtide_programs__ = programs
        self._signature = signature
        self._fn = self._plainly(name)
        self._arity = _arity(signature)
        self._plain_drivers = {}
        self._drivers = {}
        self._lock = threading.RLock()
        self._made: dict[int, Driver] = {}
        self._classes = adoptable(programs)
        self.__lowtide_saved_programs__ = SavedMethod(name, signature, programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the saved Python function."""
        if self._classes:
            args, kwargs = adopted(args, kwargs, self._classes)
        return super().__call__(*args, **kwargs)

    def driver(self, args: tuple[Any, ...]) -> Driver:
        """Return the driver for the types of these arguments. Raises TypeError."""
        types = tuple(map(self._type_of, self._signature.parameters, args))
        with self._lock:
            driver = self._drivers.get(types)
            if driver is None:
                found = fitting(self.__lowtide_programs__, types)
                if not found:
                    raise no_program(self.__name__, self.__lowtide_programs__, types)
                function = found[0].function
                driver = self._made.get(id(function)) or Driver(function)
                self._drivers[types] = self._made[id(function)] = driver
            return driver

    def __reduce__(self) -> Any:
        return reduced(self)

    def program(self) -> Function:
        """Return the program for the latest argument types, else the first of the file."""
        drivers = self.drivers()
        return drivers[-1].function if drivers else self.__lowtide_programs__[0].function


def _arity(signature: inspect.Signature) -> int:
    parameters = signature.parameters.values()
    plain = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return len(parameters) if plain else -1


class LoadedMethod(ScriptMethod):
    """A method from a file."""

    def __init__(
        self,
        root: torch.nn.Module,
        name: str,
        signature: inspect.Signature,
        programs: list[Program],
    ) -> None:
        super().__init__(root, name, programs[0].function)
        self.__lowtide_programs__ = programs
        self._signature = signature
        self._arity = _arity(signature)
        self._drivers_made: dict[int, Driver] = {}
        self._classes = adoptable(programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the saved Python method."""
        if self._classes:
            args, kwargs = adopted(args, kwargs, self._classes)
        return super().__call__(*args, **kwargs)

    def chosen(self, types: Types, *, as_declared: bool = False) -> Program:
        """Return the program for these types and the present state; see `SavedPrograms`."""
        found = for_types(self._name, self.__lowtide_programs__, types)
        fits = [p for p in found if self._bound(p) is not None]
        if not fits:
            raise other_state(self._name, found, self._root)
        return min(fits, key=_count_of_nones) if as_declared else fits[0]

    def _make(self, types: Types) -> Variant:
        self.check_submodules()
        found = fitting(self.__lowtide_programs__, types)
        if not found:
            raise no_program(self._name, self.__lowtide_programs__, types)
        for program in found:
            variant = self._bound(program)
            if variant is not None:
                return self._keep(types, variant)
        raise other_state(self._name, found, self._root)

    def _bound(self, program: Program) -> Variant | None:
        """Return the program bound to the modules, None if their state does not fit it."""
        types = tuple(Guard("type", path) for path in program.reads)
        reads = program.reads.items()
        fits = tuple(Guard("fits", p, str(x)) for p, x in reads if t.holds_items(x))
        hooks = tuple(g for g in program.guards if g.kind == "hooks")
        facts = tuple(g for g in program.guards if g.kind != "hooks")
        driver = self._drivers_made.get(id(program))
        try:
            variant = self._variant(program.function, (*facts, *types, *fits, *hooks), driver)
            read = [held(self._root, path) for path in program.reads]
        except (KeyError, AttributeError):
            return None
        self._drivers_made[id(program)] = variant.driver
        variant.facts = (*program.facts, *map(type, read), *(True for _ in fits))
        captured = variant.values()
        if captured is None or not all(map(holds, program.reads.values(), read)):
            return None
        params = program.function.params[len(program.function.arguments) :]
        if not all(map(holds, (p.type for p in params), captured)):
            return None
        return variant


def _count_of_nones(program: Program) -> int:
    """Return the number of attributes that must be None for the program."""
    return sum(g.kind == "none" for g in program.guards)


@dataclass(frozen=True, slots=True)
class SavedMethod(MethodMaker):
    """Makes a `LoadedMethod`, or provides the program that a scripted caller inlines."""

    name: str
    signature: inspect.Signature
    programs: list[Program]

    def make(self, root: torch.nn.Module) -> ScriptMethod:
        """Return the method of this module."""
        return LoadedMethod(root, self.name, self.signature, self.programs)

    def chosen(
        self, types: Sequence[Type], root: torch.nn.Module | None, *, as_declared: bool = False
    ) -> Program:
        """Return the program to inline for a call; see `SavedPrograms`."""
        if root is None:  # of a function
            return for_types(self.name, self.programs, tuple(types))[0]
        method = LoadedMethod(root, self.name, self.signature, self.programs)
        return method.chosen(tuple(types), as_declared=as_declared)

    def optional(self, name: str) -> Type | None:
        """Return the Optional type of this attribute in a program; see `SavedPrograms`."""
        for program in self.programs:
            parameters = program.function.params[len(program.function.arguments) :]
            captured = zip(program.function.captures, parameters, strict=True)
            types = {path: p.type for path, p in captured} | dict(program.reads)
            if isinstance(types.get(name), t.OptionalType):
                return types[name]
        return None

    def __deepcopy__(self, memo: object) -> SavedMethod:
        return self  # programs never change
