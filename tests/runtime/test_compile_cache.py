from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest

from lowtide import config
from lowtide.errors import BackendError
from lowtide.runtime import cache, folder, toolchain


def source_of(value: int) -> str:
    return f'__attribute__((visibility("default"))) int value(void) {{ return {value}; }}'


def counts(before: cache.CacheStats) -> tuple[int, int, int]:
    """Compiles, disk hits and memory hits since `before`."""
    now = cache.stats()
    return (
        now.compiles - before.compiles,
        now.disk_hits - before.disk_hits,
        now.memory_hits - before.memory_hits,
    )


def forget() -> None:
    """As if this were a new process."""
    cache._loaded.clear()


def entry(cache_dir: Path) -> Path:
    (file,) = (cache_dir / "lowtide-1" / "kernels").iterdir()
    return file


def test_compiled_once_then_read_from_disk_then_from_memory(cache_dir: Path):
    before = cache.stats()
    assert cache.load_library(source_of(1), "one").value() == 1
    assert counts(before) == (1, 0, 0)
    assert cache.load_library(source_of(1), "one").value() == 1
    assert counts(before) == (1, 0, 1)
    forget()
    assert cache.load_library(source_of(1), "one").value() == 1
    assert counts(before) == (1, 1, 1)


def test_nobody_else_may_read_or_write(cache_dir: Path):
    cache.load_library(source_of(2), "two")
    assert (cache_dir / "lowtide-1").stat().st_mode & 0o777 == 0o700
    assert cache_dir.stat().st_mode & 0o777 == 0o700
    assert {file.name for file in (cache_dir / "lowtide-1").iterdir()} == {
        "kernels", "locks", "targets",
    }  # fmt: skip


def test_size_and_clear(cache_dir: Path):
    library = cache.load_library(source_of(3), "three")
    held = cache.size()
    assert held.entries == 1
    assert held.entry_bytes > 1000
    assert cache.path() == str(entry(cache_dir).parent)
    assert cache.clear() == held
    assert cache.size().entries == 0
    assert library.value() == 3  # still loaded
    before = cache.stats()
    cache.load_library(source_of(3), "three")
    assert counts(before) == (1, 0, 0)


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "another", "garbage"])
def test_a_damaged_entry_is_built_again(cache_dir: Path, damage: str):
    # Not loaded in this process: to damage what is loaded would damage the process.
    subprocess.run(
        [sys.executable, "-c", LOAD, str(cache_dir), source_of(4)], check=True, timeout=60
    )
    file = entry(cache_dir)
    whole = file.read_bytes()
    if damage == "another":
        cache.load_library(source_of(5), "kernel")
        (other,) = (path for path in file.parent.iterdir() if path != file)
        damaged = other.read_bytes()
    else:
        damaged = {
            "truncated": whole[: len(whole) // 2],
            "empty": b"",
            "flipped": whole[:999] + bytes([whole[999] ^ 1]) + whole[1000:],
            "garbage": b"x" * 5000,
        }[damage]
    file.write_bytes(damaged)
    before = cache.stats()
    assert cache.load_library(source_of(4), "kernel").value() == 4
    assert counts(before) == (1, 0, 0)
    assert file.read_bytes() != damaged


def test_source_that_does_not_compile(cache_dir: Path):
    with pytest.raises(BackendError) as caught:
        cache.load_library("int value(void) { return nonsense; }", "broken")
    fault = caught.value
    assert "nonsense" in fault.compiler_output
    assert Path(fault.source_path).read_text() == "int value(void) { return nonsense; }"
    assert Path(fault.source_path).parent == cache_dir / "lowtide-1" / "failed"
    assert not list((cache_dir / "lowtide-1").glob("build-*"))


LOAD = """
import sys
from lowtide import config
from lowtide.runtime import cache
with config.override(cache_dir=sys.argv[1], compiler=(sys.argv[3:] or [""])[0]):
    cache.load_library(sys.argv[2], "kernel").value()
    print(cache.stats().compiles)
"""


def test_many_processes_at_once_compile_once(cache_dir: Path):
    command = [sys.executable, "-c", LOAD, str(cache_dir), source_of(6)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    compiles = [int(process.communicate(timeout=60)[0]) for process in running]
    assert [process.returncode for process in running] == [0] * 8
    assert sum(compiles) == 1


def test_many_threads_at_once_compile_once(cache_dir: Path):
    before = cache.stats()
    found: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(cache.load_library(source_of(7), "seven").value())
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 8
    assert cache.stats().compiles - before.compiles == 1


def slow_once(tmp_path: Path) -> tuple[Path, Path]:
    """A compiler that hangs the first time it compiles, after touching a file, and its file."""
    real = toolchain.find_command()[0]
    started = tmp_path / "started"
    script = tmp_path / "slow-cc"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *-dM*) exec {real} "$@";; esac\n'
        f'if [ -e {started} ]; then exec {real} "$@"; fi\ntouch {started}\nexec sleep 60\n'
    )
    script.chmod(0o755)
    return script, started


def test_a_killed_compile_blocks_nobody(cache_dir: Path, tmp_path: Path):
    script, started = slow_once(tmp_path)
    command = [sys.executable, "-c", LOAD, str(cache_dir), source_of(8), str(script)]
    victim = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert started.exists()
        victim.kill()  # its compiler lives on
        victim.wait()
        with config.override(compiler=str(script)):
            begin = time.monotonic()
            assert cache.load_library(source_of(8), "kernel").value() == 8
            assert time.monotonic() - begin < 10
    finally:
        os.killpg(victim.pid, signal.SIGKILL)


def test_a_lock_that_is_never_released_costs_time_but_not_the_result(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.1)
    root = folder.trusted()
    assert root is not None
    key = cache._key(source_of(9), toolchain.compiler().identity)
    handle = cache._acquire(root, key)
    assert handle is not None
    try:
        assert cache.load_library(source_of(9), "nine").value() == 9
    finally:
        cache._release(handle)


@pytest.mark.parametrize("place", ["a file", "/proc"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, cache_dir: Path, place: str):
    if place == "a file":
        (tmp_path / "file").write_text("")
        place = str(tmp_path / "file")
    before = cache.stats()
    with config.override(cache_dir=place):
        with pytest.warns(RuntimeWarning, match="LOWTIDE_CACHE_DIR") as caught:
            ten = cache.load_library(source_of(10), "ten")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            eleven = cache.load_library(source_of(11), "eleven")
        assert (ten.value(), eleven.value(), len(caught)) == (10, 11, 1)
        assert cache.path().startswith(tempfile.gettempdir())
    assert counts(before) == (2, 0, 0)


@pytest.mark.parametrize("failing", ["replace", "mkdir", "write"])
def test_a_full_disk(cache_dir: Path, monkeypatch: pytest.MonkeyPatch, failing: str):
    toolchain.compiler()

    def is_there(path: object) -> bool:
        return str(path).startswith(str(cache_dir))

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if failing == "replace":
        real = os.replace
        monkeypatch.setattr(os, "replace", lambda a, b: full() if is_there(b) else real(a, b))
    elif failing == "mkdir":
        real = tempfile.mkdtemp
        monkeypatch.setattr(
            tempfile,
            "mkdtemp",
            lambda prefix, dir=None: full() if is_there(dir) else real(prefix=prefix, dir=dir),
        )
    else:  # the compiler itself runs out of room
        real = toolchain.run

        def run(command: list[str], limit_seconds: float) -> subprocess.CompletedProcess[bytes]:
            if is_there(command[-1]):
                words = b"ld: final link failed: No space left on device"
                return subprocess.CompletedProcess(command, 1, words)
            return real(command, limit_seconds)

        monkeypatch.setattr(toolchain, "run", run)
    with pytest.warns(RuntimeWarning, match="No space left") as caught:
        assert cache.load_library(source_of(12), "twelve").value() == 12
    assert len(caught) == 1
    assert cache.size().entries == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_a_folder_of_another_user_is_not_used(cache_dir: Path):
    folder.trusted()
    for place in (cache_dir, cache_dir / "lowtide-1"):
        os.chown(place, 12345, -1)
        folder._warned.clear()
        with pytest.warns(RuntimeWarning, match="belongs to another user"):
            cache.load_library(source_of(13), "thirteen")
        assert cache.size().entries >= 1
        assert not (cache_dir / "lowtide-1/kernels").exists()
        os.chown(place, os.geteuid(), -1)
        forget()


@pytest.mark.parametrize("inner", ["", "lowtide-1"])
def test_a_folder_that_others_write_to_is_not_used(cache_dir: Path, inner: str):
    folder.trusted()
    (cache_dir / inner).chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write to it"):
        cache.load_library(source_of(14), "fourteen")
    assert not (cache_dir / "lowtide-1/kernels").exists()


def test_a_shared_but_sticky_folder_such_as_tmp_is_used(cache_dir: Path):
    cache_dir.mkdir()
    cache_dir.chmod(0o1777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.load_library(source_of(15), "fifteen")
    assert entry(cache_dir).exists()


def test_a_link_in_place_of_the_folder_is_not_followed(cache_dir: Path, tmp_path: Path):
    cache_dir.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (cache_dir / "lowtide-1").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match="is not a folder"):
        cache.load_library(source_of(16), "sixteen")


def test_eviction_takes_what_was_not_used_for_longest(cache_dir: Path):
    for value in (20, 21, 22):
        cache.load_library(source_of(value), f"v{value}")
    files = {file.name[:3]: file for file in (cache_dir / "lowtide-1/kernels").iterdir()}
    for age, name in ((300, "v20"), (200, "v21"), (100, "v22")):
        os.utime(files[name], (time.time() - age,) * 2)
    forget()
    oldest = cache.load_library(source_of(20), "v20")  # now it is the newest
    held = cache.size()
    assert cache.evict(held.entry_bytes - 1) == files["v22"].stat().st_size
    assert {name for name, file in files.items() if file.exists()} == {"v20", "v22"}
    cache.evict(0)
    assert cache.size().entries == 0
    assert oldest.value() == 20


def test_leftovers_of_killed_compilers_are_removed_later(cache_dir: Path):
    cache.load_library(source_of(23), "v23")
    root = cache_dir / "lowtide-1"
    old, new = root / "build-old", root / "build-new"
    old.mkdir(), new.mkdir()
    (old / "kernel.so").write_text("half")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.evict()
    assert not old.exists()
    assert new.exists()
    assert cache.size().entries == 1


def test_the_private_folder_goes_with_its_process(tmp_path: Path):
    program = (
        "from lowtide.runtime import folder\nimport os\nprint(folder.private())\n"
        "import sys; sys.stdout.flush()\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0); assert os.path.isdir(folder.private())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not os.path.exists(done.stdout.strip())


def test_debug_output_says_what_happened(cache_dir: Path, capsys: pytest.CaptureFixture[str]):
    with config.override(debug=config.Debug(topics=frozenset({"cache"}))):
        cache.load_library(source_of(24), "v24")
        forget()
        cache.load_library(source_of(24), "v24")
    text = capsys.readouterr().err
    assert "v24 compiled in" in text
    assert "v24 found on disk" in text


def test_names_are_only_labels(cache_dir: Path):
    cache.load_library(source_of(25), "../../etc/passwd\0 é")
    assert entry(cache_dir).name.startswith("______etc_passwd")
    assert shutil.which("sh")  # the folder above is as it was
