"""Names of the paper's models: labels in text, slugs in paths and options."""

LABELS = {
    "lstm": "LSTM",
    "lstm-sup": "LSTM+Sup",
    "lstm-nd": "LSTM+Nd",
    "tf": "Tf",
    "tf-sup": "Tf+Sup",
    "tf-nd": "Tf+Nd",
}
"""Label of each model by its slug, in the order of the paper's tables."""

SLUGS = {label: slug for slug, label in LABELS.items()}
"""Slug of each model by its label."""

STACKS_ALONE = {"sup": "Sup alone", "nd": "Nd alone"}
"""Labels of models that are not in the paper: one stack layer without positions, and no softmax attention."""

ALL_LABELS = {**LABELS, **STACKS_ALONE}
"""Label of every model by its slug."""

TRANSFORMERS = ("tf", "tf-sup", "tf-nd")
"""Slugs of the models that the paper uses on every task."""
