"""The compiled part of hawser: nodes, calls and futures."""

from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import Store

__version__: str

class Pickler(Protocol):
    """Turns what is not plain data into bytes and back. Tensors travel beside the bytes."""

    def serialize(self, obj: Any) -> tuple[bytes, list[torch.Tensor]]: ...
    def deserialize(self, data: bytes, tensors: list[torch.Tensor]) -> Any: ...

class Future(torch._C.Future[Any]):
    """The result of a call. A torch future whose `wait` looks after the network meanwhile.

    `then`, `add_done_callback`, `done` and `value` are those of torch; callbacks run on a thread of
    the node. A failed call raises the exception that the node's `make_exception` returns.
    """

    def wait(self) -> Any: ...
    def wait_for(self, seconds: float) -> bool:
        """False when the result is not there in time. Gives up waiting, not the call."""
    def cancel(self) -> None: ...
    def __await__(self) -> Generator[Any, None, Any]: ...

class Node:
    """A member of a world. See hawser.Node, which is this with defaults and conveniences.

    Times are in seconds; 0 means without limit, None the default. All methods may be called from
    any thread. Methods that wait release the interpreter lock, look after the network meanwhile,
    and raise KeyboardInterrupt within 100 ms.
    """

    def __init__(
        self,
        *,
        name: str,
        rendezvous: str = "",
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
        functions: dict[str, Callable[..., Any]] = {},
        record_reference_origins: bool = False,
        faults: dict[str, Any] | None = None,
        describe_exception: Callable[[BaseException], tuple[str, str, str, bytes | None]]
        | None = None,
        make_exception: Callable[[str, str, dict[str, Any]], BaseException] | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...

    # `function` is a Python callable, a builtin torch operator, a torch.jit.ScriptFunction, or the
    # name of a function that the callee serves. `timeout`: None for the node's call_timeout.
    def call(
        self,
        to: str,
        function: Any,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Calls and waits: the quickest way."""
    def start(
        self,
        to: str,
        function: Any,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Future:
        """Calls; the result comes later."""
    def notify(
        self,
        to: str,
        function: Any,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Calls without an answer, and without an error if nobody is there."""
    def serve(self, name: str, function: Callable[..., Any]) -> None: ...
    def serve_method(self, kind: type, name: str) -> None: ...
    def withdraw(self, name: str) -> bool: ...
    def members(self, timeout: float = 0) -> dict[int, str]:
        """Rank to name of every member of a static world, once all have joined. Raises Timeout."""
    def look_up(self, name: str) -> int | None:
        """The rank of the node of that name, None if nobody of that name is there."""
    def connect(self, to: str, timeout: float = 60.0) -> None:
        """Connects, so that the first call does not have to wait for that. Raises Timeout."""
    def rank_of(self, name: str) -> int:
        """Of a node of that name. Raises Invalid if there is none."""
    def remote(
        self,
        to: str,
        function: Any,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> PyRRef:
        """Calls; the result stays there. `timeout` is for the function."""
    def refs(self) -> list[dict[str, Any]]:
        """The values of this node behind references, and the references it holds."""
    def count_refs(self) -> dict[str, int]: ...
    def ref_leaks(self) -> list[str]:
        """A line for each reference that is still there between this node and others."""
    def depart(self, timeout: float = 0) -> None:
        """The first part of shutdown: returns when no member calls any other."""
    def release_references(self, timeout: float) -> bool:
        """The second: lets go of all references to values elsewhere, and logs what they were. False
        when others have not let go of those to values here in time."""
    def shutdown(self, timeout: float = 0) -> None:
        """Serves on until every member of a static world has called it or is lost, then closes."""
    def close(self, patience: float = 5.0) -> bool: ...
    def inspect(self) -> dict[str, Any]: ...

    # --- distributed autograd: see hawser.autograd ---

    def create_context(self) -> int: ...
    def release_context(self, context: int) -> bool:
        """False when this node is not in it."""
    def is_in_context(self, context: int) -> bool: ...
    def backward(
        self,
        context: int,
        roots: list[torch.Tensor],
        retain_graph: bool = False,
        timeout: float | None = None,
        mode: str = "smart",
    ) -> None: ...
    def gradients(self, context: int) -> dict[torch.Tensor, torch.Tensor]: ...
    def context_report(self, context: int) -> dict[str, Any]:
        """id, creator, known (names of nodes), sends and recvs (message id to function)."""
    def count_autograd(self) -> dict[str, int]:
        """Contexts that this node is in, and passes that it takes part in."""

    # --- profiling: see hawser.profiler ---

    @property
    def rank(self) -> int | None: ...
    def begin_serving_profile(self, config: Any) -> None:
        """Records all that this node does for others, as a torch.autograd.ProfilerConfig says."""
    def end_serving_profile(self) -> list[Any]:
        """Of the innermost: for each call the events of torch's legacy profiler, by thread."""
    def inspect_text(self) -> str: ...
    def set_call_timeout(self, seconds: float) -> None:
        """Of later calls that are given none; 0 for no limit."""

    # --- hooks; None restores the default ---

    pickler: Pickler | None
    """Used for everything that is sent while it is set, plain data too, and for reading messages
    that were written by a pickler of the same kind at the other end."""
    describe_exception: Callable[[BaseException], tuple[str, str, str, bytes | None]] | None
    """What a served function raised -> (type name, message, traceback, pickled or None)."""
    make_exception: Callable[[str, str, dict[str, Any]], BaseException] | None
    """How a call failed: (kind, message, details) -> what is raised. `kind` is the name of a class
    in hawser.errors; details: node, function, budget (s), remote_type, remote_traceback, pickled
    (bytes) where known."""

def tensor_over(buffer: Any) -> torch.Tensor:
    """The bytes of a contiguous buffer, which may be read-only, as a tensor that keeps them alive."""

def wait_for_listener(host: str, port: int, seconds: float) -> bool:
    """Until somebody listens at that port; False when nobody does by then."""

class OptimizerShare:
    """The native half of hawser.optim.share.Share. `with` it: nobody else changes its parameters."""

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *raised: object) -> None: ...
    def take_turns(self, parameters: Sequence[torch.Tensor]) -> None:
        """Which parameters these are. Inside `with`."""
    def follow(
        self,
        label: str,
        rule: str,
        groups: Sequence[
            tuple[dict[str, Any], Sequence[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]]
        ],
    ) -> None:
        """What steps do from now on; see hawser.optim.plans. Inside `with`."""
    def follow_options(self, groups: Sequence[dict[str, Any]]) -> bool:
        """New options of the groups that are followed; False when they have to be followed anew.
        Inside `with`."""
    def follow_nothing(self) -> None: ...
    def step_natively(self, node: Node, context: int) -> bool:
        """Applies the gradients of the context; False, having done nothing, when that takes Python.
        Not inside `with`."""

class PyRRef:
    """A reference to a value on some node. See hawser.references."""

    def __init__(self, value: Any, type_hint: Any = None, *, _node: Node | None = None) -> None: ...
    def is_owner(self) -> bool:
        """Whether the value lives in this process."""
    def confirmed_by_owner(self) -> bool:
        """Whether the owner has heard of this reference. Waits for its answer if the reference came
        in a message; not if it was created here."""
    def owner(self) -> Any: ...
    def owner_name(self) -> str: ...
    def to_here(self, timeout: float = -1.0) -> Any: ...
    def local_value(self) -> Any: ...
    def rpc_sync(self, timeout: float = -1.0) -> Any: ...
    def rpc_async(self, timeout: float = -1.0) -> Any: ...
    def remote(self, timeout: float = -1.0) -> Any: ...
    def backward(
        self,
        dist_autograd_ctx_id: int = -1,
        retain_graph: bool = False,
        timeout: float | None = None,
        mode: str = "smart",
    ) -> None: ...
    def release(self) -> None:
        """Gives it up now instead of with the last copy of it. What is on its way is not affected."""
    @property
    def deleted(self) -> bool:
        """It was released, by the program or with its node."""
    def __await__(self) -> Generator[Any, None, Any]: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

    _kind: Any
    _profiling_future: Any
    @property
    def _node(self) -> Node: ...
    def _local_value(self) -> Any: ...
    def _ids(self) -> tuple[int, int, int, int]:
        """Rank and number of the value's id, and of this reference's."""
    def _pickled_index(self) -> int: ...
    def _raise_if_failed(self) -> None: ...
    def _get_type(self, timeout: float = -1.0, blocking: bool = True) -> Any: ...
    def _get_future(self) -> Future: ...
    def _get_profiling_future(self) -> Any: ...
    def _set_profiling_future(self, profilingFuture: Any) -> None: ...
    def _serialize(self) -> tuple[Any, ...]: ...
    @staticmethod
    def _deserialize(tp: tuple[Any, ...]) -> PyRRef: ...

class Method:
    """A method of a referenced value: what calls take in place of a function. Without a name, the
    value itself."""

    def __init__(self, reference: PyRRef, name: str) -> None: ...
    @property
    def name(self) -> str: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

NOT_CREATED: str
"""How the message of an error begins whose value was perhaps never created."""
MESSAGE_KINDS: tuple[str, ...]
"""What `faults` can name: {"fail": kinds, "delay": {kind: seconds}, "times": int}."""

def _received_reference(index: int) -> PyRRef: ...
def _own_reference(other: Any) -> PyRRef | None:
    """A reference that a script has returned, which is of torch's own class, as one of hawser's;
    None if it is torch's own indeed."""

class Recorder:
    """Records what the thread that begins it does, and what its calls do elsewhere."""

    def __init__(
        self, name: str, rank: int | None, shapes: bool = False, memory: bool = False
    ) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None:
        """By the thread that has begun it."""
    def take(self) -> dict[str, Any]:
        """processes: (name, pid, rank, clock error in ns); events: the fields of TraceEvent in
        protocol.fbs, in the order of wire::TraceEvent; dropped."""

class CallInfo:
    """The call that this thread serves."""

    @property
    def caller(self) -> str: ...
    @property
    def cancelled(self) -> bool: ...
    @property
    def remaining(self) -> float | None:
        """Seconds until the call's deadline; None if it has none."""
    def on_cancel(self, callback: Callable[[], Any]) -> None:
        """Called once, on a thread of the node, if the caller no longer wants the answer."""

def current_call() -> CallInfo | None: ...
def current_context() -> int | None:
    """The autograd context of the asyncio task that runs, else of the thread."""

def set_current_context(context: int | None) -> None:
    """Of the thread."""

task_context: ContextVar[int | None]
"""Where it is set it counts, also if it is None: what the thread is in does not, then."""
deadline: ContextVar[float | None]
"""When all calls of this context must have ended, in seconds of time.monotonic()."""

def measure_gil_waits(enabled: bool) -> None:
    """While on, inspect() says how long threads of hawser waited for the interpreter lock
    ("gil_wait_us", on average) and how often they took it ("gil_waits")."""

def close_all() -> None:
    """Closes every node of this process."""

# --- options of the drop-in, as plain data ---

class RpcBackendOptions:
    rpc_timeout: float
    init_method: str
    def __init__(self, rpc_timeout: float = 60.0, init_method: str = "env://") -> None: ...

class _TensorPipeRpcBackendOptionsBase(RpcBackendOptions):
    num_worker_threads: int
    device_maps: dict[str, dict[torch.device, torch.device]]
    devices: list[torch.device]
    _transports: list[str] | None
    _channels: list[str] | None
    def __init__(
        self,
        num_worker_threads: int = 16,
        _transports: list[str] | None = None,
        _channels: list[str] | None = None,
        rpc_timeout: float = 60.0,
        init_method: str = "env://",
        device_maps: dict[str, dict[torch.device, torch.device]] = {},
        devices: list[torch.device] = [],
    ) -> None: ...
    def _set_device_map(self, to: str, device_map: dict[torch.device, torch.device]) -> None: ...
