"""Reads the timelines that `hawser.profiler` writes: where calls spend their time, in text and picture."""

from __future__ import annotations

import collections
import html
import json
import pathlib
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Call", "Life", "calls", "lives", "load", "parse_call_name", "picture", "summary"]

_CALL = re.compile(r"^(?P<style>\w+)#(?P<function>.*)\((?P<from>[^() ]+) -> (?P<to>[^() ]+)\)$")
_FETCH = re.compile(r"^(?P<function>to_here)#\((?P<from>[^()]+)\)->\((?P<to>[^()]+)\)$")


def parse_call_name(name: str) -> dict[str, str]:
    """The parts of "rpc_sync#f(a -> b)": style, function, from, to."""
    found = _CALL.match(name) or _FETCH.match(name)
    return found.groupdict() if found else {"function": name}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call as its caller saw it, in microseconds."""

    function: str
    source: str
    peer: str
    start: float  # the function was called
    written: float  # the request was written
    end: float  # the answer was there, or it was clear that there would be none
    request_bytes: int

    @property
    def total(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Life(Call):
    """A call whose callee has told about it; its times as far as the clocks are known."""

    received: float
    begun: float
    returned: float
    answered: float
    answer_bytes: int

    @property
    def serialisation(self) -> float:
        return (self.written - self.start) + (self.answered - self.returned)

    @property
    def transit(self) -> float:
        """Both ways; the clocks of the two nodes do not matter for that."""
        return max(0.0, (self.end - self.written) - (self.answered - self.received))

    @property
    def queueing(self) -> float:
        return self.begun - self.received

    @property
    def execution(self) -> float:
        return self.returned - self.begun


def load(path: str) -> dict[str, Any]:
    """Raises ValueError for what is not a timeline of hawser."""
    trace = json.loads(pathlib.Path(path).read_text())
    if not isinstance(trace, dict) or "hawser" not in trace:
        raise ValueError(f"{path} is not a timeline that hawser.profiler has written")
    return trace


def calls(trace: dict[str, Any]) -> list[Call]:
    """All calls, in the order in which they were made. Those whose callee did not tell about them are no
    lives: their time was up, the callee was lost or refused them, or its record did not fit."""
    made: dict[int, dict[str, Any]] = {}
    services: dict[int, dict[str, Any]] = {}
    phases: dict[tuple[int, str], dict[str, Any]] = {}
    for event in trace["traceEvents"]:
        kind = event.get("cat")
        if kind == "call":
            made[event["args"]["call"]] = event
        elif kind == "service":
            services[event["args"]["call"]] = event
        elif kind == "phase":
            phases[event["args"]["call"], event["name"]] = event
    found: list[Call] = []
    for number, call in made.items():
        written = phases[number, "write request"]
        seen_by_caller: dict[str, Any] = {
            "function": call["args"]["function"],
            "source": call["args"].get("from", "?"),
            "peer": call["args"].get("to", "?"),
            "start": call["ts"],
            "written": written["ts"] + written["dur"],
            "end": call["ts"] + call["dur"],
            "request_bytes": call["args"]["bytes"],
        }
        service = services.get(number)
        if service is None:
            found.append(Call(**seen_by_caller))
            continue
        run = phases[number, "run"]
        found.append(
            Life(
                **seen_by_caller,
                received=service["ts"],
                begun=run["ts"],
                returned=run["ts"] + run["dur"],
                answered=service["ts"] + service["dur"],
                answer_bytes=service["args"]["bytes"],
            )
        )
    return sorted(found, key=lambda call: call.start)


def lives(trace: dict[str, Any]) -> list[Life]:
    """The calls whose two sides are known, in the order in which they were made."""
    return [call for call in calls(trace) if isinstance(call, Life)]


# --- text ---


def summary(trace: dict[str, Any]) -> str:
    """A table: a line for each function and peer, those that took the most time first."""
    groups: dict[tuple[str, str, str], list[Call]] = collections.defaultdict(list)
    for call in calls(trace):
        groups[call.function, call.source, call.peer].append(call)
    head = (
        *("function", "from -> to", "calls", "unanswered", "mean us", "max us"),
        *("transit", "queueing", "execution", "serialisation", "sent", "received"),
    )
    rows: list[tuple[str, ...]] = [head]
    for (function, source, peer), group in sorted(
        groups.items(), key=lambda group: -sum(call.total for call in group[1])
    ):
        answered = [call for call in group if isinstance(call, Life)]
        rows.append(
            (
                function,
                f"{source} -> {peer}",
                str(len(group)),
                str(len(group) - len(answered) or "-"),
                f"{sum(call.total for call in group) / len(group):.1f}",
                f"{max(call.total for call in group):.1f}",
                *_parts(answered),
                _bytes(sum(call.request_bytes for call in group)),
                _bytes(sum(life.answer_bytes for life in answered)),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines + _notes(trace))


def _parts(answered: list[Life]) -> list[str]:
    """The means of transit, queueing, execution and serialisation, and their shares of the whole."""
    total = sum(life.total for life in answered) or 1.0
    parts = []
    for part in ("transit", "queueing", "execution", "serialisation"):
        spent = sum(getattr(life, part) for life in answered)
        parts.append(
            f"{spent / len(answered):.1f} ({100 * spent / total:.0f}%)" if answered else "-"
        )
    return parts


def _notes(trace: dict[str, Any]) -> list[str]:
    about = trace["hawser"]
    notes = ["", "Times are means in us, with their share of the call's time; both directions."]
    if any(not isinstance(call, Life) for call in calls(trace)):
        notes.append(
            "Calls are unanswered if their callee did not tell about them: their time was up, it was "
            "lost or refused them. Their time counts in mean and max, and not in the parts."
        )
    for process in about["processes"]:
        error = process["clock_error_us"]
        if error:
            notes.append(f"The clock of {process['name']} is known to within {error:.1f} us.")
    if about["dropped_events"]:
        notes.append(f"{about['dropped_events']} events did not fit and are missing.")
    return notes


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


# --- picture ---

_COLOURS = {
    "write request": "#7a9cc6",
    "on its way": "#555555",
    "waits": "#e6e9ee",
    "queued": "#e0a458",
    "run": "#5b9f6b",
    "write answer": "#7a9cc6",
}
_LEFT, _WIDTH, _ROW, _BAR = 150, 860, 70, 34


def picture(trace: dict[str, Any], which: int | None = None) -> str:
    """One call's life as SVG: call number `which`, or the one that took longest."""
    calls = lives(trace)
    if not calls:
        raise ValueError("there is no call in the timeline whose two sides are known")
    if which is not None and not 0 <= which < len(calls):
        raise ValueError(f"there is no call number {which}; there are {len(calls)}")
    life = max(calls, key=lambda each: each.total) if which is None else calls[which]
    return _Picture(life).drawn()


class _Picture:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._out: list[str] = []

    def _x(self, us: float) -> float:
        # What a clock that is not quite known puts before the call or after it stays in the picture.
        at = (us - self._life.start) / (self._life.total or 1.0)
        return _LEFT + _WIDTH * min(1.0, max(0.0, at))

    def _text(self, x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> None:
        self._out.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
            f"{html.escape(text)}</text>"
        )

    def _bar(self, row: int, what: str, start: float, end: float) -> None:
        x, top = self._x(start), 60 + row * _ROW
        width = max(1.0, self._x(end) - x)
        self._out.append(
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2" '
            f'fill="{_COLOURS[what]}"><title>{what}: {end - start:.1f} us</title></rect>'
        )

    def _arrow(self, start: float, from_row: int, end: float, to_row: int) -> None:
        down = to_row > from_row
        y = 60 + from_row * _ROW + (_BAR if down else 0)
        to = 60 + to_row * _ROW + (0 if down else _BAR)
        self._out.append(
            f'<line x1="{self._x(start):.1f}" y1="{y}" x2="{self._x(end):.1f}" y2="{to}" '
            f'stroke="#555" stroke-width="1.5" marker-end="url(#tip)"/>'
        )

    def drawn(self) -> str:
        life = self._life
        self._text(20, 30, f"{life.function}: {life.total:.1f} us", size=16)
        for row, name in enumerate((life.source, life.peer)):
            self._text(_LEFT - 12, 60 + row * _ROW + 22, name, "end")
        self._bar(0, "write request", life.start, life.written)
        self._bar(0, "waits", life.written, life.end)
        self._bar(1, "queued", life.received, life.begun)
        self._bar(1, "run", life.begun, life.returned)
        self._bar(1, "write answer", life.returned, life.answered)
        self._arrow(life.written, 0, life.received, 1)
        self._arrow(life.answered, 1, life.end, 0)
        x = float(_LEFT)
        for what, us in (
            ("write request", life.written - life.start),
            ("on its way", life.transit),
            ("queued", life.queueing),
            ("run", life.execution),
            ("write answer", life.answered - life.returned),
        ):
            label = f"{what} {us:.1f} us"
            y = 60 + 2 * _ROW
            self._out.append(
                f'<rect x="{x:.1f}" y="{y}" width="12" height="12" fill="{_COLOURS[what]}"/>'
            )
            self._text(x + 17, y + 11, label)
            x += 30 + 7.2 * len(label)
        sizes = f"{_bytes(life.request_bytes)} sent, {_bytes(life.answer_bytes)} received"
        self._text(_LEFT, 60 + 2 * _ROW + 36, sizes)
        width, height = _LEFT + _WIDTH + 30, 60 + 2 * _ROW + 56
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" font-family="sans-serif" fill="#222">',
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
                'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker>'
                "</defs>",
                f'<rect width="{width}" height="{height}" fill="#fff"/>',
                *self._out,
                "</svg>",
                "",
            ]
        )
