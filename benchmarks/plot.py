"""A log-log line plot as SVG, without a plotting library: `make bench` needs nothing but Python."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 80, 250, 50, 60


@dataclass(frozen=True)
class Curve:
    label: str
    color: str
    points: list[tuple[float, float]]
    dashed: bool = False


def log_log_svg(title: str, x_ticks: dict[float, str], y_name: str, curves: list[Curve]) -> str:
    """The y axis covers whole decades; `x_ticks` gives the text at each x that is marked."""
    ys = [y for curve in curves for _, y in curve.points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    first, last = math.log(min(x_ticks)), math.log(max(x_ticks))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at_x(x: float) -> float:
        return LEFT + (math.log(x) - first) / (last - first) * (right - LEFT)

    def at_y(y: float) -> float:
        return bottom - (math.log10(y) - low) / max(high - low, 1) * (bottom - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="28" font-size="17">{escape(title)}</text>',
        f'<text x="20" y="{(TOP + bottom) / 2}" transform="rotate(-90 20 {(TOP + bottom) / 2})" text-anchor="middle">'
        f"{escape(y_name)}</text>",
    ]
    for x, text in x_ticks.items():
        parts.append(_line(at_x(x), TOP, at_x(x), bottom))
        parts.append(
            f'<text x="{at_x(x):.1f}" y="{bottom + 22}" text-anchor="middle">{escape(text)}</text>'
        )
    for exponent in range(low, high + 1):
        y = at_y(10**exponent)
        parts.append(_line(LEFT, y, right, y))
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**exponent:,g}</text>'
        )
    for index, curve in enumerate(curves):
        dash = ' stroke-dasharray="7 5"' if curve.dashed else ""
        style = f'stroke="{curve.color}" stroke-width="2" fill="none"{dash}'
        points = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in curve.points)
        parts.append(f'<polyline points="{points}" {style}/>')
        y = TOP + 14 + 24 * index
        parts.append(f'<path d="M {right + 14} {y} h 30" {style}/>')
        parts.append(f'<text x="{right + 52}" y="{y + 4}">{escape(curve.label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
