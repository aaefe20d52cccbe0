"""Tables, pictures and, with the search, the HTML report."""

from autodropout.report.masks import draw_masks

__all__ = ["draw_masks"]
