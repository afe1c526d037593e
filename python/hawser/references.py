"""References: values that stay on their node, used from anywhere.

    model = node.remote("worker", Model, config)        # made on "worker", and stays there
    loss = model.rpc_sync().evaluate(batch)             # its methods run there
    weights = model.rpc_async().weights().wait()        # or return a future
    copy = await model                                  # a copy of the value itself
    node.run("evaluator", compare, model, other)        # references travel like values

A reference can be used as soon as it exists: what needs the value waits for it, where it will be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from functools import partial, wraps
from typing import Any, Generic, TypeVar

import torch

from hawser import _native
from hawser._native import Method, PyRRef
from hawser.errors import Invalid

__all__ = ["Proxy", "PyRRef", "RRef"]

T = TypeVar("T")

_UNSET = -1.0  # as a time-out: the node's own


def limit(timeout: float) -> float | None:
    """For the node: None for its default, 0 for no limit."""
    if timeout == _UNSET:
        return None
    if timeout < 0:
        raise ValueError(f"a timeout cannot be negative, except -1 for the default: {timeout}")
    return timeout


# --- which node a new reference belongs to ---

_chosen: _native.Node | None = None


def choose_node(node: _native.Node | None) -> None:
    """Makes `RRef(value)` belong to that node; with None, to the oldest that is open."""
    global _chosen
    _chosen = node


def current_node() -> _native.Node:
    if _chosen is not None:
        return _chosen
    from hawser.node import default_node

    try:
        return default_node()._native
    except Invalid:
        rpc = sys.modules.get("hawser.rpc")
        if rpc is not None:
            rpc._agent._get_current_rpc_agent()  # says what is missing, in its words
        raise


# --- methods that run where the value is ---


class Proxy:
    """What `ref.rpc_sync()`, `ref.rpc_async()` and `ref.remote()` return: its methods are those of
    the value, and run where that is."""

    def __init__(self, ref: PyRRef, call: Callable[..., Any], timeout: float) -> None:
        self._ref = ref
        self._call = call
        self._timeout = limit(timeout)

    def _invoke(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        ref = self._ref
        return self._call(ref.owner_name(), Method(ref, name), args, kwargs, self._timeout)

    def __getattr__(self, name: str) -> Any:
        return partial(self._invoke, name)


# `hawser.rpc` has proxies of its own, for references of the node it has chosen.
make_proxy_of_chosen: Callable[[PyRRef, str, float], Any] | None = None


def _proxy(ref: PyRRef, kind: str, timeout: float) -> Any:
    node = ref._node
    if make_proxy_of_chosen is not None and node is _chosen:
        return make_proxy_of_chosen(ref, kind, timeout)
    calls = {"rpc_sync": node.call, "rpc_async": node.start, "remote": node.remote}
    return Proxy(ref, calls[kind], timeout)


def _rpc_sync(self: PyRRef, timeout: float = _UNSET) -> Any:
    """A proxy whose methods run on the owner, and wait for the result."""
    return _proxy(self, "rpc_sync", timeout)


def _rpc_async(self: PyRRef, timeout: float = _UNSET) -> Any:
    """A proxy whose methods run on the owner, and return a future."""
    return _proxy(self, "rpc_async", timeout)


def _remote(self: PyRRef, timeout: float = _UNSET) -> Any:
    """A proxy whose methods run on the owner, where the result stays, and return a reference."""
    return _proxy(self, "remote", timeout)


# --- the value ---


def _local_value(self: PyRRef) -> Any:
    """The value itself; only on its owner. Waits until it exists."""
    if not self.is_owner():
        from torch._C._distributed_rpc import WorkerInfo

        on, local, fork_on, fork_local = self._ids()
        node = self._node
        me = WorkerInfo(node.name, node.rank_of(node.name))
        raise RuntimeError(
            f"For UserRRef(rref_id=GloballyUniqueId(created_on={on}, local_id={local}), "
            f"fork_id=GloballyUniqueId(created_on={fork_on}, local_id={fork_local})), "
            f"can't call localValue() on user {me}. Call it on owner {self.owner()}"
        )
    return self._local_value()


def _owner(self: PyRRef) -> Any:
    """The name and the rank of the node on which the value lives."""
    from torch._C._distributed_rpc import WorkerInfo

    name = self.owner_name()
    return WorkerInfo(name, self._node.rank_of(name))


def _backward(
    self: PyRRef,
    dist_autograd_ctx_id: int = -1,
    retain_graph: bool = False,
    timeout: float | None = None,
    mode: str = "smart",
) -> None:
    """Runs backward from the value, a scalar tensor, on its owner: in that autograd context, or, on
    the owner itself and without one, as `value.backward()`. `timeout` and `mode` are those of
    `hawser.autograd.Context.backward`."""
    if not self.is_owner():
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        args = (self, dist_autograd_ctx_id, retain_graph, timeout, mode)
        # The pass has a limit of its own; who waits for it has that one, if it was asked for.
        self._node.call(self.owner_name(), _backward, args, timeout=timeout or 0)
        return
    value = self._local_value()
    if not isinstance(value, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if dist_autograd_ctx_id != -1:
        self._node.backward(dist_autograd_ctx_id, [value], retain_graph, timeout, mode)
        return
    if not value.requires_grad:
        # torch's own words, which it has for a list of roots.
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    value.backward(retain_graph=retain_graph)


def _await(self: PyRRef) -> Generator[Any, None, Any]:
    value = yield from self._node.start(self.owner_name(), Method(self, "")).__await__()
    return self._local_value() if self.is_owner() else value


for _name, _method in {
    "rpc_sync": _rpc_sync,
    "rpc_async": _rpc_async,
    "remote": _remote,
    "local_value": _local_value,
    "owner": _owner,
    "backward": _backward,
    "__await__": _await,
}.items():
    _method.__name__ = _name
    _method.__qualname__ = f"PyRRef.{_name}"
    setattr(PyRRef, _name, _method)


# --- what scripts return ---
#
# libtorch hands a reference to Python as an object of its own class, whose methods would take it for
# one of its own. They are replaced, once, and leave real ones of torch's alone.


def _adopting(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = _native._own_reference(self)
        if own is None:
            return stock(self, *args, **kwargs)
        if getattr(PyRRef, name) is method:  # not replaced there
            raise AttributeError(f"{name} of a reference needs hawser.rpc")
        return getattr(own, name)(*args, **kwargs)

    return method


def _adopt_references_of_scripts() -> None:
    torch_class: Any = PyRRef.__base__
    for name in (
        *("is_owner", "confirmed_by_owner", "owner", "owner_name", "to_here", "local_value"),
        *("rpc_sync", "rpc_async", "remote", "backward", "__repr__", "__reduce_ex__"),
        *("_serialize", "_get_type", "_get_future"),
        *("_get_profiling_future", "_set_profiling_future"),
    ):
        setattr(torch_class, name, _adopting(name, getattr(torch_class, name)))


_adopt_references_of_scripts()


class RRef(PyRRef, Generic[T]):
    """A reference to a value of this process that can be sent to others: `RRef(value)`."""
