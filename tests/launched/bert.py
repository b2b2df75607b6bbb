"""A tiny BERT trained by ElasticTrainer, or by Hugging Face's own in one process (`plain`)."""

import sys
from pathlib import Path

import torch
from launched import books
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed

from edl.integrations.transformers import EdlCallback, ElasticTrainer

folder = Path(sys.argv[1])
plain = sys.argv[2:] == ["plain"]
ledger = books.Books(folder)
torch.set_num_threads(1)


class Text(torch.utils.data.Dataset):
    """Words of a chain, some of which are to be guessed: another number in each record."""

    def __init__(self):
        chosen = torch.Generator().manual_seed(1)
        self.words = torch.randint(1, 30, (books.RECORDS, books.WIDTH), generator=chosen)
        self.asked = torch.rand(books.RECORDS, books.WIDTH, generator=chosen) < 0.4

    def __len__(self):
        return books.RECORDS

    def __getitem__(self, index):
        words, asked = self.words[index], self.asked[index]
        labels = words.masked_fill(~asked, -100)
        return {"input_ids": words.masked_fill(asked, 0), "labels": labels, "record": index}


class Noted:
    """What notes the records of a step."""

    def training_step(self, model, inputs, *args, **kwargs):
        ledger.saw(inputs.pop("record"))
        return super().training_step(model, inputs, *args, **kwargs)


class NotedElastic(Noted, ElasticTrainer):
    """The elastic one."""


class NotedPlain(Trainer):
    """The plain one, which reads in the same order."""

    def training_step(self, model, inputs, *args, **kwargs):
        inputs.pop("record")
        return super().training_step(model, inputs, *args, **kwargs)

    def _get_train_sampler(self, train_dataset=None):
        return books.Order()


class Notes(EdlCallback):
    """A callback that notes each step, and may hold after it."""

    def on_step_end(self, args, state, control, **kwargs):
        ledger.stepped(state.global_step)
        super().on_step_end(args, state, control, **kwargs)


set_seed(3)
config = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=books.WIDTH,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
arguments = TrainingArguments(
    str(folder / "out"),
    num_train_epochs=books.EPOCHS,
    per_device_train_batch_size=books.BATCH if plain else 2,
    learning_rate=3e-3,
    max_grad_norm=0.5,
    save_strategy="no" if plain else "steps",
    save_steps=3,
    seed=books.SEED,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    remove_unused_columns=False,
)
data = Text()
if plain:
    trainer = NotedPlain(BertForMaskedLM(config), arguments, train_dataset=data)
else:
    trainer = NotedElastic(
        BertForMaskedLM(config),
        arguments,
        train_dataset=data,
        callbacks=[Notes()],
        global_batch_size=books.BATCH,
    )
trainer.train()
if trainer.is_world_process_zero():
    name = "plain.pt" if plain else "elastic.pt"
    torch.save(trainer.model.state_dict(), folder / name)
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    print("steps", trainer.state.global_step, "losses", losses)
