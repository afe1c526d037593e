"""Calls, the collectives built from them, and the end.

Times are in seconds. Everywhere -1 stands for the agent's default and 0 for no limit; other negative
times raise ValueError.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast

import torch
from torch.futures import Future

from .. import errors
from . import _agent, _rref
from ._agent import (
    _get_current_rpc_agent,
    _is_current_rpc_agent_set,
    _reset_current_rpc_agent,
    _set_and_start_rpc_agent,
    get_rpc_timeout,
)
from ._invoke import _invoke_rpc_builtin, _invoke_rpc_python_udf, _invoke_rpc_torchscript
from ._profiling import CallRecord, RemoteProfilerManager
from ._rref import (
    PyRRef,
    RRef,
    _cleanup_python_rpc_handler,
    _delete_all_user_and_unforked_owner_rrefs,
    _destroy_rref_context,
    _invoke_remote_builtin,
    _invoke_remote_python_udf,
    _invoke_remote_torchscript,
)
from ._stock import WorkerInfo
from ._utils import (
    _group_membership_management,
    _read_roster,
    _update_group_membership,
    _write_roster,
)
from .constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from .internal import (
    PythonUDF,
    RPCExecMode,
    _build_rpc_profiling_key,
    _internal_rpc_pickler,
    _SendingPickler,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")
T = TypeVar("T")
GenericWithOneTypeVar = cast(Any, Generic)[T]

# Part of this module's surface, though not used here.
_SURFACE = (
    PythonUDF,
    RemoteProfilerManager,
    _build_rpc_profiling_key,
    _invoke_remote_builtin,
    _invoke_remote_python_udf,
    _invoke_remote_torchscript,
    _invoke_rpc_builtin,
    _invoke_rpc_python_udf,
    _invoke_rpc_torchscript,
)

__all__ = [
    "shutdown",
    "get_worker_info",
    "remote",
    "rpc_sync",
    "rpc_async",
    "RRef",
    "AllGatherStates",
    "method_factory",
    "new_method",
]

logger = logging.getLogger(__name__)

# False: shutdown raises if others still hold references to values of this process.
_ignore_rref_leak = True

_default_pickler: Any = _internal_rpc_pickler


@contextlib.contextmanager
def _use_rpc_pickler(rpc_pickler: Any) -> Iterator[None]:
    """Has everything that this process sends written by `rpc_pickler` meanwhile."""
    global _default_pickler
    _default_pickler = rpc_pickler
    _apply_pickler()
    try:
        yield
    finally:
        _default_pickler = _internal_rpc_pickler
        _apply_pickler()


def _apply_pickler() -> None:
    node = getattr(_agent._current, "_node", None)  # an agent may be somebody else's, without one
    if node is not None:
        usual = _default_pickler is _internal_rpc_pickler
        node.pickler = None if usual else _SendingPickler(_default_pickler)


def _not_initialized() -> NoReturn:
    raise RuntimeError("RPC has not been initialized. Call torch.distributed.rpc.init_rpc first.")


def _require_initialized(func: Callable[_P, _R]) -> Callable[_P, _R]:
    """Has `func` raise RuntimeError while there is no agent."""

    @functools.wraps(func)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not _is_current_rpc_agent_set():
            _not_initialized()
        return func(*args, **kwargs)

    return checked


def _init_rpc_states(agent: Any) -> None:
    """Makes `agent` the current one, unless there is one already."""
    global _ALL_WORKER_NAMES
    _ALL_WORKER_NAMES = {info.name for info in agent.get_worker_infos()}
    with _all_gather_dict_lock:  # what an earlier world has left
        _all_gather_sequence_id.clear()
        _all_gather_sequence_id_to_states.clear()
    if not _is_current_rpc_agent_set():
        _set_and_start_rpc_agent(agent)
        _apply_pickler()


def _members_changed(agent: Any, name: str) -> None:
    """`name` has joined a dynamic world, or is leaving it."""
    global _ALL_WORKER_NAMES
    _ALL_WORKER_NAMES = {info.name for info in agent.get_worker_infos()}
    with _all_gather_dict_lock:
        # Whoever comes back under that name counts from the start.
        for key in [key for key in _all_gather_sequence_id if name in key.split(",")]:
            del _all_gather_sequence_id[key]


# --- calls ---


def rpc_sync(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Any:
    """Runs `func(*args, **kwargs)` on the worker `to` and returns the result.

    `to` is a name, a rank or a WorkerInfo. `func` is a builtin torch operator, a TorchScript
    function, or anything that pickles by reference and can be imported there. What it raises is
    raised here. Thread-safe.
    """
    agent = _agent._current
    if agent is None:
        _not_initialized()
    if not callable(func):
        raise TypeError("function should be callable.")
    if type(to) is not str or to not in agent._members:
        to = agent._name_of(to)
    if timeout <= 0:
        timeout = _special_timeout(timeout)
    return agent._node.call(to, func, args or (), kwargs, timeout)


def rpc_async(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[Any]:
    """As rpc_sync, but returns a future at once.

    Do not write to tensors among the arguments until it is settled: they may not be sent yet.
    """
    agent = _agent._current
    if agent is None:
        _not_initialized()
    if not callable(func):
        raise TypeError("function should be callable.")
    if type(to) is not str or to not in agent._members:
        to = agent._name_of(to)
    if timeout <= 0:
        timeout = _special_timeout(timeout)
    future = agent._node.start(to, func, args or (), kwargs, timeout)
    # getattr() with a default would cost a fifth of the call: it words an error, and drops it.
    collected = _thread_local_var.__dict__.get("future_list")
    if collected is not None:
        collected.append(future)
    return future


def _special_timeout(timeout: float) -> Any:
    """For the node: None for its default, 0 for no limit."""
    if timeout == 0:
        return 0
    if timeout == UNSET_RPC_TIMEOUT:
        return None
    raise ValueError(f"a timeout cannot be negative, except -1 for the default: {timeout}")


def remote(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> PyRRef:
    """As rpc_sync, but the result stays there: returns a reference to it at once."""
    agent = _agent._current
    if agent is None:
        _not_initialized()
    if type(to) is not str or to not in agent._members:
        to = agent._name_of(to)
    if timeout <= 0:
        timeout = _special_timeout(timeout)
    return agent._node.remote(to, func, args or (), kwargs, timeout)


def _invoke_rpc(
    to: Any,
    func: Callable[..., Any],
    rpc_type: RPCExecMode,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    rpc_timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[Any]:
    return rpc_async(to, func, args, kwargs, rpc_timeout)


@_require_initialized
def get_worker_info(worker_name: str | int | None = None) -> WorkerInfo:
    """The WorkerInfo of a name or rank, or of this process."""
    if worker_name is None:
        return _get_current_rpc_agent().get_worker_info()
    return _get_current_rpc_agent().get_worker_info(worker_name)


def _to_worker_info(to: Any) -> WorkerInfo:
    if isinstance(to, WorkerInfo):
        return to
    if isinstance(to, (str, int)):
        return get_worker_info(to)
    raise ValueError(f"Cannot get WorkerInfo from name {to}")


_thread_local_var = threading.local()


@contextlib.contextmanager
def _wait_all() -> Iterator[None]:
    """Waits at the end for every rpc_async that this thread has made inside."""
    outer = getattr(_thread_local_var, "future_list", None)
    futures: list[Future[Any]] = []
    _thread_local_var.future_list = futures
    try:
        yield
    finally:
        try:
            _await_all(futures)
        finally:
            if outer is None:
                del _thread_local_var.future_list
            else:
                _thread_local_var.future_list = outer


def _await_all(futures: list[Any]) -> None:
    """As torch.futures.wait_all, which cannot be interrupted: here that cancels what is not done."""
    try:
        for future in futures:
            future.wait_for(math.inf)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    torch.futures.wait_all(futures)


# --- profiling of calls ---


def _get_should_profile() -> bool:
    """Whether the legacy autograd profiler is on in this thread."""
    legacy = torch._C._profiler.ActiveProfilerType.LEGACY
    return torch.autograd._profiler_enabled() and torch._C._autograd._profiler_type() == legacy


def _enable_rpc_profiler(
    should_profile: bool,
    qualified_name: str | None,
    func: Callable[..., Any],
    rpc_type: RPCExecMode,
    dst_worker_info: WorkerInfo,
) -> contextlib.AbstractContextManager[Any]:
    """For programs that prepare a call themselves; yields what they expect to end its record with."""
    return contextlib.nullcontext(CallRecord() if should_profile else None)


# --- collectives ---
#
# The worker with the smallest name leads: the others call _gather_to_leader there, and it then
# calls _broadcast_to_followers at each of them. Who fails says so to the leader, and the leader to
# everybody: nobody waits for a round that has failed, and nobody gets a part of the objects.

_POLL_S = 0.5  # how often a waiting worker looks whether those it waits for are lost
_LAST_WORDS_S = 2.0  # how long a worker that gives up waits for others to hear why


class AllGatherStates:
    """One round, as one worker sees it."""

    def __init__(self) -> None:
        self.gathered_objects: dict[str, Any] = {}
        self.failures: dict[str, str] = {}  # who gave up, and why
        self.proceed_signal = threading.Event()  # all is there, or all is lost


_ALL_WORKER_NAMES: set[str] = set()
_all_gather_dict_lock = threading.RLock()  # over the three below
# Keys are the sorted names with commas between, which no name contains; values count the rounds.
_all_gather_sequence_id: dict[str, int] = {}
_all_gather_sequence_id_to_states: collections.defaultdict[str, AllGatherStates] = (
    collections.defaultdict(AllGatherStates)
)


def _begin_round(names: Collection[str]) -> tuple[str, AllGatherStates]:
    key = ",".join(sorted(names))
    with _all_gather_dict_lock:
        number = _all_gather_sequence_id.get(key, 0)
        _all_gather_sequence_id[key] = number + 1
        sequence_id = f"{key}#{number}"
        return sequence_id, _all_gather_sequence_id_to_states[sequence_id]


def _round(sequence_id: str) -> AllGatherStates | None:
    """Under the lock. None when this worker is through with that round."""
    key, _, number = sequence_id.rpartition("#")
    past = int(number) < _all_gather_sequence_id.get(key, 0)
    if past and sequence_id not in _all_gather_sequence_id_to_states:
        return None
    return _all_gather_sequence_id_to_states[sequence_id]


def _gather_to_leader(
    sequence_id: str, worker_name: str, obj: Any, worker_names: Collection[str] | None = None
) -> None:
    """Runs on the leader: one worker's object."""
    with _all_gather_dict_lock:
        expected = set(worker_names or _ALL_WORKER_NAMES)
        if worker_name not in expected:
            raise AssertionError(f"{worker_name} is not expected by leader.")
        states = _round(sequence_id)
        if states is None:
            raise RuntimeError(f"_all_gather {sequence_id} is over, {worker_name} came too late")
        if worker_name in states.gathered_objects:
            raise AssertionError(f"{worker_name} reported intent sequence id {sequence_id} twice. ")
        states.gathered_objects[worker_name] = obj
        if expected == states.gathered_objects.keys():
            states.proceed_signal.set()


def _broadcast_to_followers(sequence_id: str, objects_map: dict[str, Any]) -> None:
    """Runs on the followers: everybody's objects."""
    with _all_gather_dict_lock:
        states = _round(sequence_id)
        if states is None:
            raise RuntimeError(f"_all_gather {sequence_id} is over here")
        if states.proceed_signal.is_set():
            raise AssertionError(f"Termination signal sequence id {sequence_id} got set twice.")
        states.gathered_objects = objects_map
        states.proceed_signal.set()


def _abandon_round(sequence_id: str, worker_name: str, reason: str) -> None:
    """Runs on the leader when a follower has given up, and on the followers when the leader has."""
    with _all_gather_dict_lock:
        states = _round(sequence_id)
        if states is not None:
            states.failures[worker_name] = reason
            states.proceed_signal.set()


@_require_initialized
def _all_gather(
    obj: Any, worker_names: Collection[str] | None = None, timeout: float = UNSET_RPC_TIMEOUT
) -> dict[str, Any]:
    """Every named worker's object by name, once all of them have called this.

    `timeout` limits each message and the wait; -1 limits only the messages, 0 nothing. Raises
    RuntimeError when a worker does not come in time, or is lost.
    """
    names = frozenset(worker_names or _ALL_WORKER_NAMES)
    sequence_id, states = _begin_round(names)
    gathering = _Gathering(
        me=_get_current_rpc_agent().get_worker_info().name,
        names=names,
        sequence_id=sequence_id,
        states=states,
        message_timeout=get_rpc_timeout() if timeout == UNSET_RPC_TIMEOUT else timeout,
        patience=timeout if timeout > 0 else None,
    )
    leads = gathering.me == gathering.leader
    try:
        return gathering.lead(obj) if leads else gathering.follow(obj)
    except BaseException as error:
        gathering.abandon(error)
        raise
    finally:
        with _all_gather_dict_lock:
            _all_gather_sequence_id_to_states.pop(sequence_id, None)


@dataclasses.dataclass(frozen=True)
class _Gathering:
    """One call of _all_gather."""

    me: str
    names: frozenset[str]
    sequence_id: str
    states: AllGatherStates
    message_timeout: float
    patience: float | None  # None: no limit

    @property
    def leader(self) -> str:
        return min(self.names)

    def lead(self, obj: Any) -> dict[str, Any]:
        states = self.states
        _gather_to_leader(self.sequence_id, self.me, obj, self.names)
        failed = self._await_signal(lambda: self.names - states.gathered_objects.keys())
        if not failed:
            failed = self._broadcast()
        if failed:
            raise RuntimeError(
                f"Followers {sorted(failed)} timed out in _all_gather after "
                f"{self.message_timeout:.2f} seconds. "
                f"The first exception is {next(iter(failed.values()))}"
            )
        return states.gathered_objects

    def follow(self, obj: Any) -> dict[str, Any]:
        try:
            rpc_sync(
                self.leader,
                _gather_to_leader,
                args=(self.sequence_id, self.me, obj, set(self.names)),
                timeout=self.message_timeout,
            )
        except RuntimeError:
            if not self.states.failures:
                raise  # else the leader had given up before this worker came, and said why
        failed = self._await_signal(lambda: {self.leader})
        if failed:
            raise RuntimeError(next(iter(failed.values())))
        return self.states.gathered_objects

    def abandon(self, error: BaseException) -> None:
        """Tells those who wait for this worker why it gives up.

        It hears from them that they know, before it goes on to end: who only saw it end would name
        it, and not the cause. Whoever does not answer will notice by itself.
        """
        others = self.names - {self.me} if self.me == self.leader else {self.leader}
        words = (self.sequence_id, self.me, str(error))
        heard = []
        for name in sorted(others):
            with contextlib.suppress(RuntimeError):  # `error` is what the caller has to see
                node = _get_current_rpc_agent()._node
                heard.append(node.start(name, _abandon_round, words, timeout=_LAST_WORDS_S))
        if isinstance(error, Exception):  # an interrupt does not wait
            for answer in heard:
                with contextlib.suppress(RuntimeError):
                    answer.wait()

    def _broadcast(self) -> dict[str, str]:
        """Sends everything to everybody; returns who did not get it and why."""
        sent = {
            follower: rpc_async(
                follower,
                _broadcast_to_followers,
                args=(self.sequence_id, self.states.gathered_objects),
                timeout=self.message_timeout,
            )
            for follower in sorted(self.names - {self.me})
        }
        failed = {}
        for follower, future in sent.items():
            try:
                future.wait()
            except RuntimeError as error:
                failed[follower] = str(error)
        return failed

    def _await_signal(self, missing: Callable[[], Collection[str]]) -> dict[str, str]:
        """Returns who failed and why. Raises PeerLost if one of those it waits for is lost."""
        signal = self.states.proceed_signal
        deadline = time.monotonic() + (math.inf if self.patience is None else self.patience)
        with _Roll() as roll:
            while not signal.wait(max(0.0, min(_POLL_S, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    return {
                        name: f"{name} did not come within {self.patience:.2f} seconds"
                        for name in sorted(missing())
                    }
                lost = roll.call(missing())
                if lost and not signal.is_set():
                    raise errors.PeerLost(f"_all_gather waits for {sorted(lost)}, who are lost")
        with _all_gather_dict_lock:
            return dict(self.states.failures)


class _Roll:
    """Finds out who is gone, also of those with whom this worker has never spoken."""

    def __init__(self) -> None:
        self._node = _get_current_rpc_agent()._node
        self._asked: dict[str, Any] = {}

    def __enter__(self) -> _Roll:
        return self

    def __exit__(self, *exception: object) -> None:
        for answer in self._asked.values():
            answer.cancel()

    def call(self, names: Collection[str]) -> set[str]:
        """Asks them to answer; returns those of whom it is known by now that they will not."""
        lost = set()
        for name in names:
            answer = self._asked.get(name)
            if answer is not None and not answer.done():
                continue
            try:
                if answer is not None:
                    answer.wait()
            except errors.PeerLost:
                lost.add(name)
                continue
            except RuntimeError as error:  # it is there, and busy or closing
                logger.debug("%s does not answer: %s", name, error)
            self._asked[name] = self._node.start(name, _present, timeout=0)
        return lost


def _present() -> None:
    """Called by those who wait for this worker."""


@_require_initialized
def _barrier(worker_names: Collection[str]) -> None:
    """Returns when all of these workers have called it. Failure is logged, not raised."""
    try:
        _all_gather(None, set(worker_names))
    except RuntimeError:
        logger.exception("Failed to complete barrier")


@_require_initialized
def _wait_all_workers(timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Returns when every worker has called it."""
    try:
        _all_gather(None, timeout=timeout)
    except RuntimeError:
        logger.exception("Failed to respond to 'Shutdown Proceed' in time")
        raise


# --- the end ---


@_require_initialized
def shutdown(graceful: bool = True, timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Ends rpc in this process; init_rpc may be called again afterwards.

    A graceful end serves on until all workers have called this and no call is running anywhere, or
    until the timeout, which raises; in a dynamic world it leaves without waiting for others. The
    timeout is for all of it, but for the two seconds it may take to tell others of a failure; 0 is
    without limit. Whatever happens meanwhile, rpc has ended when this returns or raises.
    """
    try:
        if graceful:
            agent = _get_current_rpc_agent()
            if getattr(agent, "is_static_group", True):
                _end_together(agent, timeout)
            else:
                _leave(agent, timeout)
    finally:
        _finalize_shutdown()


class _Rest:
    """What is left of a time limit; 0 is without limit."""

    def __init__(self, timeout: float) -> None:
        self._ends = time.monotonic() + timeout if timeout else None

    def seconds(self) -> float:
        """As a timeout: 0 for no limit, so what is over is a little more."""
        return 0.0 if self._ends is None else max(0.001, self._ends - time.monotonic())

    def span(self) -> timedelta | None:
        return None if self._ends is None else timedelta(seconds=self.seconds())


def _end_together(agent: Any, timeout: float) -> None:
    rest = _Rest(timeout)
    # Before the first one leaves, and takes along what it holds: whatever anybody has created is
    # there when all have come to the barrier, and nobody leaves before all have passed it.
    _rref.await_creations(agent, rest.seconds())
    _wait_all_workers(rest.seconds())
    _release_references(rest)
    _rref.note_leaks(agent)
    agent.join(shutdown=True, timeout=rest.seconds())


def _release_references(rest: _Rest) -> None:
    span = rest.span()
    if span is None:
        _delete_all_user_and_unforked_owner_rrefs()
    else:
        _delete_all_user_and_unforked_owner_rrefs(span)


def _leave(agent: Any, timeout: float) -> None:
    rest = _Rest(timeout)
    me = agent.get_worker_info()
    _release_references(rest)
    with _group_membership_management(agent.store, me.name, False, rest.span()):
        roster = _read_roster(agent.store)
        roster.pop(me.name, None)
        _write_roster(agent.store, roster)
        limit = rest.seconds() or UNSET_RPC_TIMEOUT
        told = {
            info.name: rpc_async(
                info.name, _update_group_membership, args=(me, [], {}, False), timeout=limit
            )
            for info in agent.get_worker_infos()
            if info.name != me.name
        }
        for name, future in told.items():
            try:
                future.wait()
            except RuntimeError as error:
                logger.warning("%s was not told that %s leaves: %s", name, me.name, error)
    agent.join(shutdown=True, timeout=rest.seconds())


def _finalize_shutdown() -> None:
    """The part of the end that nobody else takes part in."""
    try:
        _destroy_rref_context(_ignore_rref_leak)
    finally:
        agent = _get_current_rpc_agent()
        try:
            agent.shutdown()
        finally:
            _cleanup_python_rpc_handler()
            _reset_current_rpc_agent()


# --- references ---


def _rref_typeof_on_owner(rref: PyRRef, blocking: bool = True) -> Any:
    kind = type(rref.local_value())
    if blocking:
        return kind
    known: Future[type] = Future()
    known.set_result(kind)
    return known


def _rref_typeof_on_user(
    rref: PyRRef, timeout: float = UNSET_RPC_TIMEOUT, blocking: bool = True
) -> Any:
    future = rpc_async(rref.owner(), _rref_typeof_on_owner, args=(rref,), timeout=timeout)
    return future.wait() if blocking else future


def method_factory(method_name: str, docstring: str | None) -> Callable[..., Any]:
    """A method of RRef that is the one of PyRRef, with its own documentation."""

    def method(self: RRef[Any], *args: Any, **kwargs: Any) -> Any:
        return getattr(super(RRef, self), method_name)(*args, **kwargs)

    method.__name__ = method_name
    method.__doc__ = docstring
    return method


for method_name, method in list(vars(PyRRef).items()):
    if not method_name.startswith("_") and callable(method):
        docstring = method.__doc__
        new_method = method_factory(method_name, docstring)
        setattr(RRef, method_name, new_method)
