"""CCST: the oracles of specs/CCST.md, the pair of weight files, the bank, and images retold in its styles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from components.errors import InputError
from components.wire import Payload
from fl_algorithms import adain
from fl_algorithms.adain import DECODER, ENCODER, load_pair, overall_style, pixel_pair, single_styles
from fl_algorithms.ccst import BANK, CCST, PAIR, CCSTHyper, draw_styles, silos_in
from fl_algorithms.errors import Unusable
from fl_algorithms.fedavg import MODEL, FedAvg, FedAvgHyper
from fl_algorithms.models.winograd import WinogradConv2d
from fl_algorithms.randomness import stream
from fl_algorithms.samples import Samples
from tests.federations import SMALL_TASK, Start, Uploads, copied, linear, random_samples, server, silo, update_file

TOLERANCE = 1e-8
CPU = torch.device("cpu")
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant", "momentum": 0.0, "epochs": 2, "batch_size": 8}
PUBLISHED = {
    "encoder": {0: (3, 3), 2: (3, 64), 5: (64, 64), 9: (64, 128), 12: (128, 128), 16: (128, 256), 19: (256, 256), 22: (256, 256),
                25: (256, 256), 29: (256, 512)},
    "decoder": {1: (512, 256), 5: (256, 256), 8: (256, 256), 11: (256, 256), 14: (256, 128), 18: (128, 128), 21: (128, 64), 25: (64, 64),
                28: (64, 3)},
}  # fmt: skip


def double(rows: object) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def algorithm(**hyper: Any) -> Any:
    return linear(CCST(CCSTHyper(**{**SGD, **hyper}), SMALL_TASK))


def weights(network: str, narrow: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    """A file as published, or the same layers with a fraction of the channels."""
    draw, tensors = torch.Generator().manual_seed(seed), {}
    for position, widths in PUBLISHED[network].items():
        inputs, outputs = (width if width == 3 else width // narrow for width in widths)
        side = 1 if (network, position) == ("encoder", 0) else 3
        tensors[f"{position}.weight"] = torch.randn(outputs, inputs, side, side, generator=draw) * (1.5 / (inputs * side * side)) ** 0.5
        tensors[f"{position}.bias"] = torch.randn(outputs, generator=draw) * 0.01
    return tensors


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A pair with a 64th of the channels: the encoder ends in 8."""
    paths = {}
    for network in ("encoder", "decoder"):
        save_file(weights(network, narrow=64), tmp_path / f"{network}.safetensors")
        paths[network] = str(tmp_path / f"{network}.safetensors")
    return paths


def bank_of(**rows: tuple[list[list[float]], list[list[float]]]) -> dict[str, torch.Tensor]:
    pairs = {name: (torch.tensor(mean), torch.tensor(std)) for name, (mean, std) in rows.items()}
    return {f"{key}.{name}": pair[i] for name, pair in pairs.items() for i, key in enumerate(("mean", "std"))}


OWN = ([[0.5, 0.5, 0.5]], [[0.2, 0.2, 0.2]])
BRIGHT = ([[0.7, 0.6, 0.5]], [[0.05, 0.06, 0.07]])


# ---- oracles


def test_adain_oracle() -> None:
    maps = double([[[[1, 3], [5, 7]], [[2, 2], [4, 0]]]])
    expected = [
        [[-1.823788264783, -0.2745960882609], [1.274596088261, 2.823788264783]],
        [[1, 1], [4.674227724565, -2.674227724565]],
    ]
    found = adain.adain(maps, double([[0.5, 1]]), double([[2, 3]]), unbiased=True)
    torch.testing.assert_close(found, double([expected]), atol=TOLERANCE, rtol=0)
    biased = adain.adain(maps, double([[0.5, 1]]), double([[2, 3]]))
    assert biased.std((2, 3), unbiased=False).flatten().tolist() == pytest.approx([2, 3], abs=1e-5)


def test_overall_style_oracle_however_the_images_are_batched() -> None:
    maps = double([[[[1, 3], [5, 7]]], [[[2, 2], [4, 0]]]])
    for batches in ([maps], [maps[:1], maps[1:]]):
        mean, std = overall_style(batches)
        assert mean.tolist() == pytest.approx([3.0], abs=TOLERANCE)
        assert std.tolist() == pytest.approx([2.121322700582874], abs=TOLERANCE)


def test_overall_style_loses_no_digits_and_no_channels() -> None:
    maps = 1000 + torch.randn(40, 2, 8, 8, generator=stream(0, "maps")) * torch.tensor([0.01, 3.0]).view(1, 2, 1, 1)
    _, std = overall_style(maps.split(7))
    expected = maps.double().transpose(0, 1).flatten(1).std(1, unbiased=False)
    assert std.tolist() == pytest.approx((expected.square() + 1e-5).sqrt().tolist(), rel=1e-6)


def test_own_statistics_leave_an_image_as_it_is() -> None:
    maps = torch.rand(5, 3, 6, 6, generator=stream(0, "maps"), dtype=torch.float64)
    torch.testing.assert_close(adain.adain(maps, *single_styles(maps)), maps, atol=1e-12, rtol=0)


def test_a_style_of_adains_encoder_is_4096_bytes() -> None:
    upload = algorithm(encoder="e", decoder="d").exchanges(1)[0].upload
    assert sum(upload[key].shape[1] * upload[key].dtype.itemsize for key in ("mean", "std")) == 4096
    assert upload[PAIR].shape == (32,)
    assert {key: shape.shape for key, shape in algorithm().exchanges(1)[0].upload.items()} == {"mean": (1, 3), "std": (1, 3)}
    assert algorithm(mode="single").exchanges(1)[0].upload["mean"].shape == (None, 3)


# ---- the pair of weight files


def test_the_published_files_fit_layer_by_layer(tmp_path: Path) -> None:
    for network, plan in (("encoder", ENCODER), ("decoder", DECODER)):
        assert [position for position, kind in enumerate(plan) if kind == "c"] == list(PUBLISHED[network])
    torch.save({**weights("encoder"), "32.weight": torch.zeros(1)}, tmp_path / "vgg_normalised.pth")
    torch.save(weights("decoder"), tmp_path / "decoder.pth")
    pair = load_pair(tmp_path / "vgg_normalised.pth", tmp_path / "decoder.pth", CPU)
    assert [sum(p.numel() for p in net.parameters()) for net in (pair.encoder, pair.decoder)] == [3_505_740, 3_505_219]
    assert not any(p.requires_grad for net in (pair.encoder, pair.decoder) for p in net.parameters())
    assert pair.encode(torch.zeros(1, 3, 32, 32)).shape == (1, 512, 4, 4)
    fast = [layer for net in (pair.encoder, pair.decoder) for layer in net.modules() if type(layer) is WinogradConv2d]
    assert len(fast) == 12  # every 3x3 convolution from 128 channels on
    shown = torch.rand(2, 3, 40, 40)
    maps, images = pair.encode(shown), pair.decoder(pair.encode(shown))
    for layer in fast:
        layer.__class__ = nn.Conv2d
    torch.testing.assert_close(pair.encode(shown), maps, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(pair.decoder(pair.encode(shown)), images, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("channels", "size"), [(3, 16), (3, 28), (1, 33)])
def test_restyled_images_have_the_size_and_colours_of_the_originals(files: dict[str, str], channels: int, size: int) -> None:
    pair = load_pair(**files, device=CPU)
    images = torch.rand(2, channels, size, size, generator=stream(0, "images"))
    maps = pair.encode(images)
    assert maps.shape == (2, 8, -(-size // 8), -(-size // 8))
    styled = pair.restyle(images, maps, torch.rand(2, 8), torch.rand(2, 8))
    assert styled.shape == images.shape
    assert 0 <= styled.min() <= styled.max() <= 1


def test_the_digest_names_both_files_and_loading_draws_nothing(files: dict[str, str]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    pair = load_pair(**files, device=CPU)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(pair.digest, load_pair(**files, device=CPU).digest)
    for network in files:
        save_file(weights(network, 64, seed=1), files[network])
        assert not torch.equal(load_pair(**files, device=CPU).digest, pair.digest)
        save_file(weights(network, 64), files[network])


@pytest.mark.parametrize(
    ("network", "change", "message"),
    [
        ("encoder", {"29.weight": None}, "tensor '29.weight': expected in a file of AdaIN's layers, found none"),
        ("encoder", {"9.weight": torch.zeros(2, 7, 3, 3)}, r"expected \[n, 1, k, k\], found \[2, 7, 3, 3\]"),
        ("encoder", {"9.weight": torch.zeros(2)}, r"found \[2\] with bias"),
        ("encoder", {"29.weight": torch.zeros(6, 4, 3, 3), "29.bias": torch.zeros(6)}, r"decoder.*expected \[n, 6, k, k\]"),
        ("decoder", {"28.weight": torch.zeros(4, 1, 3, 3), "28.bias": torch.zeros(4)}, "ends in 3 channels, found 4"),
    ],
)
def test_files_that_do_not_fit_are_named(files: dict[str, str], network: str, change: dict[str, Any], message: str) -> None:
    save_file({name: t for name, t in {**weights(network, 64), **change}.items() if t is not None}, files[network])
    with pytest.raises(Unusable, match=message) as caught:
        load_pair(**files, device=CPU)
    assert "\n" not in str(caught.value)


def test_the_encoder_sees_pixels_and_its_width_is_checked(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unusable, match=r"hyper.style_channels: 512, but .* ends in 8"):
        algorithm(**files).show_style(silo(random_samples(3), {}))
    seen: list[torch.Tensor] = []
    one = algorithm()
    pair = pixel_pair(3)
    monkeypatch.setattr(type(pair), "encode", lambda _, images: seen.append(images) or images)
    monkeypatch.setattr(one, "pair", lambda _: pair)
    one.show_style(silo(random_samples(40), {}))
    assert [len(images) for images in seen] == [32, 8]
    raw = (torch.cat(seen) * 255).numpy()
    assert np.allclose(raw, raw.round(), atol=1e-3)
    assert raw.max() > 250


# ---- the bank


def test_a_silo_shows_one_style_of_all_or_some_of_single_images() -> None:
    samples = random_samples(40)
    pixels = next(samples.batches(40)).images * 0.25 + 0.5
    update = algorithm().show_style(silo(samples, {})).tensors
    torch.testing.assert_close(update["mean"], pixels.mean((0, 2, 3))[None], atol=1e-6, rtol=0)
    torch.testing.assert_close(update["std"], pixels.transpose(0, 1).flatten(1).std(1, unbiased=False)[None], atol=1e-4, rtol=0)
    single = algorithm(mode="single", style_images=7).show_style(silo(samples, {})).tensors["mean"]
    matches = torch.isclose(single[:, None], pixels.mean((2, 3))[None], atol=1e-6).all(2)
    assert matches.sum(1).tolist() == [1] * 7
    assert matches.sum(0).max() == 1
    assert len(algorithm(mode="single", style_images=7).show_style(silo(random_samples(3), {})).tensors["mean"]) == 3
    assert len(algorithm(mode="single").show_style(silo(samples, {})).tensors["mean"]) == 40


def test_every_silo_shows_its_style_and_then_the_drawn_ones_train() -> None:
    names = [f"s{i}" for i in range(8)]
    one, plain = algorithm(participants=3), linear(FedAvg(FedAvgHyper(participants=3), SMALL_TASK))
    first = server(dict.fromkeys(names, 5), round=0)
    assert one.initialise(first, Uploads({})).participants is None
    shown = Uploads({name: {"mean": torch.zeros(1, 3), "std": torch.ones(1, 3)} for name in names[1:]})
    broadcast = one.publish_bank(server(dict.fromkeys(names, 5)), shown)
    assert broadcast.participants == plain.initialise(first, Uploads({})).participants
    assert silos_in(broadcast.parts[BANK]) == names[1:]
    assert [exchange.name for exchange in one.exchanges(1)] == ["style", "train"]
    assert [exchange.name for exchange in one.exchanges(2)] == ["train"]


def test_silos_with_other_files_are_named() -> None:
    style = {"mean": torch.zeros(1, 8), "std": torch.ones(1, 8)}
    shown = {name: {**style, PAIR: torch.full((32,), digit, dtype=torch.uint8)} for name, digit in (("a", 1), ("b", 1), ("c", 2))}
    with pytest.raises(Unusable, match="silo c has other files than a"):
        algorithm(encoder="e", decoder="d").publish_bank(server({"a": 1, "b": 1, "c": 1}), Uploads(shown))


def test_files_changed_since_round_one_are_noticed(files: dict[str, str]) -> None:
    bank = {"mean.a": torch.zeros(1, 8), "std.a": torch.ones(1, 8), PAIR: torch.zeros(32, dtype=torch.uint8)}
    with pytest.raises(Unusable, match="not the files of round 1"):
        algorithm(**files, style_channels=8).retell(silo(random_samples(3), {BANK: bank}))


def test_each_image_takes_different_silos_evenly_and_any_of_their_styles() -> None:
    bank = {f"mean.{name}": torch.zeros(rows, 3) for name, rows in (("a", 1), ("b", 4), ("silo", 2))}
    me = silo(random_samples(3000), {})
    rows, foreign = draw_styles(bank, me, 2)
    owners = torch.tensor([0, 1, 1, 1, 1, 2, 2])[rows]
    assert (owners[:, 0] != owners[:, 1]).all()
    assert torch.equal(foreign, owners != 2)
    for owner in range(3):
        assert int((owners == owner).sum()) == pytest.approx(2000, abs=150)
    assert torch.bincount(rows.flatten())[1:5].tolist() == pytest.approx([500] * 4, abs=100)
    assert torch.equal(draw_styles(bank, dataclasses.replace(me, round=9), 2)[0], rows)
    assert not torch.equal(draw_styles(bank, dataclasses.replace(me, name="other"), 2)[0], rows)
    assert draw_styles(bank, me, 5)[0].shape == (3000, 3)


@pytest.mark.parametrize(
    ("silos", "hyper", "message"),
    [
        (["a"], {"styles": 1}, "needs at least 2 silos"),
        (["a", "b"], {"styles": 3}, "hyper.styles: 3"),
        (["a", "b"], {"encoder": "x"}, "expected both files or neither"),
        (["a", "b"], {"decoder": "x"}, "expected both files or neither"),
    ],
)
def test_what_it_cannot_serve_is_refused(silos: list[str], hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        algorithm(**hyper).refuse(silos)
    algorithm().refuse(["a", "b"])


# ---- retold images


def test_with_its_own_style_only_it_is_fedavg_bit_for_bit() -> None:
    plain = linear(FedAvg(FedAvgHyper(**SGD), SMALL_TASK))
    start = copied(plain.initialise(server({}), Uploads({})).parts[MODEL])
    samples = random_samples(29)
    expected = copied(plain.train(silo(samples, {MODEL: start})).tensors)
    found = copied(algorithm(styles=1).train(silo(samples, {MODEL: start, BANK: bank_of(silo=OWN)})).tensors)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    other = copied(algorithm(styles=1).train(silo(samples, {MODEL: start, BANK: bank_of(other=BRIGHT)})).tensors)
    assert not torch.allclose(other["head.weight"], expected["head.weight"], atol=1e-3)


def test_k_copies_with_the_drawn_styles_labels_and_domains() -> None:
    samples = random_samples(50)
    samples.domains = torch.arange(50) % 2
    me = silo(samples, {BANK: bank_of(other=BRIGHT, silo=OWN)})
    retold = algorithm(styles=2).retell(me)
    assert len(retold) == 100
    assert torch.equal(retold.labels, samples.labels.repeat(2))
    assert torch.equal(retold.domains, samples.domains.repeat(2))
    _, foreign = draw_styles(me.received[BANK], me, 2)
    images, originals = (retold.images(torch.arange(100)).unflatten(0, (2, 50)), samples.images(torch.arange(50)))
    for copy in range(2):
        kept = ~foreign[:, copy]
        assert torch.equal(images[copy][kept], originals[kept])
        pixels = images[copy][~kept] * 0.25 + 0.5
        torch.testing.assert_close(pixels.mean((2, 3)), torch.tensor(BRIGHT[0]).expand(len(pixels), 3), atol=2e-3, rtol=0)
        torch.testing.assert_close(
            pixels.var((2, 3), unbiased=False).sqrt(), torch.tensor(BRIGHT[1]).expand(len(pixels), 3), atol=2e-3, rtol=0
        )


def test_a_silo_says_how_many_images_it_has_not_how_many_it_made() -> None:
    me = silo(random_samples(9), {MODEL: copied(algorithm().network.state_dict()), BANK: bank_of(other=BRIGHT, silo=OWN)})
    algorithm().train(me)
    assert len(me.train) == 9
    assert me.private == {}


@pytest.mark.parametrize("value", [0, 128, 255])
def test_images_of_one_colour_in_a_tiny_silo(value: int) -> None:
    pixels = np.full((3, 4, 4, 3), value, np.uint8)
    samples = Samples([(pixels, np.zeros(3, np.int64), np.arange(3))], SMALL_TASK.mean, SMALL_TASK.std, CPU)
    one = algorithm(batch_size=1)
    style = one.show_style(silo(samples, {})).tensors
    assert style["std"].flatten().tolist() == pytest.approx([1e-5**0.5] * 3, rel=1e-3)
    me = silo(
        samples,
        {MODEL: copied(one.network.state_dict()), BANK: {**bank_of(other=BRIGHT), "mean.silo": style["mean"], "std.silo": style["std"]}},
    )
    update = one.train(me)
    assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
    _, foreign = draw_styles(me.received[BANK], me, 2)
    shown = one.retell(me).images(torch.arange(6)) * 0.25 + 0.5
    torch.testing.assert_close(shown[foreign.T.flatten()].mean((2, 3)), torch.tensor(BRIGHT[0]).expand(3, 3), atol=2e-3, rtol=0)


def test_a_pair_retells_the_images_the_same_in_every_process(files: dict[str, str]) -> None:
    samples = random_samples(5)
    task = dataclasses.replace(SMALL_TASK, image_size=16)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)
    samples = Samples([(pixels, np.arange(5) % 3, np.arange(5))], task.mean, task.std, CPU)

    def fresh() -> CCST:
        return CCST(CCSTHyper(**SGD, **files, style_channels=8), task)

    shown = {name: fresh().show_style(silo(samples, {}, name)).tensors for name in ("silo", "other")}
    shown["other"] = {**shown["other"], "mean": shown["other"]["mean"] + 0.5}
    bank = fresh().publish_bank(server({"other": 5, "silo": 5}), Uploads(shown)).parts[BANK]
    me = silo(samples, {BANK: bank})
    images = fresh().retell(me).images(torch.arange(10))
    assert torch.equal(fresh().retell(me).images(torch.arange(10)), images)
    _, foreign = draw_styles(bank, me, 2)
    same = (images == samples.images(torch.arange(5)).repeat(2, 1, 1, 1)).flatten(1).all(1)
    assert torch.equal(same, ~foreign.T.flatten())


# ---- whole runs


@pytest.mark.parametrize("hyper", [{}, {"mode": "single", "style_images": 4, "styles": 3}, {"participants": 2}])
def test_the_same_digest_again_and_with_every_step_in_a_new_process(start: Start, hyper: Mapping[str, Any]) -> None:
    digest = start("ccst", hyper).digest
    assert start("ccst", hyper).digest == digest
    forgetful = start("ccst", hyper)
    forgetful.go(after_exchange=lambda _: forgetful.restart())
    assert forgetful.finish()["digest"] == digest


def test_a_run_with_a_pair_publishes_models_styles_and_nothing_else(start: Start, files: dict[str, str]) -> None:
    run = start("ccst", {**files, "style_channels": 8}, rounds=1)
    run.go(until=(1, "style"))
    for name in run.silos:
        assert set(Payload(update_file(run, name, 1, "style"))) == {"mean", "std", PAIR}
    run.restart()
    result = run.result()
    assert result["digest"] == start("ccst", {**files, "style_channels": 8}, rounds=1).digest
    model = set(run.federation.algorithm.build().state_dict())
    styles = {f"{key}.{name}" for key in ("mean", "std") for name in run.silos}
    published = [set(Payload(path)) for path in run.stored(".safetensors")]
    assert all(names in (model, styles | {PAIR}, {"mean", "std", PAIR}, {"confusion"}) for names in published)  # the last: the evaluator
    assert not list((run.folder / "private").rglob("*.safetensors"))


def test_a_missing_file_ends_the_run_before_training(start: Start, files: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"weights nowhere\.pth: expected a file, found none"):
        start("ccst", {"encoder": "nowhere.pth", "decoder": files["decoder"]}).go()
