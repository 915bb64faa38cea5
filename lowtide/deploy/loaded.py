"""What `lt.load` gives: functions and methods whose programs come from a file.

In: programs, and the signature of the Python function they were made from. Out: a `LoadedFunction`,
or a `MethodMaker` that a ScriptModule makes its method with.

Always holds: a program runs only for arguments of its types, and where its guards give what they
gave when it was compiled. What fits no program is an error that tells which there are.
"""

from __future__ import annotations

import enum
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from lowtide.deploy.fitting import NoProgram, Program, Types, fitting, for_types, no_program, takes
from lowtide.deploy.records import entry_of
from lowtide.deploy.rename import values_of
from lowtide.errors import CompileError
from lowtide.frontend.script.module_state import Guard, follow
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Function
from lowtide.ir.types import ClassType, Type, types_in
from lowtide.pipeline.driver import Driver
from lowtide.pipeline.script import ScriptFunction
from lowtide.pipeline.script_method import MethodMaker, ScriptMethod, Variant


def classes_of(c: object) -> dict[str, type]:
    """The classes that a loaded function's or module's programs speak of, by name: to make
    arguments of them. Of two of one name, the first."""
    methods = [m for m in vars(c).values() if isinstance(m, LoadedMethod)]
    programs = [p for m in (c, *methods) for p in getattr(m, "__lowtide_programs__", ())]
    found: dict[str, type] = {}
    for program in programs:
        for value in values_of(program.function.block):
            for part in types_in(value.type):
                name = part.name if isinstance(part, ClassType) else getattr(part, "cls", "")
                cls = python_objects.find(name) if name else None
                if isinstance(cls, type) and entry_of(cls) is not None:
                    found.setdefault(cls.__name__, cls)
    return found


Given = TypeVar("Given", tuple[Any, ...], dict[str, Any])


def adopted(c: object, given: Given) -> Given:
    """The arguments, with members of an enum of the caller's replaced by those of the file's enum
    of the same name and value."""
    classes = classes_of(c)

    def adopt(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            known: Any = classes.get(type(value).__name__)
            member = getattr(known, "__members__", {}).get(value.name)
            if member is None and known is not None and issubclass(known, enum.Flag):
                return known(value.value)
            return member if member is not None and member.value == value.value else value
        return value

    if isinstance(given, dict):
        return {k: adopt(v) for k, v in given.items()}
    return tuple(map(adopt, given))


class LoadedFunction(ScriptFunction):
    """A function out of a file."""

    def __init__(self, name: str, signature: inspect.Signature, programs: list[Program]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__lowtide_programs__ = programs
        self._signature = signature
        self._fn = _plainly(self, name)
        self._arity = _arity(signature)
        self._plain_drivers = {}
        self._drivers = {}
        self._lock = threading.RLock()
        self._made: dict[int, Driver] = {}
        self.__lowtide_saved_programs__ = SavedMethod(name, signature, programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the Python function would return."""
        try:
            return super().__call__(*args, **kwargs)
        except NoProgram:
            return super().__call__(*adopted(self, args), **adopted(self, kwargs))

    def driver(self, args: tuple[Any, ...]) -> Driver:
        """The program for the types of these arguments; raises TypeError."""
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

    def __reduce__(self) -> str:
        raise TypeError("a loaded function cannot be pickled: lt.save(function, file) instead")

    def _function(self) -> Function:
        drivers = self.drivers()
        return drivers[-1].function if drivers else self.__lowtide_programs__[0].function


def _plainly(function: LoadedFunction, name: str) -> Callable[..., Any]:
    """Stands for the Python function: PyTorch runs the program's ops."""

    def run(*args: Any, **kwargs: Any) -> Any:
        values = function.bind(args, kwargs)
        return function.driver(values).run_eager(values)

    run.__name__ = run.__qualname__ = name
    return run


def _arity(signature: inspect.Signature) -> int:
    parameters = signature.parameters.values()
    plain = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return len(parameters) if plain else -1


class LoadedMethod(ScriptMethod):
    """A method out of a file."""

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the Python method would return."""
        try:
            return super().__call__(*args, **kwargs)
        except NoProgram:
            return super().__call__(*adopted(self, args), **adopted(self, kwargs))

    def chosen(self, types: Types) -> Program:
        """The program for these types that fits the modules as they are."""
        found = for_types(self._name, self.__lowtide_programs__, types)
        fits = (p for p in found if self._bound(p) is not None)
        program = next(fits, None)
        if program is None:
            raise self._no_state(found[0])
        return program

    def _make(self, types: Types) -> Variant:
        found = fitting(self.__lowtide_programs__, types)
        if not found:
            raise no_program(self._name, self.__lowtide_programs__, types)
        for program in found:
            variant = self._bound(program)
            if variant is not None:
                return self._keep(types, variant)
        raise self._no_state(found[0])

    def _bound(self, program: Program) -> Variant | None:
        """The program on the modules, if they are as it expects."""
        types = tuple(Guard("type", path) for path in program.reads)
        hooks = tuple(g for g in program.guards if g.kind == "hooks")
        facts = tuple(g for g in program.guards if g.kind != "hooks")
        driver = self._drivers_made.get(id(program))
        try:
            variant = self._variant(program.function, (*facts, *types, *hooks), driver)
            read = [_held(self._root, path) for path in program.reads]
        except (KeyError, AttributeError):
            return None
        self._drivers_made[id(program)] = variant.driver
        variant.facts = (*program.facts, *map(type, read))
        known = [(k, type_) for k, type_ in variant.containers if t.NEVER not in types_in(type_)]
        variant.containers = tuple(known)
        captured = variant.values()
        if captured is None or not all(map(_fits, program.reads.values(), read)):
            return None
        params = program.function.params[len(program.function.arguments) :]
        if not all(map(_fits, (p.type for p in params), captured)):
            return None
        return variant

    def _no_state(self, program: Program) -> CompileError:
        guards = [g for g in program.guards if g.kind != "hooks"]
        known = [_told(g, fact) for g, fact in zip(guards, program.facts, strict=True)]
        known += [f"{path} of type {type_}" for path, type_ in program.reads.items()]
        return CompileError(
            f"{self._name}() was saved for other attributes than the module has now"
            + (f": for {', '.join(known)}" if known else ""),
            program.function.loc,
            "hooks and other modules set before saving; a call in each state before lt.save()",
        )


def _held(root: torch.nn.Module, path: str) -> object:
    owner, name = follow(root, path)
    return getattr(owner, name)


def _fits(type_: Type, value: object) -> bool:
    found = t.type_of(value)
    return isinstance(type_, t.ClassType) or found is None or takes(type_, found)


def _told(guard: Guard, fact: object) -> str:
    match guard.kind:
        case "none":
            return f"{guard.path} {'being' if fact else 'not being'} None"
        case "same":
            return f"{guard.path} being {guard.other}"
        case _:
            return f"{guard.path}={fact!r}"


@dataclass(frozen=True, slots=True)
class SavedMethod(MethodMaker):
    """Makes a `LoadedMethod`; or gives a scripted caller the program to inline."""

    name: str
    signature: inspect.Signature
    programs: list[Program]

    def make(self, root: torch.nn.Module) -> ScriptMethod:
        """The method of this module."""
        return LoadedMethod(root, self.name, self.signature, self.programs)

    def chosen(self, types: Sequence[Type], root: torch.nn.Module | None) -> Program:
        """The program to inline for a call; see `frontend.script.programs.SavedPrograms`."""
        if root is None:  # of a function
            return for_types(self.name, self.programs, tuple(types))[0]
        return LoadedMethod(root, self.name, self.signature, self.programs).chosen(tuple(types))

    def __deepcopy__(self, memo: object) -> SavedMethod:
        return self  # programs never change
