"""The magics of `%load_ext lowtide`, for notebooks and IPython.

In: IPython's shell. Out: two magics.

    %%lowtide_profile            runs the cell under lt.profile(), and shows the profile
    %%lowtide_profile prof       the same; the profile becomes the variable `prof`
    %lowtide_memory f(x, y)      the predicted peak of a call, which is not run
"""

from __future__ import annotations

import ast
import importlib
from typing import Any, Final

MEMORY: Final = "lowtide_memory"
PROFILE: Final = "lowtide_profile"


def register(shell: Any) -> None:
    """Give the shell the magics."""

    def lowtide_memory(line: str) -> Any:
        """Show the predicted peak of a call, which is not run: %lowtide_memory f(x, y)"""
        return _memory(shell, line)

    def lowtide_profile(line: str, cell: str) -> Any:
        """Profile the cell: %%lowtide_profile, or %%lowtide_profile NAME to keep the profile"""
        return _profile(shell, line, cell)

    # `{…}` in a line is Python, not a variable to expand.
    as_written = importlib.import_module("IPython.core.magic").no_var_expand
    shell.register_magic_function(as_written(lowtide_memory), "line", MEMORY)
    shell.register_magic_function(as_written(lowtide_profile), "cell", PROFILE)


def _memory(shell: Any, line: str) -> Any:
    """Return the MemoryPlan of the call that `line` spells. A function or module that is not
    compiled is compiled first, by `lt.script`."""
    import lowtide as lt

    try:
        call = ast.parse(line.strip(), mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call):
        raise _usage(f"write a call, as in %{MEMORY} f(x, y)")
    names: dict[str, Any] = shell.user_ns
    f, name = eval(_code(call.func), names), ast.unparse(call.func)
    # The arguments are evaluated as in the call, by a call of another function.
    call.func = ast.copy_location(ast.Name("_lowtide_arguments", ast.Load()), call.func)
    args, kwargs = eval(_code(call), {**names, "_lowtide_arguments": lambda *a, **k: (a, k)})
    if not hasattr(f, "memory"):
        if not callable(f):
            raise _usage(f"{name} is a {type(f).__name__}, not a function")
        f = lt.script(f)
    return f.memory(*args, **kwargs)


def _profile(shell: Any, line: str, cell: str) -> Any:
    """Run the cell and return its profile; None if it became a variable."""
    import lowtide as lt

    name = line.strip()
    if name and not name.isidentifier():
        raise _usage(f"{name!r} is not a name; write %%{PROFILE}, or %%{PROFILE} prof")
    with lt.profile() as prof:
        shell.run_cell(cell)  # shows the cell's own errors
    if not name:
        return prof
    shell.user_ns[name] = prof
    return None


def _code(node: ast.expr) -> Any:
    return compile(ast.Expression(node), "<lowtide magic>", "eval")


def _usage(text: str) -> Exception:
    """Return IPython's error for wrong usage, which it shows without a traceback."""
    return importlib.import_module("IPython.core.error").UsageError(text)
