"""Pure: the keys of a pair, and the document that holds them."""
