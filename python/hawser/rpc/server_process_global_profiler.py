"""A profile of everything that this process does for others."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.autograd.profiler_legacy import profile

from ._profiling import (
    _disable_server_process_global_profiler,
    _enable_server_process_global_profiler,
)

__all__: list[str] = []


class _server_process_global_profile(profile):
    """As torch.autograd.profiler.profile, but of all threads that serve calls.

    Afterwards `process_global_function_events` has one list of events for each call that was
    served, and `function_events` has them all.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def __enter__(self) -> Any:
        if not self.enabled:
            return None
        if self.entered:
            raise RuntimeError("autograd profiler traces are not reentrant")
        self.entered = True
        kinds = torch.autograd.ProfilerState
        _enable_server_process_global_profiler(
            torch.autograd.ProfilerConfig(
                kinds.CUDA if self.use_cuda else kinds.CPU,
                self.record_shapes,
                self.profile_memory,
                False,
                False,
                False,
                torch.profiler._ExperimentalConfig(),
            )
        )
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool | None:
        if not self.enabled:
            return None
        self.process_global_function_events = []
        for records in _disable_server_process_global_profiler():
            events = torch.autograd.profiler_legacy._parse_legacy_records(records)
            events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
            self.process_global_function_events.append(events)
        self.function_events = torch.autograd.profiler_util.EventList(
            list(itertools.chain.from_iterable(self.process_global_function_events)),
            use_device="cuda" if self.use_cuda else None,
            profile_memory=self.profile_memory,
        )
        self.function_events._build_tree()
        return False
