"""What the studies found, as docs/results.md tells it: every table and figure there is made from their JSON files.

`ptb.py` and `images.py` say what the part of a study consists of; `proxies.py`, `searches.py` and `tables.py` tell of
its stages, in their order; `figures.py` draws; `page.py` puts a part into the page.
"""
