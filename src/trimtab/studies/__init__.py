"""The claims of the five papers, each as a study that one command repeats: `trimtab reproduce ID`.

verdicts   the rules, fixed beforehand                claim     a claim as one definition
scales     smoke, laptop, paper                       nets      networks and sets that studies share
bench      what a study may ask for                   methods   versions of what measured
conditions, corruption   what several studies measure   engines   units of work, here or on Ray
ledger     results on disk, judged                    page      the ledger to read
mix adv apa ada lig   the claims, a file for each paper
"""

from trimtab.studies.claim import Claim, chosen, everything
from trimtab.studies.scales import NAMES, Scale, scale_of
from trimtab.studies.verdicts import Above, Close, Needs, ordered

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
