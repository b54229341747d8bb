"""Commands run as people type them, on a network of the zoo."""

from __future__ import annotations

import json

from trimtab.cli import main

MODEL = "zoo:sample-standard"


def run(capsys, *words):
    code = main(list(words))
    output = capsys.readouterr()
    return code, output.out, output.err


def as_json(capsys, *words, code=0):
    found, out, err = run(capsys, *words, "--json")
    assert found == code, err
    return json.loads(out)
