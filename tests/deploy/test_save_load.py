"""What a saved function or module is after loading."""

from __future__ import annotations

import copy
import dataclasses
import enum
import io
import os
import re
import traceback
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.deploy.adopted import classes_of
from tests.deploy.roundtrip import through_file


class Color(enum.Enum):
    RED = 1
    GREEN = "g"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 2.0
    tag: str = dataclasses.field(default="p", repr=False, compare=False)


@dataclasses.dataclass(frozen=True, order=True)
class Ranked:
    rank: int
    name: str


class Pair(NamedTuple):
    a: Tensor
    n: int = 3


class OddError(ValueError):
    pass


class Net(nn.Module):
    scale: float

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 10, bias=False)
        self.out.weight = self.embed.weight
        self.scale = 2.0
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("hidden", torch.ones(4), persistent=False)

    def forward(self, i: Tensor) -> Tensor:
        self.seen += 1
        x = self.drop(self.norm(self.embed(i))) * self.hidden
        return self.out(x * self.scale)

    @lt.export
    def encode(self, i: Tensor, k: int = 2) -> Tensor:
        return self.embed(i) * k


I = torch.tensor([1, 2, 3])  # noqa: E741


def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    c = lt.script(Net())
    return c, through_file(c)


def saved(c: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    lt.save(c, file, **options)
    return file.getvalue()


# ---- modules ----------------------------------------------------------------------------------


def test_module_comes_back_with_its_state() -> None:
    c, m = pair()
    assert isinstance(m, lt.ScriptModule)
    assert m.original_name == "Net"
    assert repr(m) == repr(c)
    assert list(m.state_dict()) == list(c.state_dict())
    assert [n for n, _ in m.named_buffers()] == [n for n, _ in c.named_buffers()]
    assert m.scale == 2.0
    assert m.norm.eps == c.norm.eps
    for a, b in zip(c.state_dict().values(), m.state_dict().values(), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


def test_entry_points_and_modes() -> None:
    c, m = pair()
    torch.manual_seed(1)
    expected = c(I)
    torch.manual_seed(1)
    assert torch.equal(m(I), expected)
    assert torch.equal(m.eval()(I), c.eval()(I))
    assert torch.equal(m.encode(I, k=3), c.encode(I, 3))
    assert torch.equal(m.encode(I), c.encode(I))
    assert m.seen == 2
    assert not m.norm.training


def test_shared_parameters_stay_shared() -> None:
    _, m = pair()
    assert m.out.weight is m.embed.weight
    assert len(list(m.parameters())) == 3
    archive = zipfile.ZipFile(io.BytesIO(saved(m)))
    assert archive.read("state.safetensors").count(b"weight") == 2  # embed.weight, norm.weight


def test_training_goes_on_after_loading() -> None:
    c, m = pair()
    modules = (c.eval(), m.eval())
    makers = [torch.optim.Adam(x.parameters(), lr=0.1) for x in modules]
    for _ in range(4):
        losses: list[float] = []
        for module, optimizer in zip(modules, makers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(I), I)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == losses[1]
    for a, b in zip(c.parameters(), m.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.grad, b.grad)


def test_saved_again_the_file_is_the_same() -> None:
    c, m = pair()
    assert saved(c) == saved(c) == saved(m)
    assert saved(through_file(m)) == saved(c)


def test_to_and_load_state_dict_and_deepcopy() -> None:
    c, m = pair()
    twin = copy.deepcopy(m.eval())
    m.to(torch.float64)
    assert m.encode(I).dtype == torch.float64
    m.float().load_state_dict(Net().state_dict())
    assert not torch.equal(m.encode(I), c.encode(I))
    assert torch.equal(twin(I), c.eval()(I))
    assert twin.out.weight is twin.embed.weight


def test_parameters_that_do_not_require_grad() -> None:
    c, _ = pair()
    c.embed.weight.requires_grad_(False)
    m = through_file(c)
    assert [p.requires_grad for p in m.parameters()] == [p.requires_grad for p in c.parameters()]


def test_a_state_without_a_program_is_an_error_that_tells() -> None:
    _, m = pair()
    m.scale = "x"
    with pytest.raises(lt.CompileError, match="saved for other attributes"):
        m(I)
    _, m = pair()
    m.norm.register_forward_hook(lambda *_: None)
    with pytest.raises(lt.CompileError, match=r"`self\.norm` has a hook"):
        m(I)
    _, m = pair()
    with pytest.raises(TypeError, match=r"saved for \(Tensor\)"):
        m("x")


def test_containers_and_frozen_modules() -> None:
    c = lt.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))).eval()
    x = torch.rand(3, 4)
    m = through_file(c)
    assert len(m) == 3
    assert [x.original_name for x in m] == ["Linear", "ReLU", "Linear"]
    assert torch.equal(m(x), c(x))
    frozen = lt.freeze(c)
    assert torch.equal(through_file(frozen)(x), c(x))


def test_class_style() -> None:
    class Style(lt.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.count = 0

        @lt.script_method
        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return self.twice(self.fc(x))

        @lt.script_method
        def twice(self, x: Tensor) -> Tensor:
            return x * 2

    c = Style()
    m = through_file(c)
    x = torch.rand(3, 2)
    assert torch.equal(m(x), c(x))
    assert torch.equal(m.twice(x), x * 2)
    assert m.count == 1


def test_attributes_of_every_kind() -> None:
    class Simple(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.big, self.nan, self.z = 2**70, float("nan"), 1 - 2j
            self.kind, self.place = torch.bfloat16, torch.device("cpu")
            self.names = ["a", "b"]
            self.same = self.names
            self.table = {"t": torch.ones(2), 3: (1, (2.5, None))}
            self.loop: list[Any] = []
            self.logger = object()

        def forward(self, x: Tensor) -> Tensor:
            self.names.append("c")
            return x * len(self.names)

    m = through_file(lt.script(Simple()))
    assert (m.big, m.z, m.kind, m.place) == (2**70, 1 - 2j, torch.bfloat16, torch.device("cpu"))
    assert m.nan != m.nan
    assert m.names is m.same
    assert torch.equal(m.table["t"], torch.ones(2))
    assert m.table[3] == (1, (2.5, None))
    assert not hasattr(m, "logger")
    assert torch.equal(m(torch.ones(2)), torch.full((2,), 3.0))
    assert m.same == ["a", "b", "c"]


# ---- tensors ----------------------------------------------------------------------------------


class Held(nn.Module):
    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return x


def through_buffers(**buffers: Tensor) -> dict[str, Tensor]:
    return dict(through_file(lt.script(Held(**buffers))).named_buffers())


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(torch.bool, torch.uint16, torch.float8_e5m2, torch.float8_e4m3fn, torch.complex32),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    raw = torch.arange(96, dtype=torch.uint8)
    values = (raw % 2).bool() if dtype == torch.bool else raw.view(dtype)
    found = through_buffers(a=values, scalar=values[3], empty=values[:0], matrix=values.view(2, -1))
    expected = {"a": values, "scalar": values[3], "empty": values[:0], "matrix": values.view(2, -1)}
    for name, tensor in expected.items():
        assert found[name].dtype == dtype
        assert found[name].shape == tensor.shape
        assert bytes(found[name].contiguous().view(-1).view(torch.uint8).tolist()) == bytes(
            tensor.contiguous().view(-1).view(torch.uint8).tolist()
        )


def test_views_share_and_keep_strides() -> None:
    base = torch.arange(24.0)
    found = through_buffers(
        base=base, t=base.view(4, 6).t(), row=base[6:12], bits=base.view(torch.int32)[1:3]
    )
    assert found["t"].stride() == (1, 6)
    found["base"][7] = -1
    assert found["row"][1] == -1
    assert found["t"][1, 1] == -1
    assert found["bits"].view(torch.float32).tolist() == [1.0, 2.0]


def test_only_what_is_reached_is_written() -> None:
    large = torch.zeros(1 << 20)
    data = saved(lt.script(Held(a=large[100:104], e=torch.ones(1).expand(1000))))
    assert len(data) < 10_000
    last = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = through_buffers(last=last)
    assert found["last"].stride() == last.stride()
    assert torch.equal(found["last"], last)


def test_safetensors_reads_the_state(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    c = lt.script(nn.Linear(3, 2, dtype=torch.bfloat16))
    path = tmp_path / "m.lt"
    c.save(path)
    with zipfile.ZipFile(path) as archive:
        archive.extract("state.safetensors", tmp_path)
    found = library.load_file(tmp_path / "state.safetensors")
    assert sorted(found) == ["bias", "weight"]
    assert torch.equal(found["weight"], c.weight)


# ---- functions and classes --------------------------------------------------------------------


def test_function_for_the_types_that_were_used() -> None:
    @lt.script
    def f(x, n=3):
        return x * n

    with pytest.raises(TypeError, match="saved for"):
        through_file(f)("a", 2)
    f("a", 2), f(2.5, 2)
    g = through_file(f)
    assert g("a", 2) == "aa"
    assert g(2.5, 2) == 5.0
    assert g("ab") == "ababab"
    with pytest.raises(TypeError, match="saved for"):
        g([1], 2)


def make(color: Color, p: Point) -> tuple[Color, Point, Ranked, Pair]:
    q = Point(p.x + 1)
    q.y = p.y
    if color == Color.RED:
        return Color.GREEN, q, Ranked(1, "a"), Pair(torch.ones(2))
    return Color.RED, p, Ranked(2, "b"), Pair(torch.ones(2), 4)


def test_classes_come_from_the_file() -> None:
    m = through_file(lt.script(make))
    classes: dict[str, Any] = classes_of(m)
    assert sorted(classes) == ["Color", "Pair", "Point", "Ranked"]
    point = classes["Point"](1.0)
    assert repr(point) == "Point(x=1.0, y=2.0)"
    assert point == classes["Point"](1.0, 2.0, "q") != classes["Point"](2.0)
    color, q, ranked, pair_ = m(Color.RED, point)  # a member of an enum of the same name will do
    assert color is classes["Color"].GREEN
    assert color.value == "g"
    assert (q.x, q.y) == (2.0, 2.0)
    assert ranked < classes["Ranked"](1, "b")
    assert hash(ranked) == hash(classes["Ranked"](1, "a"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        ranked.rank = 3
    assert isinstance(pair_, tuple)
    assert pair_._fields == ("a", "n")
    assert pair_.n == 3
    assert pair_._replace(n=5).n == 5
    with pytest.raises(TypeError, match="saved for"):
        m(color, Point(1.0, 2.0))
    # Equal class tables give the same classes.
    assert through_file(m)(color, point)[0] is type(color).RED


def fails(n: int) -> int:
    if n > 1:
        raise OddError(f"n is {n}")
    warnings.warn("small")  # noqa: B028
    assert n > 0, "not positive"
    return n


def test_any_exception_of_pythons_own_with_keywords() -> None:
    def imported(x: Tensor, name: str) -> Tensor:
        if name != "lowtide":
            raise ImportError("not there", name=name)
        return x

    compiled = lt.script(imported)
    compiled(torch.ones(2), "lowtide")
    loaded = through_file(compiled)
    with pytest.raises(ImportError, match="not there") as caught:
        loaded(torch.ones(2), "other")
    assert caught.value.name == "other"


def test_an_exception_that_ends_python_is_refused() -> None:
    def leaving(n: int) -> int:
        if n > 3:
            raise SystemExit(n)
        return n

    compiled = lt.script(leaving)
    compiled(1)
    with pytest.raises(lt.CompileError, match=r"raise SystemExit\(n\)"):
        lt.save(compiled, io.BytesIO())


def test_exceptions_and_the_users_line() -> None:
    m = through_file(lt.script(fails))
    with pytest.raises(ValueError, match="n is 2") as caught:
        m(2)
    assert type(caught.value).__name__ == "OddError"
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("fails", 'raise OddError(f"n is {n}")')
    with pytest.warns(UserWarning, match="small"), pytest.raises(AssertionError):
        m(0)


def test_no_grad_is_saved() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return y + x

    m = through_file(lt.script(f))
    x = torch.ones(2, requires_grad=True)
    m(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


# ---- files ------------------------------------------------------------------------------------


def scaled(x: Tensor) -> Tensor:
    return x * 2


def test_paths_objects_and_extra_files(tmp_path: Path) -> None:
    f = lt.script(scaled)
    path = tmp_path / "f.lt"
    f.save(path, _extra_files={"notes/a.txt": "hello", "b": b"\x00\x01"})
    f.save(str(path), {"notes/a.txt": "hello", "b": b"\x00\x01"})
    extra: dict[str, Any] = {"notes/a.txt": "", "b": "", "absent": "kept"}
    for source in (path, str(path), os.fspath(path)):
        assert lt.load(source, _extra_files=extra)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert extra == {"notes/a.txt": b"hello", "b": b"\x00\x01", "absent": "kept"}
    with path.open("rb") as file:
        assert lt.load(file)(torch.ones(1)).item() == 2
    assert lt.load(path.read_bytes())(torch.ones(1)).item() == 2
    with pytest.raises(ValueError, match="extra file"):
        f.save(path, {"../a": "x"})
    with pytest.raises(FileNotFoundError):
        lt.load(tmp_path / "absent.lt")
    with pytest.raises(TypeError, match="path or a seekable binary file"):
        lt.load(3)
    with pytest.raises(TypeError, match=r"lt\.script"):
        lt.save(scaled, path)


def test_the_mode_of_a_new_file_is_that_of_any(tmp_path: Path) -> None:
    lt.script(scaled).save(tmp_path / "f.lt")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "f.lt").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.lt"
    path.write_bytes(b"before")

    class Left(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.plot(x)

        @lt.ignore
        def plot(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(lt.CompileError, match=r"plot[\s\S]*self.plot\(x\)[\s\S]*write instead"):
        lt.script(Left()).save(path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("lowtide.deploy.tensor_file.write", fail)
    with pytest.raises(OSError, match="disk full"):
        lt.script(scaled).save(path)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["m.lt"]


def test_map_location() -> None:
    file = io.BytesIO(saved(lt.script(nn.Linear(2, 2))))

    def device(where: Any) -> str:
        file.seek(0)
        return lt.load(file, map_location=where).weight.device.type

    assert device(None) == device("cpu") == device({"cuda:0": "cpu"}) == "cpu"
    assert device("meta") == device(torch.device("meta")) == device({"cpu": "meta"}) == "meta"
    with pytest.raises(TypeError, match="not supported"):
        device(lambda storage, where: storage)
    if not torch.cuda.is_available():
        with pytest.raises(lt.LoadError, match="map_location is 'cuda'"):
            device("cuda")


def test_what_cannot_be_saved_names_the_remedy() -> None:
    hooked = lt.script(nn.Linear(2, 2))
    hooked.register_forward_hook(lambda *_, **__: None, with_kwargs=True)
    with pytest.raises(lt.CompileError, match="hook"):
        saved(hooked)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    with pytest.raises(lt.CompileError, match="cannot be saved"):
        saved(lt.script(parametrized))
    with pytest.raises(lt.CompileError, match="meta device"):
        saved(lt.script(nn.Linear(2, 2, device="meta")))


def test_traced_programs_are_saved() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x) * x.shape[0]

    weight = torch.rand(3)
    for traced in (
        lt.trace(Scaled(), torch.rand(4, 3)),
        lt.trace(lambda x: x * weight, torch.rand(4, 3)),
    ):
        file = io.BytesIO()
        lt.save(traced, file)
        file.seek(0)
        x = torch.rand(7, 3)
        assert torch.equal(lt.load(file)(x), traced(x))
    nested = lt.trace(lambda xs: xs[0] + xs[1][0], ([torch.rand(2), (torch.rand(2),)],))
    with pytest.raises(lt.CompileError, match="cannot be saved"):
        lt.save(nested, io.BytesIO())


WEIGHTS = torch.arange(3.0)


def weighed(x: Tensor, n: int = 2) -> Tensor:
    return x * WEIGHTS + WEIGHTS.sum() * n


class Weighed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + weighed(x)


def test_global_tensors_are_saved_as_they_are() -> None:
    x = torch.rand(4, 3)
    f = lt.script(weighed)
    net = Weighed()
    m = lt.script(net)
    with torch.no_grad():
        expected = f(x), f(x, 3), m(x)
        loaded_f, loaded_m = through_file(f), through_file(m)
        WEIGHTS.add_(1)
        try:
            assert not torch.equal(f(x), expected[0])
        finally:
            WEIGHTS.sub_(1)
        torch.testing.assert_close(loaded_f(x), expected[0])
        torch.testing.assert_close(loaded_f(x, n=3), expected[1])
        torch.testing.assert_close(loaded_m(x), expected[2])
    assert [n for n, _ in net.named_modules()] == ["", "fc"]
    assert loaded_m.state_dict().keys() == net.state_dict().keys()
    assert len(list(loaded_m.buffers())) == 1
    torch.testing.assert_close(through_file(loaded_m)(x), expected[2])
    torch.testing.assert_close(through_file(loaded_f)(x), expected[0])


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or self.fc._forward_hooks:
            return x
        if any(len(getattr(m, "_forward_pre_hooks", {})) for m in self.modules()):
            return -x
        return self.fc(x)


def _same(module: nn.Module, args: Any) -> None:
    pass


def test_programs_that_ask_for_hooks_are_saved() -> None:
    net, x = Asking(), torch.rand(4, 3)
    m = lt.script(net)
    with torch.no_grad():
        torch.testing.assert_close(through_file(m)(x), net.fc(x))
        net.fc.register_forward_pre_hook(_same)
        torch.testing.assert_close(m(x), -x)


def test_transformers_are_saved() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.rand(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for net in (layer, nn.TransformerEncoder(layer, 2)):
        m = lt.script(net.eval())
        with torch.no_grad():
            m(x, src_key_padding_mask=mask)
            loaded = through_file(m)
            torch.testing.assert_close(loaded(x), net(x))
            got = loaded(x, src_key_padding_mask=mask)
            torch.testing.assert_close(got, net(x, src_key_padding_mask=mask))


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2
    RUN = 4


class Keeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rights = Rights.READ | Rights.RUN
        self.none = Rights(0)

    def forward(self, x: torch.Tensor, asked: Rights):
        return x * int(self.rights), (self.rights & asked) == asked, self.none


def test_flags_together() -> None:
    loaded = through_file(lt.script(Keeper()))
    assert int(loaded.rights) == 5
    x = torch.ones(1)
    assert loaded(x, Rights.READ | Rights.RUN)[1]
    assert not loaded(x, Rights.READ | Rights.WRITE)[1]
    assert loaded(x, Rights.READ)[0].item() == 5.0


def test_freeze_of_what_is_traced_or_loaded() -> None:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), torch.rand(4, 3)
    traced = lt.trace(model, x)
    for made in (
        lt.freeze(traced),
        lt.freeze(through_file(traced)),
        through_file(lt.freeze(traced)),
    ):
        torch.testing.assert_close(made(x), model(x))
        assert not list(made.parameters())


class Words(nn.Module):
    """Special methods of a module, as torchtext's vocabularies have them."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = {"a": 1}

    @lt.export
    def __len__(self) -> int:
        return len(self.ids)

    @lt.export
    def __contains__(self, word: str) -> bool:
        return word in self.ids

    def forward(self, word: str) -> int:
        return self.ids[word] + len(self) if word in self else 0


def test_special_methods_are_no_entry_points(tmp_path: Path) -> None:
    scripted = lt.script(nn.Sequential(Words()))
    assert scripted("a") == 2
    lt.save(scripted, tmp_path / "words.lt")
    loaded: Any = lt.load(tmp_path / "words.lt")
    assert [loaded(w) for w in ("a", "b")] == [2, 0]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    made = lt.script(torch.nn.Linear(2, 2))
    missing = tmp_path / "missing" / "model.lt"
    with pytest.raises(FileNotFoundError, match=r"folder .* does not exist.*missing"):
        lt.save(made, missing)
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        lt.save(made, tmp_path)
    with pytest.raises(TypeError, match="a path or a binary file, not None"):
        lt.save(made, None)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


def test_freeze_of_shared_parameters() -> None:
    net, x = _Tied().eval(), torch.randn(2, 4)
    with torch.no_grad():
        for made in (lt.script(net), lt.trace(net, (x,))):
            for frozen in (lt.freeze(made), lt.freeze(through_file(made).eval())):
                torch.testing.assert_close(frozen(x), net(x))
