"""Manifests: the small JSON objects that make a published payload exist. Published last, trusted first."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.wire import Malformed

Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=200)]
Shape = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]  # a million complaints would fill the memory
M = TypeVar("M", bound="Manifest")


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1] = 1
    run: Name
    spec: Name  # digest of the resolved spec
    round: Annotated[int, Field(ge=0, le=1_000_000)]
    exchange: Name
    author: Name
    seconds: dict[Name, Number] = {}  # per stage; differs when a step is repeated
    began: Number | None = None  # by the author's clock, seconds since 1970; only for people to look at

    def encode(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls: type[M], data: bytes) -> M:
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part)[:60] for part in first["loc"]) or "document"
            raise Malformed(f"manifest {where}: {first['msg']}") from None


class Stored(BaseModel):
    """One payload object: how large it is and what it must hash to."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    bytes: Annotated[int, Field(ge=0, le=1 << 40)]
    digest: Annotated[str, Field(max_length=80)]


class UpdateManifest(Manifest):
    """Author: a silo or the evaluator. Where the payload lies follows from the rest; a manifest cannot point elsewhere."""

    payload: Stored | None = None
    tensors: dict[Name, tuple[Name, Shape]] = {}  # name -> type, shape
    samples: Annotated[int, Field(ge=0, le=10**12)] = 0
    metrics: Annotated[dict[Name, Number | None], Field(max_length=100)] = {}  # null: not a finite number
    received_bytes: Annotated[int, Field(ge=0)] = 0


class Part(Stored):
    """A part in force and the step that published it."""

    round: int
    exchange: Name


class Inbox(Manifest):
    """The personal parts of one silo, in its own bucket."""

    parts: dict[Name, Stored]


class Rejection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    silo: Name
    reason: Name
    detail: str


class BroadcastManifest(Manifest):
    """Author: the server. Says what is in force now and who takes part in the next exchange."""

    parts: dict[Name, Part]
    personal: dict[Name, tuple[int, Name]] = {}  # part -> step whose inbox holds it
    roster: dict[Name, int]
    participants: list[Name]  # of the exchange after this one
    accepted: list[Name] = []
    rejected: list[Rejection] = []
    missing: list[Name] = []
    weights: dict[Name, Number] = {}
    layer_weights: dict[Name, list[Number]] = {}  # tensor -> weight of each accepted silo, where they differ by tensor
    expired: Annotated[int, Field(ge=0)] = 0  # parts that rounds up to this one replaced are deleted; when, depends on who counted
