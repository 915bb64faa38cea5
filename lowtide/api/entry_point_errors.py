"""Error text for a method that a traced or loaded module has no program for.

In: a compiled module. Out: the end of a message, which lists the methods that can be called.

    Linear has no forward(): what can be called of Net, which was traced or loaded, is `forward`, …
"""

from __future__ import annotations

from typing import Any, Final

from lowtide.frontend.script.module_state import join_path

_MOST_NAMES: Final = 8


def what_can_be_called(module: Any) -> str:
    """That of the module, or else of the whole that it is a part of; "" where all is compiled."""
    wraps: dict[int, Any] = module.__dict__.get("_lowtide_wraps", {})
    whole = next(iter(wraps.values()), module)  # the first that was made
    for owner, tree in ((module, [("", module)]), (whole, list(whole.named_modules()))):
        given = [(path, n) for path, m in tree for n in m.__dict__.get("_lowtide_given", ())]
        if given:
            shown = [f"`{join_path(path, name)}`" for path, name in given[:_MOST_NAMES]]
            more = ", …" if len(given) > _MOST_NAMES else ""
            return (
                f": what can be called of {owner.original_name}, which was traced or loaded, is "
                f"{', '.join(shown)}{more}; compile another part on its own, and save that"
            )
    return ""
