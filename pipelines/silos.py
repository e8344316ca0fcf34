"""`silos.yaml`: the one description of a federation that spans machines. Who takes part, and where they meet."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator

from components.errors import InputError
from components.layout import RESERVED
from components.spec import Strict, explain, read_mapping

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class SiloEntry(Strict):
    name: Annotated[str, Field(description="as in the spec's partition; also its bucket, its keys and its pods")]

    @field_validator("name")
    @classmethod
    def _names_a_pod(cls, name: str) -> str:
        if not _LABEL.fullmatch(name):
            raise ValueError("expected 1 to 63 of a-z 0-9 -, no - at either end")
        if name in RESERVED:
            raise ValueError(f"expected another name than {', '.join(RESERVED)}")
        return name


class SilosFile(Strict):
    store: Annotated[str, Field(description="exchange store, s3://host[:port]/prefix[?tls=true|false&region=...]; never keys")]
    silos: Annotated[tuple[SiloEntry, ...], Field(min_length=1, description="who takes part")]

    @field_validator("silos")
    @classmethod
    def _each_once(cls, silos: tuple[SiloEntry, ...]) -> tuple[SiloEntry, ...]:
        twice = [name for name, times in Counter(silo.name for silo in silos).items() if times > 1]
        if twice:
            raise ValueError(f"expected every name once, {twice[0]!r} is there twice or more")
        return silos

    @property
    def names(self) -> list[str]:
        return sorted(silo.name for silo in self.silos)


def read_silos(path: Path) -> SilosFile:
    """Checked field by field; one line for the first thing that is wrong."""
    try:
        return SilosFile.model_validate(read_mapping(path, "silos file", "expected are `store` and `silos`"))
    except ValidationError as error:
        raise InputError(f"silos file {path}: {explain(error, SilosFile)}") from None
