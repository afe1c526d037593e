"""One timeline of all processes that take part in what this thread does.

    with hawser.profiler.profile() as timeline:
        train_step()
    timeline.export_chrome_trace("step.json")     # for ui.perfetto.dev or chrome://tracing
    print(timeline.summary())                     # where the time of calls went

While it is on, every call that this thread makes asks its callee to record what it does, and what the
callee's own calls do, to any depth; the records come back with the answers. Nothing has to be
started elsewhere, and nodes written in C++ take part. What profilers of torch show, they show as
well: docs/profiling.md says what is for what.
"""

from __future__ import annotations

import enum
import json
import os
import pathlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hawser import _native, traces
from hawser.errors import Invalid
from hawser.references import current_node

__all__ = ["Event", "Kind", "Process", "profile"]


class Kind(enum.IntEnum):
    """What an event is; as in the protocol."""

    RANGE = 0
    MEMORY = 1
    CALL = 2
    SERVICE = 3
    PART = 4


@dataclass(frozen=True)
class Process:
    """Where something happened. Times of it may be off by `clock_error_ns`."""

    name: str
    pid: int
    rank: int | None
    clock_error_ns: int


@dataclass(frozen=True)
class Event:
    """One thing that happened, in nanoseconds of this process's wall clock.

    CALL: made at `start_ns`, written at `begun_ns`, answered at `end_ns`.
    SERVICE: received at `start_ns`, begun at `begun_ns`, returned at `done_ns`, answered at `end_ns`.
    The two sides of a call have the same `call`.

    PART: what a process did in a backward pass. It was begun, or heard of, at `start_ns`; what to wait
    for was known at `begun_ns`; all functions had run at `done_ns`; and at `end_ns` the process that
    had begun the pass knew that all had. The pass has a number, `in_pass`, which calls and services by
    which gradients are sent have as well.

    Tensors that a call sends in a context of autograd have a number, and so have those that its answer
    brings: `received` and `sent` of its SERVICE. `sent` of the SERVICE of gradients is the number of the
    tensors that they are the gradients of.
    """

    kind: Kind
    process: Process
    thread: int
    name: str
    start_ns: int
    end_ns: int
    call: int = 0
    begun_ns: int = 0
    done_ns: int = 0
    bytes: int = 0
    shapes: list[list[int]] = field(default_factory=list)
    received: int = 0
    sent: int = 0
    in_pass: int = 0


def _split(shapes: list[int]) -> list[list[int]]:
    """From "number of dimensions, dimensions", one after the other."""
    each = []
    at = 0
    while at < len(shapes):
        each.append(shapes[at + 1 : at + 1 + shapes[at]])
        at += 1 + shapes[at]
    return each


class profile:
    """Records while it is entered; may be entered once."""

    def __init__(self, *, record_shapes: bool = False, profile_memory: bool = False) -> None:
        name, rank = f"process {os.getpid()}", None
        try:
            node = current_node()
            name, rank = node.name, node.rank
        except (Invalid, RuntimeError):
            pass  # there is no node yet: the process is called by its number
        self._recorder = _native.Recorder(name, rank, record_shapes, profile_memory)
        self._entered = False
        self.processes: list[Process] = []
        self.events: list[Event] = []
        self.dropped = 0

    def __enter__(self) -> profile:
        if self._entered:
            raise RuntimeError("a profile can be used once")
        self._entered = True
        self._recorder.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        self._recorder.end()
        recorded = self._recorder.take()
        self.processes = [
            Process(name, pid, None if rank < 0 else rank, error)
            for name, pid, rank, error in recorded["processes"]
        ]
        self.dropped = recorded["dropped"]
        self.events += [self._event(*fields) for fields in recorded["events"]]
        self.events.sort(key=lambda event: (event.start_ns, -event.end_ns))

    def _event(
        self,
        kind: int,
        _scope: int,
        process: int,
        thread: int,
        name: str,
        start_ns: int,
        end_ns: int,
        call: int,
        begun_ns: int,
        done_ns: int,
        size: int,
        shapes: list[int],
        received: int,
        sent: int,
        in_pass: int,
    ) -> Event:
        return Event(
            kind=Kind(kind),
            process=self.processes[process],
            thread=thread,
            name=name,
            start_ns=start_ns,
            end_ns=end_ns,
            call=call,
            begun_ns=begun_ns,
            done_ns=done_ns,
            bytes=size,
            shapes=_split(shapes),
            received=received,
            sent=sent,
            in_pass=in_pass,
        )

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline, one group of tracks for each process."""
        pathlib.Path(path).write_text(json.dumps(self.as_chrome_trace()))

    def as_chrome_trace(self) -> dict[str, Any]:
        return _Drawing(self).drawn()

    def summary(self) -> str:
        """For each function and peer: how many calls, and where their time went."""
        return traces.summary(self.as_chrome_trace())


_FIRST_LANE = 1_000_000  # numbers of threads are smaller


class _Lanes:
    """Tracks for things that overlap: each gets the first that is free."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._free_from: list[int] = []

    def place(self, start: int, end: int) -> int:
        for lane, free_from in enumerate(self._free_from):
            if free_from <= start:
                self._free_from[lane] = end
                return self._first + lane
        self._free_from.append(end)
        return self._first + len(self._free_from) - 1

    def __iter__(self) -> Any:
        return iter(range(self._first, self._first + len(self._free_from)))


class _Touch(NamedTuple):
    """Where something about a message of autograd is drawn. The forward pass comes first."""

    is_backward: bool
    ns: int
    process: int
    track: int


def _inside(event: Event, ns: int) -> int:
    """A moment at which the event has not ended: an arrow at its very end would touch nothing."""
    return max(event.start_ns, min(ns, event.end_ns - 1))


class _Drawing:
    """Turns what was recorded into the trace format of Chrome."""

    def __init__(self, profile: profile) -> None:
        self._profile = profile
        self._number = {process: i + 1 for i, process in enumerate(profile.processes)}
        self._calls = {process: _Lanes(_FIRST_LANE) for process in profile.processes}
        self._services = {process: _Lanes(2 * _FIRST_LANE) for process in profile.processes}
        self._parts = {process: _Lanes(3 * _FIRST_LANE) for process in profile.processes}
        self._threads: set[tuple[int, int]] = set()
        self._out: list[dict[str, Any]] = []
        self._base = min((event.start_ns for event in profile.events), default=0)
        self._served = {e.call: e for e in profile.events if e.kind == Kind.SERVICE}
        self._memory: dict[int, int] = {}
        self._touched: dict[tuple[str, int], list[_Touch]] = {}

    def drawn(self) -> dict[str, Any]:
        draw = {
            Kind.RANGE: self._range,
            Kind.MEMORY: self._allocation,
            Kind.CALL: self._call,
            Kind.SERVICE: self._service,
            Kind.PART: self._part,
        }
        for event in self._profile.events:
            draw[event.kind](event)
        self._link_backward()
        return {
            "displayTimeUnit": "ns",
            "baseTimeNanoseconds": self._base,
            "traceEvents": self._titles() + self._out,
            "hawser": {
                "version": 1,
                "dropped_events": self._profile.dropped,
                "processes": [
                    {
                        "trace_pid": number,
                        "name": process.name,
                        "pid": process.pid,
                        "rank": process.rank,
                        "clock_error_us": process.clock_error_ns / 1000,
                    }
                    for process, number in self._number.items()
                ],
            },
        }

    def _us(self, ns: int) -> float:
        return (ns - self._base) / 1000

    def _slice(
        self, process: int, track: int, name: str, kind: str, start: int, end: int, **args: Any
    ) -> None:
        self._out.append(
            {
                "ph": "X",
                "name": name,
                "cat": kind,
                "pid": process,
                "tid": track,
                "ts": self._us(start),
                "dur": max(0, end - start) / 1000,
                "args": args,
            }
        )

    def _range(self, event: Event) -> None:
        process = self._number[event.process]
        self._threads.add((process, event.thread))
        args = {"shapes": event.shapes} if event.shapes else {}
        self._slice(process, event.thread, event.name, "op", event.start_ns, event.end_ns, **args)

    def _allocation(self, event: Event) -> None:
        process = self._number[event.process]
        self._memory[process] = self._memory.get(process, 0) + event.bytes
        self._out.append(
            {
                "ph": "C",
                "name": "memory since the beginning",
                "pid": process,
                "ts": self._us(event.start_ns),
                "args": {"bytes": self._memory[process]},
            }
        )

    def _call(self, event: Event) -> None:
        process = self._number[event.process]
        lane = self._calls[event.process].place(event.start_ns, event.end_ns)
        named = traces.parse_call_name(event.name)
        args = {"call": event.call, "bytes": event.bytes, **named}
        service = self._served.get(event.call)
        if service is not None and service.in_pass:
            args["pass"] = hex(service.in_pass)
        self._slice(process, lane, event.name, "call", event.start_ns, event.end_ns, **args)
        self._slice(
            process, lane, "write request", "phase", event.start_ns, event.begun_ns, call=event.call
        )
        if service is None:
            return
        self._flow("request", "s", event.call, process, lane, event.begun_ns)
        self._flow("answer", "f", event.call, process, lane, _inside(event, event.end_ns))
        # What was received here was sent there.
        if service.in_pass:
            self._touch("received", service.sent, True, process, lane, event.start_ns)
        else:
            self._touch("sent", service.received, False, process, lane, event.begun_ns)
            ended = _inside(event, event.end_ns)
            self._touch("received", service.sent, False, process, lane, ended)

    def _service(self, event: Event) -> None:
        process = self._number[event.process]
        lane = self._services[event.process].place(event.start_ns, event.end_ns)
        args: dict[str, Any] = {"call": event.call, "bytes": event.bytes}
        if event.in_pass:
            args["pass"] = hex(event.in_pass)
        self._slice(process, lane, event.name, "service", event.start_ns, event.end_ns, **args)
        for name, start, end in (
            ("queued", event.start_ns, event.begun_ns),
            ("run", event.begun_ns, event.done_ns),
            ("write answer", event.done_ns, event.end_ns),
        ):
            self._slice(process, lane, name, "phase", start, end, call=event.call)
        self._flow("request", "f", event.call, process, lane, event.start_ns)
        self._flow("answer", "s", event.call, process, lane, _inside(event, event.end_ns))
        if event.in_pass:
            self._touch("sent", event.sent, True, process, lane, event.start_ns)
        else:
            self._touch("received", event.received, False, process, lane, event.begun_ns)
            self._touch("sent", event.sent, False, process, lane, _inside(event, event.done_ns))

    def _part(self, event: Event) -> None:
        process = self._number[event.process]
        lane = self._parts[event.process].place(event.start_ns, event.end_ns)
        number = hex(event.in_pass)
        args = {"pass": number}
        self._slice(process, lane, event.name, "part", event.start_ns, event.end_ns, **args)
        begun = event.begun_ns or event.end_ns
        done = event.done_ns or event.end_ns
        for name, start, end in (
            ("discover", event.start_ns, begun),
            ("run", begun, done),
            ("commit", done, event.end_ns),
        ):
            if end > start:
                self._slice(process, lane, name, "part phase", start, end, **args)

    def _touch(
        self, how: str, message: int, is_backward: bool, process: int, track: int, ns: int
    ) -> None:
        if message:
            touched = self._touched.setdefault((how, message), [])
            touched.append(_Touch(is_backward, ns, process, track))

    def _link_backward(self) -> None:
        """Arrows from where tensors were sent, and received, to where their gradients were there.

        Their id is the number of the tensors' message. Later passes over the same tensors continue them.
        """
        for (how, message), touched in self._touched.items():
            touched.sort()
            if touched[0].is_backward or not touched[-1].is_backward:
                continue  # no gradient of it has been recorded, or nothing but that
            for place, touch in enumerate(touched):
                phase = "s" if place == 0 else "f" if place == len(touched) - 1 else "t"
                name = f"gradient of {how}"
                self._flow(name, phase, message, touch.process, touch.track, touch.ns)

    def _flow(self, name: str, phase: str, number: int, process: int, track: int, ns: int) -> None:
        arrow = {
            "ph": phase,
            "name": name,
            "cat": "flow",
            "id": hex(number),  # as text: JavaScript has no integers of 64 bits
            "pid": process,
            "tid": track,
            "ts": self._us(ns),
        }
        self._out.append(arrow | {"bp": "e"} if phase == "f" else arrow)

    def _titles(self) -> list[dict[str, Any]]:
        titles: list[dict[str, Any]] = []

        def title(kind: str, process: int, track: int, **args: Any) -> None:
            titles.append({"ph": "M", "name": kind, "pid": process, "tid": track, "args": args})

        for process, number in self._number.items():
            rank = "" if process.rank is None else f"rank {process.rank}, "
            error = f", clock within {process.clock_error_ns / 1000:.1f} us" if number > 1 else ""
            title(
                "process_name", number, 0, name=f"{process.name} ({rank}pid {process.pid}{error})"
            )
            title("process_sort_index", number, 0, sort_index=number)
            for lane in self._calls[process]:
                title("thread_name", number, lane, name="calls")
            for lane in self._services[process]:
                title("thread_name", number, lane, name="serving")
            for lane in self._parts[process]:
                title("thread_name", number, lane, name="backward")
        for number, thread in sorted(self._threads):
            title("thread_name", number, thread, name=f"thread {thread}")
        return titles
