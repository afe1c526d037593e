"""Functions of all kinds, errors, deadlines, cancellation, and the end of a peer."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import peers
import pytest
import torch

import hawser


def test_functions_methods_and_classes(node: hawser.Node) -> None:
    assert node.run("peer", peers.nothing) is None
    assert node.run("peer", peers.Counter(5).add, 2) == 7
    assert node.run("peer", peers.Counter.add_to_all, 3) == 3
    assert node.run("peer", peers.Counter.double, 4) == 8
    assert node.run("peer", peers.Counter, 9) == peers.Counter(9)
    assert node.run("peer", min, 3, 2) == 2
    assert node.run("peer", functools.partial(peers.describe, 1), 2) == ((1, 2), {})
    assert node.run("peer", "add", 1, 2) == 3


def test_functions_that_were_replaced_are_found() -> None:
    with peers.world("peer") as node:
        for text in ("hello", "second", "third"):
            if text != "hello":
                node.run("peer", peers.replace_greetings, text)
            for _ in range(2):
                assert node.run("peer", peers.greeting) == text
                assert node.run("peer", peers.Replaceable.greeting) == text
        node.run("peer", peers.replace_module, "elsewhere")
        assert node.run("peer", peers.greeting) == "elsewhere"
        with pytest.raises(AttributeError, match="has no 'Replaceable.greeting' here"):
            node.run("peer", peers.Replaceable.greeting)
        node.run("peer", peers.put_back)
        assert node.run("peer", peers.greeting) == "third"
        assert node.run("peer", peers.Replaceable.greeting) == "third"


def test_torch_operators_and_scripts(node: hawser.Node) -> None:
    ones = torch.ones(2)
    assert torch.equal(node.run("peer", torch.add, ones, 2), ones + 2)
    assert torch.equal(node.run("peer", torch.add, ones, ones, alpha=3), ones * 4)
    assert torch.equal(node.run("peer", "aten::add", ones, 2), ones + 2)
    assert torch.equal(node.run("peer", peers.scaled, ones), ones * 2)
    assert torch.equal(node.run("peer", peers.scaled, ones, factor=0.5), ones / 2)
    with pytest.raises(RuntimeError, match="schema"):
        node.call("peer", torch.neg, "no tensor")


def test_a_function_that_is_only_here_says_what_to_do(node: hawser.Node) -> None:
    factor = 3
    for function in (
        lambda: factor,
        eval("lambda: 1", {"__name__": __name__}),
        functools.partial(lambda x: x, 1),
    ):
        with pytest.raises((AttributeError, pickle.PicklingError), match=r"hawser\.by_value"):
            node.run("peer", function)
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"hawser\.by_value"):
        node.run("peer", peers.echo, [lambda: factor])
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object") as other:
        node.run("peer", peers.echo, threading.Lock())
    assert "by_value" not in str(other.value)
    assert node.run("peer", hawser.by_value(lambda x: x * factor), 2) == 6


def test_exceptions_keep_their_type_and_show_where(node: hawser.Node) -> None:
    with pytest.raises(KeyError, match="missing") as raised:
        node.run("peer", peers.raise_it, KeyError("missing"))
    assert "raise error" in str(raised.value.__cause__) and "peer" in str(raised.value.__cause__)
    with pytest.raises(ZeroDivisionError, match="größe \\\\ C:"):
        node.run("peer", peers.raise_it, ZeroDivisionError("größe \\ C:\\Users"))
    for exits in (SystemExit(3), KeyboardInterrupt("3"), asyncio.CancelledError("3")):
        with pytest.raises(hawser.RemoteError, match=f"{type(exits).__name__}: 3") as ended:
            node.run("peer", peers.raise_it, exits)
        assert ended.value.remote_type.endswith(type(exits).__name__)
    with pytest.raises(hawser.RemoteError, match="1 and 2") as odd:
        node.run("peer", raise_odd)
    assert odd.value.remote_type == "peers.Odd" and "raise_odd" in odd.value.remote_traceback


def raise_odd() -> None:
    raise peers.Odd(1, 2)


def test_timeouts_and_deadlines(node: hawser.Node) -> None:
    with pytest.raises(hawser.Timeout) as late, hawser.deadline(0.1):
        node.run("peer", time.sleep, 5)
    assert late.value.node == "peer" and late.value.budget == pytest.approx(0.1, abs=0.05)
    with hawser.deadline(5):
        remaining = node.run("peer", peers.remaining_time)
    assert 4 < remaining < 5
    with hawser.deadline(0.05), hawser.deadline(60), pytest.raises(TimeoutError):
        node.call("peer", time.sleep, 5).wait()


def test_nested_calls_to_some_depth(node: hawser.Node) -> None:
    assert node.run("peer", peers.call_back, "me", 20) == 20


def test_many_threads(node: hawser.Node) -> None:
    wrong = []

    def work(base: int) -> None:
        for i in range(200):
            if node.run("peer", peers.echo, base + i) != base + i:
                wrong.append(base + i)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_futures(node: hawser.Node) -> None:
    future = node.call("peer", peers.echo, 5)
    assert isinstance(future, torch._C.Future)
    assert future.then(lambda f: f.wait() + 1).wait() == 6
    assert future.wait() == 5 and future.done() and future.value() == 5
    assert torch.futures.wait_all([node.call("peer", peers.echo, i) for i in range(9)]) == list(
        range(9)
    )
    with pytest.raises(KeyError):
        torch.futures.wait_all([node.call("peer", peers.raise_it, KeyError("x"))])
    done = threading.Event()
    node.call("peer", time.sleep, 0.05).add_done_callback(lambda _: done.set())
    assert done.wait(10)


def test_a_callback_may_call_and_wait(node: hawser.Node) -> None:
    first = node.call("peer", time.sleep, 0.05)
    second = first.then(lambda _: node.run("peer", peers.echo, "again"))
    assert second.wait() == "again"


def test_await_and_async_handlers(node: hawser.Node) -> None:
    async def main() -> list[int]:
        return await asyncio.gather(
            *(node.call("peer", peers.add_later, i, 1) for i in range(10)),
            node.call("peer", peers.echo, 0),
        )

    assert asyncio.run(main()) == [*range(1, 11), 0]

    async def fails() -> None:
        await node.call("peer", peers.raise_it, KeyError("in a coroutine"))

    with pytest.raises(KeyError, match="in a coroutine"):
        asyncio.run(fails())


def test_exits_of_async_handlers_end_only_their_call(node: hawser.Node) -> None:
    for handler in (peers.exit_later, peers.exit_in_a_task):
        with hawser.deadline(10), pytest.raises(hawser.RemoteError, match="SystemExit: 3"):
            node.run("peer", handler, 3)
        with hawser.deadline(10):
            assert node.run("peer", peers.add_later, 1, 2) == 3


def test_a_result_that_cannot_be_sent_is_an_error_of_the_function(node: hawser.Node) -> None:
    for function in (peers.unsendable, peers.unsendable_later):
        with hawser.deadline(10), pytest.raises(hawser.RemoteError, match="meta"):
            node.run("peer", function)


def test_a_cancelled_task_cancels_the_handler(node: hawser.Node) -> None:
    async def main() -> None:
        async with asyncio.timeout(0.2):
            await node.call("peer", peers.wait_for_ever)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert node.run("peer", peers.was_cancelled, 10)


def test_cancel(node: hawser.Node) -> None:
    future = node.call("peer", time.sleep, 30)
    future.cancel()
    with pytest.raises(hawser.Cancelled):
        future.wait()


def test_an_unknown_node_and_an_unknown_function(node: hawser.Node) -> None:
    with pytest.raises(hawser.Timeout, match="nobody"), hawser.deadline(0.2):
        node.run("nobody", peers.nothing)
    with pytest.raises(hawser.Invalid, match="serves no function named 'nope'"):
        node.run("peer", "nope")


def test_a_peer_that_is_killed() -> None:
    with peers.world("victim") as node:
        node.run("victim", peers.nothing)
        started = time.monotonic()
        with pytest.raises(hawser.PeerLost):
            node.run("victim", peers.leave_process)
        assert time.monotonic() - started < 5


def test_interrupt_during_a_wait(node: hawser.Node) -> None:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        node.run("peer", time.sleep, 30)
    assert time.monotonic() - started < 1


# A Python handler that holds the interpreter lock, for longer than a peer may be silent, delays
# neither the network nor C++ handlers, nor heartbeats, nor deadlines.
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_handler_that_holds_the_lock_delays_nothing_else(tmp_path: Path, transport: str) -> None:
    patience = {"heartbeat_interval": 0.1, "suspect_after": 0.7, "lost_after": 1.5}
    options: dict[str, Any] = {"transports": [transport], **patience}
    with peers.world("peer", mine=options, **options) as node:
        node.serve(peers.wait_for_ever, "never")
        node.run("peer", torch.neg, torch.ones(1))
        begun = tmp_path / "begun"
        holding = node.call("peer", peers.hold_gil_beside_a_call, 2.5, str(begun), "me")
        while not begun.exists():
            assert not holding.done()
        states = set()
        timed_out = False
        while not holding.done():
            node.run("peer", torch.neg, torch.ones(1))
            states.add(node.inspect()["peers"][0]["state"])
            if not timed_out:
                with pytest.raises(hawser.Timeout), hawser.deadline(0.2):
                    node.run("peer", peers.nothing)
                assert not holding.done()
                timed_out = True
        assert states == {"connected"} and timed_out
        # What it called itself timed out while it held the lock, after 0.2 s.
        assert holding.wait() < 2


# Python's own list of what its main thread is to do has 32 places. Nobody of the network waits for
# the lock when it is full, and what was given away is dropped, by the next one who has it.
def test_objects_are_dropped_when_the_main_thread_is_not_available() -> None:
    ended = run_script(
        """
        import tempfile, threading, time, weakref, hawser, peers
        from hawser import _native
        folder = tempfile.mkdtemp()
        a = hawser.Node("a", f"file://{folder}/store")
        b = hawser.Node("b", f"file://{folder}/store")
        made = []
        class Thing: pass
        def make():
            made.append(weakref.ref(thing := Thing()))
            return thing
        a.serve(make)
        failed = []
        def work():
            ref = b.remote("a", "make")
            b.run("a", peers.nothing)
            peers.fill_pending_calls()
            _native.measure_gil_waits(True)
            del ref
            limit = time.monotonic() + 20
            while a._native.count_refs()["values"]:
                assert time.monotonic() < limit
                time.sleep(0.001)
            calls = 0
            while made[0]() is not None:
                assert time.monotonic() < limit
                b.run("a", peers.nothing)
                calls += 1
            waits = a.inspect()["gil_waits"]
            assert waits == calls, (waits, calls)
        def main():
            try:
                work()
            except BaseException as error:
                failed.append(error)
        worker = threading.Thread(target=main)
        worker.start()
        worker.join()
        if failed:
            raise failed[0]
        """
    )
    assert ended.returncode == 0, ended.stderr


# The same list may be full when there is a line for the log. It then comes with the next one.
def test_lines_of_the_log_go_to_logging() -> None:
    ended = run_script(
        """
        import logging, re, socket, tempfile, threading, time, hawser, peers
        lines = []
        class Keep(logging.Handler):
            def emit(self, record):
                lines.append((record.name, record.levelname, record.getMessage()))
        logging.getLogger("hawser").addHandler(Keep())
        folder = tempfile.mkdtemp()
        node = hawser.Node("a", f"file://{folder}/store", transports=["tcp"])
        host, port = re.search(r"tcp:([0-9.]+):(\\d+)", str(node)).groups()
        limit = time.monotonic() + 30
        def knock(count):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
                while node.inspect()["connections_turned_away"] < count:
                    assert time.monotonic() < limit
                    time.sleep(0.001)
        def knock_unheard():
            peers.fill_pending_calls()
            knock(1)
        worker = threading.Thread(target=knock_unheard)
        worker.start()
        worker.join()
        knock(2)
        while len(lines) < 2:
            assert time.monotonic() < limit, lines
            time.sleep(0.001)
        for name, level, text in lines:
            assert (name, level) == ("hawser.transport", "WARNING"), lines
            assert "turned away a tcp connection from" in text, lines
        """
    )
    assert ended.returncode == 0, ended.stderr


def test_inspect_shows_memory_and_round_trips(node: hawser.Node) -> None:
    kept = node.run("peer", torch.neg, torch.ones(1 << 20))
    memory = node.inspect()["memory"]
    assert set(memory) == {"lent", "kept", "adopted", "shared", "to_send"}
    assert memory["lent"] + memory["adopted"] >= kept.nbytes
    deadline = time.monotonic() + 30
    while not any(peer["round_trip"] for peer in node.inspect()["peers"]):
        assert time.monotonic() < deadline  # the first check of a connection comes within a second
        time.sleep(0.01)


def test_trust_functions_reads_no_pickle() -> None:
    with peers.world("careful", trust="functions") as node:
        assert node.run("careful", "add", 1, 2) == 3
        assert torch.equal(node.run("careful", torch.neg, torch.ones(1)), -torch.ones(1))
        with pytest.raises(hawser.Refused, match="Python functions"):
            node.run("careful", peers.echo, 1)
        with pytest.raises(hawser.Refused, match="pickle"):
            node.run("careful", "echo", {1, 2})
        with pytest.raises(hawser.Refused, match="Python functions"):
            node.run("careful", hawser.by_value(lambda: 1))


def run_script(code: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


def test_leaving_without_closing_is_quiet() -> None:
    ended = run_script(
        """
        import tempfile, hawser, peers
        folder = tempfile.mkdtemp()
        node = hawser.Node("a", f"file://{folder}/store")
        assert node.run("a", peers.echo, 1) == 1
        pending = node.call("a", peers.wait_for_ever)
        """
    )
    assert ended.returncode == 0, ended.stderr
    assert "Fatal" not in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


# The handler cannot be ended, and wants the interpreter lock back while the interpreter ends.
def test_leaving_while_a_handler_runs_is_quiet() -> None:
    ended = run_script(
        """
        import tempfile, threading, time, hawser, peers
        folder = tempfile.mkdtemp()
        node = hawser.Node("a", f"file://{folder}/store")
        running = threading.Event()
        def forever():
            running.set()
            while True:
                time.sleep(0.001)
        node.serve(forever)
        pending = node.call("a", "forever")
        assert running.wait(10)
        """
    )
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    assert "Fatal" not in ended.stderr and "terminate" not in ended.stderr, ended.stderr


def test_a_forked_child_does_not_keep_connections_alive() -> None:
    ended = run_script(
        """
        import os, tempfile, hawser, peers
        folder = tempfile.mkdtemp()
        node = hawser.Node("a", f"file://{folder}/store")
        node.run("a", peers.nothing)
        child = os.fork()
        if child == 0:
            try:
                node.run("a", peers.nothing)
            except hawser.Invalid:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert node.run("a", peers.echo, 2) == 2
        node.close()
        """
    )
    assert ended.returncode == 0, ended.stderr


# Cheap beside importing torch: of modules that are not hawser's own, which would cost the most, it
# adds a few of Python's.
def test_importing_starts_nothing_and_loads_little() -> None:
    ended = run_script(
        """
        import os, sys, torch
        before = set(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task")
        loaded = set(sys.modules)
        import hawser, hawser.rpc
        after = set(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task")
        assert before == after, (before, after)
        added = {name.partition(".")[0] for name in set(sys.modules) - loaded} - {"hawser"}
        assert added <= sys.stdlib_module_names and len(added) <= 4, added
        """
    )
    assert ended.returncode == 0, ended.stderr


def test_again_and_again_in_one_process() -> None:
    for _ in range(5):
        with peers.world() as node:
            assert node.run("me", peers.echo, 1) == 1
