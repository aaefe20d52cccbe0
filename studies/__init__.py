"""Studies: how the evidence of docs/results.md was made. (`benchmarks/` has scripts of one run each, mostly timings.)

A study trains many small networks, its children, under policies and under classical methods, and asks one question
after the other: where does regularization pay at all, which short training is worth searching with, what does a search
find in it, is that still good with new seeds, and what is it worth beside tuned classical methods in the end? Each
question is a stage, and a stage is a command, from the root of the repository (`PYTHONPATH=src` where autodropout is
not installed):

    python -m studies.ptb STAGES             language models on Penn Treebank; `--help` lists its stages
    python -m studies.cifar STAGES           the same questions, of images: CIFAR-10 with 4,000 labels
    python -m studies.digits STAGES          the same of a problem so small that two CPU cores will do
    python -m studies.multi30k               a translator with the policies of Penn Treebank
    python -m studies.found_policies STUDY   the policies of a final table as files of the package; of ptb or cifar
    python -m studies.ptb.table              all trials on Penn Treebank as one Parquet file
    python -m studies.simulate               searches replayed on that table
    python -m studies.ptb.twins              whether children with one seed stay the same, to the bit
    python -m studies.report STUDY           docs/results-STUDY.md and its figures, from the JSON files of all these

All stages of a study take the same options. Each that trains keeps a journal (`autodropout.tables.Journal`) in
`--folder` and goes on where it was: it ends by itself when the next job would not fit into `--minutes`, with exit code
3, and the same command again does the rest. Carried from machine to machine, the journals are all there is: tables are
computed from them alone, printed, and written as JSON beside them; a command that finds nothing left to train does so
anywhere. Several stages of one command share a process, hence what was compiled. `--smoke` shows on a CPU that a stage
runs. Stages need torch and numpy, that of the search Optuna for TPE, and no database.

Where to read: `pieces.py` (children, crowds of them, the journal), then the stages that all studies have, in their
order: `candidates.py`, `proxy.py`, `search.py`, `finalists.py`, `honest.py`. What is trained is said by `ptb/study.py`,
and by `cifar/study.py` and `digits/study.py` on top of `images.py`; `__main__.py` beside them has the stages, and
`report/` makes the page.
"""
