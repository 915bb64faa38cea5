"""The entry point of `torch.compile(backend="lowtide")`, loaded when PyTorch looks up the name.

Its import changes PyTorch's capture, which takes seconds to load; `lt.compile` does the same.
"""

from lowtide.api.compile import backend
from lowtide.torch_private.graph_capture import break_at_functions

__all__ = ["backend"]

break_at_functions()
