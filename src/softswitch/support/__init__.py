"""Utilities that know nothing about the problem: argument checks, files, text, tracing, plotting."""
