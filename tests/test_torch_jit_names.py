"""Names of torch.jit that `import lowtide as jit` has, so that the import is all that changes."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lowtide as jit

MISSING = {"CompilationUnit", "export_opnames"}  # see docs/migrating-from-torch-jit.md


def test_every_name_but_those_the_page_excludes() -> None:
    assert {n for n in torch.jit.__all__ if not hasattr(jit, n)} == MISSING


def futures(x: torch.Tensor):
    waiting: list[jit.Future[torch.Tensor]] = []
    for k in range(3):
        waiting.append(jit.fork(torch.mul, x, k))
    return [jit.wait(f) for f in waiting]


def test_futures() -> None:
    x = torch.rand(4)
    for got, want in zip(jit.script(futures)(x), futures(x), strict=True):
        torch.testing.assert_close(got, want)


def test_frozen_for_inference() -> None:
    layer, x = torch.nn.Linear(3, 2).eval(), torch.rand(1, 3)
    found = jit.optimize_for_inference(jit.script(layer))
    assert isinstance(found, jit.RecursiveScriptModule)
    torch.testing.assert_close(found(x), layer(x))


def test_choices_that_choose_nothing() -> None:
    assert jit.set_fusion_strategy([("STATIC", 2)]) == [("STATIC", 2)]
    jit.enable_onednn_fusion(True)
    assert not jit.onednn_fusion_enabled()
    with jit.strict_fusion():
        assert jit.script(futures)(torch.ones(1))[1].item() == 1.0
    with jit.fuser("fuser2"), jit.optimized_execution(True):
        assert jit.script(futures)(torch.ones(1))[2].item() == 2.0


def scaled(x: torch.Tensor, n: int = 2) -> torch.Tensor:
    return x * n


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
        return self.inner(x) * gain


def test_script_takes_what_torch_jit_takes() -> None:
    x = torch.rand(1, 2)
    made = jit.script(scaled, optimize=None, _frames_up=0, _rcb=None)
    assert torch.equal(made(x), x * 2)
    module = jit.script(Scaled(), None, 0, None, [(x,)])
    assert isinstance(module, jit.ScriptModule)


def test_members_of_functions() -> None:
    f = jit.script(scaled)
    assert (f.name, f.qualified_name) == ("scaled", f"{__name__}.scaled")
    assert str(f.schema) == "scaled(Tensor x, int n=2) -> Tensor"
    assert [a.has_default_value() for a in f.schema.arguments] == [False, True]
    assert str(f.inlined_graph) == str(f.graph_for(torch.ones(1))) == str(f.graph)
    assert f.code_with_constants == (f.code, {})
    again = jit.load(io.BytesIO(f.save_to_buffer()))
    assert again(torch.ones(1)).item() == 2.0


def test_members_of_modules() -> None:
    m = jit.script(Scaled())
    assert str(m.forward.schema) == "forward(Tensor x, float gain=1.0) -> Tensor"
    assert m.forward.qualified_name == f"{__name__}.Scaled.forward"
    assert str(m.inlined_graph) == str(m.graph)
    assert m.code_with_constants[0] == m.code
    assert (m.original_name, m.inner.original_name) == ("Scaled", "Linear")
    again = jit.load(io.BytesIO(m.save_to_buffer()), _restore_shapes=True)
    torch.testing.assert_close(again(torch.ones(1, 2)), m(torch.ones(1, 2)))


@pytest.mark.parametrize("name", ["define", "get_debug_state", "_c"])
@pytest.mark.parametrize("made", [jit.script(scaled), jit.script(Scaled())], ids=["f", "m"])
def test_what_has_no_meaning_names_what_has(made: object, name: str) -> None:
    with pytest.raises(AttributeError, match="write instead"):
        getattr(made, name)


def test_names_that_have_no_meaning() -> None:
    with pytest.raises(AttributeError, match=r"write instead: lt\.script"):
        _ = jit.CompilationUnit


def test_a_compiled_list_of_modules_is_changed() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for step in self.steps:
                x = step(x)
            return x

    net, x = Net(), torch.rand(1, 2)
    compiled = jit.script(net)
    compiled(x)
    compiled.steps.append(torch.nn.ReLU()).insert(0, torch.nn.Dropout(0.0))
    compiled.steps[1] = torch.nn.Linear(2, 2)
    assert len(compiled.steps) == len(net.steps) == 3
    torch.testing.assert_close(compiled(x), net(x))
    assert torch.all(compiled(x) >= 0)
    del compiled.steps[2]
    torch.testing.assert_close(compiled(x), net.steps[1](x))


PATCHED_FIRST = """
import io
import subprocess
import sys
from pathlib import Path
import torch, lowtide as lt

lt.patch_torch_jit()

class Doubled(torch.jit.ScriptModule):
    @torch.jit.script_method
    def forward(self, x):
        return x * 2

file = io.BytesIO()
torch.jit.save(Doubled(), file)
file.seek(0)
print(torch.jit.load(file)(torch.ones(1)).item())
"""


def test_a_process_that_begins_with_the_patch_saves_class_style_modules(tmp_path: Path) -> None:
    """Lowtide's own modules, imported later, read PyTorch's torch.jit."""
    program = tmp_path / "patched_first.py"
    program.write_text(PATCHED_FIRST)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.stdout == "2.0\n", done.stderr
