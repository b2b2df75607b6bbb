"""A file or folder of this machine is no URL, wherever a command takes one."""

import click
import pytest
from click.testing import CliRunner

from edl.cli.main import cli
from edl.cli.paths import LocalPath


def parameters(command, words=()):
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from parameters(command.get_command(context, name), (*words, name))
    for each in command.get_params(context):
        yield " ".join((*words, each.name or "")), each.type


def test_no_command_takes_a_path_otherwise():
    found = {name: kind for name, kind in parameters(cli) if isinstance(kind, click.Path)}

    assert len(found) > 20
    assert [name for name, kind in found.items() if not isinstance(kind, LocalPath)] == []


@pytest.mark.parametrize(
    "words",
    [
        "checkpoint convert x s3://b/c",
        "checkpoint make iris s3://b/c",
        "checkpoint rows x t --out s3://b/c.parquet",
        "data analyze x --out s3://b/c",
    ],
)
def test_a_url_is_refused_and_no_folder_is_made_of_it(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(cli, words.split())

    assert done.exit_code == 2
    assert "is a URL, and this is a file or folder of this machine" in str(done.exception or "") + (
        done.output
    )
    assert list(tmp_path.iterdir()) == []
