"""Random programs of real blocks against a model on plain data: nested `with`, exceptions, wrapped
functions, generators; on several threads at once."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import lowtide as lt


class Boom(Exception):
    pass


class Program:
    """One program that runs itself, and after each step checks who is disposed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.handles: list[torch.Tensor] = []
        self.owner: dict[int, int | None] = {}  # of those alive, by place in `handles`
        self.open: list[int] = []
        self.scopes = 0

    def run(self) -> None:
        with contextlib.suppress(Boom):
            self.in_scope(0, self.block)
        assert not self.open
        assert lt.current_dispose_scope() is None

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        self.owner[len(self.handles)] = self.open[-1] if self.open else None
        self.handles.append(tensor)
        return tensor

    def around(self, scope: int) -> int | None:
        at = self.open.index(scope)
        return self.open[at - 1] if at else None

    def check(self) -> None:
        for at, tensor in enumerate(self.handles):
            assert lt.is_disposed(tensor) == (at not in self.owner)
        assert (lt.current_dispose_scope() is None) == (not self.open)

    def in_scope(self, depth: int, kind: Callable[[int, int], None]) -> None:
        """Run one kind of scope; whatever it does, its tensors end with it."""
        mine, self.scopes = self.scopes, self.scopes + 1
        before = self.open[:]
        try:
            kind(mine, depth)
        except Boom:
            if self.dice.random() < 0.5:
                raise
        finally:
            self.open = before
            self.owner = {at: owner for at, owner in self.owner.items() if owner != mine}
            self.check()

    def block(self, mine: int, depth: int) -> None:
        with lt.dispose_scope() as scope:
            self.open.append(mine)
            self.steps(scope, depth)

    def wrapped(self, mine: int, depth: int) -> None:
        @lt.wrapped_dispose_scope
        def function() -> dict[str, list[torch.Tensor]]:
            self.open.append(mine)
            scope = lt.current_dispose_scope()
            assert scope is not None
            self.steps(scope, depth)
            out = [at for at, owner in self.owner.items() if owner == mine]
            out = self.dice.sample(out, self.dice.randrange(len(out) + 1))
            self.owner.update(dict.fromkeys(out, self.around(mine)))
            return {"out": [self.handles[at] for at in out]}

        function()

    def generated(self, mine: int, depth: int) -> None:
        @lt.dispose_scope()
        def values() -> Iterator[torch.Tensor]:
            for value in range(3):
                self.open.append(mine)
                made = self.made(torch.full((1,), float(value)))
                self.open.pop()
                yield made

        found = values()
        for _ in range(self.dice.randrange(1, 5)):
            if next(found, None) is None:
                self.owner = {at: owner for at, owner in self.owner.items() if owner != mine}
            self.check()
            self.made(torch.zeros(1))  # the caller's
        found.close()

    def steps(self, scope: lt.DisposeScope, depth: int) -> None:
        mine = self.open[-1]
        for _ in range(self.dice.randrange(7)):
            at = self.dice.choice(sorted(self.owner)) if self.owner else None
            match self.dice.randrange(11):
                case 0 if at is not None:
                    self.made(self.handles[at].view(-1))
                case 1 if at is not None:
                    scope.move_to_outer(self.handles[at])
                    if self.owner[at] == mine:
                        self.owner[at] = self.around(mine)
                case 2 if at is not None:
                    lt.detach_from_dispose_scope(self.handles[at])
                    self.owner[at] = None
                case 3 if at is not None:
                    lt.dispose(self.handles[at])
                    del self.owner[at]
                case 4 if at is not None:
                    scope.dispose_everything_but(self.handles[at])
                    for other in [o for o, owner in self.owner.items() if owner == mine]:
                        if other != at:
                            del self.owner[other]
                case 5 if depth < 4:
                    self.in_scope(depth + 1, self.block)
                case 6 if depth < 4:
                    self.in_scope(depth + 1, self.wrapped)
                case 7 if depth < 4:
                    self.in_scope(depth + 1, self.generated)
                case 8 if self.dice.random() < 0.3:
                    raise Boom
                case _:
                    self.made(torch.ones(2))
            self.check()


def run_all(seeds: range) -> int:
    stats = lt.scope_statistics()
    for seed in seeds:
        stats.reset()
        program = Program(seed)
        program.run()
        program.handles.clear()
        assert stats.thread_total_live == 0, seed
    stats.stop()
    return len(seeds)


def test_random_blocks(stats: lt.ScopeStatistics) -> None:
    assert run_all(range(300)) == 300


@pytest.mark.long
def test_more_random_blocks(stats: lt.ScopeStatistics) -> None:
    assert run_all(range(1000, 5000)) == 4000


def test_random_blocks_on_several_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        done = pool.map(run_all, [range(at, at + 40) for at in range(10_000, 50_000, 10_000)])
        assert list(done) == [40] * 4
