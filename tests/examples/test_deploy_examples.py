"""The examples of examples/deploy, exported, built and run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import lowtide as lt
from lowtide.runtime import toolchain

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _run(row: list[str], given: bytes = b"") -> bytes:
    made = subprocess.run(row, input=given, capture_output=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def _built(example: str, folder: Path, name: str) -> str:
    program = str(folder / "main")
    _run([
        *toolchain.compiler().command, "-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{folder}",
        str(FOLDER / example / "main.c"), str(folder / f"lib{name}.so"), f"-Wl,-rpath,{folder}",
        "-lm", "-o", program,
    ])  # fmt: skip
    return program


def test_boxes_from_c_and_from_python(tmp_path: Path) -> None:
    example = _module(FOLDER / "c" / "export.py")
    torch.manual_seed(0)
    lt.export_c(lt.script(example.nms), tmp_path, example.example(60), name="boxes")
    program = _built("c", tmp_path, "boxes")
    call = _module(FOLDER / "python" / "call.py")
    library = call.ctypes.CDLL(str(tmp_path / "libboxes.so"))
    for n in (3, 70):
        boxes, scores, threshold = example.example(n)
        rows = torch.cat([boxes, scores[:, None]], 1).tolist()
        text = "\n".join([str(n), *(" ".join(map(repr, row)) for row in rows)])
        expected = example.nms(boxes, scores, threshold).tolist()
        assert [int(x) for x in _run([program], text.encode()).split()] == expected
        assert call.keep(library, boxes.tolist(), scores.tolist()) == expected
    if shutil.which("cmake") is not None:
        build = str(tmp_path / "build")
        _run(["cmake", "-S", str(FOLDER / "c"), "-B", build, f"-DBOXES={tmp_path}"])
        _run(["cmake", "--build", build])
        kept = _run([f"{build}/keep_boxes"], text.encode())
        assert [int(x) for x in kept.split()] == expected
    python = [sys.executable, "-S", str(FOLDER / "python" / "call.py")]
    assert _run([*python, str(tmp_path / "libboxes.so")]).split()


def test_frames_of_sound(tmp_path: Path) -> None:
    example = _module(FOLDER / "audio" / "export.py")
    model = example.model()
    fixed = {"frame.shape[0]": example.FRAME}
    first = (torch.rand(example.FRAME),)
    lt.export_c(lt.script(example.model()), tmp_path, first, name="denoise", sizes=fixed)
    sound = torch.randn(20, example.FRAME)
    raw = _run([_built("audio", tmp_path, "denoise")], sound.numpy().tobytes())
    found = torch.frombuffer(bytearray(raw), dtype=torch.float32).view_as(sound)
    with torch.no_grad():
        expected = torch.stack([model(frame) for frame in sound])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_tokens(tmp_path: Path) -> None:
    example = _module(FOLDER / "gpt2" / "export.py")
    model, token = example.model(), torch.tensor(1)
    lt.export_c(lt.script(example.model()), tmp_path, (token,), name="gpt", weights="file")
    program, weights = _built("gpt2", tmp_path, "gpt"), str(tmp_path / "gpt_weights.bin")
    expected: list[int] = []
    with torch.no_grad():
        for _ in range(30):
            token = model(token)
            expected.append(int(token))
    assert [int(x) for x in _run([program, weights, "1", "30"]).split()] == expected
