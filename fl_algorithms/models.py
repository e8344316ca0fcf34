"""The networks, all of one shape: `body` (maps) -> `neck` (a representation [B,V]) -> `head` (a linear classifier).

Initial parameters come from torch's global generator: seed it before `build_model`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fl_algorithms.errors import Unusable

_ADVICE = "choose a file made for this backbone"


class Network(nn.Module):
    """A classifier whose representation and inner stages can be had without hooks. An algorithm may attach modules to it.

    `taps` names the children of `body` whose outputs are the stages; `published_names` maps prefixes of tensor names in
    torchvision's weight files to ours. With `replicate_grey` one-channel images are shown as three equal channels.
    """

    def __init__(
        self,
        body: nn.Sequential,
        neck: nn.Module,
        head: nn.Linear,
        taps: tuple[str, ...],
        published_names: dict[str, str] | None = None,
        replicate_grey: bool = False,
    ) -> None:
        super().__init__()
        self.body, self.neck, self.head = body, neck, head
        self.taps = taps
        self.published_names = published_names or {}
        self.replicate_grey = replicate_grey

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B,classes]."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """The representation [B,V] that the head classifies; V is `head.in_features`."""
        representation: Tensor = self.neck(self.body(self._shown(images)))
        return representation

    def forward_stages(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """The maps of the inner stages, shallow to deep, and the logits, from one pass."""
        maps = []
        current = self._shown(images)
        for name, block in self.body.named_children():
            current = block(current)
            if name in self.taps:
                maps.append(current)
        return maps, self.head(self.neck(current))

    def _shown(self, images: Tensor) -> Tensor:
        return images.expand(-1, 3, -1, -1) if self.replicate_grey else images


def _pooled(*after: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *after)


def _small_cnn(classes: int, channels: int) -> Network:
    def block(inputs: int, outputs: int, stride: int = 1, pool: bool = False) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        layers = [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)

    # The first convolution strides: at full resolution it and its normalisation would cost more than all the rest.
    body = nn.Sequential(
        block(channels, 16, stride=2),
        block(16, 32, pool=True),
        block(32, 64, pool=True),
        block(64, 128),
    )
    return Network(body, _pooled(nn.Dropout(0.1)), nn.Linear(128, classes), taps=("2", "3"))


def _mobilenet_v2(classes: int, channels: int) -> Network:
    from torchvision.models import mobilenet_v2

    net = mobilenet_v2(weights=None, num_classes=classes)
    dropout, head = net.classifier
    return Network(
        net.features,
        _pooled(dropout),
        head,
        taps=("6", "13", "17"),
        published_names={"features.": "body.", "classifier.1.": "head."},
        replicate_grey=channels == 1,
    )


def _mobilenet_v3_large(classes: int, channels: int) -> Network:
    from torchvision.models import mobilenet_v3_large

    net = mobilenet_v3_large(weights=None, num_classes=classes)
    *projection, head = net.classifier
    return Network(
        net.features,
        _pooled(*projection),
        head,
        taps=("6", "12", "15"),
        published_names={"features.": "body.", "classifier.0.": "neck.2.", "classifier.3.": "head."},
        replicate_grey=channels == 1,
    )


def _resnet_18(classes: int, channels: int) -> Network:
    from torchvision.models import resnet18

    net = resnet18(weights=None, num_classes=classes)
    parts = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    return Network(
        nn.Sequential(OrderedDict((name, getattr(net, name)) for name in parts)),
        _pooled(),
        net.fc,
        taps=("layer2", "layer3", "layer4"),
        published_names={"fc.": "head.", **{f"{name}.": f"body.{name}." for name in parts}},
        replicate_grey=channels == 1,
    )


@dataclass(frozen=True)
class ModelInfo:
    """What `siloflow` says about a network, what input it takes, and how to make it."""

    summary: str
    smallest_image: int
    build: Callable[[int, int], Network]


MODELS: dict[str, ModelInfo] = {
    "small-cnn": ModelInfo("four convolutions, 0.1 M parameters, for digits of 28 or 32 px", 16, _small_cnn),
    "mobilenet-v2": ModelInfo("torchvision MobileNetV2, 2.2 M parameters", 32, _mobilenet_v2),
    "mobilenet-v3-large": ModelInfo("torchvision MobileNetV3-Large, 4.2 M parameters", 32, _mobilenet_v3_large),
    "resnet-18": ModelInfo("torchvision ResNet-18, 11.2 M parameters", 32, _resnet_18),
}


def build_model(name: str, classes: int, channels: int, image_size: int) -> Network:
    """The named network for square images of that size with one or three channels, randomly initialised."""
    if name not in MODELS:
        raise Unusable(f"backbone {name!r}: expected one of {', '.join(MODELS)}")
    if classes < 2:
        raise Unusable(f"backbone {name!r}: expected at least 2 classes, found {classes}; check the data set")
    if channels not in (1, 3):
        raise Unusable(f"backbone {name!r}: expected images of 1 or 3 channels, found {channels}; convert them")
    smallest = MODELS[name].smallest_image
    if image_size < smallest:
        raise Unusable(f"backbone {name!r}: expected images >= {smallest} px, found {image_size} px; enlarge them")
    return MODELS[name].build(classes, channels)


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
        # older files have no such counters; what an algorithm attached to the network is in no file
        elif name.startswith(("body.", "neck.")) and not name.endswith("num_batches_tracked"):
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
