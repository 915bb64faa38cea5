"""Op records: for each PyTorch operation that Lowtide knows, its names, operands and meaning.

In: a name under which user code reaches an operation ("torch.sum", "Tensor.sum", "operator.add").
Out: records with the names of its operands, a function that computes it in eager PyTorch, and its
lowering to tensor expressions (`lower`). PyTorch runs an op without `lower`.

    lookup("torch.max")  →  max.other · max · max.dim          the first that accepts them wins
    record.params        →  self: Tensor · dim: int · keepdim: bool = False
    record.eager(x, 1, False)                                  operands in order, one for each param

Invariant: every name in a signature is unique; `params` has one entry for each canonical
operand, and both `eager` and `lower` (after its builder) take exactly these, positionally. The one
exception is "getitem", whose `spec` gives its operands (see `ops.indexing`).
Records by op follow mypyc's `primitives/`; the signatures follow ATen's native_functions.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional

from lowtide.ir.effects import Declared, Effects

Lower = Callable[..., Any]
Eager = Callable[..., Any]
# The same, spelt out so that the parameters of a lambda in a row are typed.
_EagerRow = (
    Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()

# Other keywords under which PyTorch accepts a parameter.
_KEYWORDS: Final = {
    "self": ("input",),
    "dim": ("axis",),
    "keepdim": ("keepdims",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One canonical operand.

    `type`: Tensor, int, float, bool, str, Scalar (int, float or bool), dtype, device, any, a list
    of these ("int[]"; a lone int stands for a list of one), or alternatives ("Tensor|Scalar").
    `variadic`: the elements may come as separate arguments, as in `x.view(2, 3)`.
    """

    name: str
    type: str
    optional: bool = False  # None is accepted
    default: Any = REQUIRED
    keyword_only: bool = False
    variadic: bool = False

    @property
    def types(self) -> tuple[str, ...]:
        """The alternatives: "Tensor|Scalar" gives ("Tensor", "Scalar")."""
        return tuple(self.type.split("|"))

    @property
    def keywords(self) -> tuple[str, ...]:
        """The keywords that name this operand in a call."""
        return (self.name, *_KEYWORDS.get(self.name, ()))

    def __str__(self) -> str:
        star = "*" if self.variadic else ""
        mark = "?" if self.optional else ""
        default = "" if self.default is REQUIRED else f" = {self.default!r}"
        return f"{star}{self.name}: {self.type}{mark}{default}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """One operation; see the module's text.

    `kind` says how it is lowered, not what it may do; "view": in eager PyTorch the result may alias
    the first operand. `effects` says what it may do: a set, or a rule that takes operands."""

    name: str
    params: tuple[Param, ...]
    results: tuple[str, ...]
    sources: tuple[str, ...]
    kind: str
    eager: Eager
    effects: Declared = Effects.RAISES
    result_names: tuple[str, ...] = ()
    lower: Lower | None = None
    doc: str = ""

    def effects_of(self, operands: Sequence[object]) -> Effects:
        """Return what the op may do with these operands. `...`: an operand that is no constant."""
        found = self.effects if isinstance(self.effects, Effects) else self.effects(operands)
        places = [k for k, p in enumerate(self.params) if p.name == "inplace"]
        if any(operands[k] is not False for k in places):
            found |= Effects.WRITES
        return found

    @property
    def signature(self) -> str:
        """The signature as one line, as it was written."""
        parts: list[str] = []
        keyword_only = False
        for p in self.params:
            if p.keyword_only and not keyword_only:
                keyword_only = True
                parts.append("*")
            parts.append(str(p))
        names = self.result_names or ("",) * len(self.results)
        results = [f"{t} {n}".strip() for t, n in zip(self.results, names, strict=True)]
        out = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"({', '.join(parts)}) -> {out}"


@dataclass(slots=True)
class _Registry:
    by_name: dict[str, OpRecord] = field(default_factory=dict[str, OpRecord])
    by_source: dict[str, list[OpRecord]] = field(default_factory=dict[str, list[OpRecord]])


_REGISTRY: Final = _Registry()


def lookup(source: str) -> tuple[OpRecord, ...]:
    """Return the overloads that user code may mean by `source`, in order of preference; () if
    unknown."""
    return tuple(_REGISTRY.by_source.get(_canonical_source(source), ()))


def by_name(name: str) -> OpRecord:
    """Return the record with this canonical name; raises KeyError."""
    return _REGISTRY.by_name[name]


def all_records() -> tuple[OpRecord, ...]:
    """Return every record, in order of registration."""
    return tuple(_REGISTRY.by_name.values())


def register(record: OpRecord) -> OpRecord:
    """Adds a record; a second record of the same name is an internal fault."""
    if record.name in _REGISTRY.by_name:
        raise ValueError(f"op {record.name!r} is registered twice")
    _REGISTRY.by_name[record.name] = record
    for source in record.sources:
        _REGISTRY.by_source.setdefault(source, []).append(record)
    return record


def op(
    name: str,
    signature: str,
    sources: str,
    *,
    kind: str,
    effects: Declared = Effects.RAISES,
    eager: str | _EagerRow | None = None,
) -> Callable[[Lower], Lower]:
    """Registers the decorated function as the `lower` of a new op.

    `sources` are separated by blanks; `eager` is a source too, or a callable of the canonical
    operands; by default the first source. `effects`: by default it may raise, and no more.
    """

    def decorate(lower: Lower) -> Lower:
        add_op(
            name,
            signature,
            sources,
            kind=kind,
            effects=effects,
            eager=eager,
            lower=lower,
            doc=lower.__doc__,
        )
        return lower

    return decorate


def add_op(
    name: str,
    signature: str,
    sources: str,
    *,
    kind: str,
    effects: Declared = Effects.RAISES,
    eager: str | _EagerRow | None = None,
    lower: Lower | None = None,
    doc: str | None = None,
) -> OpRecord:
    """Registers one op from a row of a table; see `op`."""
    params, results, result_names = parse_signature(signature)
    names = tuple(sources.split())
    if eager is None or isinstance(eager, str):
        eager = _calling(eager or names[0], params)
    return register(
        OpRecord(
            name=name,
            params=params,
            results=results,
            result_names=result_names,
            sources=names,
            kind=kind,
            effects=effects,
            eager=eager,
            lower=lower,
            doc=(doc or "").strip(),
        )
    )


def parse_signature(text: str) -> tuple[tuple[Param, ...], tuple[str, ...], tuple[str, ...]]:
    """Parse a signature: "(self: Tensor, dim: int? = None) -> Tensor". Return parameters, result
    types and result names."""
    match = re.fullmatch(r"\s*\((.*)\)\s*->\s*(.+?)\s*", text)
    if match is None:
        raise ValueError(f"not a signature: {text}")
    params: list[Param] = []
    keyword_only = False
    for part in _split(match[1]):
        if part == "*":
            keyword_only = True
        else:
            params.append(_parse_param(part, keyword_only))
    results: list[str] = []
    names: list[str] = []
    result = match[2]
    for part in _split(result[1:-1]) if result.startswith("(") else [result]:
        words = part.split()
        results.append(words[0])
        names.extend(words[1:])
    return tuple(params), tuple(results), tuple(names)


def _parse_param(text: str, keyword_only: bool) -> Param:
    match = re.fullmatch(r"(\*?)(\w+)\s*:\s*([\w\[\]|]+)(\??)\s*(?:=\s*(.+))?", text)
    if match is None:
        raise ValueError(f"not a parameter: {text}")
    star, name, kind, optional, default = match.groups()
    return Param(
        name=name,
        type=kind,
        optional=bool(optional),
        default=_parse_default(default),
        keyword_only=keyword_only,
        variadic=bool(star),
    )


def _parse_default(text: str | None) -> Any:
    if text is None:
        return REQUIRED
    words: dict[str, Any] = {"None": None, "True": True, "False": False, "()": ()}
    if text in words:
        return words[text]
    if text[0] in "'\"":
        return text[1:-1]
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _split(text: str) -> list[str]:
    """Splits at commas outside brackets."""
    return [part for part in re.split(r",\s*(?![^(\[]*[)\]])", text.strip()) if part]


_ROOTS: Final[dict[str, Any]] = {
    "torch": torch,
    "Tensor": torch.Tensor,
    "F": torch.nn.functional,
    "operator": operator,
}


def resolve(source: str) -> Any:
    """Return the Python object behind a source; a property such as "Tensor.shape" gives its
    descriptor.

    None where this PyTorch lacks it.
    """
    root, *path = source.split(".")
    found: Any = _ROOTS[root]
    for part in path:
        found = getattr(found, part, None)
    return found


def _canonical_source(source: str) -> str:
    for long, short in (("torch.nn.functional.", "F."), ("torch.Tensor.", "Tensor.")):
        if source.startswith(long):
            return short + source.removeprefix(long)
    return source


def _calling(source: str, params: Sequence[Param]) -> Eager:
    """Return an eager function of canonical operands; trailing ones that equal their default are
    left out, since not every PyTorch overload accepts its own defaults spelled out."""
    found = resolve(source)
    if found is None:
        raise ValueError(f"{source} is not in this PyTorch")

    if not callable(found):  # a property
        return lambda *operands: found.__get__(operands[0])
    needs = (p.default is REQUIRED and not p.keyword_only for p in params)
    first = sum(1 for _ in itertools.takewhile(bool, needs))
    rest = params[first:]

    def call(*operands: Any) -> Any:
        positional: list[Any] = [*operands[:first]]
        keywords: dict[str, Any] = {}
        pending: list[Any] = []
        for param, value in zip(rest, operands[first:], strict=True):
            is_default = param.default is not REQUIRED and _same(value, param.default)
            if param.keyword_only:
                if not is_default:
                    keywords[param.name] = value
            elif is_default:
                pending.append(value)
            else:
                positional.extend(pending)
                positional.append(value)
                pending.clear()
        return found(*positional, **keywords)

    return call


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default
