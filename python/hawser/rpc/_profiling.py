"""Profiles, as far as torch.distributed.rpc has names for them.

A node records its calls by itself when a profiler of torch is on in the thread that makes them. Under
which name a call appears belongs to the call: nothing is set before it and nothing remains after it.
"""

from __future__ import annotations

from typing import Any

from . import _stock
from ._agent import _get_current_rpc_agent


class RemoteProfilerManager:
    """In the original, what names the next call of a thread. Here each call has its own name."""

    @staticmethod
    def set_current_profiling_key(key: str) -> None:
        """Accepted for programs that prepare a call themselves; the call needs no such help."""


class CallRecord:
    """In the original, the event of a call, which ends when a future does. Here the node ends it."""

    def __init__(self) -> None:
        self._ended = False

    def _call_end_callbacks_on_future(self, future: Any) -> Any:
        """A future that is done when the record is; that is the future of the call itself."""
        if self._ended:
            raise RuntimeError("_call_end_callbacks_on_future can only be called once.")
        self._ended = True
        return future


def _enable_server_process_global_profiler(new_config: Any) -> None:
    """Begins a profile of everything that this process does for others. Nestable."""
    _get_current_rpc_agent()._node.begin_serving_profile(new_config)


def _disable_server_process_global_profiler() -> list[Any]:
    """Ends the innermost one; a list for each call that was served, of its events by thread."""
    return _get_current_rpc_agent()._node.end_serving_profile()


def _set_profiler_node_id(default_node_id: int) -> None:
    """The rank that this process's profiler events carry."""
    _stock._set_profiler_node_id(default_node_id)
