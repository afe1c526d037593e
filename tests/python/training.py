"""Modules and optimizers that tests make on other nodes, and what they ask of them there."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import hawser


def linear(inputs: int, outputs: int, seed: int) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(inputs, outputs).double()


def parameter(*values: float, requires_grad: bool = True) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.double), requires_grad)


def table(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, rows * width).reshape(rows, width))


def value_of(ref: Any) -> torch.Tensor:
    return ref.local_value().detach().clone()


def gradient_of(ref: Any) -> torch.Tensor | None:
    return ref.local_value().grad


def set_gradient(ref: Any, gradient: torch.Tensor | None) -> None:
    ref.local_value().grad = gradient


def give_new_memory(ref: Any) -> None:
    ref.local_value().data = ref.local_value().detach().clone()


def scaled_by(ref: Any, x: torch.Tensor) -> torch.Tensor:
    return ref.local_value() * x


def looked_up(ref: Any, rows: torch.Tensor) -> torch.Tensor:
    return nn.functional.embedding(rows, ref.local_value(), sparse=True)


# --- who makes the steps of an optimizer ---


class _Steps:
    by_torch = 0
    by_hook = 0
    hook: Any = None


def _counted(step: Any) -> Any:
    @functools.wraps(step)
    def counting(*args: Any, **kwargs: Any) -> Any:
        _Steps.by_torch += 1
        return step(*args, **kwargs)

    return counting


for _kind in (  # AdamW is an Adam
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
):
    _kind.step = _counted(_kind.step)  # type: ignore[method-assign]


def steps_by_torch() -> int:
    return _Steps.by_torch


def count_steps_by_hook(enabled: bool) -> None:
    def count(*_: Any) -> None:
        _Steps.by_hook += 1

    if enabled:
        _Steps.hook = register_optimizer_step_post_hook(count)
    else:
        _Steps.hook.remove()


def steps_by_hook() -> int:
    return _Steps.by_hook


class Failing(torch.optim.SGD):
    """Fails while it is told to, on the node that it is told on."""

    fails = False

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)

    def add_param_group(self, param_group: Any) -> None:
        super().add_param_group(param_group)
        if Failing.fails:
            raise ValueError("not added")

    def step(self, closure: Any = None) -> Any:
        if Failing.fails:
            raise KeyError("no step")
        return super().step(closure)


def fail_steps(fail: bool) -> None:
    Failing.fails = fail


class Counting(torch.optim.SGD):
    """Keeps a count of its own in the options of its groups."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group["count"] = 0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] += 1
        return super().step(closure)


class Waiting(torch.optim.SGD):
    """Waits inside its step for as many others as it is told to."""

    together: threading.Barrier
    patience = 0.0
    inside = 0
    most_inside = 0

    def step(self, closure: Any = None) -> Any:
        Waiting.inside += 1
        Waiting.most_inside = max(Waiting.most_inside, Waiting.inside)
        try:
            Waiting.together.wait(Waiting.patience)
        except threading.BrokenBarrierError:
            pass
        finally:
            Waiting.inside -= 1
        return super().step(closure)


def expect_together(parties: int, patience: float) -> None:
    Waiting.patience = patience
    Waiting.together = threading.Barrier(parties)
    Waiting.most_inside = 0


def most_together() -> int:
    return Waiting.most_inside


class Meeting(torch.optim.SGD):
    """Ends its step when the one on the other node, has begun."""

    begun = threading.Event()

    def step(self, closure: Any = None) -> Any:
        node = hawser.default_node()
        Meeting.begun.set()
        other = {"left": "right", "right": "left"}[node.name]
        if not node.run(other, meeting_has_begun, 20.0):
            raise TimeoutError(f"the step on {other} has not begun")
        return super().step(closure)


def meeting_has_begun(patience: float) -> bool:
    return Meeting.begun.wait(patience)


class Block(nn.Module):
    """Two layers, and a switch that shows the mode."""

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: torch.Tensor, offset: float = 0.0) -> tuple[torch.Tensor, bool]:
        return self.inner(x) * self.scale + offset, self.training


def no_module(*_: Any) -> str:
    return "no module"


def raise_when_made(text: str) -> nn.Module:
    raise LookupError(text)


def mode_of(ref: Any) -> bool:
    return ref.local_value().training


def call_remote_module(module: Any, x: torch.Tensor) -> Any:
    return module(x)


def describe_remote_module(module: Any) -> tuple[str, str, str, bool, Any]:
    return (
        type(module).__name__,
        module.on,
        module.device,
        module.training,
        getattr(module, "label", None),
    )


class NothingToSend(nn.Module):
    """Cannot be pickled, so it never leaves its node."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
