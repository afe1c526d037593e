"""Exceptions of remote functions, as programs written for torch.distributed.rpc expect them.

Such programs catch ValueError, TypeError or RuntimeError, and look into the text. So an exception
arrives as its own class, which is made a RuntimeError too unless it is one of the other two; its
text is `KeyError: On WorkerInfo(id=1, name=w1):`, followed by the repr and the traceback.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import traceback
from typing import Any

from .. import _native, errors

# Programs rely on these being what they are; everything else is caught as RuntimeError.
_CAUGHT_BY_TYPE = (ValueError, TypeError, RuntimeError)

_FUNCTION_NOT_HERE = (
    " Default RPC pickler does not serialize function code. "
    "Ensure that UDFs are defined on both caller and callee modules."
)


# --- where the function ran ---


def report(worker: object, error: BaseException) -> str:
    """Says what happened on `worker`, here and to the caller."""
    try:
        shown = _shown(error)
    except Exception as unprintable:
        shown = f"<{type(error).__qualname__}, whose repr raised {type(unprintable).__name__}>"
    return f"On {worker}:\n{shown}\n{''.join(traceback.format_exception(error))}"


def _shown(error: BaseException) -> str:
    """Its repr, but with the lines of a text as lines."""
    if type(error).__repr__ is not BaseException.__repr__:
        return repr(error)
    args = ", ".join(f"'{arg}'" if type(arg) is str else repr(arg) for arg in error.args)
    return f"{type(error).__name__}({args})"


def describe_exception(worker: object, error: BaseException) -> tuple[str, str, str, bytes | None]:
    """The hook `describe_exception` of a node."""
    error = explain_missing_function(error)
    text = report(worker, error)
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(text, file=sys.stderr, flush=True)
    kind = type(error)
    trace = "".join(traceback.format_exception(error))
    return f"{kind.__module__}.{kind.__qualname__}", text, trace, _portable(error)


def explain_missing_function(error: BaseException) -> BaseException:
    """Names the likely cause of a function that the unpickler did not find."""
    text = str(error) if type(error) is AttributeError else ""
    if not text.startswith("Can't get attribute ") or _FUNCTION_NOT_HERE in text:
        return error
    explained = AttributeError(text + _FUNCTION_NOT_HERE)
    explained.__cause__ = error
    return explained


def _portable(error: BaseException) -> bytes | None:
    """The exception if it can be rebuilt from its pickle, else its class, else nothing."""
    whole = errors.pickled_exception(error)
    if whole is not None:
        return whole
    with contextlib.suppress(Exception):
        return pickle.dumps(type(error), protocol=5)
    return None


# --- where the call was made ---


def make_exception(kind: str, message: str, details: dict[str, Any]) -> BaseException:
    """The hook `make_exception` of a node."""
    if kind == "Remote":
        return _remote_exception(message, details)
    if message.startswith(_native.NOT_CREATED):
        return _creation_error(kind, message)
    if kind == "Timeout" and details.get("budget") is not None:
        return timeout_error(details["budget"], details.get("function"), details.get("node"))
    if kind == "Invalid" and not _is_running():
        message = f"{message}: RPC is no longer running on this node."
    return errors.make_exception(kind, message, details)


def _is_running() -> bool:
    from . import _agent  # which needs this module

    node = getattr(_agent._current, "_node", None)
    return node is not None and not node.closed


def timeout_error(
    budget: float, function: str | None = None, node: str | None = None
) -> errors.Timeout:
    where = f" ({function} on {node})" if function and node else ""
    error = errors.Timeout(
        f"RPC ran for more than set timeout ({budget * 1000:.6g} ms) "
        f"and will now be marked with an error{where}"
    )
    error.budget, error.function, error.node = budget, function, node
    return error


def _creation_error(kind: str, message: str) -> BaseException:
    why = message.removeprefix(_native.NOT_CREATED)
    timed_out = "timed out, and" if kind == "Timeout" else f"failed ({why}), and"
    return errors.make_exception(
        kind,
        f"RRef creation via rpc.remote() {timed_out} it is possible that the RRef on the owner node "
        "does not exist.",
        {},
    )


def _remote_exception(report: str, details: dict[str, Any]) -> BaseException:
    name = details.get("remote_type", "").rpartition(".")[2]
    text = f"{name}: {report}" if report.startswith("On WorkerInfo(") and name else report
    pickled = details.get("pickled")
    if not pickled:
        # Operators and scripts fail with a text only.
        return errors.make_exception("Remote", text, details)
    try:
        found = pickle.loads(pickled)
        # What cannot be pickled whole is rebuilt from a text, as its class promises by custom.
        original = found(text) if isinstance(found, type) else found
    except BaseException as failure:
        return not_rebuilt(failure, report)
    return _arrived(original, text)


def not_rebuilt(failure: BaseException, report: str) -> RuntimeError:
    error = RuntimeError(
        f"Failed to create original exception type. Error msg was {failure} "
        f"Original exception on remote side was {report}"
    )
    error.__cause__ = failure
    return error


def _arrived(original: object, text: str) -> BaseException:
    """The exception as it is raised here."""
    # Never SystemExit or KeyboardInterrupt: those end this process, and it was the other's.
    kind: type = type(original)
    if not isinstance(original, Exception) or kind in (Exception, RuntimeError):
        return RuntimeError(text)
    if kind in (ValueError, TypeError):
        return kind(text)
    worn = _worn(kind)
    if worn is None:
        return RuntimeError(text)
    try:
        arrived = _filled(worn, _fields(original), original.__dict__)
    except Exception:
        return RuntimeError(text)
    arrived.remote_text = text  # type: ignore[attr-defined]
    return arrived


def _builtin_base(kind: type) -> type:
    """The built-in class whose fields every exception of that class has."""
    heap_type = 1 << 9
    while kind.__flags__ & heap_type:
        kind = kind.__base__  # type: ignore[assignment]
    return kind


def _fields(error: BaseException) -> tuple[Any, ...]:
    """What its built-in base was given."""
    builtin: Any = _builtin_base(type(error))
    return builtin.__reduce__(error)[1]


def _filled(kind: type, fields: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An exception of that class without running its constructor, whatever that may ask for."""
    builtin: Any = _builtin_base(kind)
    made = builtin.__new__(kind, *fields)
    builtin.__init__(made, *fields)
    made.__dict__.update(state)
    return made


@functools.lru_cache(maxsize=512)
def _worn(kind: type[Exception]) -> type[Exception] | None:
    """`kind` with the text of the other side; a RuntimeError too where programs expect one."""
    bases = (kind,) if issubclass(kind, _CAUGHT_BY_TYPE) else (kind, RuntimeError)
    body = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__str__": lambda self: self.__dict__.get("remote_text") or super(kind, self).__str__(),
        # Passed on to a third node, it is again what it was at first.
        "__reduce__": lambda self: (_original, (kind, _fields(self), _state(self))),
    }
    metaclass: Any = type(kind)
    try:
        return metaclass(kind.__name__, bases, body)
    except Exception:  # the class does not want to be derived from
        return None


def _state(error: BaseException) -> dict[str, Any]:
    return {name: value for name, value in error.__dict__.items() if name != "remote_text"}


def _original(kind: type, fields: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    return _filled(kind, fields, state)
