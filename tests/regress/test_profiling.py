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


# --- programs that prepare a call as the original's api does ---


def a_call_prepared_by_hand(world: World) -> None:
    from hawser.rpc import api

    if world.rank == 0:
        info = rpc.get_worker_info(world.next)
        arguments = (None, add, rpc.internal.RPCExecMode.ASYNC, info)
        with legacy_profile() as prof:
            should_profile = api._get_should_profile()
            assert should_profile
            with api._enable_rpc_profiler(should_profile, *arguments) as record:
                future = rpc.rpc_async(world.next, add, (torch.ones(2),))
                future = record._call_end_callbacks_on_future(future)
                with pytest.raises(RuntimeError, match="can only be called once"):
                    record._call_end_callbacks_on_future(future)
            assert torch.equal(future.wait(), torch.ones(2) * 2)
        names = [event.name for event in prof.function_events]
        assert names.count("rpc_async#add(w0 -> w1)") == 1
        assert names.count("rpc_async#add(w0 -> w1)#remote_op: aten::add") == 1
        with api._enable_rpc_profiler(api._get_should_profile(), *arguments) as record:
            assert record is None


def test_a_call_prepared_by_hand() -> None:
    run(a_call_prepared_by_hand)


# --- calls within calls within calls ---


def add_by_way_of(others: list[str], x: torch.Tensor) -> torch.Tensor:
    if not others:
        return torch.add(x, x)
    result: torch.Tensor = rpc.rpc_sync(others[0], add_by_way_of, (others[1:], x))
    return result


def nested_to_any_depth(world: World) -> None:
    if world.rank == 0:
        way = [world.name(rank) for rank in (1, 2, 0, 2, 1)]
        with legacy_profile() as prof:
            add_by_way_of(way, torch.ones(2))
        calls = [
            f"rpc_sync#add_by_way_of({a} -> {b})"
            for a, b in zip([world.name(0), *way], way, strict=False)
        ]
        ranks = {event.name: event.node_id for event in prof.function_events}
        for depth in range(1, len(calls) + 1):
            name = "#remote_op: ".join(calls[:depth])
            assert name in ranks, (name, ranks)
        assert ranks["#remote_op: ".join([*calls, "aten::add"])] == 1
        with torch.profiler.profile() as kineto:
            add_by_way_of(way, torch.ones(2))
        calls[0] = calls[0].replace("rpc_sync", "rpc")
        keys = {event.key for event in kineto.key_averages()}
        assert "#remote_op: ".join([*calls, "aten::add"]) in keys


def test_nested_to_any_depth() -> None:
    run(nested_to_any_depth, size=3)


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
