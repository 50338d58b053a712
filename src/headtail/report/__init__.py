"""Results as one offline HTML page, with charts, tables and sentences.

Everything here reads a finished `Comparison`; measuring belongs to `comparison`, and tables for the
terminal belong to `cli`. The page needs the extra `report` (jinja2); `plot`, a figure for a
notebook, needs `notebook` (plotly).
"""

from headtail.report.page import write_report
from headtail.report.plot import plot

__all__ = ["plot", "write_report"]
