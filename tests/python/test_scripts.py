"""TorchScript: script functions elsewhere, calls and references in scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
import scripted
import torch

import hawser
from hawser import rpc


@pytest.fixture(scope="module")
def world() -> Iterator[hawser.Node]:
    """A node beside which "peer" and "other" run."""
    with peers.world("peer", "other") as node:
        for name in ("peer", "other"):
            node.run(name, scripted.count_gil_waits, False)  # which imports the scripts there
        yield node


ones = torch.ones(2)


# --- values ---


def test_plain_values_keep_the_types_that_scripts_declare(world: hawser.Node) -> None:
    assert world.run("peer", scripted.odd_types, {"a": [1, 2], "b": []}, (1, "x"), "text") == (
        3,
        False,
        True,
    )
    assert world.run("peer", scripted.odd_types, {}, None, 1) == (0, True, False)


def test_instances_of_script_classes_travel(world: hawser.Node) -> None:
    moved = world.run("peer", scripted.move, scripted.Point(1, [0.5]), 4)
    assert type(moved) is scripted.Point and moved.x == 5 and moved.weights == [0.5]
    assert [point.x for point in world.run("peer", scripted.points, 3)] == [0, 1, 2]
    future = world.call("peer", scripted.move, scripted.Point(1, []), 1)
    assert future.wait().x == 2


def test_enums_named_tuples_and_devices_travel(world: hawser.Node) -> None:
    assert world.run("peer", scripted.swap, scripted.Colour.RED) is scripted.Colour.GREEN
    pair = world.run("peer", scripted.pair_of, scripted.Pair(ones, 1))
    assert torch.equal(pair.first, ones + 1) and pair.second == 2
    assert world.run("peer", scripted.device_of, ones) == torch.device("cpu")


def test_arguments_that_do_not_fit_raise_here_and_name_the_schema(world: hawser.Node) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)scaled\(\) .*scaled\(Tensor x, float factor=2"):
        world.call("peer", scripted.scaled, ones, factor="three")
    with pytest.raises(RuntimeError, match=r"scaled\(Tensor x, float factor=2"):
        scripted.call_wrongly("peer", ones)


# --- references as arguments and results ---


def test_references_are_arguments_and_results(world: hawser.Node) -> None:
    ref = world.remote("peer", scripted.scaled, ones)
    for to in ("peer", "other", "me"):
        assert torch.equal(world.run(to, scripted.fetch, ref), ones * 2)
        assert torch.equal(world.run(to, scripted.same, ref).to_here(), ones * 2)
    kept = world.remote("other", scripted.same, ref)
    assert torch.equal(kept.to_here().to_here(), ones * 2)
    own = hawser.RRef(ones)
    assert torch.equal(world.run("peer", scripted.fetch, own), ones)


def test_references_are_in_containers(world: hawser.Node) -> None:
    refs = [world.remote("peer", scripted.scaled, torch.ones(1)) for _ in range(3)]
    result = world.run(
        "other", scripted.total, refs[:2], {"a": refs[2], "b": hawser.RRef(ones[:1])}
    )
    assert result.item() == 7
    both = world.run("other", scripted.in_containers, refs[0])["both"]
    assert [ref.to_here().item() for ref in both] == [2, 2]


def test_references_of_python_objects(world: hawser.Node) -> None:
    point = world.run("peer", scripted.keep_point, 3)
    assert world.run("peer", scripted.moved_by, point, 1) == 4
    assert scripted.moved_by(point, 2) == 5  # a copy, made by a script
    assert point.to_here().x == 3  # a copy, made by Python
    module = world.run("peer", scripted.keep_module, 3.0)
    assert torch.equal(world.run("peer", scripted.apply, module, ones), ones * 3)


def test_what_a_script_leaves_has_the_methods_of_its_class(world: hawser.Node) -> None:
    point = world.remote("peer", scripted.make_point, 5)
    assert point.rpc_sync().moved(2) == 7
    assert point.rpc_async().moved(by=3).wait() == 8
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        point.rpc_sync().missing()
    with pytest.raises(hawser.RemoteError, match="moved"):
        point.rpc_sync().moved("far")


def test_what_a_script_leaves_can_be_changed_by_scripts(world: hawser.Node) -> None:
    numbers = world.remote("peer", scripted.make_list)
    assert world.run("peer", scripted.extend, numbers) == 3
    assert numbers.to_here() == [1, 2, 7]
    with pytest.raises(RuntimeError, match=r"local_value\(\) on a non-owner RRef"):
        scripted.extend(numbers)


def test_a_reference_in_a_script_tells_about_itself(world: hawser.Node) -> None:
    ref = world.remote("peer", scripted.scaled, ones)
    ref.to_here()
    assert scripted.describe(ref) == (False, "peer", True)
    assert scripted.call_owner(ref)
    assert scripted.describe(hawser.RRef(ones))[:2] == (True, "me")


def test_what_a_reference_leads_to_must_be_what_the_script_takes_it_for(world: hawser.Node) -> None:
    assert scripted.number_behind(hawser.RRef(4)) == 5
    numbers = world.remote("peer", scripted.count_to, 3)
    assert world.run("peer", scripted.own_numbers, numbers) == 3
    assert scripted.fetch(hawser.RRef(5)) == 5  # as programs for the original do
    wrong = r"takes for RRef\[int\] leads to a value of type Tensor"
    made = world.remote("peer", scripted.scaled, ones)
    for to in ("me", "peer", "other"):
        with pytest.raises(RuntimeError, match=wrong):
            world.run(to, scripted.number_behind, made)
    with pytest.raises(RuntimeError, match=wrong):
        scripted.number_behind(hawser.RRef(ones))
    with pytest.raises(RuntimeError, match=r"RRef\[List\[int\]\] leads to .* Tensor of 'peer'"):
        world.run("peer", scripted.own_numbers, made)


def test_references_that_scripts_return_are_whole(world: hawser.Node) -> None:
    made = scripted.create("peer", ones)
    assert torch.equal(made.to_here(), ones * 2)
    assert made.owner_name() == "peer" and not made.is_owner()
    assert made.owner().name == "peer"
    assert "UserRRef" in repr(made)
    assert torch.equal(made.rpc_sync().add(1), ones * 3)
    assert torch.equal(made.rpc_async().add(1).wait(), ones * 3)
    assert torch.equal(made.remote().add(1).to_here(), ones * 3)
    assert torch.equal(world.run("other", scripted.fetch, made), ones * 2)
    assert torch.equal(world.run("other", peers.value_of, made), ones * 2)
    assert torch.equal(scripted.same(hawser.RRef(ones)).local_value(), ones)
    with pytest.raises(RuntimeError, match="Call it on owner"):
        made.local_value()


def test_a_module_that_scripts_know_by_its_interface_stays_where_it_is(
    world: hawser.Node,
) -> None:
    module = world.run("peer", scripted.keep_module, 3.0)
    assert torch.equal(world.run("peer", scripted.apply, module, ones), ones * 3)
    with pytest.raises(RuntimeError, match="is an RRef to a ScriptModule"):
        module.to_here()


def test_modules_hold_references(world: hawser.Node) -> None:
    class Holder(torch.nn.Module):
        def __init__(self, refs: list[Any]) -> None:
            super().__init__()
            self.refs = refs

        def forward(self) -> torch.Tensor:
            result = torch.zeros(2)
            for ref in self.refs:
                result += ref.to_here()
            return result

    refs = [world.remote("peer", scripted.scaled, ones), world.remote("peer", torch.add, ones, 1)]
    assert torch.equal(torch.jit.script(Holder(refs))(), ones * 4)


def test_a_value_that_fails_raises_where_it_is_fetched(world: hawser.Node) -> None:
    ref = world.remote("peer", scripted.failing, 0)
    with pytest.raises(RuntimeError, match="x must not be 0"):
        scripted.fetch(ref)


def test_a_released_reference_cannot_be_fetched(world: hawser.Node) -> None:
    ref = world.remote("peer", scripted.scaled, ones)
    ref.to_here()
    ref.release()
    with pytest.raises(RuntimeError, match="Cannot call to_here"):
        scripted.fetch(ref)


# --- calls from scripts ---


def test_scripts_call_scripts(world: hawser.Node) -> None:
    assert torch.equal(scripted.call("peer", ones, ones), ones * 2)
    assert torch.equal(scripted.call_by_keyword("peer", ones, 4.0), ones * 4)
    assert torch.equal(scripted.call_later("peer", ones, ones).wait(), ones * 2)
    assert torch.equal(scripted.call_many("peer", ones, 50), ones * 100)
    assert torch.equal(scripted.create_and_fetch("peer", ones), ones * 2)
    assert torch.equal(scripted.call("me", ones, ones), ones * 2)


def test_scripts_that_are_called_call_on(world: hawser.Node) -> None:
    assert torch.equal(scripted.there_and_back("peer", "me", ones), ones * 2)
    assert torch.equal(world.run("peer", scripted.there_and_back, "other", "peer", ones), ones * 2)
    assert torch.equal(world.run("peer", scripted.call_many, "other", ones, 20), ones * 40)
    ref = world.remote("other", scripted.scaled, ones)
    assert torch.equal(world.run("peer", scripted.pass_on, "me", ref), ones * 2)


def test_forks_of_scripts_call(world: hawser.Node) -> None:
    assert torch.equal(scripted.forked("peer", ones), ones * 8)
    assert torch.equal(world.run("peer", scripted.forked, "other", ones), ones * 8)


def test_futures_pass_between_python_and_scripts(world: hawser.Node) -> None:
    assert torch.equal(scripted.use_future(world.call("peer", scripted.scaled, ones)), ones * 6)
    assert torch.equal(scripted.use_future(world.call("peer", torch.add, ones, 1)), ones * 6)
    later = scripted.call_later("peer", ones, ones).then(lambda future: future.wait() + 1)
    assert torch.equal(later.wait(), ones * 3)


def test_asynchronous_scripts_answer_with_their_future(world: hawser.Node) -> None:
    asynchronous = rpc.functions.async_execution(scripted.add_later)
    assert torch.equal(world.run("peer", asynchronous, "other", ones), ones * 2)
    assert torch.equal(world.remote("peer", asynchronous, "other", ones).to_here(), ones * 2)
    assert torch.equal(
        scripted.use_future(world.call("peer", asynchronous, "other", ones)), ones * 6
    )
    wrong = rpc.functions.async_execution(scripted.add)
    with pytest.raises(RuntimeError, match="must return an IValue of Future type, but got Tensor"):
        world.run("peer", wrong, ones, ones)


def test_errors_reach_the_script_and_keep_their_kind_in_futures(world: hawser.Node) -> None:
    with pytest.raises(RuntimeError, match="x must not be 0"):
        scripted.call_failing("peer")
    with pytest.raises(hawser.RemoteError, match="x must not be 0"):
        scripted.call_failing_later("peer").wait()
    with pytest.raises(RuntimeError, match="more than set timeout"):
        scripted.call_within("peer", 20_000, 0.02)


def test_the_time_limit_of_the_node_is_that_of_its_scripts() -> None:
    with peers.world("peer", mine={"call_timeout": 10}) as node:
        node._native.set_call_timeout(10)
        node.run("peer", peers.nothing)
        slow = node.remote("peer", time.sleep, 1.0)
        node._native.set_call_timeout(0.2)
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            scripted.fetch(slow)
        assert time.monotonic() - begun < 0.9


# --- the interpreter lock ---


def all_kinds_of_script_calls(node: hawser.Node) -> None:
    """On "peer" and, by way of it, on "other"."""
    asynchronous = rpc.functions.async_execution(scripted.add_later)
    twice = ones * 2
    assert torch.equal(node.run("peer", scripted.scaled, ones), twice)
    assert torch.equal(node.run("peer", scripted.call, "other", ones, ones), twice)
    assert torch.equal(node.run("peer", scripted.call_many, "other", ones, 3), ones * 6)
    assert torch.equal(node.run("peer", scripted.there_and_back, "other", "peer", ones), twice)
    assert torch.equal(node.run("peer", scripted.create_and_fetch, "other", ones), twice)
    assert torch.equal(node.run("peer", scripted.forked, "other", ones), ones * 8)
    assert torch.equal(node.run("peer", asynchronous, "other", ones), twice)
    assert torch.equal(node.remote("peer", scripted.scaled, ones).to_here(), twice)
    kept = node.remote("other", scripted.scaled, ones)
    assert torch.equal(node.run("peer", scripted.fetch, kept), twice)
    assert torch.equal(node.run("other", scripted.look, kept), twice)
    assert torch.equal(node.run("peer", scripted.pass_on, "other", kept), twice)
    assert torch.equal(node.run("peer", scripted.create, "other", ones).to_here(), twice)
    with pytest.raises(hawser.RemoteError, match="x must not be 0"):
        node.run("peer", scripted.call_failing, "other")
    with hawser.autograd.context() as context:
        assert torch.equal(node.run("peer", scripted.train, "other", ones, context.id), twice)


def test_scripts_take_no_interpreter_lock(world: hawser.Node) -> None:
    all_kinds_of_script_calls(world)  # names are looked up once
    for name in ("peer", "other"):
        world.run(name, scripted.count_gil_waits, True)
        before = world.run(name, scripted.gil_waits, name)
        again = world.run(name, scripted.gil_waits, name)
        by_asking = again - before
        for _ in range(20):
            all_kinds_of_script_calls(world)
        assert world.run(name, scripted.gil_waits, name) - again <= by_asking
        world.run(name, scripted.count_gil_waits, False)


@pytest.mark.parametrize("name", ["peer", "other"])
def test_scripts_run_while_the_interpreter_lock_is_held(
    world: hawser.Node, name: str, tmp_path: Path
) -> None:
    """Whoever may take it, torch included: until the end of the test nobody gets it there."""
    all_kinds_of_script_calls(world)
    told, begun = tmp_path / "told", tmp_path / "begun"
    os.mkfifo(told)
    pipe = os.open(told, os.O_RDWR)
    try:
        holding = world.call(name, peers.hold_gil_until, str(told), str(begun))
        while not begun.exists():
            assert not holding.done()
            time.sleep(0.001)
        with pytest.raises(hawser.Timeout), hawser.deadline(0.2):
            world.run(name, peers.nothing)
        with hawser.deadline(30):
            all_kinds_of_script_calls(world)
        assert not holding.done()
    finally:
        os.write(pipe, b"!")
        os.close(pipe)
    holding.wait()


def test_many_threads_run_scripts_at_once(world: hawser.Node) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                assert torch.equal(scripted.call("peer", ones, ones), ones * 2)
                assert torch.equal(scripted.call_later("other", ones, ones).wait(), ones * 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- without hawser ---


def test_without_a_node_scripts_use_torchs_own(tmp_path: Path) -> None:
    """In a process of its own: torch's agent is there for good."""
    program = """
import os, tempfile, torch, hawser
import torch.distributed.rpc as rpc
from torch.distributed.rpc import RRef

@torch.jit.script
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@torch.jit.script
def call(x: torch.Tensor) -> torch.Tensor:
    ref = rpc.remote("alone", double, (x,))
    return rpc.rpc_sync("alone", double, (x,)) + rpc.rpc_async("alone", double, (x,)).wait() + ref.to_here()

@torch.jit.script
def returned(x: torch.Tensor) -> RRef[torch.Tensor]:
    return rpc.remote("alone", double, (x,))

with tempfile.TemporaryDirectory() as folder:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/store")
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    assert torch.equal(call(torch.ones(2)), torch.ones(2) * 6)
    ref = returned(torch.ones(2))
    assert torch.equal(ref.to_here(), torch.ones(2) * 2) and ref.is_owner() and "RRef" in repr(ref)
    del ref
    rpc.shutdown()
print("as before")
"""
    source = tmp_path / "program.py"
    source.write_text(program)
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", source],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "as before", done.stderr
