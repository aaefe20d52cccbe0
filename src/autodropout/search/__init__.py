"""HOW a search runs: ledger, two queues, engines, resume. Needs no torch."""
