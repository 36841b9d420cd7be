"""The pages: self-contained, safe with hostile names, and readable in a browser at both widths and in both modes."""

from __future__ import annotations

import html
import os
import re
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch

import anyorder as ao
from predictors import rng

HOSTILE = "<script>alert(1)</script>"
CHROMIUM = shutil.which("chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic"]


@pytest.fixture(scope="module")
def results():
    """An audit and a comparison whose names all try to escape."""
    torch.manual_seed(0)
    x, sizes = torch.randn(60, 9, 2, generator=rng()), torch.arange(60) % 7 + 3
    model = ao.RecurrentSetModel(2, 3, hidden=8)
    names = [HOSTILE, 'a" onmouseover="alert(2)', "$\\frac{1}{0}$ & plain"]
    labels = torch.arange(60) % 3
    options = {
        "labels": labels,
        "class_names": names,
        "feature_names": ["<img src=x onerror=alert(3)>", "mass"],
        "set_names": [f"<b>set {i}</b>" for i in range(60)],
        "search": 40,
    }
    report = ao.audit(model, x, sizes, generator=rng(), **options)
    models = {HOSTILE: model, "$x_$ \u0000和": lambda e, n: torch.stack([e[:, 0, 0], e[:, 0, 1], e[:, 1, 1]], 1)}
    models["DeepSets"] = ao.DeepSets(2, 3)
    return report, ao.audit(models, x, sizes, generator=rng(), **options)


@pytest.fixture(scope="module")
def pages(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    report, comparison = results
    report.html(folder / "audit.html", title=f"Title {HOSTILE}")
    comparison.html(folder / "comparison.html")
    return folder


@pytest.mark.parametrize("name", ["audit", "comparison"])
def test_pages_are_self_contained_and_escaped(pages, name):
    raw = (pages / f"{name}.html").read_bytes()
    text = raw.decode()
    assert len(raw) < 2_000_000
    assert not re.search(r"<(script|img|iframe|link(?! rel=\"icon\" href=\"data:,\"))\b", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", text)  # nothing to fetch
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text):
        assert (target[0] or target[1]) in ids
    for alt in re.findall(r'role="img" aria-label="([^"]*)"', text):
        assert len(alt) > 40


def test_the_pages_say_what_the_reports_say(pages, results):
    report, comparison = results
    text = html.unescape((pages / "audit.html").read_text())
    for part in (report.verdict().headline, report.verdict().detail, f"{report.output_gap:.3g}", *report.notes):
        assert part in text
    text = html.unescape((pages / "comparison.html").read_text())
    rows = comparison.table()
    cells = re.findall(r"<td>(choice|–)</td></tr>", text)  # in words, not by colour alone
    assert cells == ["choice" if row["choice"] else "–" for row in rows]
    assert {"choice", "–"} == set(cells)
    named = ", ".join(row["model"] for row in rows if row["choice"])
    assert f"No other model is better beyond chance than: {named}." in text


def test_a_good_a_random_and_a_bare_report_have_pages_too(tmp_path):
    x = np.ones((5, 4, 1))
    noise = np.random.default_rng(0)
    predictors = {
        "good": lambda e: e.sum(1),
        "random": lambda e: noise.standard_normal(len(e)),
        "one": lambda e: e[:, -1] * np.arange(len(e))[:, None],
    }
    for name, predict in predictors.items():
        ao.audit(predict, x, generator=rng()).html(tmp_path / f"{name}.html")
    assert "Order does not matter." in (tmp_path / "good.html").read_text()
    assert "Order adds nothing that stands out from the noise" in (tmp_path / "random.html").read_text()
    single = ao.audit(lambda e: e[:, 0], np.ones((1, 1, 1)), generator=rng())
    single.html(tmp_path / "single.html")
    words = ao.audit(lambda s: "AB"[s[0] > s[1]], [["*a*" * 40, "<b>"]] * 9, design="all", equivariant=True)
    words.html(tmp_path / "words.html")
    assert "Places that answers name, beyond their due" in (tmp_path / "words.html").read_text()
    turn = ao.audit(lambda s: s[0], [["*a*" * 40, "<b>"]] * 9, design="all")
    turn.html(tmp_path / "turn.html")
    assert "&lt;b&gt;" in (tmp_path / "turn.html").read_text()
    long = np.random.default_rng(0).standard_normal((4, 60, 9))
    ao.audit(lambda e: e[:, -1, 0], long, generator=rng()).html(tmp_path / "long.html")
    text = (tmp_path / "long.html").read_text()
    assert "44 more positions" in text
    assert "5 more not shown" in text


def test_names_do_not_reach_a_terminal_as_commands(results):
    """ANSI sequences in names of sets and models are shown, not obeyed."""
    red = "\x1b[31mred\r\x1b]0;title\x07"
    x = np.random.default_rng(0).standard_normal((5, 4, 1))
    report = ao.audit(lambda e: e[:, -1], x, set_names=[red] * 5, generator=rng())
    comparison = ao.audit({red: lambda e: e[:, -1]}, x, generator=rng())
    for text in (str(report), str(comparison)):
        assert "red" in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_pictures(tmp_path, results):
    report, comparison = results
    report.plot(tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    for ending, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        path = tmp_path / f"picture.{ending}"
        comparison.plot(path)
        assert path.read_bytes().startswith(magic)
    with pytest.raises(ValueError, match="bmp"):
        report.plot(tmp_path / "picture.bmp")
    assert not list(tmp_path.glob("*.tmp"))


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing and CI must run this test; `make browser` installs it")
        pytest.skip("did not run: chromium is missing; `make browser` installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Visit:
    """A page opened in a fresh profile, and everything it did that it should not."""

    def __init__(self, browser, path, width, scheme):
        self.complaints, self.requests = [], []
        self.context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture
def visit(browser):
    opened = []

    def open_page(path, width=1280, scheme="light"):
        opened.append(Visit(browser, path, width, scheme))
        return opened[-1]

    yield open_page
    for each in opened:
        each.context.close()


def contrast(one, other):
    """WCAG contrast of two "rgb(r, g, b)" colours."""

    def luminance(colour):
        parts = [int(p) / 255 for p in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["audit", "comparison"])
def test_in_a_browser(visit, pages, name, width, scheme):
    path = pages / f"{name}.html"
    opened = visit(path, width, scheme)
    page = opened.page
    heading = page.locator("h1")
    assert heading.is_visible()
    assert heading.bounding_box()["y"] < 300
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    figures = page.locator("figure")
    assert figures.count() >= (5 if name == "audit" else 1)
    for i in range(figures.count()):
        figures.nth(i).scroll_into_view_if_needed()
        box = figures.nth(i).locator("svg").bounding_box()
        assert figures.nth(i).locator("svg").is_visible()
        assert box["width"] >= 250
        assert box["height"] >= 100
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        smallest = figures.nth(i).evaluate(
            "f => Math.min(...[...f.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
        )
        assert smallest >= 9
    assert page.get_by_text(HOSTILE, exact=False).first.is_visible()
    assert page.evaluate("document.querySelectorAll('script, img, iframe, [onmouseover], [onerror]').length") == 0

    def style(selector, name):
        return page.evaluate(f"getComputedStyle(document.querySelector({selector!r})).{name}")

    paper = style("body", "backgroundColor")
    assert contrast(style("body", "color"), paper) > 7
    assert contrast(style("header.top", "color"), paper) > 4.5
    assert contrast(style("figure svg text", "fill"), style("figure", "backgroundColor")) > 4.5
    assert (contrast(paper, "rgb(0, 0, 0)") < 3) == (scheme == "dark")
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


@pytest.mark.browser
def test_with_the_keyboard(visit, pages):
    page = visit(pages / "audit.html").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the result"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    summary = page.locator("summary", has_text="Swapping two elements, by distance")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("region", name="Swapping two elements, by distance").is_visible()
    headings = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    for image in page.get_by_role("img").all():
        assert len(image.get_attribute("aria-label")) > 40
