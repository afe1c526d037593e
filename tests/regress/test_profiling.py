"""The bugs of torch.distributed.rpc that concern profiling, and that hawser does not have.

Numbers are those of the list of them; each test says what went wrong there.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
import torch.distributed.autograd as stock_autograd
from torch.autograd.profiler_legacy import profile as legacy_profile

import hawser.rpc as rpc
from hawser.rpc import dist_autograd

from .world import World, run

# --- functions that are called on other workers ---


def add_and_raise(x: torch.Tensor) -> None:
    torch.add(x, x)
    raise KeyError("after an addition")


def add(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, x)


def add_on(to: str, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = rpc.rpc_sync(to, add, (x,))
    return result


def remote_ops(events: Any) -> dict[str, int]:
    """Operators that ran elsewhere, and the rank at which they did."""
    return {e.name.split("#remote_op: ")[-1]: e.node_id for e in events if e.is_remote}


# --- 29: Kineto saw the caller only ---


def kineto_sees_the_callee(world: World) -> None:
    if world.rank == 0:
        with warnings.catch_warnings(), torch.profiler.profile() as prof:
            warnings.simplefilter("error")  # upstream warns that the callee is not profiled
            rpc.rpc_sync(world.next, add, (torch.ones(2),))
            rpc.rpc_async(world.next, add, (torch.ones(2),)).wait()
            rpc.remote(world.next, add, (torch.ones(2),)).to_here()
        counts = {event.key: event.count for event in prof.key_averages()}
        assert counts["rpc#add(w0 -> w1)"] == 3, counts
        assert counts["rpc#add(w0 -> w1)#remote_op: aten::add"] == 3, counts


def test_29_kineto_sees_the_callee() -> None:
    run(kineto_sees_the_callee)


# --- 29: remote events were dropped when the call failed ---


def a_failed_call_has_its_events(world: World) -> None:
    if world.rank == 0:
        for call in (rpc.rpc_sync, lambda *args: rpc.rpc_async(*args).wait()):
            with legacy_profile() as prof, pytest.raises(KeyError):
                call(world.next, add_and_raise, (torch.ones(2),))
            assert remote_ops(prof.function_events)["aten::add"] == 1


def test_29_a_failed_call_has_its_events() -> None:
    run(a_failed_call_has_its_events)


# --- 29: a key that an error left behind made the next profiled call fail ---


def an_error_leaves_nothing_behind(world: World) -> None:
    if world.rank == 0:
        x = torch.ones(2)
        with legacy_profile() as prof:
            for _ in range(3):
                with pytest.raises(TypeError):
                    rpc.rpc_sync(world.next, add, (threading.Lock(),))  # cannot be sent
                with pytest.raises(RuntimeError):
                    rpc.rpc_sync("nobody", add, (x,))
                with pytest.raises(ValueError, match="negative"):
                    rpc.rpc_async(world.next, add, (x,), timeout=-3)
                with pytest.raises(KeyError):
                    rpc.rpc_sync(world.next, add_and_raise, (x,))
                rpc.rpc_sync(world.next, add, (x,))
        names = [event.name for event in prof.function_events]
        assert names.count("rpc_sync#add(w0 -> w1)#remote_op: aten::add") == 3


def test_29_an_error_leaves_nothing_behind() -> None:
    run(an_error_leaves_nothing_behind)


# --- calls at the same time, and calls within calls ---


def keys_belong_to_calls(world: World) -> None:
    if world.rank == 0:
        with legacy_profile() as prof:
            # Upstream: "Cannot call RemoteProfilerManager::setCurrentKey when current key is set".
            futures = [
                rpc.rpc_async(world.name(1), add_on, (world.name(2), torch.ones(2)))
                for _ in range(10)
            ]
            for future in futures:
                future.wait()
        nested = "rpc_async#add_on(w0 -> w1)#remote_op: rpc_sync#add(w1 -> w2)"
        where = [e.node_id for e in prof.function_events if e.name == nested]
        assert where == [1] * 10
        deepest = nested + "#remote_op: aten::add"
        assert [e.node_id for e in prof.function_events if e.name == deepest] == [2] * 10


def test_29_keys_belong_to_calls() -> None:
    run(keys_belong_to_calls, size=3)


# --- a pass is one scope, whoever begins it ---


@torch.jit.script
def backward_in_a_script(context_id: int, loss: torch.Tensor) -> None:
    stock_autograd.backward(context_id, [loss])


def count_scopes_of_a_pass(world: World) -> None:
    for begin in (lambda i, loss: dist_autograd.backward(i, [loss]), backward_in_a_script):
        x = torch.ones(2, requires_grad=True)
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(world.next, add, (x,)).sum()
            with legacy_profile() as prof:
                begin(context_id, loss)
            assert torch.equal(dist_autograd.get_gradients(context_id)[x], torch.full((2,), 2.0))
        scopes = [e.name for e in prof.function_events if e.name.endswith("autograd::backward")]
        assert scopes == ["torch::distributed::autograd::backward"], scopes


def test_a_pass_is_one_scope() -> None:
    run(count_scopes_of_a_pass)
