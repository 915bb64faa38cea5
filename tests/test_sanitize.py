"""`tests.sanitize` sees what it is for: C that is wrong kills its process, sound C does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lowtide.runtime import toolchain
from tests import sanitize

_TEXT = """
__attribute__((visibility("default"))) long run(long k, double x) {
  int few[8] = {0};
  volatile int *array = few;
  array[k] = 7;
  return (long)x + array[0] + (0x7fffffff + (int)k);
}
"""
_LOAD = """
import ctypes, sys
f = ctypes.CDLL(sys.argv[1]).run
f.argtypes = (ctypes.c_long, ctypes.c_double)
f(int(sys.argv[2]), float(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("sanitizer", "index", "number", "dies"),
    [
        ("undefined", 3, 1.5, False),  # an int wraps around, as it may
        ("undefined", 3, 1e300, True),
        ("address", 3, 1.5, False),
        ("address", 8, 1.5, True),
    ],
)
def test_what_is_wrong_is_seen(
    sanitizer: str, index: int, number: float, dies: bool, tmp_path: Path
):
    if toolchain.compiler().kind == "zig":
        pytest.skip("zig comes without the sanitizers' libraries")
    script = sanitize.compiler_script(tmp_path, "native", sanitizer)
    (tmp_path / "wrong.c").write_text(_TEXT)
    command = [str(script), *toolchain.compiler().flags, "wrong.c", "-o", "wrong.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    environment = sanitize.environment_of(tmp_path, script, sanitizer)
    asked = ["-c", _LOAD, str(tmp_path / "wrong.so"), str(index), str(number)]
    status, text = sanitize.python(asked, environment)
    assert status < 0 if dies else status == 0, text
    assert ("AddressSanitizer" in text) == (dies and sanitizer == "address")
