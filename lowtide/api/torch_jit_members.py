"""Members that torch.jit's functions and modules have: names, schema, text, saving.

In: a compiled object. Out: the member; one without a meaning here raises an AttributeError that
names what to use instead.

    f.name, f.qualified_name, f.schema, f.inlined_graph, f.graph_for(*args), f.code_with_constants
    f.save_to_buffer()                 the bytes of lt.save(f, file)
    m.define("def forward(x): …")      AttributeError: …: write the method in its class, …
"""

from __future__ import annotations

import io
from typing import Any, Final

from lowtide.api import names
from lowtide.api.compiled import Compiled
from lowtide.api.schema import Schema, schema_of
from lowtide.ir.core import Function

INSTEAD: Final = {
    "define": "the method in its class, with `@lt.export` above it: source text is not compiled",
    "get_debug_state": "`explain(*args)`: nothing is profiled, there are no execution plans",
    "_save_for_lite_interpreter": "`save(f)`: there is no lite interpreter",
    "_save_to_buffer_for_lite_interpreter": "`save_to_buffer()`: there is no lite interpreter",
    "_debug_flush_compilation_cache": "nothing: a call with other types compiles by itself",
    "_c": "the compiled object itself: there is no C++ object behind it",
}


def replacement_error(name: str, owner: str) -> AttributeError:
    """Return the error for a member that has no meaning here, to be raised."""
    return AttributeError(f"{owner} has no {name!r}; write instead: {INSTEAD[name]}")


def saved_to_buffer(c: Any, _extra_files: dict[str, Any] | None = None) -> bytes:
    """Return the bytes that `lt.save(c, file, _extra_files)` writes."""
    file = io.BytesIO()
    names.find("save")(c, file, _extra_files)
    return file.getvalue()


class TorchJitMembers(Compiled):
    """See the module's text."""

    __module__: str
    __qualname__: str

    @property
    def name(self) -> str:
        """The function's name."""
        return self.__name__

    @property
    def qualified_name(self) -> str:
        """The name with the module's, and the class's, before it."""
        qualified = getattr(self, "__qualname__", self.__name__)
        return f"{self.__module__}.{qualified}"

    @property
    def schema(self) -> Schema:
        """Parameters, defaults and result, with their types."""
        return schema_of(self.program())

    @property
    def inlined_graph(self) -> Function:
        """The same as `graph`, in which all callees are inlined."""
        return self.program()

    @property
    def code_with_constants(self) -> tuple[str, dict[str, object]]:
        """`code`, and no table: constants stand in the text."""
        return self.code, {}

    def graph_for(self, *args: Any, **kwargs: Any) -> Function:
        """Return the program for these arguments; it is not run."""
        return self.resolve(self.bind(args, kwargs))[0].function

    def save_to_buffer(self, _extra_files: dict[str, Any] | None = None) -> bytes:
        """Return the bytes that `save` writes."""
        return saved_to_buffer(self, _extra_files)

    def __getattr__(self, name: str) -> Any:
        if name in INSTEAD:
            raise replacement_error(
                name, f"the compiled {self.__dict__.get('__name__', 'function')}()"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
