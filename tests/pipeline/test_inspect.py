"""graph, code, explain, memory, stages: without running anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lowtide as lt
from lowtide import config


def pairs(x, y):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return d.min(1).values, d.min(0).values


def mixed(x):
    y = x * 2
    s = torch.linalg.svdvals(y)
    z = s + 1
    z[torch.argmin(z)] = 0
    return z * 3, y


def chain(x):
    a = torch.cumsum(x * 2, 0)
    b = torch.cumsum(a * 2, 0)
    c = torch.cumsum(b * 2, 0)
    return c.sum()


def data(x):
    y = x[x > 0]
    return y * 2


def branch(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def test_graph_and_code() -> None:
    f = lt.script(branch)
    assert "torch.mul" in str(f.graph)
    assert "if " in f.code
    assert f.code.startswith("def branch(x: Tensor)")


def test_explain() -> None:
    x, y = torch.rand(50, 3), torch.rand(60, 3)
    e = lt.script(pairs).explain(x, y)
    assert len(e.kernels) >= 1
    assert not e.torch_ops
    assert "test_inspect.py" in str(e)
    assert e.peak_bytes >= 4 * (50 + 60)
    assert json.loads(json.dumps(e.to_dict()))["regions"][0]["kernels"]


def test_explain_says_what_pytorch_runs_and_why() -> None:
    e = lt.script(mixed).explain(torch.rand(40, 50))
    assert len(e.regions) == 3
    reasons = {t.op: t.reason for t in e.torch_ops}
    assert len(reasons) == 2
    assert "changes a tensor in place at indices" in reasons.values()
    assert all(t.loc.endswith(".py:" + t.loc.rpartition(":")[2]) for t in e.torch_ops)
    both = lt.script(branch).explain(torch.rand(40))
    assert len(both.regions) == 3
    assert any("data" in n for n in both.notes)


def test_memory_of_meta_tensors() -> None:
    f = lt.script(pairs)
    big = torch.empty(2_000_000, 3, device="meta"), torch.empty(1_000_000, 3, device="meta")
    assert 4 * 3_000_000 <= f.memory(*big).peak_bytes < 100_000_000
    assert f.memory(torch.rand(50, 3), torch.rand(60, 3)).peak_bytes >= 4 * 110


def test_memory_across_regions() -> None:
    plan = lt.script(chain).memory(torch.empty(1000, 100, device="meta"))
    own = 2 * 448  # of the tensors that PyTorch makes
    assert 2 * 400_000 <= plan.peak_bytes <= 2 * 400_000 + own
    assert any("cumsum" in n for n in plan.notes)
    assert plan.buffers
    assert "bytes" in str(plan)


def test_memory_where_data_decide() -> None:
    plan = lt.script(data).memory(torch.empty(1000, device="meta"))
    assert any("depends on the data" in n for n in plan.notes)
    assert lt.script(branch).memory(torch.empty(1000, device="meta")).peak_bytes >= 4000


def test_nothing_runs() -> None:
    x = torch.rand(40)

    def program(x):
        x += 1
        print("never")
        return x * 2

    f = lt.script(program)
    kept = x.clone()
    f.explain(x)
    f.memory(x)
    assert torch.equal(x, kept)


def test_stages() -> None:
    stages = lt.script(pairs).stages(torch.rand(50, 3), torch.rand(60, 3))
    names = [n for n, _ in stages]
    assert names[0] == "ir"
    assert names[-1].lower() == "c"
    assert "region" in names


def test_debug_files(tmp_path: Path) -> None:
    with config.override(
        debug=config.Debug(topics=frozenset({"ir", "kernels"}), directory=str(tmp_path))
    ):
        lt.script(pairs)(torch.rand(50, 3), torch.rand(60, 3))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 2
    assert names[0].endswith("pairs-ir.txt")


def test_debug_shows_the_backward_pass_its_memory_and_time(tmp_path: Path) -> None:
    topics = frozenset({"kernels", "memory", "time"})
    x = torch.rand(50, 3, requires_grad=True)
    with config.override(debug=config.Debug(topics=topics, directory=str(tmp_path))):
        lt.script(pairs)(x, torch.rand(60, 3))[0].sum().backward()
    texts = {p.name[5:]: p.read_text() for p in sorted(tmp_path.iterdir())}  # the backward pass's
    found = {name: text for name, text in texts.items() if text.startswith("backward ")}
    assert set(found) == {"pairs-kernels.txt", "pairs-memory.txt", "pairs-time.txt"}
    assert "peak" in found["pairs-memory.txt"]
    assert " ms" in found["pairs-time.txt"]


def test_the_import_is_light() -> None:
    code = (
        "import torch, sys; before = set(sys.modules); import lowtide as lt; "
        "lt.script; new = set(sys.modules) - before; "
        "bad = [m for m in new if m.split('.')[0] in "
        "('sympy', 'triton', 'pandas', 'rich', 'numpy') or m.startswith(('torch._dynamo', "
        "'torch._inductor'))]; print(bad)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_public_names() -> None:
    for name in lt.__all__:
        if name != "empty_cache":
            assert getattr(lt, name) is not None
    with pytest.raises(AttributeError):
        _ = lt.nothing  # type: ignore[attr-defined]


def test_memory_of_what_is_no_tensor_says_what_fails() -> None:
    def f(x):
        return (x * 2 + 1).sum(0)

    compiled = lt.script(f)
    assert "`py.mul` fails (TypeError: " in compiled.memory(None).fails
    with pytest.raises(TypeError):
        compiled(None)
    assert not compiled.memory(torch.rand(3)).fails


def test_memory_of_shapes_that_do_not_fit_says_what_fails() -> None:
    def sorted_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sort(x @ w).values

    plan = lt.script(sorted_product).memory(torch.empty(4, 9), torch.empty(8, 8))
    assert "`matmul` fails (RuntimeError: " in plan.fails
    assert str(plan).startswith("such a call fails: ")
