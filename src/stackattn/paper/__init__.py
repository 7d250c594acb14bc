"""Shipped configurations and presets; the experiments of the paper and our own.

Modules:

- `names`: labels and slugs of the paper's models
- `models`: sizes and parameter counts of the paper's models
- `configurations`: loads configurations by path or by the name of a shipped one (`configs/`), and applies presets
- `presets`: the options in which the published code differs from the paper
- `experiments`: which runs make up each figure and table, and how they are shown
- `cells`: the runs of one model on one task
- `figure_2`, `figure_3`, `table_2`, `table_3`: the paper's figures and tables, from the runs that exist
- `table_1`, `table_4`, `table_5`: tables that are counted or measured without runs
- our own experiments, from the runs that exist:
  - `validity`: length generalisation, also of stacks with a window or a limited depth
  - `sentences`: perplexity and subject-verb agreement of small language models
  - `documents`: perplexity and speed on long documents
  - `agreement`: how well stacks agree with real stacks
- `measurements`: measurements of best models that are stored with the runs
- `claims`: the claims of Section 6 and the rule that decides them
- `tables`: printing a table of results and writing it as Markdown, CSV and LaTeX
"""
