"""Tools that know nothing of the problem: checks, text, figures, lazy import, traced settings, files."""
