"""Histories and windows out of small made files: nothing of the future is in them."""

import numpy as np

from edl.data.sequences import HISTORY, build_ml_100k_histories, build_shakespeare

RATINGS = [  # user, film, rating, second
    (1, 10, 5, 100),
    (1, 11, 2, 300),
    (1, 12, 4, 200),
    (1, 13, 5, 400),
    (1, 14, 5, 500),
    *((2, 20 + n, 5, 1000 + n) for n in range(70)),
]


def histories(tmp_path):
    """Return all records, by (user, film), and those of each part."""
    files = {
        "inter": ("user_id:token\titem_id:token\trating:float\ttimestamp:float", RATINGS),
        "user": (
            "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token",
            [(1, 24, "M", "technician", "85711"), (2, 53, "F", "other", "94043")],
        ),
        "item": (
            "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq",
            [(n, f"Film {n}", 1990, "Action Drama" if n % 2 else "Drama") for n in range(10, 95)],
        ),
    }
    sources = {}
    for name, (header, rows) in files.items():
        path = sources[name] = tmp_path / f"ml-100k.{name}"
        path.write_text("\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n")
    told = build_ml_100k_histories(sources, tmp_path)
    parts = {part: dict(np.load(tmp_path / f"{part}.npz")) for part in ("train", "validation")}
    found = {}
    for columns in parts.values():
        for row in range(len(columns["label"])):
            record = {name: values[row] for name, values in columns.items()}
            found[record["user_id"], record["item_id"]] = record
    return told, parts, found


def films(history):
    return history[history >= 0].tolist()


def test_a_history_holds_what_came_before_and_the_newest_first(tmp_path):
    _, _, found = histories(tmp_path)

    assert ([], []) == (films(found[1, 10]["liked"]), films(found[1, 10]["disliked"]))
    assert ([12, 10], []) == (films(found[1, 11]["liked"]), films(found[1, 11]["disliked"]))
    assert ([13, 12, 10], [11]) == (films(found[1, 14]["liked"]), films(found[1, 14]["disliked"]))
    assert [] == films(found[2, 20]["liked"])
    assert list(range(88, 88 - HISTORY, -1)) == films(found[2, 89]["liked"])


def test_the_newest_fifth_of_each_user_is_for_validation(tmp_path):
    told, parts, _ = histories(tmp_path)
    new = parts["validation"]

    assert {"train": 60, "validation": 15} == told["rows"]
    assert [14] == new["item_id"][new["user_id"] == 1].tolist()
    assert set(range(76, 90)) == set(new["item_id"][new["user_id"] == 2].tolist())


def test_shares_are_of_the_likes_to_train_on_and_genres_are_several(tmp_path):
    _, parts, found = histories(tmp_path)
    likes = int(parts["train"]["label"].sum())

    assert 59 == likes
    assert np.isclose(1 / likes, found[1, 10]["item_share"])
    assert (0.0, 0.0) == (found[1, 14]["item_share"], found[1, 11]["item_share"])
    assert (1, 2) == (len(films(found[1, 10]["genres"])), len(films(found[1, 11]["genres"])))
    assert films(found[1, 10]["genres"])[0] in films(found[1, 11]["genres"])


def test_windows_of_a_text_follow_each_other_and_labels_are_one_byte_on(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(5):
        (texts / f"work_{number}_gut.txt").write_bytes(bytes([97 + number]) * 10 + b"x" * 600)
    (texts / "metadata.txt").write_text("none of them")
    told = build_shakespeare({"texts/": texts}, tmp_path)
    train = np.load(tmp_path / "train.npz")

    assert {"train": 8, "validation": 2} == told["rows"]
    assert (train["text"][:, 1:] == train["label"][:, :-1]).all()
    assert (train["text"].dtype, train["text"].shape) == (np.uint8, (8, 256))
    first = {
        bytes(row[:1])
        for part in ("train", "validation")
        for row in np.load(tmp_path / f"{part}.npz")["text"][::2]
    }
    assert {b"a", b"b", b"c", b"d", b"e"} == first
