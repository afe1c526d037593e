"""The agent: this process's node, seen as torch.distributed.rpc sees it; and the current one."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from .. import _native, errors, node, references
from ._errors import describe_exception, make_exception
from ._stock import WorkerInfo
from ._transports import choose_transports
from .constants import DEFAULT_RPC_TIMEOUT_SEC

logger = logging.getLogger(__name__)

DeviceMap = dict[torch.device, torch.device]

# Nested calls hold a thread each while they wait, so a program that asks for few threads still gets
# as many as nesting may need.
_THREADS_FOR_NESTING = 128

_KIND_KEY = "rpcIsStaticGroup"


class RpcAgent:
    """What the functions of hawser.rpc ask of an agent."""

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def shutdown(self) -> None:
        raise NotImplementedError

    def get_worker_info(self, workerName: str | int | None = None) -> WorkerInfo:
        raise NotImplementedError

    def get_worker_infos(self) -> list[WorkerInfo]:
        raise NotImplementedError

    def _get_device_map(self, dst: WorkerInfo) -> DeviceMap:
        raise NotImplementedError

    def get_debug_info(self) -> dict[str, str]:
        raise NotImplementedError

    def get_metrics(self) -> dict[str, str]:
        return self.get_debug_info()


class TensorPipeAgent(RpcAgent):
    """An agent over a hawser node. The name is that of the class it stands in for.

    Thread-safe. With a world size the members are known once it is constructed: that waits for all
    of them, at least a minute or as long as a call may take.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        worker_id: int,
        world_size: int | None,
        opts: _native._TensorPipeRpcBackendOptionsBase,
        reverse_device_maps: dict[str, DeviceMap],
        devices: list[torch.device],
    ) -> None:
        self._me = WorkerInfo(name, worker_id)  # checks the name
        if world_size and not 0 <= worker_id < world_size:
            raise ValueError(f"rank {worker_id} is not in a world of {world_size}")
        transports = choose_transports(opts._transports, opts._channels)
        claim_kind(store, static=bool(world_size))
        self._store = store
        self._static = bool(world_size)
        self._options = opts
        self._call_timeout = opts.rpc_timeout
        self._reverse_device_maps = dict(reverse_device_maps)
        self._devices = list(devices)
        self._members_lock = threading.Lock()
        self._members: dict[str, WorkerInfo] = {name: self._me}  # replaced, never changed
        self._node = _native.Node(
            name=name,
            store=store,
            rank=worker_id,
            world_size=world_size or None,
            transports=transports,
            call_timeout=opts.rpc_timeout,
            max_threads=max(_THREADS_FOR_NESTING, opts.num_worker_threads),
            describe_exception=functools.partial(describe_exception, self._me),
            make_exception=make_exception,
            faults=self._faults(),
        )
        if self._static:
            try:
                self._members = self._learn_members()
            except BaseException:
                self._node.close(0)
                raise

    def _faults(self) -> dict[str, Any] | None:
        """What is to go wrong with messages, for agents that test how programs cope."""
        return None

    def _learn_members(self) -> dict[str, WorkerInfo]:
        members: dict[str, WorkerInfo] = {}
        for rank, name in sorted(self._node.members(self._patience()).items()):
            if name in members:
                raise RuntimeError(
                    f"RPC worker name {name} is not unique. Workers {members[name].id} and {rank} "
                    "share the same name."
                )
            members[name] = WorkerInfo(name, rank)
        return members

    def _patience(self) -> float:
        """How long to wait for the other members while starting."""
        limit = self._options.rpc_timeout
        return max(limit, DEFAULT_RPC_TIMEOUT_SEC) if limit else 0

    # --- who is there ---

    def get_worker_info(
        self, workerName: str | int | None = None, id: int | None = None
    ) -> WorkerInfo:
        """By name or by rank, which may also stand in the place of the name; else of this one."""
        key = workerName if id is None else id
        if key is None:
            return self._me
        if isinstance(key, int):
            for info in self._members.values():
                if info.id == key:
                    return info
            raise RuntimeError(f"{self._address()} could not find destination id {key}")
        return self._members.get(key) or self._look_up(key)

    def _look_up(self, name: str) -> WorkerInfo:
        """A member that this agent has not been told of."""
        rank = None if self._static else self._node.look_up(name)
        if rank is None:
            raise RuntimeError(f"{self._address()} could not find destination name {name}")
        info = WorkerInfo(name, rank)
        with self._members_lock:
            self._members = {**self._members, name: info}
        return info

    def _address(self) -> str:
        return f"name:{self._me.name},rank:{self._me.id}"

    def get_worker_infos(self) -> list[WorkerInfo]:
        return sorted(self._members.values(), key=lambda info: info.id)

    def _name_of(self, to: Any) -> str:
        """The name of a destination. A string that is known takes no other way than this one."""
        if isinstance(to, WorkerInfo):
            to = to.name
        elif not isinstance(to, (str, int)):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        return self.get_worker_info(to).name

    def _update_group_membership(
        self,
        worker_info: WorkerInfo,
        my_devices: list[torch.device],
        reverse_device_map: dict[str, DeviceMap],
        is_join: bool,
    ) -> None:
        """`worker_info` has joined or is leaving; the rest is what that changes for this agent."""
        with self._members_lock:
            members = dict(self._members)
            if is_join:
                members[worker_info.name] = worker_info
                self._reverse_device_maps.update(reverse_device_map)
                self._devices = list(my_devices)
            elif worker_info.name != self._me.name:
                members.pop(worker_info.name, None)
                self._reverse_device_maps.pop(worker_info.name, None)
            self._members = members

    @property
    def is_static_group(self) -> bool:
        return self._static

    @property
    def store(self) -> Store:
        return self._store

    # --- devices ---

    def _get_device_map(self, dst: WorkerInfo) -> DeviceMap:
        return dict(self._options.device_maps.get(dst.name, {}))

    def _get_backend_options(self) -> _native._TensorPipeRpcBackendOptionsBase:
        return self._options

    # --- time limits ---

    def _get_rpc_timeout(self) -> float:
        return self._call_timeout

    def _set_rpc_timeout(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a timeout cannot be negative: {seconds}")
        self._node.set_call_timeout(seconds)
        self._call_timeout = seconds

    # --- the end ---

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Waits for this agent's own calls; with `shutdown`, until no member calls any other."""
        if shutdown:
            self._node.depart(timeout)
            return
        deadline = time.monotonic() + timeout if timeout else None
        while any(not call["incoming"] for call in self._node.inspect()["calls"]):
            if deadline is not None and time.monotonic() > deadline:
                raise errors.Timeout(f"calls of {self._me.name} still run after {timeout} s")
            time.sleep(0.005)

    def sync(self) -> None:
        """Nothing to do: what has been sent is on its way."""

    def shutdown(self) -> None:
        self._node.close()

    # --- inspection ---

    def get_debug_info(self) -> dict[str, str]:
        seen = self._node.inspect()
        crew = seen["crew"]
        incoming = sum(1 for call in seen["calls"] if call["incoming"])
        outgoing = len(seen["calls"]) - incoming
        # Served, but neither on a thread nor in line for one: their futures are not settled yet.
        asynchronous = max(0, incoming - crew["running"] - crew["queued"])
        size = self._options.num_worker_threads
        info = {
            "agent.thread_pool_size": size,
            "agent.num_idle_threads": max(0, size - crew["running"]),
            "agent.client_active_calls": outgoing,
            "agent.server_active_calls": incoming,
            "agent.server_active_async_calls": asynchronous,
        }
        if _gil_profiling:
            info["agent.gil_average_wait_time_us"] = seen.get("gil_wait_us", 0.0)
        return {key: str(value) for key, value in info.items()}


def claim_kind(store: Store, static: bool) -> None:
    """Raises when the world in that store is of the other kind."""
    wanted = "true" if static else "false"
    if store.compare_set(_KIND_KEY, "", wanted).decode() != wanted:
        raise RuntimeError(
            "RPC group mixes statically and dynamically initialized members which is not supported. "
        )


# --- the current agent ---
#
# One per process: what the functions of hawser.rpc act on. Read without a lock.

_current: Any = None
_inherited: list[Any] = []  # agents of the process that this one was forked from; never destroyed
_gil_profiling = False


def _is_current_rpc_agent_set() -> bool:
    return _current is not None


def _get_current_rpc_agent() -> Any:
    if _current is None:
        raise RuntimeError(
            "Current RPC agent is not set! Did you initialize the RPC framework "
            "(e.g. by calling `rpc.init_rpc`)?"
        )
    return _current


def _set_and_start_rpc_agent(agent: Any) -> None:
    if _current is not None and _current is not agent:
        raise RuntimeError("Current RPC agent is set!")
    if _current is None:
        _set_current(agent)


def _reset_current_rpc_agent() -> None:
    _set_current(None)


def _set_current(agent: Any) -> None:
    global _current
    before, native = (getattr(each, "_node", None) for each in (_current, agent))
    _current = agent
    references.choose_node(native)
    if before is not None:
        node.retire(before)
    if native is not None:
        node.introduce(native)


def get_rpc_timeout() -> float:
    """The time that a call has when it is given none, in seconds; 0 for no limit."""
    return _get_current_rpc_agent()._get_rpc_timeout()


def _set_rpc_timeout(rpcTimeoutSeconds: float) -> None:
    """Changes that for later calls."""
    _get_current_rpc_agent()._set_rpc_timeout(rpcTimeoutSeconds)


def enable_gil_profiling(flag: bool) -> None:
    """Adds the time that serving threads wait for the interpreter lock to the debug info."""
    global _gil_profiling
    _gil_profiling = bool(flag)
    _native.measure_gil_waits(_gil_profiling)


def _forget_parents_agent() -> None:
    if _current is not None:
        _inherited.append(_current)
        _reset_current_rpc_agent()


with contextlib.suppress(AttributeError):
    os.register_at_fork(after_in_child=_forget_parents_agent)
