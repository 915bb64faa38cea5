"""Threads, tasks, generators, processes: whose scope is the innermost, and when."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import lowtide as lt


def in_a_thread(work: object) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def test_tensors_of_other_threads_are_not_the_scopes() -> None:
    made: list[torch.Tensor] = []

    def work() -> None:
        assert lt.current_dispose_scope() is None
        made.append(torch.ones(1))
        with lt.dispose_scope() as own:
            made.append(torch.ones(1))
            assert own.outer_scope is None

    with lt.dispose_scope() as scope:
        in_a_thread(work)
        assert scope.disposables_count == 0
    assert [lt.is_disposed(t) for t in made] == [False, True]


def test_a_tensor_can_be_handed_to_a_scope_of_another_thread(stats: lt.ScopeStatistics) -> None:
    with lt.dispose_scope() as scope:
        made: list[torch.Tensor] = []

        def work() -> None:
            with lt.dispose_scope() as own:
                made.append(own.move_to_other(scope, torch.ones(1)))
                theirs = lt.scope_statistics()
                assert theirs.created_in_scope == 1
                theirs.stop()

        in_a_thread(work)
        assert not lt.is_disposed(made[0])
        assert scope.contains(made[0])
    assert lt.is_disposed(made[0])
    assert stats.disposed_in_scope == 1


def test_a_scope_can_be_ended_on_another_thread() -> None:
    scope = lt.dispose_scope().__enter__()
    a = torch.ones(1)
    in_a_thread(scope.dispose)
    assert lt.is_disposed(a)
    assert lt.current_dispose_scope() is None
    b = torch.ones(1)
    with lt.dispose_scope():
        pass
    assert not lt.is_disposed(b)


def test_nothing_comes_into_a_scope_that_is_ending() -> None:
    """Another thread gives it a tensor while it disposes what it had."""
    refused: list[lt.ScopeError] = []

    def give() -> None:
        late = torch.ones(1)
        try:
            lt.move_to_other_dispose_scope(late, scope)
        except lt.ScopeError as error:
            refused.append(error)

    class Last:
        def __del__(self) -> None:
            in_a_thread(give)

    with lt.dispose_scope() as scope:
        made = torch.ones(1)
        made.last = Last()  # type: ignore[attr-defined]
    assert lt.is_disposed(made)
    assert len(refused) == 1
    assert scope.disposables_count == 0


def test_threads_at_once() -> None:
    def work() -> None:
        for _ in range(50):
            with lt.dispose_scope() as outer:
                kept = []
                with lt.dispose_scope() as inner:
                    for _ in range(20):
                        kept.append(inner.move_to_outer(torch.ones(1) + 1))
                assert outer.disposables_count == 20
            assert all(lt.is_disposed(t) for t in kept)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_a_thread(work)


def test_each_task_has_its_own() -> None:
    made: dict[str, torch.Tensor] = {}
    order: list[str] = []

    async def work(name: str, wait: float) -> None:
        async with lt.dispose_scope() as scope:
            made[name] = torch.ones(1)
            await asyncio.sleep(wait)
            made[name + "2"] = torch.ones(1)
            assert lt.current_dispose_scope() is scope
            assert scope.disposables_count == 2
            order.append(name)
        assert lt.is_disposed(made[name])

    async def outside() -> None:
        await asyncio.sleep(0.01)
        made["outside"] = torch.ones(1)
        assert lt.current_dispose_scope() is None

    async def main() -> None:
        await asyncio.gather(work("a", 0.04), work("b", 0.02), outside())

    asyncio.run(main())
    assert order == ["b", "a"]
    assert not lt.is_disposed(made["outside"])


def test_a_task_started_inside_outlives_the_scope() -> None:
    made: list[torch.Tensor] = []

    async def child() -> None:
        made.append(torch.ones(1))
        await asyncio.sleep(0.01)
        made.append(torch.ones(1))

    async def main() -> None:
        with lt.dispose_scope():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        await task

    asyncio.run(main())
    assert [lt.is_disposed(t) for t in made] == [True, False]


def test_threads_of_asyncio_are_other_threads() -> None:
    made: list[torch.Tensor] = []

    async def main() -> None:
        with lt.dispose_scope():
            await asyncio.to_thread(lambda: made.append(torch.ones(1)))
            assert await asyncio.to_thread(lt.current_dispose_scope) is None

    asyncio.run(main())
    assert not lt.is_disposed(made[0])


def test_coroutine_functions() -> None:
    kept: list[torch.Tensor] = []

    @lt.wrapped_dispose_scope
    async def work() -> torch.Tensor:
        kept.append(torch.ones(1))
        await asyncio.sleep(0)
        return kept[0] + 1

    @lt.dispose_scope()
    async def plain() -> torch.Tensor:
        return torch.ones(1)

    assert asyncio.run(work()).item() == 2
    assert lt.is_disposed(kept[0])
    assert lt.is_disposed(asyncio.run(plain()))


def test_objects_that_are_called_like_coroutine_functions() -> None:
    class Work:
        kept: torch.Tensor

        async def __call__(self) -> torch.Tensor:
            self.kept = torch.ones(1)
            await asyncio.sleep(0)
            return self.kept + 1

    work = Work()
    assert asyncio.run(lt.wrapped_dispose_scope(work)()).item() == 2
    assert lt.is_disposed(work.kept)


def test_generators_own_what_they_make_and_not_what_the_caller_makes() -> None:
    kept: list[torch.Tensor] = []

    @lt.wrapped_dispose_scope
    def steps(n: int) -> Iterator[torch.Tensor]:
        total = torch.zeros(1)
        kept.append(total)
        for _ in range(n):
            total = total + 1
            got = yield total * 10
            kept.append(total)
            if got is not None:
                total = got

    mine: list[torch.Tensor] = []
    seen = []
    for value in steps(3):
        mine.append(value + 1)
        seen.append(value)
        assert lt.current_dispose_scope() is None
    assert [value.item() for value in seen] == [10, 20, 30]
    assert [t.item() for t in mine] == [11, 21, 31]
    assert all(lt.is_disposed(t) for t in kept)


def test_generators_pass_on_what_is_sent_thrown_and_closed() -> None:
    events: list[object] = []

    @lt.dispose_scope()
    def echo() -> Iterator[object]:
        try:
            while True:
                try:
                    got = yield torch.ones(1)
                    events.append(got)
                except KeyError as error:
                    events.append(error)
        finally:
            events.append("closed")

    steps = echo()
    first = next(steps)
    steps.send("sent")  # type: ignore[attr-defined]
    thrown = KeyError("k")
    steps.throw(thrown)  # type: ignore[attr-defined]
    steps.close()  # type: ignore[attr-defined]
    assert events == ["sent", thrown, "closed"]
    assert lt.is_disposed(first)  # type: ignore[arg-type]


def test_what_a_generator_makes_as_it_is_closed_is_its_scopes() -> None:
    kept: list[torch.Tensor] = []

    @lt.dispose_scope()
    def steps() -> Iterator[None]:
        try:
            yield
        finally:
            kept.append(torch.ones(1))

    @lt.dispose_scope()
    async def async_steps() -> AsyncIterator[None]:
        try:
            yield
        finally:
            kept.append(torch.ones(1))

    async def some_of_them() -> None:
        found = async_steps()
        await anext(found)
        await found.aclose()  # type: ignore[attr-defined]

    some = steps()
    next(some)
    some.close()  # type: ignore[attr-defined]
    asyncio.run(some_of_them())
    assert [lt.is_disposed(t) for t in kept] == [True, True]


def test_a_generator_goes_on_in_another_thread() -> None:
    kept: list[torch.Tensor] = []

    @lt.dispose_scope()
    def steps(n: int) -> Iterator[None]:
        for _ in range(n):
            kept.extend(torch.ones(2).split(1))
            yield

    def work() -> None:
        next(found)
        kept.append(torch.ones(1))
        assert torch._C._len_torch_function_stack() == 0
        assert lt.current_dispose_scope() is None

    found = steps(3)
    next(found)
    in_a_thread(work)
    next(found)
    in_a_thread(found.close)  # type: ignore[attr-defined]
    assert [lt.is_disposed(t) for t in kept] == [True] * 4 + [False] + [True] * 2


def test_an_error_in_a_generator_passes() -> None:
    @lt.dispose_scope()
    def broken() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(broken())


def test_asynchronous_generators() -> None:
    kept: list[torch.Tensor] = []

    @lt.wrapped_dispose_scope
    async def steps() -> AsyncIterator[torch.Tensor]:
        for k in range(3):
            kept.append(torch.ones(1))
            await asyncio.sleep(0)
            yield kept[-1] * k

    async def main() -> list[torch.Tensor]:
        found = []
        async for value in steps():
            assert lt.current_dispose_scope() is None
            found.append(value)
        return found

    assert [t.item() for t in asyncio.run(main())] == [0, 1, 2]
    assert all(lt.is_disposed(t) for t in kept)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_starts_without_scopes() -> None:
    with lt.dispose_scope() as scope:
        a = torch.ones(1)
        child = os.fork()
        if child == 0:
            ok = lt.current_dispose_scope() is None and torch._C._len_torch_function_stack() == 0
            torch.ones(1)
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert scope.contains(a)


def test_the_mode_is_off_outside() -> None:
    lt.scope_statistics().stop()
    depth = torch._C._len_torch_function_stack()
    with lt.dispose_scope():
        assert torch._C._len_torch_function_stack() == depth + 1
        with lt.dispose_scope():
            assert torch._C._len_torch_function_stack() == depth + 1
    assert torch._C._len_torch_function_stack() == depth == 0


def test_exceptions_leave_nothing_in_their_traceback() -> None:
    def fails() -> None:
        large = torch.ones(3)
        raise ValueError(large.shape)

    with pytest.raises(ValueError) as found, lt.dispose_scope():
        fails()
    frame = found.value.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    assert frame is not None
    assert lt.is_disposed(frame.tb_frame.f_locals["large"])


class FirstBatchLast(Dataset[torch.Tensor]):
    """The worker of the first batch is slow: the second comes before it, and waits."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.5 * (index == 0))
        return torch.full((2,), float(index))


@pytest.mark.parametrize("is_epoch", [False, True])
def test_batches_that_come_before_their_turn_are_the_loaders(
    stats: lt.ScopeStatistics, is_epoch: bool
) -> None:
    for loader in (DataLoader(FirstBatchLast(), num_workers=2) for _ in range(2)):
        with lt.dispose_scope() if is_epoch else contextlib.nullcontext():
            fetch, seen = iter(loader), list[torch.Tensor]()
            for expected in range(4):
                with lt.dispose_scope() as scope:
                    batch = next(fetch)
                    assert scope.contains(batch)
                    assert batch.tolist() == [[expected] * 2]
                    seen.append(batch)
            assert all(lt.is_disposed(t) for t in seen)
            del fetch
    assert stats.thread_total_live == 0


def test_a_tensor_is_looked_for_where_it_was_made_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide.memory.scopes.tensor_log import Bag

    asked: list[Bag] = []
    find = Bag.find

    def counting(bag: Bag, tensor: torch.Tensor) -> object:
        asked.append(bag)
        return find(bag, tensor)

    others = 50
    with lt.dispose_scope() as outer:

        async def task(begun: asyncio.Semaphore, go_on: asyncio.Event) -> list[torch.Tensor]:
            with lt.dispose_scope() as own:
                made, deeper = torch.ones(1), torch.ones(1)
                begun.release()
                await go_on.wait()
                with lt.dispose_scope():
                    lt.move_to_outer_dispose_scope(made)
                lt.move_to_other_dispose_scope(torch.ones(1), deeper)
                own.move_to_other(outer, deeper)
            return [made, deeper]

        async def main() -> list[list[torch.Tensor]]:
            begun, go_on = asyncio.Semaphore(0), asyncio.Event()
            tasks = [asyncio.create_task(task(begun, go_on)) for _ in range(others)]
            for _ in range(others):
                await begun.acquire()
            monkeypatch.setattr(Bag, "find", counting)
            go_on.set()
            return await asyncio.gather(*tasks)

        found = asyncio.run(main())
        monkeypatch.undo()
        assert len(asked) < 20 * others  # not as many as there are scopes, for each
        assert all(outer.contains(t) for pair in found for t in pair)
        assert outer.disposables_count == 2 * others


def test_a_tensor_is_found_in_a_scope_of_another_context() -> None:
    outer = lt.dispose_scope()
    made: list[torch.Tensor] = []

    def work() -> None:
        made.append(torch.ones(1))
        in_a_thread(lambda: lt.detach_from_dispose_scope(made[0]))

    with outer:
        work()
        assert not outer.contains(made[0])
    assert not lt.is_disposed(made[0])
