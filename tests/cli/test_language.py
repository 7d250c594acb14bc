"""`stackattn language`, run in this process."""

import io
import json
import math

import numpy as np
import pytest

from stackattn.cli import main
from stackattn.files import locked
from stackattn.languages import Dataset, dyck, get_language


@pytest.fixture
def run(capsys):
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["language", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_list_names_every_language_and_its_parameters(run):
    code, out, _ = run("list")
    assert code == 0
    for name in ("marked-reversal", "dyck", "hardest-cfl", "count-3"):
        assert f"\n{name}\n" in f"\n{out}"
    assert "k=2, mean_splits=1, mean_depth=40, variant=plain" in out


def test_sample(run, tmp_path):
    code, out, _ = run("sample", "dyck", "-n", "4", "--lengths", "9", "12", "--seed", "5", "--set", "k=3")
    strings = out.splitlines()
    assert code == 0
    assert len(strings) == 4
    assert dyck(k=3).contains(strings).all()
    assert {len(w.split()) for w in strings} <= {10, 12}
    assert run("sample", "dyck", "-n", "4", "--lengths", "9", "12", "--seed", "5", "--set", "k=3")[1] == out
    assert run("sample", "dyck", "-n", "4", "--lengths", "9", "12", "--seed", "6", "--set", "k=3")[1] != out
    run("sample", "dyck", "--length", "8", "-n", "2", "--out", str(tmp_path / "new" / "s.txt"))
    assert [len(w.split()) for w in (tmp_path / "new" / "s.txt").read_text().splitlines()] == [8, 8]


def test_score(run, tmp_path, monkeypatch):
    path = tmp_path / "strings.txt"
    path.write_text("( )\n( [ ] )\n( ]\n( x )\n\n")
    code, out, err = run("score", "dyck", str(path))
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines()[1:]]
    assert [row[2] for row in rows] == ["( )", "( [ ] )", "( ]", "( x )", ""]
    grammar = dyck()
    strings = path.read_text().splitlines()
    np.testing.assert_allclose([float(row[0]) for row in rows], grammar.log_prob(strings), rtol=1e-10)
    np.testing.assert_allclose([float(row[1]) for row in rows], grammar.log_prob_given_length(strings), rtol=1e-10)
    expected = -grammar.log_prob_given_length(strings[:2]).sum() / 8
    assert f"2 of 5 strings are in the language dyck; -ln p(w | length) is {expected:.6f} per symbol" in err
    assert "line 4 has 'x', which is not one of the symbols ( ) [ ]" in err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"0 # 0\n")))
    code, out, _ = run("score", "marked-copy", "-", "--out", str(tmp_path / "scores.tsv"))
    assert out == f"written to {tmp_path / 'scores.tsv'}\n"
    assert (tmp_path / "scores.tsv").read_text().splitlines()[1] == f"-\t{-math.log(2):.12g}\t0 # 0"


def test_show(run):
    code, out, _ = run("show", "dyck", "--lengths", "2", "20", "--parse", "( )", "--after", "(")
    assert code == 0
    for line in (
        "symbols: ( ) [ ]",
        "unambiguous: yes",
        "    S -> S T [1/2] | T [1/2]",
        "10 valid lengths in 2..20: 2 4 .. 20",
        f"     2  {dyck().length_log_prob(2):12.6f}  {math.log(2):.6f} (exact) ({math.log(2) / 3:.6f})",
        "(S (T -LRB- -RRB-))",
        "    └── )",
    ):
        assert line in out.splitlines()
    chances = [float(line.split()[1]) for line in out.splitlines()[-5:]]
    np.testing.assert_allclose(chances, dyck().next_symbol_distribution("(", (2, 20)), atol=1e-6)
    code, out, _ = run("show", "padded-reversal", "--length", "10", "--samples", "50", "--set", "variant=published")
    assert "(estimate)" in out
    assert "start: Root" in out
    code, out, _ = run("show", "count-3", "--lengths", "1", "9", "--all")
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["3", "6", "9"]


def test_show_a_grammar_file_with_no_strings_in_range(run, tmp_path):
    path = tmp_path / "even.grammar"
    path.write_text("S -> 'a' 'a' S [0.5] | [0.5]\n")
    code, out, _ = run("show", str(path), "--length", "3")
    assert code == 0
    assert "language: even" in out
    assert "0 valid lengths in 3..3\n" in out


def test_write(run, tmp_path):
    words = [
        "write",
        "dyck",
        str(tmp_path / "data"),
        "--seed",
        "4",
        "--lengths",
        "4",
        "10",
        "--test-lengths",
        "4",
        "12",
    ]
    words += ["--train-batches", "6", "--validation-batches", "2", "--batch-size", "5", "--test-per-length", "3"]
    words += ["--set", "variant=published"]
    code, out, _ = run(*words)
    assert code == 0
    train, validation, test = (Dataset.load(tmp_path / "data" / name) for name in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (30, 10, 15)
    assert f"validation.txt: 10 strings, lower bound {validation.lower_bound():.6f}" in out
    assert train.about == {"set": "training", "seed": 4}
    assert test.about == {"set": "test", "seed": 0}
    scores = get_language("dyck", variant="published").log_prob_given_length(train.strings)
    np.testing.assert_allclose(train.log_probs, scores, atol=1e-12)
    assert json.loads((tmp_path / "data" / "test.json").read_text())["num_valid_lengths"] == 5
    before = (tmp_path / "data" / "train.txt").read_bytes()
    code, _, err = run(*words)
    assert code == 2
    assert "train.txt already exists; pass --force to replace it" in err
    assert run(*words, "--force")[0] == 0
    assert (tmp_path / "data" / "train.txt").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "dyk"], ", got 'dyk'; did you mean 'dyck'?"),
        (["sample", "chess"], "LANGUAGE: expected a grammar file or one of marked-reversal, "),
        (["sample", "dyck", "--length", "-1"], "--length: expected at least 0, got -1"),
        (["sample", "dyck", "--length", "7"], "--length: dyck has no strings of length 7"),
        (["sample", "dyck", "--lengths", "9", "3"], "--lengths: expected 0 <= SHORTEST <= LONGEST, got 9 3"),
        (["sample", "dyck", "-n", "-1"], "-n: expected at least 0, got -1"),
        (["sample", "dyck", "--set", "k"], "--set: expected NAME=VALUE, got 'k'"),
        (["sample", "dyck", "--set", "k=1.5"], "--set: k: expected an integer, got 1.5"),
        (["sample", "dyck", "--set", "k=0"], "--set: k: expected at least 1, got 0"),
        (
            ["sample", "dyck", "--set", "deep=3"],
            "--set: parameters of dyck: expected one of k, mean_splits, mean_depth, variant, got 'deep'",
        ),
        (["score", "dyck", "/no/such/file"], "/no/such/file: no such file; there is no folder /no/such\n"),
        (["score", "dyck", "/no-such-file"], "/no-such-file: no such file; the current folder is "),
        (["score", "dyck", "/"], "/: is a directory\n"),
        (
            ["show", "no/such.grammar"],
            "no/such.grammar: no such file; expected a grammar file or a name listed by `stackattn language list`\n",
        ),
        (
            ["sample", "/"],
            "/: expected a grammar file or a name listed by `stackattn language list`, found a folder\n",
        ),
        (["show", "dyck", "--parse", "( ]"], "--parse: expected a string of the language dyck, got '( ]'"),
        (["show", "count-3", "--parse", "a b c"], "--parse: expected a language with a grammar, got count-3"),
        (
            ["show", "dyck", "--after", ") ("],
            "--after: expected a prefix with a probability above 0 for lengths 40 to 80, got ') ('\n",
        ),
        (
            ["show", "dyck", "--after", "( x"],
            "--after: expected the symbols ( ) [ ], got 'x' as symbol 2 of the string",
        ),
        (["show", "dyck", "--length", "3", "--after", "("], "--length: dyck has no strings of length 3"),
        (["show", "hardest-cfl", "--length", "9", "--samples", "1"], "--samples: expected at least 2, got 1"),
        (["write", "dyck", "out", "--seed", "1", "--lengths", "3", "3"], "--lengths: dyck has no strings of length 3"),
        (
            ["write", "dyck", "out", "--seed", "1", "--train-batches", "1", "--test-lengths", "3", "3"],
            "--test-lengths: dyck has no strings of length 3",
        ),
        (["sample", "dyck", "--length", "10000000000000"], "--length: expected at most 10,000, got 10000000000000"),
        (["show", "count-3", "--lengths", "3", "99999999999"], "--lengths: expected at most 10,000, got 99999999999"),
        (["sample", "count-3", "--length", "3", "-n", "99999999999999"], "not enough memory: "),
    ],
)
def test_errors_are_one_line_and_exit_code_2(run, words, message):
    code, _, err = run(*words)
    assert code == 2
    assert message in err
    assert err.startswith(f"stackattn language {words[0]}: ")
    assert len(err.splitlines()) == 1


def test_a_file_in_place_of_a_folder(run, tmp_path):
    (tmp_path / "taken").touch()
    code, _, err = run("write", "dyck", str(tmp_path / "taken"), "--seed", "0", "--train-batches", "1")
    assert code == 2
    assert err.endswith(f"FOLDER: expected a folder, got the file {tmp_path / 'taken'}\n")


def test_a_missing_file_with_a_similar_name_is_suggested(run, tmp_path):
    (tmp_path / "strings.txt").touch()
    err = run("score", "dyck", str(tmp_path / "string.txt"))[2]
    assert err.endswith(f"string.txt: no such file; did you mean '{tmp_path / 'strings.txt'}'?\n")


def test_grammar_files_and_their_errors(run, tmp_path):
    path = tmp_path / "g.grammar"
    path.write_text("S -> 'a' S [0.5] | 'b' [0.6]\n")
    assert run("sample", str(path), "--length", "3", "-n", "1")[1] == "a a b\n"
    code, _, err = run("sample", str(path), "--length", "3", "--strict")
    assert code == 2
    assert "line 1: expected the weights of 'S' to sum to 1 (strict), got 1.1" in err
    assert "a grammar file has no parameters" in run("sample", str(path), "--set", "k=3")[2]
    path.write_text("S -> 'a' T\n")
    code, _, err = run("show", str(path))
    assert code == 2
    assert "g.grammar, line 1: nonterminal 'T' has no rule" in err


def test_usage_errors_come_from_argparse(run, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["language", "write", "dyck", "out"])
    assert exit_.value.code == 2
    assert "--seed" in capsys.readouterr().err


def test_write_locks_its_folder(run, tmp_path):
    words = ["write", "dyck", str(tmp_path), "--seed", "1", "--lengths", "4", "6", "--test-lengths", "4", "6"]
    words += ["--train-batches", "2", "--validation-batches", "1", "--test-per-length", "1"]
    with locked(tmp_path, tmp_path / ".lock", temporary=True):
        code, _, err = run(*words)
    assert code == 2
    assert f"{tmp_path}: another process is writing to this folder" in err
    assert list(tmp_path.iterdir()) == []
    assert run(*words)[0] == 0
    assert len(list(tmp_path.iterdir())) == 6  # and no lock file
