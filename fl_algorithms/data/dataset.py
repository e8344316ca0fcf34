"""The shape of every data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fl_algorithms.data.cache import Progress, Source, cached
from fl_algorithms.data.images import Images, Picture
from fl_algorithms.errors import Unusable

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class DataSet:
    """Domains of equally sized pictures that share their classes. Opening one reads no pixels."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]  # to normalise with, per channel, of pixels from 0 to 1
    std: tuple[float, ...]
    source: Callable[[str], Source]
    files: Callable[[str], list[Picture]] | None = None  # of a domain, where it is made of picture files
    _opened: dict[str, Images] = field(default_factory=dict, init=False, repr=False, compare=False)

    def domain(self, name: str, progress: Progress | None = None) -> Images:
        """One domain, through the cache. Touches no file of the other domains: a silo has only its own.

        The cached pixels are verified the first time; that takes a fraction of a second per gigabyte.
        """
        if name not in self.domains:
            raise Unusable(f"data set {self.name}: expected a domain out of {', '.join(self.domains)}, found {name!r}")
        if name not in self._opened:
            self._opened[name] = cached(self.name, name, self.classes, self.source(name), progress)
        return self._opened[name]
