"""Pieces: separate pieces for each language, ids in the paper's order, and decoding as the inverse of encoding."""

import random
import shutil
import subprocess
from collections import Counter

import numpy as np
import pytest

from stackattn.text.pieces import PieceTokenizer, _processor, learn_pieces

GERMAN = ["der hund", "die katze", "das haus", "der baum", "und", "schläft", "grün"]
ENGLISH = ["the dog", "the cat", "the house", "the tree", "and", "sleeps", "green"]


def sentences(words, count=300, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, weights=range(len(words), 0, -1), k=draw.randint(1, 5))) for _ in range(count)]


SOURCE, TARGET = sentences(GERMAN), sentences(ENGLISH)


@pytest.fixture(scope="module")
def tokenizer():
    return learn_pieces(SOURCE, TARGET, 80, threshold=120)[0]


def pieces(tokenizer, side, text):
    return tokenizer._encoders[side].encode(text, out_type=str)


def test_order_of_the_vocabulary(tokenizer):
    """The order is target pieces, UNK, EOS, other pieces of the source, BOS, PAD; ids up to EOS can be predicted."""
    seen = [{p for text in texts for p in pieces(tokenizer, side, text)} for side, texts in enumerate((SOURCE, TARGET))]
    assert tokenizer.target_types == sorted(seen[1])
    only = sorted(seen[0] - seen[1])
    order = [*tokenizer.target_types, "UNK", "EOS", *only, "BOS", "PAD"]
    assert (tokenizer.unk, tokenizer.eos) == (order.index("UNK"), order.index("EOS"))
    assert (tokenizer.bos, tokenizer.pad) == (order.index("BOS"), order.index("PAD"))
    assert (tokenizer.input_size, tokenizer.output_size) == (len(order), order.index("EOS") + 1)
    assert len(only) > 5
    for text, tokens in zip(SOURCE, tokenizer.encode_source(SOURCE), strict=True):
        assert [order[i] for i in tokens] == pieces(tokenizer, 0, text)
    for text, tokens in zip(TARGET, tokenizer.encode_target(TARGET), strict=True):
        assert [order[i] for i in tokens] == pieces(tokenizer, 1, text)
        assert tokenizer.decode(tokens.tolist()) == text


def test_rare_pieces_are_split(tokenizer):
    """A language uses only pieces that occur at least 120 times in it, and single characters."""
    every = _processor(tokenizer.pieces_model)
    divided = 0
    for side, texts in enumerate((SOURCE, TARGET)):
        counts = Counter(p for text in texts for p in every.encode(text, out_type=str))
        often = {p for p, n in counts.items() if n >= 120}
        rare = {p for p in counts if p not in often and len(p) > 1}
        used = {p for text in texts for p in pieces(tokenizer, side, text)}
        assert often <= used
        assert all(len(p) == 1 for p in used - often)
        assert all("".join(pieces(tokenizer, side, p)).lstrip("▁") == p.lstrip("▁") for p in rare)
        divided += len(rare)
    assert divided > 3


def test_unseen_characters_are_unknown(tokenizer):
    (tokens,) = tokenizer.encode_source(["der hund Ω"])
    assert tokens.tolist()[-1] == tokenizer.unk
    (tokens,) = tokenizer.encode_target(["grün"])  # ü occurs only in the source and cannot be predicted
    assert tokenizer.unk in tokens.tolist()
    assert max(tokens) < tokenizer.output_size
    assert tokenizer.unk not in np.concatenate(tokenizer.encode_source(["grün"]))
    assert "⁇" in tokenizer.decode([tokenizer.unk])


def test_save_and_load_pieces(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = PieceTokenizer.load(tmp_path)
    for name in ("encode_source", "encode_target"):
        first, second = (getattr(x, name)([*SOURCE, *TARGET]) for x in (tokenizer, again))
        assert [x.tolist() for x in first] == [x.tolist() for x in second]
    assert (again.input_size, again.output_size) == (tokenizer.input_size, tokenizer.output_size)
    (tmp_path / "pieces.json").write_text('{"source": []}')
    with pytest.raises(ValueError, match=r"pieces.json: target: expected a list of pieces"):
        PieceTokenizer.load(tmp_path)
    (tmp_path / "pieces.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"pieces.json: no such file"):
        PieceTokenizer.load(tmp_path)


def test_error_of_a_damaged_model(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    (tmp_path / "pieces.model").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match=r"pieces.model: not a SentencePiece model"):
        PieceTokenizer.load(tmp_path)


def test_a_changed_model_is_refused(tokenizer, tmp_path):
    """SentencePiece does not detect every change; for example, it loads a truncated model, which splits differently."""
    tokenizer.save(tmp_path)
    other, _ = learn_pieces(sentences("ab"), sentences("cd"), 30, 1)
    (tmp_path / "pieces.model").write_bytes(other.pieces_model)
    with pytest.raises(ValueError, match=r"pieces\.model: damaged: the content does not match the checksum"):
        PieceTokenizer.load(tmp_path)


def test_learning_is_deterministic_and_limited_by_the_text():
    first, again = (learn_pieces(SOURCE, TARGET)[0] for _ in range(2))  # the text is too small for 32,000 pieces
    assert first.pieces_model == again.pieces_model
    assert (first.source_types, first.target_types) == (again.source_types, again.target_types)
    with pytest.raises(ValueError, match="size: expected at least 1 piece, got 0"):
        learn_pieces(SOURCE, TARGET, 0)


def test_too_few_pieces():
    with pytest.raises(ValueError, match=r"size: expected at least \d+ pieces, for the characters .*, got 3"):
        learn_pieces(SOURCE, TARGET, 3)


@pytest.mark.skipif(shutil.which("spm_encode") is None, reason="needs SentencePiece's command-line tools")
def test_equals_spm_encode(tokenizer, tmp_path):
    (tmp_path / "model").write_bytes(tokenizer.pieces_model)

    def encode(texts, *options):
        command = ["spm_encode", f"--model={tmp_path / 'model'}", *options]
        text = "".join(f"{line}\n" for line in texts)
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    for side, texts in enumerate((SOURCE, TARGET)):
        (tmp_path / "vocabulary").write_text(encode(texts, "--generate_vocabulary"))
        found = encode(texts, f"--vocabulary={tmp_path / 'vocabulary'}", "--vocabulary_threshold=120")
        assert found.splitlines() == [" ".join(pieces(tokenizer, side, text)) for text in texts]
