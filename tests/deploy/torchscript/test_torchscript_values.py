"""Contents of files of torch.jit.save: each value is what torch.jit.load gives."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.deploy.archive import open_archive
from lowtide.deploy.storages import placing
from lowtide.deploy.torchscript import debug, reader
from lowtide.deploy.torchscript.pickles import EnumMember, Instance
from tests.deploy.torchscript.archives import (
    Constant,
    Everything,
    Holder,
    check_same,
    forged,
    jit_loaded,
    memory_of,
    module_of,
    name,
    pickle_of,
    read,
    row,
    saved,
    scripted,
    state_of,
    text,
    traced,
)

EVERYTHING = scripted(Everything())
DATA = saved(EVERYTHING, {"notes": "hello", "a/b.txt": "x"})


def test_values_of_all_kinds() -> None:
    found = read(DATA)
    check_same(found.data, jit_loaded(DATA))
    attributes = state_of(found.data)
    assert attributes["colour"] == EnumMember(attributes["colour"].cls, 2)
    assert attributes["colour"].cls.endswith("archives.Colour")
    assert attributes["pair"][0] == 3
    assert attributes["part"].state[2] == 3
    assert attributes["tuple"][:5] == (1, "x", None, 2.5, True)


def test_a_mobile_model() -> None:
    data = EVERYTHING._save_to_buffer_for_lite_interpreter()
    check_same(read(data).data, jit_loaded(data))


def test_identities_are_kept() -> None:
    found = state_of(read(DATA).data)
    fc, tied = state_of(found["fc"]), state_of(found["tied"])
    assert fc["weight"] is tied["weight"]
    assert found["hidden"] is found["tensors"][1] is found["of_text"]["b"]
    place = fc["weight"].untyped_storage().data_ptr()
    assert {found[n].untyped_storage().data_ptr() for n in ("turned", "row")} == {place}
    with torch.no_grad():
        fc["weight"].fill_(7)
    assert found["turned"].eq(7).all()
    assert found["row"].eq(7).all()


def test_shared_objects_are_one_object() -> None:
    made = name("__torch__.Plain") + b")\x81}bq\x09"
    found = state_of(read(forged(DATA, data_pkl=module_of(row(made, b"h\x09")))).data)["x"]
    assert isinstance(found[0], Instance)
    assert found[0] is found[1]


def test_code_and_extra_files() -> None:
    with open_archive(io.BytesIO(DATA)) as opened:
        found = reader.read(opened, placing(None))
        extra = found.extra_files(["notes", "a/b.txt", "none"])
    assert extra == {"notes": b"hello", "a/b.txt": b"x"}
    # torch.jit numbers the classes that one process has scripted, so their files may be others.
    linear = [t for path, t in found.code.items() if "/linear" in path]
    assert linear
    assert all("class Linear(Module)" in t for t in linear)
    assert found.debug.keys() == found.code.keys()
    assert 1 <= found.version <= 10


def test_a_trace_with_constants(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    m = traced(Constant(), torch.ones(2))
    m.save(path)
    found = read(path)
    (constant,) = found.constants
    assert found.name == "model"
    assert isinstance(constant, torch.Tensor)
    assert constant.tolist() == [1.0, 2.0]
    (constant,) = read(m._save_to_buffer_for_lite_interpreter()).constants
    assert isinstance(constant, torch.Tensor)
    assert constant.tolist() == [1.0, 2.0]


def test_a_file_without_readinto() -> None:
    class Plain:
        def __init__(self) -> None:
            self.file = io.BytesIO(DATA)
            self.read, self.seek = self.file.read, self.file.seek
            self.tell, self.seekable = self.file.tell, self.file.seekable

    check_same(read(Plain()).data, jit_loaded(DATA))


DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and "q" not in str(d)}, key=str
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    data = saved(scripted(Holder(torch.arange(1, 17, dtype=torch.uint8).view(dtype))))
    ours, theirs = state_of(read(data).data)["t"], jit_loaded(data).t
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert memory_of(ours) == memory_of(theirs) == bytes(range(1, 17))


def _quantized(*scheme: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
        if len(scheme) == 1:
            return torch.quantize_per_tensor(x, 0.1, 3, scheme[0])
        return torch.quantize_per_channel(
            x, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 1, scheme[0]
        )


TENSORS = {
    "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
    "negative": torch.tensor([1 + 2j, 3j]).conj().imag,
    "sparse": torch.eye(3).to_sparse(),
    "csr": torch.eye(3).to_sparse_csr(),
    "per tensor": _quantized(torch.qint8),
    "per tensor, unsigned": _quantized(torch.quint8),
    "per channel": _quantized(torch.qint8, 1),
    "empty": torch.ones(0, 3),
    "scalar": torch.tensor(3),
    "expanded": torch.ones(1).expand(3, 4),
    "channels last": torch.rand(1, 2, 3, 3).to(memory_format=torch.channels_last),
    "part of a storage": torch.arange(10.0)[2:8:2],
    "other dtype of a part": torch.arange(4.0)[1:3].view(torch.int32),
    "requires grad": torch.ones(2, requires_grad=True),
    "parameter": nn.Parameter(torch.ones(2)),
    "frozen parameter": nn.Parameter(torch.ones(2), requires_grad=False),
}


@pytest.mark.parametrize("which", TENSORS)
def test_tensors(which: str) -> None:
    data = saved(scripted(Holder(TENSORS[which])))
    check_same(read(data).data, jit_loaded(data))


def test_map_location() -> None:
    t = state_of(read(DATA, "meta").data)["hidden"]
    assert t.device.type == "meta"
    assert state_of(read(DATA, {"cpu": "meta"}).data)["hidden"].is_meta


def test_author_of() -> None:
    found = read(DATA)
    path = next(p for p in found.code if p.endswith("archives.py"))
    table, code = debug.ranges(found.debug[path]), found.code[path].encode()
    loc = debug.author_of(table, code.index(b"torch.add(_"))
    assert loc is not None
    line = Path(loc.file).read_text(encoding="utf-8").split("\n")[loc.line - 1]
    assert line == loc.text
    assert loc.function == "forward"
    assert "self." in line[loc.column - 1 :]


@pytest.mark.parametrize("between", [b"", b"K\x00"], ids=["two fields", "three fields"])
def test_tables_of_older_versions(between: bytes) -> None:
    source = row(text("def f():\n x"), text("m.py"), b"K\x07")
    table = debug.ranges(pickle_of(row(row(b"K\x05", between, row(source, b"K\x0a", b"K\x0b")))))
    loc = debug.author_of(table, 9)
    assert loc is not None
    assert (loc.file, loc.line, loc.column, loc.text, loc.function) == ("m.py", 8, 2, " x", "f")
    assert debug.author_of(table, 4) is None


@pytest.mark.parametrize("raw", [b"", b"\x80\x02.", b"\x80\x02N.", b"\x80\x02((K\x01tt.", b"junk"])
def test_damaged_tables_have_no_ranges(raw: bytes) -> None:
    assert debug.ranges(raw) == []
