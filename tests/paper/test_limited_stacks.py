"""`stackattn reproduce long` and `documents`, which compare models with limited stacks with other models."""

import json
import shutil
from pathlib import Path

import pytest

from stackattn.cli import main
from stackattn.paper.experiments import TARGETS

RUN = Path(__file__).parents[2] / "experiments/results/table-2/wikitext-2/tf/00"


@pytest.mark.parametrize("name", ["long", "documents"])
def test_compared_models_have_the_same_rates_and_seeds(name, tmp_path):
    target = TARGETS[name]
    task = target.tasks[0]
    models = [model for model in target.models if name == "documents" or not model.startswith("tf")]
    configs = [config for _, config in target.jobs(tmp_path, [task], models, [1])]
    assert len({config.model.layers for config in configs}) == len(models)
    for config in configs[1:]:
        assert config.training == configs[0].training
        assert name == "documents" or config.language == configs[0].language
    ((_, other),) = target.jobs(tmp_path, [task], models[:1], [0])
    assert other.training.init_seed != configs[0].training.init_seed


def test_table_of_documents(tmp_path):
    run = tmp_path / "wikitext-2/tf/00"
    shutil.copytree(RUN, run)
    config = json.loads((run / "config.json").read_text())
    config["data"]["row_tokens"] = 100
    (run / "config.json").write_text(json.dumps(config))
    assert main(["reproduce", "documents", "--budget", "0", "--out", str(tmp_path)]) == 0
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = min(metrics, key=lambda row: row["score"])
    tokens, test = 100 * best["examples"], json.loads((run / "test.json").read_text())
    speed = f"{tokens / best['train_seconds']:,.0f} |  | {best['memory'] / 1e6:,.0f}"
    row = f"| wikitext-2 | Tf | 0 of 1 | {test['parameters']:,} | {tokens:,} | {best['perplexity']:.2f} | "
    assert f"{row}{test['perplexity']:.2f} | {speed} |" in (tmp_path / "documents.md").read_text()
