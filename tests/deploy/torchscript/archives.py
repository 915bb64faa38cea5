"""Files of torch.jit.save, whole and forged, and what torch.jit.load says of them.

In: a module, or the parts of a file. Out: bytes; `read(data)` is what Lowtide reads.

    data = saved(torch.jit.script(Everything()))
    forged(data, data_pkl=pickle_of("(", "t"))      the same file with another pickle
"""

# torch.jit reads the annotations of classes, which may not be text.
import enum
import io
import pickle
import struct
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import torch
from torch import Tensor, nn

from lowtide.deploy.archive import open_archive
from lowtide.deploy.storages import placing
from lowtide.deploy.torchscript import reader
from lowtide.deploy.torchscript.pickles import EnumMember, Instance
from lowtide.deploy.torchscript.reader import OldArchive
from tests.deploy.forge import packed, parts_of


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    count: int
    value: Tensor


@torch.jit.script
class Plain:
    def __init__(self, x: int) -> None:
        self.x = x
        self.table = {"a": x}


class Part(nn.Module):
    """A state of its own, as quantized and sparse modules of PyTorch have."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.ones(2)
        self.n = 3

    @torch.jit.export
    def __getstate__(self) -> Tuple[Tensor, bool, int]:  # noqa: UP006
        return self.w, self.training, self.n

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool, int]) -> None:  # noqa: UP006
        self.w, self.training, self.n = state

    def forward(self, x: Tensor) -> Tensor:
        return x + self.w


class Everything(nn.Module):
    """Attributes of all kinds of values, tensors that share memory."""

    colour: Colour
    pair: Pair

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.tied = nn.Linear(3, 2)
        self.tied.weight = self.fc.weight
        self.part = Part()
        self.register_buffer("turned", self.fc.weight.detach().t())
        self.register_buffer("row", self.fc.weight.detach()[1])
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.wide = torch.ones(1).expand(3, 4)
        self.none = torch.jit.Attribute(None, Optional[int])  # noqa: UP045
        self.ints, self.floats, self.texts = [1, 300, -5, 2**40], [1.5, float("inf")], ["a", "é"]
        self.flags = torch.jit.Attribute([True], List[bool])  # noqa: UP006
        self.tensors = [torch.ones(1), self.hidden]
        self.no_ints = torch.jit.Attribute([], List[int])  # noqa: UP006
        self.nested = [[1], [2, 3]]
        self.pairs = torch.jit.Attribute([(1, "a")], List[Tuple[int, str]])  # noqa: UP006
        self.of_text, self.of_int = {"a": torch.ones(2), "b": self.hidden}, {1: 2.5}
        self.deep = torch.jit.Attribute({"a": {1: [2]}}, Dict[str, Dict[int, List[int]]])  # noqa: UP006
        self.tuple = (1, "x", None, 2.5, True, (torch.ones(1),))
        self.number = torch.jit.Attribute(1 + 2j, complex)
        self.device = torch.device("cpu")
        self.colour = Colour.BLUE
        self.pair = Pair(3, torch.ones(1))
        self.plain = Plain(3)

    def forward(self, x: Tensor, colour: Colour) -> Tensor:
        y = self.part(x + torch.tensor([1.0, 2.0]))
        if colour == Colour.RED and self.colour == colour:
            y = y + 1
        return self.fc(y) + self.tied(y) + self.plain.x + self.pair.count


class Holder(nn.Module):
    """One tensor."""

    def __init__(self, t: Tensor) -> None:
        super().__init__()
        self.t = t

    def forward(self, x: Tensor) -> Tensor:
        return x


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tensor([1.0, 2.0])


def scripted(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(module)


def traced(module: nn.Module, x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, x)


def saved(module: Any, extra: dict[str, str] | None = None) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module.save_to_buffer(_extra_files=extra or {})


def jit_loaded(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(io.BytesIO(data))


def read(data: Any, map_location: Any = None) -> OldArchive:
    with open_archive(data) as opened:
        return reader.read(opened, placing(map_location))


def state_of(value: object) -> dict[str, Any]:
    """The attributes of an object of the archive."""
    assert isinstance(value, Instance)
    assert isinstance(value.state, dict)
    return value.state


def check_same(ours: Any, theirs: Any) -> None:
    """The value is what torch.jit.load gives."""
    if isinstance(ours, Instance):
        if isinstance(ours.state, tuple):  # of `Part`
            ours = Instance(ours.cls, dict(zip(("w", "training", "n"), ours.state, strict=True)))
        for name, value in state_of(ours).items():
            check_same(value, getattr(theirs, name))
    elif isinstance(ours, EnumMember):
        assert ours.value == theirs.value
    elif isinstance(ours, Tensor):
        check_same_tensor(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            check_same(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            check_same(a, b)
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def check_same_tensor(ours: Tensor, theirs: Tensor) -> None:
    for name in ("dtype", "shape", "device", "layout", "requires_grad", "is_leaf", "is_quantized"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.is_conj(), ours.is_neg()) == (theirs.is_conj(), theirs.is_neg())
    if ours.layout is not torch.strided:
        assert torch.equal(ours.to_dense(), theirs.to_dense())
        return
    assert (ours.stride(), ours.storage_offset()) == (theirs.stride(), theirs.storage_offset())
    assert memory_of(ours) == memory_of(theirs)
    assert not ours._is_view()
    if ours.is_quantized:
        assert torch.equal(ours.dequantize(), theirs.dequantize())


def memory_of(t: Tensor) -> bytes:
    """The bytes of its storage."""
    return bytes(t.untyped_storage().tolist())


def name_of(data: bytes) -> str:
    return next(iter(parts_of(data))).partition("/")[0]


def forged(
    data: bytes,
    *,
    data_pkl: bytes | None = None,
    parts: dict[str, bytes] | None = None,
    without: str = "",
) -> bytes:
    """The file with other records; their names are those below the top folder."""
    top = name_of(data)
    found = {n.partition("/")[2]: raw for n, raw in parts_of(data).items()}
    found.update(parts or {})
    if data_pkl is not None:
        found["data.pkl"] = data_pkl
    found.pop(without, None)
    return packed({f"{top}/{name}": raw for name, raw in found.items()})


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def name(value: str) -> bytes:
    module, _, last = value.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def integer(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def row(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"t"


def pickle_of(*parts: bytes) -> bytes:
    """A pickle of one value."""
    return b"\x80\x02" + b"".join(parts) + b"."


def module_of(value: bytes, cls: str = "__torch__.M") -> bytes:
    """The pickle of a module with one attribute `x`."""
    return pickle_of(name(cls), b")\x81}(", text("x"), value, b"ub")


def storage(count: int, key: str = "0", kind: str = "Float", place: str = "cpu") -> bytes:
    named = name(f"torch.{kind}Storage")
    return row(text("storage"), named, text(key), text(place), integer(count)) + b"Q"


def tensor(
    stored: bytes, offset: int = 0, size: tuple[int, ...] = (2,), strides: tuple[int, ...] = (1,),
    grad: bool = False, more: bytes = b"",
) -> bytes:  # fmt: skip
    return name("torch._utils._rebuild_tensor_v2") + row(
        stored, integer(offset), row(*map(integer, size)), row(*map(integer, strides)),
        b"\x88" if grad else b"\x89", name("collections.OrderedDict") + b")R", more,
    ) + b"R"  # fmt: skip


class _Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


EVIL = pickle.dumps(_Evil(), 2)
