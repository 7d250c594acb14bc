"""Studies of runs and the data of the report; test_report_browser.py tests the page itself."""

import json
import re

import pytest
import torch

from stackattn.analysis import trace_stacks
from stackattn.analysis.report import render, write_report
from stackattn.analysis.report_data import page_data
from stackattn.analysis.study import study
from stackattn.cli import main
from stackattn.models import load, save
from stackattn.training import RunError, TrainingRun


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_states_with_tiny_weights(make_run, tmp_path):
    folder = make_run("lstm-nd")
    network = load(folder / "best")
    with torch.no_grad():
        for parameter in network.stack.to_actions.parameters():
            parameter *= 3000  # so that some states and symbols have less than a thousandth of the weight
    save(network, folder / "best")
    assert main(["analyse", str(folder), "--string", "[()][]", "--string", "((()))", "--no-figures"]) == 0
    data = data_of((tmp_path / "run/analysis/report.html").read_text())
    (string,) = page_data(study(folder, texts=["[()][]"]))["runs"][0]["strings"]
    (trace,) = trace_stacks(network, torch.tensor([[4, 2, 0, 1, 3, 2, 3]]))
    weights = trace.split_tops()[0]  # (6, 7, 2, 3)
    parts = data["runs"][0]["strings"][0]["stacks"][0]["split"]
    assert parts == string["stacks"][0]["split"]
    assert any(row == [] for part in parts for row in part["tops"][1:])
    for part in parts:
        for t, row in enumerate(part["tops"][1:]):
            expected = weights[t, :, part["state"], part["symbol"]].tolist()
            expected = [expected[0], 0, *expected[1:]]  # BOS is not read
            assert row + [0] * (8 - len(row)) == pytest.approx([1000 * x for x in expected], abs=0.51)


def test_stacks_have_names_and_can_be_selected(make_run):
    folder = make_run("tf-both")
    names = ["layer 1, head 1", "layer 1, head 2", "layer 2"]
    (studied,) = study(folder, samples=1).runs
    assert [stack.trace.name for stack in studied.strings[0].stacks] == names
    assert list(studied.agreement) == names
    (studied,) = study(folder, samples=1, stack=3).runs
    assert [stack.trace.name for stack in studied.strings[0].stacks] == ["layer 2"]
    assert list(studied.agreement) == ["layer 2"]
    expected = r"stack: expected 1 \(layer 1, head 1\) or 2 \(layer 1, head 2\) or 3 \(layer 2\), got 4"
    with pytest.raises(ValueError, match=expected):
        study(folder, samples=1, stack=4)
    with pytest.raises(ValueError, match="stack: expected a model with a stack, found none"):
        study(make_run("tf", folder="plain"), stack=1)


def test_the_page_is_self_contained_and_reproducible(make_run, tmp_path):
    folder = make_run()
    pages = [write_report(study(folder), tmp_path / name).read_text() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]
    assert "<!--" not in pages[0]
    assert not re.search(r"""(src|href)=["']|url\(|https?://(?!www\.w3\.org/2000/svg)""", pages[0])
    data = data_of(pages[0])
    assert data["title"] == "Tf+Nd on dyck"
    assert data["runs"][0]["curve"] == [[1, 0.65], [2, 0.4]]
    lengths = [row[0] for row in data["runs"][0]["test"]["model"]]
    assert lengths == list(range(6, 16, 2))  # the training lengths, extended by a quarter
    assert len(pages[0]) < 200_000


def test_everything_is_escaped(make_run):
    evil = "</script><script>alert(1)</script>&amp;\u2028<!--style-->"
    data = page_data(study(make_run(), samples=1))
    data["title"] = data["lede"] = data["runs"][0]["strings"][0]["tokens"][1] = evil
    page = render(data)
    assert evil not in page
    assert page.count("<script") == 2
    assert "\u2028" not in page.replace("<title>", "").split("<main>")[1]
    found = data_of(page)
    assert found["lede"] == found["runs"][0]["strings"][0]["tokens"][1] == evil


def test_a_folder_of_runs(make_run, tmp_path):
    make_run("tf-nd", folder="sweep/dyck/tf-nd/00", seed=1)
    make_run("tf-nd", folder="sweep/dyck/tf-nd/01", seed=0)  # better
    make_run("tf", folder="sweep/dyck/tf/00")
    make_run("tf-nd", "unmarked-reversal", folder="sweep/unmarked-reversal/tf-nd/00")
    make_run("tf", folder="sweep/dyck/tf/01", best=False)
    found = study(tmp_path / "sweep", samples=1)
    assert [studied.run.name for studied in found.runs] == [
        "dyck/tf/00", "dyck/tf/01", "dyck/tf-nd/00", "dyck/tf-nd/01", "unmarked-reversal/tf-nd/00"
    ]  # fmt: skip
    assert [s.run.name for s in found.best] == ["dyck/tf/00", "dyck/tf-nd/01", "unmarked-reversal/tf-nd/00"]
    data = page_data(found)
    assert data["title"] == "Tf and Tf+Nd on dyck and unmarked reversal: 5 runs"
    assert [bool(run["strings"]) for run in data["runs"]] == [True, False, False, True, True]
    assert [run["best"] for run in data["runs"]] == [True, False, False, False, True]  # the first of equal runs
    assert column(data, "state")[1] == "not finished, no evaluation yet"


def column(data, name):
    place = [column for column, _ in data["columns"]].index(name)
    return [run["row"][place] for run in data["runs"]] + [one["row"][place] for one in data["baselines"]]


def test_all_runs_are_compared_on_the_same_strings(make_run, tmp_path, capsys):
    make_run("tf-nd", folder="sweep/a", seed=1)
    make_run("tf-nd", folder="sweep/b")  # better than a
    make_run("tf-both", folder="sweep/c")
    make_run("tf", folder="sweep/d")
    make_run("tf-nd", "unmarked-reversal", folder="sweep/e")
    found = study(tmp_path / "sweep", samples=1)
    data = page_data(found)
    a, b, c, d, e = found.runs
    for studied in (a, b):
        alone = study(studied.run.folder, samples=1).runs[0]
        assert studied.agreement == alone.agreement
        assert studied.derivation == alone.derivation
        assert list(studied.agreement) == list(studied.derivation) == ["layer 2"]
    assert a.derivation != b.derivation
    assert len(c.agreement) == 3
    assert d.agreement == d.derivation == e.agreement == {}  # no stack; no deterministic automaton
    steps = {studied.agreement["layer 2"].steps for studied in (a, b, c)}
    assert len(steps) == 1
    shares = [[f"{x.share:.1%}" for x in studied.agreement.values()] for studied in found.runs]
    baselines = b.agreement["layer 2"].baselines
    assert column(data, "real top") == [
        *map(", ".join, shares), *(f"{baselines[name]:.1%}" for name in ("only pushes", "never pushes")), "", ""
    ]  # fmt: skip
    assert column(data, "language")[5:] == ["dyck", "dyck", "unmarked-reversal", "unmarked-reversal"]
    assert all(column(data, "best run")[5:])
    assert main(["analyse", str(tmp_path / "sweep"), "--samples", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(share in printed for row in shares for share in row)
    assert "(only pushes)" in printed
    assert "over 100 strings" in " ".join(printed.split())


def test_runs_without_a_best_model_are_in_the_table(make_run, tmp_path, capsys):
    import shutil

    kept = {"lengths": [{"length": 6, "cross_entropy": 1.5, "lower_bound": 1.0}]}
    kept["lengths"][0] |= {"difference": 0.5, "difference_from_floor": None}
    for name in ("a", "b", "c"):
        folder = make_run(folder=f"sweep/{name}")
        (folder / "test.json").write_text(json.dumps({"per_length": 5, **kept}))
        if name != "a":
            shutil.rmtree(folder / "best")
    (tmp_path / "sweep/c/metrics.jsonl").unlink()
    make_run(folder="sweep/d", best=False)
    found = study(tmp_path / "sweep", samples=1)
    data = page_data(found)
    assert [studied.run.name for studied in found.best] == ["a"]
    assert column(data, "difference")[:4] == ["0.4000", "0.4000", "", ""]
    assert [text.partition(", ")[2] for text in column(data, "state")[:4]] == [
        "", "model not kept", "no evaluation yet", "no evaluation yet"
    ]  # fmt: skip
    assert [run["test"] is None for run in data["runs"]] == [False, False, False, True]
    for name, message in (("b", "model not kept"), ("d", "no evaluation yet")):
        assert main(["analyse", str(tmp_path / "sweep" / name)]) == 0
        assert message in capsys.readouterr().out
    with pytest.raises(RunError, match=r"the run has no best model \(model not kept\)"):
        _ = found.runs[1].run.model


def test_the_best_run_of_each_model_and_task(make_run, tmp_path):
    make_run("tf-nd", folder="sweep/a")
    make_run("tf-nd", folder="sweep/b", seed=1)  # worse than a
    make_run("tf-nd", folder="sweep/c", seed=2, lengths=(6, 20))
    make_run("tf-nd-2", folder="sweep/d", seed=3)
    found = study(tmp_path / "sweep", samples=1)
    assert [studied.run.name for studied in found.best] == ["a", "c", "d"]
    data = page_data(found)
    assert [run["language"] for run in data["runs"]] == [
        f"dyck, 6 to {longest} symbols" for longest in (12, 12, 20, 12)
    ]
    assert [run["best"] for run in data["runs"]] == [True, False, True, False]
    assert [tile[0] for tile in data["tiles"][1:]] == ["Best on dyck, 6 to 12 symbols", "Best on dyck, 6 to 20 symbols"]


def test_many_models_have_one_string_each(make_run, tmp_path, capsys):
    models = ("tf-nd", "tf-nd-2", "tf-sup", "tf", "lstm-sup")
    for model in models[:4]:
        make_run(model, folder=f"sweep/{model}")
    few = study(tmp_path / "sweep", samples=2)
    assert few.omitted == ""
    assert {len(studied.strings) for studied in few.best} == {2}
    make_run(models[4], folder=f"sweep/{models[4]}")
    assert main(["analyse", str(tmp_path / "sweep"), "--samples", "3"]) == 0
    data = data_of((tmp_path / "sweep/analysis/report.html").read_text())
    assert [len(run["strings"]) for run in data["runs"]] == [1] * 5
    assert all(len(run["test"]["model"]) == 5 for run in data["runs"])  # lengths 6, 8, ..., 14
    printed = " ".join(capsys.readouterr().out.split())
    for text in (data["lede"], printed):
        assert "5 models, more than 4, so only the first of 3 strings is shown for each" in text


def test_errors_name_the_run_and_its_language(make_run, tmp_path, capsys):
    make_run("tf-nd", folder="sweep/a")
    make_run("tf-nd", "unmarked-reversal", folder="sweep/b")
    assert main(["analyse", str(tmp_path / "sweep"), "--string", "()"]) == 2
    printed = capsys.readouterr().err
    assert "--string: expected the symbols 0 1, got '(' as symbol 1 of the string (run b, unmarked-reversal)" in printed


def test_languages_without_a_real_stack(make_run, capsys):
    folder = make_run("tf-sup", "hardest-cfl", lengths=(12, 16))
    assert main(["analyse", str(folder), "--samples", "1", "--no-figures"]) == 0
    assert "Empty for hardest-cfl: the top of a real stack is known for" in capsys.readouterr().out
    assert "Empty for hardest-cfl" in data_of((folder / "analysis/report.html").read_text())["tableNote"]
    assert study(make_run(folder="dyck"), samples=1).without_real_stack == ""


def test_saved_results_are_used_if_they_belong_to_the_model(make_run):
    folder = make_run()
    row = {"length": 6, "cross_entropy": 1.5, "lower_bound": 1.0, "difference": 0.5, "difference_from_floor": 0.25}
    saved = {"model": TrainingRun(folder).model_checksum(), "seed": 0, "per_length": 5, "lengths": [row]}
    (folder / "test.json").write_text(json.dumps(saved))
    data = page_data(study(folder, samples=1))
    assert data["runs"][0]["test"] == {
        "model": [[6, 1.5]], "entropy": [[6, 1.0]], "perfect": [[6, 1.25]], "longest": 12, "strings": 5
    }  # fmt: skip
    (folder / "test.json").write_text(json.dumps({**saved, "model": "another"}))
    assert len(page_data(study(folder, samples=1))["runs"][0]["test"]["model"]) == 5


def test_a_large_page_omits_states_and_symbols(make_run, tmp_path, monkeypatch):
    import stackattn.analysis.report as module

    found = study(make_run(), samples=1)
    full = len(write_report(found, tmp_path / "full.html").read_bytes())
    monkeypatch.setattr(module, "LIMIT", full - 1)
    small = write_report(found, tmp_path / "small.html").read_text()
    assert len(small) < full
    assert "split" not in data_of(small)["runs"][0]["strings"][0]["stacks"][0]
    monkeypatch.setattr(module, "LIMIT", 1000)
    with pytest.raises(ValueError, match="use fewer or shorter strings"):
        write_report(found, tmp_path / "none.html")


def test_the_report_shows_its_command(make_run, tmp_path, monkeypatch):
    import shlex

    make_run("tf-both")
    monkeypatch.chdir(tmp_path)
    given = ["analyse", "run", "--string", "[()]", "--string", "()", "--stack", "2", "--out", "o u", "--seed", "7"]
    assert main([*given, "--no-figures"]) == 0
    page = (tmp_path / "o u/report.html").read_text()
    program, *again = shlex.split(data_of(page)["made"].split(": ", 1)[1])
    assert program == "stackattn"
    assert {"--string=[()]", "--string=()", "--stack", "2", "o u", "7", "--no-figures"} < set(again)
    assert main(again) == 0
    assert (tmp_path / "o u/report.html").read_text() == page
    assert data_of(render(page_data(study("run", seed=7))))["made"].endswith("seed 7, from run")


def test_strings_with_unseen_lengths(make_run, tmp_path):
    strings = ["--string", "()", "--string", "(" * 60 + ")" * 60]
    assert main(["analyse", str(make_run("tf-sup")), "--no-figures", *strings]) == 0
    data = data_of((tmp_path / "run/analysis/report.html").read_text())
    longest = data["runs"][0]["strings"][1]
    assert (longest["seenLength"], longest["inLanguage"], longest["lengths"][1]) == (False, True, 120)


DAMAGES = {
    "config": ("config.json", "{", "config.json, line 1"),
    "metrics": ("metrics.jsonl", '{"epoch": 1}\n', "metrics.jsonl, line 1: missing key 'evaluation'"),
    "json": ("metrics.jsonl", "{\n", "metrics.jsonl"),
    "test": ("test.json", '{"lengths": []}', "test.json: missing key 'per_length'"),
    "result": ("result.json", "{}", "result.json: missing key 'stopped'"),
    "model": ("best/config.json", "{}", "best"),
}


def damage(folder, name):
    path, text, _ = DAMAGES[name]
    if name == "test":
        text = json.dumps({"model": TrainingRun(folder).model_checksum(), **json.loads(text)})
    (folder / path).write_text(text)


def test_damaged_runs_are_reported_and_the_others_analysed(make_run, tmp_path, capsys):
    make_run("tf-sup", folder="sweep/good")
    for name in DAMAGES:
        damage(make_run("tf-sup", folder=f"sweep/{name}"), name)
    assert main(["analyse", str(tmp_path / "sweep"), "--samples", "1"]) == 1
    printed = capsys.readouterr()
    for name, (_, _, message) in DAMAGES.items():
        (line,) = (line for line in printed.err.splitlines() if f"skipped run {name}: " in line)
        assert message in line
    assert "good" in printed.out
    data = data_of((tmp_path / "sweep/analysis/report.html").read_text())
    assert [run["name"] for run in data["runs"]] == ["good"]
    assert all(name in data["lede"] for name in DAMAGES)


def test_only_damaged_runs(make_run, tmp_path, capsys):
    for name in ("config", "model"):
        damage(make_run(folder=f"sweep/{name}"), name)
        assert main(["analyse", str(tmp_path / "sweep" / name)]) == 2
        assert DAMAGES[name][2] in capsys.readouterr().err
    assert main(["analyse", str(tmp_path / "sweep")]) == 2
    assert "expected readable runs, found none (2 damaged); config: " in capsys.readouterr().err


def test_each_string_is_traced_once(make_run, tmp_path, monkeypatch):
    import stackattn.analysis.strings as strings
    from stackattn.analysis import loaded_runs

    calls = {"load": 0, "trace_forward": 0}

    def count(module, name):
        function = getattr(module, name)

        def counted(*args):
            calls[name] += 1
            return function(*args)

        monkeypatch.setattr(module, name, counted)

    count(loaded_runs, "load")
    count(strings, "trace_forward")
    assert main(["analyse", str(make_run("tf-sup")), "--string", "()"]) == 0
    assert calls == {"load": 1, "trace_forward": 1}
