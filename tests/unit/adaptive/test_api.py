"""The names of the package."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edl
import edl.adaptive

# What AdaptDL 0.2.11 has, by module: functions, classes, and CLASS.MEMBER.
ADAPTDL = {
    "adaptdl": "get_tensorboard_dir",  # of an older one, which an example calls
    "adaptdl._signal": "get_exit_flag",
    "adaptdl.checkpoint": "State State.save State.load State.sync save_all_states save_state "
    "load_state CKPT_DIR_PREFIX",
    "adaptdl.collective": "initialize teardown allreduce allreduce_async broadcast",
    "adaptdl.conftest": "elastic_multiprocessing",
    "adaptdl.env": "checkpoint_path share_path job_id master_addr master_port replica_rank "
    "num_nodes num_replicas num_restarts adaptdl_sched_version supervisor_url from_ray",
    "adaptdl.goodput": "PerfParams GradParams GoodputFunction GoodputFunction.evaluate "
    "GoodputFunction.throughput GoodputFunction.efficiency GoodputFunction.optimize "
    "fit_perf_params",
    "adaptdl.reducer": "Reducer Future default_reduce_fn",
    "adaptdl.sched_hints": "PERF_PARAMS SCHED_HINTS post_sched_hints",
    "adaptdl.utils": "print_exc",
    "adaptdl.torch": "version_check init_process_group current_epoch finished_epochs "
    "remaining_epochs_until current_dataloader AdaptiveDataLoader ElasticSampler "
    "AdaptiveDataParallel Accumulator",
    "adaptdl.torch._metrics": "_metrics_state profile_step_start profile_sync_time "
    "profile_step_commit update_grad_params update_progress get_progress set_batch_size "
    "get_goodput_fn",
    "adaptdl.torch.accumulator": "Accumulator Accumulator.synchronized Accumulator.update "
    "Accumulator.subtract Accumulator.__iadd__ Accumulator.__isub__ Accumulator.clear",
    "adaptdl.torch.data": "ElasticSampler ElasticSampler.set_epoch ElasticSampler.num_replicas "
    "ElasticSampler.rank current_dataloader AdaptiveDataLoaderHelper "
    "AdaptiveDataLoaderHelper.current_index AdaptiveDataLoaderHelper.end_index "
    "AdaptiveDataLoaderHelper.current_local_bsz AdaptiveDataLoaderHelper.accumulation_steps "
    "AdaptiveDataLoaderHelper.is_accum_step AdaptiveDataLoaderHelper.is_optim_step "
    "AdaptiveDataLoaderHelper.train AdaptiveDataLoaderHelper.autoscale_batch_size "
    "AdaptiveDataLoaderHelper.profile AdaptiveDataLoaderHelper.context "
    "AdaptiveDataLoaderHelper.current_batch_size AdaptiveDataLoaderHelper.skipdone "
    "AdaptiveDataLoaderHelper.to_tensorboard AdaptiveDataLoaderMixin "
    "AdaptiveDataLoaderMixin.autoscale_batch_size AdaptiveDataLoaderMixin.current_local_bsz "
    "AdaptiveDataLoaderMixin.accumulation_steps AdaptiveDataLoaderMixin.training "
    "AdaptiveDataLoaderMixin.current_batch_size AdaptiveDataLoaderMixin.to_tensorboard "
    "AdaptiveDataLoader",
    "adaptdl.torch.epoch": "remaining_epochs_until current_epoch finished_epochs",
    "adaptdl.torch.gradient_noise_scale": "GradientNoiseScale GradientNoiseScale.accum_scale "
    "GradientNoiseScale.accum_count GradientNoiseScale.raw_sqr_avg GradientNoiseScale.sqr_avg "
    "GradientNoiseScale.raw_var_avg GradientNoiseScale.var_avg GradientNoiseScale.gain "
    "GradientNoiseScale.reset_accumulation GradientNoiseScale.should_zero_grad "
    "GradientNoiseScale.set_accum_scale GradientNoiseScale.get_progress "
    "GradientNoiseScale.set_progress AdamGradientNoiseScale",
    "adaptdl.torch.iterator": "AdaptiveBPTTIterator",
    "adaptdl.torch.parallel": "AdaptiveDataParallel AdaptiveDataParallel.forward "
    "AdaptiveDataParallel.zero_grad AdaptiveDataParallel.gain "
    "AdaptiveDataParallel.to_tensorboard",
    "adaptdl.torch.scaling_rules": "ScalingRuleBase ScalingRuleBase.scale_lr "
    "ScalingRuleBase.initialize ScalingRuleBase.step ScalingRuleBase.zero_grad AdaScale AdamScale "
    "LinearScale SqrtScale LEGWScale",
}
MODULES = {module.replace(".torch", "") for module in ADAPTDL}
NAMES = [f"{module}.{name}" for module, names in ADAPTDL.items() for name in names.split()]


def here(name):
    """Return what a ported name leads to. Raises ImportError or AttributeError if to nothing."""
    words = re.sub(r"^adaptdl(\.torch)?", "edl.adaptive", name).split(".")[2:]
    found = edl.adaptive
    if words[0].lower() == words[0] and f"adaptdl.{words[0]}" in MODULES:
        found = importlib.import_module(f"edl.adaptive.{words.pop(0)}")
    for word in words:
        found = getattr(found, word)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_adaptdl_is_there_or_the_page_says_what_to_write_instead(name):
    page = (Path(edl.__file__).parent / "docs/adaptive.md").read_text()
    rows = page.partition("## Names that are not here")[2].splitlines()
    said = {
        word
        for row in rows
        if row.startswith("| `")
        for word in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    try:
        here(name)
    except (AttributeError, ImportError):
        assert name.removeprefix("adaptdl.") in said
    else:
        assert name.removeprefix("adaptdl.") not in said


@pytest.mark.parametrize("name", edl.adaptive.__all__)
def test_a_public_name_is_there(name):
    assert getattr(edl.adaptive, name).__name__ == name


def test_what_a_type_checker_sees_is_what_there_is():
    tree = ast.parse(Path(edl.adaptive.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {name.asname: node.module for node in guarded.body for name in node.names}

    assert edl.adaptive._MODULES == seen


def test_the_package_alone_imports_no_torch():
    code = "import sys, edl.adaptive, edl.adaptive.env; sys.exit('torch' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'AdaptiveDataLoder'"):
        edl.adaptive.AdaptiveDataLoder  # noqa: B018
