"""What the studies found, as docs/results.md tells it: every table and figure there is made from their JSON files.

`ptb.py` and `cifar.py` say what the part of each study consists of; `proxies.py`, `searches.py` and `tables.py` tell of
its stages, in their order; `figures.py` draws; `page.py` puts a part into the page.
"""
