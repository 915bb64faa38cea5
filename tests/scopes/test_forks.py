"""Processes that are forked off while other threads end scopes: DataLoader's workers are."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import lowtide as lt
from lowtide.memory.scopes import scope, tensor_log

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

_CHILD_S = 20.0


def in_a_child(work: str) -> None:
    """Run `work` in children of a process of its own, of which one thread ends scopes; a child that
    does not end, or fails, fails."""
    code = f"""
import gc, os, signal, sys, threading, time
import torch
import lowtide as lt

def end_scopes():
    while True:
        with lt.dispose_scope() as s:
            s.detach([x + 1 for _ in range(300)])
            kept = [x * 2 for _ in range(300)]

x = torch.ones(4)
with lt.dispose_scope():
    x + 1
torch.nn.Linear(2, 2)
threading.Thread(target=end_scopes, daemon=True).start()
time.sleep(0.1)
failed = []
for n in range(40):
    pid = os.fork()
    if pid == 0:
        signal.alarm({int(_CHILD_S)})
        {work}
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        failed.append(status)
    time.sleep(0.005 * (n % 3))
print(failed)
sys.stdout.flush()
os._exit(len(failed))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_child_makes_modules_and_scopes() -> None:
    in_a_child("torch.nn.Linear(2, 2)\n        with lt.dispose_scope(): x + 1")


def test_a_childs_collector_is_on() -> None:
    in_a_child("os._exit(not gc.isenabled())")


def test_the_lock_is_nobodys_in_a_child() -> None:
    """Not even where it could not be waited for."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with tensor_log.LOCK:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(not tensor_log.LOCK.acquire(blocking=False))
        deadline = time.monotonic() + _CHILD_S
        while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == (pid, 0)
    finally:
        done.set()
        holder.join()
    assert tensor_log.LOCK.acquire(timeout=1)
    tensor_log.LOCK.release()


def test_what_a_thread_says_of_the_collector_holds() -> None:
    """While another one ends many tensors: it is paused only where there is no other."""
    seen: list[bool] = []

    class Asked:
        def __del__(self) -> None:
            seen.append(gc.isenabled())

    def end_many() -> None:
        with lt.dispose_scope():
            kept = [torch.ones(1) * 2 for _ in range(10 * scope._MANY)]
            kept[0].asked = Asked()  # pyright: ignore[reportAttributeAccessIssue]

    thread = threading.Thread(target=end_many)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    with lt.dispose_scope():  # what waited goes
        torch.ones(1) * 2
    assert seen == [True]
