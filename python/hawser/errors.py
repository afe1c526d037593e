"""What a call can raise.

Every error of hawser is an `Error`; what went wrong at the other end inside the function itself
arrives as the exception that was raised there, or as a `RemoteError` where it cannot be rebuilt or
is no `Exception`: a callee that exits, or is interrupted, does not end its caller.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any


class Error(RuntimeError):
    """Base of all errors of hawser. `node` and `function` say where, if that is known."""

    node: str | None = None
    function: str | None = None


class Timeout(Error, TimeoutError):
    """The call's time was up. `budget` is what it had, in seconds."""

    budget: float | None = None


class Cancelled(Error):
    """The call, or the one that made it, was cancelled."""


class PeerLost(Error, ConnectionError):
    """The other node is gone, or cannot be reached."""


class Overloaded(Error):
    """A limit was reached: of threads, of calls, or of bytes."""


class Refused(Error, PermissionError):
    """The other node, or this one, does not allow it."""


class Invalid(Error, ValueError):
    """The request itself is wrong."""


class RemoteError(Error):
    """The function raised something that cannot be rebuilt here, or that must not be raised here.

    `remote_type` names its class; `remote_traceback` is text.
    """

    remote_type: str = ""
    remote_traceback: str = ""


_KINDS: dict[str, type[Error]] = {
    "Timeout": Timeout,
    "Cancelled": Cancelled,
    "PeerLost": PeerLost,
    "Overloaded": Overloaded,
    "Refused": Refused,
    "Invalid": Invalid,
    "Remote": RemoteError,
}


class RemoteTraceback(Exception):
    """Shown as the cause of an exception that was raised on another node."""

    def __init__(self, node: str, text: str) -> None:
        super().__init__(node, text)
        self.node = node
        self.text = text

    def __str__(self) -> str:
        return f"on {self.node!r}:\n\n{self.text}"


def describe_exception(error: BaseException) -> tuple[str, str, str, bytes | None]:
    """What travels of an exception: (type name, message, traceback, pickled if possible)."""
    kind = type(error)
    text = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception as unprintable:
        message = f"<str() of it raised {type(unprintable).__name__}>"
    return f"{kind.__module__}.{kind.__qualname__}", message, text, pickled_exception(error)


def pickled_exception(error: BaseException) -> bytes | None:
    """None when the exception, or its copy, cannot be made from its pickle."""
    try:
        data = pickle.dumps(error, protocol=5)
        pickle.loads(data)  # many classes can be pickled and not be rebuilt
    except Exception:
        return None
    return data


def make_exception(kind: str, message: str, details: dict[str, Any]) -> BaseException:
    """The exception that a failed call raises."""
    if kind == "Remote" and details.get("pickled"):
        try:
            rebuilt = pickle.loads(details["pickled"])
        except Exception:
            rebuilt = None  # its class is not known here
        if isinstance(rebuilt, Exception):
            return with_remote_traceback(rebuilt, details)
        if isinstance(rebuilt, BaseException):  # SystemExit, which would end this process
            message = f"{type(rebuilt).__name__}: {message}"
    error = _KINDS[kind](message)
    error.node = details.get("node")
    error.function = details.get("function")
    if isinstance(error, Timeout):
        error.budget = details.get("budget")
    if isinstance(error, RemoteError):
        error.remote_type = details.get("remote_type", "")
        error.remote_traceback = details.get("remote_traceback", "")
        return with_remote_traceback(error, details)
    return error


def with_remote_traceback(error: BaseException, details: dict[str, Any]) -> BaseException:
    text = details.get("remote_traceback")
    if text:
        error.__cause__ = RemoteTraceback(details.get("node") or "?", text)
    return error
