"""Names of torch.jit that `import lowtide as jit` has, so that the import is all that changes."""

from __future__ import annotations

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
