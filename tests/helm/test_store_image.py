"""The image of the embedded store: the MinIO that the tests run against, as an unprivileged user."""

from __future__ import annotations

import re

import yaml

from tests.helm.chart import CHART, ROOT


def test_the_image_has_the_minio_that_is_tested() -> None:
    dockerfile = (ROOT / "images" / "minio" / "Dockerfile").read_text()
    pinned = re.search(r"^version=(\S+)$", (ROOT / "tests" / "get-minio").read_text(), flags=re.M)
    assert pinned and f"ARG MINIO_VERSION={pinned[1]}\n" in dockerfile
    assert "\nUSER 10001:10001\n" in dockerfile
    version = yaml.safe_load((CHART / "values.yaml").read_text())["embeddedStore"]["image"]["tag"]
    assert f'org.opencontainers.image.version="{version}"' in dockerfile


def test_chart_and_product_have_one_version() -> None:
    from components import VERSION

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION
