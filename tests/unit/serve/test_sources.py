"""What there is to serve, and the look for newer versions."""

import pytest
from tools.served import Adding

from edl.common.clock import FakeClock
from edl.common.errors import CheckpointError, UsageError
from edl.serve.from_checkpoint import Options
from edl.serve.repository import Repository
from edl.serve.sources import CheckpointSource, Watch, named


class Shelf:
    """A source whose versions are numbers; those in `torn` cannot be opened."""

    name = "adding"

    def __init__(self, *numbers):
        self.numbers, self.torn, self.opened = list(numbers), {}, []

    def there(self):
        return [f"version-{n}" for n in self.numbers]

    def open(self, what):
        number = int(what.removeprefix("version-"))
        self.opened.append(number)
        if number in self.torn:
            raise self.torn[number]
        return Adding(number)


class Shop:
    """A watch over one shelf."""

    def __init__(self, *numbers, keep=1):
        self.shelf, self.clock = Shelf(*numbers), FakeClock()
        self.repository = Repository(keep=keep)
        self.model = self.repository.add("adding")
        self.watch = Watch(self.shelf, keep, self.clock.now)

    def look(self, after_s=0.0):
        self.clock.advance(after_s)
        self.watch.look()

    @property
    def versions(self):
        return self.model.told()["versions"]


@pytest.fixture
def shop():
    made = []

    def make(*numbers, **more):
        made.append(Shop(*numbers, **more))
        return made[-1]

    yield make
    for each in made:
        each.repository.close()


def test_the_newest_is_opened_at_first_and_each_newer_one_later(shop):
    here = shop(1, 2)
    here.watch.begin(here.repository)
    begun = here.versions
    here.look()
    here.shelf.numbers = [2, 3]
    here.look()

    assert (["2"], ["3"], [2, 3]) == (begun, here.versions, here.shelf.opened)


def test_as_many_as_are_kept_are_opened_the_newest_last(shop):
    here = shop(1, 2, 3, keep=2)

    here.watch.begin(here.repository)

    assert ["2", "3"] == here.versions


def test_of_a_folder_whose_newest_is_torn_the_one_before_answers(shop):
    here = shop(1, 2)
    here.shelf.torn[2] = CheckpointError("version-2 is damaged")

    here.watch.begin(here.repository)

    told = here.model.told()
    assert (["1"], {"version-2": "version-2 is damaged"}) == (told["versions"], told["failed"])


def test_where_nothing_is_whole_the_begin_says_why(shop):
    here = shop(1)
    here.shelf.torn[1] = CheckpointError("version-1 is damaged")

    with pytest.raises(CheckpointError, match="version-1 is damaged"):
        here.watch.begin(here.repository)


@pytest.mark.parametrize("failure", [CheckpointError("torn"), ZeroDivisionError("of the user's")])
def test_what_cannot_be_opened_is_tried_again_later_and_what_answers_goes_on(shop, failure):
    here = shop(1)
    here.watch.begin(here.repository)
    here.shelf.numbers.append(2)
    here.shelf.torn[2] = failure
    here.look()
    here.look(after_s=14)
    here.look(after_s=1)
    here.look(after_s=29)
    tried, versions = here.shelf.opened[1:], here.versions
    del here.shelf.torn[2]
    here.look(after_s=1)

    assert ([2, 2], ["1"], ["2"]) == (tried, versions, here.versions)


@pytest.mark.parametrize(
    ("said", "name", "where"),
    [
        ("ctr=/a/b", "ctr", "/a/b"),
        ("/a/ctr", "ctr", "/a/ctr"),
        ("/a/ctr/checkpoints", "ctr", "/a/ctr/checkpoints"),
        ("/a/ctr/version-000000000012", "ctr", "/a/ctr/version-000000000012"),
        ("/a/ctr/checkpoints/version-12", "ctr", "/a/ctr/checkpoints/version-12"),
        ("/a/x=y", "x=y", "/a/x=y"),
    ],
)
def test_a_model_has_the_name_that_is_given_or_that_of_its_place(said, name, where):
    assert (name, where) == named(said)


def test_a_name_without_a_place_is_refused():
    with pytest.raises(UsageError, match="names no place"):
        named("ctr=")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "x" * 200])
def test_a_name_that_a_path_cannot_hold_is_refused(name):
    with pytest.raises(UsageError, match="cannot be a model's name"):
        Repository().add(name)


def test_two_models_of_one_name_are_refused(shop):
    with pytest.raises(UsageError, match="Two models are named 'adding'"):
        shop().repository.add("adding")


def test_checkpoints_of_a_folder_are_there_by_age_and_a_lone_one_by_its_path(tmp_path):
    for name in ("version-000000000010", "version-000000000009", "version-000000000011"):
        (tmp_path / name).mkdir()
    for name in ("version-000000000010", "version-000000000009"):
        (tmp_path / name / "MANIFEST.json").touch()

    folder = CheckpointSource("m", str(tmp_path), Options()).there()
    alone = str(tmp_path / "version-000000000009")

    assert ["version-000000000009", "version-000000000010"] == [
        p.rpartition("/")[2] for p in folder
    ]
    assert [alone] == CheckpointSource("m", alone, Options()).there()
