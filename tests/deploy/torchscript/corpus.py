"""All programs whose archives are compared, run in a process of their own.

    python -m tests.deploy.torchscript.corpus KIND      prints what differs, as JSON

In: a kind of `KINDS`. Out: name → how lt.load differs from torch.jit.load, or what it raised.
Programs that torch.jit itself does not take, or cannot save, are left out.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

KINDS = ("language", "modules", "operators")

# Refused, with the archive's line.
_ENUMS = "a container with members of the caller's own enum is refused"
_INTS = "an int beyond 64 bits raises, where torch.jit wraps"
_CLASS = "torch.jit runs the archive's methods on an object of the caller's subclass"
# Flaws of torch.jit's: what lt.load gives is what Python gives.
_FLAW = "torch.jit drops a change of a list in a list"
_IS = "`is` of two equal members is False in torch.jit"
_EMPTY = "torch.jit refuses the argument [] where the type is Any"
_UNREAD = "torch.jit leaves out an op that would raise, as its result is not read"
_TEXT = "the text of an object is its `__str__`, not an address"
_NAMED = "a named tuple that is passed through keeps its names"
_CHECK = "torch.jit alone refuses a tensor as a number: one with a gradient, or no integer"
# The same error.
_ERROR = "the same class of error, another message"
KNOWN: dict[str, dict[str, str]] = {
    "language": {
        **dict.fromkeys(("enums.in_lists", "enums.dict_values"), _ENUMS),
        "reference_values.enums_counted": _ENUMS,
        "python_corners.method_of_a_subclass": _CLASS,
        "kept_state.NumberBeyond64Bits": _INTS,
        "enums.compared_not_equal_and_is": _IS,
        **dict.fromkeys(
            ("nested_lists.a_row_changed_in_a_branch", "nested_lists.a_list_in_a_tuple"), _FLAW
        ),
        **dict.fromkeys(("nested_lists.one_empty_row", "nested_lists.annotated_empty_rows"), _FLAW),
        "nested_lists.empty_dicts_declared": _FLAW,
        **dict.fromkeys(
            ("annotations.lists_told_by_jit_isinstance", "annotations.PadsToATensor"), _EMPTY
        ),
        **dict.fromkeys(("unread.Checks", "unread.counted"), _UNREAD),
        "classes.str_and_bool": _TEXT,
        "recurrences.packed_state": _NAMED,
        "numbers_or_tensors.a_sum_that_begins_as_an_int": _CHECK,
        "numbers_or_tensors.rows_added_to_a_number": _CHECK,
        **dict.fromkeys(("mixed.promotion", "tensors.extreme_of_long_tensors"), _ERROR),
    },
    "modules": dict.fromkeys(
        ("116.AdaptiveLogSoftmaxWithLoss.tE", "116.AdaptiveLogSoftmaxWithLoss.tT"),
        "torch.jit's gradient raises where a cluster is empty",
    ),
    "operators": {
        "sparse.mm.reduce/0f": _ERROR,
        "nn.functional.layer_norm/1f": "a gradient that is rounding alone",
        "torch.ops.aten._flash_attention_forward/0f": _ERROR,
        "torch.ops.aten._efficient_attention_forward/0f": _ERROR,
    },
}


def cases(kind: str) -> Iterator[Any]:
    """Return the programs of a kind."""
    from tests.deploy.torchscript.compared import Case

    if kind == "language":
        import torch

        from tests.language.support import Program, load

        def make(p: Program) -> Any:
            torch.manual_seed(7)
            return torch.jit.script(p.obj() if p.is_module else p.obj)

        for p in load():
            if not p.refused:
                made = lambda p=p: make(p)  # noqa: E731
                yield Case(p.full_name, made, p.calls, p.attributes, p.grad)
        return
    yield from importlib.import_module(f"tests.deploy.torchscript.corpus_of_{kind}").cases()


def attempt(case: Any) -> str | None:
    """Return what differs; None if nothing does, "-" where torch.jit has no archive."""
    from tests.deploy.torchscript.compared import Differs, NoArchive, check

    try:
        check(case)
    except NoArchive:
        return "-"
    except Differs as error:
        return f"differs: {error}"[:400]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:400]
    return None


def run(kind: str) -> dict[str, str]:
    """Return what differs, by name; raises where fewer than a few hundred programs ran."""
    environment = {**os.environ, "LANGUAGE_JIT": "torch"}
    command = [sys.executable, "-m", "tests.deploy.torchscript.corpus", kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    if found["equal"] < 400:
        raise RuntimeError(f"only {found['equal']} programs of {kind} are equal")
    return found["different"]


def main(kind: str) -> None:
    """Run a kind and print what differs."""
    import torch

    from tests.quickly import compile_quickly

    compile_quickly()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count, different = Counter[str](), dict[str, str]()
    for case in cases(kind):
        why = attempt(case)
        count["equal" if why is None else "no archive" if why == "-" else "different"] += 1
        if why not in (None, "-"):
            different[case.name] = why
    print(json.dumps({**count, "different": different}))


if __name__ == "__main__":
    main(sys.argv[1])
