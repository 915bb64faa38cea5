"""Damaged files: whatever is changed, loading gives a LoadError or something that behaves.

    python -m tests.deploy.fuzz --seconds 60 --seed 3

In: a seed. Out: the files that made anything else happen, kept under tests/deploy/corpus, where
`test_fuzz` reads them ever after. `--corpus` writes the fixed files of that folder anew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import random
import re
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lowtide as lt
from tests.deploy.forge import Small, function_file, module_file, packed, parts_of

CORPUS = Path(__file__).parent / "corpus"
WORDS = [
    *(
        "torch.load",
        "Tensor.tofile",
        "__class__",
        "{0.__class__}",
        "open",
        "-1",
        "1e999",
        "%x",
        "''",
    ),
    *(
        "Any",
        "Tensor",
        "List[",
        "call_torch",
        "py.call",
        "attr.get",
        "return",
        "loop",
        "if",
        "raise",
    ),
    *(
        "9223372036854775807",
        "None",
        "True",
        "[]",
        "{}",
        "(",
        ")",
        "}",
        "@ ''",
        "\u2028",
        "../",
        "\0",
    ),
]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**62, 1.5, "", "x", "__class__", "torch.load", "fc.weight", [], {}),
    *([[]], [1, 2], {"tensor": 0}, {"object": 0}, {"literal": "torch.load"}, {"tuple": [{}]}),
    *({"enum": "Small", "member": "x"}, {"named": "Linear", "items": []}, "Linear", "record"),
]


Mutation = Callable[[bytes, random.Random], bytes]


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Some bytes are others."""
    raw = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def cut(data: bytes, rng: random.Random) -> bytes:
    """A piece is missing, or there twice."""
    begin, end = sorted(rng.randrange(len(data)) for _ in range(2))
    if rng.random() < 0.3:
        return data[:begin]
    return data[:begin] + data[end:] if rng.random() < 0.5 else data[:end] + data[begin:]


def _json(data: bytes, rng: random.Random) -> bytes:
    parts = parts_of(data)
    manifest: Any = json.loads(parts["lowtide.json"])
    for _ in range(rng.choice([1, 1, 2, 4])):
        _edit(manifest, rng)
    parts["lowtide.json"] = json.dumps(manifest).encode()
    return packed(parts)


def _edit(node: Any, rng: random.Random) -> None:
    """Goes down at random, and changes what is there."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.85:
            node = node[key]
            continue
        other = rng.choice(keys)
        match rng.randrange(4):
            case 0:
                del node[key]
            case 1:
                node[key] = node[other]
            case _:
                node[key] = rng.choice(VALUES)
        return


def _text(data: bytes, rng: random.Random) -> bytes:
    parts = parts_of(data)
    name = rng.choice([n for n in parts if n.endswith(".ir")])
    lines = parts[name].decode().split("\n")
    for _ in range(rng.choice([1, 1, 2, 3])):
        k = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                del lines[k]
            case 1:
                lines.insert(k, rng.choice(lines))
            case 2:
                lines[k] = lines[k].replace("  ", " " * rng.choice([0, 1, 4]), 1)
            case _:
                lines[k] = _reworded(lines[k], rng)
        lines = lines or [""]
    parts[name] = "\n".join(lines).encode()
    return packed(parts)


def _reworded(line: str, rng: random.Random) -> str:
    words = re.split(r"([\w.]+|\W)", line)
    if words:
        words[rng.randrange(len(words))] = rng.choice([*WORDS, *words])
    return "".join(words)


def _state(data: bytes, rng: random.Random) -> bytes:
    parts = parts_of(data)
    parts["state.safetensors"] = rng.choice([flipped, cut])(parts["state.safetensors"], rng)
    return packed(parts)


def _entries(data: bytes, rng: random.Random) -> bytes:
    parts = parts_of(data)
    a, b = rng.choice(list(parts)), rng.choice(list(parts))
    parts[a], parts[b] = parts[b], parts[a]
    if rng.random() < 0.3:
        parts.pop(a)
    return packed(parts)


def _repacked(change: Mutation) -> Any:
    def inner(data: bytes, rng: random.Random) -> bytes:
        parts = parts_of(data)
        name = rng.choice(list(parts))
        parts[name] = change(parts[name], rng) if parts[name] else b"x"
        return packed(parts)

    return inner


MUTATIONS: list[Mutation] = [
    *(flipped, cut, _json, _json, _json, _text, _text, _text, _state, _entries),
    *(_repacked(flipped), _repacked(cut)),
]


class Busy(nn.Module):
    """Ops, values and classes of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.names = ["a"]
        self.last = torch.zeros(2)
        self.register_buffer("t", self.fc.weight.detach().t())

    def forward(self, x: Tensor, n: int = 2) -> Tensor:
        y = x
        for i in range(n):
            if i % 2 == 0:
                y = self.fc(y)
            else:
                y = y @ self.t
            self.names.append(f"{i:03d}")
        if y.dim() != 2:
            raise ValueError("2D is expected")
        y[0] = self.last
        self.last = y[0].detach()
        return y.cumsum(0) + len(self.names)


class Stacked(nn.Module):
    """Parts that can be called, two of them alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.part = Small()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.part(x)


def seeds() -> list[bytes]:
    """The valid files that are damaged."""
    from tests.deploy.test_save_load import make

    torch.manual_seed(0)
    found = [function_file(), module_file()]
    for obj in (Busy(), make, Stacked()):
        file = io.BytesIO()
        lt.save(lt.script(obj), file)
        found.append(file.getvalue())
    return found


def damaged(data: bytes, rng: random.Random, mutations: Sequence[Mutation] = MUTATIONS) -> bytes:
    """The file after one to three mutations."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        with contextlib.suppress(Exception):  # it may no longer be a zip
            data = rng.choice(mutations)(data, rng) or b""
    return data


def fault(data: bytes) -> str:
    """What is wrong with how a file loads; "" if it is refused, or gives what can be asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            m: Any = lt.load(io.BytesIO(data))
        except lt.LoadError as error:
            return "" if 10 < len(str(error)) < 2000 else f"message of {len(str(error))} characters"
        except BaseException as error:
            return f"{type(error).__name__}: {error}"[:2000]
    try:
        _asked(m)
    except BaseException as error:
        return f"after loading: {type(error).__name__}: {error}"[:2000]
    return ""


def _asked(m: Any) -> None:
    """Everything that needs no run: a changed program may compute, or raise, anything."""
    repr(m)
    if isinstance(m, nn.Module):
        m.state_dict()
        [p.sum() for p in m.parameters() if p.numel() < 1 << 20]
        for part in m.modules():
            with contextlib.suppress(NotImplementedError):
                repr(part.forward)
    file = io.BytesIO()
    with contextlib.suppress(lt.CompileError):
        lt.save(m, file)
        file.seek(0)
        lt.load(file)


def run(seconds: float, seed: int, most: int = 1 << 60) -> tuple[int, dict[str, bytes]]:
    """How many files were tried, and the first file of each fault."""
    rng = random.Random(seed)
    files, found, count = seeds(), dict[str, bytes](), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and count < most:
        data = damaged(rng.choice(files), rng)
        why = fault(data)
        if why:
            found.setdefault(re.sub(r"\d+", "0", why)[:120], data)
        count += 1
    return count, found


def _of_no_machine(data: bytes) -> bytes:
    """The file without the folders that its sources lie in."""
    folders = [str(Path(module.__file__ or "").parents[1]) for module in (lt, torch)]
    parts = parts_of(data)
    for name in parts:
        if name.endswith((".json", ".ir")):
            for folder in folders:
                parts[name] = parts[name].replace(folder.encode(), b"")
    return packed(parts, zipfile.ZIP_DEFLATED)


def write_corpus() -> None:
    """Valid files, and each mutation once for each of them."""
    for k, data in enumerate(map(_of_no_machine, seeds())):
        (CORPUS / f"valid-{k}.lt").write_bytes(data)
        for n, change in enumerate(dict.fromkeys(MUTATIONS)):
            name = getattr(change, "__name__", "").strip("_")
            (CORPUS / f"{name}-{k}-{n}.lt").write_bytes(change(data, random.Random(k)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", action="store_true", help="write the fixed corpus, no more")
    options = parser.parse_args()
    if options.corpus:
        write_corpus()
        return
    count, found = run(options.seconds, options.seed)
    print(f"{count} files, {len(found)} faults")
    for why, data in found.items():
        name = hashlib.sha256(data).hexdigest()[:16]
        (CORPUS / f"{name}.lt").write_bytes(data)
        print(f"{name}: {why}")


if __name__ == "__main__":
    main()
