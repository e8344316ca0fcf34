"""The page about one run: what was learned, who shaped it, what it cost, and how to run it again."""

from __future__ import annotations

from html import escape

from components.report import ledger, sections
from components.report.frame import Section, assemble, notes
from components.report.look import Insight
from components.report.record import Record
from components.report.verdict import verdict


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
        f"{verdict(record, len(insight.classes))}{notes(record.notes)}"
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
