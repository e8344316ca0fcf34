"""The networks' shape, and what `load_weights` takes and refuses."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from fl_algorithms.contract import Task
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import FedAvg, FedAvgHyper
from fl_algorithms.models import MODELS, Network, build_model, load_weights

PARAMETERS = {
    "small-cnn": 98_583,
    "mnist-cnn": 1_663_431,
    "femnist-cnn": 2_167_239,
    "mobilenet-v2": 2_232_839,
    "mobilenet-v3-large": 4_210_999,
    "resnet-18": 11_180_103,
    "resnet-50": 23_522_375,
    "alexnet": 57_032_519,
}
WIDTHS = {
    "small-cnn": 128,
    "mnist-cnn": 512,
    "femnist-cnn": 2048,
    "mobilenet-v2": 1280,
    "mobilenet-v3-large": 1280,
    "resnet-18": 512,
    "resnet-50": 2048,
    "alexnet": 4096,
}
STAGES = {
    "small-cnn": [(64, 8), (128, 8)],
    "mnist-cnn": [(32, 32), (64, 16)],
    "femnist-cnn": [(32, 30), (64, 13)],
    "mobilenet-v2": [(32, 8), (96, 4), (320, 2)],
    "mobilenet-v3-large": [(40, 8), (112, 4), (160, 2)],
    "resnet-18": [(128, 8), (256, 4), (512, 2)],
    "resnet-50": [(512, 8), (1024, 4), (2048, 2)],
    "alexnet": [(384, 3), (256, 3), (256, 1)],
}


@pytest.mark.parametrize("name", MODELS)
def test_features_head_and_stages_belong_to_one_network(name: str) -> None:
    model = build_model(name, classes=7, channels=3, image_size=64).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        representation, (maps, logits) = model.features(images), model.forward_stages(images)
        assert representation.shape == (1, WIDTHS[name])
        assert model.head.in_features == WIDTHS[name]
        torch.testing.assert_close(model(images), model.head(representation))
        torch.testing.assert_close(logits, model(images))
    assert [(stage.shape[1], stage.shape[2]) for stage in maps] == STAGES[name]


@pytest.mark.parametrize("name", MODELS)
def test_grey_images_train_in_channels_last_down_to_a_batch_of_one(name: str) -> None:
    model = build_model(name, classes=3, channels=1, image_size=64).to(memory_format=torch.channels_last)
    maps, logits = model.forward_stages(torch.rand(1, 1, 64, 64))
    (logits.sum() + sum(stage.sum() for stage in maps)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "size", "stages"),
    [
        ("resnet-18", 224, [(128, 28), (256, 14), (512, 7)]),
        ("alexnet", 224, [(384, 13), (256, 13), (256, 6)]),
        ("mnist-cnn", 28, [(32, 14), (64, 7)]),
        ("femnist-cnn", 28, [(32, 12), (64, 4)]),
    ],
)
def test_stages_have_the_sizes_of_the_csac_paper(name: str, size: int, stages: list[tuple[int, int]]) -> None:
    with torch.device("meta"):
        maps, _ = build_model(name, classes=7, channels=3, image_size=size).eval().forward_stages(torch.empty(1, 3, size, size))
    assert [(stage.shape[1], stage.shape[2]) for stage in maps] == stages


@pytest.mark.parametrize(("name", "classes", "parameters"), [("mnist-cnn", 10, 1_663_370), ("femnist-cnn", 62, 2_278_334)])
def test_small_networks_have_the_papers_number_of_parameters(name: str, classes: int, parameters: int) -> None:
    model = build_model(name, classes, channels=1, image_size=28)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_femnist_cnn_is_the_network_of_the_feddann_specification() -> None:
    torch.manual_seed(0)
    ours = build_model("femnist-cnn", 62, channels=1, image_size=28)
    plain = nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(1024, 2048), nn.ReLU(), nn.Dropout(0.25), nn.Linear(2048, 62)),
    )
    plain.load_state_dict(dict(zip(plain.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(ours.eval()(images), plain.eval()(images))
    layers = [layer for _, layer in ours.named_modules(remove_duplicate=False)]
    assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.25] * 3


def test_grey_equals_three_equal_channels() -> None:
    torch.manual_seed(0)
    grey = build_model("resnet-18", 3, channels=1, image_size=32).eval()
    rgb = build_model("resnet-18", 3, channels=3, image_size=32).eval()
    rgb.load_state_dict(grey.state_dict())
    images = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(grey(images), rgb(images.repeat(1, 3, 1, 1)))


def test_small_cnn_learns_digits_within_a_few_epochs() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = F.interpolate(torch.from_numpy(digits.images).float()[:, None] / 16, size=28)
    labels = torch.from_numpy(digits.target)
    torch.manual_seed(0)
    model = build_model("small-cnn", 10, channels=1, image_size=28)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for start in list(range(0, 1200, 32)) * 3:
        optimizer.zero_grad()
        F.cross_entropy(model(images[start : start + 32]), labels[start : start + 32]).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model.eval()(images[1200:]).argmax(1) == labels[1200:]).float().mean()
    assert accuracy > 0.85


def test_small_cnn_does_not_import_torchvision() -> None:
    code = """
import sys
from fl_algorithms.models import build_model
build_model("small-cnn", 10, 1, 28)
print("torchvision" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "classes", "channels", "size", "message"),
    [
        ("resnet18", 7, 3, 224, "'resnet18': expected one of small-cnn, .*resnet-18"),
        ("small-cnn", 1, 3, 32, "at least 2 classes, found 1"),
        ("resnet-18", 7, 4, 224, "1 or 3 channels, found 4"),
        ("mobilenet-v2", 7, 3, 28, ">= 32 px, found 28 px"),
        ("alexnet", 7, 3, 62, ">= 63 px, found 62 px"),
        ("femnist-cnn", 7, 1, 20, ">= 28 px, found 20 px"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, classes: int, channels: int, size: int, message: str) -> None:
    with pytest.raises(Unusable, match=message):
        build_model(name, classes, channels, size)


def torchvision_model(name: str) -> nn.Module:
    from torchvision import models

    builders: dict[str, Callable[..., nn.Module]] = {
        "mobilenet-v2": models.mobilenet_v2,
        "mobilenet-v3-large": models.mobilenet_v3_large,
        "resnet-18": models.resnet18,
        "resnet-50": models.resnet50,
        "alexnet": models.alexnet,
    }
    return builders[name](weights=None, num_classes=5).eval()


@pytest.mark.parametrize("name", ["mobilenet-v2", "mobilenet-v3-large", "resnet-18"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_published_weights_give_the_published_network(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    reference = torchvision_model(name)
    tensors = reference.state_dict()
    if suffix == ".pth":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)
    model = build_model(name, classes=5, channels=3, image_size=64).eval()
    report = load_weights(model, path)
    assert (report.loaded, report.ignored, report.missing) == (len(tensors), [], [])
    assert report.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(model(images), reference(images))


@pytest.mark.parametrize("name", ["resnet-50", "alexnet"])
def test_published_weights_of_half_precision_give_the_published_network(name: str, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    reference = torchvision_model(name).half()
    save_file(reference.state_dict(), path)
    model = build_model(name, classes=5, channels=3, image_size=96).eval()
    report = load_weights(model, path)
    assert (report.loaded, report.ignored, report.missing) == (len(reference.state_dict()), [], [])
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference.float()(images))


def test_a_bottleneck_is_new_and_the_rest_is_published(tmp_path: Path) -> None:
    reference = torchvision_model("resnet-18")
    save_file(reference.state_dict(), tmp_path / "published.safetensors")
    model = bottlenecked()
    report = load_weights(model, tmp_path / "published.safetensors")
    assert {name.rpartition(".")[0] for name in report.missing} == {"head", "neck.bottleneck.0", "neck.bottleneck.1"}
    assert report.ignored == ["fc.bias", "fc.weight"]
    assert torch.equal(model.body.conv1.weight, reference.conv1.weight)
    assert (model.head.in_features, model.features(torch.rand(2, 3, 32, 32)).shape) == (256, (2, 256))
    # Linear 512-256, BatchNorm 256 and Linear 256-5 in place of Linear 512-5
    plain = sum(parameter.numel() for parameter in reference.parameters())
    added = 512 * 256 + 256 + 2 * 256 + (256 - 512) * 5
    assert sum(parameter.numel() for parameter in model.parameters()) == plain + added


def test_a_bottleneck_of_our_own_is_read_back(tmp_path: Path) -> None:
    source, target = bottlenecked(), bottlenecked()
    save_file(source.state_dict(), tmp_path / "own.safetensors")
    assert load_weights(target, tmp_path / "own.safetensors").missing == []
    assert all(torch.equal(tensor, target.state_dict()[name]) for name, tensor in source.state_dict().items())


def bottlenecked() -> Any:
    task = Task("resnet-18", 5, 3, 32, (0.5,) * 3, (0.25,) * 3)
    return FedAvg(FedAvgHyper(bottleneck=256), task).build()


def small(classes: int = 10) -> Network:
    return build_model("small-cnn", classes, channels=3, image_size=32)


def test_own_names_half_precision_and_missing_counters_load(tmp_path: Path) -> None:
    source, target = small(), small()
    tensors = {name: tensor.half() for name, tensor in source.state_dict().items() if tensor.is_floating_point()}
    save_file(tensors, tmp_path / "own.safetensors")
    report = load_weights(target, tmp_path / "own.safetensors")
    assert report.loaded == len(tensors)
    assert all(name.endswith("num_batches_tracked") for name in report.missing)
    assert target.head.weight.dtype == torch.float32
    torch.testing.assert_close(target.head.weight, source.head.weight.half().float())


def test_classifier_for_other_classes_is_ignored_and_reported(tmp_path: Path) -> None:
    source, target = small(classes=3), small(classes=10)
    head = target.head.weight.clone()
    torch.save({**source.state_dict(), "extra": torch.zeros(2)}, tmp_path / "other.pt")
    report = load_weights(target, tmp_path / "other.pt")
    assert report.ignored == ["extra", "head.bias", "head.weight"]
    assert report.missing == ["head.bias", "head.weight"]
    assert torch.equal(target.head.weight, head)
    assert torch.equal(target.state_dict()["body.3.0.weight"], source.state_dict()["body.3.0.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"body.1.0.weight": torch.zeros(32, 16, 5, 5)},
            r"expected float32 \[32, 16, 3, 3\], found float32 \[32, 16, 5, 5\]",
        ),
        ({"body.1.0.weight": torch.zeros(32, 16, 3, 3, dtype=torch.int8)}, r"expected float32 .*, found int8"),
        ({"body.1.0.weight": None}, r"expected float32 \[32, 16, 3, 3\], found none"),
    ],
)
def test_misfit_is_named_and_changes_nothing(change: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in {**small().state_dict(), **change}.items() if tensor is not None}
    path = tmp_path / "misfit.safetensors"
    save_file(tensors, path)
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(Unusable, match=rf"misfit.safetensors: tensor 'body.1.0.weight': {message}") as caught:
        load_weights(model, path)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


NOT_WEIGHTS = ["absent.pth", "folder.pth", "noise.pth", "noise.safetensors", "cut.safetensors", "w.onnx"]


@pytest.mark.parametrize("name", NOT_WEIGHTS)
def test_no_weights_file_at_all_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.pth").mkdir()
    for noise in ("noise.pth", "noise.safetensors", "w.onnx"):
        (tmp_path / noise).write_bytes(bytes(range(256)) * 8)
    save_file(small().state_dict(), tmp_path / "whole.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:5000])
    with pytest.raises(Unusable, match=f"{name}: expected") as caught:
        load_weights(small(), tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {0: torch.zeros(1)}])
def test_checkpoint_of_other_objects_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(Unusable, match=r"checkpoint\.pt: expected") as caught:
        load_weights(small(), tmp_path / "checkpoint.pt")
    assert "\n" not in str(caught.value)


class MakesFolder:
    """Runs os.mkdir in whoever revives it from a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    torch.save({**small().state_dict(), "extra": MakesFolder(tmp_path / "made")}, tmp_path / "hostile.pth")
    with pytest.raises(Unusable, match=r"hostile\.pth: expected") as caught:
        load_weights(small(), tmp_path / "hostile.pth")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("file", "name"), [("mobilenet_v2", "mobilenet-v2"), ("resnet18_backbone.fp16", "resnet-18")])
def test_real_weights_load(file: str, name: str) -> None:
    folder = os.environ.get("SILOFLOW_WEIGHTS", Path(__file__).parents[3] / "shared" / "data" / "weights")
    path = Path(folder) / f"{file}.safetensors"
    if not path.is_file():
        pytest.skip(f"{path.name} is not at hand; set SILOFLOW_WEIGHTS to the folder that holds it")
    report = load_weights(build_model(name, classes=7, channels=3, image_size=224), path)
    assert report.missing == ["head.bias", "head.weight"]
    assert report.loaded >= 120
