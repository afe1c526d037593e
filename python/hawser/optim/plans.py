"""Which steps of an optimizer can be taken without the interpreter, and what they do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

# Options, and for each parameter: itself, the tensor to change, the optimizer's state of it.
Group = tuple[dict[str, Any], list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]]
Plan = tuple[str, str, list[Group]]  # for profilers; the rule's name; groups

# Subclasses are not meant: they may do anything.
_RULES: dict[type, str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.Adamax: "adamax",
    torch.optim.Adagrad: "adagrad",
    torch.optim.Adadelta: "adadelta",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.Rprop: "rprop",
}
# With one of these, torch computes it in another way.
_OTHER_WAYS = ("foreach", "fused", "capturable", "differentiable")


def rule_of(optimizer: torch.optim.Optimizer) -> str | None:
    """What the optimizer does with its present options; None if that takes torch."""
    rule = _RULES.get(type(optimizer))
    return rule if rule and all(_is_plain(group) for group in optimizer.param_groups) else None


def plan_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Sequence[torch.Tensor]]
) -> Plan | None:
    """What `optimizer.step()` does with the gradients of these parameters, which the optimizer knows
    under tensors of its own. It is true until options change, or state appears."""
    rule = rule_of(optimizer)
    if rule is None:
        return None
    groups = []
    for leaves, group in zip(parameters, optimizer.param_groups, strict=True):
        targets = group["params"]
        slots = [
            (leaf, target, optimizer.state.get(target, {}))
            for leaf, target in zip(leaves, targets, strict=True)
        ]
        groups.append((group, slots))
    return f"Optimizer.step#{type(optimizer).__name__}.step", rule, groups


def _is_plain(group: dict[str, Any]) -> bool:
    if any(group.get(way) for way in _OTHER_WAYS):
        return False
    options = (value for name, value in group.items() if name != "params")
    flat = itertools.chain(*(v if isinstance(v, (list, tuple)) else (v,) for v in options))
    return not any(isinstance(value, torch.Tensor) for value in flat)
