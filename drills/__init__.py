"""Drills: tests of the promises of docs/reliability.md with many random faults and inputs.

Modules:

    drill            what a drill is, and how one is run
    grammars         random and damaged grammars
    configurations   damaged YAML configurations
    operators        random calls to the operators, compared with the reference
    layers           random calls to readings, attention, dropout and LSTMs, compared with the formulas
    mutations        damaged files of runs, models, data sets and corpora
    interruptions    signals during training
    writers          several processes that write to one folder
    full_disk        training on a disk that becomes full
    workers          killed processes under torchrun and on a Ray cluster
    samples          small configurations and texts for the drills
"""
