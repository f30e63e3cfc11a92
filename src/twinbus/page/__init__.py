"""The page: the pairs and syphons of this host in a browser, shown and steered (docs/page.md).

`core` decides what is shown, `sources` ask the hosts, the ledger and other pages, `server` answers
HTTP requests, `static` is what the browser loads.
"""
