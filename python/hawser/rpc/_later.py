"""Stand-ins for what is not there yet: profiling.

Everything that a later change replaces is here and nowhere else. What init_rpc and shutdown call
does nothing; what a program would call raises NotImplementedError.
"""

from __future__ import annotations

from typing import Any

from . import _stock


def _not_yet(what: str) -> NotImplementedError:
    return NotImplementedError(f"hawser.rpc does not have {what} yet")


# --- profiling ---


class RemoteProfilerManager:
    @staticmethod
    def set_current_profiling_key(key: str) -> None:
        raise _not_yet("remote profiling")


def _enable_server_process_global_profiler(new_config: Any) -> None:
    raise _not_yet("remote profiling")


def _disable_server_process_global_profiler() -> list[Any]:
    raise _not_yet("remote profiling")


def _set_profiler_node_id(default_node_id: int) -> None:
    """The rank that this process's profiler events carry."""
    _stock._set_profiler_node_id(default_node_id)
