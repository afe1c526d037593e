"""The owner's side of a distributed optimizer."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hawser._native import OptimizerShare, PyRRef
from hawser.errors import Invalid
from hawser.optim.plans import plan_of, rule_of

# Parameters by reference, and the options of that group.
Group = tuple[Sequence[PyRRef], dict[str, Any]]


class Share(OptimizerShare):
    """What a distributed optimizer is on one owner: a torch optimizer for the parameters there.

    It does not work on the parameters themselves but on a twin of each: another tensor with the same
    memory and version, whose `.grad` is nobody else's. So `.grad` of the parameters is neither read
    nor written, and a program may use it meanwhile.

    Thread-safe. Shares take turns if they have a parameter in common, and only then: `with self` is
    exclusive.
    """

    def __init__(
        self,
        optimizer_class: Any,
        groups: Sequence[Group],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        super().__init__()
        self._node = groups[0][0][0]._node
        self._parameters: list[list[torch.Tensor]] = []
        for refs, _ in groups:
            self._parameters.append(self._new_tensors(refs))
        made = [
            {**options, "params": [_twin(parameter) for parameter in parameters]}
            for parameters, (_, options) in zip(self._parameters, groups, strict=True)
        ]
        given = [list(group["params"]) for group in made]
        plain = len(made) == 1 and not groups[0][1]  # which every class understands
        self._optimizer = optimizer_class(made[0]["params"] if plain else made, *args, **kwargs)
        _check(self._optimizer, given)
        with self._changing():
            self._take_turns()

    def describe(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The options of each group, and the defaults."""
        groups = [_options(group) for group in self._optimizer.param_groups]
        return groups, dict(self._optimizer.defaults)

    def add_groups(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """All of them or none; returns their options."""
        with self._changing():
            before = len(self._parameters)
            try:
                for refs, options in groups:
                    parameters = self._new_tensors(refs)
                    twins = [_twin(parameter) for parameter in parameters]
                    self._optimizer.add_param_group({**options, "params": twins})
                    self._parameters.append(parameters)
            except BaseException:
                self._keep_groups(before)
                raise
            self._take_turns()
            return [_options(group) for group in self._optimizer.param_groups[before:]]

    def keep_groups(self, count: int) -> None:
        """Undoes what `add_groups` has added since there were so many."""
        with self._changing():
            self._keep_groups(count)
            self._take_turns()

    def step(self, context: int) -> None:
        """Applies the gradients that this node has in the context. Parameters without one stay as
        they are. Where there is a plan for it, the native half does it, and answers calls of this
        method before they come here."""
        if not self.step_natively(self._node, context):
            with self._changing():
                self._step(context)

    def change_and_step(self, context: int, changes: Sequence[dict[str, Any]]) -> None:
        """Takes over new values of options, by group, and makes a step."""
        with self:
            for group, change in zip(self._optimizer.param_groups, changes, strict=True):
                group.update(change)
            if rule_of(self._optimizer) is None:
                self.follow_nothing()
            elif not self.follow_options(self._optimizer.param_groups):
                self._make_plan()
        self.step(context)

    def state(self) -> dict[str, Any]:
        """The optimizer's state_dict, as it is between two steps."""
        with self:
            return copy.deepcopy(self._optimizer.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        with self._changing():
            self._optimizer.load_state_dict(state)

    # --- inside ---

    def _take_turns(self) -> None:
        """With the other shares that have one of these parameters."""
        self.take_turns(list(itertools.chain(*self._parameters)))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Exclusively; at the end the native half is told what a step does from now on."""
        with self:
            try:
                yield
            finally:
                self._make_plan()

    def _make_plan(self) -> None:
        plan = plan_of(self._optimizer, self._parameters)
        if plan is None:
            self.follow_nothing()
        else:
            self.follow(*plan)

    def _step(self, context: int) -> None:
        self._follow_parameters()
        taking_part = self._node.is_in_context(context)
        gradients = self._node.gradients(context) if taking_part else {}
        try:
            for parameter, twin in self._pairs():
                twin.grad = gradients.get(parameter)
            self._optimizer.step()
        finally:
            for _, twin in self._pairs():
                twin.grad = None

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for parameters, group in zip(self._parameters, self._optimizer.param_groups, strict=True):
            yield from zip(parameters, group["params"], strict=True)

    def _new_tensors(self, refs: Sequence[PyRRef]) -> list[torch.Tensor]:
        """What they refer to. Refuses what torch's optimizers refuse, to which twins are all new."""
        parameters = [ref.local_value() for ref in refs]
        known = {id(parameter) for parameter in itertools.chain(*self._parameters)}
        for parameter in parameters:
            if not isinstance(parameter, torch.Tensor):
                kind = type(parameter).__name__
                raise TypeError(f"what is optimized must be a tensor; a reference is to a {kind}")
            if not parameter.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if parameter.layout is not torch.strided:
                raise ValueError(f"can't optimize a tensor whose layout is {parameter.layout}")
            if id(parameter) in known:
                raise ValueError("some parameters appear more than once among the parameters")
            known.add(id(parameter))
        return parameters

    def _keep_groups(self, count: int) -> None:
        del self._parameters[count:]
        del self._optimizer.param_groups[count:]

    def _follow_parameters(self) -> None:
        """Makes new twins of parameters that were given other memory (`module.to`, `.data = `)."""
        state = self._optimizer.state
        for parameters, group in zip(self._parameters, self._optimizer.param_groups, strict=True):
            twins = group["params"]
            for place, (parameter, twin) in enumerate(zip(parameters, twins, strict=True)):
                if parameter.device == twin.device and parameter.is_set_to(twin):
                    continue
                twins[place] = _twin(parameter)
                if twin in state:
                    state[twins[place]] = state.pop(twin)


def make_share(
    optimizer_class: Any, groups: Sequence[Group], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[PyRRef, list[dict[str, Any]], dict[str, Any]]:
    """A reference to a new share, and what `describe` says of it. Called on the owner."""
    share = Share(optimizer_class, groups, args, kwargs)
    return (PyRRef(share, _node=share._node), *share.describe())


# --- parameters and their twins ---


def _twin(parameter: torch.Tensor) -> torch.Tensor:
    alias = parameter.detach()  # shares memory and version counter
    if isinstance(parameter, torch.nn.Parameter):
        return torch.nn.Parameter(alias, parameter.requires_grad)
    return alias.requires_grad_(parameter.requires_grad)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _check(optimizer: Any, given: list[list[torch.Tensor]]) -> None:
    """That the optimizer is one that can be driven from elsewhere."""
    kind = type(optimizer).__name__
    has = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    if has != [[id(parameter) for parameter in group] for group in given]:
        raise Invalid(f"{kind} does not keep the parameter groups that it is given")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise Invalid(
            f"{kind} computes the loss anew within a step, so it cannot work on several nodes"
        )
