"""DistillReader with a cache: what is kept by its features is not asked again.

A test's docstring says what was broken once to see it fail.
"""

import numpy as np
import pytest

from edl.common.errors import UsageError
from edl.common.identity import Identity
from edl.distill import DistillReader, Rules
from edl.distill.cache import Cache
from edl.distill.frames import Part
from edl.distill.server import Teacher
from edl.distill.teachers import Untaught
from edl.registry.identity import VARIABLE

IDENTITY = Identity("the teachers' token")
ME, OTHER = "ab" * 16, "cd" * 16
IMAGES = np.arange(96, dtype=np.float32)[:, None]


class Class:
    """A teacher that doubles, and counts what it is asked."""

    def __init__(self, fingerprint=ME):
        self.rows = 0
        self._teacher = Teacher(identity=IDENTITY)
        self._teacher.begin(self._double, {"fingerprint": fingerprint}, max_batch_size=4)
        self.address = f"127.0.0.1:{self._teacher.listening.tcp_port}"

    def _double(self, parts, rows):
        self.rows += rows
        return [Part("/logits", 2 * parts[0].values)]

    def close(self):
        self._teacher.close()


@pytest.fixture
def teachers(monkeypatch):
    """Yield what makes teachers."""
    monkeypatch.setenv(VARIABLE, IDENTITY.to_variable())
    made = []

    def make(*arguments):
        made.append(Class(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def reader(folder, teacher=None, **options):
    rules = options.pop("rules", Rules(wait_s=60.0))
    made = DistillReader(["image"], ["logits"], cache=folder, rules=rules, **options)
    if teacher is not None:
        made.set_fixed_teacher(teacher.address)
    return made


def batches(order, size=4):
    return [(IMAGES[order[n : n + size]],) for n in range(0, len(order), size)]


def must_be_taught(found, order):
    images, logits = (np.concatenate(each) for each in zip(*found, strict=True))
    np.testing.assert_array_equal(IMAGES[order], images)
    np.testing.assert_array_equal(2 * images, logits)


def test_other_epochs_in_any_order_ask_nothing(tmp_path, teachers):
    """Broken once: (1) _places_of looks in blocks; (2) the fingerprint is not handed on."""
    teacher, rng = teachers(), np.random.default_rng(1)
    it = reader(tmp_path, teacher)
    must_be_taught(it.wrap(batches(np.arange(96))), np.arange(96))
    asked = teacher.rows
    assert 96 == asked

    for size in (4, 7):
        order = rng.permutation(96)
        must_be_taught(it.wrap(batches(order, size)), order)
    assert asked == teacher.rows


def test_only_what_lacks_is_asked(tmp_path, teachers):
    teacher = teachers()
    it = reader(tmp_path, teacher)
    must_be_taught(it.wrap(batches(np.arange(0, 96, 2))), np.arange(0, 96, 2))
    must_be_taught(it.wrap(batches(np.arange(96))), np.arange(96))

    assert 96 == teacher.rows


def test_another_script_without_teachers_learns_from_the_folder_alone(tmp_path, teachers):
    must_be_taught(reader(tmp_path, teachers()).wrap(batches(np.arange(48))), np.arange(48))

    it = reader(tmp_path)
    order = np.arange(48)[::-1]
    must_be_taught(it.wrap(batches(order)), order)
    with pytest.raises(Untaught, match="has no answer about what a batch has, and no teacher"):
        list(it.wrap(batches(np.arange(96))))
    lax = reader(tmp_path, rules=Rules(without="hard_labels"))
    assert [None] == [logits for _, logits in lax.wrap(batches(np.arange(48, 52)))]


def test_answers_of_another_teacher_are_not_mixed_in(tmp_path, teachers):
    """A cache is one teacher's for as long as a reader lives, and each teacher has its own."""
    notes = []
    it = reader(tmp_path, teachers(), on_note=notes.append, rules=Rules(wait_s=0.5))
    must_be_taught(it.wrap(batches(np.arange(48))), np.arange(48))
    other = teachers(OTHER)
    it.set_fixed_teacher(other.address)
    with pytest.raises(Untaught, match="is another one"):
        list(it.wrap(batches(np.arange(96))))
    assert 0 == other.rows

    must_be_taught(reader(tmp_path, other).wrap(batches(np.arange(96))), np.arange(96))
    assert 96 == other.rows
    with pytest.raises(UsageError, match="has the answers of 2 teachers"):
        next(reader(tmp_path).wrap(batches(np.arange(48))))


def test_a_damaged_segment_is_asked_again(tmp_path, teachers):
    """Broken once: Cache._drop forgets the blocks only."""
    teacher, notes = teachers(), []
    it = reader(tmp_path, teacher, on_note=notes.append)
    must_be_taught(it.wrap(batches(np.arange(96))), np.arange(96))
    for segment in (tmp_path / ME).glob("*.safetensors"):
        segment.write_bytes(segment.read_bytes()[:-1] + b"?")

    must_be_taught(it.wrap(batches(np.arange(96))), np.arange(96))

    assert 192 == teacher.rows
    assert any("is passed over" in note for note in notes)


def test_records_and_features_share_a_folder(tmp_path):
    """Those of a job go by number, those of a script by their features; a segment may have both."""
    from edl.data.views import Seen
    from edl.distill.cache import BY_FEATURES

    def find_and_put(cache, source, numbers, parts=None):
        seen, digests = Seen(source, np.array(numbers)), np.array(numbers)
        if parts is not None:
            cache.put(seen, digests, [Part("", np.array(parts, np.float32))])
        found, kept = cache.find(seen, digests)
        return kept[0].values.tolist() if found.all() else None

    cache = Cache(tmp_path / ME, ME)
    for source, numbers, parts in (
        ("a", [5, 6], [1, 2]),
        (BY_FEATURES, [-(1 << 62), 5], [3, 4]),
        ("b", [5], [5]),
    ):
        assert parts == find_and_put(cache, source, numbers, parts)
    assert cache.flush()

    for again in (cache, Cache(tmp_path / ME, ME)):
        assert [1, 2] == find_and_put(again, "a", [5, 6])
        assert [3, 4] == find_and_put(again, BY_FEATURES, [-(1 << 62), 5])
        assert [5] == find_and_put(again, "b", [5])
        assert find_and_put(again, BY_FEATURES, [6]) is None


def test_foreign_teachers_have_no_cache(tmp_path):
    it = reader(tmp_path)
    it.set_fixed_teacher("kserve+http://h:1/m")
    with pytest.raises(UsageError, match="cache keeps answers by the teacher's fingerprint"):
        next(it.wrap(batches(np.arange(4))))
