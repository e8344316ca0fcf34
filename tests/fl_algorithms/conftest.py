"""Whole federations also here: an algorithm's own test runs it for a few rounds."""

from __future__ import annotations

from tests.components.conftest import image_cache, pictures, settled, start

__all__ = ["image_cache", "pictures", "settled", "start"]
