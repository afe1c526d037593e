"""Distributed autograd, as a Python program uses it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import peers
import pytest
import torch

import hawser
import hawser.rpc  # teaches the pickler script modules
from hawser import autograd

weight = torch.full((3,), 2.0, requires_grad=True)


@pytest.fixture(scope="module")
def world() -> Iterator[hawser.Node]:
    """A node beside which "peer" and "other" run."""
    with peers.world("peer", "other") as node:
        yield node


# --- functions that are called on other nodes ---


def times_weight(x: torch.Tensor) -> torch.Tensor:
    return x * weight


def weights_gradient(context: int) -> torch.Tensor:
    return autograd.gradients(context)[weight]


def nested(to: str, x: torch.Tensor) -> torch.Tensor:
    return hawser.default_node().run(to, times_weight, x * 2) + x


def squares(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * x, x.detach() * 3, x.sum()]


def apply_module(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def total(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    return sum((p.sum() for p in parameters.values()), torch.zeros(()))


class Tagged(torch.Tensor):
    """A tensor of a class of its own, with an attribute."""

    tag: float


class Special(torch.nn.Parameter):
    pass


class Guarded(torch.Tensor):
    """Handles its operators itself."""

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        return func(*args, **(kwargs or {}))


def times_tag(x: Tagged) -> torch.Tensor:
    assert type(x) is Tagged
    return x.as_subclass(torch.Tensor) * x.tag


def tagged(x: torch.Tensor) -> torch.Tensor:
    result = (x * 2).as_subclass(Tagged)
    result.tag = 3.0
    return result


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("no gradient today")


def fails_backward(x: torch.Tensor) -> torch.Tensor:
    return Fails.apply(x)


def not_a_number(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(x - x) * 0  # its gradient is not a number


def watch_for_anomalies(on: bool) -> None:
    torch.autograd.set_detect_anomaly(on)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(1)
        return gradient


def slow_backward(x: torch.Tensor) -> torch.Tensor:
    return Slow.apply(x)


async def nested_later(to: str, x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0.01)
    y = await hawser.default_node().call(to, times_weight, x)
    await asyncio.sleep(0.01)
    return y + x


def counts() -> dict[str, int]:
    return hawser.default_node().inspect()["autograd"]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float, requires_grad=True)


# --- gradients ---


def test_gradients_here_and_there(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        assert autograd.current() == context.id
        loss = world.run("peer", times_weight, x).sum()
        context.backward([loss])
        assert torch.equal(context.gradients()[x], torch.full((3,), 2.0))
        assert torch.equal(world.run("peer", weights_gradient, context.id), x.detach())
    assert x.grad is None and autograd.current() is None
    with pytest.raises(hawser.Invalid, match="Could not find autograd context"):
        autograd.gradients(context)


def test_nested_calls_and_references_join_the_context(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        y = world.run("peer", nested, "other", x)
        z = world.remote("other", times_weight, x).to_here()
        context.backward([(y + z).sum()])
        assert torch.equal(context.gradients()[x], torch.full((3,), 4.0 + 1.0 + 2.0))


def test_several_tensors_some_unused(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        squared, constant, _unused = world.run("peer", squares, x)
        assert not constant.requires_grad
        context.backward([squared.sum()])
        assert torch.equal(context.gradients()[x], 2 * x.detach())


def test_passes_add_up(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        loss = world.run("peer", times_weight, x).sum()
        context.backward([loss], retain_graph=True)
        context.backward([loss])
        assert torch.equal(context.gradients()[x], torch.full((3,), 4.0))
        with pytest.raises(hawser.RemoteError, match="second time"):
            context.backward([loss])


def test_sparse_gradients(world: hawser.Node) -> None:
    table = torch.nn.Embedding(10, 3, sparse=True)
    with autograd.context() as context:
        rows = table(torch.tensor([1, 1, 4]))
        context.backward([world.run("peer", times_weight, rows).sum()])
        gradient = context.gradients()[table.weight]
        assert gradient.is_sparse
        assert torch.equal(gradient.to_dense()[1], torch.full((3,), 4.0))


def test_hooks_run(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    seen: list[str] = []
    x.register_hook(lambda gradient: seen.append("tensor") or gradient * 10)  # type: ignore[func-returns-value]
    accumulate = x.view_as(x).grad_fn.next_functions[0][0]
    accumulate.register_hook(lambda *_: seen.append("after"))
    with autograd.context() as context:
        context.backward([world.run("peer", times_weight, x).sum()])
        assert torch.equal(context.gradients()[x], torch.full((3,), 20.0))
    assert seen == ["tensor", "after"]


# --- what is sent keeps its place in the graph ---


def test_parameters_and_modules_keep_their_gradients(world: hawser.Node) -> None:
    module = torch.nn.Linear(3, 2)
    lone = torch.nn.Parameter(torch.ones(3))
    with autograd.context() as context:
        out = world.run("peer", apply_module, module, torch.ones(3))
        also = world.run("peer", total, {"a": lone, "b": lone})
        product = world.run("peer", torch.mul, lone, torch.full((3,), 5.0))
        context.backward([out.sum() + also + product.sum()])
        gradients = context.gradients()
        assert torch.equal(gradients[module.weight], torch.ones(2, 3))
        assert torch.equal(gradients[module.bias], torch.ones(2))
        assert torch.equal(gradients[lone], torch.full((3,), 7.0))
    # Outside of a context they arrive as they always did.
    assert isinstance(world.run("peer", next, iter([lone])), torch.nn.Parameter)


def test_what_is_derived_from_tensors_keeps_its_gradients(world: hawser.Node) -> None:
    x, special = leaf(1, 2, 3), Special(torch.ones(3))
    with autograd.context() as context:
        argument = x.as_subclass(Tagged)
        argument.tag = 5.0
        out = world.run("peer", times_tag, argument)
        also = world.run("peer", times_weight, special)
        back = world.run("peer", tagged, x)
        assert type(back) is Tagged and back.tag == 3.0
        context.backward([out.sum() + also.sum() + back.as_subclass(torch.Tensor).sum()])
        assert torch.equal(context.gradients()[x], torch.full((3,), 5.0 + 2.0))
        assert torch.equal(context.gradients()[special], torch.full((3,), 2.0))


def test_what_cannot_keep_its_gradients_is_refused(world: hawser.Node) -> None:
    guarded = torch.Tensor._make_subclass(Guarded, torch.ones(3), True)
    with (
        autograd.context(),
        pytest.raises(hawser.Invalid, match=r"Guarded of shape \(3,\) requires grad"),
    ):
        world.run("peer", times_weight, guarded)


def test_script_modules_keep_their_gradients(world: hawser.Node) -> None:
    layer = torch.nn.Linear(3, 3)
    module = torch.jit.script(torch.nn.Sequential(layer, torch.nn.ReLU(), torch.nn.Linear(3, 2)))
    x = torch.rand(3)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    with autograd.context() as context:
        out = world.run("peer", apply_module, module, x)
        context.backward([out.sum()])
        for parameter, gradient in zip(module.parameters(), expected, strict=True):
            assert torch.allclose(context.gradients()[parameter], gradient)
    assert torch.equal(world.run("peer", apply_module, module, x), module(x))


def test_ordinary_backward_says_what_to_do(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with (
        autograd.context(),
        pytest.raises(RuntimeError, match="distributed autograd context"),
    ):
        world.run("peer", times_weight, x).sum().backward()


# --- the context follows the program ---


def test_into_callbacks(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        chained = (
            world.call("peer", times_weight, x)
            .then(lambda future: world.run("other", times_weight, future.wait()))
            .then(lambda future: world.run("peer", times_weight, future.wait()))
        )
        context.backward([chained.wait().sum()])
        assert torch.equal(context.gradients()[x], torch.full((3,), 8.0))


def test_into_coroutines_that_are_served(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        context.backward([world.run("peer", nested_later, "other", x).sum()])
        assert torch.equal(context.gradients()[x], torch.full((3,), 3.0))


def test_tasks_of_one_thread_are_apart(world: hawser.Node) -> None:
    async def step(factor: float) -> torch.Tensor:
        x = leaf(factor, factor, factor)
        with autograd.context() as context:
            y = await world.call("peer", times_weight, x * factor)
            await asyncio.sleep(0.001)
            z = await world.call("other", times_weight, y)
            await asyncio.to_thread(context.backward, [z.sum()])
            return context.gradients()[x]

    async def all_steps() -> list[torch.Tensor]:
        return await asyncio.gather(*(step(float(i)) for i in range(1, 6)))

    for i, gradient in enumerate(asyncio.run(all_steps()), 1):
        assert torch.equal(gradient, torch.full((3,), 4.0 * i))
    assert autograd.current() is None


def test_a_task_can_be_outside_of_the_context_of_its_thread(world: hawser.Node) -> None:
    async def look() -> list[int | None]:
        before = autograd.current()
        with autograd._inside(None):
            within = autograd.current()
            in_thread = await asyncio.to_thread(autograd.current)
        return [before, within, in_thread, autograd.current()]

    with autograd.context() as context:
        assert asyncio.run(look()) == [context.id, None, None, context.id]


def test_threads_are_apart(world: hawser.Node) -> None:
    results: dict[int, torch.Tensor] = {}

    def step(i: int) -> None:
        for _ in range(10):
            x = leaf(1, 2, 3)
            with autograd.context() as context:
                context.backward([(world.run("peer", nested, "other", x) * i).sum()])
                results[i] = context.gradients()[x]

    threads = [threading.Thread(target=step, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert torch.equal(results[i], torch.full((3,), 5.0 * i))


# --- failure ---


def test_errors_come_home_with_the_name_of_the_node(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        out = world.run("peer", fails_backward, x)
        with pytest.raises(hawser.RemoteError, match="no gradient today") as raised:
            context.backward([out.sum()])
        assert raised.value.node == "peer"
        assert context.gradients() == {}
        context.backward([world.run("peer", times_weight, x).sum()])  # it goes on
        assert torch.equal(context.gradients()[x], torch.full((3,), 2.0))


def test_anomaly_mode_shows_the_forward_stack_of_the_other_node(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    world.run("peer", watch_for_anomalies, True)
    try:
        with autograd.context() as context:
            out = world.run("peer", not_a_number, x)
            with pytest.raises(hawser.RemoteError, match="returned nan") as raised:
                context.backward([out.sum()])
            assert "not_a_number" in raised.value.remote_traceback
    finally:
        world.run("peer", watch_for_anomalies, False)


def test_a_pass_has_a_deadline(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        out = world.run("peer", slow_backward, x)
        with pytest.raises(hawser.Timeout):
            context.backward([out.sum()], timeout=0.1)
        with pytest.raises(hawser.Invalid, match="mode"):
            context.backward([out.sum()], mode="quick")
        with pytest.raises(hawser.Invalid, match="negative"):
            context.backward([out.sum()], timeout=-1)


def test_nothing_stays(world: hawser.Node) -> None:
    for node in ("peer", "other"):
        eventually(lambda node=node: world.run(node, counts) == {"contexts": 0, "passes": 0})
    assert world.inspect()["autograd"] == {"contexts": 0, "passes": 0}


def test_a_node_that_is_killed_ends_the_pass() -> None:
    with peers.world("victim", "survivor") as node:
        x = leaf(1, 2, 3)
        with autograd.context(node) as context:
            out = node.run("survivor", nested, "victim", x)
            pid = node.run("victim", os.getpid)
            os.kill(pid, 9)
            started = time.monotonic()
            with pytest.raises((hawser.PeerLost, hawser.RemoteError)):
                context.backward([out.sum()])
            assert time.monotonic() - started < 10
        with autograd.context(node) as context:
            context.backward([node.run("survivor", times_weight, x).sum()])
            assert torch.equal(context.gradients()[x], torch.full((3,), 2.0))
        node.close()
