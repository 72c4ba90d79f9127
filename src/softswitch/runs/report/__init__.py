"""A run's report: one HTML file that opens offline."""

from softswitch.runs.report.page import write_report

__all__ = ["write_report"]
