"""Says which part runs an operator: kernels, PyTorch, Python, or none.

In: a name in an archive's code, or an op of a program. Out: "kernels" if it has a lowering, so that
it can be part of a kernel; "PyTorch"; "Python" for lists, numbers and strings; or "missing".

    runs("torch.linear", 3)     "kernels"
    runs("torch.append", 3)     "Python"
    runs("ops.no.such", 3)      "missing"
"""

from __future__ import annotations

from typing import Final, Literal

from lowtide.frontend.torchscript import on_python, on_tensors, operators
from lowtide.ir.core import Op
from lowtide.ops import registry

Runs = Literal["kernels", "PyTorch", "Python", "missing"]
_OTHER_NAMES: Final = {  # of tensors
    **dict.fromkeys(("slice", "index", "__getitem__"), "Tensor.__getitem__"),
    "data": "Tensor.detach",
}
_LANGUAGE: Final = ("annotate", "unchecked_cast", "uninitialized", "device")
_NOT_OPERATORS: Final = ("ops.prim.RaiseException",)


def runs(path: str, version: int) -> Runs | None:
    """Return who runs an operator of an archive's code; None for a word of the language."""
    root, _, rest = path.partition(".")
    name = rest.rpartition(".")[2]
    if path in _NOT_OPERATORS or (root == "torch" and name in _LANGUAGE):
        return None
    made = operators.operator(path, version)
    if made is None:
        return "missing"
    ours = made.namespace in ("aten", "prim")
    if ours and any(map(_is_lowered, _sources(made.namespace, made.name))):
        return "kernels"
    if ours and made.name in on_python.TABLE:
        return "Python"
    return "PyTorch"


def _sources(namespace: str, name: str) -> tuple[str, ...]:
    plain = name.removesuffix("_") if not name.endswith("__") else name
    return (
        on_tensors.source_of(namespace, name),
        *(f"{root}.{n}" for n in (name, plain) for root in ("torch.nn.functional", "Tensor")),
        _OTHER_NAMES.get(name, ""),
    )


def _is_lowered(source: str) -> bool:
    return any(record.lower is not None for record in registry.lookup(source))


def remedy(path: str) -> str:
    """Return what brings a missing operator."""
    return operators.remedy(path)


def runs_of_op(op: Op) -> tuple[str, Runs] | None:
    """Return the name of an op of a program and who runs it; None for a part of the language."""
    if op.name in ("call_torch", "mutate"):
        target = str(op.attrs["target"])
        return target, "kernels" if any(map(_is_lowered, _of_method(target))) else "PyTorch"
    family, _, name = op.name.partition(".")
    if family != "torch":
        return None
    record = registry.by_name(name)
    return op.name, "kernels" if record.lower is not None else "PyTorch"


def _of_method(target: str) -> tuple[str, ...]:
    return (target, target.removesuffix("_"))
