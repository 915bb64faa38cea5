"""Random nests of if, for, while, break, continue, return: IR gives what Python gives."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lowtide.compiler import simplified
from lowtide.frontend.script.script import script_function
from lowtide.ir.interpret import run
from lowtide.ir.types import INT

SEEDS = range(150)
ARGUMENTS = [(a, b) for a in (-1, 0, 1, 3) for b in (0, 2, 5)]


class _Source:
    """Writes one random function over the ints a, b, x, y, which are always bound."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0
        self.helper = False

    def function(self, name: str) -> str:
        self.lines.append(f"def {name}(a: int, b: int):")
        self.lines.append("    x = a")
        self.lines.append("    y = 1")
        self.block(1, 4, False)
        self.lines.append("    return x * 1000 + y")
        return "\n".join(self.lines) + "\n"

    def block(self, depth: int, budget: int, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth, budget, in_loop)

    def statement(self, depth: int, budget: int, in_loop: bool) -> None:
        kinds = ["assign"] * 3
        if budget > 0:
            kinds += ["if", "if", "if_else", "for", "while", "tuple_for"]
        if in_loop:
            kinds += ["break", "continue"]
        if depth > 1:
            kinds += ["return"]
        getattr(self, self.random.choice(kinds))(depth, budget, in_loop)

    def add(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def expression(self) -> str:
        r = self.random
        a, b = (r.choice(["a", "b", "x", "y", str(r.randint(-2, 4))]) for _ in range(2))
        return r.choice([f"{a} + {b}", f"{a} - {b}", f"{a} * 2 - {b}", f"({a} + {b}) % 7"])

    def condition(self) -> str:
        r = self.random
        test = f"{self.expression()} {r.choice(['<', '>', '==', '!='])} {r.randint(-1, 4)}"
        if r.random() < 0.2:
            test += f" {r.choice(['and', 'or'])} {r.choice('abxy')} > 1"
        return test

    def assign(self, depth: int, budget: int, in_loop: bool) -> None:
        kind = self.random.randint(0, 3)
        if kind == 0:
            self.add(depth, f"x, y = {self.expression()}, {self.expression()}")
        else:
            self.add(depth, f"{self.random.choice('xy')} = {self.expression()}")

    def if_(self, depth: int, budget: int, in_loop: bool) -> None:
        self.add(depth, f"if {self.condition()}:")
        self.block(depth + 1, budget - 1, in_loop)

    def if_else(self, depth: int, budget: int, in_loop: bool) -> None:
        self.if_(depth, budget, in_loop)
        self.add(depth, "else:")
        self.block(depth + 1, budget - 1, in_loop)

    def for_(self, depth: int, budget: int, in_loop: bool) -> None:
        stop = self.random.choice(["3", "a", "b", "a + 1"])
        self.add(depth, f"for i{depth} in range({stop}):")
        self.add(depth + 1, f"x = x + i{depth}")
        self.block(depth + 1, budget - 2, True)

    def tuple_for(self, depth: int, budget: int, in_loop: bool) -> None:
        self.add(depth, f"for k{depth} in (1, a, 3):")
        self.add(depth + 1, f"y = y + k{depth}")
        self.block(depth + 1, budget - 2, True)

    def while_(self, depth: int, budget: int, in_loop: bool) -> None:
        self.loops += 1
        counter = f"w{self.loops}"
        self.add(depth, f"{counter} = 0")
        test = self.random.choice([f"{counter} < 4", f"{counter} < 4 and ({self.condition()})"])
        self.add(depth, f"while {test}:")
        self.add(depth + 1, f"{counter} += 1")
        self.block(depth + 1, budget - 2, True)

    def break_(self, depth: int, budget: int, in_loop: bool) -> None:
        self.add(depth, "break")

    def continue_(self, depth: int, budget: int, in_loop: bool) -> None:
        self.add(depth, "continue")

    def return_(self, depth: int, budget: int, in_loop: bool) -> None:
        self.add(depth, f"return {self.expression()}")


for _name in ("if", "for", "while", "break", "continue", "return"):
    setattr(_Source, _name, getattr(_Source, f"{_name}_"))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path = Path(tmp_path_factory.mktemp("flow")) / "flow_programs.py"
    path.write_text("\n\n".join(_Source(seed).function(f"f{seed}") for seed in SEEDS))
    spec = importlib.util.spec_from_file_location("flow_programs", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["flow_programs"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("seed", SEEDS)
def test_flow(seed: int, module: ModuleType) -> None:
    fn = getattr(module, f"f{seed}")
    program = script_function(fn, [INT, INT])
    tidied = simplified(program)
    for a, b in ARGUMENTS:
        expected = fn(a, b)
        assert run(program, a, b) == expected
        assert run(tidied, a, b) == expected
