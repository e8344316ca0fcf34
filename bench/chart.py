"""The two figures of docs/performance.md as SVG: no script, a background of their own, readable in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from bench.sections import BACKBONES, Known, number

STYLE = """<style>
.paper { fill: #ffffff; stroke: #e5e2da }
.ink { fill: #1a1e24 }
.soft { fill: #5c6470 }
.grid { stroke: #e5e2da }
.one { --c: #0072b2 }
.two { --c: #d55e00 }
.bar { fill: var(--c) }
.dot { fill: var(--c) }
.label { fill: var(--c); font-weight: 600 }
.line { stroke: var(--c); stroke-width: 2; fill: none }
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
.title { font-weight: 600; font-size: 13px }
@media (prefers-color-scheme: dark) {
.paper { fill: #191d23; stroke: #2b313a }
.ink { fill: #ece9e2 }
.soft { fill: #9aa3af }
.grid { stroke: #2b313a }
.one { --c: #4aa8e0 }
.two { --c: #f07a2c }
}
</style>"""
Curve = tuple[str, list[tuple[float, float]]]  # its name, its points


def figures(known: Known) -> dict[str, str]:
    """Those for which there are figures to show."""
    found = {}
    if "exchange" in known and known["exchange"]["measured"]["flower"]:
        found["flower"] = bars(known["exchange"]["measured"])
    if "scaling" in known:
        found["scaling"] = curves(known["scaling"]["measured"])
    return found


def svg(width: int, height: int, says: str, content: Sequence[str]) -> str:
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    card = f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join([f'{frame} aria-label="{escape(says)}">', STYLE, card, *content, "</svg>"]) + "\n"


def words(x: float, y: float, text: str, kind: str = "ink", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


# ---- a round beside Flower


def bars(found: Any) -> str:
    """Three pairs of bars: seconds, CPU seconds, memory. Each pair has a scale of its own that begins at zero."""
    kinds = {"seconds_per_round": "seconds a round", "cpu_seconds_per_round": "CPU seconds a round", "peak_pss_mb": "peak memory, MB"}
    content, says = [], []
    for place, (key, title) in enumerate(kinds.items()):
        left, most = 20 + 240 * place, max(found[side][key] for side in ("siloflow", "flower"))
        content.append(words(left, 28, title, "ink title"))
        for row, (side, name, kind) in enumerate((("siloflow", "siloflow", "one"), ("flower", "Flower", "two"))):
            value, top = found[side][key], 44 + 34 * row
            width = max(1.0, 100 * value / most)
            content.append(words(left, top + 15, name, "soft"))
            content.append(f'<rect class="{kind} bar" x="{left + 60}" y="{top}" width="{width:.1f}" height="20" rx="3"/>')
            content.append(words(left + 66 + width, top + 15, number(value)))
            says.append(f"{name} {number(value)} {title}")
    return svg(740, 124, "A round without training: " + "; ".join(says), content)


# ---- 1 to 50 silos


def curves(found: Any) -> str:
    """Left the seconds of a round, right the memory of all processes, over the number of silos."""
    big = found["resnet-18"]
    time: list[Curve] = [
        ("wall", [(row["silos"], row["seconds_per_round"]) for row in big]),
        ("CPU", [(row["silos"], row["cpu_seconds_per_round"]) for row in big]),
    ]
    memory: list[Curve] = [
        (BACKBONES[backbone], [(row["silos"], row["peak_pss_mb"]) for row in found[backbone]]) for backbone in ("resnet-18", "small-cnn")
    ]
    resident, last = found["most_resident"], big[-1]
    content = panel(56, "seconds a round, ResNet-18, no training", time, resident)
    content += panel(436, "peak memory of all processes, MB", memory, resident)
    says = f"{last['silos']} silos: {number(last['seconds_per_round'])} seconds a round, {number(last['peak_pss_mb'])} MB in all"
    return svg(800, 270, says, content)


def panel(left: int, title: str, drawn: Sequence[Curve], resident: int, width: int = 240, height: int = 170) -> list[str]:
    """Lines are broken after `resident` silos: beyond, processes are shared, and nothing lies on a line between the two."""
    bottom = 44 + height
    furthest = max(x for _, points in drawn for x, _ in points)
    marks = ticks(max(y for _, points in drawn for _, y in points))
    across, up = width / furthest, height / marks[-1]
    content = [words(left - 36, 26, title, "ink title"), words(left + width, bottom + 34, "silos", "soft", "end")]
    for mark in marks:
        y = bottom - up * mark
        content.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}"/>')
        content.append(words(left - 6, y + 4, f"{mark:,g}", "soft", "end"))
    for x in sorted({x for _, points in drawn for x, _ in points if x == 1 or x >= furthest / 10}):
        content.append(words(left + across * x, bottom + 17, f"{x:g}", "soft", "middle"))
    heights = apart([bottom - up * points[-1][1] for _, points in drawn])
    for (name, points), kind, y in zip(drawn, ("one", "two"), heights, strict=True):
        places = [(x, left + across * x, bottom - up * value) for x, value in points]
        for side in ([p for p in places if p[0] <= resident], [p for p in places if p[0] > resident]):
            path = " ".join(f"{x:.1f},{down:.1f}" for _, x, down in side)
            content.append(f'<polyline class="{kind} line" points="{path}"/>')
        content += [f'<circle class="{kind} dot" cx="{x:.1f}" cy="{down:.1f}" r="3"/>' for _, x, down in places]
        content.append(words(left + width + 9, y + 4, name, f"{kind} label"))
    return content


def ticks(most: float) -> list[float]:
    """From zero to above the largest value in round steps, at most six."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    return [round(step * place, 10) for place in range(math.ceil(most / step) + 1)]


def apart(heights: list[float], gap: float = 15) -> list[float]:
    """The heights of two labels, moved away from each other until both can be read."""
    first, second = heights
    if abs(first - second) >= gap:
        return heights
    middle, sign = (first + second) / 2, 1 if first >= second else -1
    return [middle + sign * gap / 2, middle - sign * gap / 2]
