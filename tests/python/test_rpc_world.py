"""Whole worlds of hawser.rpc: many workers, and ones that fail, fork, are killed or just leave."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hawser
import hawser.rpc as rpc

sys.path.insert(0, str(Path(__file__).parent.parent))

from regress.world import World, run

PATIENCE_S = 20  # for what takes milliseconds: who waits so long has hung


def poll(condition: Callable[[], bool]) -> None:
    """For what nobody tells: returns when it holds."""
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.001)


# --- who is there ---


def ask_who_is_there(world: World) -> None:
    agent = rpc.api._get_current_rpc_agent()
    other = agent.get_worker_info(world.next)
    assert (other.name, other.id) == (world.next, 1 - world.rank)
    assert agent.get_worker_info(workerName=world.next) == other
    assert agent.get_worker_info(other.id) == agent.get_worker_info(id=other.id) == other
    assert agent.get_worker_info() == agent.get_worker_info(id=world.rank)
    with pytest.raises(RuntimeError, match=f"rank:{world.rank} could not find destination id 9"):
        agent.get_worker_info(id=9)


def test_workers_are_known_by_name_and_rank() -> None:
    run(ask_who_is_there)


_permission = threading.Event()


def await_permission() -> None:
    assert _permission.wait(PATIENCE_S)


def limit_by_a_deadline(world: World) -> None:
    if world.rank != 0:
        return
    late = rpc.remote("w1", await_permission)
    calls: list[Callable[[], Any]] = [
        lambda: rpc.rpc_sync("w1", await_permission, timeout=0),
        lambda: rpc.rpc_async("w1", await_permission).wait(),
        lambda: late.to_here(timeout=0),
        lambda: late.rpc_sync(timeout=PATIENCE_S).anything(),
    ]
    for call in calls:
        with pytest.raises(hawser.Timeout), hawser.deadline(0.1):
            call()
    with pytest.raises(hawser.Timeout, match="100 ms"), hawser.deadline(PATIENCE_S):
        rpc.rpc_sync("w1", await_permission, timeout=0.1)  # which is earlier
    rpc.rpc_sync("w1", permit)


def permit() -> None:
    _permission.set()


def test_a_deadline_limits_all_kinds_of_calls() -> None:
    run(limit_by_a_deadline)


def use_the_native_interface(world: World) -> None:
    with pytest.raises(hawser.Invalid, match="no node"):
        hawser.default_node()
    world.init()
    node = hawser.default_node()
    assert node.name == world.name() and node.run(world.next, min, 1, 2) == 1
    rpc.shutdown()
    with pytest.raises(hawser.Invalid, match="no node"):
        hawser.default_node()


def test_the_node_of_rpc_is_the_default_node() -> None:
    run(use_the_native_interface, init=False)


# --- what client programs send ---


class Tally:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, by: int) -> tuple[int, str]:
        self.value += by
        return self.value, rpc.get_worker_info().name


class Reduced:
    """Travels only by a reducer that was registered for it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        raise AssertionError("the reducer was not asked")


def rebuild(cls: type, text: str) -> Any:
    return cls(f"{text} by reducer")


class ReducedByCopyreg(Reduced):
    pass


def send_proxies_and_reduced(world: World) -> None:
    if world.rank != 0:
        return
    tally = rpc.remote("w1", Tally, (1,))
    # Calls of w2's own, to w1; the last one leaves its result there.
    assert rpc.rpc_sync("w2", tally.rpc_sync().add, (2,)) == (3, "w1")
    assert rpc.rpc_sync("w2", functools.partial(tally.rpc_sync().add, by=3)) == (6, "w1")
    left = rpc.rpc_sync("w2", tally.remote().add, (4,))
    assert left.owner_name() == "w1" and left.to_here() == (10, "w1")

    internal = rpc.internal
    internal._internal_rpc_pickler._register_reducer(
        Reduced, lambda obj: (rebuild, (Reduced, obj.text))
    )
    copyreg.pickle(ReducedByCopyreg, lambda obj: (rebuild, (ReducedByCopyreg, obj.text)))
    for kind in (Reduced, ReducedByCopyreg):
        assert rpc.rpc_sync("w1", getattr, (kind("sent"), "text")) == "sent by reducer"
        read = internal.deserialize(*internal.serialize(kind("written")))
        assert type(read) is kind and read.text == "written by reducer"


def test_proxies_and_objects_with_reducers_can_be_sent() -> None:
    run(send_proxies_and_reduced, size=3)


# --- texts ---


def read_the_texts(world: World) -> None:
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    os.environ.update({**here, "RANK": "0", "WORLD_SIZE": "1"})
    with pytest.raises(RuntimeError, match=r"worker_id needs to be in the range \[0, 65535\]"):
        rpc.init_rpc("w0", world_size=1)  # does not look for its rank there
    world.init()
    node = rpc.api._get_current_rpc_agent()._node
    rpc.shutdown()
    with pytest.raises(RuntimeError, match="RPC is no longer running on this node"):
        node.call(world.next, min, (1, 2))


def test_programs_find_the_texts_they_know() -> None:
    run(read_the_texts, init=False)


# --- many at once ---


def call_all_others(world: World) -> None:
    for step in range(1, world.size):  # each begins with another one
        other = world.name((world.rank + step) % world.size)
        assert rpc.rpc_sync(other, rpc.get_worker_info).name == other


# The server that forks them has no threads: it has imported, and importing starts none.
def test_64_workers_call_each_other() -> None:
    run(call_all_others, size=64, deadline=60)


def call_from_threads(world: World) -> None:
    wrong: list[Any] = []

    def work(base: int) -> None:
        try:
            for n in range(base, base + 100):
                assert rpc.rpc_sync(world.next, divmod, (n, 7)) == divmod(n, 7)
                assert rpc.rpc_sync(world.next, torch.mul, (torch.tensor([n]), 2)).item() == 2 * n
                with pytest.raises(ValueError, match=f"'no {n}'"):
                    rpc.rpc_sync(world.next, int, (f"no {n}",))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(1000 * n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not wrong, wrong


def test_answers_and_errors_find_their_thread() -> None:
    run(call_from_threads)


# --- the end of others ---

_waiting = threading.Semaphore(0)


def never_answer() -> None:
    _waiting.release()
    threading.Event().wait()


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_victim(world: World) -> None:
    world.init()
    survivors = dataclasses.replace(world, size=world.size - 1)
    if world.rank == survivors.size:
        for _ in range(2 * survivors.size):
            assert _waiting.acquire(timeout=PATIENCE_S)
        kill_oneself()
    victim = world.name(survivors.size)
    pending = rpc.rpc_async(victim, never_answer)
    survivors.meet("called")
    began = time.monotonic()
    with pytest.raises(hawser.PeerLost) as lost:
        rpc.rpc_sync(victim, never_answer)
    assert isinstance(lost.value, RuntimeError)
    with pytest.raises(hawser.PeerLost):
        pending.wait()
    with pytest.raises(hawser.PeerLost):
        rpc.rpc_sync(victim, min, (1, 2))
    assert time.monotonic() - began < 5
    # It is the loss of one: the others have each other still.
    other = world.name((world.rank + 1) % survivors.size)
    assert rpc.rpc_sync(other, min, (1, 2)) == 1
    survivors.meet("over")
    rpc.shutdown(graceful=False)


def test_all_who_wait_for_a_killed_worker_are_told() -> None:
    run(wait_for_the_victim, size=4, init=False, may_die=(3,))


def _is_ending() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not rpc.shutdown.__wrapped__.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    return frame is not None


def await_end_begun() -> None:
    poll(_is_ending)


def serve_until_the_end(world: World) -> float:
    """When this worker had served, or called, for the last time."""
    world.init()
    if world.rank > 0:
        rpc.rpc_sync("w0", await_end_begun)
        # One after another, so that the last ones are served long after the first has ended.
        for turn in range(1, world.size):
            if turn == world.rank:
                for n in range(100):
                    assert rpc.rpc_sync("w0", min, (n, 1000)) == n
            dataclasses.replace(world, rank=world.rank - 1, size=world.size - 1).meet(f"{turn}")
    called = time.monotonic()
    rpc.shutdown()
    return time.monotonic() if world.rank == 0 else called


def test_a_server_that_ends_at_once_serves_until_the_others_are_done() -> None:
    served_until, *called = run(serve_until_the_end, size=4, init=False)
    assert served_until >= max(called)  # one clock for all processes


# --- the end of this process ---

LEAVE = """
    import sys, threading
    import hawser.rpc as rpc
    from regress.world import World

    rank, path, pending = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "pending"
    serving = threading.Event()

    def never_answer():
        serving.set()
        threading.Event().wait()

    world = World(rank, 2, path)
    world.init()
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1
    if pending:
        future = rpc.rpc_async(world.next, never_answer)
        future.add_done_callback(lambda _: None)
        assert serving.wait(20)
    world.meet("ready")  # so that nobody leaves before the other's calls
"""


@pytest.mark.parametrize("state", ["idle", "pending"])
def test_leaving_without_shutdown_is_quiet(tmp_path: Path, state: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LEAVE), str(rank), f"{tmp_path}/store", state],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=40)
            assert process.returncode == 0, said  # a core dump is a signal, and not 0
            assert "Fatal" not in said and "terminate" not in said, said
            assert "Traceback" not in said, said
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not list(tmp_path.glob("core*"))


# --- beginning again ---


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _with_patience(seconds: float) -> None:
    """For the other workers at the start; otherwise it is a minute at least."""
    rpc._agent.DEFAULT_RPC_TIMEOUT_SEC = seconds


def _assert_not_started() -> None:
    with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
        rpc.shutdown()
    with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
        rpc.rpc_sync("w1", min, (1, 2))


def fail_at_a_port_in_use(world: World) -> None:
    if world.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as other:
            elsewhere = f"tcp://127.0.0.1:{other.getsockname()[1]}"
            options = rpc.TensorPipeRpcBackendOptions(init_method=elsewhere)
            with pytest.raises(RuntimeError, match="in use|EADDRINUSE"):
                rpc.init_rpc("w0", rank=0, world_size=2, rpc_backend_options=options)
        _assert_not_started()
    world.init()
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1
    rpc.shutdown()


def test_a_port_in_use_fails_the_start_and_nothing_more() -> None:
    run(fail_at_a_port_in_use, init=False)


def fail_alone(world: World) -> None:
    _with_patience(1)
    if world.rank == 0:
        began = time.monotonic()
        with pytest.raises(hawser.Timeout):
            world.init(suffix=".alone", rpc_timeout=1)
        assert time.monotonic() - began < 5
        _assert_not_started()
    world.meet("failed")
    _with_patience(5)
    world.init(rpc_timeout=5)
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1
    rpc.shutdown()


def test_a_start_that_nobody_joins_fails_and_can_be_repeated() -> None:
    run(fail_alone, init=False)


def _resources() -> tuple[int, int]:
    """Threads and open files of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def start_five_times(world: World, port: int) -> None:
    _with_patience(5)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=5)
    used = (0, 0)
    for n in range(5):
        rpc.init_rpc(
            world.name(), rank=world.rank, world_size=world.size, rpc_backend_options=options
        )
        assert rpc.rpc_sync(world.next, divmod, (n, 2)) == divmod(n, 2)
        rpc.shutdown()
        world.meet(f"ended {n}")
        if n == 1:  # what is made once and kept has been made
            used = _resources()
    threads, files = _resources()
    assert threads <= used[0] and files <= used[1], f"{used} became {(threads, files)}"


def start_with_time_limit(world: World, port: int, limit: float) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=limit
    )
    rpc.init_rpc(world.name(), rank=world.rank, world_size=world.size, rpc_backend_options=options)
    assert rpc.rpc_sync(world.next, min, (1, 2), timeout=PATIENCE_S) == 1
    rpc.shutdown()


@pytest.mark.parametrize("limit", [0, 0.001])
def test_the_time_limit_of_calls_is_not_that_of_the_store(limit: float) -> None:
    run(start_with_time_limit, _free_port(), limit, init=False)


# The usual program: one address, the same names and ranks. With other ranks: see row 3 of regress.
def test_a_process_starts_five_times_at_one_address() -> None:
    run(start_five_times, _free_port(), init=False, deadline=25)


# --- interrupts ---

_begun = threading.Event()
_ends: queue.Queue[str] = queue.Queue()


def run_until_cancelled() -> None:
    call = hawser.current_call()
    assert call is not None
    cancelled = threading.Event()
    call.on_cancel(cancelled.set)
    _begun.set()
    _ends.put("cancelled" if cancelled.wait(5) else "not cancelled")


def await_begun() -> None:
    assert _begun.wait(PATIENCE_S)


def how_it_ended() -> str:
    return _ends.get(timeout=PATIENCE_S)


def wait_in_a_call() -> None:
    rpc.rpc_sync("w1", run_until_cancelled)


def wait_for_a_future() -> None:
    future = rpc.rpc_async("w1", run_until_cancelled)
    _wait(future)


def wait_for_all_of_a_block() -> None:
    with rpc.api._wait_all():
        _wait(rpc.rpc_async("w1", min, (1, 2)))
        rpc.rpc_async("w1", run_until_cancelled)


def _wait(future: Any) -> None:
    future.wait()


def _is_waiting_for_all(frame: FrameType) -> bool:
    return frame.f_code is rpc.api._await_all.__code__


def _is_in_a_call(frame: FrameType) -> bool:
    return frame.f_code is rpc.rpc_sync.__code__


def _is_waiting(frame: FrameType) -> bool:
    # In that line, seen from a thread that has the interpreter lock: inside `wait`.
    return frame.f_code is _wait.__code__ and frame.f_lineno > frame.f_code.co_firstlineno


def interrupt_a_wait(
    world: World, act: Callable[[], None], waits: Callable[[FrameType], bool]
) -> None:
    if world.rank != 0:
        return
    main = threading.main_thread().ident or 0
    sent: list[float] = []

    def interrupt() -> None:
        rpc.rpc_sync("w1", await_begun)
        poll(lambda: waits(sys._current_frames()[main]))
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        act()
    took = time.monotonic() - sent[0]
    interrupter.join()
    assert took < 1, f"{took:.2f} s"
    assert rpc.rpc_sync("w1", how_it_ended) == "cancelled"


@pytest.mark.parametrize(
    ("act", "waits"),
    [
        (wait_in_a_call, _is_in_a_call),
        (wait_for_a_future, _is_waiting),
        (wait_for_all_of_a_block, _is_waiting_for_all),
    ],
)
def test_an_interrupt_ends_the_wait_and_the_call(
    act: Callable[[], None], waits: Callable[[FrameType], bool]
) -> None:
    run(interrupt_a_wait, act, waits)


# --- forks ---


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        assert not rpc.api._is_current_rpc_agent_set()  # rpc is the parent's
        return index


class Endless(Dataset[int]):
    """Keeps the process that loads from it."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        threading.Event().wait(60)
        return index


_loaders: list[Any] = []


def loader_pids() -> list[int]:
    return [worker.pid for worker in _loaders[0]._workers]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def load(dataset: Dataset[int]) -> Any:
    return iter(DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"))


def load_beside_calls(world: World, transports: list[str]) -> None:
    world.init(_transports=transports)
    if world.rank == 1:
        for _ in range(2):  # the children of the first round have ended by the second
            loaded = [rpc.rpc_sync("w0", torch.neg, (batch,)) for batch in load(Numbers())]
            assert torch.equal(torch.cat(loaded), -torch.arange(40))
        _loaders.append(load(Endless()))
        world.meet("loading")
        threading.Event().wait(60)
    world.meet("loading")
    children = rpc.rpc_sync("w1", loader_pids)
    try:
        began = time.monotonic()
        with pytest.raises(hawser.PeerLost):
            rpc.rpc_sync("w1", kill_oneself)
        took = time.monotonic() - began
        assert len(children) == 2 and all(_is_alive(pid) for pid in children)
        assert took < 1, f"{took:.2f} s"
    finally:
        for pid in filter(_is_alive, children):
            os.kill(pid, signal.SIGKILL)
    rpc.shutdown(graceful=False)


# What a child inherits must not look as if its parent lived.
@pytest.mark.parametrize("transport", ["shm", "uv"])
def test_forked_loaders_neither_hang_nor_outlive_the_connection(transport: str) -> None:
    run(load_beside_calls, [transport], init=False, may_die=(1,))
