"""Training: one loop for all tasks, runs that survive being killed, schedules, and the tasks themselves."""

from ..config import ConfigError, load_config
from .experiment import run_experiment
from .loop import TrainingConfig, train
from .run import RunError, TrainingRun
from .schedule import EarlyStopping, Plateau

__all__ = [
    "ConfigError",
    "EarlyStopping",
    "Plateau",
    "RunError",
    "TrainingConfig",
    "TrainingRun",
    "load_config",
    "run_experiment",
    "train",
]
