"""TensorPipe's names for transports and channels, and what they mean here."""

from __future__ import annotations

import logging
from collections.abc import Sequence

logger = logging.getLogger(__name__)

_OURS = {"shm": "shm", "uv": "tcp"}
_WITHOUT_COUNTERPART = {"ibv": "hawser has no InfiniBand transport"}
_CHANNELS = frozenset(
    ["basic", "cma", "mpt_uv", "xth", "cuda_basic", "cuda_gdr", "cuda_ipc", "cuda_xth"]
)


def check_names(transports: Sequence[str] | None, channels: Sequence[str] | None) -> None:
    """Raises for a name that TensorPipe does not know either."""
    for name in transports or ():
        if name not in _OURS and name not in _WITHOUT_COUNTERPART:
            raise RuntimeError(f"Unknown transport: {name}")
    for name in channels or ():
        if name not in _CHANNELS:
            raise RuntimeError(f"Unknown channel: {name}")


def choose_transports(
    transports: Sequence[str] | None, channels: Sequence[str] | None
) -> tuple[str, ...]:
    """hawser's transports for those that were asked for, in the same order."""
    check_names(transports, channels)
    if channels is not None:
        logger.info("channels %s: not needed, hawser's transports carry tensors", list(channels))
    if transports is None:
        return ("shm", "tcp")
    for name in transports:
        if name in _WITHOUT_COUNTERPART:
            logger.warning("transport %s skipped: %s", name, _WITHOUT_COUNTERPART[name])
    chosen = tuple(dict.fromkeys(_OURS[name] for name in transports if name in _OURS))
    if not chosen:
        raise RuntimeError(
            f"None of the transports {list(transports)} can be used: "
            + "; ".join(f"{name}: {_WITHOUT_COUNTERPART[name]}" for name in transports)
        )
    return chosen
