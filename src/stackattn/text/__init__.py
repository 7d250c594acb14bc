"""Text: tokenizers, batches, and the preparation of corpora from raw files.

Modules:

    corpus              prepared corpora: folder, report, fingerprint, verification
    monolingual_corpus  corpora for language models
    bitext_corpus       corpora for translation, and their preparation
    plain               preparing monolingual corpora from plain text
    penn_treebank       preparing monolingual corpora from the Penn Treebank
    trees               reading treebank files
    relations           word classes and related words of trees
    subject_verb        minimal pairs for subject-verb agreement
    bitext              reading and filtering pairs of sentences
    vocabulary          the tokenizer of monolingual corpora
    unknown             classes of unknown words
    pieces              the tokenizer of bitext
    byte_pairs          SentencePiece models
    batching            batches with a maximum number of tokens
    packing             rows that several documents share
    old_fingerprints    verification of corpora prepared by earlier versions
"""
