"""Lets PyPI's CUDA build of torch be imported without CUDA: `no_cuda.py SITE_PACKAGES`, needs gcc and binutils.

On x86 the plain torch wheel is linked against some 3 GB of CUDA libraries that are loaded at import and never called without a GPU.
For each one that is missing this writes a small library of the same name whose every function answers "no device" (100), which torch
takes for a machine without a GPU. A CPU build of torch misses nothing: then nothing is written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

CUDA = re.compile(r"lib(cu|nv|nccl)\w*\.so.*")
NO_DEVICE = "int no_device(void) { return 100; }\n"


def main(site_packages: Path) -> None:
    libraries = [*(site_packages / "torch").rglob("*.so*"), *site_packages.glob("torchvision*/*.so*")]
    present = {path.name for path in libraries}
    missing: dict[str, dict[str, set[str]]] = {}
    defined: set[str] = set()
    unversioned: set[str] = set()
    for path in libraries:
        of_version = {}
        for name, versions in needs(path).items():
            if name not in present and CUDA.fullmatch(name):
                missing.setdefault(name, defaultdict(set))
                of_version.update(dict.fromkeys(versions, name))
        for symbol, version in symbols(path, "--undefined-only"):
            if version in of_version:
                missing[of_version[version]][version].add(symbol)
            elif not version:
                unversioned.add(symbol)
        defined |= {symbol for symbol, _ in symbols(path, "--defined-only")}
    if missing:
        # Libraries without symbol versions do not say whose a symbol is: the first one that is missing takes all that nobody has.
        missing[min(missing)][""] |= {symbol for symbol in unversioned - defined if not symbol.startswith(("_ITM_", "__gmon", "Py", "_Py"))}
    for name, exported in sorted(missing.items()):
        write(site_packages / "torch" / "lib" / name, exported)
        print(f"{name}: {sum(map(len, exported.values()))} functions that answer 'no device'")


def needs(path: Path) -> dict[str, list[str]]:
    """The libraries that this one is linked against, and the symbol versions it wants of each."""
    answer: dict[str, list[str]] = {}
    for line in output("objdump", "-p", path).splitlines():
        if found := re.fullmatch(r"\s+NEEDED\s+(\S+)", line):
            answer.setdefault(found[1], [])
        elif found := re.fullmatch(r"\s+required from (\S+):", line):
            versions = answer.setdefault(found[1], [])
        elif found := re.fullmatch(r"\s+0x\w+ 0x\w+ \d+ (\S+)", line):
            versions.append(found[1])
    return answer


def symbols(path: Path, which: str) -> list[tuple[str, str]]:
    """Name and version; weak ones may stay undefined, so they do not count as wanted."""
    found = []
    for line in output("nm", "-D", which, path).splitlines():
        kind, name = line.split()[-2:]
        if which == "--defined-only" or kind == "U":
            symbol, _, version = name.partition("@")
            found.append((symbol, version.lstrip("@")))
    return found


def write(path: Path, exported: dict[str, set[str]]) -> None:
    source, script = [NO_DEVICE], []
    for version, names in sorted(exported.items()):
        source += [f'int {name}(void) __attribute__((alias("no_device")));\n' for name in sorted(names)]
        if version:
            script.append(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n")
    versions = path.with_suffix(".versions")
    versions.write_text("".join(script), encoding="ascii")
    flags = ["-shared", "-s", "-fno-builtin", "-w", f"-Wl,-soname,{path.name}", *([f"-Wl,--version-script={versions}"] if script else [])]
    subprocess.run(["gcc", "-x", "c", "-", *flags, "-o", path], input="".join(source), text=True, check=True)
    versions.unlink()


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
