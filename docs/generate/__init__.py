"""Tables, charts and pages of the README and the documentation, written from committed results.

    python -m docs.generate             write the README's and the pages' generated parts anew
    python -m docs.generate --measure   measure the README's first figure first (two minutes, needs CIFAR-10)

blocks     parts of a page between markers        claims     the ledger's files as rows
charts     charts as SVG and as HTML              figure     the README's first figure
notebooks  tutorials: run, and shown as pages     reference  pages of the Python API, commands and recipe keys
speed      benchmark results as rows              hooks      what MkDocs calls
"""
