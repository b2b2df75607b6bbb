"""Parts of a state: made of those of other numbers, stepped alike, a checkpoint of any strategy."""

import pytest
import torch
from tools.servers import restored
from torch import nn

from edl.common import storage
from edl.common.errors import CheckpointError, DefinitionError
from edl.nn import LAMB, SGD, Adagrad, Adam, NAdam
from edl.nn.model_spec import CHUNK_ELEMENTS
from edl.proto import master_pb2 as pb
from edl.worker.group.orders import AgreedOrders
from edl.worker.group.parts import pack, range_of, unpack
from edl.worker.group.sharded_state import ShardedState, Step
from edl.worker.group.state import GroupState
from edl.worker.model import model_spec

CPU = torch.device("cpu")
OPTIMIZERS = {
    "momentum": SGD(lr=0.05, momentum=0.9),
    "adagrad": Adagrad(lr=0.05, initial_accumulator_value=0.1),
    "adam": Adam(lr=5e-3),
    "nadam": NAdam(lr=5e-3),
}
by_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


class Model(nn.Module):
    def __init__(self, width=7):
        super().__init__()
        self.hidden = nn.Linear(6, width)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.never = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


def make_model():
    torch.manual_seed(3)
    return Model()


def member(optimizer, world, rank, make=make_model):
    state = ShardedState(make, model_spec(make(), optimizer, 3), CPU)
    state.layout = world, rank
    return state


def group(optimizer, world, make=make_model):
    members = [member(optimizer, world, rank, make) for rank in range(world)]
    for each in members:
        each.begin()
    return members


def reader(*members):
    """Return a function that reads from whoever of these has a part; over the wire."""

    def read(world, rank, ranges):
        parts = [p for m in members for p in m.parts if p.name == (world, rank)]
        return unpack(pack(parts[0].read(ranges)), CPU)

    return read


def gradients(number):
    generator = torch.Generator().manual_seed(number)
    shapes = [(3,), (7, 6), (7,)]  # of never, which has none, and of hidden
    return [None, *(torch.randn(shape, generator=generator) for shape in shapes[1:])]


def step_of(state, number):
    """Return a step's own and mirrored gradients: slices of those of the whole model."""
    found = []
    for part in state.current:
        ranges = [range_of(n, like, part.world, part.rank) for n, like in enumerate(state.like)]
        found.append(
            [
                None if g is None else g.reshape(-1)[start:stop].view_as(weight)
                for g, (_, start, stop), weight in zip(
                    gradients(number), ranges, part.weights, strict=True
                )
            ]
        )
    return Step(found, [torch.ones(1), torch.ones(1, dtype=torch.int64)], number, 8)


def train(members, *numbers):
    for number in numbers:
        for each in members:
            each.apply(step_of(each, number))


def values(members):
    world = members[0].own.world
    return members[0].whole(world, reader(*members)).state_dict()


def assert_same(expected, found):
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


@by_optimizer
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 4), (4, 1)])
def test_other_parts_are_made_of_the_old_ones_and_step_on_alike(optimizer, before, after):
    old = group(optimizer, before)
    train(old, 1, 2)

    new = [member(optimizer, after, rank) for rank in range(after)]
    for each in new:
        each.unpack_shared(old[0].pack_shared(), old[0].version)
        each.assemble(before, reader(*old))
        each.settle()
    train(old, 3), train(new, 3)

    assert_same(values(old), values(new))
    assert (new[0].version, new[0].applied) == (3, {1: 8, 2: 8, 3: 8})


def test_the_mirror_of_one_that_is_gone_is_its_part():
    members = group(Adam(), 3)
    train(members, 1)
    expected = values(members)

    left = [members[0], members[2]]
    for rank, each in enumerate(left):
        each.layout = 2, rank
        each.assemble(3, reader(*left))

    assert [[(3, 0), (3, 2), (2, 0), (2, 1)], [(3, 2), (3, 1), (2, 1), (2, 0)]] == [
        each.held() for each in left
    ]
    assert_same(expected, values(left))


def test_who_missed_the_vote_makes_the_step_where_another_has():
    one, other = group(Adam(), 2)
    for each in (one, other):
        each.pending = step_of(each, 1)
    one.apply(one.pending)

    for each in (one, other):
        each.meet(1)

    assert (one.version, other.version, other.pending) == (1, 1, None)
    assert torch.equal(one.own.weights[1], other.current[1].weights[1])


def test_a_step_that_nobody_made_is_dropped():
    one, _ = group(Adam(), 2)
    one.pending = step_of(one, 1)

    one.meet(0)

    assert (one.version, one.pending, len(one.parts)) == (0, None, 2)


def test_who_is_too_far_behind_has_nothing():
    one, _ = group(Adam(), 2)

    one.meet(4)

    assert (one.version, one.held()) == (-1, [])


@by_optimizer
def test_a_checkpoint_of_shares_is_that_of_a_whole_state_and_back(optimizer, tmp_path):
    members = group(optimizer, 3)
    train(members, 1, 2)
    members[1].retire(2)  # broken once: of the one that had forgotten task 1 it was no whole cut
    cuts = [each.copy() for each in members]
    train(members, 3)

    files = [
        file
        for rank, cut in enumerate(cuts)
        for file in cut.write_share(tmp_path / "c", rank, 3, 3, reader(*cuts))
    ]
    storage.write_manifest(tmp_path / "c", version=2, num_shards=3, num_slots=1024, files=files)
    assert restored(tmp_path / "c").version == 2
    model = Model()
    whole = GroupState(model, model_spec(make_model(), optimizer, 3))
    whole.begin()
    whole.read(str(tmp_path / "c"), ledger=True)
    back = group(optimizer, 2)
    for each in back:
        each.read(str(tmp_path / "c"), ledger=True)

    assert (whole.version, whole.applied) == (back[1].version, back[1].applied) == (2, {1: 8, 2: 8})
    train(back, 3)
    whole.optimizer.zero_grad()
    for weight, gradient in zip(whole.parameters, gradients(3), strict=True):
        weight.grad = gradient
    whole.optimizer.step()
    model.seen += 1
    expected = {
        n: t for n, t in values(members).items() if n != "count"
    }  # which servers do not keep
    assert_same(expected, {n: t for n, t in values(back).items() if n != "count"})
    assert_same(expected, {n: t for n, t in model.state_dict().items() if n != "count"})


def test_chunks_of_large_tensors_are_put_together_across_parts(tmp_path):
    def make():
        torch.manual_seed(3)
        return Model(CHUNK_ELEMENTS // 6 + 7)

    members = group(SGD(), 3, make)

    (weights,) = members[0].write_share(tmp_path / "c", 0, 1, 3, reader(*members))[:-1]
    assert weights.nbytes > 4 * CHUNK_ELEMENTS
    files = members[0].write_share(tmp_path / "c", 0, 1, 3, reader(*members))
    storage.write_manifest(tmp_path / "c", version=0, num_shards=1, num_slots=1024, files=files)
    whole = GroupState(make(), model_spec(make(), SGD(), 3))
    with torch.no_grad():
        whole.model.hidden.weight.zero_()
    whole.read(str(tmp_path / "c"), ledger=False)
    assert torch.equal(make().hidden.weight, whole.model.hidden.weight)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    state = GroupState(Model(9), model_spec(Model(9), SGD(), 3))
    files = state.write(tmp_path / "c")
    storage.write_manifest(tmp_path / "c", version=0, num_shards=1, num_slots=1024, files=files)

    with pytest.raises(CheckpointError, match="another model"):
        group(SGD(), 1)[0].read(str(tmp_path / "c"), ledger=True)


def test_a_parameter_that_cannot_be_cut_is_refused_by_name():
    def make():
        model = make_model()
        model.scale = nn.Parameter(torch.tensor(1.0))
        return model

    with pytest.raises(DefinitionError, match=r"scale: .*shape \(1,\)"):
        member(SGD(), 1, 0, make)


# -- when a cut is taken


def take(number, round_=1, cut="c"):
    return pb.Order(id=number, kind=pb.Order.TAKE, cut=cut, round=round_)


def test_an_optimizer_of_whole_parameters_is_refused_in_one_sentence():
    with pytest.raises(DefinitionError, match="LAMB .*leave --fully_shard out"):
        member(LAMB(), 1, 0)


def test_a_cut_is_taken_when_all_know_of_it_or_there_is_nothing_to_train():
    orders = AgreedOrders()
    orders.begin(1)
    orders.put(take(5))
    orders.put(take(5))  # a repeat

    assert (orders.told, orders.next_take(0, idle=False)) == (1, None)
    assert orders.next_take(1, idle=False) is not None
    orders.put(take(6))
    assert orders.next_take(1, idle=False) is None
    assert orders.next_take(1, idle=True) is not None
    assert orders.told == 2


def test_a_cut_of_a_round_that_is_over_is_not_taken_and_one_of_the_next_is_kept():
    orders = AgreedOrders()
    orders.begin(1)
    orders.put(take(5))
    orders.put(take(6, round_=2))
    assert orders.told == 1

    orders.begin(2)

    assert (orders.told, orders.next_take(0, idle=True).id) == (1, 6)


def test_a_cut_that_is_wanted_no_more_counts_as_taken():
    orders = AgreedOrders()
    orders.begin(1)
    orders.put(take(5))

    orders.forget("c")

    assert (orders.told, orders.next_take(1, idle=True)) == (1, None)
