"""The options of train, evaluate and predict, made from the table of settings.

Every option is accepted with dashes and with underscores, and under its other names; a boolean as
`--use_async`, `--use_async=true` and `--no_use_async`. All values stay text here: common/resolve.py
gives them their types, so that a flag and a line of a job file mean the same.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..common import job_file, launched
from ..common.errors import EdlError, UsageError
from ..common.knobs import Knob
from ..common.settings import knobs, spellings
from .place import complete_jobs

NAMES = {"token_normalize_func": lambda name: name.replace("-", "_"), "max_content_width": 100}

# ElasticDL's flags that are not taken here: what to do instead.
_INSTEAD = {
    "(worker|ps)_image": "is gone: all pods have --image_name",
    "force_use_kube_config_file": "is gone: KUBECONFIG names the file; in a pod, its account is "
    "taken",
    "populate_env_names": "is gone: name them and their values in --envs",
    "cluster_spec_json": "is gone: --cluster_spec takes it as a YAML file",
    "log_file_path": "is gone: `edl logs` shows what each process prints",
    "relaunch_timeout_worker": "is gone: a silent worker is replaced after --lease_s",
    "ps_relaunch_max_num": "is gone: --relaunch_on_worker_failure counts for servers too",
    "enable_automate_memory": "is gone: who runs out of memory gets more, up to --oom_memory_cap",
    "tensorboard_log_dir": "is gone: --output holds the TensorBoard scalars as well",
    "learning_rate_scheduler": "is gone: give the optimizer a schedule as its lr",
    "job_command": "is gone: `edl launch` runs a script of your own (docs/launch.md), and "
    "edl.adaptive makes it elastic in five lines (docs/adaptive.md)",
}
_GONE = re.compile(
    r"""aux_params|need_(pod_manager|task_manager|elasticdl_job_service|tf_config)
    |ps_is_critical|critical_worker_index|launch_worker_after_ps_running|num_evaluators
    |(chief|evaluator)_\w+|(docker|tensorboard_service)_\w+""",
    re.VERBOSE,
)
_DEFINITION = re.compile(
    "feed|loss|optimizer|callbacks|eval_metrics_fn|custom_data_reader|custom_model"
    "|prediction_outputs_processor"
)
_ELSEWHERE = {
    _GONE: "is gone, and nothing has come in its place: leave it out",
    _DEFINITION: "is gone: in a definition that function always has one name (docs/model-zoo.md)",
    **{re.compile(name): what for name, what in _INSTEAD.items()},
}

_SHORT = {"namespace": ("-n",), "module": ("-m",)}  # as of the commands on jobs, and of Python
_METAVARS: dict[Any, str] = {
    int: "N",
    int | None: "N",
    float: "SECONDS",
    bool: "[true|false]",
    dict[str, str]: "K=V,...",
    dict[str, Any]: "K=V,...",
}


def complete_definitions(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the definitions of the zoo, and of --model_zoo where that was given."""
    from ..model_zoo.catalogue import list_definitions

    try:
        found = list_definitions(str(ctx.params.get("model_zoo") or ""))
    except (EdlError, OSError):
        return []
    names = [(name, about) for name, _, about in found if name.startswith(incomplete)]
    return [CompletionItem(name, help=about) for name, about in names]


class _Text(click.ParamType[Any]):
    """A parameter that is text as it is; choices and paths are completed."""

    name = "text"

    def __init__(self, knob: Knob) -> None:
        self._knob = knob

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        file = [CompletionItem(incomplete, type="file")]  # first: a shell then adds what follows
        if self._knob.name == "model_def":
            return [*file, *complete_definitions(ctx, param, incomplete)]
        if self._knob.name in ("resume", "checkpoint_dir_for_init"):
            return [*file, *complete_jobs(ctx, param, incomplete)]
        if self._knob.path:
            return file
        words = ("true", "false") if self._knob.kind is bool else self._knob.choices
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class JobCommand(click.Command):
    """A command whose options are the settings, shown in sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            for pattern, what in _ELSEWHERE.items():
                if pattern.fullmatch(name):
                    raise UsageError(f"--{name} {what}.") from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EdlError:
            if str(ctx.params.get("log_level")).lower() == "debug":
                traceback.print_exc()
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {knob.name: knob.group for knob in (*knobs(), *launched.own_knobs())}
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                section = groups.get(param.name or "", "Command")
                sections.setdefault(section, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all settings as options; their values arrive as keywords, None where not given."""
    for knob in reversed(knobs()):
        if knob.kind is bool:
            function = click.option(f"--no_{knob.name}", is_flag=True, hidden=True)(function)
        function = _option(knob)(function)
    return function


def script_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the settings of a script as options, but for what runs, which has no name."""
    for knob in reversed(launched.own_knobs()):
        if knob.name not in ("script", "arguments"):
            function = _option(knob)(function)
    return function


def _option(knob: Knob) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    boolean: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if knob.kind is bool else {}
    return click.option(
        *(f"--{name}" for name in (knob.name, *knob.aliases)),
        *_SHORT.get(knob.name, ()),
        knob.name,
        type=_Text(knob),
        default=None,
        multiple=knob.many or (knob.kind in (dict[str, str], dict[str, Any]) and not knob.is_file),
        metavar=_metavar(knob),
        help=_help(knob),
        **boolean,
    )


def _metavar(knob: Knob) -> str:
    if knob.choices:
        return f"[{'|'.join(knob.choices)}]{',...' if knob.many else ''}"
    if knob.many or knob.is_file:
        return "NAME,..." if knob.many else "FILE"
    return _METAVARS.get(knob.kind, "PATH" if knob.path else "TEXT")


def _help(knob: Knob) -> str:
    """Return the help with its default, and how to say no."""
    if knob.kind is bool:
        default = str(knob.default).lower()
        return f"{knob.help} [default: {default}; off: --no_{knob.name}]"
    if knob.default in ("", None, {}):
        return knob.help
    return f"{knob.help} [default: {knob.default}]"


def given_values(
    config: str | None, flags: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of flags and job file, and where each was said; flags win."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if config is not None:
        for name, (value, where) in job_file.read(
            config, {**spellings(), **launched.spellings()}
        ).items():
            values[name], origins[name] = value, where
    for knob in (*knobs(), *launched.own_knobs()):
        given = flags.get(knob.name)
        if knob.kind is bool and flags.get(f"no_{knob.name}"):
            if given is not None:
                raise UsageError(f"--{knob.name} and --no_{knob.name} contradict each other.")
            given = "false"
        if given not in (None, ()):
            values[knob.name] = given
            origins.pop(knob.name, None)
    if "schema" in values:
        from ..data.schema_given import schema_given

        said = f"--schema ({origins['schema']})" if "schema" in origins else "--schema"
        given = schema_given(values["schema"], said)
        values["schema"] = given.to_json() if given else {}
    return values, origins


def token_of(file: str, variable: str) -> str:
    """Return the token in a file (--token_file), else that of a variable; "": there is none."""
    if not file:
        return os.environ.get(variable, "").strip()
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise UsageError(f"--token_file {file}: {error.strerror}.") from error
    if not token or not token.isascii():
        raise UsageError(f"--token_file {file} has no token: one line of plain characters.")
    return token


def flags_given() -> set[str]:
    """Return the parameters of the current command that were given, and are not defaults."""
    ctx = click.get_current_context()
    return {
        name
        for name in ctx.params
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }


def as_yaml(command: str, values: dict[str, Any], origins: dict[str, str]) -> str:
    """Return every setting by section, with where its value comes from; a job file again.

    `values` are those of the resolved settings; `origins` has "flag" or a file's line by name.
    """
    import yaml

    lines = [f"# edl {command}"]
    section = ""
    for knob in launched.knobs() if command == launched.COMMAND else knobs():
        if knob.group != section:
            section = knob.group
            lines += ["", f"# {section}"]
        value = yaml.safe_dump(
            values[knob.name], default_flow_style=True, width=10**6, sort_keys=False
        )
        text = value.removesuffix("\n").removesuffix("\n...")
        lines.append(f"{knob.name}: {text}  # {origins.get(knob.name, 'default')}")
    return "\n".join(lines)
