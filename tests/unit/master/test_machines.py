"""The time of each machine is counted once, by what its workers do."""

from edl.durable.schema import dump_all, load
from edl.master.machines import Machines, MachinesState

HERE = "m"


def counted(*looks):
    machines = Machines(0.0, HERE)
    for now, records, workers, servers in looks:
        machines.look(now, records, workers, servers)
    return machines


def parts(machines, name):
    (row,) = (each for each in machines.usage()["machines"] if each["name"] == name)
    return tuple(row[f"{part}_s"] for part in ("useful", "recompute", "idle", "start"))


def test_a_machine_counts_whole_by_the_share_of_its_workers_that_work():
    two = [("n", "training"), ("n", "waiting")]

    machines = counted((2, 0, [("n", "starting")], ["s"]), (6, 40, two, ["s"]), (7, 40, [], ["s"]))

    assert parts(machines, "n") == (2, 0, 2, 2)
    assert parts(machines, "s") == parts(machines, HERE) == (4, 0, 1, 2)
    assert machines.usage()["records"] == 40


def test_records_to_be_computed_again_take_their_time_out_of_what_was_useful():
    works = [("n", "training")]

    machines = counted((0, 0, works, []), (20, 100, works, []), (20, 75, works, []))

    assert parts(machines, "n") == (15, 5, 0, 0)
    assert machines.usage()["records"] == 75


def test_what_another_job_had_done_is_not_counted():
    machines = counted((1, 500, [], []), (2, 530, [("n", "training")], []))

    assert machines.usage()["records"] == 30


def test_a_restarted_master_counts_the_gap_once_all_have_said_what_they_do():
    before = counted((1, 0, [("n", "training")], []), (3, 20, [("n", "training")], []))
    told = load(MachinesState, dump_all(before.state()))
    after = Machines(100.0, HERE)

    after.restore(told, now=9.0, went_on=True)
    after.look(10, 30, [("n", "")], [])
    assert parts(after, "n")[0] == 3
    after.look(11, 30, [("n", "training")], [])

    assert parts(after, "n") == (11, 0, 0, 0)
    assert after.usage()["records"] == 30


def test_while_a_job_stood_without_a_master_its_machines_do_not_count():
    before = counted((1, 0, [("n", "training")], []))
    after = Machines(0.0, HERE)

    after.restore(before.state(), now=1000.0, went_on=False)
    after.look(1001, 0, [("n", "evaluating")], [])

    assert parts(after, "n") == (2, 0, 0, 0)


def waiting(*rows):
    return [(name, who, {"data": data, "servers": servers}) for name, who, data, servers in rows]


def test_what_workers_wait_for_is_their_part_of_a_machines_useful_time():
    works = [("n", "training"), ("n", "training"), (HERE, "training")]
    machines = Machines(0.0, HERE)
    there = [("n", "a", {}), ("n", "b", {}), (HERE, "c", {})]
    machines.look(0, 0, works, [], there)

    machines.look(4, 40, works, [], [*waiting(("n", "a", 2.0, 0.5), ("n", "b", 0, 0)), there[2]])
    machines.look(5, 50, works, [], [*waiting(("n", "a", 3.0, 0.5), ("n", "b", 0, 1)), there[2]])

    mine, other = (machines.usage()["machines"][i] for i in (1, 0))
    assert ("n", 5, 1.5, 0.75) == tuple(
        mine[k] for k in ("name", "useful_s", "waited_data_s", "waited_servers_s")
    )
    assert {"name", "useful_s", "recompute_s", "idle_s", "start_s"} == other.keys()
    machines.look(5, 25, works, [], there)
    assert (2.5, 2.5, 0.75) == tuple(
        machines.usage()["machines"][1][k] for k in ("useful_s", "recompute_s", "waited_data_s")
    )


def test_a_restarted_master_counts_no_wait_twice_and_a_new_worker_from_its_beginning():
    works = [("n", "training")]
    before = Machines(0.0, HERE)
    before.look(0, 0, works, [], [("n", "a", {})])
    before.look(2, 0, works, [], waiting(("n", "a", 1.0, 0.0)))
    after = Machines(50.0, HERE)
    after.restore(load(MachinesState, dump_all(before.state())), now=3.0, went_on=True)

    after.look(3, 0, works, [], waiting(("n", "a", 1.25, 0.0)))
    after.look(4, 0, works, [], waiting(("n", "a", 1.5, 0.0)))
    after.look(5, 0, works, [], [("n", "b", {})])
    after.look(6, 0, works, [], waiting(("n", "b", 0.5, 0.0)))

    row = next(row for row in after.usage()["machines"] if row["name"] == "n")
    assert 1.0 + 0.25 + 0.5 == row["waited_data_s"]
