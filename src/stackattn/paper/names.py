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

LIMITED = {
    "sup-d32": "Sup alone, depth 32",
    "nd-w32": "Nd alone, window 32",
    "nd-w64": "Nd alone, window 64",
    "tf-sup-d32": "Tf+Sup, depth 32",
    "tf-nd-w32": "Tf+Nd, window 32",
    "tf-sup-d64": "Tf+Sup, depth 64",
    "tf-nd-w64": "Tf+Nd, window 64",
}
"""Labels of models whose stacks have a limited depth or a window. Each slug begins with that of the exact model."""

CONTROLS = {"tf-xavier": "Tf, Xavier layer"}
"""Labels of models that are not in the paper: Tf with one softmax layer that is initialised like a stack layer."""

ALL_LABELS = {**LABELS, **STACKS_ALONE, **LIMITED, **CONTROLS}
"""Labels of all models."""

TRANSFORMERS = ("tf", "tf-sup", "tf-nd")
"""Slugs of the models that the paper uses on every task."""
