"""What fits is begun and what does not waits, as a packer that tries all places finds it."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tools.plans import Speed, broken
from tools.turns import examples

from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job
from edl.scheduler.policy import make_policy

GPU_NODE = Resources(cpu=64, gpu=8)
WHOLE_NODE = Resources(cpu=4, gpu=8)
AMOUNTS = st.builds(
    Resources, st.sampled_from([0, 1, 2, 4, 5, 7]), st.just(0), st.sampled_from([0, 2, 4])
)
SMALL = st.builds(Resources, st.sampled_from([0.5, 1, 2, 3]))
WORKER = st.builds(Resources, st.sampled_from([0.5, 1, 2]), st.just(0), st.sampled_from([0, 1, 2]))


def machines(*free: Resources) -> list[Node]:
    return [Node(f"n{i}", each) for i, each in enumerate(free)]


def job(name: str, workers: int, servers: int = 0, **more: object) -> Job:
    least = {"minimum": workers, "maximum": workers, "servers": (servers,), "may_move": False}
    return Job(name, Speed(), submitted=0.0, **{"worker": WHOLE_NODE, **least, **more})


def fits(nodes: list[Resources], pods: list[Resources]) -> bool:
    """Tell whether all pods find a place on the nodes: each place is tried for each."""
    if not pods:
        return True
    (pod, *rest), tried = pods, set()
    for i, free in enumerate(nodes):
        left = Resources(free.cpu - pod.cpu, free.memory - pod.memory, free.gpu - pod.gpu)
        if free not in tried and min(left.cpu, left.memory, left.gpu) >= 0:
            tried.add(free)  # of nodes that are alike one is enough
            if fits([*nodes[:i], left, *nodes[i + 1 :]], rest):
                return True
    return False


def test_a_master_and_servers_without_gpus_fit_beside_workers_of_whole_nodes() -> None:
    nodes = machines(*[GPU_NODE] * 4)
    small = {"server": Resources(cpu=2), "master": Resources(cpu=1)}

    made = make_policy().plan([job("a", 4, 2, **small)], nodes, 0.0)

    assert (made["a"].shape.workers, made["a"].why) == (4, "starts with 4 workers and 2 servers")


def test_as_many_jobs_begin_as_workers_fit_whatever_their_masters_take() -> None:
    jobs = [job(name, 1, master=Resources(cpu=1)) for name in "abcde"]
    nodes = machines(*[GPU_NODE] * 4)

    made = make_policy().plan(jobs, nodes, 0.0)

    assert sorted(given.shape.workers for given in made.values()) == [0, 1, 1, 1, 1]
    assert [] == broken(made, jobs, nodes)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(AMOUNTS, min_size=1, max_size=4),
    WORKER,
    st.integers(1, 4),
    SMALL,
    st.integers(0, 3),
    SMALL,
)
@example(  # a server where most is free would take the room of a worker
    [Resources(cpu=4, gpu=2), Resources(cpu=3)],
    Resources(cpu=2, gpu=1),
    2,
    Resources(cpu=2),
    1,
    Resources(cpu=1),
)
def test_a_job_begins_where_a_packer_finds_a_place_for_all_of_it_and_nowhere_else(
    free: list[Resources],
    worker: Resources,
    workers: int,
    server: Resources,
    servers: int,
    master: Resources,
) -> None:
    has = job("a", workers, servers, worker=worker, server=server, master=master)
    pods = [*[worker] * workers, *[server] * servers, master]

    made = make_policy().plan([has], machines(*free), 0.0)

    assert (made["a"].shape.workers == workers) == fits(free, pods), made["a"].why
    assert [] == broken(made, [has], machines(*free))
