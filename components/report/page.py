"""One self-contained page: template, style and script are files beside this one; everything that is data goes through `escape`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from components.report import ledger, sections
from components.report.look import Insight
from components.report.record import Record
from components.report.verdict import verdict

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


def run_page(record: Record, insight: Insight) -> str:
    spec = record.spec
    dataset = spec.get("dataset", {}).get("name") if isinstance(spec.get("dataset"), dict) else None
    about = [
        str(dataset or (record.result.dataset if record.result else "unknown data")),
        f"{spec['backbone']}" if "backbone" in spec else "",
        f"{len(record.silos)} silos",
        f"seed {spec.get('seed', record.result.seed if record.result else '?')}",
    ]
    opening = (
        f'<h1>{escape(record.name)}</h1><p class="about">{escape(" · ".join(word for word in about if word))}</p>'
        f"{verdict(record, len(insight.classes))}{ledger.notes(record)}"
    )
    parts: list[Section] = [
        ("learning", "Learning", "Round by round, on images that nobody trained on.", sections.learning(record)),
        ("domains", "Domains and classes", "Where the model is right, and what it mistakes for what.", sections.domains(record, insight)),
        (
            "sees",
            "What it sees",
            "How the model arranges images nobody trained on, and where it looks.",
            sections.sees(record, insight),
        ),
        ("silos", "Silos", "Who shaped the model, and how far each silo pulled it.", ledger.silos(record)),
        ("exchange", "What left each silo", "Read from the manifests that were published beside the tensors.", ledger.exchange(record)),
        ("time", "Time", "Where the seconds went.", ledger.time(record)),
        ("record", "Record", "What it takes to run exactly this again.", ledger.record_section(record)),
    ]
    return assemble(f"{spec.get('algorithm', record.name)} on {spec.get('target', 'target')} · siloflow", opening, parts)
