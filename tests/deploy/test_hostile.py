"""Files made to harm: each is a LoadError with a clear sentence, and nothing has happened."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.deploy import limits, records
from lowtide.deploy.torch_names import TARGETS, TENSOR_ATTRIBUTES, TENSOR_METHODS
from lowtide.ir import python_objects
from lowtide.ir.interpret import callable_of
from tests.deploy.forge import (
    forge,
    function_file,
    module_file,
    packed,
    parts_of,
    program,
    state,
)

F = function_file()
M = module_file()


def refused(data: bytes, match: str) -> None:
    before = len(python_objects._objects), len(records._ENTRIES), sorted(os.listdir("."))
    extra = {"a": ""}
    with pytest.raises(lt.LoadError) as caught:
        lt.load(io.BytesIO(data), _extra_files=extra)
    assert re.search(match, str(caught.value), re.DOTALL), str(caught.value)
    assert len(str(caught.value)) < 1000
    assert extra == {"a": ""}
    assert (len(python_objects._objects), len(records._ENTRIES), sorted(os.listdir("."))) == before


def test_the_files_are_valid() -> None:
    assert torch.equal(lt.load(io.BytesIO(F))(torch.ones(2)), torch.ones(2))
    assert lt.load(io.BytesIO(M))(torch.ones(1, 2)).shape == (1, 2)
    lt.load(io.BytesIO(forge(M)))
    lt.load(io.BytesIO(forge(F, code={"code/same.ir": program()})))


# ---- programs ---------------------------------------------------------------------------------

A_NONE = "%0: None = const {value=None}"
A_STR = "%0: str = const {value='/etc/passwd'}"
CALL = "{target='%s', kwnames=()}"

OPS: dict[str, tuple[list[str], str]] = {
    "torch.load": ([A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch.load'}"], "torch.load"),
    "torch.save": ([A_STR, f"%1: Any = call_torch(%x, %0) {CALL % 'torch.save'}"], "torch.save"),
    "torch.hub": ([A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch.hub.load'}"], "torch.hub"),
    "from_file": ([A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch.from_file'}"], "from_file"),
    "aten.from_file": (
        [A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch.ops.aten.from_file'}"],
        "from_file",
    ),
    "aten.set_": ([f"%1: Any = mutate(%x, %x) {CALL % 'torch.ops.aten.set_'}"], "set_"),
    "inside an op": (
        [f"%1: Any = call_torch(%x) {CALL % 'torch.ops.aten.relu.default.redispatch'}"],
        "redispatch",
    ),
    "a private function": ([f"%1: Any = call_torch(%x) {CALL % 'torch._from_blob'}"], "_from_blob"),
    "os.system": ([A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch.os.system'}"], "os.system"),
    "builtins": (
        [A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch.serialization.os.system'}"],
        "serialization",
    ),
    "ops.load_library": (
        [A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch.ops.load_library'}"],
        "load_library",
    ),
    "tofile": ([A_STR, f"%1: Any = mutate(%x, %0) {CALL % 'Tensor.tofile'}"], "tofile"),
    "reduce": ([f"%1: Any = call_torch(%x) {CALL % 'Tensor.__reduce__'}"], "__reduce__"),
    "reduce_ex": ([f"%1: Any = call_torch(%x, %n) {CALL % 'Tensor.__reduce_ex__'}"], "__reduce"),
    "data_ptr": ([f"%1: Any = call_torch(%x) {CALL % 'Tensor.data_ptr'}"], "data_ptr"),
    "storage": ([f"%1: Any = call_torch(%x) {CALL % 'Tensor.untyped_storage'}"], "untyped_storage"),
    "share_memory_": ([f"%1: Any = mutate(%x) {CALL % 'Tensor.share_memory_'}"], "share_memory_"),
    "apply_": ([f"%1: Any = mutate(%x, %n) {CALL % 'Tensor.apply_'}"], "apply_"),
    "register_hook": ([f"%1: Any = mutate(%x, %n) {CALL % 'Tensor.register_hook'}"], "register_h"),
    "set_": ([f"%1: Any = mutate(%x, %x) {CALL % 'Tensor.set_'}"], "set_"),
    "attrgetter": ([A_STR, f"%1: Any = call_torch(%0) {CALL % 'operator.attrgetter'}"], "attrge"),
    "set_num_threads": ([f"%1: Any = call_torch(%n) {CALL % 'torch.set_num_threads'}"], "threads"),
    "compile": ([f"%1: Any = call_torch(%x) {CALL % 'torch.compile'}"], "torch.compile"),
    "_C": ([A_STR, f"%1: Any = call_torch(%0) {CALL % 'torch._C._jit_set_logging'}"], "torch._C"),
    "py.call": ([f"%1: Any = py.call(%x) {CALL % 'os.system'}"], "os.system"),
    "py.call of a known function": (
        [f"%1: Any = py.call(%x) {CALL % 'tests.deploy.forge.same'}"],
        "forge.same",
    ),
    "call_module": (
        ["%1: Any = call_module(%x) {method='__call__', kwnames=(), why=''}"],
        "runs in Python",
    ),
    "method": (["%1: Any = py.call_method(%x) {name='apply_', kwnames=()}"], r"apply_\(\)"),
    "dunder method": (
        ["%1: Any = py.call_method(%x) {name='__reduce__', kwnames=()}"],
        "__reduce__",
    ),
    "format map": (["%1: Any = py.call_method(%n) {name='format_map', kwnames=()}"], "format_map"),
    "attribute": (["%1: Any = attr.get(%x) {name='__class__'}"], "__class__"),
    "private attribute": (["%1: Any = attr.get(%x) {name='_backward_hooks'}"], "_backward_hooks"),
    "grad_fn": (["%1: Any = attr.get(%x) {name='grad_fn'}"], "grad_fn"),
    "set attribute": (["attr.set(%x, %n) {name='data'}"], "data"),
    "owner": (["%1: Any = attr.get(%x) {name='grad', owner='Color'}"], "owner"),
    "template": (
        ["%0: str = py.format(%x) {template='{0.__class__}'}"],
        "reads attributes or items",
    ),
    "template item": (
        ["%0: str = py.format(%x) {template='{0[__class__]}'}"],
        "reads attributes or items",
    ),
    "nested template": (
        ["%0: str = py.format(%x) {template='{0:{0.__init__}}'}"],
        "reads attributes or items",
    ),
    "broken template": (["%0: str = py.format(%x) {template='{'}"], "reads attributes or items"),
    "str.format": (
        ["%0: str = const {value='{0.__class__}'}", "%1: str = str.format(%0, %x)"],
        r"str.format\(\)",
    ),
    "raise": ([A_STR, "raise(%0) {exception='open'}"], "raise open"),
    "raise exit": (["raise(%n) {exception='SystemExit'}"], "raise SystemExit"),
    "raise a class of this process": (
        ["raise(%n) {exception='tests.deploy.test_hostile.X'}"],
        "raise",
    ),
    "print to a file": (["print(%n, %x) {kwnames=('file',)}"], "print"),
    "with": (
        ["%1: Tensor = with(%x)", "  block(%2: Any):", "    yield(%x)"],
        "`with`",
    ),
    "object.new": (["%1: Class['os.PathLike'] = object.new {cls='os.PathLike'}"], "PathLike"),
    "enum": (["%1: Class['Color'] = enum.const {enum='Color', member='RED'}"], "Color"),
    "isinstance": (["%1: bool = py.isinstance(%x) {type=\"Class['os.X']\"}"], "os.X"),
    "function type": (["%1: Function['os.system'] = undef()"], "function|op"),
    "unknown op": (["%1: Any = py.eval(%x)"], "py.eval"),
    "unknown torch op": (["%1: Tensor = torch.evil(%x)"], "evil"),
    "kwnames": (["%1: Any = call_torch(%x) {target='torch.tensor', kwnames=('a b',)}"], "keywords"),
    "more kwnames": (
        ["%1: Any = call_torch(%x) {target='torch.tensor', kwnames=('a', 'b')}"],
        "keywords",
    ),
    "use before definition": (["%1: Tensor = torch.neg(%2)"], "made before"),
    "huge int": (["%1: int = const {value=" + "9" * 5000 + "}"], "not a valid program"),
    "code as a constant": (["%1: int = const {value=__import__('os')}"], "not a valid program"),
    "attribute of torch as a constant": (
        ["%1: Any = const {value=torch.load}"],
        "not a valid program",
    ),
    "lambda": (["%1: Any = const {value=lambda: 0}"], "not a valid program"),
    "bad device": (["%1: device = const {value=device('evil:0')}"], "not a valid program"),
    "warning": (["%1: None = py.call(%n) {target='warn.open', kwnames=()}"], "warn.open"),
}


@pytest.mark.parametrize("name", OPS)
def test_programs(name: str) -> None:
    ops, match = OPS[name]
    refused(forge(F, code={"code/same.ir": program(*ops)}), match)


def nested(depth: int) -> str:
    lines = ["def same(%x: Tensor, %n: int) -> Tensor:", "  %c: bool = const {value=True}"]
    for k in range(depth):
        indent = "  " * (2 * k + 1)
        lines += [f"{indent}if(%c)", f"{indent}  block():"]
    return "\n".join([*lines, "  return(%x)", ""])


TEXTS: dict[str, tuple[str, str]] = {
    "empty": ("", "def name"),
    "not text": ("\0\0", "def name"),
    "another function": (program(head="def ../x(%x: Tensor, %n: int) -> Tensor:"), "def name"),
    "no parameters": (
        program("%0: Tensor = undef()", result="%0", head="def f() -> Tensor:"),
        "other",
    ),
    "a capture": (
        program(head="def f(%x: Tensor, %n: int, %w: Tensor @ 'fc.weight') -> Tensor:"),
        "cannot read",
    ),
    "deep blocks": (nested(300), "deep"),
    "deep types": (program(f"%1: {'List[' * 9000}int{']' * 9000} = undef()"), "expected a type"),
    "deep tuples": (program("%1: Any = const {value=" + "(" * 9000 + ")" * 9000 + "}"), "constant"),
    "deep minus": (program("%1: int = const {value=" + "-" * 90000 + "1}"), "attributes|constant"),
    "deep attributes": (
        program("%1: Any = const {value=torch" + ".a" * 90000 + "}"),
        "constant|attr",
    ),
    "wide type": (program(f"%1: ({'int, ' * 5000}) = undef()"), "2048 parts"),
    "long line": (program("%1: str = const {value='" + "x" * (1 << 20) + "'}"), "characters"),
    "open string": (program("%1: str = const {value='x}"), "not a valid program"),
    "a name twice": (program("%x: int = const {value=1}"), "taken"),
    "no return": (
        "def same(%x: Tensor, %n: int) -> Tensor:\n  %0: int = const {value=1}\n",
        "return",
    ),
    "line number": (program("%1: int = const {value=1} # f.py:" + "9" * 5000), "end of the line"),
    "wrong types": (program("%1: int = torch.neg(%x)"), "not a valid program"),
    "operands missing": (program("%1: int = tuple.get {index=0}"), "not a valid program"),
    "no operands of attr.get": (program("%1: Any = attr.get {name='x'}"), "not a valid program"),
    "no target": (program("%1: Any = call_torch(%x)"), "not a valid program"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    text, match = TEXTS[name]
    refused(forge(F, code={"code/same.ir": text}), match)


def test_not_utf8() -> None:
    refused(forge(F, entries={"code/same.ir": b"\xff\xfe"}), "not a valid program")
    refused(forge(F, entries={"lowtide.json": b"\xff\xfe"}), "not JSON")


# ---- manifest ---------------------------------------------------------------------------------


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(manifest: Any) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return edit


def entry(kind: str, **more: Any) -> dict[str, Any]:
    return {"id": "X", "name": "X", "kind": kind, **more}


def _in_a_list(manifest: Any) -> None:
    manifest["classes"][0]["base"] = "ModuleList"
    manifest["entries"][0]["name"] = "append"


EVIL_FIELD = [["__class__", True, True, True, None]]
EDITS: dict[str, tuple[Any, str]] = {
    "unknown key": (at("evil", value=1), "without 'evil'"),
    "wrong kind": (at("kind", value="program"), "function, module"),
    "function with modules": (at("kind", value="function"), "no modules"),
    "no entries": (at("entries", value=3), "a list"),
    "entry name": (at("entries", 0, "name", value="__init__"), "entry point"),
    "entry name of nn.Module": (at("entries", 0, "name", value="state_dict"), "entry point"),
    "entry name of an attribute": (at("entries", 0, "name", value="table"), "entry point"),
    "entry name of a submodule": (at("entries", 0, "name", value="fc"), "entry point"),
    "entry name of a parameter": (at("entries", 1, "name", value="weight"), "entry point"),
    "entry name of state": (at("entries", 1, "name", value="_parameters"), "entry point"),
    "entry name of a mode": (at("entries", 1, "name", value="training"), "entry point"),
    "entry name of ours": (at("entries", 1, "name", value="_lowtide_root"), "entry point"),
    "entry name of our methods": (at("entries", 1, "name", value="_wrap"), "entry point"),
    "entry name of a walk": (at("entries", 1, "name", value="children"), "entry point"),
    "entry name of a container": (_in_a_list, "entry point"),
    "entry without modules": (at("entries", 1, "modules", value=[]), "whose method it is"),
    "modules of entries": (at("entries", 1, "modules", value=[2]), "index below 2"),
    "modules below zero": (at("entries", 1, "modules", value=[-1]), "a size"),
    "modules by name": (at("entries", 1, "modules", value=["fc"]), "a size"),
    "a module twice": (at("entries", 1, "modules", value=[0, 0]), "without a method"),
    "an entry twice": (lambda m: m["entries"].append(m["entries"][1]), "without a method"),
    "modules that lack what is read": (at("entries", 0, "modules", value=[1, 0]), "do not have"),
    "parameter name": (at("entries", 0, "parameters", 0, "name", value="a b"), "parameter"),
    "parameter keyword": (at("entries", 0, "parameters", 0, "name", value="import"), "parameter"),
    "parameter kind": (at("entries", 0, "parameters", 0, "kind", value="x"), "one of"),
    "no programs": (at("entries", 0, "programs", value=[]), "a program"),
    "code elsewhere": (at("entries", 0, "programs", 0, "code", value="lowtide.json"), "in code/"),
    "code missing": (at("entries", 0, "programs", 0, "code", value="code/x.ir"), "no entry"),
    "guard kind": (at("entries", 0, "programs", 0, "guards", value=[["x", "", "", 1]]), "one of"),
    "guard path": (
        at("entries", 0, "programs", 0, "guards", value=[["value", "__class__", "", 1]]),
        "do not have",
    ),
    "guard path of a module": (
        at("entries", 0, "programs", 0, "guards", value=[["value", "fc.x.y", "", 1]]),
        "do not have",
    ),
    "class id": (at("classes", 0, "id", value="a.b"), "identifier"),
    "class name": (at("classes", 0, "name", value="a b"), "name of a class"),
    "class kind": (at("classes", 0, "kind", value="type"), "one of"),
    "class field": (at("classes", 0, "fields", value=EVIL_FIELD), "name of a field"),
    "field of nn.Module": (
        at("classes", 0, "fields", value=[["_modules", True, True, True, None]]),
        "name of a field",
    ),
    "record field": (at("classes", value=[entry("record", fields=EVIL_FIELD)]), "name of a field"),
    "enum of nothing": (at("classes", value=[entry("enum")]), "base|class"),
    "enum member": (
        at("classes", value=[entry("enum", base="Enum", members=[["mro", "1"]])]),
        "name of a member",
    ),
    "enum value": (
        at("classes", value=[entry("enum", base="Enum", members=[["A", "open('x')"]])]),
        "text of a constant",
    ),
    "enum mixin": (
        at("classes", value=[entry("enum", base="Enum", mixin="int", members=[["A", "'x'"]])]),
        "cannot be made",
    ),
    "exception base": (at("classes", value=[entry("exception", base="SystemExit")]), "one of"),
    "class twice": (lambda m: m["classes"].append(m["classes"][0]), "not taken"),
    "module class": (at("modules", 0, "class", value="Nothing"), "module's class"),
    "module child": (at("modules", 1, "children", value=[["fc", 1]]), "index below 1"),
    "module name": (at("modules", 1, "children", value=[["a.b", 0]]), "a name"),
    "parameter of modules": (at("modules", 0, "parameters", value=[["__x", None]]), "a name"),
    "not a parameter": (at("modules", 0, "parameters", 0, 1, value={"literal": "1"}), "tensor"),
    "attribute of modules": (at("modules", 0, "attributes", value=[["_hooks", 1]]), "a field"),
    "attribute forward": (at("modules", 0, "attributes", value=[["forward", 1]]), "a field"),
    "value": (at("modules", 0, "attributes", 0, 1, value={"eval": "1"}), "a value"),
    "literal": (at("modules", 0, "attributes", 0, 1, value={"literal": "open"}), "constant"),
    "object index": (at("modules", 0, "attributes", 0, 1, value={"object": 99}), "index below"),
    "tensor index": (at("modules", 0, "parameters", 0, 1, value={"tensor": -1}), "a size"),
    "object kind": (at("objects", value=[["module", []]]), "one of"),
    "object of no class": (at("objects", value=[["record", "X", []]]), "id of a class"),
    "unhashable key": (at("objects", 0, value=["dict", [[{"object": 0}, 1]]]), "a key"),
    "tensor dtype": (at("tensors", 0, "dtype", value="object"), "one of"),
    "tensor piece": (at("tensors", 0, "piece", value="x"), "one of"),
    "tensor shape": (at("tensors", 0, "shape", value=[1000, 2]), "lies in its piece"),
    "tensor negative shape": (at("tensors", 0, "shape", value=[-1, 2]), "a size"),
    "tensor strides": (at("tensors", 0, "strides", value=[1 << 60, 1 << 60]), "lies in its piece"),
    "tensor offset": (at("tensors", 0, "offset", value=(1 << 62)), "lies in its piece"),
    "tensor of many dims": (at("tensors", 0, "shape", value=[1] * 100), "at most 64"),
    "tensor of too many elements": (
        lambda m: m["tensors"][0].update(shape=[1 << 62, 4], strides=[0, 0]),
        "lies in its piece",
    ),
    "tensor device": (at("tensors", 0, "device", value="evil"), "evil"),
    "tensor on meta": (at("tensors", 0, "device", value="meta"), "tensors have values"),
    "tensor on a numbered meta": (at("tensors", 0, "device", value="meta:0"), "have values"),
    "two devices": (
        lambda m: m["tensors"].append({**m["tensors"][0], "device": "meta"}),
        "one device",
    ),
    "sources": (at("sources", value=[["f", [["x"]]]]), "a list of 3"),
    "float for an int": (at("format", value=1.5), "an int"),
    "true for an int": (at("format", value=True), "an int"),
}


@pytest.mark.parametrize("name", EDITS)
def test_manifests(name: str) -> None:
    edit, match = EDITS[name]
    refused(forge(M, edit=edit), match)


def test_a_function_reads_no_module() -> None:
    text = program(head="def same(%x: Tensor, %n: int, %w: Tensor @ 'fc.weight') -> Tensor:")
    refused(forge(F, code={"code/same.ir": text}), "cannot read a module")
    refused(forge(F, edit=at("entries", 0, "modules", value=[0])), "index below 0")
    guards = [["value", "training", "", True]]
    refused(forge(F, edit=at("entries", 0, "programs", 0, "guards", value=guards)), "cannot read")


def test_nothing_of_this_process_is_read() -> None:
    name = python_objects.name_of(torch.nn.Linear(2, 2))
    for path in (f"@{name}|weight", "@os|environ", "@|", "@"):
        text = program(head=f"def forward(%x: Tensor, %w: Tensor @ {path!r}) -> Tensor:")
        refused(forge(M, code={"code/forward.ir": text}), "do not have")
        edit = at("entries", 0, "programs", 0, "guards", value=[["none", path, "", True]])
        refused(forge(M, edit=edit), "do not have")


def test_paths_that_are_read_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATH_CHARS", 20)
    refused(M, "read less of their modules")


RAW = {
    "not JSON": (b"{", "not JSON"),
    "a list": (b"[]", "an object"),
    "NaN": (b'{"format": NaN}', "not a JSON number"),
    "infinite": (b'{"format": 1e999}', "out of the range of a float"),
    "huge int": (b'{"format": ' + b"9" * 100_000 + b"}", "beyond 64 bits"),
    "deep": (b"[" * 200_000, "not JSON"),
    "deep objects": (b'{"a":' * 200_000, "not JSON"),
    "a name twice": (b'{"format": 1, "format": 2}', "occurs twice"),
    "nothing": (b"{}", "'format'"),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_manifests(name: str) -> None:
    raw, match = RAW[name]
    refused(forge(F, entries={"lowtide.json": raw}), match)


def test_deep_values() -> None:
    raw = parts_of(forge(M, edit=at("modules", 0, "attributes", 0, 1, value="DEEP")))
    value = b'{"tuple":[' * 100 + b"1" + b"]}" * 100
    parts = {**raw, "lowtide.json": raw["lowtide.json"].replace(b'"DEEP"', value)}
    refused(packed(parts), "deep")


def test_versions() -> None:
    newer = forge(F, manifest={"format": 99, "producer": "lowtide 9.0", "new": 1})
    refused(newer, "format 99, written by 'lowtide 9.0'.*newer Lowtide")
    refused(forge(newer, entries={"code2/x": b""}), "newer Lowtide")
    refused(forge(F, manifest={"format": 0, "producer": "lowtide 0.0"}), "too old")


# ---- state ------------------------------------------------------------------------------------

GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
STATES = {
    "empty": (b"", "no valid header"),
    "long header": (struct.pack("<Q", 1 << 60), "no valid header"),
    "not JSON": (struct.pack("<Q", 4) + b"evil", "not JSON"),
    "dtype": (state({"a": {**GOOD, "dtype": "OBJ"}}, b"x" * 8), "dtype"),
    "shape": (state({"a": {**GOOD, "shape": [4]}}, b"x" * 8), "fit"),
    "overflowing shape": (state({"a": {**GOOD, "shape": [1 << 62, 1 << 62]}}, b"x" * 8), "fit"),
    "negative": (state({"a": {**GOOD, "data_offsets": [-8, 0]}}, b"x" * 8), "a size"),
    "gap": (state({"a": {**GOOD, "data_offsets": [8, 16]}}, b"x" * 16), "begin where"),
    "overlap": (state({"a": GOOD, "b": GOOD}, b"x" * 8), "begin where"),
    "too little data": (state({"a": GOOD}, b"x" * 4), "has a different number"),
    "too much data": (state({"a": GOOD}, b"x" * 12), "has a different number"),
    "terabytes": (
        state({"a": {**GOOD, "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        "a different number",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states(name: str) -> None:
    raw, match = STATES[name]
    refused(forge(M, entries={"state.safetensors": raw}), match)


# ---- zips -------------------------------------------------------------------------------------


def zip_with(name: str, **options: Any) -> bytes:
    file = io.BytesIO(F)
    with zipfile.ZipFile(file, "a") as archive:
        info = zipfile.ZipInfo(name)
        for key, value in options.items():
            setattr(info, key, value)
        archive.writestr(info, b"x")
    return file.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/passwd",
        "extra/../../evil",
        "extra\\..\\evil",
        "C:/evil",
        "extra//x",
        "a/./b",
    ],
)
def test_paths_that_lead_out(name: str) -> None:
    refused(zip_with(name), "a path out|unknown entry")


def test_entries() -> None:
    refused(zip_with("evil.py"), "unknown entry")
    refused(zip_with("code/evil.py"), "unknown entry")
    refused(zip_with("extra/link", external_attr=0o120777 << 16), "not a plain file")
    refused(zip_with("archive/data.pkl"), r"a file of torch\.save")
    with pytest.warns(UserWarning, match="Duplicate"):
        refused(zip_with("lowtide.json"), "two entries")


@pytest.mark.parametrize("name", ["lowtide.json", "code/same.ir", "state.safetensors"])
def test_missing_entries(name: str) -> None:
    refused(forge(F, without=name), f"no entry '{name}'")


def test_no_zip() -> None:
    for data in (
        b"",
        b"PK",
        b"evil" * 100,
        F[:-30],
        F[: len(F) // 2],
        F[20:],
        b"\x80\x04." + F[:9],
    ):
        refused(data, "damaged|truncated|beyond|overlaps|not a file of lt.save")


def test_bytes_around_the_zip() -> None:
    for data in (F + b"x", F + bytes(1000), b"x" + F, F + F, F[:-2] + b"\1\0x"):
        refused(data, "bytes before or after the zip|damaged")
    refused(F + F[-22:-12] + bytes(12), "damaged|no entry|around")


def test_files_of_torch(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    refused((tmp_path / "a.pt").read_bytes(), r"a file of torch\.save")


def test_bombs() -> None:
    parts = parts_of(F)
    parts["code/same.ir"] = b" " * (200 << 20)
    refused(packed(parts, zipfile.ZIP_DEFLATED), "claims to expand")
    refused(
        packed({**parts_of(F), "lowtide.json": b" " * (2 << 20)}, zipfile.ZIP_DEFLATED),
        "claims to expand",
    )


def test_sizes_that_lie() -> None:
    data = bytearray(packed(parts_of(F), zipfile.ZIP_DEFLATED))
    place = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, place + 24, 100)  # uncompressed size in the table of contents
    refused(bytes(data), "damaged|no valid header|inconsistent sizes|a different number")
    crc = bytearray(packed(parts_of(F)))
    place = crc.index(b"def same")
    crc[place + 4] ^= 1
    refused(bytes(crc), "damaged.*CRC")


def test_entries_that_overlap() -> None:
    data = bytearray(packed(parts_of(F)))
    places = [m.start() for m in re.finditer(b"PK\x01\x02", bytes(data))]
    struct.pack_into("<I", data, places[1] + 42, 0)  # the second entry lies where the first is
    refused(bytes(data), "overlaps|damaged")


def test_encrypted_and_other_compressions() -> None:
    data = bytearray(packed(parts_of(F)))
    for place in (m.start() for m in re.finditer(b"PK\x01\x02", bytes(data))):
        data[place + 8] |= 1
    refused(bytes(data), "encrypted")
    refused(packed(parts_of(F), zipfile.ZIP_LZMA), "unsupported compression")


def test_many_entries() -> None:
    parts = {**parts_of(F), **{f"extra/{k}": b"" for k in range(limits.ENTRIES)}}
    refused(packed(parts), "entries; at most")


def test_deflate_that_never_ends() -> None:
    raw = bytearray(packed(parts_of(F), zipfile.ZIP_DEFLATED))
    broken = zlib.compress(b"x" * 1000)
    raw[40 : 40 + len(broken)] = broken
    refused(bytes(raw), "damaged|not JSON|overlap")


# ---- tables -----------------------------------------------------------------------------------


def test_every_allowed_name_is_one_of_pytorch() -> None:
    missing = []
    for target in sorted(TARGETS):
        try:
            callable_of(target)
        except AttributeError:
            missing.append(target)
    assert len(missing) < 40, missing  # other versions of PyTorch have a few more, or less
    assert all(not name.startswith("_") for name in TENSOR_METHODS | TENSOR_ATTRIBUTES)


@pytest.mark.parametrize(
    "word",
    ["load", "save", "hub", "file", "pickle", "ptr", "storage", "hook", "share_memory", "map_"],
)
def test_no_allowed_name_has(word: str) -> None:
    fine = {"Tensor.storage_offset", "torch.profiler.record_function"}
    assert [t for t in sorted(TARGETS - fine) if word in t.replace("huber", "")] == []


def test_a_lie_about_a_class_is_found_when_it_runs() -> None:
    """A cast may call anything a Class; the names of fields are then not the class's own."""
    classes = [
        {
            "id": "P",
            "name": "P",
            "kind": "record",
            "fields": [["_version", True, True, True, None]],
        }
    ]
    text = program("%p: Class['P'] = cast(%x)", "%1: Any = attr.get(%p) {name='_version'}")
    data = forge(F, manifest={"classes": classes}, code={"code/same.ir": text})
    with pytest.raises(AttributeError, match="_version"):
        lt.load(io.BytesIO(data))(torch.ones(2))


def test_json_of_the_manifest_is_plain() -> None:
    manifest = json.loads(parts_of(M)["lowtide.json"])
    assert manifest["format"] == limits.FORMAT
