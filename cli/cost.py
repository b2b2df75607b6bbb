"""`edl cost`: the price of a job, by a table of prices that the user gives."""

from __future__ import annotations

import click

from ..common.errors import EdlError, UsageError
from .output import is_drawn, outputs, print_report, say
from .paths import LocalPath
from .place import complete_jobs, place, where


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("--all", "every", is_flag=True, help="All jobs of the place, and their sum.")
@click.option(
    "--prices",
    type=LocalPath(exists=True, dir_okay=False),
    required=True,
    help="YAML: of each kind of machine, `on-demand: $ an hour`, and `spot:`.",
)
@outputs()
@where
def cost(
    job: str | None, every: bool, prices: str, output: str, runtime: str, namespace: str
) -> None:
    """Tell what a job has cost: machine-seconds, useful and wasted, $, and what spot has saved.

    A machine of this place is of kind `here`, a node of the kind that its label
    node.kubernetes.io/instance-type tells (`unknown`: none).
    """
    from ..jobs.job import Report
    from ..scheduler import bill
    from ..scheduler.prices import read

    if every and job is not None:
        raise UsageError("--all is of all jobs: leave the name out, or --all.")
    with place(runtime, namespace) as jobs:
        if not every:
            used = [bill.used(jobs.find(job))]
        else:
            used = []
            for name in jobs.names():
                try:
                    used.append(bill.used(jobs.find(name)))
                except EdlError as error:
                    say(f"left out: {error}", err=True)
    table = read(prices, bill.kinds(used), others=True)
    rows = [bill.row(each, table) for each in used]
    if every:
        rows.append(bill.total(used, table))
    shown = rows if every else rows[0]
    print_report(Report(shown, lambda wide: bill.drawn(rows, wide)), output)
    if is_drawn(output) and any(bill.has_unknown(each) for each in used):
        click.echo("Of some machines nobody knows the kind any more: they are priced as `unknown`.")
