"""Drills: random faults and random inputs, many times, against the promises of docs/reliability.md.

Modules:

    drill            what a drill is, and how one is run
    grammars         random and damaged grammars
    configurations   damaged YAML configurations
    operators        random calls of the operators, compared with the reference
    mutations        damaged files of runs, models, data sets and corpora
    interruptions    signals during training
    writers          several processes that write to one folder
    full_disk        training on a disk that becomes full
    workers          killed processes under torchrun and on a Ray cluster
    samples          small runs, corpora and models that the drills damage
"""
