"""Archives of torch.jit.save, made by today's torch.jit, and how `lt.load` is compared with it.

    case = Case("relu", lambda: torch.jit.script(relu), lambda: [(torch.randn(3),)])
    check(case)       torch.jit.load and lt.load of its bytes: the same results, gradients, state

In: what makes a scripted function or module, and what makes arguments. Out: nothing, or Differs.
"""

from __future__ import annotations

import contextlib
import enum
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import lowtide as lt
from tests.language.support import Call, tensors_of

RTOL, ATOL = 1e-5, 1e-6
COARSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Differs(AssertionError):
    """lt.load gives something else than torch.jit.load."""


class NoArchive(Exception):
    """torch.jit itself does not take the program."""


@dataclass(frozen=True)
class Case:
    """`make`: a scripted or traced function or module. `calls`: arguments of each call, made
    afresh. `attributes`: read from the module after the calls. `grad`: compare gradients, too.
    `values`: False where the results are random and only their form is compared."""

    name: str
    make: Callable[[], Any]
    calls: Callable[[], Sequence[Any]]
    attributes: tuple[str, ...] = ()
    grad: bool = False
    values: bool = True


@dataclass
class Run:
    """What the calls of one program did."""

    results: list[Any] = field(default_factory=list)
    raised: list[tuple[str, str] | None] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    grads: list[Any] = field(default_factory=list)
    printed: str = ""
    warned: list[str] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


def saved(made: Any) -> bytes:
    """Return the archive of a scripted function or module."""
    into = io.BytesIO()
    torch.jit.save(made, into)
    return into.getvalue()


def check(case: Case) -> None:
    """Raise Differs, or what lt.load raises, unless both give the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            raw = saved(case.make())
            with _seeded():
                expected = run(torch.jit.load(io.BytesIO(raw)), case)
        except Exception as error:
            raise NoArchive(f"{type(error).__name__}: {error}") from error
        loaded = lt.load(io.BytesIO(raw))
        with _seeded():
            found = run(loaded, case)
    compare(expected, found, case.values)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def run(target: Any, case: Case) -> Run:
    """Return what the calls do."""
    done = Run()
    out = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        for made in case.calls():
            one = made if isinstance(made, Call) else Call(tuple(made), {})
            function = target if one.method is None else getattr(target, one.method)
            _call(function, one, target, done, case)
    done.printed = out.getvalue()
    done.warned = [str(w.message) for w in warned if w.category is UserWarning]
    done.state = {k: v.detach() for k, v in target.state_dict().items()}
    for name in case.attributes:
        done.state[name] = getattr(target, name)
    return done


def _call(function: Any, one: Call, target: Any, done: Run, case: Case) -> None:
    result, raised, grads = None, None, []
    given = list(tensors_of([one.args, one.kwargs]))
    try:
        result = function(*one.args, **one.kwargs)
        if case.grad:
            grads = _grads(result, one, target)
    except lt.CompileError:
        raise
    except Exception as error:
        raised = _plain(error)
    done.results.append(_as_it_is(result))
    done.raised.append(raised)
    done.arguments.append(given)
    done.grads.append(grads)


def _as_it_is(value: Any) -> Any:
    """Return the containers as they are now, which the module may change later."""
    if isinstance(value, list):
        return [_as_it_is(v) for v in value]
    if type(value) is tuple:
        return tuple(map(_as_it_is, value))
    return {k: _as_it_is(v) for k, v in value.items()} if type(value) is dict else value


_RAISED = re.compile(r"\n(?=(?:[\w.]+(?:Error|Exception|Warning|Iteration)|[\w.]+\.\w+): )")


def _plain(error: Exception) -> tuple[str, str]:
    """The class and the message, without the interpreter's traceback."""
    text, kind = str(error), type(error).__name__
    if kind == "RuntimeError" and re.search(r"is missing value|Expected a value|Cast error", text):
        raise NoArchive(text) from error
    if "TorchScript" in text[:200] and "Traceback" in text:
        named = re.match(r"([\w.]*\.)?(\w+):\s?(.*)", _RAISED.split(text)[-1].strip(), re.DOTALL)
        if named:
            module, kind, text = named.groups()
            if kind == "RuntimeError" and text.startswith("AssertionError:"):
                kind, text = "AssertionError", text.removeprefix("AssertionError:")
            elif module not in (None, "builtins."):  # a class of the author's
                kind, text = "RuntimeError", f"{module}{kind}: {text}"
    return kind, text.strip().strip("'")


# What Python raises where TorchScript's interpreter has a RuntimeError of its own words.
_OF_PYTHON = (
    "IndexError",
    "KeyError",
    "ValueError",
    "ZeroDivisionError",
    "TypeError",
    "NotImplementedError",
)


def _raised_alike(a: tuple[str, str] | None, b: tuple[str, str] | None) -> bool:
    if a is None or b is None:
        return a is b
    return a == b or (a[0] == "RuntimeError" and b[0] in _OF_PYTHON)


def _grads(result: Any, one: Call, target: Any) -> list[Any]:
    wanted = [t for t in tensors_of(result) if t.requires_grad]
    if not wanted:
        return []
    total = sum((t.abs() if t.is_complex() else t).double().sum() for t in wanted)
    total.backward()
    leaves = [t for t in tensors_of([one.args, one.kwargs]) if t.is_leaf and t.requires_grad]
    if isinstance(target, torch.nn.Module):
        leaves += list(target.parameters())
    return [leaf.grad for leaf in leaves]


# ---- comparing ----------------------------------------------------------------------------------


def compare(a: Run, b: Run, values: bool = True) -> None:
    """Raise Differs unless the runs are equal."""
    for k, (x, y) in enumerate(zip(a.raised, b.raised, strict=True)):
        if not _raised_alike(x, y):
            raise Differs(f"call {k} raised {y} in place of {x}")
    same(a.results, b.results, "results", values)
    same(a.arguments, b.arguments, "arguments", values)
    same(a.grads, b.grads, "gradients", values, _largest(a.grads))
    same(a.state, b.state, "state", values)
    if a.printed != b.printed:
        raise Differs(f"printed {b.printed!r} in place of {a.printed!r}")


def _largest(grads: Any) -> float:
    """Return the largest gradient: those of sums that vanish are as exact as others."""
    sizes = [float(g.abs().max()) for g in tensors_of(grads) if g.numel() and not g.is_sparse]
    return max((s for s in sizes if math.isfinite(s)), default=1.0)


def same(a: Any, b: Any, at: str, values: bool = True, scale: float = 1.0) -> None:
    """Raise Differs unless b equals a. `scale`: of which errors are parts."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        _same_tensor(a, b, at, values, scale)
        return
    if isinstance(a, torch.nn.Module) or type(a).__name__.startswith(("RecursiveScript", "Script")):
        return
    if isinstance(a, tuple) and isinstance(b, tuple):
        if getattr(a, "_fields", None) != getattr(b, "_fields", None):
            raise Differs(f"{at}: {b!r} in place of {a!r}")
    elif type(a).__name__ != type(b).__name__:
        raise Differs(f"{at}: {b!r} ({type(b).__name__}) in place of {a!r} ({type(a).__name__})")
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            raise Differs(f"{at}: {len(b)} in place of {len(a)} items: {b!r} / {a!r}")
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{at}[{k}]", values, scale)
    elif isinstance(a, dict):
        if list(a) != list(b):
            raise Differs(f"{at}: keys {list(b)} in place of {list(a)}")
        for key in a:
            same(a[key], b[key], f"{at}[{key!r}]", values, scale)
    elif isinstance(a, float | complex):
        if values and not _close(a, b):
            raise Differs(f"{at}: {b} in place of {a}")
    elif isinstance(a, int | str | bool | torch.device | torch.dtype | None):
        if a != b and values:
            raise Differs(f"{at}: {b!r} in place of {a!r}")
    elif isinstance(a, enum.Enum) and (a.name, a.value) != (b.name, b.value):
        raise Differs(f"{at}: {b!r} in place of {a!r}")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, complex):
        return _close(a.real, b.real) and _close(a.imag, b.imag)
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=RTOL, abs_tol=ATOL)


def _same_tensor(
    a: torch.Tensor, b: torch.Tensor, at: str, values: bool, scale: float = 1.0
) -> None:
    facts = [(t.dtype, tuple(t.shape), t.layout, t.requires_grad, t.is_quantized) for t in (a, b)]
    if facts[0] != facts[1]:
        raise Differs(f"{at}: {facts[1]} in place of {facts[0]}")
    if a.layout == torch.strided and a.numel() > 1 and not _same_strides(a, b):
        raise Differs(f"{at}: strides {b.stride()} in place of {a.stride()} of {tuple(a.shape)}")
    if not values:
        return
    a, b = a.detach(), b.detach()
    if a.is_quantized:
        a, b = a.dequantize(), b.dequantize()
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if (a.dtype.is_floating_point or a.dtype.is_complex) and a.dtype.itemsize > 1:
        rtol = COARSE.get(a.dtype, RTOL)
        own = float(a[a.isfinite()].abs().max()) if a.isfinite().any() else 0.0
        atol = max(ATOL, rtol / 100) * max(1.0, scale, own)
        equal = torch.allclose(b, a, rtol=rtol, atol=atol, equal_nan=True)
    elif a.dtype.is_floating_point:
        equal = torch.equal(a.float(), b.float())
    else:
        equal = torch.equal(a, b)
    if not equal:
        raise Differs(f"{at}: {b} in place of {a}")


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    rows = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (a, b)]
    return rows[0] == rows[1]
