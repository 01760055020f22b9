"""Draw figures and tables, and render them on an HTML page."""
