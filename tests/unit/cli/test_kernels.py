"""`edl kernels` compiles ahead; what it cannot compile it says before it begins."""

from edl.cli.main import run
from edl.nn.optimizers import OPTIMIZERS
from edl.ps import prepare


def test_an_unknown_optimizer_is_refused_with_those_that_there_are(capsys) -> None:
    assert 2 == run(["kernels", "--optimizer", "adamant"])

    assert "--optimizer adamant: choose among sgd, " in capsys.readouterr().err


def test_every_optimizer_that_there_is_can_be_compiled_ahead() -> None:
    assert set(OPTIMIZERS.values()) == {type(spec) for spec in prepare.OPTIMIZERS.values()}


def test_each_part_is_told_as_it_is_done(monkeypatch, capsys) -> None:
    asked = []

    def compile_ahead(optimizers, dims):
        asked.append((list(optimizers), tuple(dims)))
        yield "connections", 4.04

    monkeypatch.setattr(prepare, "compile_ahead", compile_ahead)

    assert 0 == run(["kernels", "--optimizer", "adagrad", "--dim", "32"])
    assert [(["adagrad"], (32,))] == asked
    assert "  connections                 4.0 s\n" in capsys.readouterr().out
