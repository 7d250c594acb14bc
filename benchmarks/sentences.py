"""Training steps of the paper's models for the Penn Treebank, at their sizes."""

import torch

from stackattn.models import build_model
from stackattn.paper.models import PTB_TYPES, paper_config
from stackattn.text.vocabulary import Vocabulary
from stackattn.training.lm import negative_log_likelihood

from .steps import Shape, Step, training_step


def training(shape: Shape, architecture: str) -> Step:
    """A step on B sentences of T tokens, as in the training loop; the corpus has about 24 tokens per sentence."""
    vocabulary = Vocabulary(tuple(map(str, range(PTB_TYPES))))
    model = build_model(paper_config("ptb", architecture, published=True)).train()
    sentences = torch.randint(PTB_TYPES, (shape.B, shape.T)).tolist()
    return training_step(model, lambda: negative_log_likelihood(model, sentences, vocabulary).sum() / shape.B)
