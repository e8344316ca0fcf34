"""Every algorithm by name. A new one is one line here; nothing is imported until it is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any, get_type_hints

from fl_algorithms.presets import PRESETS


@dataclass(frozen=True)
class Entry:
    """Where an algorithm lives. A preset is the same class with other defaults."""

    location: str  # module:Class inside fl_algorithms; joined by "+", the left one on top of the right one
    summary: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        return _combined(*(_load(part) for part in self.location.split("+")))


def _load(location: str) -> Any:
    module, name = location.split(":")
    return getattr(importlib.import_module(f"fl_algorithms.{module}"), name)


@cache
def _combined(*bases: Any) -> Any:
    """One class that does what all of them do, each calling the next through `super()`."""
    if len(bases) == 1:
        return bases[0]
    name = "".join(base.__name__ for base in bases)
    members = {
        "__doc__": "\n".join(base.__doc__ for base in bases),
        "Hyper": _combined_hyper(f"{name}Hyper", tuple(base.Hyper for base in bases)),
        "paper": "; ".join(base.paper for base in bases),
        "leaves_silo": "; ".join(dict.fromkeys(clause for base in bases for clause in base.leaves_silo.split("; "))),
    }
    return type(name, bases, members)


def _combined_hyper(name: str, bases: tuple[type, ...]) -> type:
    """All their fields. Where several declare one, the leftmost declaration counts."""
    # Declared anew: left to itself, a dataclass would let a default that the left one merely inherits hide one of the right.
    mixed = type(name, bases, {})
    fields = [(field, hint, getattr(mixed, field)) for field, hint in get_type_hints(mixed, include_extras=True).items()]
    return make_dataclass(name, fields, bases=bases, frozen=True)


_FEDIIR_PHOTOGRAPHS: dict[str, Any] = {
    "optimizer": "sgd", "schedule": "constant", "weight_decay": 0.0, "epochs": 1, "bn_buffers": "frozen", "classifier": "mlp",
    "participants": 3, "augment": "domainbed",
}  # fmt: skip

ALGORITHMS: dict[str, Entry] = {
    "ccst": Entry("ccst:CCST", "FedAvg on images retold in the other silos' styles"),
    "copa": Entry("copa:COPA", "one extractor under a classifier per source domain; the others' classifiers judge, frozen"),
    "csac": Entry("csac:CSAC", "layer-wise fusion by divergence, then calibration against each silo's own frozen model"),
    "deepall": Entry("deepall:DeepAll", "centralised training on all source images: a reference, refused where silos are separate"),
    "fedadg": Entry("fedadg:FedADG", "features aligned class by class with a learned reference, against a private discriminator"),
    "fedavg": Entry("fedavg:FedAvg", "weighted average of locally trained models"),
    "fedavgm": Entry("fedavgm:FedAvgM", "FedAvg with momentum on the server"),
    "fedccrl": Entry("fedccrl:FedCCRL", "foreign channel statistics and AugMix views, aligned in representation and prediction"),
    "feddann": Entry("feddann:FedDANN", "FedAvg with an averaged domain classifier whose reversed gradient hides the domain"),
    "feddg": Entry("feddg:FedDG", "episodes on images that have other silos' low-frequency amplitudes"),
    "fediir": Entry("fediir:FedIIR", "silos' classifier gradients pulled towards their common mean"),
    "fedprox": Entry("fedprox:FedProx", "FedAvg with a proximal pull towards the received model"),
    "ga": Entry("ga:GA", "silos that averaging hurts most count more in the next average"),
    "fedsr": Entry("fedsr:FedSR", "a stochastic representation with two penalties that keep it simple"),
    "mixstyle": Entry("mixstyle:MixStyle", "FedAvg with channel statistics mixed between the images of a batch"),
    "power-of-choice": Entry("power_of_choice:PowerOfChoice", "FedAvg on the silos with the largest reported loss"),
    # one algorithm on top of another
    "ga-fedccrl": Entry("ga:GA+fedccrl:FedCCRL", "FedCCRL with the aggregation weights of GA"),
    "ga-fedprox": Entry("ga:GA+fedprox:FedProx", "FedProx with the aggregation weights of GA"),
    "robust-fedavgm": Entry("robust:Robust+fedavgm:FedAvgM", "FedAvgM on the trimmed mean, or another robust rule"),
    "robust-fedccrl": Entry("robust:Robust+fedccrl:FedCCRL", "FedCCRL with a robust rule for models; its pool of statistics stays open"),
    "robust-fedprox": Entry("robust:Robust+fedprox:FedProx", "FedProx with the trimmed mean, or another robust rule"),
    "power-of-choice-fedavgm": Entry("power_of_choice:PowerOfChoice+fedavgm:FedAvgM", "FedAvgM on the silos with the largest loss"),
    # robust aggregation of FedAvg: against silos that may be malicious
    "median": Entry("robust:Robust", "FedAvg with the coordinate-wise median", {"rule": "median"}),
    "trimmed-mean": Entry("robust:Robust", "FedAvg with the coordinate-wise trimmed mean", {"rule": "trimmed-mean"}),
    "krum": Entry("robust:Robust", "FedAvg that goes on with the one update closest to the others", {"rule": "krum"}),
    "multi-krum": Entry("robust:Robust", "FedAvg with the mean of the updates that Krum likes best", {"rule": "multi-krum"}),
    "norm-clipping": Entry("robust:Robust", "FedAvg on updates no longer than the median one", {"rule": "mean", "clip_median": True}),
    # presets: the released code where it differs from the paper (specs say how)
    "csac-official": Entry(
        "csac:CSAC", "CSAC as released: alignment of logits only, epochs of 60/20 steps, no smoothing", {
            "align": "logits", "acquisition_steps": 60, "steps_per_epoch": 20, "acquisition_smoothing": 0.0, "proj_persist": False,
            "augment": "csac"},
    ),
    "fedccrl-official": Entry(
        "fedccrl:FedCCRL", "FedCCRL as released: summed cross-entropy, wrapping pixels, shared AugMix operations", {
            "classification": "sum", "lambda2": 0.1, "self_in_positives": True, "wrap_pixels": True,
            "augmix_shared_ops": True, "augmix_ops": "torchvision13", "persist_optimizer": True},
    ),
    # presets of FedAvgM: its other forms; the FedDANN paper's setting and its grid of server momentum (section 6.2)
    "fedavgm-ema": Entry("fedavgm:FedAvgM", "FedAvgM whose velocity is a moving average", {"dampening": 0.6}),
    "fedavgm-nesterov": Entry("fedavgm:FedAvgM", "FedAvgM that looks ahead, momentum 0.9", {"server_momentum": 0.9, "nesterov": True}),
    "fedavgm-femnist": Entry(
        "fedavgm:FedAvgM", "FedAvgM as in the FedDANN paper on FEMNIST: SGD, one epoch, 10 silos a round", {
            "optimizer": "sgd", "lr": 0.1, "schedule": "constant", "batch_size": 64, "epochs": 1, "participants": 10},
    ),
    "fedavgm-femnist-official": Entry(
        "fedavgm:FedAvgM", "the same as released: learning rate 0.01 from round 350, 0.001 from round 700", {
            "optimizer": "sgd", "lr": 0.1, "schedule": "step", "milestones": (350, 700), "batch_size": 64, "epochs": 1, "participants": 10},
    ),
    "fedavgm-sm05": Entry("fedavgm:FedAvgM", "FedAvgM, server momentum 0.5", {"server_momentum": 0.5}),
    "fedavgm-sm07": Entry("fedavgm:FedAvgM", "FedAvgM, server momentum 0.7", {"server_momentum": 0.7}),
    "fedavgm-sm09": Entry("fedavgm:FedAvgM", "FedAvgM, server momentum 0.9", {"server_momentum": 0.9}),
    # presets of FedIIR: the released setting of each data set; the baseline of the FedCCRL paper
    "fediir-rotated-mnist": Entry(
        "fediir:FedIIR", "FedIIR as released for RotatedMNIST: 5 of 50 silos a round", {
            "optimizer": "sgd", "lr": 1e-2, "schedule": "constant", "weight_decay": 0.0, "batch_size": 64, "epochs": 1,
            "gamma": 1e-2, "participants": 5},
    ),
    "fediir-vlcs": Entry("fediir:FedIIR", "FedIIR as released for VLCS", {**_FEDIIR_PHOTOGRAPHS, "lr": 1e-3, "gamma": 5e-3}),
    "fediir-pacs": Entry("fediir:FedIIR", "FedIIR as released for PACS", {**_FEDIIR_PHOTOGRAPHS, "lr": 2.5e-3, "gamma": 1e-3}),
    "fediir-officehome": Entry("fediir:FedIIR", "FedIIR as released for OfficeHome", {**_FEDIIR_PHOTOGRAPHS, "lr": 1e-3, "gamma": 5e-4}),
    "fediir-official": Entry(
        "fediir:FedIIR", "FedIIR on PACS with the released mean gradient: an incomplete batch counts like a full one", {
            **_FEDIIR_PHOTOGRAPHS, "lr": 2.5e-3, "gamma": 1e-3, "pooling": "batches"},
    ),
    "fediir-in-fedccrl": Entry(
        "fediir:FedIIR", "FedIIR as the FedCCRL paper's baseline: silos count alike, ema 0.9", {
            "gamma": 5e-4, "ema": 0.9, "pooling": "silos"},
    ),
    # presets of GA
    "ga-official": Entry(
        "ga:GA", "GA as released for PACS: accuracy gaps that are not centred", {
            "optimizer": "sgd", "lr": 1e-3, "schedule": "step", "milestones": (33,), "weight_decay": 5e-4, "batch_size": 16, "epochs": 5,
            "persist_optimizer": True, "gap_form": "official", "gap_metric": "accuracy", "augment": "ga"},
    ),
    "ga-in-fedccrl": Entry(
        "ga:GA", "GA as the FedCCRL paper's baseline: gaps of the training loss, a step so small that little moves", {
            "weighting": "samples", "gap_step": 0.001 / 3, "gap_form": "paper", "gap_images": "train"},
    ),
    # presets of DeepAll: balanced batches; the settings of the papers and codes that quote it
    "deepall-balanced": Entry("deepall:DeepAll", "DeepAll with as many images of each domain in every batch", {"sampling": "balanced"}),
    "deepall-in-ccst": Entry(
        "deepall:DeepAll", "DeepAll as in the CCST code: plain SGD .001, batches of 64; 500 epochs (rounds=500)", {
            "optimizer": "sgd", "lr": 1e-3, "schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "batch_size": 64, "epochs": 1,
            "augment": "ccst"},
    ),
    "deepall-in-csac": Entry(
        "deepall:DeepAll", "DeepAll with the CSAC paper's optimiser in epochs of 20 steps; CSAC's budget is rounds=43", {
            "optimizer": "sgd", "lr": 0.01, "schedule": "constant", "momentum": 0.5, "weight_decay": 0.0, "batch_size": 64,
            "epochs": 10, "steps_per_epoch": 20, "augment": "csac"},
    ),
    "deepall-in-domainbed": Entry(
        "deepall:DeepAll", "DeepAll as DomainBed's ERM: 32 images of each of 3 domains, fixed statistics; 5000 steps (rounds=50)", {
            "lr": 5e-5, "schedule": "constant", "weight_decay": 0.0, "batch_size": 96, "epochs": 1, "steps_per_epoch": 100,
            "sampling": "balanced", "bn_buffers": "frozen", "augment": "domainbed"},
    ),
    "deepall-in-feddann": Entry(
        "deepall:DeepAll", "DeepAll as the FedDANN paper's centralised EMNIST run: SGD .01, weight decay 1e-5, batches of 64", {
            "optimizer": "sgd", "lr": 0.01, "schedule": "constant", "weight_decay": 1e-5, "batch_size": 64, "epochs": 1},
    ),
    # presets of FedSR: its two penalties apart; the released code; the baseline of other papers
    "fedcmi": Entry("fedsr:FedSR", "FedSR's divergence penalty alone", {"alpha_l2r": 0.0}),
    "fedl2r": Entry("fedsr:FedSR", "FedSR's norm penalty alone, without noise", {"alpha_cmi": 0.0, "probabilistic": False}),
    "fedsr-official": Entry(
        "fedsr:FedSR", "FedSR as released: each silo keeps a reference and an optimiser of its own", {
            "share_reference": False, "persist_optimizer": True, "augment": "domainbed"},
    ),
    "fedsr-in-benchmark": Entry(
        "fedsr:FedSR", "FedSR as in FedDG_Benchmark: Adam 3e-5, one epoch a round, squared norm", {
            "optimizer": "adam", "lr": 3e-5, "weight_decay": 0.0, "batch_size": 32, "steps_per_epoch": None, "l2r": "squared"},
    ),
    "fedsr-in-fedccrl": Entry(
        "fedsr:FedSR", "FedSR as the FedCCRL paper's baseline: Adam, three epochs a round, both weights .001", {
            "optimizer": "adam", "lr": 1e-3, "schedule": "cosine", "weight_decay": 1e-4, "batch_size": 32, "epochs": 3,
            "steps_per_epoch": None, "weighting": "samples", "alpha_l2r": 0.001},
    ),
    "fedsr-in-feddann": Entry(
        "fedsr:FedSR", "FedSR as the FedDANN paper's FEMNIST baseline: SGD .1, one epoch, 10 silos a round, CMI weight 1e-4", {
            "lr": 0.1, "weight_decay": 1e-4, "steps_per_epoch": None, "weighting": "samples", "alpha_cmi": 1e-4, "width": 1024,
            "share_reference": False, "participants": 10},
    ),
    # presets of MixStyle
    "mixstyle-crossdomain": Entry("mixstyle:MixStyle", "MixStyle between domains, for silos that have several", {"mix": "crossdomain"}),
    "mixstyle-officehome": Entry("mixstyle:MixStyle", "MixStyle as on OfficeHome: two stages", {"layers": ("layer1", "layer2")}),
    "mixstyle-deepall": Entry("mixstyle:MixStyle+deepall:DeepAll", "MixStyle on pooled images, between domains", {"mix": "crossdomain"}),
    # presets of COPA: without one of its two devices
    "copa-no-frozen": Entry("copa:COPA", "COPA without the other domains' frozen classifiers in the loss", {"lambda_frozen": 0.0}),
    "copa-no-bin": Entry("copa:COPA", "COPA with plain batch normalisation", {"bin_stages": 0}),
    # presets of FedADG: learning rates of Table 3; the rows of Fig. 5 and Table 8; the equations as printed; the two released folders
    "fedadg-vlcs": Entry(
        "fedadg:FedADG", "FedADG as in the paper on VLCS", {
            "lr": 0.01, "lr_generator": 0.007, "lr_discriminator": 0.007, "label_smoothing": 0.2},
    ),
    "fedadg-pacs": Entry("fedadg:FedADG", "FedADG as in the paper on PACS", {"label_smoothing": 0.01}),
    "fedadg-officehome": Entry(
        "fedadg:FedADG", "FedADG as in the paper on OfficeHome", {"lr": 0.05, "lr_generator": 0.007, "lr_discriminator": 0.001},
    ),
    "fedadg-no-onehot": Entry("fedadg:FedADG", "FedADG that is not told the class: alignment is not class-wise", {"one_hot": 0.0}),
    "fedadg-no-projection": Entry("fedadg:FedADG", "FedADG without the random projection", {"projection": 0}),
    "fedadg-no-gd": Entry("fedadg:FedADG", "FedADG without generator and discriminator", {"adversarial": False}),
    "fedadg-gaussian": Entry("fedadg:FedADG", "FedADG with the fixed reference N(0,1)", {"reference": "gaussian"}),
    "fedadg-uniform": Entry("fedadg:FedADG", "FedADG with the fixed reference U[-1,1]", {"reference": "uniform"}),
    "fedadg-laplace": Entry("fedadg:FedADG", "FedADG with the fixed reference Laplace(1/sqrt 2)", {"reference": "laplace"}),
    "fedadg-printed": Entry(
        "fedadg:FedADG", "FedADG with eqs. 2 and 4 and the weights of Table 3 as printed: G flees, classification is starved", {
            "d_mode": "eq2", "g_mode": "eq4", "lambda_adv": 0.85, "lambda_err": 0.15},
    ),
    "fedadg-official": Entry(
        "fedadg:FedADG", "FedADG as released for PACS, at the largest learning rate that its warm-up reaches", {
            "lr": 9e-4, "lr_generator": 6.3e-4, "lr_discriminator": 6.3e-4, "batch_size": 10, "one_hot": 0.7, "augment": "fedadg"},
    ),
    "fedadg-official-vlcs": Entry(
        "fedadg:FedADG", "FedADG as released for VLCS: a generator that never trains, learning rates that warm-up keeps below 3e-5", {
            "lr": 2.8e-5, "lr_generator": 1.96e-5, "lr_discriminator": 1.96e-5, "classification_epochs": 5, "epochs": 10,
            "label_smoothing": 0.2, "one_hot": 0.6, "d_mode": "eq2", "reference": "frozen", "augment": "fedadg"},
    ),
    # presets of FedDANN: lambda and its place; the paper's federation; other participants and server momentum
    "feddann-lambda0": Entry("feddann:FedDANN", "FedDANN, lambda 0: FedAvg beside an idle domain classifier", {"lambda_domain": 0.0}),
    "feddann-lambda0001": Entry("feddann:FedDANN", "FedDANN, lambda 0.001", {"lambda_domain": 0.001}),
    "feddann-lambda01": Entry("feddann:FedDANN", "FedDANN, lambda 0.1", {"lambda_domain": 0.1}),
    "feddann-lambda1": Entry("feddann:FedDANN", "FedDANN, lambda 1", {"lambda_domain": 1.0}),
    "feddann-grl": Entry("feddann:FedDANN", "FedDANN with lambda in the reversal only, as in DANN", {"lambda_place": "grl"}),
    "feddann-ramp": Entry("feddann:FedDANN", "FedDANN with lambda growing from 0 to 1 over the run", {"lambda_domain": 1.0, "ramp": True}),
    "feddann-femnist": Entry(
        "feddann:FedDANN", "FedDANN as in the paper: 10 silos a round, 6 domain outputs", {"participants": 10, "domain_outputs": 6},
    ),
    "feddann-official": Entry(
        "feddann:FedDANN", "the same as released: learning rate 0.01 from round 350, 0.001 from round 700", {
            "participants": 10, "domain_outputs": 6, "schedule": "step", "milestones": (350, 700)},
    ),
    "feddann-power-of-choice": Entry(
        "power_of_choice:PowerOfChoice+feddann:FedDANN", "FedDANN on the silos with the largest loss", {"weighting": "samples"},
    ),
    "feddann-biased": Entry(
        "power_of_choice:PowerOfChoice+feddann:FedDANN", "FedDANN on silos drawn with a bias, as in its released code", {
            "weighting": "samples", "selector": "biased"},
    ),
    "feddann-fedavgm": Entry("fedavgm:FedAvgM+feddann:FedDANN", "FedDANN with server momentum 0.6"),
    "feddann-power-of-choice-fedavgm": Entry(
        "power_of_choice:PowerOfChoice+fedavgm:FedAvgM+feddann:FedDANN",
        "FedDANN on the silos with the largest loss, with server momentum 0.6", {"weighting": "samples"},
    ),
}  # fmt: skip

ALGORITHMS.update(
    {
        name: Entry(ALGORITHMS[algorithm].location, summary, {**ALGORITHMS[algorithm].defaults, **defaults})
        for name, (algorithm, summary, defaults) in PRESETS.items()
    }
)
