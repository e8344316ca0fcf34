"""Small SVG vocabulary of the report's figures. Colours are names of classes: the style sheet gives them their light and dark values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

COLOURS = 7  # --c0 .. --c6 of the style sheet


def number(value: float) -> str:
    """As short as a tenth of a unit needs: thousands of these make up the page."""
    return f"{value:.1f}".removesuffix(".0")


def hue(place: int) -> str:
    """Classes of the series at this place: a colour, and from the eighth on another dash and marker with it."""
    return f"c{place % COLOURS} d{place // COLOURS % 4}"


@dataclass
class Drawing:
    """One picture. `title` is read out by screen readers and shown on hover."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle", turned: bool = False) -> None:
        turn = f' transform="rotate(-90 {number(x)} {number(y)})"' if turned else ""
        place = f'x="{number(x)}" y="{number(y)}"'
        self.parts.append(f'<text {place} class="{kind}" text-anchor="{anchor}"{turn}>{escape(words)}</text>')

    def path(self, steps: str, kind: str, series: str = "", tip: str = "") -> None:
        named = f' data-s="{escape(series)}"' if series else ""
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(
            f'<path class="{kind}"{named} d="{steps}">{title}</path>' if tip else f'<path class="{kind}"{named} d="{steps}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.path(f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", kind)

    def rect(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "", style: str = "") -> None:
        place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        styled = f' style="{style}"' if style else ""
        self.parts.append(
            f'<rect {place} class="{kind}"{styled}><title>{escape(tip)}</title></rect>'
            if tip
            else f'<rect {place} class="{kind}"{styled}/>'
        )

    def render(self) -> str:
        box = f"0 0 {number(self.width)} {number(self.height)}"
        return f'<svg viewBox="{box}" role="img" aria-label="{escape(self.title)}">{"".join(self.parts)}</svg>'


def box(x: float, y: float, width: float, height: float) -> str:
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h-{number(width)}z"


def polyline(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def marker(x: float, y: float, size: float, shape: int) -> str:
    """Circle, square, triangle, diamond: so that a series is told apart without its colour."""
    if shape % 4 == 0:
        return f"M{number(x - size)} {number(y)}a{size:g} {size:g} 0 1 0 {2 * size:g} 0a{size:g} {size:g} 0 1 0 {-2 * size:g} 0"
    if shape % 4 == 1:
        return box(x - size * 0.85, y - size * 0.85, size * 1.7, size * 1.7)
    if shape % 4 == 2:
        return f"M{number(x)} {number(y - size * 1.2)}l{number(size * 1.1)} {number(size * 2)}h-{number(size * 2.2)}z"
    half = number(size * 1.3)
    return f"M{number(x)} {number(y - size * 1.3)}l{half} {half}l-{half} {half}l-{half}-{half}z"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        high = low + 1.0 if math.isfinite(low) else 1.0
        low = low if math.isfinite(low) else 0.0
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 12) for place in range(first, last + 1)]


def thin(places: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(places) <= most:
        return list(places)
    return [places[round(at * (len(places) - 1) / (most - 1))] for at in range(most)]


def slug(words: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in words.lower()).strip("-")
