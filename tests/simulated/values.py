"""Values on the simulated device: a pytest plugin, or `install()`.

In:  PyTorch's ops with a kernel for CUDA, Lowtide's kernels by Triton, CUDA graphs.
Out: the same; what a kernel would have written stands in its memory when the call returns.

An op calls the real kernel first, so that PyTorch's allocator is asked for what it would be asked
for on a GPU and refuses what it would refuse. The kernel's launches do nothing (driver.c). Then the
op is run on the CPU, on views of the same memory:

    x + y    aten::add on CUDA: allocates out, launches nothing
             aten::add on the CPU of the memory of x and y, copied to that of out

What a capture records is put on a tape, which the graph's replay runs. Some results have a size
that values decide: these ops run on the CPU alone, and their results are copied to the device.
With `LOWTIDE_SIMULATED_VALUES=0` kernels leave memory as it is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

# They deal in storages and metadata, or are made of ops that have values.
WITHOUT_VALUES = {
    "_conj_physical", "_copy_from", "_copy_from_and_resize", "_efficientzerotensor",
    "_fused_sdp_choice", "_local_scalar_dense", "_pin_memory", "_reshape_alias", "_resize_output_",
    "_sparse_coo_tensor_with_dims", "_to_copy", "clone", "contiguous", "empty", "empty_strided",
    "is_pinned", "is_set_to", "record_stream", "resize_", "set_",
}  # fmt: skip
FOR_ALL_DEVICES = {"aten::copy_"}  # whose kernel is CUDA's too, without being listed as that
ON_CPU_ALONE = {"aten::pow.Scalar"}  # beside those with sizes that values decide

_library = torch.library.Library("aten", "IMPL")
_within = threading.local()  # `.op`: whether this thread is in an op with values
without: dict[str, str] = {}  # ops that have no values, and why


# ---- Memory


def on_host(tensor: Tensor) -> Tensor:
    """A tensor of the CPU in the memory of one of the device."""
    if tensor.device.type != "cuda" or tensor.layout is not torch.strided:
        return tensor
    storage = tensor.untyped_storage()
    if not storage.nbytes() or not storage.data_ptr():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    same = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    with torch.no_grad():
        view = torch.empty(0, dtype=tensor.dtype, device="cpu")
        view.set_(same, tensor.storage_offset(), tensor.shape, tensor.stride())
    return view


def _argument(x: Any) -> Any:
    """What an op on the CPU is given instead."""
    if isinstance(x, Tensor):
        return on_host(x)
    if isinstance(x, torch.device):
        return torch.device("cpu") if x.type == "cuda" else x
    return None if isinstance(x, torch.Generator) else x


def _number(x: complex, first: Tensor | None) -> Tensor:
    """A number that PyTorch has in the place of a tensor, of a dtype that changes no result's."""
    if isinstance(x, bool):
        return torch.scalar_tensor(x, device="cpu", dtype=torch.bool)
    if isinstance(x, int):
        is_like = first is not None and first.dtype != torch.bool
        return torch.scalar_tensor(x, device="cpu", dtype=first.dtype if is_like else torch.int64)
    if isinstance(x, complex):
        return torch.scalar_tensor(x, device="cpu", dtype=torch.complex64)
    if first is None or not first.is_floating_point():
        return torch.scalar_tensor(x, device="cpu", dtype=torch.get_default_dtype())
    return torch.scalar_tensor(x, device="cpu", dtype=torch.float64 if first.ndim else first.dtype)


# ---- Captures


@dataclass(slots=True)
class Tape:
    """What the capture that is under way has recorded, if one is."""

    steps: list[Callable[[], object]] | None = None

    def put(self, step: Callable[[], object]) -> None:
        """Now, or with each replay of the graph that is captured."""
        if not torch.cuda.is_current_stream_capturing():
            step()
        elif self.steps is not None:
            self.steps.append(step)


TAPE = Tape()


def _record_graphs() -> None:
    """`torch.cuda.CUDAGraph` replays what its capture has put on the tape."""
    graph: Any = torch.cuda.CUDAGraph
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay
    tapes: weakref.WeakKeyDictionary[Any, list[Callable[[], object]]] = weakref.WeakKeyDictionary()

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        TAPE.steps = []

    def capture_end(self: Any) -> None:
        steps, TAPE.steps = TAPE.steps or [], None
        end(self)
        tapes[self] = steps

    def replayed(self: Any) -> None:
        replay(self)
        for step in tapes.get(self, ()):
            step()

    graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replayed


# ---- Ops


@contextmanager
def _in_an_op() -> Generator[None]:
    """Ops that a kernel calls need no values: the op as a whole has them."""
    _within.op = True
    try:
        yield
    finally:
        _within.op = False


@contextmanager
def _seeded(seed: int | None) -> Generator[None]:
    """The CPU's generator, while it stands for the device's; None: the op draws nothing."""
    if seed is None:
        yield
        return
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _seed(given: Sequence[Any]) -> int:
    """From the state of the device's generator, which the kernel then moves on; in a capture it
    has none that may be asked for, and every replay draws the same."""
    if torch.cuda.is_current_stream_capturing():
        return 1
    own = [x for x in given if isinstance(x, torch.Generator) and x.device.type == "cuda"]
    generator = own[0] if own else torch.cuda.default_generators[torch.cuda.current_device()]
    state = bytes(generator.get_state().tolist())
    return int.from_bytes(hashlib.sha256(state).digest()[:6], "little")


class Valued:
    """A kernel for CUDA of an op, with values."""

    def __init__(self, name: str, op: Any, kernel: Any) -> None:
        self.name, self.op, self.kernel = name, op, kernel
        arguments = op._schema.arguments
        self.is_written = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
        self.is_random = torch.Tag.nondeterministic_seeded in op.tags
        self.is_on_cpu = torch.Tag.dynamic_output_shape in op.tags or name in ON_CPU_ALONE
        self.tensors = {a.name for a in arguments if str(a.type) == "Tensor"}
        self.names = [a.name for a in arguments]

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_within, "op", False):
            return self._real(keys, args, kwargs)
        seed = _seed((*args, *kwargs.values())) if self.is_random else None
        if self.is_on_cpu and not torch.cuda.is_current_stream_capturing():
            found = self._on_cpu(args, kwargs, seed)
            return tree_map(lambda x: x.cuda() if isinstance(x, Tensor) else x, found)
        with _in_an_op():
            out = self._real(keys, args, kwargs)
            results = [on_host(x) for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
            if not results and not self.is_written:  # a number
                return self._on_cpu(args, kwargs, seed)
            self._put(args, kwargs, seed, [] if self.is_written else results)
        return out

    def _real(self, keys: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._with_tensors(args, kwargs)
        return self.kernel.call_boxed(keys, *args, **kwargs)

    def _put(
        self, args: Sequence[Any], kwargs: dict[str, Any], seed: int | None, results: list[Tensor]
    ) -> None:
        """`results`: what is to be filled; empty where the op writes into its arguments."""
        args, kwargs = tree_map(_argument, (tuple(args), kwargs))

        def step() -> None:
            try:
                found = self._on_cpu(args, kwargs, seed)
            except (NotImplementedError, RuntimeError) as error:
                without.setdefault(self.name, str(error).splitlines()[0])
                return
            made = [x for x in tree_flatten(found)[0] if isinstance(x, Tensor)]
            for result, value in zip(results, made, strict=False):
                if result.numel():
                    result.copy_(value)

        TAPE.put(step)

    def _on_cpu(self, args: Sequence[Any], kwargs: dict[str, Any], seed: int | None) -> Any:
        args, kwargs = self._with_tensors(*tree_map(_argument, (tuple(args), kwargs)))
        with torch._C._AutoDispatchBelowAutograd(), _seeded(seed):
            return self.op(*args, **kwargs)

    def _with_tensors(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Numbers stand for tensors in what a kernel in Python is given, and nowhere else."""
        first = next((x for x in args if isinstance(x, Tensor)), None)

        def made(name: str, x: Any) -> Any:
            is_number = name in self.tensors and isinstance(x, int | float | complex)
            return _number(x, first) if is_number else x

        listed = [made(name, x) for name, x in zip(self.names, args, strict=False)]
        return listed, {name: made(name, x) for name, x in kwargs.items()}


def _ops() -> Iterator[tuple[str, Any]]:
    """The aten ops with a kernel for CUDA that writes values."""
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or base in WITHOUT_VALUES:
            continue
        packet = getattr(torch.ops.aten, base, None)
        op = getattr(packet, overload or "default", None)
        is_on_cuda = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
        if op is None or not (is_on_cuda or name in FOR_ALL_DEVICES):
            continue
        aliases = [a.alias_info for a in op._schema.arguments if a.alias_info is not None]
        if not aliases or any(x.is_write for x in aliases):  # else a view
            yield name, op


def _give_values() -> None:
    Valued.__call__ = torch.compiler.disable(Valued.__call__)  # it is not part of what is captured
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced
        for name, op in _ops():
            try:
                kernel = torch.library.get_kernel(name, "CUDA")
                valued = Valued(name, op, kernel)
                _library.impl(name, valued, "CUDA", with_keyset=True, allow_override=True)
            except Exception as error:  # of many kinds, where PyTorch lets no one in
                without[name] = str(error).splitlines()[0]


# ---- Kernels of Lowtide's


def _interpret_kernels() -> None:
    """What Lowtide launches is compiled and handed over, then interpreted on the same memory."""
    import linecache

    from lowtide.runtime import cubins
    from lowtide.runtime.block_kernels import constants, load
    from lowtide.runtime.interpreted import interpret

    launch = cubins.CompiledKernel._launch

    def _launch(self: Any, programs: int, form: Any, handed: Sequence[Any]) -> None:
        launch(self, programs, form, handed)
        fn = self.function.fn
        source = "".join(linecache.getlines(fn.__code__.co_filename))
        twin = load(source, interpreted=True)[fn.__name__]
        given = list(handed)
        types = self.parameters.types(form.wide)
        TAPE.put(lambda: interpret(twin, programs, types, given, constants(form)))

    cubins.CompiledKernel._launch = _launch


# ---- Installing


def install(kernels: bool = True) -> None:
    """Once in a process; afterwards whatever runs on the device has values. Without `kernels`,
    those of Lowtide have none: the interpreter takes minutes for some megabytes."""
    if not torch.cuda.is_available() or not torch.cuda.get_device_name().startswith("Simulated"):
        raise RuntimeError("no simulated device: run `python -m tests.simulated`")
    # Their libraries are stubs, which only PyTorch's own kernels are not.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    if os.environ.get("LOWTIDE_SIMULATED_VALUES") != "0":
        _give_values()
        _record_graphs()
        if kernels:
            _interpret_kernels()


def pytest_configure() -> None:
    install()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, why in sorted(without.items()):
        terminalreporter.write_line(f"no values: {name}: {why[:120]}")
