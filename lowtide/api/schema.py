"""`c.schema`: a compiled function's parameters and result, as text and as records.

In: a Function. Out: a `Schema`, read as torch.jit's is.

    str(f.schema)             "f(Tensor x, int n=2) -> Tensor"
    f.schema.arguments[1]     Argument(name="n", type=int, default_value=2, …)

The types are those of the latest call, else those of the annotations.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.core import Function
from lowtide.ir.types import Type

_NO_DEFAULT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One parameter, or the result."""

    name: str
    type: Type
    default: object = _NO_DEFAULT

    def has_default_value(self) -> bool:
        """Return whether a call may omit the argument."""
        return self.default is not _NO_DEFAULT

    @property
    def default_value(self) -> object:
        """The default value; None if there is none."""
        return self.default if self.has_default_value() else None

    def __str__(self) -> str:
        default = f"={self.default!r}" if self.has_default_value() else ""
        return f"{self.type} {self.name}{default}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """See the module's text."""

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]

    def __str__(self) -> str:
        given = ", ".join(map(str, self.arguments))
        return f"{self.name}({given}) -> {', '.join(str(r.type) for r in self.returns)}"


def schema_of(fn: Function) -> Schema:
    """Return the schema of a program, without captured values."""
    return Schema(
        name=fn.name,
        arguments=tuple(
            Argument(name=p.name, type=p.type, default=fn.defaults.get(p.name, _NO_DEFAULT))
            for p in fn.arguments
        ),
        returns=(Argument(name="", type=fn.result),),
    )
