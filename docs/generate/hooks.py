"""What MkDocs calls while it builds the site: pages that are generated, equations, charts, and notebooks."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
for folder in (str(ROOT), str(ROOT / "src")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from docs.generate import claims as ledger  # noqa: E402
from docs.generate import notebooks, pages, reference  # noqa: E402


def on_startup(command: str, dirty: bool) -> None:
    """Keep what libraries warn about out of a strict build: it says nothing about the pages."""
    warnings.simplefilter("ignore")
    logging.getLogger("griffe").setLevel(logging.ERROR)


def on_config(config: Any) -> Any:
    """Add to the navigation the results that it does not name: a page, or a folder with one."""
    (results,) = (entry["Results"] for entry in config["nav"] if "Results" in entry)
    unfinished = ledger.edition() != "desk"
    results[:] = [
        {f"{t}, unfinished" if unfinished and "desk/" in p else t: p} for e in results for t, p in e.items()
    ]
    named = {path for entry in results for path in entry.values()}
    folder = ROOT / "docs" / "results"
    for path in sorted([*folder.glob("*.md"), *folder.glob("*/*.md")]):
        place = path.relative_to(ROOT / "docs").as_posix()
        if place not in named:
            heading = next(
                (line[2:] for line in path.read_text().splitlines() if line.startswith("# ")), path.stem
            )
            results.insert(-1, {heading: place})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and turn notebooks into pages."""
    for path, content in {**reference.pages(), **pages.pages()}.items():
        files.append(File.generated(config, path, content=content))
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            path = file.src_uri.replace(".ipynb", ".md")
            files.append(File.generated(config, path, content=notebooks.markdown(Path(file.abs_src_path))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to notebooks at the pages made of them, and fill in what the ledger says of a paper."""
    markdown = re.sub(r"<!-- ledger: (\w+) -->", lambda match: pages.verdicts_of(match.group(1)), markdown)
    return re.sub(r"(\]\([\w./-]+)\.ipynb\)", r"\1.md)", markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    r"""Show equations, \(...\) and \[...\], as MathML, and our SVG charts in the colors of the page."""

    def equation(match: re.Match[str]) -> str:
        source = match.group(2).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return convert(source.strip(), display="block" if match.group(1) == "[" else "inline")

    def chart(match: re.Match[str]) -> str:
        picture = (ROOT / "docs" / "pictures" / match.group(1)).read_text()
        return figure(picture) if 'class="tt"' in picture else match.group(0)

    html = re.sub(r"<code>([^<]+)</code>(?!</pre>)", breakable, html)
    html = re.sub(r'<img[^>]* src="(?:\.\./)*pictures/([\w-]+\.svg)"[^>]*>', chart, html)
    equations = r'<(?:span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>'
    return re.sub(equations, equation, html, flags=re.S)


def breakable(match: re.Match[str]) -> str:
    """Let inline code wrap after punctuation, not inside a word or between the dashes of an option."""
    text = re.sub(r"--[\w.-]+", r'<span class="tt-option">\g<0></span>', match.group(1))
    text = re.sub(r"(?<=\w)([_.,:=/@+(|])(?=[\w.\[({])(?![^<]*</span>)", r"\1<wbr>", text)
    return f"<code>{text}</code>"


def figure(picture: str) -> str:
    """Return an SVG chart for a page: whole, and for a phone the parts that it names, one below the other."""
    crops = re.search(r' data-crops="([^"]+)"', picture)
    if not crops:
        return f'<span class="tt-figure">{picture}</span>'
    picture = picture.replace(crops.group(0), "")
    parts = []
    for box in crops.group(1).split("|"):
        width = f'viewBox="{box}" width="{box.split()[2]}"'
        parts.append(re.sub(r'viewBox="[^"]+" width="[^"]+"', width, picture, count=1))
    return (
        f'<span class="tt-figure tt-wide">{picture}</span>'
        f'<span class="tt-figure tt-narrow">{"".join(parts)}</span>'
    )
