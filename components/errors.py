"""What can go wrong outside this code, with the exit code a script may rely on. Each message is one line."""

from __future__ import annotations


class SiloflowError(Exception):
    """Shown to the user as one line, never as a traceback."""

    exit_code = 1


class InputError(SiloflowError):
    """The user's input is wrong: which field, what was found, what is allowed."""

    exit_code = 2


class DeadlineError(SiloflowError):
    """A silo did not deliver in time or died; the message names it."""

    exit_code = 3


class ExpiredError(DeadlineError):
    """A role came so late that what it would need is deleted. Nobody waits for its step any more."""


class StoreError(SiloflowError):
    """The exchange store is unreachable or refused us."""

    exit_code = 4


class QuorumError(SiloflowError):
    """Too few accepted updates were left after the guards had rejected some."""

    exit_code = 5


class GateError(SiloflowError):
    """A benchmark got worse: less accurate, slower, or another digest."""

    exit_code = 6


class Interrupted(SiloflowError):
    """Stopped by the user; the run can be resumed."""

    exit_code = 130
