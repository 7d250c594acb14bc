"""Text: corpora prepared from raw files, vocabularies, and batches of about as many tokens each."""
