"""Bad files of torch.jit.save: each is a LoadError that says what and where; nothing is run."""

from __future__ import annotations

import io
import re
import struct
import sys
import zipfile
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.deploy import limits
from lowtide.deploy.torchscript.pickles import Instance, unpickle
from tests.deploy.forge import packed, parts_of
from tests.deploy.torchscript.archives import (
    EVIL,
    Holder,
    forged,
    integer,
    module_of,
    name,
    name_of,
    pickle_of,
    read,
    row,
    saved,
    scripted,
    state_of,
    storage,
    tensor,
    text,
)

DATA = saved(scripted(Holder(torch.arange(4.0))))


def refused(data: Any, match: str) -> None:
    with pytest.raises(lt.LoadError) as caught:
        read(data)
    assert re.search(match, str(caught.value), re.DOTALL), str(caught.value)
    assert 10 < len(str(caught.value)) < 1000


def refused_value(value: bytes, match: str) -> None:
    """The attribute of a module is refused, by the byte of its pickle."""
    refused(forged(DATA, data_pkl=module_of(value)), rf"data\.pkl, byte \d+: .*{match}")


def test_the_forgeries_are_valid_but_for_one_thing() -> None:
    for value, expected in ((tensor(storage(4)), [0.0, 1.0]), (b"]", []), (integer(-3), -3)):
        found = state_of(read(forged(DATA, data_pkl=module_of(value))).data)["x"]
        assert (found.tolist() if isinstance(found, torch.Tensor) else found) == expected


# ---- pickles ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "named",
    [
        *("os.system", "builtins.eval", "builtins.getattr", "torch.load", "torch.hub.load"),
        *("torch._utils._rebuild_parameter", "torch.jit._pickle.build_tensor_from_id"),
        *("torch.storage._load_from_bytes", "__torch__..x", "__torch__x.y", "__torch__.a-b"),
        *("torch.FloatStorage.x", "torch.nn.Linear", "numpy.core.multiarray._reconstruct"),
        *("collections.defaultdict", "__main__.TensorID", "torch._tensor._rebuild_from_type_v2"),
    ],
)
def test_other_globals(named: str) -> None:
    refused_value(name(named) + b")R", "GLOBAL: the global '.*', which TorchScript archives do")


def test_a_pickle_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    refused(forged(DATA, data_pkl=EVIL), r"the global '__builtin__\.print'")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("opcode", [*b"ioP0FILSTUVp12gB", 0x82, 0x8B, 0x95])
def test_other_opcodes(opcode: int) -> None:
    refused_value(bytes([opcode]), "which torch.jit.save does not write")


VALUES = {
    "no end": (b"X\xff\xff\xff\x7fabc", "the pickle ends before"),
    "text": (b"X\x01\x00\x00\x00\xff", "utf-8"),
    "memo": (b"h\x07", "BINGET"),
    "long memo": (b"j\x07\x07\x07\x07", "LONG_BINGET"),
    "long": (b"\x8a\xff" + b"x" * 300, "an integer of 255 bytes"),
    "no mark": (b"e" * 4, "APPENDS"),
    "no list": (b"N(Ke" + b"e", "a list is expected, not a NoneType"),
    "no dict": (b"](NNu", "a dict is expected, not a list"),
    "odd dict": (b"}(Nu", "SETITEMS"),
    "key": (b"}(]Nu", "a list as a key"),
    "a tuple as key": (b"}()Nu", "a tuple as a key"),
    "no class": (b"N)\x81", "a Name is expected"),
    "arguments": (name("__torch__.M") + b"K\x01\x85\x81", "with arguments"),
    "no state": (name("__torch__.M") + b")\x81", "without a state"),
    "two states": (name("__torch__.M") + b")\x81NbNb", "a state already"),
    "object of torch": (name("torch.device") + b")\x81", "an object of torch.device"),
    "a name": (name("torch.device"), "a Name as a value"),
    "storage": (storage(4), "a Stored as a value"),
    "enum": (name("__torch__.E") + b")R", "a member of __torch__.E by a tuple"),
    "device": (name("torch.device") + row(text("moon")) + b"R", "moon"),
    "complex": (name("builtins.complex") + row(b"K\x01", b"K\x01") + b"R", "other arguments"),
    "ints": (name("torch.jit._pickle.build_intlist") + row(b"](\x88e") + b"R", "other items"),
    "a list in itself": (b"]q\x09h\x09a", "a list that contains itself"),
    "a dict in itself": (b"}q\x09(K\x01h\x09u", "a dict that contains itself"),
    "a tuple in itself": (b"]q\x09h\x09\x85a", "contains itself"),
    "an object in itself": (name("__torch__.M") + b")\x81q\x09h\x09b", "contains itself"),
    "tuples": (b")" + b"\x85" * 1_000_000, "nested more than"),
    "lists": (b"](" * 500_000 + b"]" + b"e" * 500_000, "nested more than"),
    "shared tuples": (b"K\x01\x85" + b"q\x09h\x09\x86" * 40, "a value of more than"),
    "shared lists": (b"(](NNe" + b"q\x09](h\x09h\x09e" * 40 + b"t", "a value of more than"),
}


@pytest.mark.parametrize("which", VALUES)
def test_values(which: str) -> None:
    refused_value(*VALUES[which])


def test_pickles_without_an_end() -> None:
    whole = module_of(integer(1))
    for length in range(len(whole)):
        with pytest.raises(lt.LoadError, match="p, byte"):
            unpickle(whole[:length], "p")
    assert isinstance(unpickle(whole, "p"), Instance)


def test_many_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PICKLE_CONTAINERS", 100)
    refused_value(b"](" + b"]" * 100 + b"e", "more than 100 containers")


def test_what_the_pickles_hold() -> None:
    refused(forged(DATA, data_pkl=pickle_of(b"]")), r"data\.pkl holds a list, not a module")
    refused(forged(DATA, parts={"constants.pkl": pickle_of(b"N")}), "constants.pkl holds a NoneT")


# ---- tensors ----------------------------------------------------------------------------------

BIG = 2**62
TENSORS = {
    "storage": (tensor(storage(5)), "has 16 bytes, not 5 of torch.float32"),
    "storage of doubles": (tensor(storage(4, kind="Double")), "not 4 of torch.float64"),
    "negative storage": (tensor(storage(-1)), "a storage of other arguments"),
    "no record": (tensor(storage(4, "1")), "no entry 'archive/data/1'"),
    "other folder": (tensor(storage(4, "../constants.pkl")), "no entry"),
    "dtype": (tensor(storage(4, kind="Evil")), "no storage of this PyTorch"),
    "device": (tensor(storage(4, place="moon")), "moon"),
    "meta": (tensor(storage(4, place="meta")), "no values"),
    "devices": (row(tensor(storage(4)), tensor(storage(4, place="cpu:0"))), "is on 'cpu' and on"),
    "size": (tensor(storage(4), 0, (5,)), "ends at byte 20 of a record of 16"),
    "offset": (tensor(storage(4), 3, (2,)), "ends at byte 20"),
    "stride": (tensor(storage(4), 0, (2,), (4,)), "ends at byte 20"),
    "negative size": (tensor(storage(4), 0, (-1,)), "no natural number"),
    "negative stride": (tensor(storage(4), 1, (2,), (-1,)), "no natural number"),
    "negative offset": (tensor(storage(4), -1, (2,)), "no natural number"),
    "overflow": (tensor(storage(4), 0, (BIG, 4), (4, 1)), "ends at byte"),
    "overflow of the count": (tensor(storage(4), 0, (BIG, BIG), (0, 0)), "ends at byte"),
    "other lengths": (tensor(storage(4), 0, (2, 2)), "REDUCE"),
    "dimensions": (tensor(storage(4), 0, (1,) * 65, (1,) * 65), "at most 64"),
    "grad": (tensor(storage(4, kind="Int"), grad=True), "requires_grad of a tensor of torch.int32"),
    "conjugate": (tensor(storage(4), more=b"}(" + text("conj") + b"\x88u"), "the conjugate of"),
    "property": (tensor(storage(4), more=b"}(" + text("evil") + b"\x88u"), "other properties"),
    "no storage": (tensor(b"N"), "other arguments"),
}


@pytest.mark.parametrize("which", TENSORS)
def test_tensors(which: str) -> None:
    value, match = TENSORS[which]
    refused(forged(DATA, data_pkl=module_of(value)), match)


def _sparse(*parts: bytes, layout: int = 1, size: tuple[int, ...] = (2,)) -> bytes:
    hooks = name("collections.OrderedDict") + b")R"
    return name("torch._utils._rebuild_sparse_tensor") + row(
        integer(layout), row(*map(integer, size)), b"\x89", *parts, hooks
    ) + b"R"  # fmt: skip


def test_sparse_tensors() -> None:
    indices = tensor(storage(2, kind="Long"), 0, (1, 1), (1, 1))
    wide = tensor(storage(2, kind="Long"), 0, (1, 2**60), (0, 0))
    value = tensor(storage(4), 0, (1,))
    refused_value(_sparse(indices, value, layout=3), "layout 3")
    refused_value(_sparse(indices, value), "size")  # an index of 2**61
    refused_value(_sparse(wide, value), "without memory of their own")
    refused_value(_sparse(indices, b"N"), "are tensors")


def _quantized(*scheme: bytes) -> bytes:
    return name("torch._utils._rebuild_qtensor") + row(
        storage(4, kind="QInt8"), integer(0), row(integer(2)), row(integer(1)), row(*scheme),
        b"\x89", name("collections.OrderedDict") + b")R",
    ) + b"R"  # fmt: skip


def test_quantized_tensors() -> None:
    one, many = tensor(storage(2, kind="Double")), tensor(storage(2, kind="Double"), 0, (1,))
    channels = name("torch.per_channel_affine")
    refused_value(_quantized(name("torch.device"), b"K\x01"), "another scheme")
    refused_value(_quantized(channels, many, many, b"K\x00"), "other than 2 channels")
    refused_value(_quantized(channels, one, one, b"K\x01"), "another scheme")


# ---- archives ---------------------------------------------------------------------------------


def test_truncated() -> None:
    for length in range(0, len(DATA) - 1, 7):
        refused(DATA[:length], ".")


def test_flipped_bits_of_a_tensor() -> None:
    place = DATA.index(struct.pack("<4f", 0, 1, 2, 3))
    for k in range(16):
        raw = bytearray(DATA)
        raw[place + k] ^= 1 << k % 8
        refused(bytes(raw), "data/0 cannot be read: the file is damaged .its checksum is wrong")


def test_a_flipped_bit_of_a_large_tensor() -> None:
    raw = bytearray(saved(scripted(Holder(torch.zeros(1 << 20)))))
    raw[len(raw) // 2] ^= 1
    refused(bytes(raw), "data/0 cannot be read: .*checksum")


def test_another_header() -> None:
    raw = DATA.replace(b"archive/data/0", b"archive/data/9", 1)
    refused(raw, "its header is another's")


def test_names_and_folders() -> None:
    parts = parts_of(DATA)
    for bad in ("archive/../evil", "archive/code/../../x.py", "/archive/x", "archive//x"):
        refused(packed({**parts, bad: b""}), "a path out of the archive")
    refused(packed({**parts, "other/x": b""}), "several top folders: archive, other")
    file = io.BytesIO(DATA)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data.pkl", b"")
    refused(file.getvalue(), "two entries 'archive/data.pkl'")


def test_records() -> None:
    refused(forged(DATA, without="constants.pkl"), "no entry 'archive/constants.pkl'")
    refused(forged(DATA, without="version"), "archive/version has no number")
    refused(forged(DATA, parts={"version": b"99"}), "archive/version is 99: a newer PyTorch")
    refused(forged(DATA, parts={"version": b"x"}), "archive/version has no number")
    refused(forged(DATA, parts={"byteorder": b"big"}), "a big-endian machine")
    code = next(n for n in parts_of(DATA) if n.endswith(".py")).partition("/")[2]
    refused(forged(DATA, parts={code: b"\xff"}), "archives.py is not UTF-8 at byte 0")
    refused(forged(DATA, parts={"data/0": b"x" * 8}), "has 8 bytes, not 4 of")


def test_deflated_records_and_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(packed(parts_of(DATA), zipfile.ZIP_DEFLATED), "is compressed, not stored")
    file = io.BytesIO(DATA)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/code/bomb.py", bytes(4 << 20))
    refused(file.getvalue(), "bomb.py' claims to expand to 4194304 bytes")
    monkeypatch.setattr(limits, "SCRIPT_BYTES", 100)
    refused(DATA, r"archive/code/\*\.py have \d+ bytes; at most 100 are read")
    monkeypatch.setattr(limits, "PICKLE_BYTES", 10)
    monkeypatch.setattr(limits, "SCRIPT_BYTES", 10_000)
    refused(forged(DATA, parts={"constants.pkl": b"x" * 11}), "constants.pkl has 11 bytes; at most")


def test_other_formats() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.ones(1)}, file)
    refused(file, r"a file of torch\.save.*weights_only=True")
    torch.save({"a": torch.ones(1)}, file := io.BytesIO(), _use_new_zipfile_serialization=False)
    refused(file, r"a file of torch\.save")
    refused(b"\x20\0\0\0PTMF" + bytes(100), "flatbuffer")
    refused(packed({"m/version": b"1", "m/model.json": b"{}"}), "PyTorch before 1.4")
    bytecode = {f"m/{n}": pickle_of(b")") for n in ("data.pkl", "constants.pkl", "bytecode.pkl")}
    refused(packed({**bytecode, "m/version": b"3"}), "of bytecode alone")
    assert name_of(DATA) == "archive"
    assert "torch.jit._pickle" not in sys.modules
