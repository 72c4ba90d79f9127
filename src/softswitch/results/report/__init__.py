"""The report of a run: one HTML file that opens offline."""

from softswitch.results.report.page import write_report

__all__ = ["write_report"]
