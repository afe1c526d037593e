"""The user's side of a distributed optimizer."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from hawser import _native, autograd
from hawser._native import Future, Method, PyRRef
from hawser.errors import Error, Invalid
from hawser.optim.share import Group, make_share

__all__ = ["DistributedOptimizer", "OwnerErrors"]

Options = dict[str, Any]
_Calls = dict[str, tuple[str, tuple[Any, ...]]]  # owner -> method of its share, arguments


class OwnerErrors(ExceptionGroup[Exception], Error):
    """What went wrong on the owners of parameters: all of it. `by_owner` says where."""

    by_owner: dict[str, Exception]

    @classmethod
    def of(cls, what: str, by_owner: dict[str, Exception], asked: int) -> OwnerErrors:
        lines = [f"{what} failed on {len(by_owner)} of {asked} owners:"]
        for owner, error in by_owner.items():
            said = str(error).replace("\n", "\n    ")
            lines.append(f"  {owner}: {type(error).__name__}: {said}")
        made = cls("\n".join(lines), list(by_owner.values()))
        made.by_owner = by_owner
        return made

    def __str__(self) -> str:
        return self.message

    def derive(self, excs: Sequence[Exception], /) -> OwnerErrors:  # type: ignore[override]
        part = OwnerErrors(self.message, excs)
        kept = {id(error) for error in excs}
        part.by_owner = {owner: e for owner, e in self.by_owner.items() if id(e) in kept}
        return part


@dataclass
class _Owner:
    """What is known of a share. The lists are by the share's own groups."""

    share: PyRRef
    groups: list[int] = field(default_factory=list)  # their numbers in the whole
    places: list[list[int]] = field(default_factory=list)  # of its parameters in those
    told: list[Options] = field(default_factory=list)  # what the share has

    def is_told(self, changes: Sequence[Options]) -> None:
        """From now until `was_told` it is not known what the share has of these."""
        for told, change in zip(self.told, changes, strict=True):
            for name in list(change):
                told.pop(name, None)

    def was_told(self, changes: Sequence[Options]) -> None:
        for told, change in zip(self.told, changes, strict=True):
            if change:
                told.update(copy.deepcopy(change))


class _Attached(Options):
    """A group that the owners know, with all its options."""


class DistributedOptimizer(torch.optim.Optimizer):
    """Optimizes parameters where they live, with gradients of a distributed autograd context.

        optimizer = DistributedOptimizer(torch.optim.Adam, module.remote_parameters(), lr=1e-3)
        with hawser.autograd.context() as context:
            context.backward([loss])
            optimizer.step(context)

    `params` are references to parameters, or groups of them: `{"params": [...], "lr": 0.1}`. Every
    owner has an `optimizer_class` for its own ones, made with `args` and `kwargs`.

    `param_groups` holds references and options. An option that is changed, by a scheduler of
    `torch.optim.lr_scheduler` or by hand, reaches the owners with the next step. What fails on owners
    is raised as `OwnerErrors`; the others have done their part.

    One thread at a time may use an optimizer. Optimizers do not wait for each other, unless they have
    parameters in common: then their steps take turns on the owner.
    """

    def __init__(self, optimizer_class: Any, params: Iterable[Any], *args: Any, **kwargs: Any):
        self._make = (optimizer_class, args, kwargs)
        self._owners: dict[str, _Owner] = {}
        self._node: _native.Node | None = None
        self.param_groups = []
        self.defaults = {}
        attached = self._attach(_groups(params))
        super().__init__(attached, self.defaults)

    # --- stepping ---

    def step(self, context: autograd.Context | int) -> None:  # type: ignore[override]
        """Has every owner apply the gradients that it has in the context; all at the same time.

        Parameters without a gradient there stay as they are. `.grad` is not involved.
        """
        id = context.id if isinstance(context, autograd.Context) else context
        if not self._connected().is_in_context(id):
            raise Invalid(f"Could not find autograd context with id: {id}")
        changes = {name: self._changes(owner) for name, owner in self._owners.items()}
        for name, owner in self._owners.items():
            owner.is_told(changes[name])
        calls: _Calls = {
            name: ("change_and_step", (id, change)) if any(change) else ("step", (id,))
            for name, change in changes.items()
        }
        self._ask("step", calls, here=self._connected().name)
        for name, owner in self._owners.items():
            owner.was_told(changes[name])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: gradients belong to a context, and every context begins without."""

    def add_param_group(self, param_group: Options) -> None:
        """Adds a group of references; their owners may be new ones."""
        if not isinstance(param_group, _Attached):
            if not isinstance(param_group, dict):
                raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
            (param_group,) = self._attach([param_group])
        self.param_groups.append(dict(param_group))

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """The state of all owners, as one optimizer with all these parameters would have it.

        So it can be loaded by an optimizer whose parameters are spread differently, or not at all.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        numbers = self._numbers()
        state: dict[int, Any] = {}
        for name, part in self._ask("state", dict.fromkeys(self._owners, ("state", ()))).items():
            owner = self._owners[name]
            self._check_state(name, part)
            self._learn(owner, part["param_groups"])
            for group, (number, places) in zip(
                part["param_groups"], zip(owner.groups, owner.places, strict=True), strict=True
            ):
                for mine, place in zip(group["params"], places, strict=True):
                    if mine in part["state"]:
                        state[numbers[number][place]] = part["state"][mine]
        groups = [
            {**_options(group), "params": numbers[number]}
            for number, group in enumerate(self.param_groups)
        ]
        whole: dict[str, Any] = {"state": dict(sorted(state.items())), "param_groups": groups}
        for after in self._optimizer_state_dict_post_hooks.values():
            whole = after(self, whole) or whole
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives every owner its part of a state_dict, of this class or of a torch optimizer."""
        whole = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            whole = before(self, whole) or whole
        groups = whole["param_groups"]
        mine = [len(group["params"]) for group in self.param_groups]
        loaded = [len(group["params"]) for group in groups]
        if mine != loaded:
            raise ValueError(
                f"the loaded state is of parameter groups of the sizes {loaded}, but these are {mine}"
            )
        options = [_options(group) for group in groups]
        parts = {name: _part(owner, whole, options) for name, owner in self._owners.items()}
        for owner in self._owners.values():
            owner.is_told(owner.told)
        self._ask("load", {name: ("load", (part,)) for name, part in parts.items()})
        for group, new in zip(self.param_groups, options, strict=True):
            references = group["params"]
            group.clear()
            group.update({**copy.deepcopy(new), "params": references})
        for owner in self._owners.values():
            owner.was_told([options[number] for number in owner.groups])
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DistributedOptimizer cannot be pickled or copied: make another from the references, "
            "and load the state_dict of this one"
        )

    # --- the owners ---

    def _attach(self, groups: Sequence[Options]) -> list[_Attached]:
        """Has the owners of the parameters take them on, in one round trip; all of it or nothing."""
        shares: dict[str, list[tuple[int, list[int], Group]]] = {}
        wholes = []
        for number, group in enumerate(groups, start=len(self.param_groups)):
            refs = _references(group)
            wholes.append(_Attached({**_options(group), "params": refs}))
            spread: dict[str, list[int]] = {}
            for place, ref in enumerate(refs):
                self._claim(ref)
                spread.setdefault(ref.owner_name(), []).append(place)
            for name, places in spread.items():
                part = ([refs[place] for place in places], _options(group))
                shares.setdefault(name, []).append((number, places, part))
        for name, described in self._introduce(shares).items():
            owner = self._owners[name]
            for (number, places, _), options in zip(shares[name], described, strict=True):
                owner.groups.append(number)
                owner.places.append(places)
                owner.told.append(copy.deepcopy(options))
                wholes[number - len(self.param_groups)].update(options)
        return wholes

    def _introduce(
        self, shares: dict[str, list[tuple[int, list[int], Group]]]
    ) -> dict[str, list[Options]]:
        """The options of the new groups of each owner."""
        optimizer_class, args, kwargs = self._make
        before = {name: len(owner.groups) for name, owner in self._owners.items()}
        calls: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        for name, parts in shares.items():
            groups = [group for _, _, group in parts]
            if name in before:
                calls[name] = (Method(self._owners[name].share, "add_groups"), (groups,))
            else:
                calls[name] = (make_share, (optimizer_class, groups, args, kwargs))
        replies, failures = self._call(calls)
        if failures:
            undo = {
                name: (Method(self._owners[name].share, "keep_groups"), (before[name],))
                for name in replies
                if name in before
            }
            _, not_undone = self._call(undo)
            failures = _in_order(calls, failures | not_undone)
            raise self._error("making the optimizer", failures, len(calls))
        described = {}
        for name, reply in replies.items():
            if name in before:
                described[name] = reply
            else:
                share, described[name], self.defaults = reply
                self._owners[name] = _Owner(share)
        return described

    def _ask(self, what: str, calls: _Calls, here: str | None = None) -> dict[str, Any]:
        """Calls methods of the shares of these owners, all at the same time. The share of `here`, if
        it is one of them, is used by this thread, with copies of the arguments."""
        asked = dict(calls)
        meanwhile = {}
        if here is not None and here in asked:
            method, args = asked.pop(here)
            share = self._owners[here].share.local_value()
            meanwhile[here] = functools.partial(getattr(share, method), *copy.deepcopy(args))
        replies, failures = self._call(
            {
                name: (Method(self._owners[name].share, method), args)
                for name, (method, args) in asked.items()
            },
            meanwhile,
        )
        if failures:
            raise self._error(f"{what} of the optimizer", _in_order(calls, failures), len(calls))
        return replies

    def _error(self, what: str, failures: dict[str, Exception], asked: int) -> Exception:
        return OwnerErrors.of(what, failures, asked)

    def _call(
        self,
        calls: dict[str, tuple[Any, tuple[Any, ...]]],
        meanwhile: Mapping[str, Callable[[], Any]] = MappingProxyType({}),
    ) -> tuple[dict[str, Any], dict[str, Exception]]:
        """Calls a function on each of these nodes, at the same time, and does here what is to be done
        meanwhile: results, and failures."""
        started: dict[str, Future] = {}
        replies: dict[str, Any] = {}
        failures: dict[str, Exception] = {}
        with autograd._inside(None):  # this is no part of the computation that is being recorded
            for name, (function, args) in calls.items():
                try:
                    started[name] = self._start(name, function, args)
                except Exception as error:  # a node that is known to be lost, for instance
                    failures[name] = error
            for name, work in meanwhile.items():
                try:
                    replies[name] = work()
                except Exception as error:
                    failures[name] = error
        for name, future in started.items():
            try:
                replies[name] = future.wait()
            except Exception as error:
                failures[name] = error
        return replies, failures

    def _start(self, name: str, function: Any, args: tuple[Any, ...]) -> Future:
        return self._connected().start(name, function, args)

    def _connected(self) -> _native.Node:
        assert self._node is not None  # there is at least one parameter
        return self._node

    def _claim(self, ref: PyRRef) -> None:
        if self._node is None:
            self._node = ref._node
        elif self._node is not ref._node:
            raise Invalid("the references to the parameters belong to different nodes")

    # --- options ---

    def _changes(self, owner: _Owner) -> list[Options]:
        """What the owner does not have yet, by its groups."""
        return [
            {
                name: value
                for name, value in _options(self.param_groups[number]).items()
                if name not in told or not (value is told[name] or _same(value, told[name]))
            }
            for number, told in zip(owner.groups, owner.told, strict=True)
        ]

    def _learn(self, owner: _Owner, groups: Sequence[Options]) -> None:
        """Takes over options that the owner's optimizer has changed itself and that are not about to
        be changed from here."""
        changes = self._changes(owner)
        for number, told, pending, group in zip(
            owner.groups, owner.told, changes, groups, strict=True
        ):
            for name, value in _options(group).items():
                told[name] = copy.deepcopy(value)
                if name not in pending:
                    self.param_groups[number][name] = value

    def _numbers(self) -> list[list[int]]:
        """Of the parameters of each group, in the whole."""
        count = itertools.count()
        return [[next(count) for _ in group["params"]] for group in self.param_groups]

    def _check_state(self, name: str, part: dict[str, Any]) -> None:
        if set(part) != {"state", "param_groups"} or not all(type(k) is int for k in part["state"]):
            raise Invalid(
                f"the optimizer on {name!r} has state that belongs to no parameter; such state cannot "
                "be gathered from several owners"
            )


def _groups(params: Iterable[Any]) -> list[Options]:
    if isinstance(params, (PyRRef, torch.Tensor)):
        raise TypeError(f"params must be an iterable of references or dicts, not a {type(params)}")
    given = list(params)
    if not given:
        raise ValueError("optimizer got an empty parameter list")
    return given if isinstance(given[0], dict) else [{"params": given}]


def _references(group: Options) -> list[PyRRef]:
    given = group["params"]
    refs = [given] if isinstance(given, PyRRef) else list(given)
    for ref in refs:
        if not isinstance(ref, PyRRef):
            raise TypeError(f"parameters are given by reference (hawser.RRef), not as {type(ref)}")
    if not refs:
        raise ValueError("optimizer got an empty parameter list")
    return refs


def _options(group: Options) -> Options:
    return {name: group[name] for name in group if name not in ("params", "param_names")}


def _part(owner: _Owner, whole: dict[str, Any], options: Sequence[Options]) -> dict[str, Any]:
    """The part of a state_dict that belongs to one owner."""
    count = itertools.count()
    part: dict[str, Any] = {"state": {}, "param_groups": []}
    for number, places in zip(owner.groups, owner.places, strict=True):
        saved = whole["param_groups"][number]["params"]
        mine = [next(count) for _ in places]
        part["param_groups"].append({**options[number], "params": mine})
        for index, place in zip(mine, places, strict=True):
            if saved[place] in whole["state"]:
                part["state"][index] = whole["state"][saved[place]]
    return part


def _in_order(calls: Iterable[str], failures: dict[str, Exception]) -> dict[str, Exception]:
    return {name: failures[name] for name in calls if name in failures}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
