"""What threads that have had scopes leave behind when they end."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import torch

import lowtide as lt
from lowtide.memory.scopes import watch


def test_a_thread_leaves_nothing_of_ours_to_pytorch() -> None:
    """Which would let go of it when Python may have ended: that ends the process."""
    length: Any = torch._C._len_torch_function_stack
    found: list[int] = []

    def work() -> None:
        lt.scope_statistics()
        found.append(length())
        del watch._threads.until_its_end
        found.append(length())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [1, 0]


def test_python_ends_with_threads_that_have_had_scopes() -> None:
    program = """
import threading, torch, lowtide as lt

def work():
    lt.scope_statistics()
    with lt.dispose_scope() as scope:
        scope.detach(torch.ones(2))

for _ in range(30):
    threading.Thread(target=work).start()
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
