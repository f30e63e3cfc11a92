"""One typed status document and its judgement; console, page and metrics render it. Pure."""
