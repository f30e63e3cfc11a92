"""The page: this host's pairs and syphons in a browser, shown and steered (docs/observability.md).

`core` decides what is shown. `live`, `ledger_tail` and `jobs` ask the hosts, other pages, the
ledger and commands; `live`, `documents`, `actions` and `app` answer HTTP requests. `static` is what
the browser loads.
"""
