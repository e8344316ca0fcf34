"""Settings that papers print, by name: (algorithm, summary, defaults that differ). `registry` lists them with the algorithms."""

from __future__ import annotations

from typing import Any

CCST_TRAINING = {"optimizer": "sgd", "lr": 1e-3, "schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "epochs": 1}
CSAC_TRAINING = {"optimizer": "sgd", "lr": 0.01, "schedule": "constant", "momentum": 0.5, "weight_decay": 0.0, "epochs": 10}

PRESETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # CCST: K and mode; training as released (specs/CCST.md, section 4)
    "ccst-k1": ("ccst", "CCST, one style an image", {"styles": 1}),
    "ccst-k3": ("ccst", "CCST, three styles an image", {"styles": 3}),
    "ccst-single": ("ccst", "CCST, styles of single images", {"mode": "single"}),
    "ccst-single-k1": ("ccst", "CCST, styles of single images, one an image", {"mode": "single", "styles": 1}),
    "ccst-single-k3": ("ccst", "CCST, styles of single images, three an image", {"mode": "single", "styles": 3}),
    "ccst-official": ("ccst", "CCST as released for PACS: plain SGD 1e-3, batches of 64, one epoch a round, three styles an image",
                      {**CCST_TRAINING, "batch_size": 64, "styles": 3, "unbiased": True, "augment": "ccst"}),
    "ccst-officehome": ("ccst", "CCST as released for OfficeHome: batches of 32",
                        {**CCST_TRAINING, "batch_size": 32, "styles": 3, "unbiased": True, "augment": "ccst"}),
    # FedDG
    "feddg-augmentation": ("feddg", "FedDG without episodes: the losses of images and copies are added", {"episodic": False}),
    "feddg-elcfs-code": ("feddg", "FedDG as released: only the mean is swapped, completely; batches of 5, one epoch a round",
                         {"level": 0.0, "mix": "full", "schedule": "constant", "weight_decay": 0.0, "persist_optimizer": True,
                          "batch_size": 5, "epochs": 1}),
    "feddg-in-csac": ("feddg", "FedDG as the CSAC paper's baseline: the released transform, SGD .01, ten epochs a round",
                      {**CSAC_TRAINING, "batch_size": 64, "level": 0.0, "mix": "full", "augment": "csac"}),
    # FedCCRL, Table 2: (CCDT | DIFP | both) x (cross-entropy, + L_RA, + L_JS, + both); the last row is fedccrl itself
    "fedccrl-ccdt": ("fedccrl", "FedCCRL, Table 2: CCDT, cross-entropy alone", {"difp": False, "lambda1": 0.0, "lambda2": 0.0}),
    "fedccrl-ccdt-ra": ("fedccrl", "FedCCRL, Table 2: CCDT with L_RA", {"difp": False, "lambda2": 0.0}),
    "fedccrl-ccdt-js": ("fedccrl", "FedCCRL, Table 2: CCDT with L_JS", {"difp": False, "lambda1": 0.0}),
    "fedccrl-ccdt-ra-js": ("fedccrl", "FedCCRL, Table 2: CCDT with L_RA and L_JS", {"difp": False}),
    "fedccrl-difp": ("fedccrl", "FedCCRL, Table 2: DIFP, cross-entropy alone", {"ccdt": False, "lambda1": 0.0, "lambda2": 0.0}),
    "fedccrl-difp-ra": ("fedccrl", "FedCCRL, Table 2: DIFP with L_RA", {"ccdt": False, "lambda2": 0.0}),
    "fedccrl-difp-js": ("fedccrl", "FedCCRL, Table 2: DIFP with L_JS", {"ccdt": False, "lambda1": 0.0}),
    "fedccrl-difp-ra-js": ("fedccrl", "FedCCRL, Table 2: DIFP with L_RA and L_JS", {"ccdt": False}),
    "fedccrl-both": ("fedccrl", "FedCCRL, Table 2: CCDT and DIFP, cross-entropy alone", {"lambda1": 0.0, "lambda2": 0.0}),
    "fedccrl-both-ra": ("fedccrl", "FedCCRL, Table 2: CCDT and DIFP with L_RA", {"lambda2": 0.0}),
    "fedccrl-both-js": ("fedccrl", "FedCCRL, Table 2: CCDT and DIFP with L_JS", {"lambda1": 0.0}),
    "fedccrl-minidomainnet": ("fedccrl", "FedCCRL as released for miniDomainNet: batches of 128", {"batch_size": 128}),
    # FedCCRL, Figure 6: lambda2 = 1 while lambda1 varies, lambda1 = .1 while lambda2 varies. The figure's values are not in
    # the text of the paper: these grids around the defaults are ours.
    "fedccrl-r-0.01": ("fedccrl", "FedCCRL, sweep of r: .01", {"ratio": 0.01}),
    "fedccrl-r-0.05": ("fedccrl", "FedCCRL, sweep of r: .05", {"ratio": 0.05}),
    "fedccrl-r-0.5": ("fedccrl", "FedCCRL, sweep of r: .5", {"ratio": 0.5}),
    "fedccrl-r-1": ("fedccrl", "FedCCRL, sweep of r: 1", {"ratio": 1.0}),
    "fedccrl-lambda1-0.01": ("fedccrl", "FedCCRL, sweep of lambda1: .01", {"lambda1": 0.01}),
    "fedccrl-lambda1-0.5": ("fedccrl", "FedCCRL, sweep of lambda1: .5", {"lambda1": 0.5}),
    "fedccrl-lambda1-1": ("fedccrl", "FedCCRL, sweep of lambda1: 1", {"lambda1": 1.0}),
    "fedccrl-lambda2-0.1": ("fedccrl", "FedCCRL, sweep of lambda2: .1", {"lambda2": 0.1}),
    "fedccrl-lambda2-0.5": ("fedccrl", "FedCCRL, sweep of lambda2: .5", {"lambda2": 0.5}),
    "fedccrl-lambda2-2": ("fedccrl", "FedCCRL, sweep of lambda2: 2", {"lambda2": 2.0}),
    "csac-rotated-mnist": ("csac", "CSAC on rotated MNIST: five calibration epochs a round", {"epochs": 5}),
    # CSAC, Table IV: fusion; Table V: calibration; both around csac itself
    "csac-similarity": ("csac", "CSAC, Table IV: weights by similarity", {"fusion": "similarity"}),
    "csac-average": ("csac", "CSAC, Table IV: equal weights", {"fusion": "average"}),
    "csac-cosine": ("csac", "CSAC, Table IV: cosine distance", {"metric": "cosine"}),
    "csac-l1": ("csac", "CSAC, Table IV: L1 distance", {"metric": "l1"}),
    "csac-no-alignment": ("csac", "CSAC, Table V: without alignment", {"align": "none"}),
    "csac-same-layer": ("csac", "CSAC, Table V: each layer aligned with the same layer only", {"align": "same-layer"}),
    "csac-no-position": ("csac", "CSAC, Table V: without position attention", {"attention": "channel"}),
    "csac-no-channel": ("csac", "CSAC, Table V: without channel attention", {"attention": "position"}),
    "csac-no-attention": ("csac", "CSAC, Table V: without attention, all pairs alike", {"attention": "none"}),
    "csac-no-smoothing": ("csac", "CSAC, Table V: without label smoothing", {"acquisition_smoothing": 0.0}),
    "csac-no-ce": ("csac", "CSAC, Table V: without cross-entropy in calibration", {"calibration_ce": False}),
    "csac-mse": ("csac", "CSAC, Table V: mean square error in place of MMD", {"discrepancy": "mse"}),
}  # fmt: skip
