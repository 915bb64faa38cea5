"""Damaged files of torch.jit.save: whatever is changed, the reader gives a LoadError or values.

    python -m tests.deploy.torchscript.fuzz_torchscript --files 20000 --seed 3

In: a seed. Out: the faults: other errors, and memory beyond the file's. The exit status is 1 if
there is one; its file is kept in the folder `--keep`.
"""

from __future__ import annotations

import argparse
import hashlib
import pickletools
import random
import re
import resource
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import torch

import lowtide as lt
from lowtide.deploy.torchscript import debug
from lowtide.deploy.torchscript.pickles import Instance
from tests.deploy.forge import packed, parts_of
from tests.deploy.fuzz import Mutation, cut, damaged, flipped
from tests.deploy.torchscript.archives import (
    Constant,
    Everything,
    Holder,
    integer,
    read,
    saved,
    scripted,
    traced,
)

INTEGERS = (0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63))
MEMORY_BYTES = 16 << 20  # beyond tensors, for one file of some kilobytes


def seeds() -> list[bytes]:
    """The valid files that are damaged."""
    torch.manual_seed(0)
    everything = scripted(Everything())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = torch.eye(3).to_sparse(), torch.quantize_per_channel(
            torch.ones(2, 2), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 1, torch.qint8
        )  # fmt: skip
        return [
            saved(everything, {"notes": "x"}),
            everything._save_to_buffer_for_lite_interpreter(),
            saved(traced(Constant(), torch.ones(2))),
            *(saved(scripted(Holder(t))) for t in tensors),
            saved(scripted(torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(4))))),
        ]


def _any_part(change: Mutation, ending: str = "") -> Any:
    """Change one record; the checksums of the new file are right."""

    def inner(data: bytes, rng: random.Random) -> bytes:
        parts = parts_of(data)
        name = rng.choice([n for n in parts if n.endswith(ending)])
        parts[name] = change(parts[name], rng) if parts[name] else b"x"
        return packed(parts)

    return inner


def _opcodes(raw: bytes, rng: random.Random) -> bytes:
    """Some opcodes are removed, twice there, elsewhere, or others."""
    ends = [place or 0 for _, _, place in pickletools.genops(raw)]
    ops = [raw[a:b] for a, b in zip(ends, [*ends[1:], len(raw)], strict=True)]
    for _ in range(rng.choice([1, 1, 2, 4])):
        a, b = rng.randrange(len(ops)), rng.randrange(len(ops))
        match rng.randrange(6):
            case 0:
                ops.pop(a)
            case 1:
                ops.insert(a, ops[b])
            case 2:
                ops[a], ops[b] = ops[b], ops[a]
            case 3:
                ops[a] = bytes([rng.randrange(256)]) + ops[a][1:]
            case 4:
                ops[a:a] = ops[min(a, b) : max(a, b)]
            case _:
                ops[a] = ops[b]
        ops = ops or [b"."]
    return b"".join(ops)


def _sizes(raw: bytes, rng: random.Random) -> bytes:
    """A number is another."""
    found = list(pickletools.genops(raw))
    starts = [place or 0 for _, _, place in found] + [len(raw)]
    numbers = [k for k, (op, _, _) in enumerate(found) if op.name.startswith(("BININT", "LONG1"))]
    if not numbers:
        return raw
    k = rng.choice(numbers)
    return raw[: starts[k]] + integer(rng.choice(INTEGERS)) + raw[starts[k + 1] :]


def _entries(data: bytes, rng: random.Random) -> bytes:
    """Records are swapped, missing, copied, or of other names."""
    parts = parts_of(data)
    a, b = rng.choice(list(parts)), rng.choice(list(parts))
    match rng.randrange(4):
        case 0:
            parts[a], parts[b] = parts[b], parts[a]
        case 1:
            parts.pop(a)
        case 2:
            parts[a] = parts[b]
        case _:
            parts[a.replace("archive", rng.choice(["other", "..", "a/b", ""]))] = parts.pop(b)
    return packed(parts)


MUTATIONS: list[Mutation] = [
    *(flipped, cut, _entries, _any_part(flipped), _any_part(cut)),
    *([_any_part(_opcodes, "data.pkl")] * 4),
    *([_any_part(_sizes, "data.pkl")] * 2),
    *(_any_part(_opcodes, "_pkl"), _any_part(flipped, "_pkl"), _any_part(flipped, "data.pkl")),
]


def fault(data: bytes) -> str:
    """What is wrong with how a file is read; "" if it is refused, or gives values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = read(data)
        except lt.LoadError as error:
            return "" if 10 < len(str(error)) < 1000 else f"message of {len(str(error))} characters"
        except BaseException as error:
            return f"{type(error).__name__}: {error}"[:2000]
    try:
        held: dict[int, int] = {}
        _walk((found.data, found.constants), held)
        if sum(held.values()) > len(data):
            return f"tensors of {sum(held.values())} bytes"
        for path, raw in found.debug.items():
            table = debug.ranges(raw)
            for offset in range(0, len(found.code.get(path, "")), 97):
                debug.author_of(table, offset)
    except BaseException as error:
        return f"after reading: {type(error).__name__}: {error}"[:2000]
    return ""


def _walk(value: Any, held: dict[int, int]) -> None:
    """Visit all values by plain recursion, as readers of them may; sum the storages."""
    match value:
        case torch.Tensor():
            assert value.dim() <= 64
            if value.layout is torch.strided:
                storage = value.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
        case Instance():
            _walk(value.state, held)
        case dict():
            for item in value.values():
                _walk(item, held)
        case list() | tuple():
            for item in value:
                _walk(item, held)
        case _:
            repr(value)


def run(count: int, seed: int) -> dict[str, bytes]:
    """The first file of each fault among that many."""
    rng = random.Random(seed)
    files, found = seeds(), dict[str, bytes]()
    tracemalloc.start()
    for _ in range(count):
        data = damaged(rng.choice(files), rng, MUTATIONS)
        tracemalloc.reset_peak()
        why = fault(data)
        if tracemalloc.get_traced_memory()[1] > MEMORY_BYTES:
            why = why or "memory"
        if why:
            found.setdefault(re.sub(r"\d+", "0", why)[:120], data)
    tracemalloc.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None, help="a folder for files with faults")
    options = parser.parse_args()
    run(20, options.seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = run(options.files, options.seed)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{options.files} files, {len(found)} faults; the process grew by {grown} KiB")
    for why, data in found.items():
        name = hashlib.sha256(data).hexdigest()[:16]
        if options.keep is not None:
            (options.keep / f"{name}.pt").write_bytes(data)
        print(f"FAILED {name}: {why}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
