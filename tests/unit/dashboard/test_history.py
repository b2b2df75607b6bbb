"""The history in a job's folder: what a master wrote, whatever ended it, is read again."""

from edl.jobs.history import FILE, History, Reader, curves, evaluated


def status(t, **more):
    told = {"started_s_ago": t, "version": int(t), "loss": 0.5, "records_per_s": 3.0}
    return {**told, "evaluations": [], "minibatch": None, "gain": None, **more}


def test_events_and_curves_are_read_as_they_come(tmp_path):
    history, reader = History(tmp_path), Reader(tmp_path)
    history.event({"id": 1, "t": 0.5, "text": "starting"})
    history.look(status(1.0))
    first = reader.lines()
    history.event({"id": 2, "t": 1.5, "text": "epoch 0 is done"})
    history.close()

    assert [{"id": 1, "t": 0.5, "text": "starting"}, first[1]] == first
    assert {"loss": 0.5, "records_per_s": 3.0} == first[1]["scalars"]
    assert [2] == [line["id"] for line in reader.lines()]
    assert [] == reader.lines()


def test_points_come_now_and_then_and_seldomer_of_an_old_job(tmp_path):
    history = History(tmp_path)
    for quarter in range(40):
        history.look(status(quarter / 4))
    for second in range(100_000, 101_000):
        history.look(status(float(second)))
    history.look(status(101_000.5), last=True)
    history.close()

    ages = [line["t"] for line in Reader(tmp_path).lines()]
    assert [0.0, 2.0, 4.0, 6.0, 8.0] == ages[:5]
    assert [100_000.0, 100_200.0] == ages[5:7]
    assert 101_000.5 == ages[-1]


def test_each_evaluation_is_written_once_at_its_version(tmp_path):
    history = History(tmp_path)
    told = [{"version": 7, "epoch": 0, "metrics": {"auc": 0.7, "loss": 0.2, "curve": [1, 2]}}]
    history.look(status(1.0, evaluations=told))
    history.look(status(1.2, evaluations=told))
    history.close()

    lines = Reader(tmp_path).lines()
    assert [{"t": 1.0, "version": 7, "scalars": {"auc": 0.7, "evaluated loss": 0.2}}] == lines[:1]
    assert 2 == len(lines)


def test_a_point_has_how_the_job_stands_for_those_that_are_no_page(tmp_path):
    worker = {"heartbeat_age_s": 0.1}
    machines = [{"useful_s": 6.0, "recompute_s": 1.0, "start_s": 2.0, "idle_s": 3.0}]
    told = {"workers": [worker, {"heartbeat_age_s": None}], "usage": {"machines": machines}}
    history = History(tmp_path)
    history.look(status(1.0, restarts={"worker": 1, "master": 2}, **told))
    history.look(status(4.0, restarts={"worker": 1, "master": 2}))
    history.close()

    first, second = (line["job"] for line in Reader(tmp_path).lines())
    assert {"workers": 1.0, "restarts": 3.0, "goodput": 0.5} == first
    assert {"workers": 0.0, "restarts": 3.0} == second


def test_half_a_line_of_a_killed_master_spoils_no_other(tmp_path):
    killed = History(tmp_path)
    killed.event({"id": 1, "t": 0.5, "text": "a"})
    killed.close()
    with open(tmp_path / FILE, "ab") as file:
        file.write(b'{"id": 2, "t": 0.7, "te')
    history = History(tmp_path)  # of the next master
    history.event({"id": 1 << 20, "t": 0.9, "text": "b"})
    history.close()

    assert ["a", "b"] == [line["text"] for line in Reader(tmp_path).lines()]


def test_lines_that_are_none_are_passed_over(tmp_path):
    (tmp_path / FILE).write_text('[1]\n{}\nnot json\n{"t": "x", "id": 1, "text": ""}\n{"t": 1}\n')

    assert [] == Reader(tmp_path).lines()
    assert [] == Reader(tmp_path / "nowhere").lines()


def test_a_history_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    history = History(tmp_path / "nowhere")
    history.event({"id": 1, "t": 0.5, "text": "a"})
    history.look(status(1.0))
    history.close()

    assert 1 == caplog.text.count("history -> lost")


def test_what_a_status_lacks_is_not_drawn():
    assert {} == curves({"state": "dead", "loss": None})
    assert [] == evaluated({"state": "dead"})
