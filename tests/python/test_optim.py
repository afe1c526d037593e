"""Optimizers whose parameters live in other processes."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import peers
import pytest
import scripted
import torch
import training
from torch.optim import lr_scheduler

import hawser
from hawser.optim import DistributedOptimizer, OwnerErrors


@pytest.fixture(scope="module")
def node() -> Iterator[hawser.Node]:
    """Beside it run the nodes "left" and "right"."""
    with peers.world("left", "right") as node:
        yield node


OWNERS = ("left", "right", "me")
START = ((1.0, 2.0), (3.0, -1.0, 0.5), (-2.0,))


def parameters(node: hawser.Node) -> list[Any]:
    """One on each owner; the last one is here."""
    return [
        node.remote(owner, training.parameter, *values)
        for owner, values in zip(OWNERS, START, strict=True)
    ]


def local_parameters() -> list[torch.nn.Parameter]:
    return [training.parameter(*values) for values in START]


def values(node: hawser.Node, refs: Sequence[Any]) -> list[torch.Tensor]:
    return [node.run(ref.owner_name(), training.value_of, ref) for ref in refs]


def loss_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([part.square().sum() for part in parts]).sum()


def step(node: hawser.Node, refs: Sequence[Any], optimizer: DistributedOptimizer) -> None:
    with hawser.autograd.context(node) as context:
        parts = [node.run(r.owner_name(), training.scaled_by, r, torch.tensor(1.5)) for r in refs]
        context.backward([loss_of(parts)])
        optimizer.step(context)


def local_step(tensors: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of([tensor * 1.5 for tensor in tensors]).backward()
    optimizer.step()


def assert_same(node: hawser.Node, refs: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    for there, here in zip(values(node, refs), tensors, strict=True):
        torch.testing.assert_close(there, here.detach())


# --- every class of torch.optim ---

CLASSES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adadelta, {"rho": 0.95}),
    (torch.optim.Adafactor, {"lr": 0.05}),
    (torch.optim.Adagrad, {"lr": 0.05}),
    (torch.optim.Adam, {"lr": 0.05, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    (torch.optim.Adamax, {"lr": 0.05}),
    (torch.optim.ASGD, {"lr": 0.05}),
    (torch.optim.NAdam, {"lr": 0.05}),
    (torch.optim.RAdam, {"lr": 0.05}),
    (torch.optim.RMSprop, {"lr": 0.05, "momentum": 0.5}),
    (torch.optim.Rprop, {"lr": 0.05}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
]
ELSEWHERE = {"Optimizer", "SparseAdam", "Muon", "LBFGS"}  # have tests of their own below


def test_every_class_has_a_test() -> None:
    known = {kind.__name__ for kind, _ in CLASSES} | ELSEWHERE
    there = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    assert there == known


@pytest.mark.parametrize(
    ("kind", "options"), CLASSES, ids=lambda value: getattr(value, "__name__", "")
)
def test_it_computes_what_one_optimizer_would(
    node: hawser.Node, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    refs, tensors = parameters(node), local_parameters()
    distributed = DistributedOptimizer(kind, refs, **options)
    local: Any = kind(tensors, **options)
    for _ in range(4):
        step(node, refs, distributed)
        local_step(tensors, local)
    assert_same(node, refs, tensors)
    assert not any(torch.equal(t, torch.tensor(s)) for t, s in zip(tensors, START, strict=True))


def test_muon_takes_matrices(node: hawser.Node) -> None:
    module = hawser.nn.RemoteModule("left", training.linear, (4, 3, 0), node=node)
    weight, _ = module.remote_parameters()
    here = training.linear(4, 3, 0)
    distributed = DistributedOptimizer(torch.optim.Muon, [weight], lr=0.1)
    local: Any = torch.optim.Muon([here.weight], lr=0.1)
    x = torch.arange(8.0, dtype=torch.double).reshape(2, 4)
    with hawser.autograd.context(node) as context:
        context.backward([module(x).square().sum()])
        distributed.step(context)
    here(x).square().sum().backward()
    local.step()
    torch.testing.assert_close(values(node, [weight])[0], here.weight.detach())
    with pytest.raises(OwnerErrors, match="2D"):
        DistributedOptimizer(torch.optim.Muon, module.remote_parameters())


def test_sparse_gradients(node: hawser.Node) -> None:
    for kind in (torch.optim.SparseAdam, torch.optim.SGD):
        table = node.remote("left", torch.nn.Parameter, torch.ones(5, 2))
        here = torch.nn.Parameter(torch.ones(5, 2))
        distributed = DistributedOptimizer(kind, [table], lr=0.1)
        local: Any = kind([here], lr=0.1)
        rows = torch.tensor([0, 3, 3])
        with hawser.autograd.context(node) as context:
            context.backward([node.run("left", training.looked_up, table, rows).square().sum()])
            distributed.step(context.id)
        torch.nn.functional.embedding(rows, here, sparse=True).square().sum().backward()
        local.step()
        assert_same(node, [table], [here])


def test_an_optimizer_that_recomputes_the_loss_is_refused(node: hawser.Node) -> None:
    with pytest.raises(OwnerErrors) as caught:
        DistributedOptimizer(torch.optim.LBFGS, parameters(node))
    assert all(isinstance(error, hawser.Invalid) for error in caught.value.exceptions)
    assert "LBFGS" in str(caught.value)


# --- steps without the interpreter ---

NATIVE: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.3, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.3}),
    (torch.optim.Adam, {"lr": 0.1}),
    (torch.optim.Adam, {"lr": 0.1, "betas": (0.7, 0.8), "eps": 1e-3, "weight_decay": 0.3}),
    (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "maximize": True}),
    (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.3, "amsgrad": True}),
    (torch.optim.Adamax, {"lr": 0.1}),
    (torch.optim.Adamax, {"lr": 0.1, "betas": (0.7, 0.8), "weight_decay": 0.3, "maximize": True}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.3, "maximize": True}),
    (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    (torch.optim.Adadelta, {"lr": 0.1}),
    (torch.optim.Adadelta, {"lr": 0.1, "rho": 0.7, "weight_decay": 0.3, "maximize": True}),
    (torch.optim.RMSprop, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True, "weight_decay": 0.3}),
    (torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.7, "eps": 1e-3, "maximize": True}),
    (torch.optim.Rprop, {"lr": 0.5}),  # large enough to overshoot, so that gradients turn round
    (torch.optim.Rprop, {"lr": 0.1, "etas": (0.3, 1.7), "step_sizes": (0.05, 0.2)}),
    (torch.optim.Rprop, {"lr": 0.1, "maximize": True}),
]


def test_every_class_of_which_torch_has_a_functional_form_steps_natively() -> None:
    from torch.distributed.optim.utils import functional_optim_map

    assert {kind for kind, _ in NATIVE} == set(functional_optim_map)


def makes_state_in_its_first_step(kind: type[torch.optim.Optimizer], options: Any) -> bool:
    has_none = kind is torch.optim.SGD and "momentum" not in options
    return not has_none and kind is not torch.optim.Adagrad


def assert_same_bits(
    node: hawser.Node,
    refs: Sequence[Any],
    distributed: DistributedOptimizer,
    tensors: Sequence[torch.Tensor],
    local: torch.optim.Optimizer,
) -> None:
    for there, here in zip(values(node, refs), tensors, strict=True):
        assert torch.equal(there, here.detach())
    expected, got = local.state_dict(), distributed.state_dict()
    assert got["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        assert got["state"][number].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(got["state"][number][name], value) if value is not None else True


@pytest.mark.parametrize(("kind", "options"), NATIVE)
def test_native_steps_agree_with_torch_to_the_last_bit(
    node: hawser.Node, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    refs, tensors = parameters(node), local_parameters()
    distributed = DistributedOptimizer(kind, refs, **options)
    local: Any = kind(tensors, **options)
    before = node.run("left", training.steps_by_torch)
    for count in range(6):
        step(node, refs, distributed)
        local_step(tensors, local)
        if count == 3:
            distributed.param_groups[0]["lr"] = local.param_groups[0]["lr"] = 0.07
    assert_same_bits(node, refs, distributed, tensors, local)
    by_torch = 1 if makes_state_in_its_first_step(kind, options) else 0
    assert node.run("left", training.steps_by_torch) - before == by_torch


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("maximize", [False, True])
def test_native_steps_with_sparse_gradients_agree_with_torch_to_the_last_bit(
    node: hawser.Node, kind: Any, maximize: bool
) -> None:
    table = node.remote("left", training.table, 5, 3)
    here = training.table(5, 3)
    distributed = DistributedOptimizer(kind, [table], lr=0.1, maximize=maximize)
    local = kind([here], lr=0.1, maximize=maximize)
    before = node.run("left", training.steps_by_torch)
    for rows in ([0, 3, 3], [3, 1], [0, 0, 0], []):
        index = torch.tensor(rows, dtype=torch.long)
        with hawser.autograd.context(node) as context:
            context.backward([node.run("left", training.looked_up, table, index).square().sum()])
            distributed.step(context)
        local.zero_grad()
        torch.nn.functional.embedding(index, here, sparse=True).square().sum().backward()
        local.step()
    assert_same_bits(node, [table], distributed, [here], local)
    assert node.run("left", training.steps_by_torch) == before


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_steps_with_a_scheduler_are_native(node: hawser.Node, kind: Any) -> None:
    refs, tensors = parameters(node), local_parameters()
    distributed, local = DistributedOptimizer(kind, refs, lr=0.2), kind(tensors, lr=0.2)
    there, here = (lr_scheduler.ExponentialLR(each, 0.9) for each in (distributed, local))
    before = node.run("left", training.steps_by_torch)
    for _ in range(5):
        step(node, refs, distributed)
        local_step(tensors, local)
        there.step()
        here.step()
    assert_same_bits(node, refs, distributed, tensors, local)
    by_torch = 1 if makes_state_in_its_first_step(kind, {}) else 0
    assert node.run("left", training.steps_by_torch) - before == by_torch


def test_options_that_torch_computes_with_in_another_way_come_and_go(node: hawser.Node) -> None:
    ref, here = node.remote("left", training.parameter, 1.0, 2.0), training.parameter(1.0, 2.0)
    distributed = DistributedOptimizer(torch.optim.SGD, [ref], lr=0.1)
    local = torch.optim.SGD([here], lr=0.1)
    before = node.run("left", training.steps_by_torch)
    for foreach in (None, True, None, None):
        for each in (distributed, local):
            each.param_groups[0]["foreach"] = foreach
        step(node, [ref], distributed)
        local_step([here], local)
    assert_same_bits(node, [ref], distributed, [here], local)
    assert node.run("left", training.steps_by_torch) - before == 1


def test_an_option_that_is_no_number_is_refused_by_torch(node: hawser.Node) -> None:
    ref, here = node.remote("left", training.parameter, 1.0, 2.0), training.parameter(1.0, 2.0)
    distributed = DistributedOptimizer(torch.optim.SGD, [ref], lr=0.1)
    distributed.param_groups[0]["lr"] = "fast"
    with pytest.raises(OwnerErrors, match="left: TypeError"):
        step(node, [ref], distributed)
    distributed.param_groups[0]["lr"] = 0.1
    step(node, [ref], distributed)
    local_step([here], torch.optim.SGD([here], lr=0.1))
    assert_same(node, [ref], [here])


def test_native_steps_take_no_interpreter_lock(node: hawser.Node) -> None:
    ref = node.remote("left", training.parameter, 1.0, 2.0)
    optimizer = DistributedOptimizer(torch.optim.Adam, [ref], lr=0.1)
    step(node, [ref], optimizer)
    with hawser.autograd.context(node) as context:
        part = node.run("left", training.scaled_by, ref, torch.tensor(1.5))
        context.backward([part.square().sum()])
        node.run("left", scripted.count_gil_waits, True)
        before = node.run("left", scripted.gil_waits, "left")
        again = node.run("left", scripted.gil_waits, "left")
        for _ in range(10):
            optimizer.step(context)
        assert node.run("left", scripted.gil_waits, "left") - again <= again - before
        node.run("left", scripted.count_gil_waits, False)


def test_hooks_of_all_optimizers_are_called(node: hawser.Node) -> None:
    ref = node.remote("left", training.parameter, 1.0)
    optimizer = DistributedOptimizer(torch.optim.SGD, [ref], lr=0.1)
    step(node, [ref], optimizer)
    node.run("left", training.count_steps_by_hook, True)
    for _ in range(3):
        step(node, [ref], optimizer)
    node.run("left", training.count_steps_by_hook, False)
    step(node, [ref], optimizer)
    assert node.run("left", training.steps_by_hook) == 3


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_what_torch_computes_in_another_way_is_left_to_it(node: hawser.Node, way: str) -> None:
    ref, here = node.remote("left", training.parameter, 1.0, 2.0), training.parameter(1.0, 2.0)
    options: dict[str, Any] = {"lr": 0.1, way: True}
    distributed = DistributedOptimizer(torch.optim.SGD, [ref], **options)
    local = torch.optim.SGD([here], **options)
    before = node.run("left", training.steps_by_torch)
    for _ in range(3):
        step(node, [ref], distributed)
        local_step([here], local)
    assert_same(node, [ref], [here])
    assert node.run("left", training.steps_by_torch) - before == 3


# --- gradients ---


def test_grad_of_the_parameters_is_neither_read_nor_written(node: hawser.Node) -> None:
    ref = node.remote("left", training.parameter, 1.0, 1.0)
    mine = torch.tensor([100.0, 100.0], dtype=torch.double)
    node.run("left", training.set_gradient, ref, mine)
    optimizer = DistributedOptimizer(torch.optim.SGD, [ref], lr=0.5)
    step(node, [ref], optimizer)
    torch.testing.assert_close(node.run("left", training.gradient_of, ref), mine)
    after = values(node, [ref])
    torch.testing.assert_close(after[0], torch.full((2,), 1 - 0.5 * 2 * 1.5**2).double())
    with hawser.autograd.context(node) as context:  # without gradients: nothing is applied again
        optimizer.step(context)
    torch.testing.assert_close(values(node, [ref]), after)


def test_owners_that_take_no_part_and_parameters_without_gradients(node: hawser.Node) -> None:
    refs = parameters(node)
    frozen = node.remote("left", training.parameter, 7.0, requires_grad=False)
    optimizer = DistributedOptimizer(torch.optim.Adam, [*refs, frozen], lr=0.5)
    before = values(node, [*refs, frozen])
    step(node, refs[:1], optimizer)
    after = values(node, [*refs, frozen])
    assert not torch.equal(before[0], after[0])
    torch.testing.assert_close(before[1:], after[1:])


def test_a_parameter_may_be_given_other_memory(node: hawser.Node) -> None:
    ref, here = node.remote("left", training.parameter, 1.0, 2.0), training.parameter(1.0, 2.0)
    distributed = DistributedOptimizer(torch.optim.Adam, [ref], lr=0.1)
    local = torch.optim.Adam([here], lr=0.1)
    for _ in range(3):
        step(node, [ref], distributed)
        local_step([here], local)
        node.run("left", training.give_new_memory, ref)
    assert_same(node, [ref], [here])


def test_a_graph_that_was_recorded_before_the_step_notices_it(node: hawser.Node) -> None:
    ref = node.ref(training.parameter(2.0))
    optimizer = DistributedOptimizer(torch.optim.SGD, [ref], lr=0.1)
    earlier = ref.local_value().square().sum()
    step(node, [ref], optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        earlier.backward()


def test_a_context_that_is_not_there(node: hawser.Node) -> None:
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters(node), lr=0.1)
    with pytest.raises(hawser.Invalid, match="Could not find autograd context with id: 12345"):
        optimizer.step(12345)
    with hawser.autograd.context(node) as context:
        pass
    with pytest.raises(hawser.Invalid, match="Could not find autograd context"):
        optimizer.step(context)


# --- what a step costs ---


def test_a_step_is_one_call_to_each_owner(node: hawser.Node) -> None:
    refs = parameters(node)
    optimizer = DistributedOptimizer(torch.optim.SGD, [*refs, *parameters(node)], lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    calls: list[str] = []
    start = optimizer._start

    def counted(name: str, function: Any, args: tuple[Any, ...]) -> Any:
        calls.append(f"{name}.{function.name}")
        return start(name, function, args)

    optimizer._start = counted  # type: ignore[method-assign]
    for _ in range(2):
        step(node, refs, optimizer)
    scheduler.step()
    step(node, refs, optimizer)
    once, changed = ["left.step", "right.step"], ["left.change_and_step", "right.change_and_step"]
    # The scheduler has set an option before the first one. The own share takes no call.
    assert calls == changed + once + changed


def test_owners_step_at_the_same_time(node: hawser.Node) -> None:
    refs = parameters(node)[:2]
    step(node, refs, DistributedOptimizer(training.Meeting, refs, lr=0.1))


def test_optimizers_do_not_wait_for_each_other(node: hawser.Node) -> None:
    """Each waits inside its step for the other, on the same node."""
    both = [node.remote("left", training.parameter, 1.0) for _ in range(2)]
    optimizers = [DistributedOptimizer(training.Waiting, [ref], lr=0.1) for ref in both]
    assert steps_together(node, both, optimizers, patience=20) == 2


def test_optimizers_take_turns_if_they_share_a_parameter(node: hawser.Node) -> None:
    shared, one, two = (node.remote("left", training.parameter, 1.0) for _ in range(3))
    sets = [[one, shared], [shared, two]]
    optimizers = [DistributedOptimizer(training.Waiting, refs, lr=0.1) for refs in sets]
    assert steps_together(node, [shared, shared], optimizers, patience=0.2) == 1


def steps_together(
    node: hawser.Node,
    refs: Sequence[Any],
    optimizers: Sequence[DistributedOptimizer],
    patience: float,
) -> int:
    node.run("left", training.expect_together, len(optimizers), patience)
    threads = [
        threading.Thread(target=step, args=(node, [ref], optimizer))
        for ref, optimizer in zip(refs, optimizers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return node.run("left", training.most_together)


# --- options ---


def schedulers() -> list[Any]:
    return [
        lambda o: lr_scheduler.StepLR(o, 2, 0.1),
        lambda o: lr_scheduler.ExponentialLR(o, 0.5),
        lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=10),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o), lr_scheduler.LinearLR(o)], [2]
        ),
    ]


@pytest.mark.parametrize("schedule", schedulers())
def test_schedulers(node: hawser.Node, schedule: Any) -> None:
    refs, tensors = parameters(node), local_parameters()
    options = {"lr": 0.2, "momentum": 0.9}
    distributed = DistributedOptimizer(torch.optim.SGD, refs, **options)
    local = torch.optim.SGD(tensors, **options)  # type: ignore[arg-type]
    there, here = schedule(distributed), schedule(local)
    for _ in range(5):
        step(node, refs, distributed)
        local_step(tensors, local)
        there.step()
        here.step()
        assert there.get_last_lr() == here.get_last_lr()
    assert_same(node, refs, tensors)


def test_a_plateau_and_a_rate_that_is_a_tensor(node: hawser.Node) -> None:
    refs, tensors = parameters(node), local_parameters()
    distributed = DistributedOptimizer(torch.optim.Adam, refs, lr=torch.tensor(0.2), foreach=False)
    local = torch.optim.Adam(tensors, lr=torch.tensor(0.2), foreach=False)
    there = lr_scheduler.ReduceLROnPlateau(distributed, patience=0)
    here = lr_scheduler.ReduceLROnPlateau(local, patience=0)
    for _ in range(4):
        step(node, refs, distributed)
        local_step(tensors, local)
        there.step(1.0)
        here.step(1.0)
    assert_same(node, refs, tensors)


def test_groups_have_options_of_their_own(node: hawser.Node) -> None:
    refs, tensors = parameters(node) + parameters(node), local_parameters() + local_parameters()
    optimizers: list[Any] = [
        DistributedOptimizer(
            torch.optim.SGD,
            [{"params": refs[:4], "lr": 0.2}, {"params": refs[4], "momentum": 0.5}],
            lr=0.01,
        ),
        torch.optim.SGD(
            [{"params": tensors[:4], "lr": 0.2}, {"params": tensors[4], "momentum": 0.5}], lr=0.01
        ),
    ]
    for count in range(4):
        step(node, refs, optimizers[0])
        local_step(tensors, optimizers[1])
        optimizers[0].param_groups[1]["weight_decay"] = 0.1
        optimizers[1].param_groups[1]["weight_decay"] = 0.1
        if count == 1:
            optimizers[0].add_param_group({"params": refs[5], "lr": 0.3})
            optimizers[1].add_param_group({"params": tensors[5], "lr": 0.3})
    assert_same(node, refs, tensors)
    groups = [[{**group, "params": None} for group in o.param_groups] for o in optimizers]
    assert groups[0] == groups[1]
    assert optimizers[0].defaults == optimizers[1].defaults
    assert "lr: 0.2" in repr(optimizers[0])


def test_hooks(node: hawser.Node) -> None:
    refs = parameters(node)
    optimizer = DistributedOptimizer(torch.optim.SGD, refs, lr=0.1)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
    step(node, refs, optimizer)
    state = optimizer.state_dict()
    assert state["more"] == 1
    optimizer.load_state_dict(state)
    assert seen == ["before", "after", "load"]


# --- state ---


def test_state_is_that_of_one_optimizer(node: hawser.Node) -> None:
    """Saved, loaded into one optimizer, and by way of that into one with other owners."""
    refs, tensors = parameters(node), local_parameters()
    groups = [{"params": [refs[2], refs[0]], "lr": 0.3}, {"params": [refs[1]]}]
    local_groups = [{"params": [tensors[2], tensors[0]], "lr": 0.3}, {"params": [tensors[1]]}]
    distributed = DistributedOptimizer(torch.optim.Adam, groups, lr=0.1)
    local = torch.optim.Adam(local_groups, lr=0.1)
    for _ in range(2):
        step(node, refs, distributed)
        local_step(tensors, local)
    saved, expected = distributed.state_dict(), local.state_dict()
    torch.testing.assert_close(saved, expected)

    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    local.load_state_dict(torch.load(file))
    moved = [node.ref(torch.nn.Parameter(value)) for value in values(node, refs)]
    moved[0] = node.remote("right", torch.nn.Parameter, values(node, refs[:1])[0])
    groups = [{"params": [moved[2], moved[0]], "lr": 9.0}, {"params": [moved[1]]}]
    other = DistributedOptimizer(torch.optim.Adam, groups, lr=0.5)
    other.load_state_dict(copy.deepcopy(local.state_dict()))
    assert [group["lr"] for group in other.param_groups] == [0.3, 0.1]
    for _ in range(2):
        step(node, refs, distributed)
        step(node, moved, other)
        local_step(tensors, local)
    assert_same(node, refs, tensors)
    assert_same(node, moved, tensors)


def test_a_rate_that_no_step_has_seen_yet_is_saved(node: hawser.Node) -> None:
    refs = parameters(node)
    optimizer = DistributedOptimizer(training.Counting, refs, lr=0.1)
    step(node, refs, optimizer)
    step(node, refs, optimizer)
    optimizer.param_groups[0]["lr"] = 0.7
    (group,) = optimizer.state_dict()["param_groups"]
    assert group["lr"] == 0.7
    assert group["count"] == 2  # which the owners count themselves
    step(node, refs, optimizer)
    (group,) = optimizer.state_dict()["param_groups"]
    assert (group["lr"], group["count"]) == (0.7, 3)


def test_state_of_other_parameters_is_refused(node: hawser.Node) -> None:
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters(node), lr=0.1)
    other = torch.optim.SGD(local_parameters()[:2], lr=0.1)
    with pytest.raises(ValueError, match=r"groups of the sizes \[2\], but these are \[3\]"):
        optimizer.load_state_dict(other.state_dict())


# --- errors ---


def test_all_that_failed_is_reported_by_owner(node: hawser.Node) -> None:
    refs = parameters(node)
    optimizer = DistributedOptimizer(training.Failing, refs, lr=0.1)
    before = values(node, refs)
    for owner in ("left", "right"):
        node.run(owner, training.fail_steps, True)
    try:
        with pytest.raises(OwnerErrors) as caught:
            step(node, refs, optimizer)
        error = caught.value
        assert isinstance(error, hawser.Error)
        assert set(error.by_owner) == {"left", "right"}
        assert all(isinstance(each, KeyError) for each in error.exceptions)
        assert "step of the optimizer failed on 2 of 3 owners" in str(error)
        assert "left: KeyError: 'no step'" in str(error)
        after = values(node, refs)
        torch.testing.assert_close(after[:2], before[:2])
        assert not torch.equal(after[2], before[2])
        assert error.subgroup(KeyError).by_owner == error.by_owner  # type: ignore[union-attr]
        with pytest.raises(
            OwnerErrors, match=r"(?s)left: ValueError: not added.*right: ValueError"
        ):
            DistributedOptimizer(training.Failing, refs, lr=0.1)
    finally:
        for owner in ("left", "right"):
            node.run(owner, training.fail_steps, False)
    step(node, refs, optimizer)  # it is as usable as before
    assert not torch.equal(values(node, refs)[0], before[0])


def test_options_that_were_lost_with_a_failed_step_are_sent_again(node: hawser.Node) -> None:
    ref, here = node.remote("left", training.parameter, 1.0), training.parameter(1.0)
    optimizer = DistributedOptimizer(training.Failing, [ref], lr=0.1)
    local = torch.optim.SGD([here], lr=0.02)
    optimizer.param_groups[0]["lr"] = 0.02
    node.run("left", training.fail_steps, True)
    with pytest.raises(OwnerErrors):
        step(node, [ref], optimizer)
    node.run("left", training.fail_steps, False)
    step(node, [ref], optimizer)
    local_step([here], local)
    assert_same(node, [ref], [here])
    optimizer.param_groups[0]["lr"] = 0.5  # which the owner hears of in a step that fails
    node.run("left", training.fail_steps, True)
    with pytest.raises(OwnerErrors):
        step(node, [ref], optimizer)
    node.run("left", training.fail_steps, False)
    optimizer.param_groups[0]["lr"] = 0.02
    step(node, [ref], optimizer)
    local_step([here], local)
    assert_same(node, [ref], [here])


def test_a_state_that_an_owner_refuses(node: hawser.Node) -> None:
    refs = parameters(node)
    optimizer = DistributedOptimizer(torch.optim.Adam, refs, lr=0.1)
    step(node, refs, optimizer)
    state = optimizer.state_dict()
    broken = {**state, "state": {0: "no state"}}
    with pytest.raises(OwnerErrors) as caught:
        optimizer.load_state_dict(broken)
    assert list(caught.value.by_owner) == ["left"]
    optimizer.load_state_dict(state)
    step(node, refs, optimizer)
    torch.testing.assert_close(optimizer.state_dict()["param_groups"], state["param_groups"])


def test_a_group_that_one_owner_refuses_is_added_nowhere(node: hawser.Node) -> None:
    refs, more = parameters(node), parameters(node)
    optimizer = DistributedOptimizer(training.Failing, refs, lr=0.1)
    node.run("left", training.fail_steps, True)
    with pytest.raises(OwnerErrors, match="left: ValueError: not added"):
        optimizer.add_param_group({"params": more})
    node.run("left", training.fail_steps, False)
    before = values(node, more)
    step(node, refs + more, optimizer)
    torch.testing.assert_close(values(node, more), before)
    optimizer.add_param_group({"params": more})
    step(node, refs + more, optimizer)
    assert all(not torch.equal(a, b) for a, b in zip(values(node, more), before, strict=True))


def test_a_lost_owner_is_named_and_the_others_step() -> None:
    with peers.world("left", "right") as node:
        refs = [node.remote(name, training.parameter, 1.0) for name in ("right", "left")]
        optimizer = DistributedOptimizer(torch.optim.SGD, refs, lr=0.1)
        node.notify("right", peers.leave_process)
        with pytest.raises(hawser.PeerLost):
            while True:
                node.run("right", peers.nothing)
        lost_before_it_was_asked = False
        while not lost_before_it_was_asked:
            before = values(node, refs[1:])
            with pytest.raises(OwnerErrors) as caught:
                step_without(node, refs, optimizer)
            assert list(caught.value.by_owner) == ["right"]
            error = caught.value.by_owner["right"]
            assert isinstance(error, hawser.PeerLost)
            assert not torch.equal(values(node, refs[1:])[0], before[0])
            lost_before_it_was_asked = "and the value with it" in str(error)


def step_without(node: hawser.Node, refs: Sequence[Any], optimizer: DistributedOptimizer) -> None:
    with hawser.autograd.context(node) as context:
        part = node.run(refs[1].owner_name(), training.scaled_by, refs[1], torch.tensor(1.5))
        context.backward([loss_of([part])])
        optimizer.step(context)


def test_what_is_no_parameter_is_refused(node: hawser.Node) -> None:
    ref = node.remote("left", training.parameter, 1.0)
    sgd = torch.optim.SGD
    with pytest.raises(ValueError, match="empty parameter list"):
        DistributedOptimizer(sgd, [], lr=0.1)
    with pytest.raises(TypeError, match="by reference"):
        DistributedOptimizer(sgd, [torch.ones(1)], lr=0.1)
    with pytest.raises(TypeError, match="iterable of references"):
        DistributedOptimizer(sgd, ref, lr=0.1)
    with pytest.raises(OwnerErrors, match="more than once"):
        DistributedOptimizer(sgd, [ref, ref], lr=0.1)
    with pytest.raises(OwnerErrors, match="a reference is to a Counter"):
        DistributedOptimizer(sgd, [node.remote("left", peers.Counter, 1)], lr=0.1)
    with pytest.raises(OwnerErrors, match="non-leaf"):
        DistributedOptimizer(sgd, [node.ref(training.parameter(1.0) * 2)], lr=0.1)
    optimizer = DistributedOptimizer(sgd, [ref], lr=0.1)
    with pytest.raises(OwnerErrors, match="more than once"):
        optimizer.add_param_group({"params": [ref]})
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.copy(optimizer)
