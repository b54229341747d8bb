"""The claims of the five papers, each as a study that one command repeats: `trimtab reproduce ID`.

verdicts   the statistical rules, fixed in advance     claim     a claim as one definition
scales     smoke, laptop, desk, paper                  nets      networks and sets that claims share
bench      the tools of a study                        methods   versions of measuring methods
conditions, corruption   shared by several claims      engines   units of work, local or on Ray
result     rows and judgements of a claim              ledger    results on disk
power      detectable effects, bootstrap               page      the ledger as a page
mix adv apa ada lig   the claims, a file for each paper
"""

from trimtab.claims.claim import Claim, chosen, everything
from trimtab.claims.scales import NAMES, Scale, scale_of
from trimtab.claims.verdicts import Above, Close, Needs, ordered

__all__ = [
    "NAMES",
    "Above",
    "Claim",
    "Close",
    "Needs",
    "Scale",
    "chosen",
    "everything",
    "ordered",
    "scale_of",
]
