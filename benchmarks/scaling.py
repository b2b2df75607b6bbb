"""The cost of a row as tables, clients and servers grow, and the speed of a job of 120 machines.

    python -m benchmarks.scaling [--quick]     from the repository root

1. One server's table grows from 10^5 rows to 10^8, or to what half of the free memory holds.
2. 1 to 64 client processes pull and push small batches, against 1 to 16 server processes; some of
   them what one server of the job below is asked for, each call by itself.
3. Calls of many sizes: the costs of a request, a row and a byte at each end are fitted to them.
4. From those costs alone benchmarks/model.py predicts the points of 2, and a job of 100 workers.

CPU times are those of whole processes. Writes docs/performance.svg and a block of
docs/performance.md.
"""

from __future__ import annotations

import argparse
import time

from benchmarks import measure, page
from benchmarks.scaling_points import (
    BATCH,
    DIM,
    QUICK,
    SHARE,
    SHARE_ELEMENTS,
    Extent,
    by_call,
    by_crowd,
    by_share,
    by_size,
    cores,
    costs_of,
)
from benchmarks.scaling_tables import (
    cost_table,
    crowd_table,
    job_section,
    picture,
    share_table,
    size_table,
)
from edl.kernels.malloc import keep_freed_memory


def scaling() -> str:
    """Return the tables as Markdown; they and the plot go to docs/ too."""
    began = time.monotonic()
    text, plot = measured(Extent())
    took = f"{measure.machine()}\n- took {time.monotonic() - began:.0f} s"
    page.refresh("scaling", f"{took}\n\n{text}")
    (page.DOCS / "performance.svg").write_text(plot)
    return text


def measured(extent: Extent) -> tuple[str, str]:
    """Return the tables, and the plot as SVG."""
    keep_freed_memory()
    sizes = by_size(extent)
    costs = {name: costs_of(found) for name, found in by_call(extent).items()}
    crowds = by_crowd(extent)
    calls = (
        f"{extent.calls[0]} to {extent.calls[-1]:,} rows of dim {extent.dims[0]} to "
        f"{extent.dims[-1]} out of {extent.rows:,}"
    )
    parts = [
        "**Cost of a row against the size of the table** (one client, one server, calls of "
        f"{BATCH:,} rows, dim {DIM}, Adagrad): CPU ns at both ends (wall ns).\n\n"
        + size_table(sizes),
        f"**Costs of a call**: CPU time, fitted to calls of {calls}, and of dense chunks, to one "
        "server and to two, among which rows must be cut.\n\n" + cost_table(costs),
        f"**Clients and servers**, all on the {cores()} cores of this machine: as measured, and "
        "the time of a cycle (pull + push) by the model, from the costs above.\n\n"
        + crowd_table(crowds, costs),
        f"**What one server of that job is asked for**: {SHARE:,} rows of dim {DIM} a call, by so "
        "many processes at a time, all on this machine. *wall*: the time of a call divided by the "
        f"clients, which is how often the server answers one. *pull dense*: {SHARE_ELEMENTS:,} "
        "dense elements, too.\n\n" + share_table(by_share(extent)),
        job_section(costs["TCP with TLS"]),
    ]
    return "\n\n".join(parts), picture(sizes, crowds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, and no figures to keep")
    print(measured(QUICK)[0] if parser.parse_args().quick else scaling())


if __name__ == "__main__":
    main()
