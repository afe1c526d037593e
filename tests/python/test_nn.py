"""Modules that live in other processes."""

from __future__ import annotations

import asyncio
import copy
import pickle
import tempfile
from collections.abc import Iterator
from typing import Any

import peers
import pytest
import torch
import training
from torch import nn

import hawser
from hawser.nn import RemoteModule
from hawser.nn.remote_module import moved
from hawser.optim import DistributedOptimizer


@pytest.fixture(scope="module")
def node() -> Iterator[hawser.Node]:
    """Beside it run the nodes "left" and "right"."""
    with peers.world("left", "right") as node:
        yield node


X = torch.arange(6.0, dtype=torch.double).reshape(2, 3)


# --- forward ---


def test_forward_and_its_future(node: hawser.Node) -> None:
    module = RemoteModule("left/cpu", training.linear, (3, 2), {"seed": 7})
    expected = training.linear(3, 2, 7)(X)
    torch.testing.assert_close(module(X), expected)
    torch.testing.assert_close(module.forward(X), expected)
    torch.testing.assert_close(module.forward_async(X).wait(), expected)
    assert (module.on, module.device) == ("left", "cpu")
    assert repr(module) == "RemoteModule(on='left', device='cpu')"


def test_arguments_by_name_and_results_of_any_kind(node: hawser.Node) -> None:
    module = RemoteModule("left", training.Block, (3,), {"scale": 0.0}, node=node)
    value, training_mode = module(torch.ones(3), offset=2.5)
    torch.testing.assert_close(value, torch.full((3,), 2.5))
    assert training_mode
    value, _ = module.forward_async(x=torch.ones(3), offset=1.5).wait()
    torch.testing.assert_close(value, torch.full((3,), 1.5))


def test_await(node: hawser.Node) -> None:
    async def use() -> torch.Tensor:
        module = await RemoteModule("left", training.linear, (3, 2, 0))
        first, second = await asyncio.gather(module.forward_async(X), module.forward_async(2 * X))
        return first + second

    here = training.linear(3, 2, 0)
    torch.testing.assert_close(asyncio.run(use()), here(X) + here(2 * X))


def test_gradients_flow_through_it(node: hawser.Node) -> None:
    module = RemoteModule("left", training.linear, (3, 2, 0))
    here = training.linear(3, 2, 0)
    x, same_x = X.clone().requires_grad_(), X.clone().requires_grad_()
    optimizer = DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=0.1)
    with hawser.autograd.context(node) as context:
        context.backward([module(x).square().sum()])
        gradient = context.gradients()[x]
        optimizer.step(context)
    here(same_x).square().sum().backward()
    assert same_x.grad is not None
    torch.testing.assert_close(gradient, same_x.grad)
    torch.optim.SGD(here.parameters(), lr=0.1).step()
    torch.testing.assert_close(module(X), here(X))


def test_a_module_that_is_here(node: hawser.Node) -> None:
    module = RemoteModule("me", training.linear, (3, 2, 0))
    torch.testing.assert_close(module(X), training.linear(3, 2, 0)(X))
    assert isinstance(module.get_module_rref().local_value(), nn.Linear)


def test_hooks_of_the_module_run_where_it_is(node: hawser.Node) -> None:
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: "hooked")
    there = RemoteModule.init_from_module_rref("me", node.ref(module))
    assert there(torch.ones(2)) == "hooked"


# --- modes and parameters ---


def test_train_honours_its_argument_and_returns_this_module(node: hawser.Node) -> None:
    module = RemoteModule("left", training.NothingToSend)
    ref = module.get_module_rref()
    for set_mode, mode in (
        (lambda: module.train(False), False),
        (module.train, True),
        (module.eval, False),
        (lambda: module.train(True), True),
    ):
        assert set_mode() is module
        assert node.run("left", training.mode_of, ref) is mode
        assert module.training is mode
    with pytest.raises(ValueError, match="boolean"):
        module.train("yes")  # type: ignore[arg-type]


def test_the_mode_of_a_model_reaches_the_module_in_it(node: hawser.Node) -> None:
    module = RemoteModule("left", training.Block, (2,))
    model = nn.Sequential(module)
    model.eval()
    assert model(torch.ones(2))[1] is False
    model.train()
    assert model(torch.ones(2))[1] is True


def test_parameters_with_and_without_those_of_submodules(node: hawser.Node) -> None:
    module = RemoteModule("left", training.Block, (2,), {"scale": 3.0})
    everything, own = module.remote_parameters(), module.remote_parameters(recurse=False)
    assert [ref.to_here().shape for ref in everything] == [(), (2, 2), (2,)]
    assert [ref.to_here().item() for ref in own] == [3.0]
    assert {ref.owner_name() for ref in everything} == {"left"}


# --- errors ---


def test_what_its_constructor_raises_is_raised_by_the_first_use(node: hawser.Node) -> None:
    module = RemoteModule("left", training.raise_when_made, ("not like this",))
    for use in (lambda: module(X), module.remote_parameters, module.train):
        with pytest.raises(LookupError, match="not like this"):
            use()

    async def wait_for_it() -> None:
        await module

    with pytest.raises(LookupError, match="not like this"):
        asyncio.run(wait_for_it())
    with pytest.raises(ValueError, match=r"Expect `module_cls\(\*args, \*\*kwargs\)` returns an"):
        RemoteModule("left", training.no_module)(X)


@pytest.mark.parametrize(
    "place",
    [
        "",
        "/cpu",
        "left/",
        "left/cpu/0",
        "left/no_device",
        "left/cpu:x",
        "cpu",
        "cuda:0",
        "rank:/cpu",
        "rank:x/cpu",
        "rank:-1",
        "rank:1:2/cpu",
        "other:1/cpu",
    ],
)
def test_places_that_are_none(node: hawser.Node, place: str) -> None:
    with pytest.raises(ValueError, match=f"Could not parse remote_device: {place}. The valid") as e:
        RemoteModule(place, nn.Linear, (1, 1))
    assert isinstance(e.value, hawser.Invalid)


def test_a_place_must_be_text(node: hawser.Node) -> None:
    with pytest.raises(TypeError, match="must be a string"):
        RemoteModule(0, nn.Linear, (1, 1))  # type: ignore[arg-type]


def test_ranks() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        hawser.Node("only", f"file://{folder}/store", rank=0, world_size=1) as node,
    ):
        module = RemoteModule("rank:0/cpu", training.linear, (3, 2, 0), node=node)
        assert module.on == "only"
        torch.testing.assert_close(module(X), training.linear(3, 2, 0)(X))
        with pytest.raises(hawser.Invalid, match="there is no rank 3, only 0"):
            RemoteModule("rank:3", nn.Linear, (1, 1), node=node)


SUPPORTED = {"forward", "forward_async", "train", "eval"}


def test_every_other_method_of_a_module_says_that_it_is_not_supported(node: hawser.Node) -> None:
    module: Any = RemoteModule("left", nn.Linear, (1, 1))
    refused = 0
    for name, method in vars(nn.Module).items():
        if name.startswith("_") or not callable(method) or name in SUPPORTED:
            continue
        with pytest.raises(ValueError, match=f"Method ``{name}`` not supported for RemoteModule"):
            getattr(module, name)()
        refused += 1
    assert refused > 40
    with pytest.raises(ValueError, match="use ``remote_parameters`` instead"):
        module.parameters()


# --- sending it ---


class Labelled(RemoteModule):
    label = ""


def test_it_can_be_sent_and_is_the_same_module_there(node: hawser.Node) -> None:
    module = RemoteModule("left", training.linear, (3, 2, 0)).eval()
    expected = training.linear(3, 2, 0)(X)
    for place in ("left", "right", "me"):
        torch.testing.assert_close(
            node.run(place, training.call_remote_module, module, X), expected
        )
    back = node.run("right", peers.echo, module)
    assert back is not module
    torch.testing.assert_close(back(X), expected)
    module.label = "mine"  # type: ignore[assignment]
    described = node.run("right", training.describe_remote_module, module)
    assert described == ("RemoteModule", "left", "cpu", False, "mine")


def test_it_is_not_pickled_outside_of_a_call(node: hawser.Node) -> None:
    module = RemoteModule("left", training.linear, (3, 2, 0))
    message = "RemoteModule can only be pickled when using RPC"
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(RuntimeError, match=message):
            write(module)  # type: ignore[operator]
    with tempfile.TemporaryFile() as file, pytest.raises(RuntimeError, match=message):
        torch.save(module, file)


def test_from_a_reference(node: hawser.Node) -> None:
    ref = node.remote("left", training.linear, 3, 2, 0)
    module = Labelled.init_from_module_rref("left/cpu", ref)
    assert type(module) is Labelled
    torch.testing.assert_close(module(X), training.linear(3, 2, 0)(X))
    with pytest.raises(hawser.Invalid, match="the module is on 'left', not on 'right'"):
        RemoteModule.init_from_module_rref("right", ref)


def test_inputs_are_moved_to_the_modules_device(node: hawser.Node) -> None:
    """As far as that can be shown with the devices that are everywhere."""
    tree = moved({"a": [torch.ones(2)], "b": (1, "text", torch.zeros(1))}, "meta")
    assert tree["a"][0].is_meta and tree["b"][2].is_meta
    assert tree["b"][:2] == (1, "text")
    module = RemoteModule("left/meta", training.linear, (3, 2, 0))
    assert node.run("left", device_of, module.get_module_rref()) == "meta"
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        module(X)


def device_of(ref: Any) -> str:
    return str(next(ref.local_value().parameters()).device)
