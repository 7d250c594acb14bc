"""Training: one loop for all tasks, runs that survive being killed, schedules, and the tasks themselves."""

from ..config import ConfigError, load_config
from .experiment import run_experiment
from .loop import train
from .options import TrainingConfig
from .run import RunError, TrainingRun
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
