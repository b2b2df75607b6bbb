"""A job's figures, as short texts or sums: progress, rate, restarts, what was quarantined.

All are pure functions of the status that the master answers (docs/cli.md lists its fields).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .job import ENDED, Status

_ONCE = ("prediction", "analysis")  # what reads its data in no epochs
_ENDS: dict[int | None, str] = {3: "finished with quarantined data"}


def duration(seconds: float | None) -> str:
    """Return seconds as a clock shows them: 0:07, 12:34, 1:02:03; "-" where they are not known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def machine_seconds(status: Status) -> dict[str, float]:
    """Return the seconds of a job's machines in sum, by use: useful_s, ...; {}: none is known."""
    sums: dict[str, float] = {}
    for machine in (status.get("usage") or {}).get("machines") or []:
        for name, seconds in machine.items():
            if name.endswith("_s"):
                sums[name] = sums.get(name, 0.0) + float(seconds or 0.0)
    return sums


def progress(status: Status) -> str:
    """Return the share and the number of the records that are done, "" where they are not known."""
    done, total = status.get("records_done"), status.get("records_total")
    if done is None:
        return ""
    if not total:
        return f"{done:,} records"
    return f"{percent(status)} {done:,}/{total:,} records"


def percent(status: Status) -> str:
    """Return the share of the records that are done, their number where the total is not known."""
    done, total = status.get("records_done"), status.get("records_total")
    if done is None or not total:
        return "-" if done is None else f"{done:,}"
    return f"{100 * done // total} %"  # rounded down: 100 % is said of all only


def epoch(status: Status) -> str:
    """Return the number of the epoch, from 1, and of how many; "" where there are none."""
    index, epochs = status.get("epoch"), status.get("num_epochs")
    if index is None or status.get("command") not in (None, "train"):
        return ""
    return f"{min(index + 1, epochs)}/{epochs}" if epochs else f"{index + 1}"


def now(status: Status) -> list[str]:
    """Return epoch, rate, loss, version and metrics, as far as they are known."""
    made = []
    if told := epoch(status):
        made.append(f"epoch {told}")
    if status.get("records_per_s"):
        made.append(f"{status['records_per_s']:,.0f} records/s")
    if status.get("loss") is not None:
        made.append(f"loss {number(status['loss'])}")
    if status.get("version"):
        made.append(f"version {status['version']:,}")
    if status.get("minibatch"):
        made.append(f"minibatch {status['minibatch']:,.0f} (gain {status['gain']:.3g})")
    made += [f"{name} {number(value)}" for name, value in (status.get("metrics") or {}).items()]
    return made


def tasks(status: Status) -> str:
    """Return how many tasks are in each state."""
    found = status.get("tasks") or {}
    told = " · ".join(f"{name} {found.get(name) or 0:,}" for name in ("todo", "leased", "fencing"))
    total = found.get("total")
    return f"{told} · done {found.get('done') or 0:,}{f' of {total:,}' if total else ''}"


def restarts(status: Status) -> str:
    """Return how often processes were started again: after preemptions, and after failures."""
    found = status.get("restarts") or {}

    def of(*names: tuple[str, str]) -> str:
        return ", ".join(f"{name} {found.get(key) or 0}" for name, key in names)

    failed = of(("workers", "worker"), ("servers", "server"))
    killed = of(("workers", "preemptions"), ("servers", "server_preemptions"), ("master", "master"))
    return f"preempted: {killed} · failed: {failed}"


def quarantined(found: Iterable[Status]) -> list[str]:
    """Return one line per place: file, record numbers, the error."""
    return [
        f"{entry.get('source') or '?'} {_numbers(entry.get('records') or [])}: {entry.get('error')}"
        f"{_places(entry.get('where') or [])}"
        for entry in found
    ]


def _places(where: Sequence[Status]) -> str:
    """Tell in brackets where a record was met: one that is broken for good is found each time."""
    told = []
    for kind in dict.fromkeys(place["kind"] for place in where):
        epochs = [str(place["epoch"] + 1) for place in where if place["kind"] == kind]
        more = "" if kind in _ONCE else f", epoch{'s' if len(epochs) > 1 else ''} "
        told.append(f"{kind}{more}{', '.join(epochs) if more else ''}")
    return f" ({'; '.join(told)})" if told else ""


def _numbers(records: Sequence[int]) -> str:
    shown = ", ".join(str(record) for record in records[:10])
    more = f" and {len(records) - 10} more" if len(records) > 10 else ""
    return f"record{'s' if len(records) != 1 else ''} {shown or '?'}{more}"


def best(found: Status) -> str:
    """Return the metric of the best checkpoint, and when it was written."""
    metric = f"{found['metric']} {number(found['value'])}"
    return f"{metric} · epoch {found['epoch'] + 1} · version {found['version']:,}"


def launched(status: Status) -> list[tuple[str, str]]:
    """Return what there is to say of a launched job, whose records are its script's own."""
    least, most = status.get("min_nodes"), status.get("max_nodes")
    running = sum(node["state"] in ("running", "finished") for node in status.get("nodes") or ())
    told = [f"round {status['round']}"] if status.get("round") else []
    if status.get("world_size"):
        told.append(f"nodes {running} · workers {status['world_size']}")
    if status.get("throughput") is not None:
        told.append(f"{status['throughput']:,.1f} /s")
    if status.get("remaining_s") is not None:
        told.append(f"{duration(status['remaining_s'])} left")
    ended = f"{status.get('num_restarts') or 0}, failures {status.get('failures') or 0}"
    folder = str(status.get("checkpoint_dir") or "")
    if status.get("nothing_saved"):
        folder += " (nothing is saved there yet: whoever is killed now begins anew)"
    return [
        ("script", str(status.get("script") or "")),
        ("nodes", f"{least} to {most}" if least != most else str(least)),
        ("now", " · ".join(told)),
        ("restarts", ended),
        ("state in", folder),
    ]


def end(status: Status) -> str:
    """Return how the job ended, and why."""
    state = str(status.get("state", "?"))
    if state in ENDED:
        state = _ENDS.get(status.get("exit_code"), state)
    message = str(status.get("message") or "")
    if message.startswith(f"{state} "):  # stopped (why) at record N, as a master says it
        return message
    return f"{state}: {message}" if message not in ("", state) else state


def mean_rate(status: Status) -> str:
    """Return the rate of this run: what an earlier one did, it did in its own time."""
    seconds = status.get("run_s") or status.get("started_s_ago")
    done = (status.get("records_done") or 0) - (status.get("records_before") or 0)
    return f" · {done / seconds:,.0f} records/s in the mean" if seconds and done > 0 else ""


def eta_s(status: Status) -> float | None:
    """Return in how many seconds all records are done, None where it is not known."""
    total, rate = status.get("records_total"), status.get("records_per_s")
    if not total or not rate or status.get("state") in ENDED:
        return None
    return max(0.0, float(total - (status.get("records_done") or 0)) / float(rate))


def counted(replicas: Sequence[Status] | None) -> str:
    """Count the replicas that run, or are to; "-" where the job has none of this kind."""
    return "-" if replicas is None else str(sum(map(is_there, replicas)))


def is_there(replica: Status) -> bool:
    """Tell whether a replica runs, or is to: one that has left counts no more."""
    return replica.get("state") != "left"


def number(value: object) -> str:
    """Return a metric as text, a fraction with four digits."""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def or_dash(value: object) -> str:
    """Return a value as text, "-" where there is none."""
    return "-" if value in (None, "") else str(value)
