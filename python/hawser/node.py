"""Nodes, as a Python program uses them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from torch._C._distributed_c10d import Store

from hawser import _native, coroutines
from hawser._native import CallInfo, Future, PyRRef, current_call
from hawser.errors import Invalid

__all__ = ["CallInfo", "Node", "by_value", "current_call", "deadline", "default_node"]


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limits all calls made inside, together, to so many seconds from now; those of `hawser.rpc`, of
    references and of modules too.

    An outer deadline that is earlier stays in force. Calls that handlers make on behalf of a call
    are limited by its time anyway.
    """
    if not seconds > 0:
        raise Invalid(f"a deadline must lie in the future, got {seconds} s")
    ends = time.monotonic() + seconds
    outer = _native.deadline.get(None)
    token = _native.deadline.set(ends if outer is None else min(ends, outer))
    try:
        yield
    finally:
        _native.deadline.reset(token)


class _ByValue:
    """A function whose code travels with the call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle  # type: ignore[import-untyped]  # only who sends code needs it

        return _ByValue._rebuild, (cloudpickle.dumps(self._function),)

    @staticmethod
    def _rebuild(code: bytes) -> Callable[..., Any]:
        import pickle

        function: Callable[..., Any] = pickle.loads(code)
        return function


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a lambda, a closure or a function of this module only be called elsewhere.

    Functions usually travel by name, and must exist at the callee. One that is wrapped so travels
    with its code and what it closes over (by cloudpickle, which must be installed at both ends).
    """
    return _ByValue(function)


class Node:
    """A member of a world: serves functions and calls those of others.

    `rendezvous` is where the members meet: `tcp://host:port`, `file:///path` or `env://`; or pass a
    torch.distributed store. `functions` are served from the start, by their names or as a dict of
    name to function; `serve` adds more. With `rank` and `world_size` the world has fixed members; without them
    nodes join and leave at any time. Times are in seconds; 0 is without limit.

    With `trust="functions"` others can call nothing but what was served, torch operators and scripts
    (docs/security.md). `operators` are those they may call: `"aten::add"`, or `"aten::*"` for the
    public ones of a namespace.

    Use it as a context manager: leaving it waits for the other members (`shutdown`), or closes it at
    once if an exception passes through.
    """

    def __init__(
        self,
        name: str,
        rendezvous: str = "",
        *,
        functions: Sequence[Callable[..., Any]] | dict[str, Callable[..., Any]] = (),
        store: Store | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        transports: Sequence[str] = ("shm", "tcp"),
        call_timeout: float = 60.0,
        rendezvous_timeout: float = 300.0,
        max_threads: int = 128,
        trust: str = "full",
        operators: Sequence[str] | None = None,
        address: str = "",
        interfaces: Sequence[str] = (),
        port: int = 0,
        advertised_host: str = "",
        token: str = "",
        token_file: str = "",
        tls: dict[str, str] | None = None,
        spin_us: float = 50.0,
        heartbeat_interval: float = 1.0,
        suspect_after: float = 2.0,
        lost_after: float = 10.0,
        record_reference_origins: bool = False,
    ) -> None:
        self._native = _native.Node(
            name=name,
            rendezvous=rendezvous,
            store=store,
            rank=rank,
            world_size=world_size,
            transports=list(transports),
            call_timeout=call_timeout,
            rendezvous_timeout=rendezvous_timeout,
            max_threads=max_threads,
            trust=trust,
            operators=None if operators is None else list(operators),
            address=address,
            interfaces=list(interfaces),
            port=port,
            advertised_host=advertised_host,
            token=token,
            token_file=token_file,
            tls=tls,
            spin_us=spin_us,
            heartbeat_interval=heartbeat_interval,
            suspect_after=suspect_after,
            lost_after=lost_after,
            record_reference_origins=record_reference_origins,
            functions=dict(functions)
            if isinstance(functions, dict)
            else {function.__name__: function for function in functions},
        )
        _open_nodes.append(self)

    @classmethod
    def _of(cls, native: _native.Node) -> Node:
        node = cls.__new__(cls)
        node._native = native
        return node

    @property
    def name(self) -> str:
        return self._native.name

    @property
    def closed(self) -> bool:
        return self._native.closed

    # --- calling ---

    def call(self, to: str, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        """Calls `function` on the node `to`; the result is in the future: `.wait()` or `await`.

        `function` is any Python callable that the callee can import (or `by_value`), a torch
        operator, a script function, or the name under which the callee serves one. Tensors among the
        arguments must not be changed until the result is there. `with hawser.deadline(s):` limits it.
        """
        return self._native.start(to, function, args, kwargs)

    def run(self, to: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls and waits for the result. The quickest way."""
        return self._native.call(to, function, args, kwargs)

    def notify(self, to: str, function: Any, /, *args: Any, **kwargs: Any) -> None:
        """Calls without an answer: nothing is known of how it ends."""
        self._native.notify(to, function, args, kwargs)

    def remote(self, to: str, function: Any, /, *args: Any, **kwargs: Any) -> PyRRef:
        """Calls; the result stays there, and the reference to it is there at once.

        `ref.rpc_sync().method(...)` runs a method of the value where it is, `ref.to_here()` or
        `await ref` fetches a copy. References travel in arguments and results. The value goes when
        the last reference to it is gone. See hawser.references.
        """
        return self._native.remote(to, function, args, kwargs)

    def ref(self, value: Any) -> PyRRef:
        """A reference to a value of this node, which others can be given."""
        return PyRRef(value, _node=self._native)

    def connect(self, to: str, timeout: float = 60.0) -> None:
        """Connects to a node, so that the first call to it does not have to wait for that."""
        self._native.connect(to, timeout)

    def refs(self) -> list[dict[str, Any]]:
        """The values of this node behind references, and the references it holds: id, owner, state,
        holders, type, bytes, age, and where created if `record_reference_origins` is set."""
        return self._native.refs()

    # --- serving ---

    def serve(self, function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        """Serves a function under a name, for callers in any language. Usable as a decorator.

        An `async def` runs on hawser's event loop. Every Python callable can be called by Python
        nodes without being served, unless the node was made with trust="functions".
        """
        self._native.serve(function.__name__ if name is None else name, function)
        return function

    def serve_method(self, kind: type, name: str) -> None:
        """Lets others call a method of the values of a class that are behind references.

        Of classes derived from it, too. Every method can be called without being served, unless the
        node was made with trust="functions".
        """
        self._native.serve_method(kind, name)

    def withdraw(self, name: str) -> bool:
        return self._native.withdraw(name)

    @property
    def pickler(self) -> _native.Pickler | None:
        """Replaces hawser's own pickler, for all that is sent and for what such a pickler sent."""
        return self._native.pickler

    @pickler.setter
    def pickler(self, pickler: _native.Pickler | None) -> None:
        self._native.pickler = pickler

    # --- the world ---

    def members(self, timeout: float = 0) -> dict[int, str]:
        """Rank to name, once every member of a static world has joined."""
        return self._native.members(timeout)

    def inspect(self) -> dict[str, Any]:
        """What the node is doing: peers, calls in flight, threads. `str(node)` for people."""
        return self._native.inspect()

    def __str__(self) -> str:
        return f"<closed node {self.name!r}>" if self.closed else self._native.inspect_text()

    # --- the end ---

    def shutdown(self, timeout: float = 0) -> None:
        """Serves on until every member of a static world has called this too or is lost; closes."""
        self._native.shutdown(timeout)
        _forget(self)

    def close(self, patience: float = 5.0) -> bool:
        """Closes at once: calls fail. False if handlers were still running after `patience`."""
        _forget(self)
        return self._native.close(patience)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.close()


_open_nodes: list[Node] = []


def _forget(node: Node) -> None:
    with contextlib.suppress(ValueError):
        _open_nodes.remove(node)


def introduce(native: _native.Node) -> None:
    """Of a node that was not made by hawser.Node: it can be the default one, too."""
    _open_nodes.append(Node._of(native))


def retire(native: _native.Node) -> None:
    _open_nodes[:] = [node for node in _open_nodes if node._native is not native]


def default_node() -> Node:
    """The oldest node of this process that is open; that of `init_rpc` counts."""
    if not _open_nodes:
        raise Invalid("there is no node in this process: make a hawser.Node")
    return _open_nodes[0]


@atexit.register
def _end() -> None:
    """Threads that may run Python end before the interpreter does."""
    _native.close_all()
    coroutines.stop()


os.register_at_fork(after_in_child=_open_nodes.clear)


def _arrival(future: Any) -> Generator[Any, None, None]:
    """Waits until the future is done, without holding up the loop that this runs in."""
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()

    def arrive(_: Any) -> None:
        def settle() -> None:
            if not arrived.done():
                arrived.set_result(None)

        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle)

    future.add_done_callback(arrive)
    yield from arrived.__await__()


def _await(self: Future) -> Generator[Any, None, Any]:
    if not self.done():
        try:
            yield from _arrival(self)
        except asyncio.CancelledError:
            self.cancel()
            raise
    return self.wait()


Future.__await__ = _await  # type: ignore[method-assign]
