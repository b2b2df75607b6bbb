"""Lightning under `edl launch`, elastic.

    elastic = EdlCallback(batch_size=64, per_replica=16)
    trainer = Trainer(strategy="ddp", devices=..., plugins=[EdlEnvironment()], callbacks=[elastic],
                      use_distributed_sampler=False, max_epochs=10)
    trainer.fit(model, elastic.loader(dataset))    # goes on where the last round stopped

Lightning's loop is as it is. What it keeps in a checkpoint goes through edl.launch, and comes back
by its own way of resuming; the counts of micro-batches in it are made anew for the replicas that
there are. A state is taken before a step's first micro-batch, when all that was due after the step
before (validation, schedulers, other callbacks) is done, with the random states as they were then.
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from .. import launch
from ..adaptive import rng
from ..common.errors import UsageError
from ..common.extras import install
from .loader import ElasticDataLoader
from .passes import Batches, Passes
from .replicas import Replicas, check

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ImportError as error:
    raise UsageError(
        f"edl.integrations.lightning needs Lightning ({error}): {install('lightning')}."
    ) from error

_LEFT_OUT = "hparams_name", "hyper_parameters", "datamodule_hyper_parameters"  # any object at all


class EdlEnvironment(TorchElasticEnvironment):  # type: ignore[misc]
    """The places of a round of `edl launch`, as Lightning asks for them.

    Nodes may have different numbers of workers. Raises UsageError where nobody launched the script.
    """

    def __init__(self) -> None:
        super().__init__()
        check("EdlEnvironment")
        for name, alone in ("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"):
            os.environ.setdefault(name, alone)

    @staticmethod
    def detect() -> bool:
        return bool(os.environ.get("EDL_ROUND"))

    @property
    def local_world_size(self) -> int:
        """The workers of this node: what a Trainer calls devices."""
        return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check nothing: the launcher decides how many there are."""


class EdlCallback(Callback):  # type: ignore[misc]
    """Keeps a Lightning job exact while its replicas change, and lets `edl status` see it.

    `batch_size`: the records of an optimizer step over all replicas. `per_replica`: the most that
    one of them computes at once; by default its share of them. `save_every`: optimizer steps; it
    also saves when it has to make room, and at the end. The loss that `training_step` returns must
    be the mean over the records of its batch.

    Raises UsageError for what does not go together with it, in a sentence.
    """

    def __init__(
        self, batch_size: int, per_replica: int | None = None, *, save_every: int = 100
    ) -> None:
        check("EdlCallback")
        if save_every < 1:
            raise UsageError(f"save_every is {save_every}: give at least 1 step.")
        self._place = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        self._batches = Batches(batch_size, per_replica or batch_size)
        self._micros = self._batches.accumulation(self._place[1])
        self._save_every = save_every
        self._replicas: Replicas | None = None
        self._loader: ElasticDataLoader[Any] | None = None
        self._epoch = 0
        self._saved_step = 0
        self._random: dict[str, Any] | None = None  # when the last step was over
        self._resumed: dict[str, Any] = {}
        self._leaving = False

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **arguments: Any,
    ) -> ElasticDataLoader[Any]:
        """Return a loader of this replica's records, for `fit` or `train_dataloader`.

        `arguments` are those of torch's DataLoader. Raises UsageError for a dataset without length.
        """
        self._loader = ElasticDataLoader(
            dataset,
            self._batches,
            self._place,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            **arguments,
        )
        self._loader.set_epoch(self._epoch)  # its workers may begin before Lightning says so
        return self._loader

    # -- Lightning's hooks

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Let Lightning resume from what was saved, instead of from a file."""
        if stage != "fit":
            return
        check("EdlCallback", pl_module)
        _check(trainer, pl_module)
        trainer.accumulate_grad_batches = self._micros
        self._replicas = Replicas()
        saved, progress = launch.load()
        if not saved:
            return
        if (batch := progress["batch"]) != self._batches.total:
            raise UsageError(
                f"this job was begun with batches of {batch} records, and now they have "
                f"{self._batches.total}: give batch_size={batch}, or another --checkpoint_dir."
            )
        self._resumed = {"random": saved.pop("random"), "step": progress["step"]}
        self._saved_step, self._epoch = progress["step"], progress["epoch"]
        if self._loader is not None:
            self._loader.set_epoch(self._epoch)
        self._count_anew(saved, progress)
        trainer._checkpoint_connector._loaded_checkpoint = saved

    def on_sanity_check_start(self, trainer: Any, pl_module: nn.Module) -> None:
        self._meet().listen()

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        # Lightning's own handler of SIGTERM would begin a collective wherever a replica is.
        self._meet().listen()
        if not isinstance(trainer.train_dataloader, ElasticDataLoader):
            raise UsageError(
                "EdlCallback knows who reads which records of its own loader only: give fit() what "
                "EdlCallback.loader(dataset) returns, and nothing beside it."
            )
        if self._resumed:
            self._meet().go_on_randomly(self._resumed["random"], self._resumed["step"])
        self._random = rng.state()

    def on_train_batch_start(
        self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % self._micros:
            return
        step = trainer.global_step
        if self._leaving or step >= self._saved_step + self._save_every:
            self._save(trainer, batch_idx)
        if self._leaving:
            self._meet().leave()

    def on_before_backward(self, trainer: Any, pl_module: nn.Module, loss: Tensor) -> None:
        """Weigh the mean loss of a micro-batch by its records."""
        number, micro = divmod(trainer.fit_loop.batch_idx, self._micros)
        rank, replicas = self._place
        step = self._passes().step(number, replicas)
        weight = step.share(micro, rank, replicas).weight * self._micros / step.micros
        if weight != 1:
            loss.mul_(weight)

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        number = batch_idx // self._micros
        step = self._passes().step(number, self._place[1])
        if batch_idx != number * self._micros + step.micros - 1:
            return
        self._random = rng.state()
        records = step.stop - step.start
        left = self._left(trainer, number)
        if self._meet().stepped(records, left) and left > 0:
            self._leaving = True

    def on_validation_end(self, trainer: Any, pl_module: nn.Module) -> None:
        self._random = rng.state()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        self._random = rng.state()
        if trainer.global_step > self._saved_step:
            self._save(trainer, 0)  # of the epoch that comes next, if ever one does

    # -- what is kept

    def _meet(self) -> Replicas:
        assert self._replicas is not None
        return self._replicas

    def _passes(self) -> Passes:
        assert self._loader is not None
        return self._loader.passes

    def _left(self, trainer: Any, number: int) -> int:
        """Return how many records are left after this step of the pass, of all epochs."""
        most, epochs = trainer.max_steps, trainer.max_epochs
        steps = most - trainer.global_step if most > 0 else None
        if epochs is not None and epochs > 0:
            here = (epochs - trainer.current_epoch) * self._passes().steps - number - 1
            steps = here if steps is None else min(here, steps)
        return self._batches.total * max(0, 1 if steps is None else steps)

    def _save(self, trainer: Any, batch_idx: int) -> None:
        """Save what Lightning would; before this micro-batch of its epoch, the first of a step."""
        passes = self._passes()
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        for name in _LEFT_OUT:
            state.pop(name, None)
        self._meet().save(
            state,
            self._random,
            batch=self._batches.total,
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            step_of_epoch=-(-batch_idx // self._micros),
            records=passes.records,
            drop_last=passes.drop_last,
        )
        self._saved_step = trainer.global_step

    def _count_anew(self, saved: dict[str, Any], progress: dict[str, Any]) -> None:
        """Count what was done in micro-batches of these replicas."""
        passes = Passes(progress["records"], self._batches, drop_last=progress["drop_last"])
        of_pass = passes.micro_batches(self._place[1])
        done = min(progress["step_of_epoch"] * self._micros, of_pass)
        loops = saved["loops"]["fit_loop"]
        batches = loops["epoch_loop.batch_progress"]
        total = progress["epoch"] * of_pass + done
        for count, number in ("total", total), ("current", done):
            batches[count] = dict.fromkeys(batches[count], number)
        # It is that of the micro-batch that had been fetched.
        batches["is_last_batch"] = False
        position = {"epoch": progress["epoch"], "step": progress["step_of_epoch"]}
        loops["state_dict"]["combined_loader"] = [position]


def _check(trainer: Any, pl_module: Any) -> None:
    """Check that the trainer can be elastic. Raises UsageError where it cannot."""
    strategy = trainer.strategy
    wrong = {
        f"has the strategy {type(strategy).__name__}": (
            type(strategy) not in (DDPStrategy, SingleDeviceStrategy),
            'give strategy="ddp": each replica must have the whole model',
        ),
        "has another environment": (
            trainer.world_size != int(os.environ.get("WORLD_SIZE") or 1),
            "give plugins=[EdlEnvironment()]",
        ),
        "shares out the records itself": (
            trainer._accelerator_connector.use_distributed_sampler,
            "give use_distributed_sampler=False",
        ),
        "accumulates gradients itself": (
            trainer.accumulate_grad_batches != 1,
            "leave accumulate_grad_batches out: it follows from batch_size and per_replica",
        ),
        "leaves out some of the records": (
            isinstance(trainer.limit_train_batches, int)  # 1 is one batch, 1.0 all of them
            or trainer.limit_train_batches != 1.0
            or trainer.overfit_batches,
            "leave limit_train_batches, overfit_batches and fast_dev_run out",
        ),
        "has a model that optimizes by itself": (
            not pl_module.automatic_optimization,
            "only automatic optimization says when a step is complete",
        ),
    }
    for what, (is_so, mend) in wrong.items():
        if is_so:
            raise UsageError(f"This Trainer {what}, which is not elastic: {mend}.")


__all__ = ["EdlCallback", "EdlEnvironment"]
