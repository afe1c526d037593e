"""Who may change the membership of a dynamic world."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

logger = logging.getLogger(__name__)

_TOKEN_KEY = "RpcGroupManagementToken"
_ROSTER_KEY = "names/_ALL_WORKER_INFOS"


@contextmanager
def _group_membership_management(
    store: Store, name: str, is_join: bool, timeout: timedelta | None = None
) -> Iterator[None]:
    """One member at a time joins or leaves. Released whatever happens inside.

    Raises when a holder does not let go within `timeout`, or within the store's.
    """
    patience = () if timeout is None else (timeout,)
    # Of one use only, so that nobody waits for a key that an earlier use has left behind.
    token = f"Token_for_{name}_{'join' if is_join else 'leave'}_{uuid.uuid4().hex}"
    while (holder := store.compare_set(_TOKEN_KEY, "", token).decode()) != token:
        if not holder:
            continue  # released between the attempt and the answer
        try:
            store.wait([holder], *patience)
        except RuntimeError:
            logger.error("%s timed out waiting for %s to be released.", token, holder)
            raise
    try:
        yield
    finally:
        # Both, also if the first fails: whoever waits for the second tries again.
        with contextlib.ExitStack() as release:
            release.callback(store.set, token, "Done")
            release.callback(store.compare_set, _TOKEN_KEY, token, "")


def _read_roster(store: Store) -> dict[str, dict[str, Any]]:
    """The members by name, and what each has told about its devices. Under the token."""
    if not store.check([_ROSTER_KEY]):
        return {}
    return json.loads(store.get(_ROSTER_KEY).decode() or "{}")


def _write_roster(store: Store, roster: dict[str, dict[str, Any]]) -> None:
    store.set(_ROSTER_KEY, json.dumps(roster))


def _update_group_membership(
    worker_info: Any, my_devices: list[Any], reverse_device_map: dict[str, Any], is_join: bool
) -> None:
    """Called on every member when another one joins or leaves."""
    from . import api

    agent = api._get_current_rpc_agent()
    agent._update_group_membership(worker_info, my_devices, reverse_device_map, is_join)
    api._members_changed(agent, worker_info.name)
