"""Samples of PyTorch's database of operators, each call scripted as a function of its own.

In: nothing; the database needs the package expecttest. Out: cases: the function, the method and
the method that works in place, of a few samples each.
"""

# ruff: noqa
# Generated functions.

import itertools
import linecache

import torch
import torch.testing._internal.common_methods_invocations as M
from tests.deploy.torchscript.compared import Case

T = torch.Tensor


def anno(v):
    if isinstance(v, T):
        return "Tensor"
    if v is None:
        return "Optional[Tensor]"
    if isinstance(v, bool):
        return "bool"
    if isinstance(v, int):
        return "int"
    if isinstance(v, float):
        return "float"
    if isinstance(v, complex):
        return "complex"
    if isinstance(v, str):
        return "str"
    if isinstance(v, torch.dtype):
        return "int"
    if isinstance(v, torch.device):
        return "Device"
    if isinstance(v, (list, tuple)) and v:
        a = [anno(x) for x in v]
        if len(set(a)) == 1:
            return f"List[{a[0]}]"
        if set(a) == {"Tensor", "Optional[Tensor]"}:
            return "List[Optional[Tensor]]"
        return f"Tuple[{','.join(a)}]"
    if isinstance(v, (list, tuple)):
        return "List[int]"
    raise ValueError


def lit(v):
    if isinstance(v, (bool, int, str, type(None))):
        return repr(v)
    if isinstance(v, float):
        return f'float("{v}")' if v != v or v in (float("inf"), -float("inf")) else repr(v)
    if isinstance(v, complex):
        return f"complex({v.real!r}, {v.imag!r})"
    if isinstance(v, (torch.dtype, torch.memory_format, torch.layout)):
        return str(v)
    if isinstance(v, torch.device):
        return f'torch.device("{v}")'
    if isinstance(v, (list, tuple)):
        return "[" + ", ".join(lit(x) for x in v) + "]"
    raise ValueError


count = itertools.count()


def build(name, vals, kws, method):
    params = []
    call = []
    given = []

    def one(v):
        if isinstance(v, T) or (isinstance(v, (list, tuple)) and any(isinstance(x, T) for x in v)):
            n = f"a{len(params)}"
            params.append(f"{n}: {anno(v)}")
            given.append(list(v) if isinstance(v, tuple) and not anno(v).startswith("Tuple") else v)
            if isinstance(v, (list, tuple)) and anno(v).startswith("Tuple"):
                raise ValueError
            return n
        return lit(v)

    call = [one(v) for v in vals]
    kw = [f"{k}={one(v)}" for k, v in kws.items()]
    if method:
        text = f"{call[0]}.{name}({', '.join(call[1:] + kw)})"
    else:
        text = f"{name}({', '.join(call + kw)})"
    src = f"def f({', '.join(params)}):\n    return {text}\n"
    return src, given


def script(src):
    fn = f"<opdb{next(count)}>"
    linecache.cache[fn] = (len(src), None, src.splitlines(True), fn)
    ns = {"torch": torch, "__name__": "opdb"}
    exec("from typing import *\nfrom torch import Tensor\n", ns)
    exec(compile(src, fn, "exec"), ns)
    return torch.jit.script(ns["f"])


def copyv(v):
    if isinstance(v, T):
        return (
            v.detach().clone(memory_format=torch.preserve_format).requires_grad_(v.requires_grad)
            if v.layout is torch.strided and v.is_contiguous()
            else v.detach().requires_grad_(v.requires_grad)
        )
    if isinstance(v, (list, tuple)):
        return type(v)(copyv(x) for x in v)
    return v


def cases():
    for op in M.op_db:
        dts = op.supported_dtypes("cpu")
        dt = (
            torch.float32
            if torch.float32 in dts
            else torch.int64
            if torch.int64 in dts
            else torch.bool
            if torch.bool in dts
            else next(iter(dts), torch.float32)
        )
        torch.manual_seed(0)
        g = op.supports_autograd and dt is torch.float32
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", dt, requires_grad=g), 12))
        except Exception:
            continue
        # a few different ones
        chosen = []
        seen = set()
        for s in samples:
            key = (len(s.args), tuple(sorted(s.kwargs)), tuple(type(a).__name__ for a in s.args))
            if key in seen and len(seen) < 10:
                continue
            seen.add(key)
            chosen.append(s)
        chosen = chosen[:4]
        for k, s in enumerate(chosen):
            variants = []
            f = op.op
            path = None
            for root, pre in (
                (torch, "torch."),
                (torch.nn.functional, "torch.nn.functional."),
                (torch.linalg, "torch.linalg."),
                (torch.fft, "torch.fft."),
                (torch.special, "torch.special."),
            ):
                n = op.name.split(".")[-1]
                if getattr(root, n, None) is f:
                    path = pre + n
                    break
            n = op.name.split(".")[-1]
            if path is None:
                path = (
                    "torch." + op.name
                    if not op.name.startswith("nn.functional")
                    else "torch." + op.name
                )
            rv = not any(
                w in op.name
                for w in (
                    "dropout",
                    "rand",
                    "empty",
                    "bernoulli",
                    "multinomial",
                    "normal",
                    "cauchy",
                    "exponential",
                    "geometric",
                    "rrelu",
                    "uniform",
                )
            )
            forms = [("f", path, False)]
            if k == 0 and isinstance(s.input, T) and hasattr(T, n):
                forms.append(("m", n, True))
            if k == 0 and isinstance(s.input, T) and hasattr(T, n + "_") and op.inplace_variant:
                forms.append(("i", n + "_", True))
            for tag, nm, me in forms:
                try:
                    src, given = build(nm, [s.input, *s.args], s.kwargs, me)
                except ValueError:
                    continue

                def calls(given=given, tag=tag):
                    vs = [copyv(v) for v in given]
                    if tag == "i":
                        vs = [v.detach() if isinstance(v, T) else v for v in vs]
                    return [tuple(vs)]

                yield Case(
                    f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}/{k}{tag}",
                    (lambda src=src: script(src)),
                    calls,
                    (),
                    g,
                    rv,
                )
