"""Parts of a saved module: what can be called of them, and what it costs the file."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.api.script_method import ScriptMethod
from tests.deploy.roundtrip import through_file


class Block(nn.Module):
    def __init__(self, n: int, scale: float = 1.0) -> None:
        super().__init__()
        self.fc = nn.Linear(n, n)
        self.norm = nn.BatchNorm1d(n)
        self.drop = nn.Dropout(0.5)
        self.scale = scale
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.mix(x, 2) if self.training else self.fc(x)
        return self.norm(self.drop(y)) * self.scale

    def blend(self, x, n):
        return self.fc(x) * n

    def mix(self, x: Tensor, k: int = 1, bias: Tensor | None = None) -> Tensor:
        y = self.fc(x) * k
        return y if bias is None else y + bias


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(3), Block(3, 2.0), Block(3)])
        self.names = {"a": 1}

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def encode(self, x, pair):
        a, b = pair
        return self(x) * a + b

    def unused(self, x: Tensor) -> Tensor:
        return x

    @lt.export
    def exported(self, x: Tensor) -> Tensor:
        return x + len(self.names)


class Quiet(nn.Module):
    """Nothing calls it; what it calls is known once it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.block.blend(x, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.extra = nn.Linear(3, 3)
        self.quiet = nn.ModuleList([Quiet(), Quiet()])
        self.tied = self.encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder.encode(self.tied(x), (2, 3.0))) + self.helper(x)

    def helper(self, x: Tensor) -> Tensor:
        return x.sum()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 3)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def saved(c: Any) -> bytes:
    file = io.BytesIO()
    lt.save(c, file)
    return file.getvalue()


def manifest(data: bytes) -> Any:
    return json.loads(zipfile.ZipFile(io.BytesIO(data)).read("lowtide.json"))


def test_submodules_and_their_methods(net: Net, x: Tensor) -> None:
    m = through_file(lt.script(net))
    close(m.encoder(x), net.encoder(x))
    close(m.encoder.layers[1](x), net.encoder.layers[1](x))
    close(m.encoder.layers[0].mix(x, 3), net.encoder.layers[0].mix(x, 3))
    close(m.encoder.layers[0].mix(x, bias=x), net.encoder.layers[0].mix(x, bias=x))
    close(m.encoder.layers[2].norm(x), net.encoder.layers[2].norm(x))
    close(m.encoder.encode(x, (2, 3.0)), net.encoder.encode(x, (2, 3.0)))
    close(m.encoder.exported(x), x + 1)
    close(m.head(x), net.head(x))
    close(m.head[0](x), net.head[0](x))
    close(m.extra(x), net.extra(x))
    close(m.helper(x), x.sum())
    assert m.tied is m.encoder
    for inner in m.encoder.layers:
        assert inner(x).shape == x.shape


def test_what_only_parts_call(net: Net, x: Tensor) -> None:
    c = lt.script(net)
    data = saved(c)
    assert saved(c) == data
    m = lt.load(io.BytesIO(data))
    for loaded, own in zip(m.quiet, net.quiet, strict=True):
        close(loaded(x), own(x))
        close(loaded.block.blend(x, 3), own.block.blend(x, 3))


def test_both_modes_and_state_that_is_assigned(net: Net, x: Tensor) -> None:
    m = through_file(lt.script(net))
    layer, own = m.encoder.layers[0], net.encoder.layers[0]
    for mode in (True, False):
        net.train(mode)
        m.train(mode)
        torch.manual_seed(1)
        expected = own(x)
        torch.manual_seed(1)
        close(layer(x), expected)
    assert layer.calls == own.calls == 2
    close(layer.norm.running_mean, own.norm.running_mean)


def test_training_goes_on(net: Net, x: Tensor) -> None:
    m = through_file(lt.script(net))
    for one in (m.encoder, net.encoder):
        one.encode(x, (2, 3.0)).square().sum().backward()
    for a, b in zip(m.parameters(), net.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            close(a.grad, b.grad)
    before = m.encoder(x)
    torch.optim.SGD(m.encoder.parameters(), lr=0.1).step()
    assert not torch.equal(m.encoder(x), before)
    assert not torch.equal(m(x), net(x))


def test_moved_replaced_copied_and_hooked(net: Net, x: Tensor) -> None:
    m = through_file(lt.script(net))
    twin = copy.deepcopy(m)
    m.double()
    close(m.head(x.double()), net.head(x).double())
    close(twin.head(x), net.head(x))
    m.float().encoder.load_state_dict(Encoder().state_dict())
    assert not torch.equal(m.encoder(x), net.encoder(x))
    twin.head[0] = m.extra
    close(twin.head[0](x), net.extra(x))
    seen: list[Tensor] = []
    handle = twin.extra.register_forward_hook(lambda module, args, result: seen.append(result))
    close(twin.extra(x), net.extra(x))
    assert len(seen) == 1
    handle.remove()
    twin.extra(x)
    assert len(seen) == 1


def test_saved_again_parts_stay(net: Net, x: Tensor) -> None:
    c = lt.script(net)
    data = saved(c)
    assert data == saved(c)
    again = through_file(c)
    assert saved(again) == data
    close(through_file(again).encoder.layers[1].mix(x), net.encoder.layers[1].mix(x))
    alone = through_file(again.encoder)
    close(alone.layers[0](x), net.encoder.layers[0](x))


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner.encoder.layers:
            x = layer.mix(x, 2)
        return self.inner.head[0](self.inner.encoder.exported(x))


def test_inside_another_that_is_scripted_and_saved(net: Net, x: Tensor) -> None:
    eager = Outer(net)
    compiled = lt.script(Outer(through_file(lt.script(net))))
    close(compiled(x), eager(x))
    m = through_file(compiled)
    close(m(x), eager(x))
    close(m.inner(x), net(x))
    close(m.inner.encoder.layers[1](x), net.encoder.layers[1](x))


class Sequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        self.other = Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.other(x))


class Half(nn.Module):
    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        return self.whole.head[:2](x) + self.whole.head[0](x)


def test_slices_of_a_sequential() -> None:
    plain, x = Heads(), torch.rand(3, 4)
    loaded = through_file(lt.script(plain))
    for part in (slice(2), slice(1, None), slice(None, None, 2), slice(0, 0)):
        found, expected = loaded.head[part], plain.head[part]
        assert list(dict(found.named_children())) == list(dict(expected.named_children()))
        for sliced in (found, through_file(lt.script(found))):
            torch.testing.assert_close(sliced(x), expected(x))
    half = lt.script(Half(loaded))
    torch.testing.assert_close(through_file(half)(x), Half(plain)(x))
    with pytest.raises(NotImplementedError, match=r"has no forward"):
        loaded.other[:1](x)  # of the user's class, whose forward is not in the file


def test_what_was_called_before_saving(net: Net, x: Tensor) -> None:
    c = lt.script(net)
    with pytest.raises(TypeError, match="was saved for"):
        through_file(c).encoder.encode(x, ("a", "b"))
    c.encoder.encode(x, (x, x))
    m = through_file(c)
    close(m.encoder.encode(x, (x, x)), net.encoder.encode(x, (x, x)))
    close(m.encoder.encode(x, (2, 3.0)), net.encoder.encode(x, (2, 3.0)))


def test_what_has_no_program_tells_what_has(net: Net, x: Tensor) -> None:
    m = through_file(lt.script(net))
    with pytest.raises(NotImplementedError, match=r"ModuleList has no forward\(\).*Net.*`forward`"):
        m.encoder.layers(x)
    with pytest.raises(
        AttributeError, match=r"'unused'.*called of Encoder.*`forward`, `exported`, `encode`;"
    ):
        m.encoder.unused(x)
    assert "return" in str(m.encoder.graph)
    assert not hasattr(m.encoder, "unused")
    traced = through_file(lt.trace(net, x))
    with pytest.raises(NotImplementedError, match=r"called of Net, .*is `forward`;"):
        traced.encoder(x)


class NotAlone(nn.Module):
    """Its method compiles where it is called only."""

    def forward(self, x: Tensor, f: Any) -> Tensor:
        return f(x)

    @lt.ignore
    def plot(self, x: Tensor) -> Tensor:
        return x

    @lt.export
    def drawn(self, x: Tensor) -> Tensor:
        return self.plot(x)


class Never(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return open(str(x))


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.fc, self.unused = NotAlone(), nn.Linear(3, 3), Never()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.fc(x), torch.relu)


def test_parts_that_cannot_be_saved_are_left_out(x: Tensor) -> None:
    whole = Whole()
    m = through_file(lt.script(whole))
    close(m(x), whole(x))
    close(m.fc(x), whole.fc(x))
    with pytest.raises(NotImplementedError, match="Never has no forward"):
        m.unused(x)
    with pytest.raises(AttributeError, match="'drawn'"):
        m.part.drawn(x)


def test_hooks_of_a_part_are_not_lost(net: Net, x: Tensor) -> None:
    net.extra.register_forward_hook(_negated)
    m = through_file(lt.script(net))
    with pytest.raises(NotImplementedError, match="no forward"):
        m.extra(x)
    close(m.head(x), net.head(x))


def _negated(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return -result


# ---- alike ------------------------------------------------------------------------------------


def entry(rows: Any, name: str, place: int) -> Any:
    return next(e for e in rows["entries"] if e["name"] == name and place in e["modules"])


def test_modules_that_are_alike_share_their_programs(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.quiet = nn.ModuleList()
    c, made = lt.script(net), list[str]()
    make = ScriptMethod._make
    monkeypatch.setattr(
        ScriptMethod, "_make", lambda m, types: made.append(m.__qualname__) or make(m, types)
    )
    data = saved(c)
    assert made.count("Block.forward") == made.count("BatchNorm1d.forward") == 1  # of three
    rows = manifest(data)
    blocks = [k for k, row in enumerate(rows["modules"]) if row["class"] == "Block"]
    assert entry(rows, "forward", blocks[0])["modules"] == blocks
    codes = [n for n in zipfile.ZipFile(io.BytesIO(data)).namelist() if n.startswith("code/")]
    assert "code/encoder.layers.0.forward.ir" in codes
    assert not [n for n in codes if "layers.1" in n or "layers.2" in n]


class Odd(nn.Module):
    __constants__ = ("k",)

    def __init__(self, k: int, act: Any = torch.relu, tied: bool = False) -> None:
        super().__init__()
        self.k, self.act = k, act
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        if tied:
            self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.a(x))
        for _ in range(self.k):
            y = self.b(y)
        return y


@pytest.mark.parametrize(
    "others",
    [(Odd(1), Odd(2)), (Odd(1), Odd(1, torch.tanh)), (Odd(1), Odd(1, tied=True), Odd(1))],
)
def test_modules_that_only_look_alike(others: tuple[nn.Module, ...]) -> None:
    net = nn.Sequential(*others)
    m, x = through_file(lt.script(net)), torch.randn(3, 2)
    for k, one in enumerate(others):
        close(m[k](x), one(x))
    with torch.no_grad():
        m[1].a.weight.zero_()
        m[1].a.bias.zero_()
        net[1].a.weight.zero_()
        net[1].a.bias.zero_()
    close(m[1](x), net[1](x))


def test_transformer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net, x = nn.TransformerEncoder(layer, 6).eval(), torch.rand(2, 5, 8)
    data = saved(lt.script(net))
    m = lt.load(io.BytesIO(data))
    with torch.no_grad():
        for own, loaded in zip(net.layers, m.layers, strict=True):
            close(loaded(x), own(x))
            close(loaded.self_attn(x, x, x)[0], own.self_attn(x, x, x)[0])
            close(loaded.linear1(x), own.linear1(x))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        whole, *parts = (i for i in archive.infolist() if i.filename.startswith("code/"))
    assert sum(i.compress_size for i in parts) < whole.compress_size / 2


# ---- global tensors ---------------------------------------------------------------------------

WEIGHTS = torch.arange(3.0)


class Weighed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * WEIGHTS


def test_global_tensors_of_parts(x: Tensor) -> None:
    net = nn.Sequential(nn.Linear(3, 3), Weighed(), Weighed())
    m = through_file(lt.script(net))
    close(m(x), net(x))
    close(m[1](x), net[1](x))
    assert m.state_dict().keys() == net.state_dict().keys()
    assert len(list(net.modules())) == 4
    assert len({b.data_ptr() for b in m.buffers()}) == 1
    close(through_file(m)[2](x), net[2](x))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(3, 3)

    def forward(self, x: Tensor, state: Any) -> Tensor:
        return self.rnn(x, state)[0]


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, nn.LSTM])
def test_layer_called_without_the_state_that_the_program_gives_it(kind: type[nn.RNNBase]) -> None:
    net, x, zeros = Recurrent(kind), torch.randn(4, 2, 3), torch.zeros(1, 2, 3)
    state = (zeros, zeros) if kind is nn.LSTM else zeros
    c = lt.script(net)
    expected = c(x, state)
    m = through_file(c)
    close(m.rnn(x), net.rnn(x))
    close(m.rnn(x, state)[0], expected)
    close(m(x, state), expected)


# ---- the class style --------------------------------------------------------------------------


class Style(lt.ScriptModule):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(3)

    @lt.script_method
    def forward(self, x: Tensor) -> Tensor:
        return self.block.mix(x)


def test_class_style(x: Tensor) -> None:
    c = Style().eval()
    m = through_file(c)
    close(m.block(x), c.block(x))
    close(m.block.mix(x, 2), c.block.mix(x, 2))
    close(m.block.fc(x), c.block.fc(x))


def test_frozen(net: Net, x: Tensor) -> None:
    m = through_file(lt.freeze(lt.script(net)))
    close(m.encoder.layers[1](x), net.encoder.layers[1](x))
    frozen = lt.freeze(through_file(lt.script(net)))
    close(frozen.encoder(x), net.encoder(x))
    assert not list(frozen.parameters())
