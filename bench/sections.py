"""The sections of docs/performance.md: from what a part measured to Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Known = dict[str, Any]  # part -> what is known of it; a part that was never measured is not there
CLUSTER = "cluster"
BACKBONES = {"small-cnn": "small CNN", "resnet-18": "ResNet-18", "mobilenet-v3-large": "MobileNetV3-Large"}


@dataclass(frozen=True)
class Section:
    part: str
    title: str
    write: Callable[[Any], str]
    figure: str | None = None

    @property
    def command(self) -> str:
        if self.part == CLUSTER:
            return "`make test-cluster`, what it printed put here by `python -m bench.cluster`"
        return f"`make bench ARGS='--only {self.part}'`"


def number(value: float) -> str:
    """Three significant digits, no exponent."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def spread(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})"


def exchange(found: Any) -> str:
    text = (
        f"{found['silos']} silos, a ResNet-18 of {number(found['model_mb'])} MB, no training. Ours is written to disk, synchronised and "
        "verified, every silo a process; Flower's simulation keeps everything in memory. "
        f"{found['repeats']} times {found['rounds']} rounds of each, in turn.\n\n"
    )
    names = {"seconds_per_round": "seconds a round", "cpu_seconds_per_round": "CPU seconds a round", "peak_pss_mb": "peak memory, MB"}
    ours, flower, ratio = found["siloflow"], found["flower"], found["ratio"]
    if flower is None:
        return text + "Flower was not installed, so there is nothing to compare with.\n\n" + table(
            ["", "siloflow"], [[name, number(ours[key])] for key, name in names.items()]
        )  # fmt: skip
    rows = [[name, number(ours[key]), number(flower[key]), spread(ratio[key])] for key, name in names.items()]
    return text + table(["", "siloflow", f"Flower {flower['version']}", "ratio: median (all runs)"], rows)


def scaling(found: Any) -> str:
    text = (
        f"Silos that do not train, all on this machine: up to {found['most_resident']} have a process each, more share as many as "
        "there are cores. Seconds are those of the fastest round.\n"
    )
    for backbone in (name for name in BACKBONES if name in found):
        rows = found[backbone]
        cells = [
            [
                row["silos"], number(row["seconds_per_round"]), number(row["cpu_seconds_per_round"]),
                number(1000 * row["cpu_seconds_per_round"] / row["silos"]), number(row["peak_pss_mb"]),
            ]
            for row in rows
        ]  # fmt: skip
        head = ["silos", "seconds a round", "CPU seconds a round", "CPU ms a silo", "peak memory of all processes, MB"]
        text += f"\n{BACKBONES[backbone]}, {number(rows[0]['model_mb'])} MB:\n\n" + table(head, cells)
    return text


def workers(found: Any) -> str:
    head = ["`--workers`", "seconds a round", "speed-up", "CPU seconds a round"]
    rows = [[row["workers"], number(row["seconds_per_round"]), f"{row['speed_up']:.2f}x", number(row["cpu_seconds_per_round"])]
            for row in found["rows"]]  # fmt: skip
    return (
        f"`siloflow run`, {found['silos']} silos of one thread, {found['steps']} steps of a small CNN a round; the fastest round of "
        f"{found['repeats']} runs of each, in turn. Every run ended with the same digest. Speed-up is wall time: at most two, and only "
        "where two cores are free.\n\n"
    ) + table(head, rows)


def memory(found: Any) -> str:
    rows = []
    for row in found["silo"]:
        parts = [number(row["needed_bytes"][kind] / 1e6) for kind in ("model", "gradients", "optimiser", "activations")]
        whole = [number(row[key] / 1e6) for key in ("bare_bytes", "glibc_bytes", "silo_bytes", "over_needed_bytes")]
        rows.append([BACKBONES[row["backbone"]], *parts, *whole])
    first = found["silo"][0]
    head = ["MB", "model", "gradients", "Adam", "saved by autograd", "bare loop grows by", "silo with glibc's allocator",
            f"silo with {first['allocator']}", "more than the sum"]  # fmt: skip
    text = (
        f"A silo's step (FedAvg, {first['image_size']} px, batch {first['batch_size']}), from the global model in the store to the "
        "published update, beside a bare training loop of the same network and the sum of what training must keep. A silo gets tcmalloc "
        "where that is installed, as it is in the image (`components/allocator.py`); reach: 300 MB more than the sum. Pages of files, like "
        "the cached pictures, are not counted: they are the kernel's to drop.\n\n"
    ) + table(head, rows)
    server = found["server"]
    cells = [[row["silos"], f"{row['models']:.2f}", number(row["models"] * row["model_bytes"] / 1e6), number(row["cpu_seconds"]),
              number(row["seconds"])] for row in server]  # fmt: skip
    text += f"\nA server step that averages models of {number(server[0]['model_bytes'] / 1e6)} MB, checks included:\n\n"
    return text + table(["silos", "grows by, models", "grows by, MB", "CPU seconds", "seconds"], cells)


def s3(found: Any) -> str:
    rows = []
    for way, title in (("put", "put: safetensors, digest, upload"), ("get", "get: download, digest, map")):
        one = found[way]
        values = [one[key] for key in ("our_mb_s", "bare_mb_s", "our_best_mb_s", "bare_best_mb_s")]
        rows.append([title, *map(number, values), f"{one['kept']:.2f}", f"{one['client_cpu_ratio']:.2f}"])
    head = ["MB/s", "siloflow", "bare client", "siloflow, best", "bare, best", "ratio", "CPU of the client, ratio"]
    return (
        f"An update of {number(found['object_bytes'] / 1e6)} MB to and from a real MinIO on the loopback, beside the bare `minio` client "
        f"without any check; {found['repetitions']} turns of each. Ratios are medians over neighbouring turns.\n\n"
    ) + table(head, rows)


def pipelines(found: Any) -> str:
    seconds, stepwise = found["round_seconds"], found["stepwise_kfp_local"]
    rows = [["local", number(seconds["local"]), ""]]
    rows.append(["resident: separate processes that meet in the store", number(seconds["resident"]), spread(found["resident_ratio"])])
    text = f"{found['silos']} silos, {found['steps']} small steps a round, {found['repeats']} times {found['rounds']} rounds of each, "
    text += "in turn:\n\n" + table(["engine", "seconds a round", "ratio: median (all runs)"], rows)
    return text + (
        f"\nThe stepwise package under `kfp.local` ({number(stepwise['seconds'])} s for {stepwise['tasks']} tasks, the same rounds "
        f"{number(stepwise['local_seconds'])} s in the local engine) costs {number(stepwise['overhead_per_task'])} s a task, of which "
        f"{number(stepwise['of_which_import_torch'])} s are `import torch`: every task is a process of its own.\n"
    )


def scrape(found: Any) -> str:
    head = ["process", "CPU ms a scrape", "share of a core, percent"]
    rows = [[name, number(found[name]["cpu_ms_per_scrape"]), number(found[name]["core_percent"])] for name in ("idle", "training")]
    return (
        f"{found['series']} series of {found['silos']} silos, {number(found['bytes'])} bytes, every {found['every_seconds']:g} s.\n\n"
    ) + table(head, rows)


def machines(found: Any) -> str:
    """Where and when the rows were measured: more than one after a run of some of them."""
    return "; ".join(dict.fromkeys(row["machine"] for row in found["rows"]))


def algorithms(found: Any) -> str:
    """Of every kind of CPU that was measured."""
    steps = {row["row"]: row["step"] for one in found.values() for row in one["rows"]}
    ratios = [{row["row"]: row["ratio"] for row in one["rows"]} for one in found.values()]
    rows = [[step, *(of_one.get(row, "") for of_one in ratios)] for row, step in steps.items()]
    text = (
        "CPU time of a step as a part of that of a straightforward loop in the manner of the papers' code, one thread; both take turns. "
        "Milliseconds, what each aims at, and what did not get there: [performance-algorithms.md](performance-algorithms.md).\n\n"
    ) + table(["step", *found], rows)
    where = "; ".join(f"{name}: {machines(one)}" for name, one in found.items())
    return text + f"\n<sub>`make bench-algorithms ARGS=--write`; {where}.</sub>\n"


def cluster(found: Any) -> str:
    steps = found["bytes_per_step"]
    rows = [
        ["tasks of a run of two FedAvg rounds (plan, four steps of three silos and the server, evaluate, report)", found["tasks"]],
        ["pods (one for the run, two a task, one for the loop, one a step)", found["pods"]],
        ["seconds from the first pod to the last", number(found["seconds"])],
        ["seconds a task", number(found["seconds_per_task"])],
        ["bytes that a step adds to Argo's object, compressed", f"{min(steps):,} to {max(steps):,}"],
    ]
    return "`make bench` does not run this part: it needs a cluster.\n\n" + table(["", "stepwise"], rows) + (
        "\nSo stepwise is for seeing and retrying rounds, and resident for speed: its pods start once, whatever the number of rounds.\n"
    )  # fmt: skip


SECTIONS = (
    Section("exchange", "A round beside Flower", exchange, "img/performance-flower.svg"),
    Section("algorithms", "Steps of the algorithms", algorithms),
    Section("scaling", "From 1 to 50 silos", scaling, "img/performance-scaling.svg"),
    Section("workers", "One worker and two", workers),
    Section("memory", "Memory of a silo and of the server", memory),
    Section("s3", "S3", s3),
    Section("pipelines", "What an engine adds to a round", pipelines),
    Section("scrape", "Being scraped", scrape),
    Section(CLUSTER, "On a real Kubeflow Pipelines", cluster),
)
