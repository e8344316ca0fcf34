"""`silos.yaml`: the one description of a federation that spans machines, read by the compiler, by the store commands and by the chart.

Who takes part, where they meet, and on what each role's pods run. Only `store` and the silos' names are required.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from components import IMAGE
from components.errors import InputError
from components.layout import EVALUATOR, RESERVED, SERVER
from components.spec import Strict, explain, read_mapping

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_MOUNT = re.compile(r"/[A-Za-z0-9._/-]{1,200}")
_WITHIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_IMAGE = re.compile(r"[a-z0-9]([a-z0-9._/:-]*[a-z0-9])?(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?")


def _matches(pattern: re.Pattern[str], expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


ObjectName = Annotated[str, _matches(_OBJECT, "the name of a Kubernetes object: a-z 0-9 - . and no - or . at either end")]
Quantity = Annotated[str, Field(coerce_numbers_to_str=True), _matches(_QUANTITY, "a Kubernetes quantity such as 500m, 2 or 4Gi")]
MountPath = Annotated[str, _matches(_MOUNT, "an absolute path")]


class Amounts(Strict):
    cpu: Annotated[Quantity | None, Field(description="cores")] = None
    memory: Annotated[Quantity | None, Field(description="bytes")] = None


class Resources(Strict):
    """As in a pod. The CPU limit, rounded down, is also the number of threads where the spec does not say."""

    requests: Annotated[Amounts, Field(description="what the scheduler reserves")] = Amounts(cpu="500m", memory="1Gi")
    limits: Annotated[Amounts, Field(description="what the pod may use")] = Amounts(cpu="1", memory="4Gi")


class Gpu(Strict):
    type: Annotated[str, _matches(re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+"), "a resource name such as nvidia.com/gpu")] = "nvidia.com/gpu"
    count: Annotated[int, Field(ge=1, le=64, description="how many; KFP gives none unless both are set")]


class Volume(Strict):
    claim: Annotated[ObjectName, Field(description="PersistentVolumeClaim in the namespace of the run")]
    sub_path: Annotated[
        Annotated[str, _matches(_WITHIN, "a relative path without ..")] | None, Field(description="folder in the volume; null: its root")
    ] = None
    path: Annotated[MountPath, Field(description="where the pod finds it")] = "/data"


class State(Volume):
    path: Annotated[MountPath, Field(description="where the pod finds it")] = "/state"


class Toleration(Strict):
    key: Annotated[str | None, Field(description="taint; null: every one")] = None
    operator: Annotated[Literal["Exists", "Equal"], Field(description="whether the value counts")] = "Exists"
    value: Annotated[str | None, Field(description="of the taint, for Equal")] = None
    effect: Annotated[Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None, Field(description="null: every one")] = None


class Pod(Strict):
    """On what the pods of one role run, and what they may see."""

    secret: Annotated[ObjectName | None, Field(description="Secret with access_key and secret_key; null: siloflow-<role>")] = None
    secret_as: Annotated[Literal["file", "env"], Field(description="file: follows a rotation; env: for images that need it")] = "file"
    data: Annotated[Volume | None, Field(description="the role's images, mounted read-only; null: the data set needs no files")] = None
    state: Annotated[
        State | None, Field(description="what the role keeps between steps: private state and decoded images; null: gone with the pod")
    ] = None
    resources: Annotated[Resources, Field(description="CPU and memory")] = Resources()
    gpu: Annotated[Gpu | None, Field(description="null: the CPU")] = None
    node_selector: Annotated[dict[str, str], Field(description="labels of the nodes it may run on")] = {}  # noqa: RUF012  pydantic copies it
    tolerations: Annotated[tuple[Toleration, ...], Field(description="taints it may run in spite of")] = ()
    shm: Annotated[Quantity | None, Field(description="size of /dev/shm; null: the node's default of 64 MB")] = None

    @model_validator(mode="after")
    def _one_place_each(self) -> Pod:
        if self.data and self.state and self.data.path == self.state.path:
            raise ValueError(f"expected data and state at two paths, both are at {self.data.path!r}; set one's path")
        return self


class SiloEntry(Pod):
    name: Annotated[str, Field(description="as in the spec's partition; also its bucket, its keys and its pods")]

    @field_validator("name")
    @classmethod
    def _names_a_pod(cls, name: str) -> str:
        if not _LABEL.fullmatch(name):
            raise ValueError("expected 1 to 63 of a-z 0-9 -, no - at either end")
        if name in RESERVED:
            raise ValueError(f"expected another name than {', '.join(RESERVED)}")
        return name


class Image(Strict):
    name: Annotated[str, _matches(_IMAGE, "the name of a container image, with a tag or a digest")] = IMAGE
    pull_policy: Annotated[Literal["IfNotPresent", "Always", "Never"], Field(description="as in a pod")] = "IfNotPresent"
    pull_secrets: Annotated[tuple[ObjectName, ...], Field(description="Secrets of the registry")] = ()


class SilosFile(Strict):
    store: Annotated[str, Field(description="exchange store, s3://host[:port]/prefix[?tls=true|false&region=...]; never keys")]
    silos: Annotated[tuple[SiloEntry, ...], Field(min_length=1, description="who takes part")]
    server: Annotated[Pod, Field(description="who combines")] = Pod()
    evaluator: Annotated[Pod, Field(description="who counts right answers on the target domain; its data is the target's")] = Pod()
    image: Annotated[Image, Field(description="of every step")] = Image()
    ca_secret: Annotated[
        ObjectName | None, Field(description="Secret with ca.crt, who signed the store's certificate; null: a public CA")
    ] = None
    service_account: Annotated[ObjectName | None, Field(description="of runs; null: KFP's default")] = None

    @field_validator("silos")
    @classmethod
    def _each_once(cls, silos: tuple[SiloEntry, ...]) -> tuple[SiloEntry, ...]:
        twice = [name for name, times in Counter(silo.name for silo in silos).items() if times > 1]
        if twice:
            raise ValueError(f"expected every name once, {twice[0]!r} is there twice or more")
        return silos

    @model_validator(mode="after")
    def _nothing_shared(self) -> SilosFile:
        """Two roles with one Secret are one role to the store: each could read and overwrite the other's updates."""
        for what, names in (("secret", self._secrets()), ("state", self._states())):
            first: dict[str, str] = {}
            for role, name in names:
                if name in first:
                    raise ValueError(
                        f"expected a {what} of its own for each role, {first[name]} and {role} share {name!r}: each could read and "
                        f"change what is the other's; give one another {what}"
                    )
                first[name] = role
        return self

    @model_validator(mode="after")
    def _distinct_in_a_pod(self) -> SilosFile:
        """KFP names a volume after the Secret or claim in it: two of one name make a pod that Kubernetes refuses."""
        pods = self.pods()
        together = [(role, pod.state, pod.data, [role]) for role, pod in pods.items()]
        together.append((SERVER, self.server.state, self.evaluator.data, [SERVER, EVALUATOR]))
        for role, state, data, secrets in together:
            names = [volume.claim for volume in (state, data) if volume is not None]
            names += [secret_name(one, pods[one]) for one in secrets] + ([self.ca_secret] if self.ca_secret else [])
            twice = [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise ValueError(
                    f"expected claims and Secrets of different names in a pod of {role}, found {twice[0]!r} twice: KFP would give two "
                    "volumes one name; rename one"
                )
        return self

    def _secrets(self) -> Iterator[tuple[str, str]]:
        return ((role, secret_name(role, pod)) for role, pod in self.pods().items())

    def _states(self) -> Iterator[tuple[str, str]]:
        for role, pod in self.pods().items():
            if pod.state is not None:
                yield role, f"{pod.state.claim}/{pod.state.sub_path or ''}"

    @property
    def names(self) -> list[str]:
        return sorted(silo.name for silo in self.silos)

    def pods(self) -> dict[str, Pod]:
        """By role, silos in the order of their names."""
        return {SERVER: self.server, EVALUATOR: self.evaluator, **{silo.name: silo for silo in sorted(self.silos, key=lambda s: s.name)}}


def secret_name(role: str, pod: Pod) -> str:
    return pod.secret or f"siloflow-{role}"


def read_silos(path: Path) -> SilosFile:
    """Checked field by field; one line for the first thing that is wrong."""
    try:
        return SilosFile.model_validate(read_mapping(path, "silos file", "expected are `store` and `silos`"))
    except ValidationError as error:
        raise InputError(f"silos file {path}: {explain(error, SilosFile)}") from None
