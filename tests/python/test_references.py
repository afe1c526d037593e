"""References: values that stay where they are."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
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
    while not os.path.exists(gate) and time.monotonic() < deadline:
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
    gate.touch()  # until now there was no value, and nobody here has waited for one
    assert fourth.to_here() == 4


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
    shown = str(raised.value.__cause__)
    assert "plus_one" in shown and "peer" in shown
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
        assert "test_references.py" in held["origin"] and "test_references.py" in own["origin"]
        assert own["type"] == "Tensor" and own["bytes"] == 4000 and own["age"] >= 0


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
