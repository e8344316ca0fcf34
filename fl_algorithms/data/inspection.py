"""What is in a data set and what is wrong with it, looked at file by file without stopping at the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from fl_algorithms.data.cache import Progress
from fl_algorithms.data.dataset import DataSet
from fl_algorithms.data.images import Picture
from fl_algorithms.data.pictures import DECODE_ERRORS, in_parallel, why_not
from fl_algorithms.errors import Unusable

BATCH = 256


class Finding(NamedTuple):
    """An error makes the data set unusable as it is; a warning does not, but may surprise."""

    severity: Literal["error", "warning"]
    text: str


@dataclass
class Inspection:
    counts: dict[str, np.ndarray] = field(default_factory=dict)  # pictures of each class, by domain
    held_out: dict[str, int] = field(default_factory=dict)  # of them, how many the data set's own lists hold out
    findings: list[Finding] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)


def inspect(dataset: DataSet, domains: Sequence[str], skip_broken: bool, progress: Progress | None = None) -> Inspection:
    """Decodes every picture once and keeps none."""
    result = Inspection()
    severity: Literal["error", "warning"] = "warning" if skip_broken else "error"
    for domain in domains:
        try:
            labels, held_out = _labels(dataset, domain)
            result.counts[domain] = np.bincount(labels, minlength=len(dataset.classes))
            if held_out is not None:
                result.held_out[domain] = int(held_out.sum())
        except Unusable as error:
            result.findings.append(Finding("error", str(error)))
    if dataset.files is not None:
        files = [file for domain in result.counts for file in dataset.files(domain)]
        result.findings += _examine(files, severity, progress)
    result.findings += _uneven(dataset, result.counts)
    return result


def _labels(dataset: DataSet, domain: str) -> tuple[np.ndarray, np.ndarray | None]:
    if dataset.files is None:
        images = dataset.domain(domain)
        return images.labels, images.held_out
    files = dataset.files(domain)
    if not files:
        raise Unusable(f"domain {domain}: expected pictures, found none; put them there or leave the domain out")
    listed = [file.held_out for file in files]
    return np.array([file.label for file in files]), None if None in listed else np.array(listed)


def _examine(files: list[Picture], severity: Literal["error", "warning"], progress: Progress | None) -> list[Finding]:
    findings: list[Finding] = []
    unusual: Counter[str] = Counter()
    example: dict[str, Path] = {}
    for start in range(0, len(files), BATCH):
        part = files[start : start + BATCH]
        for file, found in zip(part, in_parallel(_look, part), strict=True):
            if isinstance(found, Exception):
                findings.append(Finding(severity, f"{str(file.path)!r}: expected a picture, found {why_not(found)}; repair or remove it"))
            elif found:
                unusual[str(found)] += 1
                example.setdefault(str(found), file.path)
        if progress:
            progress(min(start + BATCH, len(files)), len(files))
    for kind, count in sorted(unusual.items()):
        others = f" and {count - 1} more" if count > 1 else ""
        findings.append(Finding("warning", f"{str(example[kind])!r}{others}: {kind}; nothing to do if that is what you want"))
    return findings


def _look(file: Picture) -> str | Exception:
    """What is unusual about a picture, or why it is none. Decodes all of it: the end may be missing."""
    try:
        with Image.open(file.path) as image:
            frames = getattr(image, "n_frames", 1)
            image.load()
            if frames > 1:
                return "animated, only the first frame is used"
            if image.mode == "CMYK":
                return "CMYK, converted to RGB"
            return "16 bits of grey, the upper 8 are used" if image.mode.startswith("I") else ""
    except DECODE_ERRORS as error:
        return error


def _uneven(dataset: DataSet, counts: dict[str, np.ndarray]) -> list[Finding]:
    findings = []
    for label, name in enumerate(dataset.classes):
        having = [domain for domain, count in counts.items() if count[label]]
        if counts and not having:
            findings.append(Finding("warning", f"class {name}: expected pictures, found none in any domain; add some or drop the class"))
        elif len(having) == 1 and len(counts) > 1:
            where = f"found only in {having[0]}"
            if dataset.files is not None:
                where += f" ({str(next(file.path.parent for file in dataset.files(having[0]) if file.label == label))!r})"
            findings.append(
                Finding(
                    "warning", f"class {name}: expected in several domains, {where}; no other domain can learn or test it, add or drop it"
                )
            )
    return findings
