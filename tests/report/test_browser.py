"""Reports in a real browser: nothing is loaded, complains or is cut off, and axe finds nothing
serious.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from aam.explain.results import explanation_html, importances
from aam.report.charts import Table
from aam.report.encoder_quality import distances_figure
from aam.report.page import ReportData, page_data, page_html
from tests.explain.test_page import explained
from tests.report.test_figures import classes, distances, regression, report_html

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")]

WIDTHS = (390, 1280, 1920)

# Names of classes that are long, HTML, written from right to left, and pictures.
HOSTILE = ("L" * 200, "<b>bold</b> & 'x'", "שלום עולם (ערך)", "🧫 dish 🦠🦠")

# Fonts of plain Linux machines: one as wide as Helvetica, and a wider one.
FONTS = ("Liberation Sans", "DejaVu Sans")

# No host exists, and the browser asks for nothing by itself.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@functools.cache
def pages() -> dict[str, str]:
    """Return a regression, a classification and a pretraining report, and the page of an
    explanation.
    """
    truth = distances()
    row = {"": "model", **{f"column {at}": "0.95 (0.9 to 0.97)" for at in range(12)}}
    tables = (Table("UniFrac", pd.DataFrame([row] * 40), "agreement"),)
    figures = (distances_figure(truth, truth**2, "unifrac"),)
    encoder = ReportData(
        "aam pretrain", {}, {}, {}, tables=tables, encoder_figures=figures, warnings=("a warning",)
    )
    run = ReportData("aam train", {}, {}, {}, (regression(),), explain_command="aam explain")
    return {
        "regression": page_html(page_data(run), importances([explained(1)], ["a note"], 4)),
        "classification": report_html(
            ReportData("aam train", {}, {}, {}, (classes(("skin", "gut", "soil")),))
        ),
        "hostile": report_html(ReportData("aam train, hostile", {}, {}, {}, (classes(HOSTILE),))),
        "pretraining": report_html(encoder),
        "explanation": explanation_html([explained(1), explained(3)], ["a note"], 4),
    }


def chromium(folder: Path, *words: str) -> str:
    """Run the browser with a fresh profile; return what it prints, its log included."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.fixture(params=["regression", "classification", "hostile", "pretraining", "explanation"])
def page(request, tmp_path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(pages()[request.param])
    return path


def use_font(page: Path, font: str) -> None:
    """Give all text of a page one font, which must be installed."""
    known = subprocess.run(["fc-list", font], capture_output=True, text=True, check=True).stdout
    if not known:
        pytest.skip(f"the font {font} is not installed")
    text = re.sub(r"Helvetica, Arial, sans-serif|system-ui[^;]*sans-serif", font, page.read_text())
    page.write_text(text)


def test_a_page_logs_nothing_and_loads_nothing(page, tmp_path):
    log = chromium(tmp_path, "--enable-logging=stderr", "--dump-dom", f"file://{page}")
    assert "CONSOLE" not in log, re.findall(r".*CONSOLE.*", log)
    assert 'class="sortable"' not in log or "<button" in log, "the script did not run"
    # Its policy refuses whatever would be loaded, and the browser says so.
    page.write_text(
        page.read_text().replace("<main>", '<main><img src="https://example.org/a.png" alt="">')
    )
    assert "CONSOLE" in chromium(
        tmp_path, "--enable-logging=stderr", "--dump-dom", f"file://{page}"
    )


def measured(page: Path, script: str, *widths: int) -> list:
    """What the body of a function of a page's document returns at each width."""
    frames = "".join(f'<iframe src="page.html" width="{x}" height="900"></iframe>' for x in widths)
    measure = f"""<pre id="out"></pre><script>addEventListener("load", () => {{
        const read = (page) => {{ {script} }};
        const found = [...document.querySelectorAll("iframe")].map((one) => read(one.contentDocument));
        document.getElementById("out").textContent = JSON.stringify(found);
    }});</script>"""
    frame = page.parent / "frames.html"
    frame.write_text(f"<!DOCTYPE html><body>{frames}{measure}</body>")
    words = ("--allow-file-access-from-files", "--dump-dom", f"file://{frame}")
    dom = chromium(page.parent, *words)
    return json.loads(html.unescape(re.search(r'<pre id="out">(.*?)</pre>', dom)[1]))


@pytest.mark.parametrize("font", FONTS)
def test_no_width_cuts_a_page_off(page, font):
    use_font(page, font)
    size = "const e = page.documentElement; return [e.clientWidth, e.scrollWidth];"
    sizes = measured(page, size, *WIDTHS)
    assert [size[0] for size in sizes] == list(WIDTHS)
    assert all(scrolled <= shown for shown, scrolled in sizes), sizes


def test_no_row_of_cards_has_a_gap(page):
    gaps = """return [...page.querySelectorAll(".figures")].flatMap((cards) => {
        const ends = {};
        for (const card of cards.children) {
            const box = card.getBoundingClientRect();
            ends[box.top] = Math.max(ends[box.top] ?? 0, box.right);
        }
        const edge = cards.getBoundingClientRect().right;
        return Object.values(ends).map((end) => Math.round(edge - end));
    });"""
    assert all(gap == 0 for shown in measured(page, gaps, *WIDTHS, 800) for gap in shown)


def test_a_phone_shows_the_column_that_decides_and_the_verdict_is_not_the_largest(page):
    cut = """return [...page.querySelectorAll("thead th")].filter((cell) =>
        /^(MAE|AUROC|accuracy)[^,]*$/.test(cell.textContent.trim())
        && cell.cellIndex < 3).map((cell) => cell.getBoundingClientRect().right);"""
    (ends,) = measured(page, cut, 390)
    assert all(end <= 390 for end in ends), ends
    size = """return [...page.querySelectorAll(".tiles .answer")].map((answer) =>
        parseFloat(getComputedStyle(answer).fontSize));"""
    for sizes in measured(page, size, *WIDTHS):
        assert len(sizes) in (0, 3)
        assert not sizes or sizes[0] == sizes[1] > sizes[2]


@pytest.mark.parametrize("font", FONTS)
def test_texts_of_figures_are_whole_and_apart(page, tmp_path, font):
    """No name is cut in the figures of these pages, lies outside its figure or over another
    text.
    """
    use_font(page, font)
    measure = """<pre id="texts"></pre><script>addEventListener("load", () => {
        const found = [];
        for (const figure of document.querySelectorAll("svg.fig")) {
            const frame = figure.getBoundingClientRect();
            const texts = [...figure.querySelectorAll("text")].filter((one) => one.textContent.trim());
            const boxes = texts.map((one) => one.getBoundingClientRect());
            texts.forEach((one, at) => {
                const box = boxes[at];
                if (one.textContent.includes("…") && !document.title.includes("hostile")) found.push("cut: " + one.textContent);
                if (box.left < frame.left - 1 || box.right > frame.right + 1) found.push("outside: " + one.textContent);
                for (let other = 0; other < at; other++) {
                    const wide = Math.min(box.right, boxes[other].right) - Math.max(box.left, boxes[other].left);
                    const high = Math.min(box.bottom, boxes[other].bottom) - Math.max(box.top, boxes[other].top);
                    // Boxes around turned names overlap where the names do not.
                    const turned = one.outerHTML.includes("rotate(300") && texts[other].outerHTML.includes("rotate(300");
                    if (wide > 1 && high > 6 && !turned) found.push("over: " + one.textContent + " | " + texts[other].textContent);
                }
            });
        }
        document.getElementById("texts").textContent = JSON.stringify(found);
    });</script>"""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    page.write_text(text.replace("</body>", f"{measure}</body>"))
    dom = chromium(tmp_path, "--window-size=1280,900", "--dump-dom", f"file://{page}")
    assert json.loads(html.unescape(re.search(r'<pre id="texts">(.*?)</pre>', dom)[1])) == []


@pytest.mark.skipif(
    not AXE.is_file(), reason="axe-core is not installed: npm install --no-save axe-core"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, tmp_path, scheme):
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    text = text.replace("<details>", "<details open>")
    if scheme == "dark":
        text = text.replace("@media screen and (prefers-color-scheme: dark)", "@media screen")
    run = """<pre id="axe"></pre><script>axe.run().then((found) => {
        const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
        const lines = serious.map((one) => one.id + ": " + one.nodes.map((node) => node.target).join(" | "));
        document.getElementById("axe").textContent = JSON.stringify(["done", ...lines]);
    });</script>"""
    tested = tmp_path / "axe.html"
    tested.write_text(text.replace("</body>", f"<script>{AXE.read_text()}</script>{run}</body>"))
    dom = chromium(tmp_path, "--virtual-time-budget=60000", "--dump-dom", f"file://{tested}")
    assert json.loads(re.search(r'<pre id="axe">(.*?)</pre>', dom)[1]) == ["done"]


def test_figures_and_tables_are_one_click_away(page, tmp_path):
    """An SVG is drawn alone, a PNG is three times as wide, a TSV has the rows of its table."""
    collect = """<pre id="kept"></pre><script>
        const kept = [], click = HTMLAnchorElement.prototype.click;
        HTMLAnchorElement.prototype.click = function () {
            if (this.getAttribute("href") === "#") click.call(this);
            else kept.push([this.download, this.href]);
        };
        addEventListener("load", async () => {
            const links = [...document.querySelectorAll(".titled a")];
            for (const link of links) link.click();
            while (kept.length < links.length) await new Promise((done) => setTimeout(done, 50));
            document.getElementById("kept").textContent = JSON.stringify(kept);
        });</script>"""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    figures, tables = text.count("<figure>"), text.count("<table")
    page.write_text(text.replace("<footer>", f"{collect}<footer>"))
    dom = chromium(tmp_path, "--virtual-time-budget=60000", "--dump-dom", f"file://{page}")
    kept = json.loads(html.unescape(re.search(r'<pre id="kept">(.*?)</pre>', dom)[1]))
    endings = Counter(name.rpartition(".")[2] for name, _ in kept)
    assert (endings["svg"], endings["png"]) == (figures, figures)
    assert 0 < endings["tsv"] <= tables
    for name, uri in kept:
        assert re.fullmatch(r"[\w.-]{5,64}", name)
        content = uri.partition(",")[2]
        if name.endswith(".svg"):
            assert ElementTree.fromstring(unquote(content)).get("width")
        elif name.endswith(".png"):
            assert base64.b64decode(content).startswith(b"\x89PNG")
        else:
            rows = [line.split("\t") for line in unquote(content).splitlines()]
            assert len(rows) > 1
            assert len({len(row) for row in rows}) == 1, rows


def test_a_page_prints(page, tmp_path):
    chromium(
        tmp_path, f"--print-to-pdf={tmp_path}/page.pdf", "--no-pdf-header-footer", f"file://{page}"
    )
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
