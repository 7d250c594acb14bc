"""Training: one loop for all tasks, and runs that can be resumed after an interruption.

cfl          context-free languages
lm           language modelling of sentences or documents
mt           translation
sentences    options and code that lm and mt share
translator   a trained translation model with its tokenizer
options      the `training` section of configurations
experiment   trains a configuration in a run folder
origin       starts a run from the weights of a saved model
loop         the training loop
metrics      names of the metrics, and the one by which runs are compared
schedule     learning-rate schedule and early stopping
run          the folder of a run: starting, resuming and reading it
loggers      write the metrics as CSV, for TensorBoard or Weights & Biases
run_files    reads and validates single files of a run
checkpoint   writes and reads checkpoints
environment  versions, hardware and memory
devices      the device of a model: its name, random state and precision
processes    several processes that train one model
sweep        many runs in local processes
cluster      many runs on a Ray cluster
"""

from ..config import ConfigError, load_config
from .experiment import run_experiment
from .loop import train
from .options import TrainingConfig
from .run import TrainingRun
from .run_files import RunError
from .schedule import EarlyStopping, plateau_scheduler

__all__ = [
    "ConfigError",
    "EarlyStopping",
    "RunError",
    "TrainingConfig",
    "TrainingRun",
    "load_config",
    "plateau_scheduler",
    "run_experiment",
    "train",
]
