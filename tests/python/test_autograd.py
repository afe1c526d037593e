"""Distributed autograd, as a Python program uses it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
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


kept: dict[str, torch.Tensor] = {}
was_kept = threading.Event()


def keep(x: torch.Tensor) -> None:
    kept["it"] = x
    was_kept.set()


def take_kept() -> torch.Tensor:
    assert was_kept.wait(20)
    was_kept.clear()
    return kept.pop("it") * 2


def watches_for_anomalies() -> bool:
    return torch.is_anomaly_enabled()


def relayed_not_a_number(to: str, x: torch.Tensor) -> torch.Tensor:
    return hawser.default_node().run(to, not_a_number, x * weight)


class Stalls(torch.autograd.Function):
    """Makes a file when its gradient is asked for, and goes on when it is gone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, path: str) -> torch.Tensor:
        ctx.path = path
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        open(ctx.path, "w").close()
        eventually(lambda: not os.path.exists(ctx.path))
        return gradient, None


def stall_backward(x: torch.Tensor, path: str) -> torch.Tensor:
    return Stalls.apply(x, path)


def stall_at(to: str, x: torch.Tensor, path: str) -> torch.Tensor:
    return hawser.default_node().run(to, stall_backward, x * weight, path)


def summed(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def stalled_sum(to: str, x: torch.Tensor, path: str) -> torch.Tensor:
    return stall_at(to, x, path).sum()


def bytes_in_memory() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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


class Blocks(torch.autograd.Function):
    """Of the second there is no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * 3, None


class Hooked:
    """Leaves with hooks of all kinds that run, and what these saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[float] | None]] = []
        self.used, self.blocked = leaf(1, 2), leaf(3, 4)
        self.accumulators = [self.hook("used", self.used), self.hook("blocked", self.blocked)]

    def hook(self, name: str, tensor: torch.Tensor) -> Any:
        accumulate = tensor.view_as(tensor).grad_fn.next_functions[0][0]
        tensor.register_hook(partial(self.see, f"{name}: tensor", times=10))
        accumulate.register_prehook(
            lambda gradients: tuple(self.see(f"{name}: before", each) for each in gradients)
        )
        accumulate.register_hook(
            lambda _, gradients: [self.see(f"{name}: after", each) for each in gradients] and None
        )
        return accumulate

    def see(self, what: str, gradient: torch.Tensor | None, times: float = 1) -> Any:
        self.seen.append((what, None if gradient is None else gradient.tolist()))
        return None if gradient is None else gradient * times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Blocks.apply(x * self.used, self.blocked)


there: list[Hooked] = []


def forward_with_hooks(x: torch.Tensor) -> torch.Tensor:
    there[:] = [Hooked()]
    return there[0].forward(x)


def seen_by_hooks(context: int) -> tuple[Any, torch.Tensor, int]:
    gradients = autograd.gradients(context)
    return there[0].seen, gradients[there[0].used], len(gradients)


def test_hooks_of_other_nodes_see_what_they_see_in_torch(world: hawser.Node) -> None:
    local = Hooked()
    local.forward(leaf(5, 6)).sum().backward()
    assert local.used.grad is not None and local.blocked.grad is None
    with autograd.context() as context:
        context.backward([world.run("peer", forward_with_hooks, leaf(5, 6)).sum()])
        seen, gradient, count = world.run("peer", seen_by_hooks, context.id)
    assert seen == local.seen and {name for name, _ in seen} >= {"used: before", "used: after"}
    assert torch.equal(gradient, local.used.grad) and count == 1


# --- gradients agree with differences ---


class Model:
    """A cell with weights of this process, one that is used over and over."""

    weight = torch.zeros(2, 2, dtype=torch.double, requires_grad=True)


def set_model(values: torch.Tensor) -> None:
    Model.weight = values.detach().clone().requires_grad_()


def run_model(x: torch.Tensor, to: str | None) -> torch.Tensor:
    h = torch.tanh(Model.weight @ x)
    return h if to is None else hawser.default_node().run(to, run_model, h, None) * h


def model_gradient(context: int) -> torch.Tensor:
    return autograd.gradients(context)[Model.weight]


class Distributed(torch.autograd.Function):
    """A computation over three processes as one function of what each of them has."""

    @staticmethod
    def compute(x: torch.Tensor) -> torch.Tensor:
        node = hawser.default_node()
        return node.run("peer", run_model, x.sin(), "other") + node.run("other", run_model, x, None)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *weights)
        for worker, values in zip(("peer", "other"), weights, strict=True):
            hawser.default_node().run(worker, set_model, values)
        return Distributed.compute(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        node, (x, *weights) = hawser.default_node(), ctx.saved_tensors
        for worker, values in zip(("peer", "other"), weights, strict=True):
            node.run(worker, set_model, values)
        mine = x.detach().requires_grad_()
        with torch.enable_grad(), autograd.context() as context:
            context.backward([(Distributed.compute(mine) * gradient).sum()])
            theirs = [node.run(worker, model_gradient, context.id) for worker in ("peer", "other")]
            return context.gradients()[mine], *theirs


def test_gradients_agree_with_differences(world: hawser.Node) -> None:
    torch.manual_seed(1)
    inputs = [torch.rand(*shape, dtype=torch.double) for shape in ((2,), (2, 2), (2, 2))]
    assert torch.autograd.gradcheck(Distributed.apply, [x.requires_grad_() for x in inputs])


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


def test_notices_are_part_of_the_graph(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with autograd.context() as context:
        world.notify("peer", keep, x)
        context.backward([world.run("peer", take_kept).sum()])
        assert torch.equal(context.gradients()[x], torch.full((3,), 2.0))


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


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_shows_the_forward_stack_of_another_node(world: hawser.Node) -> None:
    x = leaf(1, 2, 3)
    with torch.autograd.detect_anomaly(), autograd.context() as context:
        out = world.run("peer", relayed_not_a_number, "other", x)
        with pytest.raises(hawser.RemoteError, match="returned nan") as raised:
            context.backward([out.sum()])
    assert raised.value.node == "other"
    assert "not_a_number" in raised.value.remote_traceback
    for name in ("peer", "other"):
        eventually(lambda name=name: not world.run(name, watches_for_anomalies))
    with torch.autograd.detect_anomaly(check_nan=False), autograd.context() as context:
        assert world.run("peer", watches_for_anomalies)
        context.backward([world.run("peer", not_a_number, x).sum()])
        assert context.gradients()[x].isnan().all()


def test_a_pass_has_a_deadline(world: hawser.Node, tmp_path: Path) -> None:
    x, path = leaf(1, 2, 3), tmp_path / "in_backward"
    with autograd.context() as context:
        out = world.run("peer", stall_backward, x, str(path))
        with pytest.raises(hawser.Timeout):
            context.backward([out.sum()], timeout=0.1)
        path.unlink(missing_ok=True)
        with pytest.raises(hawser.Invalid, match="mode"):
            context.backward([out.sum()], mode="quick")
        with pytest.raises(hawser.Invalid, match="negative"):
            context.backward([out.sum()], timeout=-1)


def test_a_pass_that_begins_elsewhere_has_a_deadline(world: hawser.Node, tmp_path: Path) -> None:
    x, path = leaf(1, 2, 3), tmp_path / "in_backward"
    with autograd.context() as context:
        total = world.remote("other", stalled_sum, "peer", x, str(path))
        with pytest.raises(hawser.Timeout):
            total.backward(context.id, timeout=0.1)
        with pytest.raises(hawser.Invalid, match="mode"):
            total.backward(context.id, mode="quick")
        path.unlink(missing_ok=True)
        eventually(lambda: world.run("other", counts)["passes"] == 0)
    with autograd.context() as context:
        world.remote("other", summed, x).backward(context.id, timeout=20, mode="fast")
        assert torch.equal(context.gradients()[x], torch.ones(3))


def test_ctrl_c_ends_the_pass_everywhere(world: hawser.Node, tmp_path: Path) -> None:
    x, path = leaf(1, 2, 3), tmp_path / "in_backward"

    def interrupt() -> None:
        eventually(path.exists)
        os.kill(os.getpid(), signal.SIGINT)

    with autograd.context() as context:
        out = world.run("other", stall_at, "peer", x, str(path))
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            context.backward([out.sum()])
        interrupter.join()
        for node in ("peer", "other"):  # also where the function has not returned
            eventually(lambda node=node: world.run(node, counts)["passes"] == 0)
        eventually(lambda: world.inspect()["autograd"]["passes"] == 0)
        path.unlink()
        context.backward([world.run("peer", times_weight, x).sum()])
        assert torch.equal(context.gradients()[x], torch.full((3,), 2.0))


def test_nothing_stays(world: hawser.Node) -> None:
    for node in ("peer", "other"):
        eventually(lambda node=node: world.run(node, counts) == {"contexts": 0, "passes": 0})
    assert world.inspect()["autograd"] == {"contexts": 0, "passes": 0}


def test_no_memory_stays(world: hawser.Node) -> None:
    def step() -> None:
        x = leaf(1, 2, 3)
        with autograd.context() as context:
            h = world.run("peer", times_weight, x).tanh()
            context.backward([world.run("other", times_weight, h).sum()])
            assert len(context.gradients()) == 1

    def resident() -> list[int]:
        return [bytes_in_memory(), *(world.run(to, bytes_in_memory) for to in ("peer", "other"))]

    for _ in range(300):
        step()
    before = resident()
    for _ in range(1000):
        step()
    for process, (was, is_now) in enumerate(zip(before, resident(), strict=True)):
        assert is_now - was < 1 << 20, f"process {process}: {is_now - was} bytes more"
    for node in ("peer", "other"):
        eventually(lambda node=node: world.run(node, counts) == {"contexts": 0, "passes": 0})


def test_a_node_that_is_killed_in_the_midst_of_a_pass_ends_it_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "in_backward"
    with peers.world("victim", "survivor") as node:
        x = leaf(1, 2, 3)
        pid = node.run("victim", os.getpid)
        killed: list[float] = []

        def kill() -> None:
            eventually(path.exists)
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        with autograd.context(node) as context:
            out = node.run("survivor", stall_at, "victim", x, str(path))
            killer = threading.Thread(target=kill)
            killer.start()
            with pytest.raises(hawser.PeerLost) as raised:
                context.backward([out.sum()])
            assert raised.value.node == "victim"
            eventually(lambda: node.run("survivor", counts)["passes"] == 0)
            killer.join()
            assert time.monotonic() - killed[0] < 2
            assert context.gradients() == {}
        with autograd.context(node) as context:
            context.backward([node.run("survivor", times_weight, x).sum()])
            assert torch.equal(context.gradients()[x], torch.full((3,), 2.0))
        node.close()
