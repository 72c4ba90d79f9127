"""Problems whose optimum is published, solved with everything chosen automatically: python -m benchmarks.optima."""
