"""How a language program is registered, run plain and compiled, and compared.

    @program(args=lambda: (torch.ones(3), 2))
    def scaled(x: torch.Tensor, n: int) -> torch.Tensor: ...

In: functions and module factories of `tests/language/programs/`, one file a topic. Out: a table of
`Program`s. A program is run as plain Python and under `lowtide.script` on arguments made afresh for
each run. Results, arguments after the call, which containers are the same object, what was printed,
exceptions, and a module's state must then be equal.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import importlib
import inspect
import io
import math
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.language import jit as jit

FOLDER = Path(__file__).parent
LIMIT_S = 60

RTOL, ATOL = 1e-5, 1e-6
# Half precisions, in units of their own last place.
COARSE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


class Mismatch(AssertionError):
    """The compiled program differs from plain Python, or was not refused as it should be."""


class BrokenProgram(Exception):
    """The program itself is wrong: it does not do in plain Python what it declares."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of the program: `method` of a module, or None for the program itself."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    method: str | None = None


def call(*args: Any, **kwargs: Any) -> Call:
    """A call with keyword arguments."""
    return Call(args, kwargs)


def via(method: str, *args: Any, **kwargs: Any) -> Call:
    """A call of a module's `method`."""
    return Call(args, kwargs, method)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One row of the table.

    `raises`: the exception type that at least one call raises, its message compared too.
    `refused`: outside the language; the source line that must be shown ends in `# refused`, or,
    in another function of the file, in `# refused by NAME`.
    `optional`: beyond TorchScript, so that a CompileError is as good as the equal result.
    `torchscript`: whether `torch.jit.script` takes it and gives the same.
    `attributes`: names read from a module after the calls.
    `grad`: also compare the gradients of the sum of the results.
    """

    name: str
    topic: str
    obj: Any
    calls: Callable[[], list[Any]]
    is_module: bool = False
    raises: type[BaseException] | None = None
    refused: bool = False
    optional: bool = False
    torchscript: bool = True
    attributes: tuple[str, ...] = ()
    grad: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.topic}.{self.name}"


PROGRAMS: dict[str, Program] = {}


def _register(
    name: str,
    obj: Any,
    where: str,
    args: Callable[[], tuple[Any, ...]] | None,
    calls: Callable[[], list[Any]] | None,
    options: dict[str, Any],
) -> None:
    if calls is None:
        one = args if args is not None else tuple
        calls = lambda: [one()]  # noqa: E731
    topic = where.rpartition(".")[2]
    made = Program(name=name, topic=topic, obj=obj, calls=calls, **options)
    if made.full_name in PROGRAMS:
        raise BrokenProgram(f"two programs are called {made.full_name}")
    PROGRAMS[made.full_name] = made


def program(
    *,
    args: Callable[[], tuple[Any, ...]] | None = None,
    calls: Callable[[], list[Any]] | None = None,
    **options: Any,
) -> Callable[[Any], Any]:
    """Registers a function under its own name; `args` for one call, `calls` for several."""

    def decorate(function: Any) -> Any:
        _register(function.__name__, function, function.__module__, args, calls, options)
        return function

    return decorate


def module_program(
    *,
    make: Callable[[], nn.Module] | None = None,
    args: Callable[[], tuple[Any, ...]] | None = None,
    calls: Callable[[], list[Any]] | None = None,
    **options: Any,
) -> Callable[[Any], Any]:
    """Registers an `nn.Module` class under its own name; `make` builds one (default: the class)."""

    def decorate(cls: Any) -> Any:
        options["is_module"] = True
        _register(cls.__name__, make or cls, cls.__module__, args, calls, options)
        return cls

    return decorate


def topics() -> list[str]:
    """The topic files, by name."""
    return sorted(path.stem for path in (FOLDER / "programs").glob("[a-z]*.py"))


def load(only: str | None = None) -> list[Program]:
    """Imports the topic files and returns their programs in file order."""
    for topic in topics():
        if only is None or only in topic:
            importlib.import_module(f"tests.language.programs.{topic}")
    return list(PROGRAMS.values())


# ---- running ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Outcome:
    """What one call did: a result or an exception, and what became of its arguments."""

    result: Any
    raised: BaseException | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grads: list[torch.Tensor | None]


@dataclasses.dataclass
class Run:
    """All calls of one run, what they printed, and a module's state afterwards."""

    outcomes: list[Outcome]
    printed: str
    state: dict[str, Any]


def _instance(p: Program) -> Any:
    if not p.is_module:
        return p.obj
    torch.manual_seed(7)
    return p.obj()


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)


def _backward(target: Any, result: Any, call: Call) -> list[torch.Tensor | None]:
    total = sum(t.sum() for t in tensors_of(result) if t.requires_grad)
    if not isinstance(total, torch.Tensor):
        raise Mismatch("no result takes part in autograd")
    total.backward()
    leaves = [t for t in tensors_of([call.args, call.kwargs]) if t.is_leaf and t.requires_grad]
    leaves += list(target.parameters()) if isinstance(target, nn.Module) else []
    return [leaf.grad for leaf in leaves]


def _run(p: Program, target: Any) -> Run:
    outcomes: list[Outcome] = []
    printed = io.StringIO()
    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        for made in p.calls():
            one = made if isinstance(made, Call) else Call(tuple(made), {})
            function = target if one.method is None else getattr(target, one.method)
            result, raised, grads = None, None, []
            try:
                result = function(*one.args, **one.kwargs)
                grads = _backward(target, result, one) if p.grad else []
            except Exception as error:
                if p.raises is None or not isinstance(error, p.raises):
                    raise
                raised = error
            outcomes.append(Outcome(result, raised, one.args, one.kwargs, grads))
        state = dict(target.state_dict()) if p.is_module else {}
        state |= {name: getattr(target, name) for name in p.attributes}
    return Run(outcomes, printed.getvalue(), state)


def run_plain(p: Program) -> Run:
    """The program as ordinary Python."""
    try:
        run = _run(p, _instance(p))
    except Exception as error:
        raise BrokenProgram(f"{p.full_name}: {type(error).__name__}: {error}") from error
    if p.raises is not None and not any(o.raised is not None for o in run.outcomes):
        raise BrokenProgram(f"{p.full_name} raises nothing, but declares {p.raises.__name__}")
    return run


def run_scripted(p: Program) -> Run:
    """The program under `lowtide.script` (or `torch.jit.script`, with `LANGUAGE_JIT=torch`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = jit.source.script(_instance(p))
    return _run(p, compiled)


# ---- comparing --------------------------------------------------------------------------------


def _same_tensor(a: torch.Tensor, b: torch.Tensor, at: str) -> None:
    facts = [(t.dtype, tuple(t.shape), t.device, t.layout) for t in (a, b)]
    if facts[0] != facts[1]:
        raise Mismatch(f"{at}: {facts[1]} in place of {facts[0]}")
    a, b = a.detach(), b.detach()
    if a.is_floating_point() or a.is_complex():
        rtol = COARSE.get(a.dtype, RTOL)
        equal = torch.allclose(b, a, rtol=rtol, atol=max(ATOL, rtol / 100), equal_nan=True)
    else:
        equal = torch.equal(a, b)
    if not equal:
        raise Mismatch(f"{at}: {b} in place of {a}")


def _close(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=RTOL, abs_tol=ATOL)


def _fields(value: Any) -> dict[str, Any]:
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    return {**getattr(value, "__dict__", {}), **{s: getattr(value, s) for s in slots}}


def same(a: Any, b: Any, at: str = "result", seen: frozenset[int] = frozenset()) -> None:
    """Raises `Mismatch` unless `b`, from the compiled program, equals `a`, from plain Python."""
    if id(a) in seen:
        return
    seen |= {id(a)}
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        _same_tensor(a, b, at)
        return
    if isinstance(a, nn.Module) and isinstance(b, nn.Module):
        return
    # A compiled NamedTuple may be of another class with the same name and fields.
    names = [(type(v).__name__, getattr(v, "_fields", None)) for v in (a, b)]
    if names[0] != names[1]:
        raise Mismatch(f"{at}: {b!r} of type {names[1][0]} in place of {a!r}, {names[0][0]}")
    if isinstance(a, float):
        equal = _close(a, b)
    elif isinstance(a, complex):
        equal = _close(a.real, b.real) and _close(a.imag, b.imag)
    elif isinstance(a, list | tuple | collections.deque):
        equal = len(a) == len(b)
        if equal:
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                same(x, y, f"{at}[{i}]", seen)
    elif isinstance(a, dict):
        equal = list(a) == list(b)
        if equal:
            for key in a:
                same(a[key], b[key], f"{at}[{key!r}]", seen)
    elif isinstance(a, enum.Enum) or not hasattr(a, "__dict__") or type(a).__module__ == "torch":
        equal = a == b
    else:
        same(_fields(a), _fields(b), f"vars({at})", seen)
        equal = True
    if not equal:
        raise Mismatch(f"{at}: {b!r} in place of {a!r}")


def _objects(value: Any, found: list[int]) -> list[int]:
    """The identities of the mutable objects in `value`, in the order met."""
    inner: list[Any] = []
    if isinstance(value, list | dict):
        if id(value) in found:
            found.append(id(value))
            return found
        found.append(id(value))
    if isinstance(value, list | tuple):
        inner = list(value)
    elif isinstance(value, dict):
        inner = list(value.values())
    for item in inner:
        _objects(item, found)
    return found


def _shared(value: Any) -> list[int]:
    """Which containers in `value` are the same object, as positions of their first meeting."""
    found = _objects(value, [])
    return [found.index(one) for one in found]


def compare(plain: Run, compiled: Run) -> None:
    """Raises `Mismatch` unless the two runs are equal."""
    for i, (a, b) in enumerate(zip(plain.outcomes, compiled.outcomes, strict=True)):
        at = f"call {i}: " if len(plain.outcomes) > 1 else ""
        if (a.raised is None) != (b.raised is None):
            raise Mismatch(f"{at}raised {b.raised!r} in place of {a.raised!r}")
        if a.raised is not None and (type(a.raised), str(a.raised)) != (
            type(b.raised),
            str(b.raised),
        ):
            raise Mismatch(f"{at}raised {b.raised!r} in place of {a.raised!r}")
        same(a.result, b.result, f"{at}result")
        same(a.args, b.args, f"{at}args afterwards")
        same(a.kwargs, b.kwargs, f"{at}keyword args afterwards")
        same(a.grads, b.grads, f"{at}gradients")
        if _shared([a.result, a.args, a.kwargs]) != _shared([b.result, b.args, b.kwargs]):
            raise Mismatch(f"{at}other lists or dicts are one object than in plain Python")
    if plain.printed != compiled.printed:
        raise Mismatch(f"printed {compiled.printed!r} in place of {plain.printed!r}")
    same(plain.state, compiled.state, "state")


def marked_lines(p: Program) -> list[tuple[int, str]]:
    """Line number and text of the lines of which the error must show one."""
    owner = p.obj if inspect.isfunction(p.obj) or inspect.isclass(p.obj) else type(p.obj())
    lines, first = inspect.getsourcelines(owner)
    every = inspect.getsource(inspect.getmodule(owner)).splitlines()  # type: ignore[arg-type]
    found: list[tuple[int, str]] = []
    for number, line in enumerate(every, 1):
        text, mark, name = line.partition("# refused")
        own = not name.strip() and first <= number < first + len(lines)
        if mark and (own or name.strip() == f"by {p.name}"):
            found.append((number, text.strip()))
    if not found:
        raise BrokenProgram(f"{p.full_name}: no line is marked `# refused`")
    return found


def check_refused(p: Program) -> None:
    """Raises `Mismatch` unless compiling, or the first call, gives a `CompileError` at the line."""
    import lowtide

    marked = marked_lines(p)
    try:
        run_scripted(p)
    except lowtide.CompileError as error:
        shown = str(error)
    except Exception as error:
        raise Mismatch(f"{type(error).__name__} in place of CompileError: {error}") from error
    else:
        raise Mismatch("compiled and ran, but is outside the language")
    if not any(text in shown for _, text in marked):
        raise Mismatch(f"the error does not show `{marked[0][1]}`: {shown}")
    if not any(f":{n}" in shown or f"line {n}" in shown for n, _ in marked):
        raise Mismatch(f"the error does not name line {marked[0][0]}: {shown}")
    if "write instead" not in shown:
        raise Mismatch(f"the error names no remedy: {shown}")


@contextlib.contextmanager
def time_limit(seconds: int = LIMIT_S) -> Iterator[None]:
    """Raises TimeoutError in the main thread after `seconds`."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"ran longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(p: Program) -> str:
    """Runs the program both ways and raises unless they agree; "equal" or "refused"."""
    import lowtide

    with time_limit():
        if p.refused:
            check_refused(p)
            return "refused"
        plain = run_plain(p)
        try:
            compiled = run_scripted(p)
        except lowtide.CompileError:
            if p.optional:
                return "refused"
            raise
        compare(plain, compiled)
        return "equal"
