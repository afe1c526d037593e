"""The bugs of torch.distributed.rpc that concern calls, start and end, and that hawser does not have.

Numbers are those of the list of them; each test says what went wrong there.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
import threading
import time
import types
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hawser.rpc as rpc
from hawser import errors

from .world import World, run

# --- functions that are called on other workers ---


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def bounce(depth: int, here: str, there: str) -> int:
    """Calls itself on the other worker, `depth` times over."""
    return 0 if depth == 0 else 1 + rpc.rpc_sync(there, bounce, (depth - 1, there, here))


class Refusal(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = 7


def raise_error(kind: str) -> None:
    raise {
        "key": KeyError("no such key"),
        "value": ValueError("bad value"),
        "refusal": Refusal("no"),
        "file": FileNotFoundError(2, "No such file", "data.bin"),
        "exit": SystemExit(3),
        "text": ValueError("C:\\Users\\ünï ▲"),
        "looks like a timeout": RuntimeError("RPCErr:1:RPC ran for more than set timeout"),
    }[kind]


def relay_error(to: str, kind: str) -> None:
    rpc.rpc_sync(to, raise_error, (kind,))


def make_something_only_known_here() -> Any:
    module = types.ModuleType("only_on_the_callee")
    module.Thing = type("Thing", (), {"__module__": "only_on_the_callee"})  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return module.Thing()


def make_something_missing_there() -> Any:
    here = sys.modules[__name__]
    here.Missing = type("Missing", (), {"__module__": __name__})  # type: ignore[attr-defined]
    return here.Missing()  # type: ignore[attr-defined]


def die() -> None:
    os._exit(1)


def members() -> list[str]:
    return [info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos()]


def reverse_maps() -> list[str]:
    return sorted(rpc.api._get_current_rpc_agent()._reverse_device_maps)


def active_calls() -> int:
    info = rpc.api._get_current_rpc_agent().get_debug_info()
    return int(info["agent.client_active_calls"])


class Doubler(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def apply_module(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def scripted_module() -> Any:
    return torch.jit.script(Doubler())


# --- 2: one pool of threads for requests, responses and timeouts ---


def nested_beyond_the_pool(world: World) -> None:
    assert bounce(40, world.name(), world.next) == 40
    asleep = [rpc.rpc_async(world.next, sleep, (3,)) for _ in range(20)]
    began = time.monotonic()
    with pytest.raises(errors.Timeout, match="RPC ran for more than set timeout"):
        rpc.rpc_sync(world.next, sleep, (3,), timeout=0.3)
    assert time.monotonic() - began < 2
    torch.futures.wait_all(asleep)


def test_row_02_nesting_does_not_exhaust_threads_and_timeouts_fire() -> None:
    run(nested_beyond_the_pool, num_worker_threads=1)


def call_everybody(world: World) -> None:
    assert [rpc.rpc_sync(rank, min, (rank, 99)) for rank in range(world.size)] == [
        *range(world.size)
    ]


def test_row_02_twenty_workers_start_on_one_host() -> None:
    run(call_everybody, size=20)


# --- 3: a process could not start rpc twice, nor with another rank ---


def start_again_and_again(world: World) -> None:
    for n in range(4):
        rank = (world.rank + n) % world.size
        world.init(name=f"w{rank}", rank=rank, suffix=str(n))
        other = f"w{(rank + 1) % world.size}"
        assert rpc.rpc_sync(other, rpc.get_worker_info).name == other
        assert torch.equal(rpc.rpc_sync(other, torch.add, (torch.ones(2), n)), torch.ones(2) + n)
        rpc.shutdown()
    assert not rpc.api._is_current_rpc_agent_set()


def test_row_03_a_process_can_start_again_with_another_rank() -> None:
    run(start_again_and_again, init=False)


def fail_to_start_and_start(world: World) -> None:
    with pytest.raises(RuntimeError, match="is not unique. Workers 0 and 1 share"):
        world.init(name="same")
    with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
        rpc.shutdown()
    if world.rank == 0:  # a mistake of one worker, which the others do not notice
        with pytest.raises(RuntimeError, match="Worker name must match"):
            world.init(name="not a name", suffix="2")
    world.init(suffix="2")
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1
    rpc.shutdown()


def test_row_03_a_failed_start_can_be_repeated() -> None:
    run(fail_to_start_and_start, init=False)


# --- 4: only ValueError and TypeError kept their type ---


def catch_by_type(world: World) -> None:
    for call in (raise_error, relay_error):
        args = () if call is raise_error else (world.name(),)
        with pytest.raises(KeyError) as caught:
            rpc.rpc_sync(world.next, call, (*args, "key"))
        assert isinstance(caught.value, RuntimeError)
        assert str(caught.value).startswith("KeyError: On WorkerInfo(")
        with pytest.raises(ValueError, match="bad value"):
            rpc.rpc_async(world.next, call, (*args, "value")).wait()
        with pytest.raises(Refusal) as refused:
            rpc.rpc_async(world.next, call, (*args, "refusal")).wait()
        assert refused.value.code == 7 and isinstance(refused.value, RuntimeError)
        with pytest.raises(FileNotFoundError) as missing:
            rpc.rpc_sync(world.next, call, (*args, "file"))
        assert missing.value.errno == 2 and missing.value.filename == "data.bin"


def test_row_04_exceptions_keep_their_type() -> None:
    run(catch_by_type)


# --- 5: texts went through unicode_escape ---


def read_the_text(world: World) -> None:
    with pytest.raises(ValueError) as caught:
        rpc.rpc_sync(world.next, raise_error, ("text",))
    assert "ValueError: C:\\Users\\ünï ▲" in str(caught.value)


def test_row_05_texts_arrive_as_they_were() -> None:
    run(read_the_text)


# --- 6: a reply that could not be read was an AttributeError, returned ---


def get_unknown_things(world: World) -> None:
    if world.rank == 1:
        return  # where they are made they are known
    for make in (make_something_only_known_here, make_something_missing_there):
        with pytest.raises((ImportError, AttributeError, RuntimeError)):
            rpc.rpc_sync(world.next, make)
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1


def test_row_06_an_unreadable_reply_is_raised() -> None:
    run(get_unknown_things)


# --- 7: exceptions that are no Exception took another way ---


def call_what_exits(world: World) -> None:
    with pytest.raises(RuntimeError, match="SystemExit") as caught:
        rpc.rpc_sync(world.next, raise_error, ("exit",))
    assert not isinstance(caught.value, SystemExit)
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1


def test_row_07_exit_is_an_error_of_the_call() -> None:
    run(call_what_exits)


async def raise_error_later(kind: str) -> None:
    raise_error(kind)


async def min_later(one: int, other: int) -> int:
    return min(one, other)


def call_coroutines_that_exit(world: World) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="SystemExit") as caught:
            rpc.rpc_sync(world.next, raise_error_later, ("exit",), timeout=10)
        assert not isinstance(caught.value, (SystemExit, errors.Timeout))
        assert rpc.rpc_sync(world.next, min_later, (1, 2), timeout=10) == 1


def test_row_07_exit_of_a_coroutine_is_an_error_of_its_call_only() -> None:
    run(call_coroutines_that_exit)


# --- 9: short timeouts were none, and long ones overflowed ---


def use_odd_timeouts(world: World) -> None:
    began = time.monotonic()
    with pytest.raises(errors.Timeout, match=re.escape("(0.5 ms)")):
        rpc.rpc_sync(world.next, sleep, (2,), timeout=0.0005)
    assert time.monotonic() - began < 1
    for timeout in (-2, -0.001):
        with pytest.raises(ValueError, match="negative"):
            rpc.rpc_sync(world.next, min, (1, 2), timeout=timeout)
    for timeout in (40 * 24 * 3600, 0, 1e300):
        assert rpc.rpc_sync(world.next, min, (1, 2), timeout=timeout) == 1


def test_row_09_timeouts_mean_what_they_say() -> None:
    run(use_odd_timeouts)


# --- 11 to 14: worlds that grow and shrink ---


def join_and_leave_together(world: World) -> None:
    world.init(dynamic=True)
    world.meet("joined")
    everybody = [world.name(rank) for rank in range(world.size)]
    for name in everybody:
        assert rpc.rpc_sync(name, members) == everybody
    world.meet("seen")
    rpc.shutdown()


def test_row_11_many_join_and_leave_at_once() -> None:
    run(join_and_leave_together, size=4, init=False)


def join_with_dashes(world: World) -> None:
    world.init(name=f"tr-{world.rank}-x", dynamic=True)
    world.meet("joined")
    names = [f"tr-{rank}-x" for rank in range(world.size)]
    assert members() == names
    assert [rpc.rpc_sync(name, rpc.get_worker_info).name for name in names] == names
    world.meet("seen")
    rpc.shutdown()


def test_row_12_names_may_contain_dashes() -> None:
    run(join_with_dashes, size=3, init=False)


def leave_and_come_back(world: World) -> None:
    world.init(dynamic=True)
    world.meet("joined")
    for n in range(3):
        if world.rank == 1:
            rpc.shutdown()
            world.meet(f"away {n}")
            world.init(dynamic=True)
        else:
            world.meet(f"away {n}")
        world.meet(f"back {n}")
        assert members() == ["w0", "w1"]
        assert rpc.rpc_sync(world.next, min, (1, 2)) == 1
        world.meet(f"seen {n}")
    rpc.shutdown()


def test_row_13_who_left_can_come_back() -> None:
    run(leave_and_come_back, init=False)


def leave_one_of_three(world: World) -> None:
    maps = {"w0": {"cpu": "cpu"}} if world.rank else None
    world.init(dynamic=True, device_maps=maps)
    world.meet("joined")
    assert rpc.rpc_sync("w0", reverse_maps) == ["w1", "w2"]
    world.meet("seen")
    if world.rank == 2:
        rpc.shutdown()
    world.meet("left")
    if world.rank != 2:
        assert rpc.rpc_sync("w0", reverse_maps) == ["w1"]
    world.meet("seen again")
    if world.rank != 2:
        rpc.shutdown()


def test_row_14_leaving_takes_along_only_what_is_ones_own() -> None:
    run(leave_one_of_three, size=3, init=False)


def test_row_14_the_token_is_released_when_joining_fails() -> None:
    from hawser.rpc._utils import _group_membership_management

    store = dist.HashStore()
    for is_join in (True, False, True):
        with pytest.raises(KeyError), _group_membership_management(store, "w", is_join):
            raise KeyError


# --- 15: calls that could not be sent were counted for ever ---


def send_what_cannot_be_sent(world: World) -> None:
    for _ in range(3):
        with pytest.raises(TypeError):
            rpc.rpc_sync(world.next, min, (threading.Lock(),))
        with pytest.raises(RuntimeError, match="failed to match any schema"):
            rpc.rpc_sync(world.next, torch.add, ())
    assert active_calls() == 0


def test_row_15_calls_that_are_not_sent_are_not_counted() -> None:
    run(send_what_cannot_be_sent)


# --- 16: no liveness, no reconnect ---


def lose_a_peer(world: World) -> None:
    world.init(dynamic=True)
    world.meet("joined")
    if world.rank == 1:
        time.sleep(30)
        return
    asleep = rpc.rpc_async("w1", sleep, (20,))
    began = time.monotonic()
    with pytest.raises(errors.PeerLost):
        rpc.rpc_sync("w1", die)
    with pytest.raises(errors.PeerLost):
        asleep.wait()
    assert time.monotonic() - began < 5
    assert active_calls() == 0
    rpc.shutdown()


def test_row_16_a_dead_peer_fails_its_calls_at_once() -> None:
    run(lose_a_peer, init=False, may_die=(1,))


def replace_a_dead_peer(world: World) -> None:
    world.init(dynamic=True)
    world.meet("joined")
    if world.rank == 1:
        rpc.api._get_current_rpc_agent()._node.close(0)  # goes without a word to the others
        rpc.api._reset_current_rpc_agent()
        world.init(dynamic=True)
    world.meet("back")
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1
    world.meet("seen")
    rpc.shutdown()


def test_row_16_a_restarted_peer_is_reached_again() -> None:
    run(replace_a_dead_peer, init=False)


# --- 17: timeouts of the end were ignored, and a gather returned what there was ---


def end_without_the_other(world: World) -> None:
    world.init()
    if world.rank == 1:
        world.meet("over")
        rpc.shutdown(graceful=False)
        return
    with pytest.raises(RuntimeError, match="timed out in _all_gather"):
        rpc.api._all_gather("mine", timeout=0.3)
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        rpc.shutdown(timeout=1)
    assert time.monotonic() - began < 4
    assert not rpc.api._is_current_rpc_agent_set()
    world.meet("over")


def test_row_17_the_end_keeps_to_its_timeout_and_gathers_all_or_nothing() -> None:
    run(end_without_the_other, init=False)


def gather_without_the_dead(world: World) -> None:
    world.init()
    if world.rank == 1:
        rpc.rpc_sync("w0", min, (1, 2))
        os._exit(1)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="w1"):
        rpc.api._all_gather("mine", timeout=0)
    assert time.monotonic() - began < 10
    rpc.shutdown(graceful=False)


def test_row_17_a_gather_does_not_wait_for_the_dead() -> None:
    run(gather_without_the_dead, init=False, may_die=(1,))


def end_beside_a_stranger_that_died(world: World, last: int | None) -> None:
    world.init()
    world.meet("joined")
    if world.rank == 2:
        os._exit(1)  # without ever having spoken with anybody
    if world.rank == last:
        world.meet("over", ranks=(0, 1))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="w2"):
        rpc.shutdown()
    assert time.monotonic() - began < 15
    world.meet("over", ranks=(world.rank,))


# w1 learns whom the end failed for, not that w0 has ended since; also if it comes after that.
@pytest.mark.parametrize("last", [None, 1])
def test_row_17_the_end_does_not_wait_for_the_dead(last: int | None) -> None:
    run(end_beside_a_stranger_that_died, last, size=3, init=False, may_die=(2,))


# --- 18: w1's twelfth round was w11's second ---


def gather_in_groups(world: World) -> None:
    name = ["w1", "w11"][world.rank]
    world.init(name=name)
    for n in range(13):
        assert rpc.api._all_gather(n, {name}) == {name: n}
    assert rpc.api._all_gather(world.rank) == {"w1": 0, "w11": 1}
    rpc.shutdown()


def test_row_18_groups_of_workers_do_not_mix() -> None:
    rounds = [rpc.api._begin_round({name})[0] for name in ("w1", "w11") for _ in range(12)]
    assert len(set(rounds)) == len(rounds)
    run(gather_in_groups, init=False)


# --- 22: what was pending at the end never completed ---


def end_with_a_pending_call(world: World) -> None:
    world.init()
    if world.rank == 0:
        pending = rpc.rpc_async("w1", sleep, (10,))
        time.sleep(0.2)
        rpc.shutdown(graceful=False)
        with pytest.raises(RuntimeError):
            pending.wait()
        world.meet("over")
        return
    world.meet("over")
    rpc.shutdown(graceful=False)


def test_row_22_a_pending_call_ends_with_rpc() -> None:
    run(end_with_a_pending_call, init=False)


# --- 30, 31: the port ---


def tcp_address(node: Any) -> tuple[str, int]:
    text = node.inspect_text()
    found = re.search(r"tcp:([0-9.]+):(\d+)", text)
    assert found, text
    return found[1], int(found[2])


def send_garbage(world: World) -> None:
    if world.rank == 0:
        address = rpc.rpc_sync("w1", address_of_this_worker)
        for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"\0" * 4096, os.urandom(4096)):
            with socket.create_connection(address, timeout=5) as stranger:
                try:
                    stranger.sendall(garbage)
                    stranger.settimeout(15)
                    while stranger.recv(4096):
                        pass
                except ConnectionError:
                    pass
        assert rpc.rpc_sync("w1", min, (1, 2)) == 1


def address_of_this_worker() -> tuple[str, int]:
    return tcp_address(rpc.api._get_current_rpc_agent()._node)


def test_row_30_garbage_does_not_bring_a_worker_down() -> None:
    run(send_garbage, _transports=["uv"])


def knock_with_another_token(world: World) -> None:
    os.environ["HAWSER_TOKEN"] = f"token of rank {world.rank}"
    world.init(dynamic=True, _transports=["uv"], rpc_timeout=3)


def two_tokens(world: World) -> None:
    if world.rank == 0:
        knock_with_another_token(world)
        world.meet("there")
        world.meet("tried")
        assert members() == ["w0"]
        rpc.shutdown(graceful=False)
        return
    world.meet("there")
    with pytest.raises(RuntimeError):
        knock_with_another_token(world)
    assert not rpc.api._is_current_rpc_agent_set()
    world.meet("tried")


def test_row_31_who_does_not_know_the_token_stays_out() -> None:
    run(two_tokens, init=False)


# --- 32: the kind of an error was searched for in its text ---


def raise_what_looks_like_a_timeout(world: World) -> None:
    with pytest.raises(RuntimeError) as caught:
        rpc.rpc_sync(world.next, raise_error, ("looks like a timeout",))
    assert not isinstance(caught.value, errors.Timeout)


def test_row_32_a_text_does_not_make_a_timeout() -> None:
    run(raise_what_looks_like_a_timeout)


# --- 33: the enum was replaced; options were not checked ---


def register_a_backend(world: World) -> None:
    before = rpc.BackendType
    member = rpc.backend_registry.register_backend(
        "another", lambda *a, **k: None, lambda **k: None
    )
    assert rpc.BackendType is before is rpc.backend_registry.BackendType
    assert isinstance(member, before) and before.another is member  # type: ignore[attr-defined]
    assert before["another"] is member and member in list(before)
    assert repr(member) == "BackendType.another"
    with pytest.raises(RuntimeError, match="another: already registered"):
        rpc.backend_registry.register_backend("another", lambda: None, lambda: None)
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1


def test_row_33_backends_are_added_and_options_are_checked() -> None:
    options = rpc.TensorPipeRpcBackendOptions()
    with pytest.raises(RuntimeError, match="RPC Timeout must be non-negative"):
        options.rpc_timeout = -1
    with pytest.raises(RuntimeError, match="Unknown transport: carrier_pigeon"):
        rpc.TensorPipeRpcBackendOptions(_transports=["uv", "carrier_pigeon"])
    with pytest.raises(RuntimeError, match="Unknown channel: x"):
        rpc.TensorPipeRpcBackendOptions(_channels=["x"])
    run(register_a_backend)
    run(use_odd_transports)


def use_odd_transports(world: World) -> None:
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1
    rpc.shutdown()
    with pytest.raises(RuntimeError, match="None of the transports .'ibv'. can be used"):
        world.init(suffix="2", _transports=["ibv"])
    world.init(suffix="3", _transports=["ibv", "uv"], _channels=["basic", "cma"])
    assert rpc.rpc_sync(world.next, min, (1, 2)) == 1


# --- 36: memory grew ---


THREADS = 64


def add_slowly(tensor: torch.Tensor) -> torch.Tensor:
    time.sleep(0.005)  # so that as many threads are at it as there are calls
    return tensor + 1


def call_many_times(world: World) -> None:
    tensor = torch.ones(64 * 1024)

    def call_all_threads() -> None:
        torch.futures.wait_all(
            [rpc.rpc_async(world.next, add_slowly, (tensor,)) for _ in range(THREADS)]
        )

    for _ in range(4):
        call_all_threads()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        call_all_threads()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    kept_kib = 20 * THREADS * tensor.nbytes // 1024  # if each call kept its tensor
    assert grown_kib < kept_kib / 4, f"{grown_kib} KiB more after {20 * THREADS} calls"


def test_row_36_memory_does_not_grow_with_calls() -> None:
    run(call_many_times, num_worker_threads=THREADS)


# --- 37: a script module was an argument only if torch.distributed.nn had been imported ---


def send_a_script_module(world: World) -> None:
    assert "torch.distributed.nn.api.remote_module" not in sys.modules
    x = torch.ones(2)
    module = torch.jit.script(Doubler())
    assert torch.equal(rpc.rpc_sync(world.next, apply_module, (module, x)), x * 2)
    assert torch.equal(rpc.rpc_sync(world.next, scripted_module)(x), x * 2)
    data, tensors = rpc.internal.serialize((module, x))
    table = rpc.internal._internal_rpc_pickler._dispatch_table
    assert type(module) not in table and rpc.RRef not in table
    read, same = rpc.internal.deserialize(data, tensors)
    assert torch.equal(read(same), x * 2)


def test_row_37_script_modules_can_be_sent() -> None:
    run(send_a_script_module)
