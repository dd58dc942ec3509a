"""Pages of docs/ and of README.md whose numbers are rendered from committed rows."""
