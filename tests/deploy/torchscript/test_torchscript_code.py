"""The code in files of torch.jit.save: errors, code that no torch.jit wrote, old versions."""

from __future__ import annotations

import io
import traceback
import zipfile
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from tests.deploy.torchscript import archives as a
from tests.deploy.torchscript.archives import forged, saved, scripted

# ---- where an error is ------------------------------------------------------------------------


class Fails(nn.Module):
    """Fails in three ways."""

    def forward(self, x: Tensor, n: int) -> Tensor:
        if n == 1:
            raise ValueError("one")
        return x + torch.zeros([5])


def _load(data: bytes) -> Any:
    return lt.load(io.BytesIO(data))


@pytest.mark.parametrize(
    ("n", "kind", "line"),
    [(1, ValueError, 'raise ValueError("one")'), (2, RuntimeError, "x + torch.zeros([5])")],
)
def test_an_exception_shows_both_lines(n: int, kind: type[Exception], line: str) -> None:
    m = _load(saved(scripted(Fails())))
    with pytest.raises(kind) as caught:
        m(torch.ones(3), n)
    shown = "".join(traceback.format_exception(caught.value))
    assert "code/__torch__/" in shown
    assert f"written as {__file__}:" in shown
    assert line in shown
    assert "TorchScript" not in str(caught.value)


def test_a_compile_error_shows_both_lines() -> None:
    data = saved(scripted(Fails()))
    m = _load(_with(data, _code(data).replace("torch.zeros([5])", "(x).nothing()")))
    with pytest.raises(lt.CompileError) as caught:
        m(torch.ones(3), 2)
    shown = str(caught.value)
    assert "code/__torch__/" in shown
    assert f"written as {__file__}:" in shown
    assert "x + torch.zeros([5])" in shown


def test_a_load_error_shows_both_lines() -> None:
    data = saved(scripted(Fails()))
    text = _code(data).replace("torch.zeros(", "ops.none.known(")
    with pytest.raises(lt.LoadError, match=r"ops\.none\.known .*code/__torch__"):
        _load(_with(data, text))


def _path(data: bytes) -> str:
    return next(n for n in _names(data) if n.endswith("test_torchscript_code.py"))


def _names(data: bytes) -> list[str]:
    return [n.partition("/")[2] for n in zipfile.ZipFile(io.BytesIO(data)).namelist()]


def _code(data: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        name = next(n for n in z.namelist() if n.endswith(_path(data)))
        return z.read(name).decode()


def _with(data: bytes, text: str) -> bytes:
    return forged(data, parts={_path(data): text.encode()})


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def test_a_file_of_pytorch_1_4() -> None:
    """Classes have two attributes more, which no program reads; storages have a sixth field."""
    new = saved(scripted(Weighted()))
    more = "  __constants__ : List[str]\n  __overloads__ : Dict[str, List[str]]\n  training : bool"
    code = _code(new).replace("  training : bool", more)
    names = a.text("storage"), a.name("torch.FloatStorage"), a.text("0"), a.text("cpu")
    weight = a.tensor(a.row(*names, a.integer(2), b"N") + b"Q", grad=True)
    pairs = (
        a.text("w") + weight, a.text("__constants__") + b"]",
        a.text("__overloads__") + b"}", a.text("training") + b"\x88",
    )  # fmt: skip
    path = code.split("(self: ")[1].split(",")[0]
    made = a.pickle_of(a.name(path), b")\x81}(", *pairs, b"ub")
    m = _load(forged(_with(new, code), data_pkl=made))
    assert torch.equal(m(torch.ones(2)), torch.tensor([2.0, 3.0]))
    assert list(m.state_dict()) == ["w"]


# ---- code that torch.jit would not write --------------------------------------------------------


class Small(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.neg(x)


SMALL = saved(scripted(Small()))
BODY = "return torch.neg(x)"
HEAD = "  def forward(self: __torch__"
DEEP = "torch.neg(" * 3000 + "x" + ")" * 3000

REFUSED_AT_LOAD = {
    "import": "import os\n    return x",
    "exec": 'exec("1")\n    return x',
    "open": 'return open("f")',
    "builtins": 'return __import__("os")',
    "dunder": "return x.__class__",
    "dunder_of_getattr": 'return getattr(x, "__class__")',
    "computed_name": 'return getattr(x, str("a"))',
    "lambda": "return (lambda y: y)(x)",
    "walrus": "return (y := x)",
    "try": "try:\n      pass\n    finally:\n      pass\n    return x",
    "global": "global x1\n    return x",
    "yield": "yield x",
    "set": "return {1, 2}",
    "star": "def f(*a):\n      return a\n    return x",
    "decorator": "@torch.neg\n    def f():\n      return x\n    return x",
    "unbound": "return y1",
    "constant": "return CONSTANTS.c7",
    "own_class": "return __torch__.no.Such(x)",
    "type": "return annotate(Frozen[int], x)",
    "operator": "return torch.no_such_operator(x)",
    "module_of_torch": "return torch.nn.functional.relu(x)",
    "system": 'return torch.os.system("true")',
    "private_call": "return _call(x)",
    "match": "match x:\n      case _:\n        pass\n    return x",
    "class": "class A:\n      pass\n    return x",
    "assert": "assert x\n    return x",
    "async": "async def f():\n      pass\n    return x",
    "matrix": f"return {DEEP}",
}


@pytest.mark.parametrize("body", REFUSED_AT_LOAD.values(), ids=REFUSED_AT_LOAD.keys())
def test_refused_when_it_is_loaded(body: str) -> None:
    with pytest.raises(lt.LoadError):
        _load(_with(SMALL, _code(SMALL).replace(BODY, body)))


OF_CLASSES = {
    "base": ("class Small(Module)", "class Small(dict)"),
    "base_of_torch": ("class Small(Module)", "class Small(torch.nn.Module)"),
    "attribute": ("  training : bool", "  training : bool\n  1 + 1"),
    "dunder": ("  training : bool", "  __class__ : int = 3"),
    "hook": ("  __buffers__ = []", '  __buffers__ = []\n  __forward_hooks__ = ["none"]'),
    "missing": ("class Small", "class Other"),
    "syntax": ("class Small", "class class Small"),
    "null": ("class Small", "\0class Small"),
    "method": (HEAD, "  def __getattr__(self: __torch__.A, n: str):\n    pass\n" + HEAD),
    "kept": ("  training : bool", "  training : bool\n  _modules : int"),
    "twice": (HEAD, "  def forward(self):\n    pass\n" + HEAD),
    "default": ("x: Tensor", "x: Tensor=open()"),
    "half_a_dict": ("x: Tensor", "x: Dict[Tensor]"),
}


@pytest.mark.parametrize(("old", "new"), OF_CLASSES.values(), ids=OF_CLASSES.keys())
def test_classes_are_refused_when_they_are_loaded(old: str, new: str) -> None:
    text = _code(SMALL)
    assert old in text
    with pytest.raises(lt.LoadError):
        _load(_with(SMALL, text.replace(old, new, 1)))


REFUSED_AT_CALL = {
    "recursion": "return (self).forward(x)",
    "arguments": "return torch.neg(x, x, x)",
    "attribute": "return self.nothing",
    "method": "return (x).no_such_method()",
    "index": "return x[[]][self]",
    "type": "return torch.add(self, x)",
}


@pytest.mark.parametrize("body", REFUSED_AT_CALL.values(), ids=REFUSED_AT_CALL.keys())
def test_refused_when_it_is_called(body: str) -> None:
    m = _load(_with(SMALL, _code(SMALL).replace(BODY, body)))
    with pytest.raises((lt.CompileError, TypeError, RuntimeError, RecursionError)) as caught:
        m(torch.ones(2))
    assert "internal" not in str(caught.value)


def test_functions_that_call_each_other() -> None:
    both = "def f(x: Tensor) -> Tensor:\n  return __torch__.tests.g(x)\n"
    more = "def g(x: Tensor) -> Tensor:\n  return __torch__.tests.f(x)\n"
    text = _code(SMALL).replace(BODY, "return __torch__.tests.f(x)")
    data = forged(
        SMALL,
        parts={_path(SMALL): text.encode(), "code/__torch__/tests.py": (both + more).encode()},
    )
    with pytest.raises(lt.LoadError, match=r"__torch__\.tests\.f, which calls itself"):
        _load(data)


def test_without_forward() -> None:
    m = _load(_with(SMALL, _code(SMALL).replace("def forward", "def encode")))
    assert torch.equal(m.encode(torch.ones(2)), -torch.ones(2))
    with pytest.raises(NotImplementedError, match="has no forward"):
        m(torch.ones(2))


def test_each_missing_operator_is_listed() -> None:
    body = "return ops.torchvision.nms2(ops.mine.f(x), ops.mine.f(x))"
    with pytest.raises(lt.LoadError) as caught:
        _load(_with(SMALL, _code(SMALL).replace(BODY, body)))
    shown = str(caught.value)
    assert "ops.mine.f" in shown
    assert "ops.torchvision.nms2" in shown
    assert "from the package torchvision" in shown


def test_python_never_runs_code_of_the_file() -> None:
    """Each code object that Python can reach calls the compiled function, and no more."""
    m = _load(saved(scripted(Fails())))
    root = vars(m)["_lowtide_root"]
    found = [v for v in vars(type(root)).values() if isinstance(v, FunctionType)]
    assert found
    for fn in found:
        assert fn.__code__.co_names == (f"call {fn.__code__.co_names[0][5:]}",)
        assert [c for c in fn.__code__.co_consts if c is not None] == []
    with pytest.raises(ValueError, match="one"):
        type(root).forward(root, torch.ones(5), 1)
    assert torch.equal(type(root).forward(root, torch.ones(5), 0), torch.ones(5))


# ---- old versions -----------------------------------------------------------------------------


def _of_version(data: bytes, version: int) -> bytes:
    name = next(n for n in (".data/version", "version") if n in _names(data))
    return forged(data, parts={name: str(version).encode() + b"\n"})


N, X = torch.tensor([7, -7, 8]), torch.tensor([7.0, -7.0, 8.0])
OLD = [
    ("torch.div(x, 2)", 3, N, torch.tensor([3, -3, 4])),
    ("torch.div(x, 2)", 4, N, torch.tensor([3.5, -3.5, 4.0])),
    ("torch.div(x, 2)", 3, X, torch.tensor([3.5, -3.5, 4.0])),
    ("torch.div(x, 2.)", 3, N, torch.tensor([3.5, -3.5, 4.0])),
    ("torch.div(x, torch.mul(x, 2))", 3, N, torch.tensor([0, 0, 0])),
    ('torch.div(x, 2, rounding_mode="floor")', 3, N, torch.tensor([3, -4, 4])),
    ("torch.div_(x, 2)", 3, N, torch.tensor([3, -3, 4])),
    ("torch.full([2], 3)", 4, N, torch.tensor([3.0, 3.0])),
    ("torch.full([2], 3)", 5, N, torch.tensor([3, 3])),
    ("torch.full([2], 3, dtype=4)", 4, N, torch.tensor([3, 3])),
    ("torch.linspace(0, 1, None)", 7, N, torch.linspace(0, 1, 100)),
    ("torch.linspace(0, 1, 3)", 7, N, torch.linspace(0, 1, 3)),
    ("torch.logspace(0, 1, None, 2.)", 8, N, torch.logspace(0, 1, 100, 2.0)),
    ("torch.gelu(x)", 9, X, torch.nn.functional.gelu(X)),
]


@pytest.mark.parametrize(("call", "version", "given", "wanted"), OLD, ids=[str(r[:2]) for r in OLD])
def test_operators_of_old_versions(call: str, version: int, given: Tensor, wanted: Tensor) -> None:
    data = _with(SMALL, _code(SMALL).replace(BODY, f"return {call}"))
    found = _load(_of_version(data, version))(given.clone())
    theirs = torch.jit.load(io.BytesIO(_of_version(data, version)))(given.clone())
    assert found.dtype == wanted.dtype == theirs.dtype
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(theirs, wanted)
