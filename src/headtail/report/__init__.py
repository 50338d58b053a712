"""Results as one offline HTML page."""

from headtail.report.page import write_report

__all__ = ["write_report"]
