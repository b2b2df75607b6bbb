"""A student whose teachers' answers are kept: what is asked again, of whom, and what is not.

A test's docstring says what was broken once to see it fail.
"""

import numpy as np
import pytest
import torch

from edl.common.errors import UsageError
from edl.data.views import Seen
from edl.distill import tree
from edl.distill.cached import Cached
from edl.distill.link import Answer
from edl.distill.teachers import Rules, Teachers, Untaught

ME, OTHER = "ab" * 16, "cd" * 16
FAR_S = 60.0


class Voice:
    """A teacher that doubles features, or sums them over all rows; remembers what it was asked."""

    def __init__(self, fingerprint=ME):
        self.about_me = {"fingerprint": fingerprint} if fingerprint else {}
        self.rows = []

    def about(self, timeout_s):
        return self.about_me

    def teach(self, parts, rows, timeout_s, whole):
        (x, *_) = (part.values for part in parts)
        self.rows += x[:, 0].astype(int).tolist()
        return Answer([tree.part_of("", torch.from_numpy(2 * x))], 0, 1)

    def close(self):
        pass


class Student:
    """One of a job: its cache, and the teachers that it has."""

    def __init__(self, folder, voices, *, token="a job", alone=False, rules=None):
        self.notes = []
        self.cached = Cached(folder, token, alone=alone, on_note=self.notes.append)
        self.rules = rules or Rules(wait_s=FAR_S)
        self.teachers = Teachers(
            lambda address: self.cached.link(address, voices[address]),
            self.rules,
            on_note=self.notes.append,
        )
        self.teachers.update(list(voices))

    def learn(self, records, *, view=0, source="s", features=None):
        numbers = np.array(records, np.int64)
        if features is None:
            features = torch.from_numpy(numbers[:, None] + np.array([0, 0.5])).float()
        asked = self.cached.ask(self.teachers, features, Seen(source, numbers, view))
        return self.cached.answer(self.teachers, asked, without=self.rules.without)

    @property
    def counts(self):
        return self.teachers.taught, self.cached.cached, self.teachers.untaught

    def close(self):
        self.teachers.close()
        self.cached.close()


@pytest.fixture
def student(tmp_path):
    made = []

    def make(*voices, folder=tmp_path, **options):
        named = {f"h:{number}": voice for number, voice in enumerate(voices)}
        made.append(Student(folder, named, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def doubled(records):
    return [[2.0 * r, 2 * r + 1.0] for r in records]


def test_only_records_that_lack_are_asked_and_answers_are_in_order(student):
    """Broken once: woven puts the kept rows first."""
    one = student(voice := Voice())

    learnt = [one.learn(records).tolist() for records in ([5, 3], [1, 3, 2, 5, 4], [4, 1, 2], [3])]

    assert learnt == [doubled(each) for each in ([5, 3], [1, 3, 2, 5, 4], [4, 1, 2], [3])]
    assert [5, 3, 1, 2, 4] == voice.rows
    assert (5, 6, 0) == one.counts


def test_views_and_sources_are_others(student):
    one = student(voice := Voice())
    for _ in range(2):
        for view, source in ((0, "s"), (1, "s"), (0, "t")):
            assert doubled([7]) == one.learn([7], view=view, source=source).tolist()

    assert [7] * 3 == voice.rows


def test_a_student_without_any_teacher_learns_from_what_others_have_left(student):
    first = student(Voice())
    first.learn([1, 2, 3])
    first.close()

    later = student(alone=True, token="another job")
    assert doubled([3, 1]) == later.learn([3, 1]).tolist()
    assert (0, 2, 0) == later.counts
    with pytest.raises(Untaught, match=r"no answer about record 4 of s as feed gives it, and the"):
        later.learn([1, 4])


def test_with_hard_labels_what_is_not_kept_is_untaught(student):
    first = student(Voice())
    first.learn([1, 2, 3])
    first.close()

    rules = Rules(wait_s=0.01, without="hard_labels")
    alone, abandoned = student(alone=True, rules=rules), student(rules=rules)
    for later in (alone, abandoned):
        assert later.learn([1, 4]) is None
        assert doubled([2]) == later.learn([2]).tolist()
        assert (0, 1, 2) == later.counts


def test_a_worker_that_comes_when_no_teacher_is_there_knows_whose_answers_to_take(student):
    """Broken once: _meet writes no mark."""
    for token, fingerprint in (("another job", OTHER), ("a job", ME)):
        before = student(Voice(fingerprint), token=token)
        before.learn([1])
        before.close()

    with pytest.raises(UsageError, match="of 2 teachers"):
        student(alone=True)
    assert doubled([1]) == student().learn([1]).tolist()


def test_a_new_job_with_teachers_takes_what_these_have_said(student):
    before = student(Voice())
    before.learn([1, 2])
    before.close()

    one = student(voice := Voice(), token="another job")
    one.learn([3])  # until somebody is asked, nobody knows who they are
    assert doubled([2, 1]) == one.learn([2, 1]).tolist()
    assert [3] == voice.rows


@pytest.mark.parametrize(
    ("fingerprint", "said"),
    [
        (OTHER, r"no teacher is there, and 1 .*h:0 is another one \(cdcd"),
        ("", "h:0 does not tell which"),
        ("../x", "does not tell"),
    ],
)
def test_another_teacher_is_asked_nothing(student, fingerprint, said):
    """Broken once: _Checked asks first."""
    before = student(Voice())
    before.learn([1])
    before.close()

    one = student(voice := Voice(fingerprint), rules=Rules(wait_s=FAR_S, without="fail"))
    assert doubled([1]) == one.learn([1]).tolist()
    with pytest.raises(Untaught, match=said):
        one.learn([2])
    assert [] == voice.rows


def test_of_teachers_that_differ_the_other_one_is_taken_out(student):
    """Broken once: Teachers counts it as a refusal of the question."""
    student(Voice()).learn([1])
    one = student(*(voices := (Voice(OTHER), Voice(ME))))
    for record in range(2, 50):
        assert doubled([record]) == one.learn([record]).tolist()

    assert [0, 48] == [len(voice.rows) for voice in voices]
    assert ["asked no more: the teacher at h:0" in note for note in one.notes] == [True]


def test_features_without_a_row_for_each_record_are_kept_or_asked_as_a_whole(student):
    one = student(voice := Voice())
    graph = {"nodes": torch.tensor([[4.0], [5], [6]]), "edges": torch.zeros(2, 9)}
    other = {"nodes": torch.tensor([[5.0], [4], [6]]), "edges": torch.zeros(2, 9)}
    for features in (graph, graph, other):
        assert (2 * features["nodes"]).tolist() == one.learn([1, 2, 3], features=features).tolist()

    assert [4, 5, 6, 5, 4, 6] == voice.rows
    assert (6, 3, 0) == one.counts


def test_an_answer_with_other_rows_than_records_is_not_kept(student):
    """Two crops of each record, say."""
    one = student(voice := Voice())
    crops = torch.arange(8.0).reshape(4, 2)
    for _ in range(2):
        assert (2 * crops).tolist() == one.learn([1, 2], features=crops).tolist()

    assert [0, 2, 4, 6] * 2 == voice.rows


def test_what_the_loss_does_to_an_answer_is_not_kept(student):
    """Broken once: Cache.put keeps views of the answer."""
    one = student(Voice())
    one.learn([1, 2]).zero_()
    one.learn([2, 1]).zero_()

    assert doubled([1, 2]) == one.learn([1, 2]).tolist()


def test_an_answer_of_another_shape_has_the_minibatch_asked_anew(student):
    one = student(voice := Voice())
    one.learn([1, 2])
    kind, voice.teach = voice.teach, lambda *asked: wide(kind(*asked))

    assert [3, 3] == list(one.learn([1, 2, 3]).shape)
    assert (5, 0, 0) == one.counts


def wide(answer):
    (part,) = answer.parts
    values = np.concatenate([part.values, part.values[:, :1]], 1)
    return Answer([tree.part_of("", torch.from_numpy(values))], 0, 1)
