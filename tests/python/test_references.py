"""References: values that stay where they are."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
import torch

import hawser


@pytest.fixture(scope="module")
def world() -> Iterator[hawser.Node]:
    """A node beside which "peer" and "other" run."""
    with peers.world("peer", "other") as node:
        yield node


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def value_of(ref: Any) -> Any:
    return ref.local_value() if ref.is_owner() else ref.to_here()


def slow(value: Any) -> Any:
    time.sleep(0.3)
    return value


def gated(gate: str, value: Any) -> Any:
    """Returns once there is a file of that name."""
    deadline = time.monotonic() + 20
    while not os.path.exists(gate):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody has made {gate}")
        time.sleep(0.001)
    return value


def slower_than(limit: float, value: Any) -> Any:
    time.sleep(limit)
    return value


async def later(value: Any) -> Any:
    await asyncio.sleep(0.01)
    return value


def plus_one(ref: Any) -> Any:
    return ref.to_here() + 1


held: list[Any] = []


def hold(ref: Any) -> None:
    held.append(ref)


def all_refs() -> list[dict[str, Any]]:
    return hawser.default_node().refs()


def counter_line(function: Callable[..., Any]) -> int:
    """Of the file, where that function makes its first counter."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "peers.Counter" in line)


def number_of_refs() -> int:
    return len(hawser.default_node().refs())


def test_the_value_stays_and_its_methods_run_there(world: hawser.Node) -> None:
    counter = world.remote("peer", peers.Counter, 5)
    assert counter.owner_name() == "peer" and not counter.is_owner()
    assert counter.rpc_sync().add(2) == 7
    assert counter.rpc_async().add(by=3).wait() == 8
    assert counter.remote().add(4).to_here() == 9
    assert counter.to_here() == peers.Counter(5)
    assert counter.confirmed_by_owner()
    with pytest.raises(AttributeError, match="nothing"):
        counter.rpc_sync().nothing()
    with pytest.raises(RuntimeError, match="localValue"):
        counter.local_value()


def test_operators_scripts_and_served_functions_leave_values_too(world: hawser.Node) -> None:
    ones = torch.ones(2)
    assert torch.equal(world.remote("peer", torch.add, ones, 1).to_here(), ones + 1)
    assert torch.equal(world.remote("peer", peers.scaled, ones).to_here(), ones * 2)
    assert world.remote("peer", "add", 1, 2).to_here() == 3
    assert world.remote("peer", later, 4).to_here() == 4


def test_references_travel_in_arguments_results_and_pickles(world: hawser.Node) -> None:
    theirs = world.remote("peer", peers.Counter, 5)
    mine = hawser.RRef(peers.Counter(6))
    assert mine.is_owner() and mine.local_value().value == 6
    for to in ("peer", "other", world.name):
        assert world.run(to, value_of, theirs) == peers.Counter(5)
        assert world.run(to, value_of, mine) == peers.Counter(6)
    nested = world.run("other", peers.echo, {"plain": [theirs, (mine,)]})
    assert nested["plain"][0].to_here() == peers.Counter(5)
    assert nested["plain"][1][0].local_value() is mine.local_value()
    mixed = world.run("other", peers.echo, (peers.Counter(1), theirs))  # not plain data: a pickle
    assert mixed[1].rpc_sync().add(1) == 6
    with pytest.raises(RuntimeError, match="Can not pickle rref"):
        pickle.dumps(theirs)


def test_what_needs_the_value_waits_for_it_where_it_will_be(
    world: hawser.Node, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = world.remote("peer", gated, str(gate), 1)
    second = world.remote("other", plus_one, first)
    third = world.remote("peer", plus_one, second)
    fourth = world.remote("other", plus_one, third)
    last = fourth.rpc_async().__add__(1)
    # All of the chain is on its way, though there is no value yet and nobody here has waited for one.
    for peer, calls in (("peer", {"gated", "plus_one"}), ("other", {"plus_one", "__add__"})):
        under_way = {
            call["function"].rpartition(":")[2]
            for call in world.inspect()["calls"]
            if call["peer"] == peer and not call["incoming"]
        }
        assert under_way == calls
    gate.touch()
    assert last.wait() == 5


def test_one_use_is_one_message(world: hawser.Node) -> None:
    """No type is looked up before, nothing is confirmed, and links of a chain are not waited for."""
    counter = world.remote("peer", peers.Counter, 5)
    assert counter.to_here() == peers.Counter(5)
    before = frames_sent(world, "peer"), frames_sent(world, "other")
    for _ in range(100):
        assert counter.rpc_async().add(2).wait() == 7
    assert 100 <= frames_sent(world, "peer") - before[0] < 120  # with what ledgers say
    assert frames_sent(world, "other") - before[1] < 20
    before = frames_sent(world, "peer"), frames_sent(world, "other")
    chains = [world.remote("other", plus_one, world.remote("peer", later, i)) for i in range(50)]
    assert [chain.rpc_async().__add__(1).wait() for chain in chains] == list(range(2, 52))
    assert 50 <= frames_sent(world, "peer") - before[0] < 100
    assert 100 <= frames_sent(world, "other") - before[1] < 150


def test_errors_are_those_of_the_function_at_the_end_of_a_chain_too(world: hawser.Node) -> None:
    broken = world.remote("peer", peers.raise_it, KeyError("missing"))
    for _ in range(2):
        with pytest.raises(KeyError, match="missing"):
            broken.to_here()
    with pytest.raises(KeyError, match="missing"):
        broken.rpc_sync().anything()
    last = world.remote("peer", plus_one, world.remote("other", plus_one, broken))
    with pytest.raises(KeyError, match="missing") as raised:
        last.to_here()
    # Where it was raised, and each link that it has passed.
    shown = str(raised.value.__cause__)
    assert "raise_it" in shown and shown.count("plus_one") >= 2
    assert "'peer'" in shown and "'other'" in shown
    # That it fails is the value's business: it was created, in a sense.
    assert world.remote("peer", "no such function")._get_future().wait() is None


def test_a_creation_that_takes_too_long_ends_what_waits_for_it(world: hawser.Node) -> None:
    with hawser.deadline(0.1):
        late = world.remote("peer", slower_than, 1.0, 5)
    with pytest.raises(hawser.Timeout):
        late._get_future().wait()
    for _ in range(2):
        with pytest.raises(hawser.Timeout, match="not created"):
            late.to_here()
    with pytest.raises(hawser.Timeout):
        world.run("other", value_of, late)


def frames_sent(node: hawser.Node, to: str) -> int:
    return next(each["frames_sent"] for each in node.inspect()["peers"] if each["name"] == to)


@pytest.mark.parametrize("value", [None, True, 7, -(1 << 62), 2.5, "short", "", b"short", b""])
def test_a_constant_comes_along_with_the_answer_to_its_creation(
    world: hawser.Node, value: Any
) -> None:
    for _ in range(8):  # also when it is expected to
        got = world.remote("peer", peers.echo, value).to_here()
        assert got == value and type(got) is type(value)
    ref = world.remote("peer", peers.echo, value)
    ref._get_future().wait()
    before = frames_sent(world, "peer")
    assert all(ref.to_here() == value for _ in range(1000))
    assert frames_sent(world, "peer") - before < 100  # what the ledgers say to each other
    assert world.run("other", value_of, ref) == value
    ref.release()
    with pytest.raises(hawser.Invalid, match="released|deleted"):
        ref.to_here()


def test_what_is_no_constant_is_asked_for_each_time(world: hawser.Node) -> None:
    ref = world.remote("peer", peers.echo, [1])
    assert ref.to_here() == [1]
    ref.rpc_sync().append(2)
    assert ref.to_here() == [1, 2]
    for value in [*[0] * 8, [1], 1, "x" * 1000, *["y"] * 8, b"z" * 100_000, 1 << 70, 2]:
        assert world.remote("peer", peers.echo, value).to_here() == value


def test_a_creator_that_sleeps_learns_that_the_value_is_there(world: hawser.Node) -> None:
    for delay in (0.0, 0.001, 0.01, 0.1):
        ref = world.remote("peer", slower_than, delay, 5)
        began = time.monotonic()
        ref._get_future().wait()
        assert time.monotonic() - began < delay + 5
    ref = world.remote("peer", slower_than, 0.01, 5)
    eventually(lambda: ref._get_future().done())  # nobody waits
    assert ref.to_here() == 5


def test_await_gives_the_value(world: hawser.Node) -> None:
    async def fetch() -> Any:
        ref = world.remote("peer", slow, 3)
        own = hawser.RRef([1])
        return await ref, await own, own.local_value()

    copy, own, same = asyncio.run(fetch())
    assert copy == 3 and own is same


def test_values_go_with_their_last_reference(world: hawser.Node) -> None:
    gc.collect()
    eventually(lambda: number_of_refs() == 0 and world.run("peer", number_of_refs) == 0)
    refs = [world.remote("peer", peers.Counter, i) for i in range(100)]
    world.run("other", peers.echo, refs)
    assert world.run("peer", number_of_refs) >= 100
    refs[0].release()
    assert refs[0].deleted
    with pytest.raises(hawser.Invalid, match="deleted"):
        refs[0].to_here()
    with pytest.raises(hawser.Invalid, match="released"):
        world.run("peer", peers.echo, refs[0])
    refs.clear()
    eventually(lambda: number_of_refs() == 0 and world.run("peer", number_of_refs) == 0)
    eventually(lambda: world.run("other", number_of_refs) == 0)


def test_a_finaliser_in_any_thread_at_any_time_is_safe(world: hawser.Node) -> None:
    """References in cycles are found by the collector, in the middle of whatever is going on."""

    class Cycle:
        def __init__(self) -> None:
            self.ref = world.remote("peer", peers.Counter, 1)
            self.self = self

    for _ in range(200):
        Cycle()
        world.run("peer", peers.echo, [Cycle().ref])
    gc.collect()
    eventually(lambda: number_of_refs() == 0)


def test_the_inspector_knows_types_sizes_holders_and_origins() -> None:
    with peers.world("peer", mine={"record_reference_origins": True}) as node:
        counter = node.remote("peer", peers.Counter, 5)
        tensor = node.ref(torch.ones(1000))
        node.run("peer", peers.echo, tensor)
        counter.to_here()
        (held,) = [ref for ref in node.refs() if not ref["mine"]]
        (own,) = [ref for ref in node.refs() if ref["mine"]]
        assert held["owner"] == "peer" and held["state"] == "confirmed"
        line = counter_line(test_the_inspector_knows_types_sizes_holders_and_origins)
        assert f"test_references.py:{line} in test_the_inspector" in held["origin"]
        assert f"test_references.py:{line + 1} in test_the_inspector" in own["origin"]
        assert own["type"] == "Tensor" and own["bytes"] == 4000
        node.run("peer", hold, tensor)
        (own,) = [ref for ref in node.refs() if ref["mine"]]
        assert own["holders"] == ["peer"] and own["handles"] == 1
        ages = {ref["id"]: ref["age"] for ref in (held, own)}
        eventually(lambda: all(ref["age"] > ages[ref["id"]] for ref in node.refs()))
        (theirs,) = [ref for ref in node.run("peer", all_refs) if ref["mine"]]
        assert theirs["holders"] == ["me"] and theirs["made_by"].endswith("Counter")
        assert theirs["id"] == held["id"] and theirs["state"] == "ready"


def test_references_to_a_killed_owner_fail_at_once() -> None:
    with peers.world("peer", "other") as node:
        ref = node.remote("peer", peers.Counter, 5)
        ref.to_here()
        with pytest.raises(hawser.PeerLost):
            node.run("peer", peers.leave_process)
        began = time.monotonic()
        with pytest.raises(hawser.PeerLost):
            ref.to_here()
        assert time.monotonic() - began < 2
        with pytest.raises(hawser.PeerLost):
            node.run("other", value_of, ref)
        node.close()


def test_trust_functions_reads_references_but_no_pickles() -> None:
    with peers.world("peer", trust="functions") as node:
        number = node.remote("peer", "add", 1, 2)
        assert number.to_here() == 3
        with pytest.raises(hawser.Refused):
            node.remote("peer", peers.Counter, 1).to_here()


def test_who_waits_for_a_value_is_told_when_the_node_closes(tmp_path: Path) -> None:
    with peers.world() as node:
        never = node.remote(node.name, gated, str(tmp_path / "gate"), 1)
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                never.local_value()
            except hawser.Error as error:
                ended.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        node.close(patience=0.1)
        waiting.join(10)
        (tmp_path / "gate").touch()
        assert not waiting.is_alive() and len(ended) == 1


def test_who_waits_on_the_owner_waits_no_longer_than_it_said(tmp_path: Path) -> None:
    with peers.world() as node:
        late = node.remote(node.name, gated, str(tmp_path / "gate"), 1)
        with pytest.raises(hawser.Timeout, match="does not exist yet"):
            late.to_here(timeout=0.05)
        with hawser.deadline(0.2), pytest.raises(hawser.Timeout):
            node.run(node.name, value_of, late)
        (tmp_path / "gate").touch()
        assert late.to_here() == 1


def test_what_only_the_dropin_has_says_so() -> None:
    """In a process that has not imported hawser.rpc."""
    program = """
import hawser, tempfile
node = hawser.Node("me", f"file://{tempfile.mkdtemp()}/store")
for name in ("_get_type", "_serialize", "_get_profiling_future"):
    try:
        getattr(hawser.RRef(1), name)()
    except AttributeError as error:
        assert "needs hawser.rpc" in str(error), error
    else:
        raise SystemExit(f"{name} did not raise")
node.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- the end of a static world ---


class Thing:
    other: Any = None

    def point_to(self, other: Any) -> None:
        self.other = other


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[hawser.Node, hawser.Node]]:
    """A static world of two nodes of this process."""
    nodes = [
        hawser.Node(name, f"file://{tmp_path}/store", rank=rank, world_size=2)
        for rank, name in enumerate("ab")
    ]
    yield nodes[0], nodes[1]
    for node in nodes:
        node.close()


def end_together(*ends: Callable[[], None]) -> None:
    threads = [threading.Thread(target=end) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_ring_of_references_is_reported_at_the_end(
    two: tuple[hawser.Node, hawser.Node], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = two
    mine, theirs = a.ref(Thing()), a.remote("b", Thing)
    theirs.rpc_sync().point_to(mine)
    mine.local_value().point_to(theirs)
    with caplog.at_level(logging.WARNING, "hawser"):
        del mine, theirs
        end_together(a.shutdown, b.shutdown)
    report = [line.getMessage() for line in caplog.records if line.name == "hawser.node"]
    assert any("ring" in line and ("held by a" in line or "held by b" in line) for line in report)


def test_references_that_a_program_has_to_the_end_are_no_reason_to_warn(
    two: tuple[hawser.Node, hawser.Node], caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it takes a while until they are let go."""
    a, b = two
    refs = [a.remote("b", Thing) for _ in range(10)]

    def leave_slowly() -> None:
        a._native.depart()
        time.sleep(0.3)
        a.shutdown()

    with caplog.at_level(logging.WARNING, "hawser"):
        end_together(leave_slowly, b.shutdown)
    assert [ref.deleted for ref in refs] == [True] * 10
    assert [line.getMessage() for line in caplog.records] == []
