"""General utilities, independent of the optimisation problem: argument checks, files, text, tracing, plotting."""
