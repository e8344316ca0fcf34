"""The backbones by name, and how each is cut into body, neck and head.

Initial parameters come from torch's global generator: seed it before `build_model`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from fl_algorithms.errors import Unusable
from fl_algorithms.models.layers import PooledPatchConv2d, PoolTo, QuarterDropout
from fl_algorithms.models.network import Network
from fl_algorithms.models.winograd import WinogradConv2d, multiply_less


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

    from fl_algorithms.models.mobilenet import shorten_the_way_back  # here, since it needs torchvision, which takes its time

    net = mobilenet_v3_large(weights=None, num_classes=classes)
    shorten_the_way_back(net)
    *projection, head = net.classifier
    return Network(
        net.features,
        _pooled(*projection),
        head,
        taps=("6", "12", "15"),
        published_names={"features.": "body.", "classifier.0.": "neck.2.", "classifier.3.": "head."},
        replicate_grey=channels == 1,
    )


def _resnet(name: str, classes: int, channels: int) -> Network:
    from torchvision import models

    net = getattr(models, name)(weights=None, num_classes=classes)
    multiply_less(net)
    parts = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    return Network(
        nn.Sequential(OrderedDict((name, getattr(net, name)) for name in parts)),
        _pooled(),
        net.fc,
        taps=("layer2", "layer3", "layer4"),
        published_names={"fc.": "head.", **{f"{name}.": f"body.{name}." for name in parts}},
        replicate_grey=channels == 1,
    )


def _alexnet(classes: int, channels: int) -> Network:
    from torchvision.models import alexnet

    net = alexnet(weights=None, num_classes=classes)
    multiply_less(net)
    *hidden, head = net.classifier
    return Network(
        net.features,
        nn.Sequential(net.avgpool, nn.Flatten(), *hidden),
        head,
        taps=("7", "9", "12"),  # the third and fourth convolution, rectified; the fifth, pooled
        published_names={"features.": "body.", "classifier.1.": "neck.3.", "classifier.4.": "neck.6.", "classifier.6.": "head."},
        replicate_grey=channels == 1,
    )


def _two_convolutions(padding: int, side: int, width: int, dropout: bool, classes: int, channels: int) -> Network:
    """5x5 convolutions of 32 and 64 channels, each pooled, and two linear layers made for maps of side x side."""
    drop = [QuarterDropout()] if dropout else []

    def block(inputs: int, outputs: int) -> nn.Sequential:
        if inputs == 1:
            pooled: list[nn.Module] = [PooledPatchConv2d(1, outputs, 5, padding=padding)]
        else:
            # Of 28 px, results of 8x8 are whole tiles; of those of 14x14 a quarter would be lost.
            tiled = inputs > 3 and not padding
            pooled = [(WinogradConv2d if tiled else nn.Conv2d)(inputs, outputs, 5, padding=padding), nn.MaxPool2d(2)]
        # rectified after it was pooled: the same numbers for a quarter of the work
        return nn.Sequential(*pooled, nn.ReLU(inplace=True), *drop)

    # Images of 28 px give such maps, and the average leaves them as they are; those of larger images it makes smaller.
    neck = nn.Sequential(PoolTo(side), nn.Flatten(), nn.Linear(64 * side**2, width), nn.ReLU(inplace=True), *drop)
    return Network(nn.Sequential(block(channels, 32), block(32, 64)), neck, nn.Linear(width, classes), taps=("0", "1"))


_MNIST_CNN = partial(_two_convolutions, 2, 7, 512, False)
_FEMNIST_CNN = partial(_two_convolutions, 0, 4, 2048, True)


@dataclass(frozen=True)
class ModelInfo:
    """What `siloflow` says about a network, what input it takes, and how to make it."""

    summary: str
    smallest_image: int
    build: Callable[[int, int], Network]


MODELS: dict[str, ModelInfo] = {
    "small-cnn": ModelInfo("four convolutions, 0.1 M parameters, for digits of 28 or 32 px", 16, _small_cnn),
    "mnist-cnn": ModelInfo("two convolutions and two linear layers (McMahan et al. 2017), 1.7 M parameters", 28, _MNIST_CNN),
    "femnist-cnn": ModelInfo("two convolutions and two linear layers with dropout (FedDANN), 2.3 M parameters", 28, _FEMNIST_CNN),
    "mobilenet-v2": ModelInfo("torchvision MobileNetV2, 2.2 M parameters", 32, _mobilenet_v2),
    "mobilenet-v3-large": ModelInfo("torchvision MobileNetV3-Large, 4.2 M parameters", 32, _mobilenet_v3_large),
    "resnet-18": ModelInfo("torchvision ResNet-18, 11.2 M parameters", 32, partial(_resnet, "resnet18")),
    "resnet-50": ModelInfo("torchvision ResNet-50, 23.5 M parameters", 32, partial(_resnet, "resnet50")),
    "alexnet": ModelInfo("torchvision AlexNet, 57.0 M parameters", 63, _alexnet),
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
