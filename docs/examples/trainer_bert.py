"""Hugging Face's Trainer, elastic: a tiny BERT that tells what a sentence is about.

Model and text are made here, so nothing is downloaded.

    edl launch --nodes 1:4 --job_name bert docs/examples/trainer_bert.py --output bert
    edl scale bert 2
"""

from __future__ import annotations

import argparse
import random

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

from edl.integrations.transformers import ElasticTrainer

TOPICS = {
    "sea": ["wave", "sail", "harbour", "tide", "anchor", "gull", "reef", "storm"],
    "kitchen": ["bread", "oven", "spice", "kettle", "salt", "onion", "knife", "supper"],
    "garden": ["rose", "spade", "hedge", "seed", "moss", "bloom", "beetle", "rain"],
}
FILLERS = ["the", "a", "of", "and", "near", "under", "with", "some", "old", "small"]
WORDS = ["[PAD]", *FILLERS, *(word for words in TOPICS.values() for word in words)]
LENGTH = 12  # words of a sentence


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sentences and what they are about; the same ones in every process."""

    def __init__(self, size: int, seed: int = 0) -> None:
        chosen = random.Random(seed)
        self.items = []
        for number in range(size):
            about = number % len(TOPICS)
            topic = list(TOPICS.values())[about]
            chances = [topic if chosen.random() < 0.3 else FILLERS for _ in range(LENGTH)]
            ids = torch.tensor([WORDS.index(chosen.choice(words)) for words in chances])
            self.items.append({"input_ids": ids, "labels": torch.tensor(about)})

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.items[index]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=5)
    arguments.add_argument("--sentences", type=int, default=3000)
    arguments.add_argument("--output", default="bert")
    given = arguments.parse_args()

    set_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=len(TOPICS),
    )
    trainer = ElasticTrainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            given.output,
            num_train_epochs=given.epochs,
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            save_steps=50,
            eval_strategy="epoch",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Sentences(given.sentences),
        eval_dataset=Sentences(300, seed=1),
        compute_metrics=lambda found: {
            "accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())
        },
        global_batch_size=64,
    )
    trainer.train()
    trainer.save_model()
    accuracy = trainer.evaluate()["eval_accuracy"]
    if trainer.is_world_process_zero():
        print(f"accuracy {accuracy:.3f} after {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
