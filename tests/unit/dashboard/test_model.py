"""The model of a job: what statuses and history say becomes a snapshot, and changes to it."""

import copy
import math

from hypothesis import given
from hypothesis import strategies as st

from edl.dashboard import changes
from edl.dashboard.lives import Lives
from edl.dashboard.model import MOST_EVENTS, Model, goodput, meter_of
from edl.dashboard.series import MOST, Series


def event(number, t, text="it happened", **about):
    return {"id": number, "t": t, "text": text, **about}


def start(number, t, index, incarnation, machine="here", role="worker"):
    whose = {"role": role, "index": index, "incarnation": incarnation, "machine": machine}
    return event(number, t, f"{role} {index} registered", kind="start", **whose)


def death(number, t, index, end="killed", role="worker"):
    whose = {"role": role, "index": index, "incarnation": "x", "end": end, "why": "by SIGKILL"}
    return event(number, t, f"{role} {index} was killed", kind="death", **whose)


def status(t=1.0, **more):
    row = {"index": 0, "incarnation": "a", "state": "training", "heartbeat_age_s": 0.1}
    told = {
        "job_name": "it",
        "state": "running",
        "message": "",
        "started_s_ago": t,
        "version": int(10 * t),
        "loss": 1.0 / (1 + t),
        "records_per_s": 5.0,
        "workers": [row],
        "servers": [],
        "evaluations": [],
        "events": [],
    }
    return {**told, **more}


def test_a_worker_that_is_killed_and_replaced_has_two_lives_with_their_ends():
    lives = Lives()

    for each in (start(1, 1.0, 0, "a"), death(2, 5.0, 0), start(3, 6.0, 0, "b", "there")):
        lives.event(each)

    told = [(x["id"], x["began"], x["ended"], x["end"], x["machine"]) for x in lives.rows]
    assert [
        ("worker-0-a", 1.0, 5.0, "killed", "here"),
        ("worker-0-b", 6.0, None, None, "there"),
    ] == told
    assert "by SIGKILL" == lives.rows[0]["why"]


def test_who_comes_while_another_is_there_has_taken_its_place():
    lives = Lives()

    for each in (
        start(1, 1.0, 0, "a"),
        start(2, 3.0, 0, "b"),
        start(3, 3.0, 0, "c", role="server"),
    ):
        lives.event(each)

    assert [("failed", 3.0), (None, None), (None, None)] == [
        (life["end"], life["ended"]) for life in lives.rows
    ]


def test_a_master_that_was_killed_and_its_next_one_are_two_lives():
    lives = Lives()
    whose = {"kind": "start", "role": "master", "index": 0}
    lives.event(event(1, 0.0, incarnation="master-1", **whose))
    lives.event(event(2, 4.0, incarnation="master-2", before="was killed by SIGKILL", **whose))

    told = [(life["name"], life["end"], life["ended"], life["why"]) for life in lives.rows]
    assert [
        ("master", "killed", 4.0, "was killed by SIGKILL"),
        ("master", None, None, ""),
    ] == told


def test_a_process_that_no_event_names_is_known_by_its_row_and_ends_with_the_job():
    model = Model()
    model.hear(status(2.0), at=100.0)
    model.hear(status(9.0, state="done", workers=[]), at=None)

    (life,) = model.snapshot(200.0)["incarnations"]
    assert ("worker-0-a", 2.0, 9.0, "finished") == (
        life["id"],
        life["began"],
        life["ended"],
        life["end"],
    )


def test_history_and_status_tell_each_event_and_each_point_once():
    told = [event(1, 0.5), event(2, 1.0)]
    model = Model()
    model.history([told[0], {"t": 0.9, "version": 9, "scalars": {"loss": 0.7}}, told[1]])
    model.hear(status(1.0, events=[*told, event(3, 1.0)]), at=1.0)
    model.history([{"t": 0.95, "version": 9, "scalars": {"loss": 0.7}}, event(3, 1.0)])
    metric = [{"version": 7, "epoch": 0, "metrics": {"accuracy": 0.5}}]
    model.hear(status(2.0, evaluations=metric), at=2.0)
    model.hear(status(3.0, evaluations=metric), at=3.0)

    found = model.snapshot(3.0)
    assert [1, 2, 3] == [each["id"] for each in found["events"]]
    assert [0.9, 1.0, 2.0, 3.0] == [point[1] for point in found["scalars"]["loss"]]
    assert [(7, 2.0, 0.5)] == found["scalars"]["accuracy"]


def test_events_of_a_launched_job_have_no_ids_and_are_told_once_all_the_same():
    model = Model()
    told = [{"t": 1.0, "text": "a"}, {"t": 1.0, "text": "b"}, {"t": 2.0, "text": "a"}]
    model.hear(status(events=told[:2]), at=1.0)
    model.hear(status(events=told), at=2.0)

    assert ["a", "b", "a"] == [each["text"] for each in model.snapshot(2.0)["events"]]


def test_the_meter_finds_what_is_lost_and_what_counts_twice():
    told = {"applied": 5, "leased": 2, "todo": 2, "quarantined": 1, "recomputed": 3, "total": 10}

    assert (0, 0) == (meter_of({"records": told})["lost"], meter_of({"records": told})["twice"])
    assert 2 == meter_of({"records": {**told, "applied": 3}})["lost"]
    assert 1 == meter_of({"records": {**told, "leased": 3}})["twice"]
    assert meter_of({"records": {**told, "total": None}})["lost"] is None
    assert meter_of({"state": "starting"}) is None


def test_a_job_whose_books_do_not_add_up_is_told_first_of_all():
    told = {"applied": 5, "leased": 0, "todo": 0, "quarantined": 0, "recomputed": 0, "total": 10}
    model = Model()
    model.hear(status(records=told), at=1.0)

    health = model.snapshot(1.0)["health"]
    assert ("bad", True) == (health["level"], "5 records lost" in health["text"])


def test_health_says_who_is_away_and_why_it_waits():
    away = {"index": 1, "state": "waiting to start", "heartbeat_age_s": None, "incarnation": ""}
    rows = [*status()["workers"], away]
    model = Model()
    model.hear(status(workers=rows, message="worker 1 waits for a node"), at=1.0)

    assert {
        "level": "warn",
        "text": "Worker 1 of 2 is waiting to start: worker 1 waits for a node.",
    } == model.snapshot(1.0)["health"]
    assert "said nothing for 40 s" in model.snapshot(41.0)["health"]["text"]


def test_goodput_is_the_sum_over_machines_and_unknown_where_nobody_counted():
    machines = [
        {"name": "a", "useful_s": 8.0, "recompute_s": 1.0, "idle_s": 0.5, "start_s": 0.5}
        | {"waited_data_s": 1.5, "waited_teachers_s": 2.0},
        {"name": "b", "useful_s": 2.0, "recompute_s": 0.0, "idle_s": 0.0, "start_s": 1.0},
    ]
    told = {"usage": {"machines": machines}}

    assert {
        "useful": 6.5,  # who waits for servers is not measured here: it is absent
        "waiting_data": 1.5,
        "waiting_teachers": 2.0,
        "recomputed": 1.0,
        "starting": 1.5,
        "idle": 0.5,
    } == goodput(told)
    assert {} == goodput({"state": "dead"})
    machines[0] |= {"waited_servers_s": 100.0}  # told before what it is a part of
    assert (0.0, 8.5) == tuple(goodput(told)[name] for name in ("useful", "waiting_servers"))


def test_rates_of_a_server_are_those_of_its_present_process():
    def servers(t, pulls, incarnation="s"):
        row = {"index": 0, "incarnation": incarnation, "state": "serving", "heartbeat_age_s": 0.0}
        return status(t, servers=[{**row, "pulls": pulls, "pushes": 2 * pulls, "rows": 7.0}])

    model = Model()
    for told in (servers(1.0, 100.0), servers(3.0, 300.0)):
        model.hear(told, at=1.0)

    (shard,) = model.snapshot(1.0)["shards"]
    assert (100.0, 200.0, 7) == (shard["pulls_per_s"], shard["pushes_per_s"], shard["rows"])
    model.hear(servers(4.0, 1.0, "its successor"), at=1.0)
    assert "pulls_per_s" not in model.snapshot(1.0)["shards"][0]


def test_a_series_stays_small_and_keeps_its_extremes():
    series = Series()
    for number in range(20_000):
        value = {777: 1e6, 9_999: -1e6}.get(number, math.sin(number))
        series.add(number, float(number), value)

    values = [value for _, _, value in series.points]
    assert len(series.points) <= MOST
    assert (1e6, -1e6) == (max(values), min(values))
    assert [t for _, t, _ in series.points] == sorted({t for _, t, _ in series.points})


def test_a_loss_that_is_no_number_stands_as_it_is_and_hides_no_extreme():
    series = Series()
    series.add(0, 0.0, math.nan)
    assert [(0, 0.0, math.nan)] == series.points

    for number in range(1, 1 + MOST):
        series.add(number, float(number), math.inf if number % 3 else float(number))

    known = [value for _, _, value in series.points if math.isfinite(value)]
    assert (3.0, float(MOST)) == (min(known), max(known))
    assert 1 == series.thinned


ENDS = st.sampled_from(["killed", "preempted", "failed", "finished"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 3), st.text("abc", min_size=1, max_size=2)),
        st.tuples(st.just("death"), st.integers(0, 3), ENDS),
        st.tuples(st.just("status"), st.integers(0, 3), st.sampled_from(["running", "silent"])),
        st.tuples(st.just("told"), st.integers(1, 400), st.just("")),
    ),
    max_size=25,
)


def heard(steps):
    """Yield the snapshot after each step of a job."""
    model, number, t = Model(), 0, 0.0
    for kind, index, what in steps:
        t += 0.5
        number += 1
        if kind == "start":
            model.history([start(number, t, index, what)])
        elif kind == "death":
            model.history([death(number, t, index, what)])
        elif kind == "told":
            model.history([event(number + more, t) for more in range(index)])
            number += index
            points = [
                {"t": t + more / 1000, "version": more, "scalars": {"loss": float(more)}}
                for more in range(index)
            ]
            model.history(points)
        else:
            row = {"index": index, "incarnation": "r", "heartbeat_age_s": t, "state": "training"}
            records = {"applied": number, "leased": 0, "todo": 0, "quarantined": 0}
            records |= {"recomputed": 0, "total": number}
            model.hear(status(t, workers=[row], records=records, state=what), at=t)
        yield model.snapshot(t)


@given(STEPS)
def test_changes_applied_to_a_snapshot_give_the_next_one(steps):
    shown = None
    for after in heard(steps):
        if shown is not None:
            before = copy.deepcopy(shown)
            made = changes.change(shown, after)
            assert before == shown
            if made is not None:
                assert after == changes.apply(shown, made)
                ids = [each["id"] for each in made.get("events", [])]
                assert not set(ids) & {each["id"] for each in shown["events"]}
        shown = after
        ids = [each["id"] for each in shown["events"]]
        assert ids == sorted(set(ids))
        assert len(ids) <= MOST_EVENTS
        assert all(len(points) <= MOST for points in shown["scalars"].values())
        living = [life["name"] for life in shown["incarnations"] if life["ended"] is None]
        assert len(living) == len(set(living))


def test_a_change_has_only_what_changed():
    first, second = heard([("start", 0, "a"), ("start", 1, "b")])

    made = changes.change(first, second)
    assert {"at", "events", "incarnations"} == set(made)
    assert ["worker-1-b"] == [life["id"] for life in made["incarnations"]]


def test_a_status_that_lost_fields_is_sent_whole():
    model = Model()
    model.hear(status(), at=1.0)
    before = model.snapshot(1.0)
    model.hear({"job_name": "it", "state": "dead", "message": "gone"}, at=None)

    assert changes.change(before, model.snapshot(2.0)) is None


def test_rows_of_which_only_the_age_of_a_heartbeat_changed_are_not_sent_again():
    model = Model()
    model.hear(status(1.0), at=1.0)
    before = model.snapshot(1.0)
    older = [{**status()["workers"][0], "heartbeat_age_s": 0.9}]
    model.hear(status(1.2, workers=older), at=1.2)
    after = model.snapshot(1.2)

    assert "workers" not in changes.change(before, changes.calm(after, before))["status"]
    assert "workers" in changes.change(before, after)["status"]
    drained = [{**older[0], "state": "draining"}]
    model.hear(status(1.3, workers=drained), at=1.3)
    calmed = changes.calm(model.snapshot(1.3), before)
    assert "workers" in changes.change(before, calmed)["status"]
