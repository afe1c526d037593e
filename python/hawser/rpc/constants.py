"""Defaults of the drop-in. Times are in seconds."""

from datetime import timedelta

_DEFAULT_RPC_TIMEOUT_SEC: float = 60.0
_DEFAULT_INIT_METHOD: str = "env://"
_DEFAULT_NUM_WORKER_THREADS: int = 16
_UNSET_RPC_TIMEOUT: float = -1.0

DEFAULT_RPC_TIMEOUT_SEC: float = _DEFAULT_RPC_TIMEOUT_SEC
DEFAULT_INIT_METHOD: str = _DEFAULT_INIT_METHOD
# No limit: a graceful shutdown waits for its peers however long they work.
DEFAULT_SHUTDOWN_TIMEOUT: float = 0
DEFAULT_NUM_WORKER_THREADS: int = _DEFAULT_NUM_WORKER_THREADS
DEFAULT_PROCESS_GROUP_TIMEOUT: timedelta = timedelta(milliseconds=2**31 - 1)
# Stands for "whatever the agent's default is" wherever a timeout can be given.
UNSET_RPC_TIMEOUT: float = _UNSET_RPC_TIMEOUT

__all__: list[str] = []
