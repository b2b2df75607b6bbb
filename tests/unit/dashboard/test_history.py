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
