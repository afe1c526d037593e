"""The bugs of torch.distributed.autograd that hawser does not have.

Numbers are those of the list of them; each test says what went wrong there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hawser.rpc as rpc
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
    return {name: int(value) for name, value in dist_autograd._get_debug_info().items()}


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
