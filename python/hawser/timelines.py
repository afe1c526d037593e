"""Timelines as a whole: several put together, and a picture of all processes over a stretch of time."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["merge", "picture"]

_LANES = (
    1_000_000  # tracks from here on are of calls, services and backward passes; see profiler.py
)
_LANES_OF_A_FILE = 1_000


def merge(timelines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One timeline of several that were recorded at the same time, by programs that share a clock.

    Processes that are in several of them appear once. Each timeline has the times of the process that
    wrote it: between hosts they are as far apart as the clocks of these are.
    """
    timelines = list(timelines)
    base = min(timeline["baseTimeNanoseconds"] for timeline in timelines)
    numbers: dict[tuple[str, int], int] = {}
    processes: dict[int, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    titles: dict[tuple[str, int, int], dict[str, Any]] = {}
    for place, timeline in enumerate(timelines):
        later = (timeline["baseTimeNanoseconds"] - base) / 1000
        renumbered = {}
        for process in timeline["hawser"]["processes"]:
            number = numbers.setdefault((process["name"], process["pid"]), len(numbers) + 1)
            renumbered[process["trace_pid"]] = number
            known = processes.setdefault(number, {**process, "trace_pid": number})
            # What is in the file with the larger error stays where that has put it.
            error = max(known["clock_error_us"], process["clock_error_us"])
            known["clock_error_us"] = error
        for event in timeline["traceEvents"]:
            moved = {**event, "pid": renumbered[event["pid"]]}
            if moved.get("tid", 0) >= _LANES:
                moved["tid"] += place * _LANES_OF_A_FILE
            if event["ph"] == "M":
                titles.setdefault((event["name"], moved["pid"], moved["tid"]), moved)
            else:
                events.append({**moved, "ts": event["ts"] + later})
    return {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base,
        "traceEvents": [*titles.values(), *events],
        "hawser": {
            "version": 1,
            "dropped_events": sum(each["hawser"]["dropped_events"] for each in timelines),
            "processes": list(processes.values()),
        },
    }


# --- picture ---

_LEFT, _WIDTH, _TOP, _ROW, _BAR, _FONT = 110, 1090, 64, 20, 16, 10
_LETTER = 0.6 * _FONT  # width; a little more than letters have on average
_COLOURS = {
    "operator": "#c5d4ea",
    "inner operator": "#dfe8f5",
    "waits for the answer": "#e6e9ee",
    "writes": "#7a9cc6",
    "queued, or finds out what to wait for": "#e0a458",
    "runs": "#6fae7d",
    "runs backward": "#d08770",
    "waits for the others": "#c9c3d6",
}
_PHASES = {
    "write request": "writes",
    "queued": "queued, or finds out what to wait for",
    "discover": "queued, or finds out what to wait for",
    "run": "runs",
    "write answer": "writes",
    "commit": "waits for the others",
}
_ARROWS = {"request": "#555555", "answer": "#555555", "gradient": "#c04a20"}
_DEPTH = 4  # operators in operators are drawn to that depth, if they can be read


@dataclass
class _Bar:
    start: float
    end: float
    kind: str
    text: str
    about: str


@dataclass
class _Row:
    process: int
    track: int
    depth: int
    title: str
    bars: list[_Bar] = field(default_factory=list)
    y: float = 0.0


def picture(trace: dict[str, Any], start: float | None = None, end: float | None = None) -> str:
    """All processes from `start` to `end`, in microseconds from the timeline's beginning, as SVG."""
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    if not slices:
        raise ValueError("there is nothing in the timeline")
    start = min(each["ts"] for each in slices) if start is None else start
    end = max(each["ts"] + each["dur"] for each in slices) if end is None else end
    if end <= start:
        raise ValueError(f"there is no time between {start:g} us and {end:g} us")
    return _Picture(trace, start, end).drawn()


def _short(name: str) -> str:
    """Without what all names of a kind have in common."""
    for prefix in ("autograd::engine::evaluate_function: ", "aten::"):
        name = name.removeprefix(prefix)
    return name.rpartition("::")[2].rpartition(":")[2] or name


class _Picture:
    def __init__(self, trace: dict[str, Any], start: float, end: float) -> None:
        self._start, self._end = start, end
        self._names = {p["trace_pid"]: p["name"] for p in trace["hawser"]["processes"]}
        self._titles = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in trace["traceEvents"]
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        self._rows: dict[tuple[int, int, int], _Row] = {}
        self._out: list[str] = []
        self._fill(trace["traceEvents"])
        self._arrows = self._pair(trace["traceEvents"])

    # What is drawn where.

    def _fill(self, events: list[dict[str, Any]]) -> None:
        slices = sorted(
            (e for e in events if e["ph"] == "X"),
            key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"]),
        )
        backward = {
            e["args"]["call"] for e in slices if e["cat"] == "service" and "pass" in e["args"]
        }
        open_until: list[float] = []
        last = None
        for event in slices:
            if last != (event["pid"], event["tid"]):
                last, open_until = (event["pid"], event["tid"]), []
            ends = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            if ends < self._start or event["ts"] > self._end:
                continue
            if event["cat"] == "op":
                if len(open_until) < _DEPTH:
                    kind = "inner operator" if open_until else "operator"
                    self._bar(event, len(open_until), kind, _short(event["name"]))
                open_until.append(ends)
            elif event["cat"] in ("call", "service", "part"):
                self._bar(event, 0, "waits for the answer", self._label(event))
            else:
                kind = _PHASES[event["name"]]
                runs_backward = event["cat"] == "part phase" or event["args"]["call"] in backward
                if kind == "runs" and runs_backward:
                    kind = "runs backward"
                self._bar(event, 0, kind, "")

    @staticmethod
    def _label(event: dict[str, Any]) -> str:
        if event["cat"] == "call":
            return f"{_short(event['args']['function'])} \u2192 {event['args'].get('to', '?')}"
        return _short(event["name"])

    def _bar(self, event: dict[str, Any], depth: int, kind: str, text: str) -> None:
        place = (event["pid"], event["tid"], depth)
        if place not in self._rows:
            title = self._titles.get(place[:2], "") if depth == 0 else ""
            self._rows[place] = _Row(event["pid"], event["tid"], depth, title)
        about = f"{event['name']}: {event['dur']:.1f} us"
        ends = event["ts"] + event["dur"]
        self._rows[place].bars.append(_Bar(event["ts"], ends, kind, text, about))

    def _pair(
        self, events: list[dict[str, Any]]
    ) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Ends of arrows that are both in the picture."""
        flows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for event in events:
            if event["ph"] in "stf" and self._start <= event["ts"] <= self._end:
                flows.setdefault((event["name"], event["id"]), []).append(event)
        arrows = []
        for (name, _), ends in flows.items():
            ends.sort(key=lambda end: end["ph"] != "s")  # and else as they were
            kind = "gradient" if name.startswith("gradient") else name
            arrows += [(kind, a, b) for a, b in zip(ends, ends[1:], strict=False)]
        return arrows

    # Drawing.

    def _x(self, us: float) -> float:
        at = (us - self._start) / (self._end - self._start)
        return _LEFT + _WIDTH * min(1.0, max(0.0, at))

    def _width(self, bar: _Bar) -> float:
        return self._x(bar.end) - self._x(bar.start)

    def _is_worth_a_row(self, row: _Row) -> bool:
        return row.depth == 0 or any(self._width(bar) > 6 + 4 * _LETTER for bar in row.bars)

    def _text(
        self, x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self._out.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{html.escape(text)}</text>'
        )

    def _draw_axis(self, bottom: float) -> None:
        step = 10 ** math.floor(math.log10((self._end - self._start) / 4))
        step = next(s * step for s in (1, 2, 5, 10) if (self._end - self._start) / (s * step) <= 12)
        for tick in range(int((self._end - self._start) / step) + 1):
            us = tick * step
            x = self._x(self._start + us)
            self._out.append(
                f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#e3e3e3"/>'
            )
            shown = f"{us / 1000:g} ms" if step >= 100 else f"{us:g} us"
            self._text(x, _TOP - 14, shown, anchor="middle")

    def _draw_row(self, row: _Row) -> None:
        if row.title:
            self._text(_LEFT - 8, row.y + 12, row.title, anchor="end")
        for bar in row.bars:
            x, width = self._x(bar.start), max(0.6, self._width(bar))
            self._out.append(
                f'<rect x="{x:.1f}" y="{row.y:.1f}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{_COLOURS[bar.kind]}"><title>{html.escape(bar.about)}</title></rect>'
            )

    def _draw_texts(self, row: _Row) -> None:
        for bar in row.bars:
            letters = int((self._width(bar) - 6) / _LETTER)
            cut = bar.text[: letters - 1] + "\u2026" if letters >= 4 else ""
            text = bar.text if len(bar.text) <= letters else cut
            if text:
                self._text(self._x(bar.start) + 4, row.y + 12, text)

    def _draw_arrow(self, kind: str, start: dict[str, Any], end: dict[str, Any]) -> None:
        rows = [self._rows.get((each["pid"], each["tid"], 0)) for each in (start, end)]
        if rows[0] is None or rows[1] is None:
            return
        x, to_x = self._x(start["ts"]), self._x(end["ts"])
        y, to_y = rows[0].y + _BAR / 2, rows[1].y + _BAR / 2
        colour = _ARROWS[kind]
        if kind == "gradient":  # a bow below the bars that it passes
            low = max(y, to_y) + _BAR * 0.9
            path = f"M{x:.1f},{y:.1f} C{x:.1f},{low:.1f} {to_x:.1f},{low:.1f} {to_x:.1f},{to_y:.1f}"
        else:
            path = f"M{x:.1f},{y:.1f} L{to_x:.1f},{to_y:.1f}"
        dashes = ' stroke-dasharray="4 3"' if kind == "gradient" else ""
        self._out.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-opacity="0.75"{dashes} '
            f'marker-end="url(#{kind})"/>'
        )

    def _draw_legend(self, rows: list[_Row], y: float) -> float:
        x = float(_LEFT)
        used = {bar.kind for row in rows for bar in row.bars}
        entries = [(what, colour) for what, colour in _COLOURS.items() if what in used]
        drawn = {kind for kind, _, _ in self._arrows}
        if drawn & {"request", "answer"}:
            entries.append(("\u2192 request, answer", _ARROWS["request"]))
        if "gradient" in drawn:
            entries.append(("\u21e2 from forward to backward", _ARROWS["gradient"]))
        for what, colour in entries:
            width = 26 + _LETTER * len(what)
            if x + width > _LEFT + _WIDTH:
                x, y = float(_LEFT), y + 18
            self._out.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" fill="{colour}"/>'
            )
            self._text(x + 16, y + 10, what)
            x += width
        return y + 24

    def drawn(self) -> str:
        y = float(_TOP)
        rows = [row for _, row in sorted(self._rows.items()) if self._is_worth_a_row(row)]
        headings = []
        for place, row in enumerate(rows):
            if place == 0 or rows[place - 1].process != row.process:
                y += 8 if place else 0
                headings.append((y + 12, self._names[row.process]))
                y += _ROW
            row.y = y
            y += _ROW
        self._draw_axis(y + 4)
        for at, name in headings:
            self._text(12, at, name, bold=True)
        for row in rows:
            self._draw_row(row)
        for kind, start, end in self._arrows:
            self._draw_arrow(kind, start, end)
        for row in rows:  # last: arrows begin where texts do
            self._draw_texts(row)
        height = self._draw_legend(rows, y + 16)
        width = _LEFT + _WIDTH + 30
        tips = "".join(
            f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
            f'markerHeight="6" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
            for kind, colour in _ARROWS.items()
        )
        title = ", ".join(self._names[number] for number in sorted({p for p, _, _ in self._rows}))
        lasted = (self._end - self._start) / 1000
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
                f'width="{width}" height="{height:.0f}" font-family="sans-serif" '
                f'font-size="{_FONT}" fill="#222">',
                f"<defs>{tips}</defs>",
                f'<rect width="{width}" height="{height:.0f}" fill="#fff"/>',
                f'<text x="12" y="24" font-size="15">{html.escape(title)}: {lasted:.2f} ms</text>',
                *self._out,
                "</svg>",
                "",
            ]
        )
