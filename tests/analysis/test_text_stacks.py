"""What stacks read on treebank sentences, compared with loops over the traces."""

import itertools
import json
import math

import pytest
import torch

from stackattn.analysis import trace_stacks
from stackattn.analysis.text_stacks import (
    AS_TEXT,
    NEAR,
    READ,
    distance_names,
    measure_text_stacks,
    tag_sentences,
    text_stack_tables,
)
from stackattn.cli import main
from stackattn.models import TransformerLM, TransformerLMConfig, save
from stackattn.nn import StackAttention
from stackattn.text.relations import BETWEEN, SUBJECT_VERB
from stackattn.text.trees import parse_trees
from stackattn.text.vocabulary import Vocabulary

TREES = """
( (S (NP-SBJ (NP (DT the) (NNS keys)) (PP (IN to) (NP (DT the) (NN door)))) (VP (VBP fit)) (. .)) )
( (S (NP-SBJ (PRP it)) (VP (VBZ is) (-LRB- -LRB-) (ADVP (RB now)) (-RRB- -RRB-) (NP (DT the) (NN end))) (. .)) )
( (S (NP-SBJ (NN end)) (VP (VBZ is) (ADVP (RB now))) (. .)) )
( (NN single) )
""".strip().split("\n")
WORDS = ("<unk>", "the", "keys", "to", "door", "fit", "it", "is", "now", "end", ".", "(", ")")
VOCABULARY = Vocabulary(WORDS, unknown="<unk>")


def model_of(layers):
    torch.manual_seed(0)
    sizes = {"input_size": VOCABULARY.input_size, "output_size": VOCABULARY.output_size}
    return TransformerLM(TransformerLMConfig(**sizes, layers=layers, d_model=16, heads=2))


def sentences(number=None):
    return tag_sentences(parse_trees(TREES, "here"), VOCABULARY, number)


def test_words_are_written_as_in_the_vocabulary():
    first, second, third = sentences()  # sentences of a single word are omitted
    assert [WORDS[i] for i in second.ids] == ["it", "is", "(", "now", ")", "the", "end", "."]
    assert third.classes == ["noun", "verb", "adverb", "punctuation"]
    assert [related.relation for related in first.related] == [SUBJECT_VERB, BETWEEN]
    assert len(sentences(2)) == 2
    treebank = Vocabulary((*WORDS, "-LRB-"), unknown="<unk>")
    ids = tag_sentences(parse_trees(TREES, "here"), treebank)[1].ids
    assert [treebank.types[i] for i in ids][2:5:2] == ["-LRB-", ")"]
    assert set(AS_TEXT.values()) >= {"(", ")", '"'}


@pytest.mark.parametrize("layers", ["1.superposition-4.1", "nondeterministic-2-2-3", "2.stratified-4"])
def test_measurements_agree_with_loops_over_the_traces(layers):
    model, tagged = model_of(layers).double(), sentences()
    (found,) = measure_text_stacks(model, VOCABULARY, tagged)
    tops = []
    for sentence in tagged:
        (trace,) = trace_stacks(model, torch.tensor([[VOCABULARY.bos, *sentence.ids]]))
        tops.append(trace.tops()[0].tolist())
    steps = sum(map(len, tops))

    at_distance: dict[int, list[float]] = {}
    for rows in tops:
        for t, row in enumerate(rows):
            for i in range(t + 1):
                at_distance.setdefault(t - i, []).append(row[i + 1])
    mean = {distance: sum(values) / len(values) for distance, values in at_distance.items()}
    ranges = [-1, *NEAR, math.inf]
    expected = [
        sum(sum(values) for distance, values in at_distance.items() if low < distance <= high) / steps
        for low, high in itertools.pairwise(ranges)
    ]
    assert found.distances == pytest.approx(expected)
    assert found.empty == pytest.approx(sum(row[0] for rows in tops for row in rows) / steps)
    assert found.empty + sum(found.distances) == pytest.approx(1)

    after: dict[tuple[str, str], list[float]] = {}
    for sentence, rows in zip(tagged, tops, strict=True):
        classes = ["BOS", *sentence.classes]
        for t, row in enumerate(rows):
            for i in range(t + 1):
                sums = after.setdefault((classes[t], classes[i]), [0.0, 0.0])
                sums[0] += row[i + 1] / steps
                sums[1] += mean[t - i] / steps
    for kind in READ:
        for top in READ:
            compared = found.after[kind][top]
            assert [compared.weight, compared.expected] == pytest.approx(after.get((kind, top), [0, 0]))
        by_top = [sum(after.get((other, kind), [0, 0])[i] for other in READ) for i in range(2)]
        assert [found.classes[kind].weight, found.classes[kind].expected] == pytest.approx(by_top)

    apart = found.relations[f"{SUBJECT_VERB}, apart"]  # "keys" is read at step 2, "fit" is predicted at step 5
    assert (apart.cases, apart.weight) == (1, pytest.approx(tops[0][5][3]))
    assert apart.expected == pytest.approx(mean[3])
    assert apart.first == (tops[0][5][3] >= max(tops[0][5][1:]))
    adjacent = found.relations[f"{SUBJECT_VERB}, adjacent"]  # "it" and "end", both read at step 1
    assert adjacent.cases == 2
    assert adjacent.weight == pytest.approx((tops[1][1][2] + tops[2][1][2]) / 2)
    assert found.relations[BETWEEN].weight == pytest.approx(tops[0][5][6])
    assert found.relations["bracket"].weight == pytest.approx(tops[1][4][4])


def test_a_stack_that_only_pushes_reads_the_last_word(monkeypatch):
    model = model_of("superposition-4")
    (layer,) = [x for x in model.modules() if isinstance(x, StackAttention)]
    push = torch.tensor([1.0, 0.0, 0.0])
    monkeypatch.setattr(layer, "actions", lambda x, *_: (push.expand(*x.shape[:2], 3),))
    (found,) = measure_text_stacks(model, VOCABULARY, sentences())
    assert found.distances == pytest.approx([1, 0, 0, 0, 0, 0, 0])
    assert all(compared.ratio == pytest.approx(1) for compared in found.classes.values() if compared.expected)
    assert [found.relations[f"{SUBJECT_VERB}, {x}"].first for x in ("adjacent", "apart")] == [1, 0]


def test_names_of_the_ranges_of_distances():
    assert distance_names() == ["0", "1", "2", "3-4", "5-8", "9-16", "17+"]


def test_the_command_writes_tables_figures_and_json(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    save(model_of("1.superposition-4.nondeterministic-2-2-3"), tmp_path / "model")
    VOCABULARY.save(tmp_path / "model")
    (tmp_path / "trees.mrg").write_text("\n".join(TREES))
    out = tmp_path / "out"
    assert (
        main(["lm", "stacks", "--model", str(tmp_path / "model"), str(tmp_path / "trees.mrg"), "--out", str(out)]) == 0
    )
    assert "| noun between subject and verb | 1 |" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        "stacks.md", "stacks.json", "layer-2.svg", "layer-2.png", "layer-3.svg", "layer-3.png"
    }  # fmt: skip
    assert [stack["name"] for stack in json.loads((out / "stacks.json").read_text())["stacks"]] == [
        "layer 2",
        "layer 3",
    ]
    assert (out / "stacks.md").read_text().count("| bracket | 1 |") == 2


def test_errors():
    with pytest.raises(ValueError, match="expected a model with at least one stack attention layer"):
        measure_text_stacks(model_of(1), VOCABULARY, sentences())
    with pytest.raises(ValueError, match="expected at least one sentence of 2 to 60 words, found none"):
        tag_sentences(parse_trees(TREES[-1:], "here"), VOCABULARY)
    with pytest.raises(ValueError, match=r"with a vocabulary of words, .*, got one with SentencePiece pieces"):
        tag_sentences([], Vocabulary(WORDS, "<unk>", b"model"))


def test_tables_have_a_row_for_each_class():
    (found,) = measure_text_stacks(model_of("superposition-4"), VOCABULARY, sentences())
    text = text_stack_tables(found)
    assert all(f"| {kind} |" in text for kind in READ)
    assert "3 sentences, 22 steps" in text
