"""The page: the pairs and syphons of this host in a browser, shown and steered (docs/page.md).

`core` decides what is shown. `live`, `ledger_tail` and `jobs` ask the hosts, other pages, the
ledger and commands; `live`, `documents`, `actions` and `app` answer HTTP requests. `static` is what
the browser loads.
"""
