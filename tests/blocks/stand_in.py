"""A GPU in the CPU's memory: Triton compiles for it, and its interpreter runs what is launched."""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.runtime import cubins
from lowtide.runtime.block_kernels import load
from lowtide.runtime.graphs import GRAPHS
from lowtide.runtime.interpreted import interpret
from lowtide.specialise.signature import Binding


@dataclass(slots=True, kw_only=True)
class Launched:
    """`source`: what was compiled; `given`: all that was handed over."""

    source: Any
    programs: int
    given: tuple[Any, ...]

    def run(self) -> None:
        """What a GPU would do with it."""
        fn = self.source.fn
        lines = linecache.getlines(fn.fn.__code__.co_filename)
        twin = load("".join(lines), interpreted=True)[fn.__name__]
        types = [x for x in self.source.signature.values() if x != "constexpr"]
        handed, constants = self.given[: len(types)], self.given[len(types) :]
        interpret(twin, self.programs, types, handed, constants)


@dataclass(slots=True, kw_only=True)
class Graph:
    """Stands where torch.cuda.CUDAGraph does."""

    gpu: Gpu
    launches: list[Launched] = field(default_factory=list[Launched])
    replays: int = 0

    def capture_begin(self, capture_error_mode: str) -> None:
        assert not self.gpu.is_capturing()
        self.gpu.graph = self

    def capture_end(self) -> None:
        assert self.gpu.graph is self
        self.gpu.graph = None
        self.gpu.graphs.append(self)

    def replay(self) -> None:
        self.replays += 1
        for launched in self.launches:
            launched.run()


@dataclass(slots=True)
class Gpu:
    """`launched`: all that was, but by a graph; `loaded`: compiled kernels, whenever one came to
    the device; `capturing`: whether a CUDA graph of the user's is being captured."""

    launched: list[Launched] = field(default_factory=list[Launched])
    loaded: list[str] = field(default_factory=list[str])
    kernels: list[Any] = field(default_factory=list[Any])
    capturing: bool = False
    graph: Graph | None = None  # that is recorded now
    graphs: list[Graph] = field(default_factory=list["Graph"])

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """In the place of Triton's driver and of torch.cuda: tensors of the CPU are on it."""
        gpu = self

        class Launcher:
            def __init__(self, source: Any, metadata: Any) -> None:
                self.source = source

            def __call__(self, x: int, y: int, z: int, *rest: Any) -> None:
                given = rest[6:]  # after the stream, the function and what hooks are told
                launched = Launched(source=self.source, programs=x, given=given)
                if gpu.graph is not None:
                    gpu.graph.launches.append(launched)
                    return
                gpu.launched.append(launched)
                launched.run()

        class Utils:
            def get_device_properties(self, device: int) -> dict[str, int]:
                return {"max_shared_mem": 227 << 10}

            def load_binary(self, name: str, *_: Any) -> tuple[Any, ...]:
                gpu.loaded.append(name)
                return object(), object(), 32, 0, 1024

            def unload_module(self, module: Any) -> None: ...

        class Driver:
            launcher_cls = Launcher
            utils = Utils()

            def get_current_target(self) -> GPUTarget:
                return GPUTarget("cuda", 90, 32)

            def get_current_device(self) -> int:
                return 0

            def get_current_stream(self, device: int) -> int:
                return 0

        patch.setattr(driver, "_active", Driver())

        def compile_form(*given: Any) -> Any:
            gpu.kernels.append(real(*given))
            return gpu.kernels[-1]

        real = cubins.compile_form
        patch.setattr(cubins, "compile_form", compile_form)
        patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        patch.setattr(torch.cuda, "synchronize", lambda _=None: None)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", self.is_capturing)
        patch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(gpu=self))
        patch.setattr(torch.cuda, "Stream", lambda _: None)
        patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        patch.setattr(Binding, "machine", "cuda")
        patch.setattr(BlockKernels, "device", torch.device("cpu"))

    def is_capturing(self) -> bool:
        return self.capturing or self.graph is not None

    def remove(self) -> None:
        """Before the drivers are back: kernels then unload nothing."""
        GRAPHS.clear()
        for kernel in self.kernels:
            kernel.module = None

    def forms(self, name: str) -> Sequence[Any]:
        """What a kernel was compiled for, each once."""
        found = [x.source for x in self.launched if x.source.fn.__name__ == name]
        return list({id(x): x for x in found}.values())
