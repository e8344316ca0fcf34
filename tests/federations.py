"""A federation small enough to be run many times: generated pictures, three silos, every step called in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from components import layout, plan
from components.federation import Federation
from components.manifest import BroadcastManifest
from components.received import read_update
from components.server import server_step
from components.silo import Role, evaluate_step, silo_step, validate_step
from components.spec import FederationSpec
from components.wire import Payload
from fl_algorithms.contract import Server, Silo, Task, Tensors
from fl_algorithms.randomness import numpy_stream
from fl_algorithms.registry import ALGORITHMS as REGISTRY
from fl_algorithms.samples import Samples

# without presets and combinations
ALGORITHMS = sorted(name for name, entry in REGISTRY.items() if not entry.defaults and "+" not in entry.location)
DOMAINS, TARGET = ("ash", "birch", "cedar"), "yew"
SIZE = 16
QUICK: dict[str, dict[str, Any]] = {"csac": {"acquisition_epochs": 1, "proj_channels": 4}, "power-of-choice": {"participants": 2}}


def draw_pictures(root: Path) -> Path:
    """Three classes (stripes across, stripes down, a square) in four domains that differ in colour and, for silos, in size."""
    for number, domain in enumerate((*DOMAINS, TARGET)):
        draw = numpy_stream(0, "test pictures", domain)
        for label, name in enumerate(("across", "down", "square")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for picture in range(8 + 2 * number):
                shape = np.zeros((SIZE, SIZE), np.float32)
                at = int(draw.integers(0, 4))
                region = [np.s_[at::4, :], np.s_[:, at::4], np.s_[at + 2 : at + 10, at + 2 : at + 10]][label]
                shape[region] = 1.0
                colour = np.roll([200.0, 120.0, 40.0], number)
                pixels = shape[..., None] * colour + draw.random((SIZE, SIZE, 3)) * 50
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{picture:02}.png")
    return root


def values(pictures: Path, algorithm: str = "fedavg", hyper: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A spec as a user would write it."""
    dataset = {"name": "folder", "path": str(pictures), "image_size": SIZE}
    quick = {"epochs": 1, "batch_size": 16, **QUICK.get(algorithm, {})}
    return {
        "algorithm": algorithm,
        "dataset": dataset,
        "target": TARGET,
        "rounds": 2,
        "device": "cpu",
        "hyper": {**quick, **(hyper or {})},
        **fields,
    }


class Run:
    """All roles of one federation. Steps of resident roles share a process's memory; `restart` forgets all of it."""

    def __init__(self, spec_values: dict[str, Any], folder: Path) -> None:
        self.planned = plan.plan(spec_values, folder, lambda *_, **__: None)
        self.folder, self.silos, self.name = folder, list(self.planned["silos"]), str(self.planned["run"])
        self._roles: dict[str, Role] = {}

    @classmethod
    def reopened(cls, other: Run, folder: Path) -> Run:
        """The same run in a copy of its folder."""
        run = cls.__new__(cls)
        run.planned, run.folder, run.silos, run.name, run._roles = other.planned, folder, other.silos, other.name, {}
        return run

    def role(self, name: str) -> Role:
        if name not in self._roles:
            spec = FederationSpec.model_validate(self.planned["spec"])
            self._roles[name] = Role(Federation(spec, self.name, self.folder, name), name)
        return self._roles[name]

    def restart(self) -> None:
        self._roles.clear()

    @property
    def federation(self) -> Federation:
        return self.role("server").federation

    def steps(self) -> list[tuple[int, str]]:
        step: tuple[int, str] | None = self.planned["first"]
        found = []
        while step is not None:
            found.append(step)
            step = self.federation.step_after(*step)
        return found

    def exchange(self, round: int, name: str, participants: Sequence[str]) -> BroadcastManifest:
        """One exchange and, where it ends a round that is evaluated, the counting; the silos in the order given."""
        for silo in participants:
            silo_step(self.role(silo), round, name)
        broadcast = server_step(self.role("server"), round, name)
        spec = self.federation.spec
        evaluated = round == spec.rounds or (round > 0 and round % spec.evaluate_every == 0)
        if evaluated and name == self.federation.last_exchange(round):
            for silo in broadcast.roster:
                validate_step(self.role(silo), round)
            evaluate_step(self.role("evaluator"), round)
        return broadcast

    def go(
        self,
        until: tuple[int, str] | None = None,
        order: Callable[[Sequence[str]], Sequence[str]] = list,
        after_exchange: Callable[[BroadcastManifest], None] = lambda _: None,
    ) -> None:
        """Every exchange up to and including `until` (default: all)."""
        participants: Sequence[str] = self.silos
        for step in self.steps():
            broadcast = self.exchange(*step, order(participants))
            after_exchange(broadcast)
            participants = broadcast.participants
            if step == until:
                return

    def finish(self) -> dict[str, Any]:
        return plan.finish(self.role("server"))

    def result(self) -> dict[str, Any]:
        self.go()
        return self.finish()

    @property
    def digest(self) -> str:
        return str(self.result()["digest"])

    def stored(self, suffix: str = "") -> list[Path]:
        """The objects in the exchange store."""
        return sorted(path for path in (self.folder / "store").rglob(f"*{suffix}") if path.is_file())


Start = Callable[..., Run]


def global_model(run: Run, round: int) -> Payload:
    """What the server broadcast as the result of this round."""
    folder = run.folder / "store" / layout.GLOBAL / layout.step_key(run.name, round, run.federation.last_exchange(round))
    return Payload(folder / "model.safetensors")


def update_file(run: Run, silo: str, round: int, exchange: str) -> Path:
    return run.folder / "store" / layout.silo_bucket(silo) / layout.update_keys(run.name, round, exchange)[0]


def uploaded(run: Run) -> dict[str, set[str]]:
    """Names of the tensors that silos published, by exchange. Manifests tell, also when the tensors are gone."""
    found: dict[str, set[str]] = {}
    for round, exchange in run.steps():
        manifests = [read_update(run.federation, silo, round, exchange) for silo in run.silos]
        found.setdefault(exchange, set()).update(name for manifest in manifests if manifest for name in manifest.tensors)
    return found


class Uploads:
    """Accepted updates that never were on a wire (contract.Updates)."""

    def __init__(self, tensors: Mapping[str, Tensors], metrics: Mapping[str, Mapping[str, float | None]] | None = None) -> None:
        self.names: Sequence[str] = sorted(tensors)
        self._tensors, self._metrics = tensors, metrics or {}

    def metrics(self, silo: str) -> Mapping[str, float | None]:
        return self._metrics.get(silo, {})

    def keys(self) -> Sequence[str]:
        return sorted(self._tensors[self.names[0]])

    def each(self, key: str) -> Iterator[torch.Tensor]:
        return (self._tensors[name][key] for name in self.names)


class Linear(nn.Module):
    """The smallest network: one layer in float64, no normalisation, no dropout."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes).double()

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1).double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


SMALL_TASK = Task("linear", classes=3, channels=3, image_size=4, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def linear(algorithm: Any) -> Any:
    """The algorithm on `Linear` instead of a backbone."""
    algorithm.build = lambda: Linear(48, 3)
    return algorithm


def random_samples(count: int, name: str = "silo") -> Samples:
    draw = numpy_stream(0, "test samples", name)
    pixels, labels = draw.integers(0, 256, (count, 4, 4, 3), np.uint8), draw.integers(0, 3, count)
    return Samples([(pixels, labels, np.arange(count))], SMALL_TASK.mean, SMALL_TASK.std, torch.device("cpu"))


def picture_samples(counts: Sequence[int], size: int = SIZE, classes: int = 3, flat: bool = False) -> Samples:
    """Random pictures of as many domains as there are counts; what is in a domain does not depend on the others. Flat: all alike."""
    sources = []
    for number, count in enumerate(counts):
        draw = numpy_stream(0, "test pictures", number)
        pixels = np.full((count, size, size, 3), 90, np.uint8) if flat else draw.integers(0, 256, (count, size, size, 3), np.uint8)
        sources.append((pixels, draw.integers(0, classes, count), np.arange(count)))
    return Samples(sources, SMALL_TASK.mean, SMALL_TASK.std, torch.device("cpu"))


def silo(train: Samples, received: Mapping[str, Tensors], name: str = "silo", round: int = 1, rounds: int = 3) -> Silo:
    return Silo(name, round, rounds, 0, torch.device("cpu"), train, received, {}, lambda *_, **__: None)


def server(roster: Mapping[str, int], parts: Mapping[str, Tensors] | None = None, round: int = 1, rounds: int = 3, seed: int = 0) -> Server:
    return Server(round, rounds, seed, roster, parts or {}, {})


def copied(state: Tensors) -> dict[str, torch.Tensor]:
    """What a wire does to tensors: the receiver's do not change when the sender's do."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}
