"""What the tests do with a page in a real browser: open it offline, and measure what its figures show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

# of each figure its name and how much it shows: drawn area, letters in tables, pictures with pixels
MEASURE = """() => [...document.querySelectorAll("figure")].map((figure) => {
  const drawn = [...figure.querySelectorAll("svg path, svg rect")].filter((part) => {
    const box = part.getBBox(); const style = getComputedStyle(part);
    return box.width + box.height > 0 && (style.fill !== "none" || style.stroke !== "none") && !part.classList.contains("grid");
  });
  const bars = [...figure.querySelectorAll(".fill")].filter((bar) => bar.getBoundingClientRect().width > 2);
  const pictures = [...figure.querySelectorAll("img")].filter((image) => image.complete && image.naturalWidth > 8);
  const cells = [...figure.querySelectorAll("tbody td")].filter((cell) => cell.textContent.trim());
  return [figure.id, drawn.length + bars.length, pictures.length, cells.length, figure.getBoundingClientRect().height];
})"""


PAPER = {"width": 718, "height": 1000}  # A4 between its margins, in CSS pixels
# tables that are wider than their place, by name
CUT = """() => [...document.querySelectorAll(".scroll")].filter((place) => place.scrollWidth > place.clientWidth + 1)
  .map((place) => [place.getAttribute("aria-label"), place.scrollWidth, place.clientWidth])"""


@contextmanager
def opened(browser: Browser, page: Path, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """The page, and everything that went wrong or out while it was open."""
    context = browser.new_context(**options)
    tab, trouble = context.new_page(), []
    tab.on("console", lambda message: trouble.append(f"console {message.type}: {message.text}"))
    tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    tab.on("requestfailed", lambda request: trouble.append(f"failed: {request.url[:80]}"))
    tab.on("request", lambda request: trouble.append(request.url[:80]) if not request.url.startswith(("file:", "data:")) else None)
    tab.goto(page.as_uri())
    try:
        yield tab, trouble
    finally:
        context.close()
