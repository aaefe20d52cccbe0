"""The study of Penn Treebank: a small Transformer-XL, a second of a GPU for each child of its search.

A job trains `--together` children at once (`LanguageTraining.fit_many`), and takes as long with fewer of them. Hence
all stages have crowds of 48, three methods' minibatches, which are compiled once, and numbers of children that fill
them. TPE, which `studies/simulate.py` had in front, came after the others, alone (`--methods tpe`). What it costs in
steps of one child, for S steps of a child of the search and 2 S or 4 S of a final one:

    proxy 330 S;  search 2,048 S;  finalists 290 S;  final table, of which length is tuned, 980 S to 1,260 S

and for each job 8 readings of the validation text, as long as 160 steps by estimate.
"""
