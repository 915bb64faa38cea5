"""lt.load of what torch.jit.save wrote: the same results, gradients and state as torch.jit.load.

`test_all_programs` goes through all programs of the language tests, modules of torch.nn and, where
its requirements are installed, PyTorch's database of operators.
"""

from __future__ import annotations

import json

import pytest

from tests.deploy.torchscript import corpus, programs_of_values
from tests.deploy.torchscript.compared import Case, check
from tests.deploy.torchscript.programs_of_modules import CASES

assert programs_of_values.WIDE.ndim  # its programs are in CASES
REFUSED = {"Quantised": "LinearPackedParamsBase"}  # by what the error names


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in REFUSED], ids=lambda c: c.name)
def test_as_torch_jit_load(case: Case) -> None:
    check(case)


@pytest.mark.long
@pytest.mark.parametrize("kind", corpus.KINDS)
def test_all_programs(kind: str) -> None:
    if kind == "operators":
        pytest.importorskip("expecttest", reason="PyTorch's database of operators needs it")
    found = corpus.run(kind)
    known = corpus.KNOWN.get(kind, {})
    different = {name: why for name, why in found.items() if name not in known}
    assert not different, json.dumps(different, indent=1)
