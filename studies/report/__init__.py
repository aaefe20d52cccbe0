"""What the studies found, in tables and figures: docs/results-ptb.md and its like, made from the studies' JSON files.

`ptb.py` and `images.py` say what the page of a study consists of; `proxies.py`, `searches.py` and `tables.py` tell of
its stages, in their order; `figures.py` draws; `page.py` writes the page.
"""
