"""Results as one offline HTML page, with charts, tables and sentences.

Everything here reads a finished `Comparison`; measuring belongs to `comparison`, and tables for the
terminal belong to `cli`. Needs the extra `report` (jinja2).
"""

from headtail.report.page import write_report

__all__ = ["write_report"]
