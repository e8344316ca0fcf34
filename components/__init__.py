"""What runs inside a container: federation spec, exchange store, guards, the steps of a round, one thin KFP component per step."""

from __future__ import annotations

VERSION = "0.1.0"
IMAGE = f"siloflow:{VERSION}"  # unless silos.yaml says otherwise
