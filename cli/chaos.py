"""`edl chaos`: faults in a running job, and the fault matrix."""

from __future__ import annotations

from pathlib import Path

import click

from ..common import paths
from ..common.errors import UsageError
from ..common.values import seconds
from .paths import LocalPath
from .place import complete_jobs


@click.group()
def chaos() -> None:
    """Faults on purpose: hit a job of yours, run the fault matrix."""


_RUN_HELP = """Kill, stop and terminate processes of a running job, by a seed, until it ends.

\b
A RULE is ROLE[:WHEN,...], ROLE is worker, ps, teacher or master:
  worker:every=20s            at random, 20 s apart in the mean
  ps:every=60s,count=3        so many at most
  worker:at=10s,20s,index=1   at these moments, this replica
  worker, ps:index=1          at once
"""


@chaos.command("run", help=_RUN_HELP)
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("--kill", multiple=True, metavar="RULE", help="SIGKILL: worker:every=20s, ps:at=30s.")
@click.option("--stop", multiple=True, metavar="RULE", help="SIGSTOP, then SIGCONT after for=5s.")
@click.option("--term", multiple=True, metavar="RULE", help="SIGTERM: a drain, of a worker.")
@click.option("--seed", default=0, type=int, help="The same seed draws the same faults.")
@click.option("--for", "lasting", metavar="TIME", help="Stop after so long.")
@click.option(
    "--log", type=LocalPath(), help="The JSON lines; default: chaos.jsonl in the job's folder."
)
def run_chaos(
    job: str | None,
    kill: tuple[str, ...],
    stop: tuple[str, ...],
    term: tuple[str, ...],
    seed: int,
    lasting: str | None,
    log: str | None,
) -> None:
    """Inject faults into a running job."""
    import signal

    from ..chaos import schedule
    from ..chaos.injector import strike
    from ..jobs.local import find

    given = ((kill, signal.SIGKILL), (stop, signal.SIGSTOP), (term, signal.SIGTERM))
    rules = [schedule.parse(text, number) for texts, number in given for text in texts]
    if not rules:
        raise UsageError("No fault is named: say --kill worker:every=20s, for example.")
    try:
        for_s = seconds(lasting) if lasting else float("inf")
    except ValueError as error:
        raise UsageError(f"--for: {error}.") from error
    paths.check_file(log or "", "--log")
    found = find(job)
    found.check_running()
    file, lines = strike(found, schedule.schedule(rules, seed), for_s, click.echo, log)
    hits = sum(not line.missed for line in lines)
    click.echo(f"{hits} signals sent to {found.name}, {len(lines) - hits} missed; {file}")


@chaos.command()
@click.option("--out", type=LocalPath(), metavar="FILE", help="Write the page there.")
@click.option(
    "--work", default="edl-runs/matrix", type=LocalPath(), help="Where cells run and are recorded."
)
@click.option("--only", default="", metavar="FAULT,PHASE", help="Only these; either may be empty.")
@click.option("--sample", default=0, type=click.IntRange(0), help="So many cells, drawn by --seed.")
@click.option("--seed", default=0, type=int, help="Draws the moments, the victims, the modes.")
@click.option("--again", is_flag=True, help="Run also what is recorded already.")
def matrix(out: str | None, work: str, only: str, sample: int, seed: int, again: bool) -> int:
    """Run every fault in every phase of a small job; exit code 1 where a cell is not sound."""
    from ..chaos import matrix as matrix_
    from ..chaos.page import page

    wanted = matrix_.pairs(only, sample, seed)
    folder = Path(work).absolute()
    paths.check_file(out or "", "--out")
    if why := paths.why_unwritable(folder):
        raise UsageError(f"--work: {why}: choose another folder.")
    found = matrix_.run(wanted, folder, seed=seed, again=again, say=click.echo)
    if out:
        every = matrix_.read(folder / "cells.jsonl")
        drawn = page(every, f"edl chaos matrix --out {out} --seed {seed}")
        Path(out).write_text(drawn, encoding="utf-8")
    return int(any(cell.outcome == "failed" for cell in found))
