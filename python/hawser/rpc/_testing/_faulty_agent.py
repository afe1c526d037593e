"""Calls that fail or are late, chosen by the kind of message that upstream would have sent."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import Store
from torch.futures import Future

from ..._native import _TensorPipeRpcBackendOptionsBase
from .. import internal
from .._agent import DeviceMap, TensorPipeAgent
from .._errors import timeout_error

# Those that have no counterpart here yet never occur, so naming them has no effect.
_KINDS = frozenset(
    [
        "RREF_FORK_REQUEST",
        "RREF_CHILD_ACCEPT",
        "RREF_USER_DELETE",
        "CLEANUP_AUTOGRAD_CONTEXT_REQ",
        "PYTHON_REMOTE_CALL",
        "SCRIPT_REMOTE_CALL",
        "PYTHON_CALL",
        "SCRIPT_CALL",
        "PYTHON_RREF_FETCH_CALL",
        "SCRIPT_RREF_FETCH_CALL",
    ]
)


class FaultyTensorPipeRpcBackendOptions(_TensorPipeRpcBackendOptionsBase):
    """messages_to_fail: kinds of which each message fails `num_fail_sends` times.
    messages_to_delay: kinds and how many seconds each message comes later."""

    messages_to_fail: list[str]
    messages_to_delay: dict[str, float]
    num_fail_sends: int

    def __init__(
        self,
        num_worker_threads: int,
        rpc_timeout: float,
        init_method: str,
        messages_to_fail: list[str],
        messages_to_delay: dict[str, float],
        num_fail_sends: int,
    ) -> None:
        super().__init__(
            num_worker_threads=num_worker_threads,
            rpc_timeout=rpc_timeout,
            init_method=init_method,
        )
        for kind in (*messages_to_fail, *messages_to_delay):
            if kind not in _KINDS:
                raise RuntimeError(f"No mapping to rpc::MessageType exists for {kind}")
        if any(delay < 0 for delay in messages_to_delay.values()):
            raise RuntimeError(f"Delays must be non-negative: {messages_to_delay}")
        if num_fail_sends < 0:
            raise RuntimeError("num_fail_sends should be non-negative")
        self.messages_to_fail = list(messages_to_fail)
        self.messages_to_delay = dict(messages_to_delay)
        self.num_fail_sends = num_fail_sends


class FaultyTensorPipeAgent(TensorPipeAgent):
    """TensorPipeAgent, except for the messages that the options name."""

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        world_size: int | None,
        options: FaultyTensorPipeRpcBackendOptions,
        reverse_device_maps: dict[str, DeviceMap],
        devices: list[torch.device],
    ) -> None:
        super().__init__(store, name, rank, world_size, options, reverse_device_maps, devices)
        faults = Faults(
            frozenset(options.messages_to_fail), options.messages_to_delay, options.num_fail_sends
        )
        self._node: Any = FaultyNode(self._node, faults, self._get_rpc_timeout)


class Faults:
    """What is to happen to a message. Thread-safe."""

    def __init__(self, fail: frozenset[str], delay: dict[str, float], fail_times: int) -> None:
        self._fail = fail
        self._delay = dict(delay)
        self._fail_times = fail_times
        self._lock = threading.Lock()
        self._failed: collections.Counter[bytes] = collections.Counter()

    def failure(self, kind: str, payload: Callable[[], bytes]) -> RuntimeError | None:
        if kind not in self._fail:
            return None
        key = payload()
        with self._lock:
            if self._failed[key] >= self._fail_times:
                return None
            self._failed[key] += 1
        return RuntimeError(f"RPCErr:2:Send attempt failed intentionally for {kind} {key[:40]!r}")

    def delay(self, kind: str) -> float:
        return self._delay.get(kind, 0.0)


def kind_of_call(function: Any) -> str:
    """SCRIPT_CALL for operators and scripts, PYTHON_CALL for the rest."""
    inner = getattr(function, "_wrapped_async_rpc_function", function)
    scripted = isinstance(inner, torch.jit.ScriptFunction)
    builtin = torch.jit._builtins._find_builtin(function) is not None
    return "SCRIPT_CALL" if scripted or builtin else "PYTHON_CALL"


class FaultyNode:
    """A node whose calls pass through `faults` first; everything else is the node's own."""

    def __init__(self, node: Any, faults: Faults, default_timeout: Callable[[], float]) -> None:
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "_faults", faults)
        object.__setattr__(self, "_default_timeout", default_timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._node, name, value)

    def call(
        self, to: str, function: Any, args: Any = None, kwargs: Any = None, timeout: Any = None
    ) -> Any:
        return self.start(to, function, args, kwargs, timeout).wait()

    def start(
        self, to: str, function: Any, args: Any = None, kwargs: Any = None, timeout: Any = None
    ) -> Any:
        kind = kind_of_call(function)
        failure = self._faults.failure(
            kind, lambda: _payload(to, internal.PythonUDF(function, args, kwargs))
        )
        if failure is not None:
            failed: Future[Any] = Future()
            failed.set_exception(failure)
            return failed
        delay = self._faults.delay(kind)
        if not delay:
            return self._node.start(to, function, args, kwargs, timeout)
        budget = self._default_timeout() if timeout is None else timeout
        return _late(delay, budget, lambda left: self._node.start(to, function, args, kwargs, left))


def _payload(to: str, call: Any) -> bytes:
    try:
        data, tensors = internal.serialize(call)
    except Exception:
        return repr((to, call)).encode()
    return to.encode() + b"\0" + data + repr(tensors).encode()


def _late(delay: float, budget: float, send: Callable[[float], Any]) -> Future[Any]:
    """A call that is sent after `delay`, and has until `budget`, which counts from now; 0: ever."""
    result: Future[Any] = Future()
    settled = threading.Lock()  # taken by the first who settles the result
    began = time.monotonic()

    def settle(finish: Callable[[], None]) -> None:
        if settled.acquire(blocking=False):
            finish()

    def answered(future: Any) -> None:
        try:
            value = future.value()
        except BaseException as error:
            failure = error
            settle(lambda: result.set_exception(failure))
        else:
            settle(lambda: result.set_result(value))

    def go() -> None:
        left = budget - (time.monotonic() - began) if budget else 0
        try:
            # Upstream sends it even if nobody waits any more.
            send(left if left >= 0 else 0).add_done_callback(answered)
        except BaseException as error:
            failure = error
            settle(lambda: result.set_exception(failure))

    _after(delay, go)
    if budget and budget <= delay:
        _after(budget, lambda: settle(lambda: result.set_exception(timeout_error(budget))))
    return result


def _after(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
