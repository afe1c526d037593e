"""The bugs of torch.distributed.rpc that concern references, and that hawser does not have.

Numbers are those of the list of them; each test says what went wrong there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hawser.rpc as rpc
from hawser.rpc._testing import faulty_agent_backend_registry  # noqa: F401  # registers it

from .world import World, run

# --- functions that are called on other workers ---


class Thing:
    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.other: Any = None

    def get(self) -> int:
        return self.value

    def point_to(self, other: Any) -> None:
        self.other = other


class Sleeper:
    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def hold(self, until: str) -> None:
        eventually(lambda: os.path.exists(until))


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def value_of(ref: Any) -> Any:
    return ref.to_here()


held: list[Any] = []


def hold(ref: Any) -> None:
    held.append(ref)


def let_go() -> None:
    held.clear()


def use_held() -> list[Any]:
    return [ref.to_here() for ref in held]


def counts() -> dict[str, str]:
    return rpc._rref_context_get_debug_info()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


# --- 1: only the first reference whose creation timed out was marked ---


def two_creations_time_out(world: World) -> None:
    if world.rank != 0:
        return
    for _ in range(3):
        late = rpc.remote(world.next, slow, (0.5,), timeout=0.05)
        with pytest.raises(RuntimeError, match="RPC ran for more than"):
            late._get_future().wait()
        with pytest.raises(RuntimeError, match=r"RRef creation via rpc.remote\(\) timed out"):
            late.to_here()
        with pytest.raises(RuntimeError, match="RRef creation"):
            rpc.rpc_sync(world.next, value_of, (late,))


def test_row_01_each_reference_has_its_own_error() -> None:
    run(two_creations_time_out)


# --- 3: in a second world of the same process references could not be sent, and leaked ---


def references_in_two_worlds(world: World) -> None:
    for suffix in ("", ".second"):
        world.init(suffix=suffix)
        if world.rank == 0:
            ref = rpc.remote(world.name(1), Thing, (3,))
            assert rpc.rpc_sync(world.name(1), value_of, (ref,)).value == 3  # to its owner
            assert rpc.rpc_sync(world.name(2), value_of, (ref,)).value == 3
            assert ref.rpc_sync().get() == 3
            del ref
            eventually(lambda: rpc.rpc_sync(world.name(1), counts)["num_owner_rrefs"] == "0")
        rpc.shutdown()


def test_row_03_references_work_in_a_second_world() -> None:
    run(references_in_two_worlds, size=3, init=False)


# --- 8: the first call of _get_type decided what all later ones return ---


def ask_for_the_type(world: World) -> None:
    if world.rank != 0:
        return
    for blocking_first in (True, False):
        ref = rpc.remote(world.next, Thing, (3,))
        for blocking in (blocking_first, not blocking_first, True, False):
            kind = ref._get_type(blocking=blocking)
            assert (kind if blocking else kind.wait()) is Thing
        assert ref.rpc_sync().get() == 3
    late = rpc.remote(world.next, slow, (0.4,))
    with pytest.raises(RuntimeError, match="RPC ran for more than"):
        late._get_type(timeout=0.05)
    assert late._get_type() is float  # a look-up that failed is not remembered
    assert late.rpc_sync().is_integer() is False


def test_row_08_the_type_is_the_type_whoever_asked_first() -> None:
    run(ask_for_the_type)


# --- 10: backward without a context ignored retain_graph ---


def backward_twice(world: World) -> None:
    x = torch.ones(3, requires_grad=True)
    ref = rpc.RRef((x * x).sum())
    ref.backward(retain_graph=True)
    ref.backward()
    assert torch.equal(x.grad, 4 * torch.ones(3))
    with pytest.raises(RuntimeError, match="second time|retain_graph"):
        ref.backward()


def test_row_10_retain_graph_is_honoured() -> None:
    run(backward_twice, size=1)


# --- 14: who left a dynamic world gracefully did not let go of its references ---


def leave_with_references(world: World) -> None:
    world.init(dynamic=True)
    world.meet("joined")
    if world.rank == 0:
        ref = rpc.RRef(Thing(3))
        rpc.rpc_sync(world.name(1), hold, (ref,))
        del ref
        eventually(lambda: counts()["num_owner_rrefs"] == "1")
        world.meet("held")
        eventually(lambda: counts()["num_owner_rrefs"] == "0")
        agent = rpc.api._get_current_rpc_agent()
        eventually(lambda: [info.name for info in agent.get_worker_infos()] == ["w0"])
        world.meet("left")
    else:
        world.meet("held")
        rpc.shutdown()
        world.meet("left")
        return
    rpc.shutdown()


def test_row_14_who_leaves_lets_go() -> None:
    run(leave_with_references, init=False)


# --- 17: shutdown(timeout) did not limit how long references are waited for, nor join(timeout) ---


def end_while_a_reference_is_in_use(world: World) -> None:
    world.init()
    if world.rank == 0:
        ref = rpc.remote(world.next, Sleeper)
        use = ref.rpc_async(timeout=0).sleep(20.0)
        began = time.monotonic()
        with pytest.raises(RuntimeError):
            rpc.shutdown(timeout=1.0)
        assert time.monotonic() - began < 8
        with pytest.raises(RuntimeError):
            use.wait()
    else:
        with contextlib.suppress(RuntimeError):
            rpc.shutdown(timeout=1.0)


def test_row_17_shutdown_keeps_its_limit_when_references_are_not_released() -> None:
    run(end_while_a_reference_is_in_use, init=False, deadline=40)


def leave_beside_one_that_is_stopped(world: World) -> None:
    world.init(dynamic=True)
    world.meet("joined")
    if world.rank == 1:
        open(f"{world.path}.pid", "w").write(str(os.getpid()))
        world.meet("ready")
        eventually(lambda: os.path.exists(f"{world.path}.over"))
        rpc.shutdown(timeout=5.0)
        return
    world.meet("ready")
    stopped = int(open(f"{world.path}.pid").read())
    refs = [rpc.remote(world.next, Thing, (i,)) for i in range(3)]
    assert [ref.rpc_sync().get() for ref in refs] == [0, 1, 2]
    os.kill(stopped, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with contextlib.suppress(RuntimeError):  # that it was not all done in time
            rpc.shutdown(timeout=1.0)
        assert time.monotonic() - began < 8
    finally:
        os.kill(stopped, signal.SIGCONT)
        open(f"{world.path}.over", "w").close()


def test_row_17_shutdown_keeps_its_limit_beside_a_worker_that_is_stopped() -> None:
    run(leave_beside_one_that_is_stopped, init=False)


def interrupt_while_references_are_waited_for(world: World) -> None:
    if world.rank == 1:
        world.meet("end")
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ref = rpc.remote(world.next, Sleeper)
    over = f"{world.path}.over"
    use = ref.rpc_async(timeout=0).hold(over)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        rpc.api._delete_all_user_and_unforked_owner_rrefs()
    assert not use.done()
    open(over, "w").close()
    use.wait()
    world.meet("end")


def test_row_17_waiting_for_references_can_be_interrupted() -> None:
    run(interrupt_while_references_are_waited_for)


def join_with_a_limit(world: World) -> None:
    if world.rank == 1:
        return
    agent = rpc.api._get_current_rpc_agent()
    under_way = rpc.rpc_async(world.next, slow, (3.0,))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="still run"):
        agent.join(timeout=0.2)
    assert time.monotonic() - began < 2.5
    assert not under_way.done()
    agent.join(timeout=20)
    assert under_way.done()


def test_row_17_join_keeps_its_limit() -> None:
    run(join_with_a_limit)


# --- 19: who waits in to_here was not told, and the value stayed at the owner ---


def creation_fails_while_somebody_waits(world: World) -> None:
    if world.rank != 0:
        world.meet("end")
        return
    late = rpc.remote(world.next, slow, (3.0,), timeout=0.2)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="RRef creation"):
        late.to_here(timeout=30)
    assert time.monotonic() - began < 2
    del late
    eventually(lambda: rpc.rpc_sync(world.next, counts)["num_owner_rrefs"] == "0")
    assert counts()["num_pending_users"] == "0"
    world.meet("end")


def test_row_19_a_failed_creation_ends_waiting_and_leaves_nothing() -> None:
    run(creation_fails_while_somebody_waits)


# --- 20: a failed fork request left a pending user for ever, and the function never ran ---


def faulty(world: World, fail: list[str], times: int) -> None:
    rpc.init_rpc(
        world.name(),
        backend=rpc.BackendType.FAULTY_TENSORPIPE,
        rank=world.rank,
        world_size=world.size,
        rpc_backend_options=rpc.backend_registry.construct_rpc_backend_options(
            rpc.BackendType.FAULTY_TENSORPIPE,
            init_method=f"file://{world.path}",
            num_worker_threads=8,
            messages_to_fail=fail,
            messages_to_delay={},
            num_fail_sends=times,
        ),
    )


def fork_requests_fail(world: World) -> None:
    faulty(world, ["RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE"], 2)
    if world.rank == 0:
        ref = rpc.remote(world.name(1), Thing, (3,))
        assert rpc.rpc_sync(world.name(2), value_of, (ref,)).value == 3
        eventually(lambda: rpc.rpc_sync(world.name(2), counts)["num_pending_users"] == "0")
        del ref
        eventually(lambda: rpc.rpc_sync(world.name(1), counts)["num_forks"] == "0")
        eventually(lambda: counts()["num_pending_futures"] == "0")
    rpc.shutdown()


def test_row_20_records_that_are_lost_are_sent_again() -> None:
    run(fork_requests_fail, size=3, init=False)


# --- 21: the check for a deleted reference was not synchronised ---


def use_and_release(world: World) -> None:
    if world.rank != 0:
        return
    for _ in range(50):
        ref = rpc.remote(world.next, Thing, (3,))
        outcomes: list[Any] = []

        def use(ref: Any = ref, outcomes: list[Any] = outcomes) -> None:
            for _ in range(20):
                with contextlib.suppress(RuntimeError):
                    outcomes.append(ref.to_here().value)

        users = [threading.Thread(target=use) for _ in range(2)]
        for user in users:
            user.start()
        ref.release()
        for user in users:
            user.join()
        assert set(outcomes) <= {3}  # right, or not at all
    eventually(lambda: rpc.rpc_sync(world.next, counts)["num_owner_rrefs"] == "0")


def test_row_21_releasing_while_others_use_it_is_safe() -> None:
    run(use_and_release)


# --- 22: retries that were pending at shutdown never completed ---


def end_while_records_are_lost(world: World) -> None:
    faulty(world, ["RREF_USER_DELETE"], 3)
    if world.rank == 0:
        refs = [rpc.remote(world.next, Thing, (i,)) for i in range(10)]
        assert [ref.to_here().value for ref in refs] == list(range(10))
    began = time.monotonic()
    rpc.shutdown()
    assert time.monotonic() - began < 15


def test_row_22_shutdown_waits_for_what_is_sent_again() -> None:
    run(end_while_records_are_lost, init=False)


# --- 23: a delete that was not the last one crashed the owner ---


def several_holders(world: World) -> None:
    if world.rank != 0:
        world.meet("end")
        return
    ref = rpc.remote(world.name(1), slow, (0.0,))
    rpc.rpc_sync(world.name(2), hold, (ref,))
    rpc.rpc_sync(world.name(2), hold, (ref,))
    del ref
    eventually(lambda: rpc.rpc_sync(world.name(1), counts)["num_forks"] == "2")
    assert rpc.rpc_sync(world.name(2), use_held) == [0.0, 0.0]
    rpc.rpc_sync(world.name(2), let_go)
    eventually(lambda: rpc.rpc_sync(world.name(1), counts)["num_owner_rrefs"] == "0")
    world.meet("end")


def test_row_23_the_value_stays_until_the_last_holder_lets_go() -> None:
    run(several_holders, size=3)


# --- 35: references that hold each other across processes ---


def make_a_cycle(world: World) -> list[str]:
    world.init()
    if world.rank == 0:
        mine = rpc.RRef(Thing(1))
        theirs = rpc.remote(world.next, Thing, (2,))
        theirs.rpc_sync().point_to(mine)
        mine.local_value().point_to(theirs)
        del mine, theirs
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda line: logged.append(line.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hawser").addHandler(handler)
    rpc.shutdown()
    return logged


def test_row_35_a_cycle_is_shown_by_the_leak_report_and_does_not_stop_shutdown() -> None:
    report = [line for lines in run(make_a_cycle, init=False) for line in lines if "ring" in line]
    assert any("is held by w1" in line or "is held by w0" in line for line in report), report
