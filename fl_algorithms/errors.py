"""The exceptions of the science packages: something the user asked for cannot be done. The message is one line."""

from __future__ import annotations


class Unusable(ValueError):
    """A data set, weight file, hyper-parameter or federation that does not fit; the command line exits with 2."""


class TooFew(Unusable):
    """Fewer silos, or accepted updates, than the algorithm needs; in the middle of a run the command line exits with 5."""
