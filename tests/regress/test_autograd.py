"""The bugs of torch.distributed.autograd that hawser does not have.

Numbers are those of the list of them; each test says what went wrong there.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hawser
import hawser.rpc as rpc
from hawser import autograd
from hawser.rpc import dist_autograd

from .world import World, run

# --- functions that are called on other workers ---


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("no gradient today")


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(1.5)
        return gradient


def fail_after_adding(to: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The gradients reach whoever adds only if the pass gets past the failure."""
    return Fails.apply(rpc.rpc_sync(to, add, (a, b)))


def slowly(x: torch.Tensor) -> torch.Tensor:
    return Slow.apply(x)


@rpc.functions.async_execution
def add_later(to: str, a: torch.Tensor, b: torch.Tensor) -> Any:
    return rpc.rpc_async(to, add, (a, b)).then(lambda done: rpc.rpc_sync(to, add, (done.wait(), b)))


def info() -> dict[str, int]:
    return dist_autograd._get_debug_info()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)


# --- 3: a process could not start again with another rank ---


def start_again_with_another_rank(world: World) -> None:
    for turn in range(2):
        rank = (world.rank + turn) % world.size
        world.init(name=f"again{rank}", rank=rank, suffix=f".turn{turn}")
        a, b = leaves()
        with dist_autograd.context() as context_id:
            assert context_id >> 48 == rank
            out = rpc.rpc_sync(f"again{(rank + 1) % world.size}", add, (a, b))
            dist_autograd.backward(context_id, [out.sum()])
            assert torch.equal(dist_autograd.get_gradients(context_id)[a], torch.ones(3))
        rpc.shutdown()


def test_row_03_another_rank_the_next_time() -> None:
    run(start_again_with_another_rank, init=False)


# --- 24: a result that was not used made backward wait for ever ---


def leave_a_result_unused(world: World) -> None:
    a, b = leaves()
    with dist_autograd.context() as context_id:
        used = rpc.rpc_sync(world.next, add, (a, b))
        rpc.rpc_sync(world.next, add, (used, b))
        dist_autograd.backward(context_id, [used.sum()])
        assert torch.equal(dist_autograd.get_gradients(context_id)[a], torch.ones(3))


def test_row_24_unused_results_are_not_waited_for() -> None:
    run(leave_a_result_unused)


# --- 25: other workers were not told of an error, and stayed in the pass ---


def fail_in_the_middle(world: World) -> None:
    if world.rank != 0:
        world.meet("end")
        return
    a, b = leaves()
    with dist_autograd.context() as context_id:
        out = rpc.rpc_sync("w1", fail_after_adding, ("w2", a, b))
        with pytest.raises(RuntimeError, match="Error on Node 1: no gradient today"):
            dist_autograd.backward(context_id, [out.sum()])
        for worker in ("w0", "w1", "w2"):
            eventually(
                lambda worker=worker: (
                    rpc.rpc_sync(worker, info)["num_current_backward_passes"] == 0
                )
            )
    for worker in ("w1", "w2"):
        eventually(lambda worker=worker: rpc.rpc_sync(worker, info)["num_autograd_contexts"] == 0)
    world.meet("end")


def test_row_25_an_error_ends_the_pass_everywhere() -> None:
    run(fail_in_the_middle, size=3)


def die_in_a_context(world: World) -> None:
    world.init()
    a, b = leaves()
    if world.rank == 2:
        dist_autograd._new_context()
        rpc.rpc_sync("w1", add, (a, b))
        world.meet("entered")
        world.meet("seen")
        os.kill(os.getpid(), 9)
    world.meet("entered")
    if world.rank == 1:
        assert info()["num_autograd_contexts"] == 1
    world.meet("seen")
    if world.rank == 1:
        eventually(lambda: info()["num_autograd_contexts"] == 0)
    rpc.shutdown(graceful=False)


def test_row_25_contexts_of_the_dead_are_collected() -> None:
    run(die_in_a_context, size=3, init=False, may_die=(2,))


# --- 26: the context did not follow into callbacks ---


def go_on_in_callbacks(world: World) -> None:
    a, b = leaves()
    with dist_autograd.context() as context_id:
        done = rpc.rpc_async(world.next, add, (a, b)).then(
            lambda future: rpc.rpc_sync(world.next, add, (future.wait(), b))
        )
        later = rpc.rpc_sync(world.next, add_later, (world.name(), a, b))
        dist_autograd.backward(context_id, [(done.wait() + later).sum()])
        gradients = dist_autograd.get_gradients(context_id)
        assert torch.equal(gradients[a], torch.full((3,), 2.0))
        assert torch.equal(gradients[b], torch.full((3,), 4.0))


def test_row_26_callbacks_stay_in_the_context() -> None:
    run(go_on_in_callbacks)


async def train_in_a_task(world: World, factor: float) -> torch.Tensor:
    a, b = leaves()
    with dist_autograd.context() as context_id:
        await asyncio.sleep(0)  # the others enter theirs
        out = rpc.rpc_sync(world.next, add, (a * factor, b))
        await asyncio.sleep(0)
        assert dist_autograd._current_context()._context_id() == context_id
        await asyncio.to_thread(dist_autograd.backward, context_id, [out.sum()])
        return dist_autograd.get_gradients(context_id)[a]


def train_in_tasks(world: World) -> None:
    async def outside() -> int | None:
        await asyncio.sleep(0)
        return autograd.current()

    async def all_tasks() -> list[Any]:
        return await asyncio.gather(
            *(train_in_a_task(world, float(i)) for i in range(1, 4)), outside()
        )

    *gradients, unrelated = asyncio.run(all_tasks())
    assert unrelated is None and autograd.current() is None
    for i, gradient in enumerate(gradients, 1):
        assert torch.equal(gradient, torch.full((3,), float(i)))


def test_row_26_tasks_have_contexts_of_their_own() -> None:
    run(train_in_tasks)


callback_is_set = threading.Event()


def add_once_the_callback_is_set(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert callback_is_set.wait(20)
    return x + y


def tell_that_the_callback_is_set() -> None:
    callback_is_set.set()


def release_under_a_callback(world: World) -> None:
    a, b = leaves()
    running, released = threading.Event(), threading.Event()

    def go_on(future: Any) -> torch.Tensor:
        running.set()
        assert released.wait(20)
        return rpc.rpc_sync(world.next, add, (future.wait(), b))

    with dist_autograd.context():
        done = rpc.rpc_async(world.next, add_once_the_callback_is_set, (a, b)).then(go_on)
        rpc.rpc_sync(world.next, tell_that_the_callback_is_set)
        assert running.wait(20)
    released.set()
    assert torch.equal(done.wait(), torch.full((3,), 3.0))
    eventually(lambda: info()["num_autograd_contexts"] == 0)
    world.meet("released")


def test_row_26_a_context_may_end_under_a_running_callback() -> None:
    run(release_under_a_callback)


# --- 27: what was handed out changed, or was gone while it was needed ---


def keep_gradients_over_a_pass(world: World) -> None:
    a, b = leaves()
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(world.next, add, (a, b)).sum()
        dist_autograd.backward(context_id, [loss], retain_graph=True)
        first = dist_autograd.get_gradients(context_id)
        gradient = first[a]
        dist_autograd.backward(context_id, [loss])
        assert first[a] is gradient and torch.equal(gradient, torch.ones(3))
        first.clear()
        assert torch.equal(dist_autograd.get_gradients(context_id)[a], torch.full((3,), 2.0))
    assert torch.equal(gradient, torch.ones(3))


def test_row_27_gradients_that_were_handed_out_do_not_change() -> None:
    run(keep_gradients_over_a_pass)


def in_backward_of(path: str, x: torch.Tensor) -> torch.Tensor:
    return Stalls.apply(x, path)


class Stalls(torch.autograd.Function):
    """Makes a file when its gradient is asked for, and goes on when there is another."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, path: str) -> torch.Tensor:
        ctx.path = path
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        open(f"{ctx.path}.begun", "w").close()
        eventually(lambda: os.path.exists(f"{ctx.path}.end"))
        return gradient, None


def end_with_gradients_on_their_way(world: World, how: str) -> None:
    world.init()
    if world.rank == 0:
        a, _ = leaves()
        path = f"{world.path}.backward"
        raised: list[BaseException] = []
        context_id = dist_autograd._new_context()._context_id()
        out = rpc.rpc_sync("w1", in_backward_of, (path, a))

        def run_pass() -> None:
            try:
                dist_autograd.backward(context_id, [out.sum()])
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=run_pass)
        thread.start()
        eventually(lambda: os.path.exists(f"{path}.begun"))
        if how == "release":
            dist_autograd._release_context(context_id)
        else:
            rpc.shutdown(graceful=False)
        thread.join(20)
        assert not thread.is_alive() and len(raised) == 1, raised
        assert ("released" if how == "release" else "closed") in str(raised[0])
        open(f"{path}.end", "w").close()
        if how == "release":
            assert info() == {"num_autograd_contexts": 0, "num_current_backward_passes": 0}
    world.meet("ended")
    if world.rank == 1:
        eventually(lambda: set(info().values()) == {0})
    world.meet("checked")
    if not (world.rank == 0 and how == "close"):
        rpc.shutdown(graceful=False)


@pytest.mark.parametrize("how", ["release", "close"])
def test_row_27_the_context_may_end_while_gradients_are_on_their_way(how: str) -> None:
    run(end_with_gradients_on_their_way, how, init=False)


# --- 28: a pass had the time-out of a call, and no other could be given ---


def take_longer_than_a_call(world: World) -> None:
    a, _ = leaves()
    with dist_autograd.context() as context_id:
        out = rpc.rpc_sync(world.next, slowly, (a,))
        with pytest.raises(RuntimeError):
            dist_autograd.backward(context_id, [out.sum()], retain_graph=True, timeout=0.2)
        assert dist_autograd.get_gradients(context_id) == {}
        dist_autograd.backward(context_id, [out.sum()])
        assert torch.equal(dist_autograd.get_gradients(context_id)[a], torch.ones(3))


def test_row_28_a_pass_has_a_limit_of_its_own() -> None:
    run(take_longer_than_a_call, rpc_timeout=1)


@pytest.mark.parametrize("rank", [1 << 15, 1 << 16])
def test_row_28_ranks_that_do_not_fit_into_ids_are_refused(rank: int, tmp_path: Any) -> None:
    with pytest.raises(hawser.Invalid, match=f"rank {rank} does not fit"):
        hawser.Node("high", f"file://{tmp_path}/store", rank=rank)
    with hawser.Node("high", f"file://{tmp_path}/store", rank=(1 << 15) - 1) as node:
        with hawser.autograd.context(node) as context:
            assert context.id >> 48 == (1 << 15) - 1
