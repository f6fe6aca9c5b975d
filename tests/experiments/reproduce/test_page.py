"""The page: one file without the network, with every claim and every failure."""

import dataclasses
import re
from pathlib import Path

import pytest

from mlmcgrad.experiments.reproduce import page
from mlmcgrad.experiments.reproduce.explain import note
from mlmcgrad.experiments.reproduce.figures import Drawing, draw
from mlmcgrad.experiments.reproduce.findings import Findings
from mlmcgrad.experiments.reproduce.gather import gather
from mlmcgrad.experiments.reproduce.sentences import measured, paper, statement, takeaways
from tests.experiments.reproduce import fabricated


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Of a reproduction with a failed run."""
    folder = fabricated.write(tmp_path_factory.mktemp("page") / "digits", seeds=2)
    fabricated.fail(folder, "amsgrad-mlmc-1", "FloatingPointError: <script>alert(1)</script>")
    return fabricated.findings(folder, fabricated.claims())


@pytest.fixture(scope="module")
def html(findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> str:
    drawings = draw(findings, tmp_path_factory.mktemp("figures"))
    return page.render([findings], [drawings], [{"Samples: BR-IWAE": b"png"}])


def _escaped(text: str) -> str:
    return text.replace("'", "&#39;")


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    assert not re.search(r"<(script|link|iframe|object|embed)\b", html)
    assert not re.search(r"@import|url\(", html)
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert len(sources) == 1 + 2 * 3 + 3 + 1  # main, the paper's, levels and cost, a picture
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", source) for source in sources)
    assert all(re.search(r'alt="[^"]+"', tag) for tag in re.findall(r"<img[^>]*>", html))
    assert 'name="viewport"' in html
    assert '<html lang="en">' in html


def test_the_page_opens_with_the_picture_and_the_sentences(findings: Findings, html: str) -> None:
    """The table of claims comes after them, and folds."""
    picture = html.index("<img")
    assert (
        'alt="test NLL (nats per image) against network evaluations' in html[picture:].split(">")[0]
    )
    sentences = [html.index(_escaped(sentence)) for sentence in takeaways(findings)]
    assert len(sentences) == 3
    table = html.index('<table class="claims">')
    assert picture < sentences[0] < sentences[-1] < table
    assert html.rindex("<details>", 0, table) > html.rfind("</details>", 0, table)


def test_the_page_has_every_claim_in_one_row_for_both_optimizers(
    findings: Findings, html: str
) -> None:
    for claim in findings.claims:
        notes = note(claim, findings.diagnostics)
        for text in (paper(claim), statement(claim), measured(claim), notes):
            assert _escaped(text) in html
    table = html[html.index('<table class="claims">') : html.index("</table>")]
    assert table.count("<tr><td>") == len(findings.claims) / 2
    assert [table.count(f'class="badge {kind}"') for kind in ("yes", "no", "open")] == [4, 4, 4]
    assert "✗ does not hold" in table
    assert "0.12 (0.03 to 0.21)" in table
    assert "All 12 claims (✓ holds: 4, ✗ does not hold: 4, ? undecided: 4)" in html


def test_what_went_wrong_is_named_and_escaped(html: str) -> None:
    assert "13 of 14 runs complete" in html
    assert "amsgrad-mlmc-1" in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script>" not in html


def test_no_failure_no_section_about_it(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    findings = fabricated.findings(folder)
    html = page.render([findings], [draw(findings, tmp_path)], [{}])
    assert "Runs without a result" not in html
    assert "No claim could be evaluated" in html


def test_a_note_on_the_command_is_shown(findings: Findings) -> None:
    text = "The preset cpu is called full since version 0.2."
    noted = dataclasses.replace(findings, about={**findings.about, "note": text})
    names = ("levels", "cost-evaluations", "cost-seconds")
    html = page.render([noted], [dict.fromkeys(names, Drawing("<svg/>", b"", "blank"))], [{}])
    assert text in html


def test_pictures_are_the_last_of_the_first_complete_run(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br", "mlmc"), seeds=2)
    fabricated.fail(folder, "amsgrad-br-0", "no memory")
    pictures = page.pictures(gather(folder))
    assert list(pictures) == [
        f"{kind}: {label}, AMSGrad, seed {seed}"
        for kind in ("Samples", "Reconstructions")
        for label, seed in (("BR-IWAE", 1), ("MLMC-IWAE", 0))
    ]
    last = folder / "runs" / "amsgrad-mlmc-0" / "samples-000200.png"
    assert pictures["Samples: MLMC-IWAE, AMSGrad, seed 0"] == last.read_bytes()
