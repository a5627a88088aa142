"""Figures of a report as SVG: drawn inline in the page, and as files of their own."""
