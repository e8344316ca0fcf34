"""The frame of every page: template, style and script are files beside this one; everything that is data goes through `escape`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

MOST_NOTES = 20
Section = tuple[str, str, str, str]  # name, heading, a sentence, HTML


def assemble(title: str, opening: str, parts: Sequence[Section]) -> str:
    here = files("components.report")
    body = opening + "".join(
        f'<section id="{name}"><h2>{escape(heading)}</h2><p class="lead">{lead}</p>{content}</section>'
        for name, heading, lead, content in parts
    )
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=(here / "page.css").read_text(encoding="utf-8"),
        script=(here / "page.js").read_text(encoding="utf-8"),
        links="".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _, _ in parts),
        body=body,
    )


def absent(what: str) -> str:
    return f'<p class="absent">{escape(what)}</p>'


def grid(parts: Sequence[str], kind: str = "grid") -> str:
    return f'<div class="{kind}">{"".join(parts)}</div>'


def notes(items: Sequence[str], heading: str = "Not everything is here") -> str:
    """What is missing is said at the top, so that nobody takes a gap for a zero."""
    if not items:
        return ""
    listed = "".join(f"<li>{escape(text)}</li>" for text in items[:MOST_NOTES])
    more = f"<li>{len(items) - MOST_NOTES} more of this kind</li>" if len(items) > MOST_NOTES else ""
    return f'<aside class="notes" id="missing" role="note"><h2>{escape(heading)}</h2><ul>{listed}{more}</ul></aside>'
