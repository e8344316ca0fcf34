"""Weight files: our tensor names or torchvision's, half precision widened, nothing revived but tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fl_algorithms.errors import Unusable
from fl_algorithms.models.network import BOTTLENECK, Network

_ADVICE = "choose a file made for this backbone"


@dataclass(frozen=True)
class WeightsReport:
    """What `load_weights` did: the file's SHA-256, the number of tensors set, the names not used and not found."""

    digest: str
    loaded: int
    ignored: list[str]
    missing: list[str]


def load_weights(model: Network, path: str | Path) -> WeightsReport:
    """Set the model's tensors from a .safetensors, .pth or .pt file with our tensor names or torchvision's.

    Half precision is widened. A classifier for other classes is ignored; any other tensor that is missing or does not
    fit raises `Unusable` and leaves the model as it was.
    """
    path = Path(path)
    offered = {_our_name(model, name): (name, tensor) for name, tensor in read_tensors(path).items()}
    wanted = model.state_dict()
    head = {name for name in wanted if name.startswith("head.")}
    used = wanted.keys() & offered.keys()
    if not all(name in used and offered[name][1].shape == wanted[name].shape for name in head):
        used -= head
    for name, target in wanted.items():
        if name in used:
            _check_fit(path, *offered[name], target)
        elif _published(name):
            expected = _described(target)
            raise Unusable(f"weights {path}: tensor {name!r}: expected {expected}, found none; {_ADVICE}")
    with torch.no_grad():
        for name in used:
            wanted[name].copy_(offered[name][1])
    return WeightsReport(
        digest=file_digest(path),
        loaded=len(used),
        ignored=sorted(original for name, (original, _) in offered.items() if name not in used),
        missing=sorted(wanted.keys() - used),
    )


def _published(name: str) -> bool:
    """Whether a weight file must have it: not what was added to the network, nor counters that older files lack."""
    added = not name.startswith(("body.", "neck.")) or name.startswith(f"neck.{BOTTLENECK}.")
    return not added and not name.endswith("num_batches_tracked")


def _our_name(model: Network, name: str) -> str:
    for published, ours in model.published_names.items():
        if name.startswith(published):
            return ours + name.removeprefix(published)
    return name


def _check_fit(path: Path, name: str, tensor: Tensor, target: Tensor) -> None:
    same_kind = tensor.is_floating_point() == target.is_floating_point()
    if tensor.shape != target.shape or not same_kind:
        expected, found = _described(target), _described(tensor)
        raise Unusable(f"weights {path}: tensor {name!r}: expected {expected}, found {found}; {_ADVICE}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors, .pth or .pt file."""
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise Unusable(f"weights {path}: expected a .safetensors, .pth or .pt file, found {path.suffix or 'no'} suffix")
    if not path.is_file():
        raise Unusable(f"weights {path}: expected a file, found none; check the path")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    # On foreign bytes the readers raise whatever their parsers meet first, and torch's text advises to lift the safety.
    except Exception as error:
        kind = type(error).__name__
        raise Unusable(f"weights {path}: expected tensors, found a broken file ({kind}); fetch it again") from error
    pairs = tensors.items() if isinstance(tensors, dict) else [(None, tensors)]
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in pairs):
        raise Unusable(f"weights {path}: expected named tensors, found other objects; save model.state_dict()")
    return dict(pairs)


def file_digest(path: Path) -> str:
    """SHA-256 of the file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
