"""A kubeconfig that cannot be used is one sentence, which names the file and what is wrong."""

from __future__ import annotations

import base64
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl.common.errors import UsageError
from edl.k8s import kubeconfig

TOKEN = "very-secret"
GOOD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "x",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "me", "user": {"token": TOKEN}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "me", "namespace": "lab"}}],
}
NO_PEM = base64.b64encode(b"nothing").decode()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def refusal(file: Path) -> str:
    with pytest.raises(UsageError) as found:
        kubeconfig.load()
    said = str(found.value)
    assert said.startswith(f"The kubeconfig {file} cannot be used: ")
    assert "\n" not in said
    assert TOKEN not in said
    return said


def changed(part: str, **fields: Any) -> str:
    """Return a kubeconfig of which the first entry of a part has these fields besides."""
    found = copy.deepcopy(GOOD)
    found[part][0][part.removesuffix("s")].update(fields)
    return yaml.safe_dump(found)


def replaced(**fields: Any) -> str:
    return yaml.safe_dump({**GOOD, **fields})


TEXTS = [
    ("apiVersion: v1\nclusters: [\n", "it is no YAML: "),
    ("a: &x 1\nb: *y\n", "found undefined alias"),
    ("a: 1\n---\nb: 2\n", "it holds more than one document"),
    ("[a, b]", "it is a list, and must be a mapping"),
    ("just words", "it is a text, and must be a mapping"),
    ("7", "it is a number or a date, and must be a mapping"),
    ("", "it is empty"),
    ("a: \x07", "it has bytes that no text has"),
]

PARTS = [
    (replaced(contexts=None), "current-context names 'x', of which there is none in contexts"),
    (replaced(contexts={"x": 1}), "contexts is a mapping, and must be a list"),
    (replaced(contexts=["x"]), "contexts[0] is no mapping with a name"),
    (replaced(contexts=[{"name": "x"}]), "the context 'x' is empty, and must be a mapping"),
    (replaced(users=None), "the context 'x' names 'me', of which there is none in users"),
    (replaced(users=[{"name": "me", "user": None}]), "the user 'me' is empty, and must be a mapp"),
    (replaced(users=[*GOOD["users"], {"name": "me"}]), "users has two of the name 'me'"),
    (replaced(**{"current-context": ""}), "current-context is missing"),
    (changed("contexts", cluster=None), "the context 'x' names no cluster"),
    (changed("contexts", cluster=["c"]), "cluster of the context 'x' is a list"),
    (changed("contexts", namespace=["c"]), "namespace of the context 'x' is a list"),
    (changed("clusters", server=None), "server of the cluster 'c' is empty: take it out"),
    (changed("clusters", server=7), "the server of the cluster 'c' is missing, or no URL"),
    (
        changed("clusters", **{"certificate-authority-data": None}),
        "certificate-authority-data of the cluster 'c' is empty: take it out",
    ),
    (changed("users", token=None), "token of the user 'me' is empty: take it out"),
    (
        changed("users", **{"auth-provider": {"name": "oidc", "config": {"a": TOKEN}}}),
        "Expected key id-token in /",
    ),
    (changed("clusters", server="nonsense"), "the server of the cluster 'c' is missing, or no URL"),
    (
        changed("clusters", **{"certificate-authority-data": "%%%"}),
        "certificate-authority-data of the cluster 'c' is no base64",
    ),
    (
        changed("clusters", **{"certificate-authority-data": NO_PEM}),
        "the certificate-authority of its cluster is no certificate",
    ),
    (
        changed("clusters", **{"certificate-authority": "gone.crt"}),
        "certificate-authority of the cluster 'c' is a file that is missing: /",
    ),
    (
        changed("users", **{"client-certificate": "gone.crt", "client-key": "gone.key"}),
        "client-certificate of the user 'me' is a file that is missing: /",
    ),
    (
        changed("users", **{"client-certificate-data": NO_PEM, "client-key-data": NO_PEM}),
        "client-certificate and client-key of its user are no certificate",
    ),
    (
        changed("users", **{"client-key-data": "%%%"}),
        "client-key-data of the user 'me' is no base64",
    ),
    (changed("users", token=[TOKEN]), "token of the user 'me' is a list"),
    (changed("users", exec="aws"), "exec of the user 'me' is a text, and must be a mapping"),
    (
        replaced(users=[{"name": "me", "user": {"tokenFile": "gone"}}]),
        "tokenFile of the user 'me' is a file that is missing: /",
    ),
    (
        changed("users", **{"auth-provider": {"name": "oidc", "config": {"id-token": 7}}}),
        "the credentials of its user cannot be read",
    ),
]


@pytest.mark.parametrize(("text", "said"), TEXTS + PARTS, ids=lambda each: str(each)[-40:])
def test_one_that_cannot_be_used_is_one_sentence_that_names_it(file, text, said):
    """Broken once: yaml.parser.ParserError and others, as Python raises them."""
    file.write_text(text)

    assert said in refusal(file)


def test_a_namespace_that_can_be_none_is_told_with_its_context(file):
    file.write_text(changed("contexts", namespace="Bad_NS"))

    said = f"The kubeconfig {file}: the context 'x' has the namespace Bad_NS: no namespace has"
    with pytest.raises(UsageError, match=re.escape(said)):
        kubeconfig.load()


def test_a_folder_or_bytes_are_no_kubeconfig(file):
    file.write_bytes(b"\xff\xfe\xfa")
    assert "it has bytes that no text has" in refusal(file)
    file.unlink()
    file.mkdir()
    assert "it cannot be read (Is a directory)" in refusal(file)


def test_none_at_all_says_how_to_name_one(file):
    with pytest.raises(UsageError, match="No Kubernetes cluster is known here: .*KUBECONFIG"):
        kubeconfig.load()


def test_a_good_one_gives_server_token_and_namespace(file):
    file.write_text(yaml.safe_dump(GOOD))

    found, space = kubeconfig.load()

    assert ("https://127.0.0.1:1", "lab") == (found.host, space)
    assert f"Bearer {TOKEN}" in found.api_key.values()


def test_a_user_without_credentials_is_nobody(file):
    """Which a cluster may allow, and kubectl does."""
    file.write_text(replaced(users=[{"name": "me", "user": {}}]))

    found, _ = kubeconfig.load()

    assert {} == found.api_key


def test_base64_of_several_lines_is_no_fault(file):
    wrapped = f"{NO_PEM[:4]}\n{NO_PEM[4:]}\n"
    file.write_text(changed("clusters", **{"certificate-authority-data": wrapped}))
    assert "no certificate" in refusal(file)


def test_of_several_files_the_one_that_is_wrong_is_named(file, monkeypatch):
    other = file.with_name("other")
    file.write_text(yaml.safe_dump(GOOD))
    other.write_text("a: [")
    monkeypatch.setenv("KUBECONFIG", f"{file}:{other}:{file.with_name('gone')}")

    refusal(other)


def test_several_files_are_one(file, monkeypatch):
    """Paths are relative to the file in which they stand."""
    (file.parent / "more").mkdir()
    other = file.parent / "more" / "other"
    (other.parent / "token").write_text(TOKEN)
    file.write_text(replaced(users=[]))
    other.write_text(yaml.safe_dump({"users": [{"name": "me", "user": {"tokenFile": "token"}}]}))
    monkeypatch.setenv("KUBECONFIG", f"{file}:{other}")

    found, _ = kubeconfig.load()

    assert [f"Bearer {TOKEN}"] == list(found.api_key.values())
