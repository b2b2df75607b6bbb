"""Checkpoints of one process: whole or not there, named, and the one before as a reserve."""

import logging
import shutil

import pytest

from edl.adaptive import checkpoint, collective, profile, session
from edl.adaptive.epoch import epochs
from edl.common.errors import CheckpointError


class Text(checkpoint.State):
    """A state that is a text."""

    def __init__(self, name, text=""):
        super().__init__(name)
        self.text = text
        self.synced = 0

    def save(self, fileobj):
        fileobj.write(self.text.encode())

    def load(self, fileobj):
        self.text = fileobj.read().decode()

    def sync(self):
        self.synced += 1


@pytest.fixture
def saved(restart, checkpoints):
    """Take three checkpoints, of a state "a" that was "0", "1" and "2"; then restart."""
    restart()
    state = Text("a")
    paths = []
    for number in range(3):
        state.text = str(number)
        paths.append(checkpoint.save_all_states())
    restart()
    return paths


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_state_comes_back_with_the_newest_checkpoint(saved):
    state = Text("a")

    assert checkpoint.load_state(state)
    assert "2" == state.text


def test_the_last_two_are_kept(saved, checkpoints):
    assert ["checkpoint-000001", "checkpoint-000002"] == names(checkpoints)


def test_a_state_that_was_not_saved_is_not_loaded(saved):
    assert not checkpoint.load_state(Text("b"))


def test_without_a_folder_nothing_is_kept(process):
    state = Text("a", "x")

    assert checkpoint.save_all_states() is None
    assert not checkpoint.load_state(state)
    assert 1 == state.synced


def test_two_states_of_one_name_are_refused(process):
    Text("a")

    with pytest.raises(ValueError, match="'a'"):
        Text("a")


def test_a_name_may_be_anything(restart, checkpoints):
    restart()
    Text("../é a.b", "x")
    checkpoint.save_all_states()
    restart()
    state = Text("../é a.b")

    assert checkpoint.load_state(state)
    assert "x" == state.text


def spoil(path):
    (path / "a").write_bytes(b"3")


def cut(path):
    (path / "a").write_bytes(b"")


def lose(path):
    (path / "a").unlink()


def half(path):
    (path / "MANIFEST.json").write_text((path / "MANIFEST.json").read_text()[:40])


def unname(path):
    (path / "MANIFEST.json").unlink()


@pytest.mark.parametrize("damage", [spoil, cut, lose, half, unname])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(saved, caplog, damage):
    damage(saved[-1])
    state = Text("a")

    with caplog.at_level(logging.WARNING):
        assert checkpoint.load_state(state)

    assert "1" == state.text
    assert str(saved[-1]) in caplog.text


def test_what_is_damaged_after_it_was_checked_is_refused(saved, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SMALL", 0)  # small ones have been read by then
    state, other = Text("a"), Text("b")
    checkpoint.load_state(other)
    spoil(saved[-1])

    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load_state(state)


def test_states_are_loaded_without_waiting_for_anybody(saved, monkeypatch):
    """A script may let rank 0 make its loader first, and the others wait for it at a barrier."""
    checkpoint.load_state(Text("b"))
    for name in ("broadcast", "broadcast_bytes", "gather"):
        monkeypatch.setattr(collective.Control, name, None)
    state = Text("a")

    assert [True, False] == [checkpoint.load_state(state), checkpoint.load_state(Text("c"))]
    assert "2" == state.text


def test_a_large_state_is_sent_when_it_is_loaded(saved, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SMALL", 0)
    state = Text("a")

    assert checkpoint.load_state(state)
    assert "2" == state.text


def test_a_state_that_was_saved_meanwhile_is_loaded_as_it_was_then(saved):
    state, late = Text("a"), Text("late")
    checkpoint.load_state(state)
    for state.text in ("now", "not saved"):
        if state.text == "now":
            checkpoint.save_all_states()
    session.only(checkpoint.States).forget(late)

    assert checkpoint.load_state(state)
    assert "now" == state.text


def test_what_was_not_saved_yet_is_loaded_from_what_the_process_began_with(saved, checkpoints):
    """A state that is made late, after a checkpoint that could not have it."""
    other = Text("other")
    checkpoint.load_state(other)
    checkpoint.save_all_states()
    checkpoint.load_state(other)
    late = Text("a")

    assert checkpoint.load_state(late)
    assert "2" == late.text


def test_what_was_loaded_before_replicas_met_is_loaded_again_then(saved, monkeypatch):
    """This replica sees the folder; the one that it meets has seen a newer checkpoint."""
    monkeypatch.setenv("EDL_NUM_REPLICAS", "2")
    session.forget(collective.Control)
    state, sums = Text("a"), Text("b")
    before = checkpoint.load_state(state), checkpoint.load_state(sums), state.text

    class Peers(collective.Control):
        def gather(self, value):
            return [value, 7]

        def broadcast(self, value, source=0):
            return {"a": b"theirs", "b": b"too"} if source == 1 else value

    session.put(collective.Control, Peers(object(), 0, 2))
    session.only(checkpoint.States)._meet()

    assert (True, False, "2") == before
    assert ("theirs", "too") == (state.text, sums.text)


def test_what_the_newest_of_all_does_not_have_is_not_kept_in_silence(saved, monkeypatch):
    monkeypatch.setenv("EDL_NUM_REPLICAS", "2")
    session.forget(collective.Control)
    checkpoint.load_state(Text("a"))

    class Peers(collective.Control):
        def gather(self, value):
            return [value, 7]

        def broadcast(self, value, source=0):
            return {}

    session.put(collective.Control, Peers(object(), 0, 2))
    with pytest.raises(CheckpointError, match="call init_process_group"):
        session.only(checkpoint.States)._meet()


def test_a_failed_save_leaves_the_older_ones_and_no_rubbish(saved, checkpoints):
    class Broken(Text):
        def save(self, fileobj):
            raise ZeroDivisionError

    Broken("broken")

    with pytest.raises(ZeroDivisionError):
        checkpoint.save_all_states()
    assert ["checkpoint-000001", "checkpoint-000002"] == names(checkpoints)


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(restart, checkpoints):
    shutil.rmtree(checkpoints)
    checkpoints.write_text("a file")

    with pytest.raises(CheckpointError, match=str(checkpoints)):
        checkpoint.save_all_states()


def test_what_a_dead_process_left_behind_is_cleared_away(saved, checkpoints):
    left = checkpoints / ".partial-1"
    left.mkdir()
    Text("a")
    checkpoint.save_all_states()

    assert not left.exists()


def test_one_state_alone_goes_into_a_file_of_its_name(process, tmp_path):
    checkpoint.save_state(Text("a", "x"), tmp_path)

    assert b"x" == (tmp_path / "a").read_bytes()


def test_a_forgotten_state_is_left_out(restart, checkpoints):
    restart()
    session.only(checkpoint.States).forget(Text("a"))
    path = checkpoint.save_all_states()

    assert not (path / "a").exists()


def test_a_restart_that_finds_nothing_says_so_once(restart, checkpoints, monkeypatch, caplog):
    restart()
    profile.current()
    at_first = caplog.text
    monkeypatch.setenv("EDL_NUM_RESTARTS", "1")
    restart()
    profile.current()
    epochs()

    assert "" == at_first
    assert 1 == caplog.text.count(f"restart=1 -> begins anew: nothing was saved in {checkpoints}")
