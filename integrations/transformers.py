"""Hugging Face's Trainer under `edl launch`, elastic.

    trainer = ElasticTrainer(model, args, train_dataset=..., global_batch_size=64)
    trainer.train()                       # goes on by itself where the last round stopped

ElasticTrainer is their Trainer with four things replaced, and their loop as it is: who reads which
records (passes.py), how often gradients accumulate (so that the global batch stays), how much each
micro-batch weighs (so that the gradient is the mean over the global batch, whatever the replicas),
and where it saves to and resumes from (edl.launch). EdlCallback alone lets a plain Trainer make
room and be seen.

Micro-batches weigh by their labels that are not -100, as the loss of a language model does; by
their records where a batch has no `labels`. So the model's loss must be the mean over these.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from .. import launch
from ..common.errors import UsageError
from ..common.extras import install
from .loader import ElasticDataLoader
from .passes import Batches
from .replicas import Replicas, check

try:
    import accelerate  # noqa: F401  a Trainer of torch needs it
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState, TrainerState
    from transformers.utils import is_datasets_available
except ImportError as error:
    raise UsageError(
        "edl.integrations.transformers needs Hugging Face's transformers and accelerate "
        f"({error}): {install('transformers')}."
    ) from error

_STATE = "trainer_state.json"  # where their train() looks for it
_ORDERS = "random", "sequential"


class EdlCallback(TrainerCallback):  # type: ignore[misc]
    """The callback of a Trainer under `edl launch`: it is seen, and makes room after a step.

    `edl status` shows its speed, and what is left. Where any replica is told to stop, all evaluate
    and save what is due after the same step, save in any case, and end for the next round. A plain
    Trainer saves and resumes in its own way: its place in the data and its batch follow the world.
    """

    def __init__(self) -> None:
        self.batch: int | None = None  # records of a step, where they do not follow from the world
        self.keeps_last = False  # whether the last step is saved in any case
        self._replicas: Replicas | None = None
        self._leaving = False
        self._saved_step = -1

    def meet(self) -> Replicas:
        """Return the replicas. All of them call it at once, for the first time."""
        if self._replicas is None:
            check("EdlCallback")
            self._replicas = Replicas()
        return self._replicas

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.meet().listen()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        accumulated = args.train_batch_size * args.gradient_accumulation_steps
        batch = self.batch or accumulated * args.world_size
        left = state.max_steps - state.global_step
        if self.meet().stepped(batch, left * batch) and left > 0:
            self._leaving = True
        # After the last step of an epoch, what is due at its end comes first.
        if self._leaving and state.epoch % 1:
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ended = self.keeps_last and state.global_step >= state.max_steps
        if self._leaving or (ended and self._saved_step != state.global_step):
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved_step = state.global_step
        if self._leaving:
            self.meet().leave()


class ElasticTrainer(Trainer):  # type: ignore[misc]
    """Hugging Face's Trainer for a number of replicas that changes.

    `global_batch_size`: the records of an optimizer step over all replicas; by default what the
    arguments make of the replicas of the first round. `per_device_train_batch_size` is the most
    that one of them computes at once, and `gradient_accumulation_steps` follows from both.

    It saves when a Trainer would (`save_strategy`), when it has to make room, and after the last
    step. Their own `checkpoint-…` folders are written only where `load_best_model_at_end` or
    `push_to_hub` need them.

    Raises UsageError for what does not go together with it, in a sentence.
    """

    loss_is_scaled_for_ga = False  # a micro-batch's mean; training_step weighs it

    def __init__(self, *args: Any, global_batch_size: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check()
        found = [c for c in self.callback_handler.callbacks if isinstance(c, EdlCallback)]
        self._edl = found[0] if found else EdlCallback()
        if not found:
            self.add_callback(self._edl)
        self._edl.keeps_last = True
        self._global_batch_size = global_batch_size
        self._saved: dict[str, Any] = {}
        self._elastic_loader: ElasticDataLoader[Any] | None = None
        self._factors: list[float | Tensor] = []  # of the micro-batches of the step, by turn

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train from where the job is. Raises UsageError for a checkpoint to resume from."""
        if resume_from_checkpoint:
            raise UsageError(
                "ElasticTrainer goes on by itself from what the job has saved: leave out "
                "resume_from_checkpoint."
            )
        self._edl.meet()
        self._saved, progress = launch.load()
        self._agree_on_batch(progress.get("batch"))
        with tempfile.TemporaryDirectory() as folder:
            if not self._saved:
                return super().train(**kwargs)
            with open(os.path.join(folder, _STATE), "w") as file:
                file.write(self._saved["trainer"])
            return super().train(resume_from_checkpoint=folder, **kwargs)

    def _agree_on_batch(self, saved: int | None) -> None:
        args, replicas = self.args, self._edl.meet().replicas
        accumulated = args.per_device_train_batch_size * args.gradient_accumulation_steps
        total = self._global_batch_size or saved or accumulated * replicas
        self._batches = Batches(total, args.per_device_train_batch_size)
        args.gradient_accumulation_steps = self._batches.accumulation(replicas)
        self._edl.batch = total

    def _check(self) -> None:
        check(type(self).__name__, self.model)
        args = self.args
        wrong = {
            "shards a model over the replicas (FSDP, DeepSpeed)": (
                self.is_fsdp_enabled or self.is_deepspeed_enabled,
                "leave them out: each replica must have the whole model",
            ),
            "sees several devices in one process": (
                args.n_gpu > 1,
                "give `edl launch` --nproc_per_node with their number",
            ),
            "looks for a batch size itself (auto_find_batch_size)": (
                args.auto_find_batch_size,
                "give per_device_train_batch_size, the most that fits",
            ),
            f"has train_sampling_strategy={args.train_sampling_strategy!r}": (
                args.train_sampling_strategy not in _ORDERS,
                f"{' and '.join(_ORDERS)} have an exact position",
            ),
            "has enable_jit_checkpoint": (
                args.enable_jit_checkpoint,
                "leave it out: ElasticTrainer saves when it is told to stop",
            ),
        }
        for what, (is_so, mend) in wrong.items():
            if is_so:
                raise UsageError(f"This Trainer {what}, which is not elastic: {mend}.")

    # -- who reads what, and what it weighs

    def get_train_dataloader(self) -> ElasticDataLoader[Any]:
        """Return this replica's records. Raises UsageError for a dataset without a length."""
        args, dataset, collate = self.args, self.train_dataset, self.data_collator
        if dataset is None:
            raise UsageError("ElasticTrainer has nothing to train with: give train_dataset.")
        if _is_hugging_face(dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        replicas = self._edl.meet()
        self._elastic_loader = ElasticDataLoader(
            dataset,
            self._batches,
            (replicas.rank, replicas.replicas),
            seed=args.seed if args.data_seed is None else args.data_seed,
            shuffle=args.train_sampling_strategy == "random",
            drop_last=args.dataloader_drop_last,
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        return self._elastic_loader

    def get_total_train_batch_size(self, args: Any) -> int:
        return self._batches.total

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """Return the micro-batches of the next step, which are weighed here."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        self._factors = self._weigh(batches, device)
        return batches, None

    def _weigh(self, batches: list[Any], device: torch.device) -> list[float | Tensor]:
        """Return by what to multiply each micro-batch's mean.

        Summed over these, and averaged over the replicas, it is the mean over the global batch.
        """
        assert self._elastic_loader is not None
        passes, place = self._elastic_loader.passes, self._edl.meet()
        step = passes.step(self.state.global_step % passes.steps, place.replicas)
        shares = [step.share(micro, place.rank, place.replicas) for micro in range(step.micros)]
        counts = [self._labels(batch) for batch in batches]
        if any(count is None for count in counts):
            return [share.weight / step.micros for share in shares]
        # A share without records repeats one, which must not count.
        counted = zip(counts, shares, strict=True)
        own = torch.stack([cast("Tensor", c).to(device) * bool(s.weight) for c, s in counted])
        total = self.accelerator.reduce(own.sum(), "sum").clamp(min=1)
        return list(own * place.replicas / total)

    def _labels(self, batch: Any) -> Tensor | None:
        """Return how many labels of a micro-batch count in its loss; None where it has none."""
        labels = batch.get("shift_labels", batch.get("labels"))
        if not isinstance(labels, Tensor):
            return None
        if "shift_labels" not in batch and self._loss_shifts_labels:
            labels = labels[..., 1:]
        return labels.ne(-100).sum()

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        factor = self._factors.pop(0)
        self._is_empty = not factor
        # By this their training_step divides the loss of compute_loss, also of a user's own.
        self.current_gradient_accumulation_steps = 1 / factor if factor else float("inf")
        return cast("Tensor", super().training_step(model, inputs, num_items_in_batch))

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training and self._is_empty:
            loss = torch.nan_to_num(loss)  # the mean over no label
        return (loss, outputs) if return_outputs else loss

    # -- saving and resuming

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.load_best_model_at_end or self.args.push_to_hub:
            super()._save_checkpoint(model, trial)
        else:
            self.store_flos()
        callbacks = [*self.callback_handler.callbacks, self.control]
        kept = [each for each in callbacks if isinstance(each, ExportableState)]
        state: TrainerState = dataclasses.replace(self.state, stateful_callbacks=kept)
        scaler = getattr(self.accelerator, "scaler", None)
        self._edl.meet().save(
            {
                "model": self.accelerator.unwrap_model(self.model),
                "optimizer": self.optimizer,
                "scheduler": self.lr_scheduler,
                "scaler": scaler,
                "trainer": json.dumps(dataclasses.asdict(state)),
            },
            batch=self._batches.total,
            step=self.state.global_step,
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.accelerator.unwrap_model(self.model).load_state_dict(self._saved.pop("model"))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.optimizer.load_state_dict(self._saved.pop("optimizer"))
            self.lr_scheduler.load_state_dict(self._saved.pop("scheduler"))

    def _load_scaler(self, checkpoint: str | None) -> None:
        saved, scaler = self._saved.pop("scaler", None), getattr(self.accelerator, "scaler", None)
        if saved is not None and scaler is not None:
            scaler.load_state_dict(saved)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if saved := self._saved.pop("random", None):
            self._edl.meet().go_on_randomly(saved, self.state.global_step)

    def _run_epoch(self, **kwargs: Any) -> None:
        # Theirs makes a step first and looks whether it was the last one afterwards.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(**kwargs)


def _is_hugging_face(dataset: object) -> bool:
    if not is_datasets_available():
        return False
    import datasets

    return isinstance(dataset, datasets.Dataset)


__all__ = ["EdlCallback", "ElasticTrainer"]
