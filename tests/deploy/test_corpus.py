"""Nearly every program of tests/language comes out of a file as it went in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide as lt
from lowtide import config
from lowtide.runtime import toolchain
from tests.deploy.roundtrip import compiled, round_trip
from tests.language import support

# What only the user's own Python can run: the error names the line, and says what to write instead.
REFUSED = {
    "classes.str_and_bool": "Bag.__str__",
    "beyond.VarargsForward": "*args",
    "beyond.nobody_looks_on": "torch._C._get_tracing_state",
    "beyond.attributes_of_what_only_the_run_knows": "_doubled",
    "modules.IgnoredMethod": "IgnoredMethod.python_only",
    "scopes.raise_exception_with_arguments": "CodedError has a __init__ of its own",
    "python_corners.method_of_a_subclass": "the method area() of a value of unknown type",
    "python_corners.method_of_a_subclass_that_was_chosen": "the method area()",
    "python_corners.narrowed_to_a_base_class": "the method area() of a value of unknown type",
    "python_corners.what_objects_have": "hasattr",
    "python_corners.what_an_object_has": "hasattr",
    "python_corners.instances_of_many": "torch.nn.parameter.Parameter",
    "python_corners.size_is_a_tuple": "was saved for (List[int])",  # torch.Size is a list of ints
    "python_corners.raised_with_keywords": "Failed has a __init__ of its own",
    "python_corners.ChangedByAMethodOfAnIgnoredOne": "report",
    "python_corners.called_value_of_unknown_type": "a call of the Python function",
    "python_corners.none_has_no_attributes": "the method total() of a value of unknown type",
    "python_corners.none_is_not_operated_on": "a call of the Python function call_any",
    "python_corners.type_of_unknown_values": "class_of_value",
    "python_corners.attribute_read_before_it_changes": "a value of unknown type",
    "python_corners.attributes_are_read_from_left_to_right": "a value of unknown type",
    "beyond.forward_mode_is_off": "unpack_dual",
    "classes.declined_operators": "_Metres.__eq__",
    "classes.declined_by_both": "_Metres.__add__",
    "classes.declined_at_run_time": "_Metres.__eq__",
    "classes.attributes_made_up": "__getattr__",
    "functions.lambda_in_an_exception": "_Refused has a __init__ of its own",
    "functions.recursion": "a call of the Python function recursion",
    "functions.mutual_recursion": "a call of the Python function mutual_recursion",
    "functions.recursion_into_lists": "a call of the Python function _leaves",
    "functions.recursion_of_a_method": "a call of the Python function _Tree.total",
    "functions.RecursiveModule": "RecursiveModule.forward",
    "functions.functions_in_a_list": "a call of the Python function",
    "functions.stored_functions_by_builtins": "a call of the Python function",
    "functions.functions_in_a_dict": "a call of the Python function",
    "kept_state.OtherContainers": "deque.append",
    "of_collections.counted": "a call of the Python function Counter",
    "of_collections.grouped": "a call of the Python function",
    "of_collections.queued": "a call of the Python function deque",
    "of_collections.Counting": "deque.append",
    "of_library.parsed": "a call of the Python function",
    "of_library.sorted_by_a_heap": "a call of the Python function",
    "of_library.read_and_written": "a call of the Python function",
    "of_library.DrawsFromItsOwn": "Random.random",
    "call_forms.number_of_elements": "was saved for (List[int])",
    "enums.text_of_a_text_member": "Format.__str__",
    "mixed.lambda_default_capture": "a call of the Python function <lambda>",
    "mixed.int_methods": "__add__",
    "mixed.dataclass_ops": "a call of the Python function replace",
    "mixed.class_protocols": "Temp.__iter__",
    "mixed.custom_error": "MyError has a __init__ of its own",
    "functions.global_set_changed": "the global `set`",
    "mixed.type_checks": "class_of_value",
    "mixed.ints_and_bools": "class_of_value",
    "mixed_modules.Options": "was saved for",  # of `**options`, only some
    "mixed_modules.tree_sum": "the attribute 'children' of a value of unknown type",
    "mixed_modules.format_calls": "str.format() of a string that is not constant",
    "mixed_modules.matrix_class": "Matrix.__abs__",
    "numbers_or_tensors.classes_of_results": "class_of_value",
    "once_wrong.variables": "a call of the Python function Variable",
    "once_wrong.an_attribute_in_place_of_a_getattr": "_Asked has a __getattr__",
    "once_wrong.divmod_of_an_object": "the Python function divmod",
    "once_wrong.lambdas_of_the_file": "a call of the Python function",
    # the file's class of this name is not the caller's
    "packed_sequences.named_tuples_in_a_list": "False in place of True",
    "torch_results.has_a_history": "Tensor.grad_fn",
    "torch_results.several_at_once": "torch.get_num_threads",
    "modules.DelegatesAttributes": "__getattr__",
    "modules.ForwardOfAnyNumber": "*args",
}


def programs() -> list[support.Program]:
    known = (Path(support.__file__).parent / "known_failures.txt").read_text().split()
    return [p for p in support.load() if not (p.refused or p.optional or p.full_name in known)]


@pytest.mark.parametrize("topic", support.topics())
def test_programs_of(topic: str) -> None:
    wrong: list[str] = []
    for p in programs():
        if p.topic != topic:
            continue
        outcome = round_trip(p)
        expected = REFUSED.get(p.full_name)
        if expected is None and outcome.kind != "equal":
            wrong.append(f"{p.full_name}: {outcome.kind}: {outcome.why}")
        if expected is not None and expected not in outcome.why:
            wrong.append(f"{p.full_name}: {outcome.kind}: {outcome.why}, not {expected}")
    assert not wrong, "\n".join(wrong)


ELSEWHERE = """
import json, sys, torch
import lowtide as lt
from lowtide.runtime import toolchain
assert not any(m.startswith("tests") for m in sys.modules)
toolchain._FLAGS = tuple(json.loads(sys.argv[2]))  # those of the kernels in the cache
for path, calls in json.loads(sys.argv[1]).items():
    m = lt.load(path)
    args = torch.load(calls)
    torch.save(m(*args), calls)
assert not any(m.startswith("tests") for m in sys.modules)
"""


def test_in_another_process_without_the_source(tmp_path: Path) -> None:
    import torch

    work: dict[str, str] = {}
    expected: dict[str, object] = {}
    for p in programs()[::6]:  # some of most topics
        torch.manual_seed(1)
        call = p.calls()[0]
        simple = not isinstance(call, support.Call) and all(
            isinstance(a, torch.Tensor | int | float | str) for a in call
        )
        if p.raises or p.full_name in REFUSED or not simple:
            continue
        c = compiled(p)
        torch.manual_seed(0)
        result = (compiled(p) if p.is_module else c)(*call)  # a module may change by a call
        if not isinstance(result, torch.Tensor) or "rand" in p.name:
            continue
        path = str(tmp_path / f"{p.full_name}.lt")
        try:
            lt.save(c, path)
        except lt.CompileError:
            continue
        work[path] = f"{path}.args"
        torch.manual_seed(1)  # the same arguments, which the call may have changed
        torch.save(tuple(p.calls()[0]), work[path])
        expected[work[path]] = result
    assert len(work) > 16
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    root = Path(lt.__file__).parent.parent
    subprocess.run(
        [
            sys.executable,
            str(tmp_path / "elsewhere.py"),
            *map(json.dumps, (work, toolchain._FLAGS)),
        ],
        cwd=tmp_path,
        env={
            "PYTHONPATH": _only_lowtide(tmp_path, root),
            "PATH": "/usr/bin:/bin",
            "LOWTIDE_CACHE_DIR": config.current().cache_dir,
        },
        check=True,
        timeout=300,
    )
    for file, result in expected.items():
        torch.testing.assert_close(torch.load(file), result, equal_nan=True, msg=file)


def _only_lowtide(tmp_path: Path, root: Path) -> str:
    """A folder with lowtide and without this repository's tests."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "lowtide").symlink_to(root / "lowtide")
    return str(folder)
