"""The bugs of torch's RemoteModule and DistributedOptimizer that programs on hawser do not meet.

Numbers are those of the list of bugs; each test says what went wrong there. The programs import
torch.distributed only, before or after hawser has taken its place.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

import hawser
import hawser.rpc as rpc

from .world import World, run

# --- in every rank ---


def start(world: World, import_first: bool) -> tuple[Any, Any]:
    """torch's RemoteModule and DistributedOptimizer, as a program finds them."""
    import hawser.dropin

    used = ("torch.distributed.optim", "torch.distributed.nn.api.remote_module")
    assert not set(used) & set(sys.modules)
    if import_first:
        for name in used:
            importlib.import_module(name)
    hawser.dropin.install()
    hawser.dropin.install()
    world.init()
    import torch.distributed.nn.api.remote_module as modules
    from torch.distributed.optim import DistributedOptimizer

    return modules, DistributedOptimizer


class Unsendable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.lock = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


def mode_of(ref: Any) -> bool:
    return ref.local_value().training


def value_of(ref: Any) -> torch.Tensor:
    return ref.local_value().detach().clone()


def gradient_of(ref: Any) -> torch.Tensor | None:
    return ref.local_value().grad


# --- 34: RemoteModule.train(mode) ignored the mode, and sent the module back ---


def train_and_eval(world: World, import_first: bool) -> None:
    modules, _ = start(world, import_first)
    if world.rank == 0:
        for cls in (modules.RemoteModule, modules._RemoteModule):
            module = cls(f"{world.next}/cpu", Unsendable)
            for mode in (False, True):
                assert module.train(mode) is module
                assert rpc.rpc_sync(world.next, mode_of, (module.module_rref,)) is mode
            assert module.eval() is module
            assert rpc.rpc_sync(world.next, mode_of, (module.module_rref,)) is False
            torch.testing.assert_close(module(torch.ones(2)), torch.ones(2))
    rpc.shutdown()


@pytest.mark.parametrize("import_first", [True, False])
def test_row_34_train_honours_its_argument_and_sends_nothing_back(import_first: bool) -> None:
    run(train_and_eval, import_first, init=False)


# --- 34: it instantiated its template twice ---


@torch.jit.interface
class Interface:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class Scripted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def make_scripted(world: World) -> int:
    modules, _ = start(world, import_first=True)
    instantiate, count = modules._instantiate_template, 0

    def counted(*args: Any) -> None:
        nonlocal count
        count += 1
        instantiate(*args)

    modules._instantiate_template = counted
    world.meet("counting")
    if world.rank == 0:
        module = modules._RemoteModule(world.next, Scripted, _module_interface_cls=Interface)
        assert module.is_scriptable
        assert {"forward", "forward_async"} <= set(vars(module))
    rpc.shutdown()
    return count


def test_row_34_the_template_is_instantiated_once() -> None:
    assert run(make_scripted, init=False) == [0, 1]


# --- without a number: one that had been sent could not be called, and its repr raised ---


def call_it(module: Any) -> tuple[torch.Tensor, str]:
    return module(torch.ones(2)), repr(module)


def send_it(world: World) -> None:
    modules, _ = start(world, import_first=True)
    if world.rank == 0:
        module = modules.RemoteModule(world.next, Unsendable)
        same = modules.RemoteModule.init_from_module_rref(world.next, module.get_module_rref())
        for each in (module, same):
            assert rpc.rpc_sync(world.name(0), call_it, (each,))[1] == repr(each)
            value, _ = rpc.rpc_sync(world.next, call_it, (each,))
            torch.testing.assert_close(value.detach(), torch.ones(2))
            torch.testing.assert_close(each(torch.ones(2)).detach(), torch.ones(2))
    rpc.shutdown()


def test_a_module_that_was_sent_can_be_called() -> None:
    run(send_it, init=False)


# --- without a number: nothing of it could be awaited ---


class Broken(nn.Module):
    def __init__(self) -> None:
        raise LookupError("not today")


def await_it(world: World) -> None:
    modules, _ = start(world, import_first=True)
    if world.rank == 0:

        async def use() -> None:
            made = modules.RemoteModule(world.next, Unsendable)
            scripted = modules._RemoteModule(world.next, Scripted, _module_interface_cls=Interface)
            for module in (made, scripted):
                assert await module is module
                results = [module.forward_async(torch.full((2,), n)) for n in range(3)]
                for number, value in enumerate(await asyncio.gather(*results)):
                    torch.testing.assert_close(value.detach(), module(torch.full((2,), number)))
            with pytest.raises(LookupError, match="not today"):
                await modules.RemoteModule(world.next, Broken)
            with pytest.raises(RuntimeError, match="The size of tensor"):
                await made.forward_async(torch.ones(3))

        asyncio.run(asyncio.wait_for(use(), 30))
    rpc.shutdown()


def test_a_module_and_its_results_can_be_awaited() -> None:
    run(await_it, init=False)


# --- torch's own optimizers in scripts, which its DistributedOptimizer is made of, work as well ---


def step_in_a_script(world: World, import_first: bool) -> None:
    from hawser.rpc import dist_autograd

    modules, _ = start(world, import_first)
    from torch.distributed.optim import optimizer as stock
    from torch.distributed.optim.utils import functional_optim_map

    if world.rank == 0:
        for kind, functional in functional_optim_map.items():
            module = modules.RemoteModule(world.next, Unsendable)
            made = (functional, module.remote_parameters())
            ref = rpc.rpc_sync(world.next, stock._new_script_local_optimizer, made, {"lr": 0.25})
            here = nn.Parameter(torch.ones(2))
            local: Any = kind([here], lr=0.25)
            for _ in range(3):
                with dist_autograd.context() as context:
                    loss = module(torch.tensor([1.0, -2.0])).square().sum()
                    dist_autograd.backward(context, [loss])
                    stepped = (ref, context)
                    rpc.rpc_sync(ref.owner(), stock._script_local_optimizer_step, stepped)
                local.zero_grad()
                (here * torch.tensor([1.0, -2.0])).square().sum().backward()
                local.step()
            (weight,) = module.remote_parameters()
            value = rpc.rpc_sync(world.next, value_of, (weight,))
            torch.testing.assert_close(value, here.detach(), msg=kind.__name__)
    rpc.shutdown()


@pytest.mark.parametrize("import_first", [True, False])
def test_optimizers_in_scripts(import_first: bool) -> None:
    run(step_in_a_script, import_first, init=False)


# --- without a number: an optimizer left gradients in .grad, and applied them again ---


def step_twice(world: World, import_first: bool) -> None:
    from hawser.rpc import dist_autograd

    modules, optimizer_class = start(world, import_first)
    if world.rank == 0:
        module = modules.RemoteModule(world.next, Unsendable)
        (weight,) = module.remote_parameters()
        optimizer = optimizer_class(torch.optim.SGD, [weight], lr=0.5)
        for with_gradients in (True, False):
            with dist_autograd.context() as context:
                if with_gradients:
                    dist_autograd.backward(context, [module(torch.ones(2)).sum()])
                optimizer.step(context)
            value = rpc.rpc_sync(weight.owner(), value_of, (weight,))
            torch.testing.assert_close(value, torch.full((2,), 0.5))
            assert rpc.rpc_sync(weight.owner(), gradient_of, (weight,)) is None
        with pytest.raises(RuntimeError, match="Could not find autograd context with id"):
            optimizer.step(context)
    rpc.shutdown()


@pytest.mark.parametrize("import_first", [True, False])
def test_a_gradient_is_applied_once(import_first: bool) -> None:
    run(step_twice, import_first, init=False)


# --- without a number: of several owners that failed, only the last was heard of ---


class Failing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError(f"no step on {rpc.get_worker_info().name}")


def fail_everywhere(world: World) -> None:
    from hawser.rpc import dist_autograd

    _, optimizer_class = start(world, import_first=True)
    if world.rank == 0:
        refs = [rpc.remote(world.name(rank), nn.Parameter, (torch.ones(1),)) for rank in range(3)]
        optimizer = optimizer_class(Failing, refs, lr=0.1)
        with dist_autograd.context() as context, pytest.raises(ValueError, match="w2") as caught:
            optimizer.step(context)
        everything = str(caught.value.__cause__)
        for rank in range(3):
            assert f"no step on {world.name(rank)}" in everything
    rpc.shutdown()


def test_all_owners_that_failed_are_reported() -> None:
    run(fail_everywhere, size=3, init=False)


# --- hawser's own, in a program that uses hawser.rpc ---


def train_natively(world: World) -> None:
    if world.rank != 0:
        return
    module = hawser.nn.RemoteModule(f"rank:{world.rank + 1}/cpu", Unsendable)
    assert module.on == world.next
    optimizer = hawser.optim.DistributedOptimizer(
        torch.optim.SGD, module.remote_parameters(), lr=0.5
    )
    with rpc.dist_autograd.context() as context:
        rpc.dist_autograd.backward(context, [module(torch.ones(2)).sum()])
        optimizer.step(context)
    torch.testing.assert_close(module(torch.ones(2)), torch.full((2,), 0.5))
    assert module.get_module_rref().rpc_sync().extra_repr() == ""


def test_hawsers_own_work_in_a_world_of_rpc() -> None:
    run(train_natively)
