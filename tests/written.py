"""Functions of programs that a test has written, in files: the compiler finds the source there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def function_of(text: str, path: Path, name: str) -> Any:
    """The function of that name, once the text is in the file."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, name)
