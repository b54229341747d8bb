"""Rendering of results: tables, charts, and one self-contained page.

tables     scorecards and comparisons, with intervals     sentences  the verdict, and what flags mean
advice     what would help this model, as measured        plots      altair charts from plain numbers
pictures   images as PNG: strips, grids                   charts     which charts a card calls for
page       the HTML file, from templates/                 gather     audit, trials and examples for it
panel      accuracy and predictions at every position of the knobs
"""

from trimtab.report import pictures, plots
from trimtab.report.advice import Advice, advice
from trimtab.report.gather import gather
from trimtab.report.page import Extras, page
from trimtab.report.panel import Panel, stored_panel
from trimtab.report.pictures import Gallery, Picture
from trimtab.report.sentences import verdict
from trimtab.report.tables import Table, comparison

__all__ = [
    "Advice", "Extras", "Gallery", "Panel", "Picture", "Table", "advice", "comparison", "gather", "page",
    "pictures", "plots", "stored_panel", "verdict",
]  # fmt: skip
