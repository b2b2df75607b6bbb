"""What a user says of nodes becomes an autoscaler, or one sentence that names the flag."""

import pytest

from edl.common.errors import UsageError
from edl.scheduler.asking.make import Said, make
from edl.scheduler.policy import make_policy
from edl.scheduler.prices import Price

TABLE = "m5: {on-demand: 1.0, spot: 0.3}\np3: {on-demand: 3.0}\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(TABLE)
    return str(path)


def test_a_pool_of_what_is_said(table):
    pool = "node.kubernetes.io/instance-type=m5,team=a"
    said = Said("pods", pool, "capacity=spot", "cpu=3900m,memory=14Gi,gpu=1", 1, 5, prices=table)

    scaler = make(said, make_policy()).scaler

    assert scaler.pool.labels["team"] == "a"
    assert scaler.pool.spot == ("capacity", "spot")
    assert (scaler.pool.node.cpu, scaler.pool.node.gpu) == (3.9, 1)
    assert (scaler.pool.least, scaler.pool.most) == (1, 5)
    assert scaler.rules.price == Price(1.0, 0.3)
    assert (scaler.rules.low, scaler.rules.high) == (0.35, 0.65)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"node": ""}, "--node is missing"),
        ({"pool": "a"}, "--pool a: 'a' is no label"),
        ({"spot": "=b"}, "--spot =b: '=b' is no label"),
        ({"band": "0.3"}, "--band 0.3: write two numbers"),
        ({"band": "0.9:0.3"}, "a band of utility from 0.9 to 0.3 is none"),
        ({"min_nodes": 20}, "at least 20 nodes and at most 10"),
        ({"nodes_by": "nodepool"}, "--nodepool is missing"),
        ({"prices": "TABLE"}, "has 2 kinds of nodes: say in --pool which one"),
        ({"prices": "TABLE", "pool": "node.kubernetes.io/instance-type=p4"}, "p4 is missing: give"),
        ({"node": "cpu=many"}, "'many' is no quantity"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(table, more, why):
    given = {"nodes_by": "pods", "node": "cpu=4", **more}
    if given.get("prices"):
        given["prices"] = table

    with pytest.raises(UsageError) as error:
        make(Said(**given), make_policy())

    assert why in str(error.value)
    assert "\n" not in str(error.value)
