"""What all HTML pages share: the page frame and SVG charts."""
