"""The kinds of agents, by name, and how those that come with hawser start."""

from __future__ import annotations

import collections
import contextlib
import enum
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from . import api
from . import constants as rpc_constants
from ._agent import DeviceMap, TensorPipeAgent
from ._stock import WorkerInfo
from ._utils import (
    _group_membership_management,
    _read_roster,
    _update_group_membership,
    _write_roster,
)
from .options import TensorPipeRpcBackendOptions

__all__ = [
    "backend_registered",
    "register_backend",
    "construct_rpc_backend_options",
    "init_backend",
    "BackendValue",
    "BackendType",
]

BackendValue = collections.namedtuple(
    "BackendValue", ["construct_rpc_backend_options_handler", "init_backend_handler"]
)

_backend_type_doc = """The agents that init_rpc can start. Grows with register_backend."""


def _backend_type_repr(self: enum.Enum) -> str:
    return f"BackendType.{self.name}"


class BackendType(enum.Enum):
    _value_: BackendValue
    __doc__ = _backend_type_doc
    __repr__ = _backend_type_repr


def backend_registered(backend_name: str) -> bool:
    """Whether there is a kind of agent of that name."""
    return backend_name in BackendType.__members__


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., Any],
    init_backend_handler: Callable[..., Any],
) -> BackendType:
    """Adds a kind of agent and returns its member of BackendType.

    The first handler makes options from (rpc_timeout, init_method, **keywords); the second starts
    an agent from (store, name, rank, world_size, rpc_backend_options) and returns it.
    """
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    value = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    # The enum itself grows, so that whoever has imported it has all members.
    member: Any = object.__new__(BackendType)  # has fields that only enum itself knows
    member._name_ = backend_name
    member._value_ = value
    member._sort_order_ = len(BackendType._member_names_)
    member.__objclass__ = BackendType
    BackendType._member_names_.append(backend_name)
    BackendType._member_map_[backend_name] = member
    BackendType._value2member_map_[value] = member
    type.__setattr__(BackendType, backend_name, member)
    return member


def construct_rpc_backend_options(
    backend: BackendType,
    rpc_timeout: float = rpc_constants.DEFAULT_RPC_TIMEOUT_SEC,
    init_method: str = rpc_constants.DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Options for that kind of agent."""
    return backend.value.construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)


def init_backend(backend: BackendType, *args: Any, **kwargs: Any) -> Any:
    """Starts an agent of that kind."""
    return backend.value.init_backend_handler(*args, **kwargs)


def _init_process_group(store: Store, rank: int, world_size: int) -> Any:
    """A process group over the store. Agents do not need one."""
    group = dist.ProcessGroupGloo(
        store, rank, world_size, rpc_constants.DEFAULT_PROCESS_GROUP_TIMEOUT
    )
    if rank not in (-1, group.rank()):
        raise RuntimeError(f"rank argument {rank} doesn't match pg rank {group.rank()}")
    if world_size not in (-1, group.size()):
        raise RuntimeError(f"world_size argument {world_size} doesn't match pg size {group.size()}")
    return group


# --- device maps ---


def _tensorpipe_validate_devices(devices: Iterable[torch.device], device_count: int) -> bool:
    return all(
        device.type == "cpu" or (device.type == "cuda" and 0 <= device.index < device_count)
        for device in devices
    )


def _validate_device_maps(
    all_names: Collection[str],
    all_device_counts: Mapping[str, int],
    all_device_maps: Mapping[str, Mapping[str, DeviceMap]],
    all_devices: Mapping[str, list[torch.device]],
    is_static_group: bool = True,
) -> None:
    """Raises ValueError, naming the node, if a device list or map cannot be meant."""
    for node in all_names:
        devices = all_devices[node]
        shown = f"\ndevices = {devices}"
        if len(set(devices)) != len(devices):
            raise ValueError(f"Node {node} has duplicated devices{shown}")
        if not _tensorpipe_validate_devices(devices, all_device_counts[node]):
            raise ValueError(
                f"Node {node} has devices with invalid indices{shown}"
                f"\ndevice count = {all_device_counts[node]}"
            )
    for node in all_names:
        maps = all_device_maps[node]
        # In a dynamic world the target may not be there yet.
        if is_static_group and not maps.keys() <= set(all_names):
            raise ValueError(
                f"Node {node} has invalid target node names in its device maps"
                f"\ndevice maps = {sorted(maps)}\nnode names = {sorted(all_names)}"
            )
        for target, map_ in maps.items():
            _validate_device_map(node, target, map_, all_device_counts, all_devices)


def _validate_device_map(
    node: str,
    target: str,
    map_: DeviceMap,
    counts: Mapping[str, int],
    devices: Mapping[str, list[torch.device]],
) -> None:
    where = f"in its device map for {target}\ndevice map = {map_}"
    if len(set(map_.values())) != len(map_):
        raise ValueError(f"Node {node} has duplicated target devices {where}")
    for side, owner, used in (("source", node, map_.keys()), ("target", target, map_.values())):
        if devices.get(owner):
            if not set(used) <= set(devices[owner]):
                raise ValueError(
                    f"Node {node} has unexpected {side} devices {where}\ndevices = {devices[owner]}"
                )
        elif owner in counts and not _tensorpipe_validate_devices(used, counts[owner]):
            raise ValueError(
                f"Node {node} has {side} devices with invalid indices {where}"
                f"\ndevice count = {counts[owner]}"
            )


def _create_reverse_mapping(
    my_name: str,
    all_names: Iterable[str],
    all_device_maps: Mapping[str, Mapping[str, DeviceMap]],
) -> dict[str, DeviceMap]:
    """For each node that maps devices to this one: the way back."""
    return {
        node: {there: here for here, there in all_device_maps[node][my_name].items()}
        for node in all_names
        if my_name in all_device_maps[node]
    }


def _create_device_list(
    my_devices: list[torch.device],
    my_device_maps: Mapping[str, DeviceMap],
    reverse_device_maps: Mapping[str, DeviceMap],
) -> list[torch.device]:
    """The devices that were given, or else all that occur in a map, without the CPU."""
    devices = set(my_devices)
    if not devices:
        for map_ in (*my_device_maps.values(), *reverse_device_maps.values()):
            devices.update(map_)
        devices.discard(torch.device("cpu"))
    return sorted(devices, key=lambda device: device.index or 0)


def _get_device_infos() -> tuple[int, dict[str, DeviceMap], list[torch.device]]:
    """What this worker's agent was told about devices; called by others."""
    options = api._get_current_rpc_agent()._get_backend_options()
    if torch.cuda.is_available() and options.devices:
        torch.cuda.init()
    return torch.cuda.device_count(), options.device_maps, options.devices


def _write_devices(options: Any) -> dict[str, Any]:
    """The same as plain text, for a store."""
    return {
        "count": torch.cuda.device_count(),
        "maps": {
            to: {str(here): str(there) for here, there in map_.items()}
            for to, map_ in options.device_maps.items()
        },
        "devices": [str(device) for device in options.devices],
    }


class _AllDevices:
    """What every member has told about its devices."""

    def __init__(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        self.names = sorted(told)
        self.counts = {name: told[name]["count"] for name in told}
        self.maps: dict[str, dict[str, DeviceMap]] = {
            name: {
                to: {torch.device(here): torch.device(there) for here, there in map_.items()}
                for to, map_ in told[name]["maps"].items()
            }
            for name in told
        }
        self.lists = {name: [torch.device(d) for d in told[name]["devices"]] for name in told}

    def validate(self, is_static_group: bool) -> None:
        _validate_device_maps(self.names, self.counts, self.maps, self.lists, is_static_group)
        for name in self.names:
            used = set(self.lists[name])
            for map_ in self.maps[name].values():
                used.update(map_.keys(), map_.values())
            others = sorted(str(device) for device in used if device.type != "cpu")
            if others:
                raise ValueError(
                    f"Node {name} wants tensors to be sent from and to {', '.join(others)}, and only "
                    "those on the CPU can be sent yet. Move tensors there before sending them, and "
                    "set no `devices` and no `device_maps` with others"
                )

    def reverse_maps(self, name: str) -> dict[str, DeviceMap]:
        return _create_reverse_mapping(name, self.names, self.maps)

    def devices_of(self, name: str) -> list[torch.device]:
        return _create_device_list(self.lists[name], self.maps[name], self.reverse_maps(name))


def _tensorpipe_exchange_and_check_all_device_maps(
    my_name: str,
    my_device_count: int,
    my_device_maps: dict[str, DeviceMap],
    my_devices: list[torch.device],
    group: Any,
) -> tuple[dict[str, DeviceMap], list[torch.device]]:
    """The exchange over a process group, for agents that have one."""
    gathered: list[Any] = [None] * group.size()
    dist.all_gather_object(
        gathered, (my_name, my_device_count, my_device_maps, my_devices), group=group
    )
    names = [name for name, *_ in gathered]
    maps = {name: map_ for name, _, map_, _ in gathered}
    _validate_device_maps(
        names,
        {name: count for name, count, _, _ in gathered},
        maps,
        {name: devices for name, _, _, devices in gathered},
    )
    reverse = _create_reverse_mapping(my_name, names, maps)
    return reverse, _create_device_list(my_devices, my_device_maps, reverse)


# --- worlds of fixed size ---

_Agent = TypeVar("_Agent", bound=TensorPipeAgent)


def _start_static(
    agent_class: type[_Agent],
    store: Store,
    name: str,
    rank: int,
    world_size: int,
    options: Any,
) -> _Agent:
    """Returns when the agents of all members are current, so that any of them can be called."""
    WorkerInfo(name, rank)  # raises for a bad name before anybody sees it
    if options.device_maps or options.devices:
        store.set(f"devices/{rank}", json.dumps(_write_devices(options)))
        store.add("devices/told", 1)
    agent = agent_class(store, name, rank, world_size, options, {}, [])
    try:
        _exchange_devices(agent, store)
        api._init_rpc_states(agent)
        _await_all_current(agent, store, world_size)
    except BaseException:
        agent._node.close(0)
        if api._is_current_rpc_agent_set() and api._get_current_rpc_agent() is agent:
            api._reset_current_rpc_agent()
        raise
    return agent


def _exchange_devices(agent: TensorPipeAgent, store: Store) -> None:
    # All members have joined, and told before that; usually nobody has devices to tell of.
    if store.add("devices/told", 0) == 0:
        return
    silent = {"count": torch.cuda.device_count(), "maps": {}, "devices": []}
    told = {}
    for info in agent.get_worker_infos():
        key = f"devices/{info.id}"
        told[info.name] = json.loads(store.get(key)) if store.check([key]) else silent
    everybody = _AllDevices(told)
    everybody.validate(is_static_group=True)
    me = agent.get_worker_info()
    agent._update_group_membership(
        me, everybody.devices_of(me.name), everybody.reverse_maps(me.name), True
    )


def _await_all_current(agent: TensorPipeAgent, store: Store, world_size: int) -> None:
    marks = [f"current/{rank}" for rank in range(world_size)]
    mine = marks[agent.get_worker_info().id]
    store.set(mine, "yes")
    patience = agent._patience()
    limit = timedelta(seconds=patience) if patience else rpc_constants.DEFAULT_PROCESS_GROUP_TIMEOUT
    try:
        store.wait(marks, limit)
    except RuntimeError as error:
        missing = [rank for rank, mark in enumerate(marks) if not store.check([mark])]
        store.delete_key(mine)  # a second attempt finds the same keys
        raise RuntimeError(
            f"ranks {missing} were not ready after {patience:.0f} seconds"
        ) from error


# --- worlds that grow and shrink ---


def _start_dynamic(
    agent_class: type[_Agent], store: Store, name: str, rank: int, options: Any
) -> _Agent:
    """Joins the members that are there."""
    WorkerInfo(name, rank)
    with _group_membership_management(store, name, True):
        roster = _read_roster(store)
        for other, entry in roster.items():
            # The same name and rank is a worker that has died without leaving, and is back.
            if (other == name) != (entry["id"] == rank):
                same = "id" if entry["id"] == rank else "name"
                raise RuntimeError(
                    f"RPC worker {same} {rank if same == 'id' else name} is not unique. "
                    f"Worker {other} with id {entry['id']} is a member already."
                )
        agent = agent_class(store, name, rank, None, options, {}, [])
        try:
            for other, entry in roster.items():
                if other != name:
                    agent._update_group_membership(WorkerInfo(other, entry["id"]), [], {}, True)
            api._init_rpc_states(agent)
            roster[name] = {"id": rank, **_write_devices(options)}
            _set_devices_and_reverse_device_map(agent, roster)
            _write_roster(store, roster)
        except BaseException:
            if api._is_current_rpc_agent_set() and api._get_current_rpc_agent() is agent:
                api.shutdown(graceful=False)
            else:
                agent.shutdown()
            raise
    return agent


def _set_devices_and_reverse_device_map(
    agent: TensorPipeAgent, roster: dict[str, dict[str, Any]] | None = None
) -> None:
    """Tells all members, this one too, that it has joined. Drops from the roster who is lost."""
    if roster is None:
        roster = _read_roster(agent.store)
    everybody = _AllDevices(roster)
    everybody.validate(is_static_group=False)
    me = agent.get_worker_info()
    told = {}
    for name in everybody.names:
        reverse = everybody.reverse_maps(name)
        if name != me.name:  # the others know the rest already
            reverse = {me.name: reverse[me.name]} if me.name in reverse else {}
        told[name] = api.rpc_async(
            name,
            _update_group_membership,
            args=(me, everybody.devices_of(name), reverse, True),
        )
    for name, future in told.items():
        try:
            future.wait()
        except ConnectionError as error:
            api.logger.warning("%s is gone and no longer a member: %s", name, error)
            roster.pop(name)
            agent._update_group_membership(WorkerInfo(name, 0), [], {}, False)


# --- the agent that comes with hawser ---


def _tensorpipe_construct_rpc_backend_options_handler(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int = rpc_constants.DEFAULT_NUM_WORKER_THREADS,
    _transports: list[str] | None = None,
    _channels: list[str] | None = None,
    **kwargs: Any,
) -> TensorPipeRpcBackendOptions:
    return TensorPipeRpcBackendOptions(
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        num_worker_threads=num_worker_threads,
        _transports=_transports,
        _channels=_channels,
        **{key: kwargs[key] for key in ("device_maps", "devices") if key in kwargs},
    )


def _check_arguments(store: Any, options: Any, options_class: type) -> None:
    if not isinstance(store, dist.Store):
        raise TypeError(f"`store` must be a c10d::Store. {store}")
    if not isinstance(options, options_class):
        raise TypeError(f"`rpc_backend_options` must be a `{options_class.__name__}`. {options}")


def _tensorpipe_init_backend_handler(
    store: Store, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
) -> TensorPipeAgent:
    _check_arguments(store, rpc_backend_options, TensorPipeRpcBackendOptions)
    if world_size:
        return _start_static(TensorPipeAgent, store, name, rank, world_size, rpc_backend_options)
    return _start_dynamic(TensorPipeAgent, store, name, rank, rpc_backend_options)


with contextlib.suppress(RuntimeError):  # the module is being reloaded
    register_backend(
        "TENSORPIPE",
        _tensorpipe_construct_rpc_backend_options_handler,
        _tensorpipe_init_backend_handler,
    )
