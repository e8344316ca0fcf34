"""What a step of each algorithm costs beside a straightforward reference: `python -m bench.algorithms [--only ROW ...] [--write]`.

JSON on stdout, progress on stderr. Both sides of a row run in processes of their own with one thread and take turns; the best of
each counts, as CPU time per image, since what others do on the machine only adds. `--write` puts table and JSON into docs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench import page as performance
from bench.algorithms import layout, silos
from bench.algorithms.pictures import lay_out
from bench.algorithms.table import document
from bench.machine import commit, today
from bench.machine import machine as this_machine
from components.allocator import preloaded

ROOT = Path(__file__).parents[2]
ROWS = {
    "fedavg": ("FedAvg epoch, MobileNetV3-L 224, batch 32", 0.70),
    "fedccrl": ("FedCCRL epoch, the same", 0.62),
    "csac": ("CSAC calibration step, ResNet-18 224", 0.40),
    "csac-evaluated": ("the same with the evaluations of a round, which its code repeats after every 20 steps", 0.40),
    "fedsr": ("FedSR step, ResNet-18 224 (the reference re-creates its loader every step)", 0.15),
    "fedsr-batch": ("of which its batch", 0.15),
    "fedsr-digits": ("FedSR step, MNIST CNN 28 (likewise; not a setting of its code)", 0.15),
    "feddg": ("FedDG amplitude mixing", 0.05),
    "fedadg": ("FedADG round at equal epochs, ResNet-18 224", 0.70),
    "fedadg-alexnet": ("FedADG round at equal epochs, AlexNet 224, as its code has it (torchvision's layers)", 0.70),
    "femnist": ("FEMNIST round, 10 sampled clients of about 200 images", 0.5),
    "evaluation": ("evaluation, MobileNetV3-L 224", 0.75),
}


class Side:
    """A process that does its work whenever it is asked."""

    def __init__(self, row: str, name: str, pictures: Path) -> None:
        command = [sys.executable, "-m", "bench.algorithms.side", row, name, str(pictures)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **({} if name == "reference" else preloaded(os.environ))}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        self.best = self.wall = float("inf")
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r}: ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.best = min(self.best, 1000 * answer["cpu"] / answer["images"])
        self.wall = min(self.wall, 1000 * answer["wall"] / answer["images"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def vectors() -> str:
    """The kind of CPU: what decides which convolutions are dear."""
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def machine() -> str:
    """With what else it had to do: CPU time suffers from it too, wall time much more."""
    return f"{this_machine()['cpu']}, torch {torch.__version__}, load {os.getloadavg()[1]:.0f}; {today()}, commit {commit()}"


def measure(row: str, pictures: Path, repeats: int) -> dict[str, Any]:
    names = ["reference", "product", *(["in_turn", "stacked", "grouped"] if row == "femnist" else [])]
    sides = {name: Side(row, name, pictures) for name in names}
    for turn in range(repeats):
        print(f"{row}: {turn + 1}/{repeats}", file=sys.stderr)
        for side in sides.values():
            side.go()
    for side in sides.values():
        side.end()
    title, reach = ROWS[row]
    reference, product = sides["reference"].best, sides["product"].best
    found = {
        "row": row, "step": title, "reference_ms": round(reference, 2), "product_ms": round(product, 2),
        "repeats": repeats, "ratio": round(product / reference, 3), "reach": reach, "reached": product / reference <= reach,
        "reference_wall_ms": round(sides["reference"].wall, 2), "product_wall_ms": round(sides["product"].wall, 2),
    }  # fmt: skip
    print(f"{row}: {reference:.2f} -> {product:.2f} ms an image, {product / reference:.3f}x", file=sys.stderr)
    if "stacked" in sides:
        found |= {f"{name}_ms": round(sides[name].best, 2) for name in ("in_turn", "stacked", "grouped")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.algorithms", description="cost of a step beside a reference loop")
    parser.add_argument("--only", nargs="+", choices=[*ROWS, "layout", "silos"], default=[*ROWS, "layout", "silos"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/performance-algorithms.md and .json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="siloflow-bench-") as folder:
        os.environ["SILOFLOW_CACHE"] = str(Path(folder) / "cache")
        pictures = Path(folder) / "pictures"
        found: dict[str, Any] = {
            "pictures": lay_out(pictures), "machine": machine(),
            "decode_seconds": round(silos.settle(pictures), 2),
        }  # fmt: skip
        found["rows"] = [measure(row, pictures, options.repeats) for row in ROWS if row in options.only]
        if "layout" in options.only:
            print("layout", file=sys.stderr)
            found["layout"], found["convolutions"] = layout.measure(options.repeats), layout.convolutions(options.repeats)
        if "silos" in options.only:
            print("silos", file=sys.stderr)
            found["together"], found["first_batch"] = silos.together(pictures), silos.first_batch(pictures, options.repeats)
    print(json.dumps(found, indent=1))
    if options.write:
        write(found)


def write(found: dict[str, Any]) -> None:
    """What was not measured now, and every other kind of CPU, stays as it was, with the machine it was measured on."""
    page, data = (ROOT / "docs" / f"performance-algorithms.{suffix}" for suffix in ("md", "json"))
    known: dict[str, Any] = json.loads(data.read_text()) if data.exists() else {}
    before, where = known.get(vectors(), {"rows": []}), found.pop("machine")
    for part in [*found["rows"], found.get("together", {})]:
        part["machine"] = where
    rows = {row["row"]: row for row in [*before["rows"], *found["rows"]]}
    known[vectors()] = {**before, **found, "rows": [rows[row] for row in ROWS if row in rows]}
    data.write_text(json.dumps(known, indent=1) + "\n")
    page.write_text(document(known))
    performance.write(ROOT)  # which shows some of it


if __name__ == "__main__":
    main()
