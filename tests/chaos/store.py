"""Store faults on a real MinIO server: a run gets through, or ends with exit code 4 and a line that says what to check, and resumes."""

from __future__ import annotations

import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minio import Minio, MinioAdmin
from minio.credentials import StaticProvider
from minio.deleteobjects import DeleteObject

from tests.chaos.processes import Bed, Ended, Run, difference, outcome
from tests.chaos.proxy import Fault, FaultProxy, fault_proxy
from tests.chaos.rows import Row
from tests.minio_server import MinioServer, running_minio

ATTEMPTS = "3"  # of each request, where the fault stays
AT_ONCE = 3  # most of these runs wait
REFUSAL = r"error: s3://{endpoint}/fed: \w+ \S+ failed after {attempts} attempts?: {cause}; (check|correct|prepare|set) .+"
PLACE = "birch before payload 2 store"  # birch waits here until the fault is there
DOWN = 3.0  # seconds of a fault that passes


@dataclass
class Site:
    """A store of one's own, with a proxy before it, and a run that uses both."""

    bed: Bed
    server: MinioServer
    proxy: FaultProxy
    algorithm: str = "fedccrl"  # two exchanges a round, and parts that are for one silo only
    fields: dict[str, object] = field(default_factory=lambda: {"rounds": 2})
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = self.bed.spec(self.algorithm, **self.fields)
        keys = {**self.server.environment, **self.environment}
        self.run = Run(self.bed, self.bed.new_folder(), {**spec, "store": f"s3://{self.proxy.endpoint}/fed"}, keys)

    def to_the_end(self, patience: float = 600.0) -> tuple[float, str]:
        """Seconds, and what is wrong with the end: nothing, if it is that of an undisturbed run."""
        self.run.start()
        return self.judge(self.run.end(patience))

    def judge(self, ended: Ended) -> tuple[float, str]:
        if ended.result is None:
            return ended.seconds, ended.line
        return ended.seconds, difference(ended.result, self.bed.undisturbed(self.algorithm, **self.fields).result)

    def midway(self, action: Callable[[], None], passes: Callable[[], None] | None = None, **environment: str) -> Ended:
        """The action happens in the middle of the run, with a silo about to publish; `passes`, if given, undoes it after a while."""
        sign = self.run.folder.with_name("sign")
        self.run.start(PLACE, sign, **({} if passes else {"SILOFLOW_STORE_ATTEMPTS": ATTEMPTS}), **environment)
        self.run.at_place(sign, action)
        if passes is not None:
            time.sleep(DOWN)
            passes()
        return self.run.end()

    def refused(self, ended: Ended, cause: str, attempts: str = ATTEMPTS) -> str:
        expected = REFUSAL.format(endpoint=re.escape(self.proxy.endpoint), attempts=attempts, cause=cause)
        return "" if ended.code == 4 and re.fullmatch(expected, ended.said) and not ended.left else f"expected {cause}, found {ended.line}"

    def refused_then_resumed(self, ended: Ended, cause: str, attempts: str = ATTEMPTS) -> tuple[float, str]:
        """The fault is gone again when this is called."""
        wrong = self.refused(ended, cause, attempts)
        seconds, lost = self.to_the_end()
        return seconds, wrong or lost

    def at(self, fault: Fault) -> Callable[[], None]:
        return lambda: setattr(self.proxy, "fault", fault)

    @property
    def client(self) -> Minio:
        return Minio(endpoint=self.server.endpoint, access_key=self.server.access_key, secret_key=self.server.secret_key, secure=False)

    @property
    def admin(self) -> MinioAdmin:
        keys = StaticProvider(self.server.access_key, self.server.secret_key)
        return MinioAdmin(endpoint=self.server.endpoint, credentials=keys, secure=False)

    def new_user(self) -> dict[str, str]:
        access, secret = secrets.token_hex(8), secrets.token_hex(16)
        self.admin.user_add(access_key=access, secret_key=secret)
        self.admin.policy_set("readwrite", user=access)
        return {"access_key": access, "secret_key": secret}


@contextmanager
def site(bed: Bed, fault: Fault = Fault(), data: Path | None = None, **options: Any) -> Iterator[Site]:  # noqa: B008
    with running_minio(data=data) as server, fault_proxy(server.endpoint, fault) as proxy:
        yield Site(bed, server, proxy, **options)


# ---- faults that pass


def network(bed: Bed, fault: Fault, **fields: object) -> tuple[float, str]:
    with site(bed, fault, fields={"rounds": 2, **fields}) as own:
        seconds, wrong = own.to_the_end()
        return seconds, wrong or ("no answer was hit" if fault.share and not own.proxy.hits else "")


def restarted(bed: Bed) -> tuple[float, str]:
    with site(bed) as own:
        return own.judge(own.midway(own.server.kill, own.server.start))


def rotated(bed: Bed) -> tuple[float, str]:
    """As when a mounted Secret changes: new files first, then the old key stops working."""
    folder = bed.new_folder()
    folder.mkdir()
    with site(bed, environment={"SILOFLOW_CREDENTIALS": str(folder)}) as own:
        old, new = own.new_user(), own.new_user()

        def write(keys: dict[str, str]) -> None:
            for name, value in keys.items():
                (folder / name).write_text(value)

        def rotate() -> None:
            write(new)
            own.admin.user_remove(access_key=old["access_key"])

        write(old)
        return own.judge(own.midway(rotate))


# ---- faults that stay until somebody acts


def stays(bed: Bed, kind: str, cause: str) -> tuple[float, str]:
    with site(bed) as own:
        ended = own.midway(own.at(Fault(share=1.0, kind=kind)))
        own.at(Fault())()
        return own.refused_then_resumed(ended, cause)


def gone(bed: Bed) -> tuple[float, str]:
    with site(bed) as own:
        ended = own.midway(own.server.kill)
        own.server.start()
        return own.refused_then_resumed(ended, "connection broken")


def bucket_missing(bed: Bed) -> tuple[float, str]:
    """With all that the silo had published; what the server had made of it is elsewhere."""
    with site(bed, algorithm="fedavg") as own:

        def remove() -> None:
            objects = own.client.list_objects(bucket_name="fed-silo-birch", recursive=True)
            names = [DeleteObject(item.object_name or "") for item in objects]
            assert not list(own.client.remove_objects(bucket_name="fed-silo-birch", delete_object_list=names))
            own.client.remove_bucket(bucket_name="fed-silo-birch")

        return own.refused_then_resumed(own.midway(remove), "NoSuchBucket", "1")


def wrong_key(bed: Bed) -> tuple[float, str]:
    with site(bed) as own:
        own.run.start(SILOFLOW_SECRET_KEY="not-the-secret-key")
        return own.refused_then_resumed(own.run.end(), "(AccessDenied|SignatureDoesNotMatch)", "1")


def expired_key(bed: Bed) -> tuple[float, str]:
    with site(bed) as own:
        keys = own.new_user()
        environment = {"SILOFLOW_ACCESS_KEY": keys["access_key"], "SILOFLOW_SECRET_KEY": keys["secret_key"]}
        ended = own.midway(lambda: own.admin.user_remove(access_key=keys["access_key"]) and None, **environment)
        return own.refused_then_resumed(ended, "InvalidAccessKeyId", "1")


def clock_skew(bed: Bed) -> tuple[float, str]:
    with site(bed) as own:
        own.run.start("skew 3600", own.run.folder)
        return own.refused_then_resumed(own.run.end(), "RequestTimeTooSkewed", "1")


def disk_full(bed: Bed, passes: bool) -> tuple[float, str]:
    with ExitStack() as stack:
        data = stack.enter_context(small_disk(bed.new_folder()))
        own = stack.enter_context(site(bed, data=data))
        ballast = data / "ballast"

        def fill() -> None:
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

        ended = own.midway(fill, ballast.unlink if passes else None)
        if passes:
            return own.judge(ended)
        ballast.unlink()
        return own.refused_then_resumed(ended, "(XMinioStorageFull|InternalError)")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder) / "disk"):
                return True
        except (subprocess.CalledProcessError, OSError):
            return False


# ---- the campaign

Attempt = Callable[[Bed], tuple[float, str]]
SLOW: dict[str, Attempt] = {
    "10 KB/s link": lambda bed: network(bed, Fault(rate=10_000), rounds=1, sources=["ash", "birch"]),
    "2 s latency": lambda bed: network(bed, Fault(delay=2.0), rounds=1),
}
FAULTS: dict[str, Attempt] = {
    "every seventh answer ends in a connection reset": lambda bed: network(bed, Fault(share=0.15, kind="reset")),
    "every seventh answer is cut in half": lambda bed: network(bed, Fault(share=0.15, kind="half")),
    "503 storm: every seventh answer": lambda bed: network(bed, Fault(share=0.15, kind="unavailable")),
    "server killed and restarted mid-run": restarted,
    "keys rotated mid-run": rotated,
    "nothing but resets: exit 4, then resumed": lambda bed: stays(bed, "reset", "connection broken"),
    "nothing but half answers: exit 4, then resumed": lambda bed: stays(bed, "half", "connection broken"),
    "nothing but 503: exit 4, then resumed": lambda bed: stays(bed, "unavailable", "HTTP status 503"),
    "server gone: exit 4, then resumed": gone,
    "bucket missing: exit 4, then resumed": bucket_missing,
    "wrong key: exit 4, then resumed": wrong_key,
    "expired key: exit 4, then resumed": expired_key,
    "clock off by an hour: exit 4, then resumed": clock_skew,
}
ON_A_SMALL_DISK: dict[str, Attempt] = {
    "disk full for some seconds": lambda bed: disk_full(bed, passes=True),
    "disk full: exit 4, then resumed": lambda bed: disk_full(bed, passes=False),
}


def campaign(full: bool) -> Iterator[Row]:
    """The slow ones once, the others three times; a short one leaves the slow ones out."""
    faults = {**FAULTS, **(ON_A_SMALL_DISK if can_mount() else {})}
    jobs = [*SLOW.items(), *(list(faults.items()) * 3)] if full else list(faults.items())
    rows = {name: Row("store", name) for name, _ in jobs}
    with tempfile.TemporaryDirectory(prefix="siloflow-chaos-") as folder:
        bed = Bed(Path(folder))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for (name, _), (seconds, wrong) in zip(jobs, pool.map(lambda job: outcome(lambda: job[1](bed)), jobs), strict=True):
                rows[name].attempt(not wrong, seconds, wrong)
    yield from rows.values()
