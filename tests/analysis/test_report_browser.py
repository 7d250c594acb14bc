"""The report in a browser. Skipped without Playwright (extra `dev`) or Chromium (`apt install chromium`)."""

import re

import pytest

from stackattn.analysis.report import render, write_report
from stackattn.analysis.report_data import page_data
from stackattn.analysis.study import study

pytestmark = pytest.mark.slow


@pytest.fixture
def report(make_run, tmp_path):
    def report(model="tf-nd", **options):
        return write_report(study(make_run(model), **{"texts": ["[()][]"], **options}), tmp_path / "report.html")

    return report


def step(page):
    return int(re.match(r"Step (\d+) of", page.inner_text("#status"))[1])


def test_all_parts_of_the_page(open_page, report):
    page = open_page(report(texts=(), samples=2))
    assert page.title() == page.inner_text("h1") == "Tf+Nd on dyck"
    assert page.locator("#timeline svg rect").count() > 20
    assert page.locator("#map svg rect").count() > 10
    assert page.locator("#curve-charts svg path").count() == 1
    assert page.locator("#length-charts svg path").count() == 3  # the entropy, a perfect model, this model
    assert page.locator("#runs tbody tr:not(.baseline)").count() == 1
    assert page.locator("#runs .baseline").all_inner_texts()[0].startswith("a stack that only pushes")
    assert "estimated on 20 strings per length" in page.inner_text("#length-charts")
    assert page.locator("#choose-string option").count() == 2
    assert page.locator("#map-choice option").count() == 2 + 4
    assert "%" in page.inner_text("#tiles")


def test_the_stepper_moves(open_page, report):
    page = open_page(report())
    assert step(page) == 0
    page.keyboard.press("End")  # nothing has the focus
    assert step(page) == 6
    page.keyboard.press("Home")
    assert step(page) == 0
    page.locator("#tape span").nth(3).click()
    page.click("#go-next")
    assert step(page) == 4
    page.click("#go-back")
    page.click("#go-back")
    assert step(page) == 2
    page.click("#go-last")
    page.click("#go-next")
    assert step(page) == 6  # the last step
    page.click("#go-first")
    page.keyboard.press("ArrowLeft")
    assert step(page) == 0
    page.keyboard.press("ArrowRight")
    assert step(page) == 1
    page.keyboard.press("End")
    assert step(page) == 6
    page.keyboard.press("Home")
    assert step(page) == 0
    page.focus("#slider")
    page.keyboard.press("ArrowRight")
    assert step(page) == 1
    assert page.get_attribute("#slider", "aria-valuetext") == "step 1 of 6: reads ["
    page.locator("#tape span").nth(5).click()
    assert step(page) == 5
    assert page.inner_text("#tape .now") == "["
    page.locator("#listing li").nth(2).click()
    assert step(page) == 2
    for figure in ("#map", "#timeline"):  # the lower right corner of a figure belongs to the last step
        box = page.locator(f"{figure} svg.plot").bounding_box()
        page.mouse.click(box["x"] + box["width"] - 15, box["y"] + box["height"] - 10)
        assert step(page) == 6
        page.keyboard.press("ArrowLeft")
    page.click("#go-first")
    page.click("#play")
    page.locator("#status", has_text="Step 2 of").wait_for()
    page.click("#play")
    assert page.inner_text("#play") == "Play"


@pytest.mark.parametrize("model", ["tf-nd", "tf-sup", "lstm-nd"])
def test_the_panels_show_the_numbers(open_page, report, make_run, model):
    page = open_page(report(model))
    data = page.evaluate("JSON.parse(document.getElementById('data').textContent)")["runs"][0]
    string = data["strings"][0]
    stack = string["stacks"][0]
    page.click("#go-first")
    for t in range(7):
        assert page.inner_text("#symbol") == string["tokens"][t]
        shown = page.locator("#actions .value").all_inner_texts()
        actions = stack["actions"][t]
        assert shown == (["–"] * 3 if actions is None else [f"{x / 1000:.2f}" for x in actions])
        row = stack["tops"][t]
        selectors = "['.token', '.token small', '.value', '.value small']"
        parts = f"b => {selectors}.map(part => b.querySelector(part).firstChild.data)"
        soft = page.locator("#soft .bar").evaluate_all(f"bars => bars.map({parts})")
        *tokens, bottom = [(token, number, float(any), float(top)) for token, number, any, top in soft]
        assert bottom[2:] == pytest.approx([row[0] / 1000] * 2, abs=0.0051)
        for token, number, anywhere, top in tokens:
            assert token == string["tokens"][int(number)]
            column = int(number) + 1
            assert top == pytest.approx(row[column] / 1000 if column < len(row) else 0, abs=0.0051)
            contents = stack["contents"][t]
            expected = contents[int(number)] / 1000 if int(number) < len(contents) else 0
            assert anywhere == pytest.approx(max(expected, top), abs=0.0051)
        real = page.locator("#soft .real .token small").inner_text()
        assert real == (str(string["real"][t]) if string["real"][t] >= 0 else {"∅": "empty", "⊥": "bottom"}[bottom[0]])
        next_symbols = page.locator("#next .value").all_inner_texts()
        expected = [
            f"{m / 1000:.2f} {p / 1000:.2f}" for m, p in zip(string["model"][t], string["truth"][t], strict=True)
        ]
        assert [" ".join(text.split()) for text in next_symbols] == expected
        page.keyboard.press("ArrowRight")


def test_runs_are_replayed(open_page, report, tmp_path):
    """The page shows the stacks of `AutomatonRun.stacks`, for the best run and a sampled one."""
    import torch

    from stackattn.analysis import trace_stacks
    from stackattn.analysis.strings import some_runs
    from stackattn.models import load

    page = open_page(report("tf-nd"))
    (trace,) = trace_stacks(load(tmp_path / "run/best"), torch.tensor([[4, 2, 0, 1, 3, 2, 3]]))
    for number, (_, run) in enumerate(some_runs(trace)[:2]):
        page.select_option("#run-choice", str(number))
        page.click("#go-first")
        for operation, stack in zip(run.operations, run.stacks(), strict=True):
            boxes = page.locator("#single .box").all_inner_texts()
            expected = [f"symbol {symbol}" if i < 0 else f"step {i}, symbol {symbol}" for i, symbol in stack]
            assert [" ".join(box.split()[1:]) for box in reversed(boxes)] == expected
            assert page.inner_text("#operation") == str(operation).replace("->", "→")
            page.keyboard.press("ArrowRight")
    moves = [line.replace("·", "").split() for line in page.locator("#listing li").all_inner_texts()]
    assert [" ".join(move[1:]) for move in moves] == [str(x).replace("->", "→") for x in run.operations]


def test_pops_of_an_empty_stack_are_not_indented(open_page, make_run, tmp_path):
    data = page_data(study(make_run("tf-sup"), texts=["[()][]"]))
    run = data["runs"][0]["strings"][0]["stacks"][0]["runs"][0]
    run["steps"] = [[kind, 0, -1 if kind == 2 else 0] for kind in (2, 0, 0, 1, 2, 2, 2)]
    path = tmp_path / "report.html"
    path.write_text(render(data), encoding="utf-8")
    lines = open_page(path).locator("#listing li").all_text_contents()
    moves = ["pop", "· push", "· · push", "· · no-op", "· · pop", "· pop", "pop"]
    assert [line[5:] for line in lines] == moves


def test_choices(open_page, make_run, tmp_path):
    make_run("tf-both", folder="sweep/a")
    make_run("lstm-sup", "marked-reversal", folder="sweep/b", lengths=(5, 9))
    make_run("tf", folder="sweep/c")
    page = open_page(write_report(study(tmp_path / "sweep"), tmp_path / "report.html"))
    assert page.locator("#choose-run option").count() == 2  # the model without a stack has no stepper
    assert page.locator("#runs tbody tr:not(.baseline)").count() == 3
    assert page.locator("#choose-stack option").count() == 3
    page.select_option("#choose-stack", "2")
    assert "⊥" in page.inner_text("#soft")
    before = page.inner_text("#tape")
    page.select_option("#choose-string", "1")
    assert page.inner_text("#tape") != before
    page.select_option("#choose-run", "1")
    assert "∅" in page.inner_text("#soft")
    assert page.locator("#choose-stack").count() == 0
    page.select_option("#map-choice", "contents")
    assert page.locator("#map svg circle").count() == 0


def test_without_stacks_or_evaluations(open_page, make_run, tmp_path):
    page = open_page(write_report(study(make_run("tf", folder="plain")), tmp_path / "a.html"))
    assert page.is_hidden("#stepper")
    assert page.locator("#curve-charts figure").count() == page.locator("#length-charts figure").count() == 1
    page = open_page(write_report(study(make_run(folder="new", best=False)), tmp_path / "b.html"))
    assert page.is_hidden("#stepper")
    assert page.is_hidden("#lengths")
    assert "No evaluations yet." in page.inner_text("#curves")


def test_a_string_that_leaves_the_language(open_page, report):
    page = open_page(report(texts=["(]()"]))
    page.click("#go-last")
    assert "symbols in the language begins with these symbols." in page.inner_text("#next-notes")
    assert page.is_hidden("#real-key")


def test_notes_are_visible_next_to_many_symbols(open_page, make_run, tmp_path):
    folder = make_run("tf-sup", "hardest-cfl", lengths=(20, 30))
    string = ",$([,];),]),;"
    page = open_page(write_report(study(folder, texts=[string]), tmp_path / "hardest.html"))
    note = page.locator("#next-notes")
    assert "Training had no strings of this length" in note.inner_text()
    inside = """note => {
        const [box, panel] = [note, note.closest('.panel')].map(x => x.getBoundingClientRect());
        return box.height > 30 && box.bottom <= panel.bottom && note.scrollHeight <= note.clientHeight;
    }"""
    assert note.evaluate(inside)
    assert page.locator("#next").evaluate("box => box.scrollHeight <= box.clientHeight")


def test_labels_of_charts_are_readable(open_page, make_run, tmp_path):
    make_run("lstm-sup", folder="sweep/a")
    make_run("tf", folder="sweep/b")
    path = write_report(study(tmp_path / "sweep", samples=1), tmp_path / "sweep.html")
    for width in (390, 1280):
        page = open_page(path, viewport={"width": width, "height": 900})
        texts = page.locator(".charts figure > svg text")
        assert texts.all_text_contents().count("LSTM+Sup") == 2
        sizes = "all => all.map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().d)"
        upright = page.locator(".charts figure > svg text:not([transform])")
        assert min(upright.evaluate_all(sizes)) > 10.5
        clipped = """all => all.filter(text => {
            const [inner, outer] = [text, text.ownerSVGElement].map(x => x.getBoundingClientRect());
            return inner.right > outer.right || inner.left < outer.left;
        }).length"""
        assert texts.evaluate_all(clipped) == 0


def test_baselines_are_below_their_language(open_page, make_run, tmp_path):
    make_run("tf-nd", folder="sweep/a")
    make_run("tf-nd", "marked-reversal", folder="sweep/b", lengths=(7, 11))
    page = open_page(write_report(study(tmp_path / "sweep", samples=1), tmp_path / "sweep.html"))
    first = [row.split("\t")[0] for row in page.locator("#runs tbody tr").all_inner_texts()]
    baselines = ["a stack that only pushes", "a stack that never pushes"]
    assert first == ["a", *baselines, "b", *baselines]


def test_text_is_not_parsed_as_markup(open_page, make_run, tmp_path):
    evil = "</script><img src=x onerror=alert(1)>&lt;"
    data = page_data(study(make_run(), texts=["[()][]"]))
    (run,) = data["runs"]
    (string,) = run["strings"]
    (stack,) = string["stacks"]
    data["title"] = data["lede"] = run["label"] = run["row"][0] = run["symbols"][0] = evil
    string["tokens"][3] = stack["actionNames"][0] = stack["runs"][0]["name"] = evil
    path = tmp_path / "report.html"
    path.write_text(render(data), encoding="utf-8")
    page = open_page(path)
    page.locator("#tape span").nth(3).click()
    assert page.title() == page.inner_text("h1") == page.inner_text("#lede") == page.inner_text("#symbol") == evil
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast(open_page, report, scheme):
    """Contrast of text and bars with their background, by the formula of the accessibility guidelines (WCAG 2)."""
    page = open_page(report(), color_scheme=scheme)
    names = ("paper", "raised", "ink", "quiet", "accent", "on-accent", "second", "third", "mark")
    values = page.evaluate(
        "names => names.map(n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim())", names
    )
    colours = dict(zip(names, map(luminance, values), strict=True))
    assert (colours["paper"] > 0.9) == (scheme == "light")
    text = ("ink", "quiet", "accent", "second", "third")
    pairs = [*((x, "paper") for x in text), ("quiet", "raised"), ("on-accent", "accent"), ("ink", "mark")]
    for front, back in pairs:
        low, high = sorted((colours[front], colours[back]))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (front, back)


def luminance(colour):
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_on_a_phone(open_page, report):
    page = open_page(
        report(texts=["((((((((((((((((()))))))))))))))))[]"]),
        viewport={"width": 360, "height": 740},
        has_touch=True,
        is_mobile=True,
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.locator("#tape span").nth(20).tap()
    before = step(page)
    page.tap("#go-next")
    assert step(page) == before + 1
    page.locator("#tape span").nth(before - 1).tap()
    assert step(page) == before - 1
    small = page.locator("button").evaluate_all(
        "all => all.filter(b => b.offsetWidth < 40 || b.offsetHeight < 40).length"
    )
    assert small == 0


@pytest.mark.parametrize("height", [844, 600])
def test_on_a_phone_the_controls_stay_with_the_panels(open_page, report, height):
    page = open_page(report(), viewport={"width": 390, "height": height}, has_touch=True, is_mobile=True)
    place = "element => { const box = element.getBoundingClientRect(); return [box.top, box.bottom]; }"
    for panel in page.locator(".panel").all():
        panel.evaluate("panel => panel.scrollIntoView({ block: 'end' })")
        top, bottom = page.locator(".controls").evaluate(place)
        assert 0 <= top < bottom <= height
        before = step(page)
        page.tap("#go-next")
        assert step(page) == before + 1


def test_the_table_of_runs_is_not_cut_off(open_page, make_run, tmp_path):
    for number, (model, seed) in enumerate([("tf-nd", 0), ("tf-both", 1), ("lstm-nd", 2)]):
        make_run(model, folder=f"sweep/hardest-cfl/a-long-name-of-a-model/{number:02d}", seed=seed)
    page = open_page(write_report(study(tmp_path / "sweep", samples=1), tmp_path / "sweep.html"))
    assert page.locator("#runs th").count() >= 12
    assert page.locator("#table .wide").evaluate("box => box.scrollWidth <= box.clientWidth")


def test_the_top_of_the_page_says_what_is_shown(open_page, report, make_run, tmp_path):
    lede = open_page(report()).inner_text("#lede")
    assert len(re.findall(r"\.(?: |$)", lede)) == 2  # two sentences
    assert "trained on strings of 6 to 12 symbols" in lede
    assert "arrow keys" in lede
    lede = open_page(write_report(study(make_run("tf", folder="plain")), tmp_path / "plain.html")).inner_text("#lede")
    assert "no stack to step through" in lede


def test_wide_figures_scroll_and_their_labels_stay(open_page, report):
    string = "(" * 30 + ")" * 30
    page = open_page(report(texts=[string]), viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    sizes = "all => all.map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"
    for figure in ("#map", "#timeline"):
        upright = page.locator(f"{figure} text.symbol:not([transform])")
        assert upright.count() >= len(string)
        assert min(upright.evaluate_all(sizes)) > 11.9
        box = page.locator(figure)
        assert box.evaluate("box => box.scrollWidth > 2 * box.clientWidth && box.clientHeight < innerHeight")
        places = "box => [...box.querySelectorAll('.stays-left')].map(x => x.getBoundingClientRect().left)"
        for left in (0, 200, 10_000):
            box.evaluate("(box, left) => { box.scrollLeft = left; }", left)
            edge = box.evaluate("box => box.getBoundingClientRect().left")
            assert box.evaluate(places) == pytest.approx([edge] * (2 if figure == "#map" else 1), abs=1)
    page.locator("#map").evaluate("box => { box.scrollTop = 300; }")
    tops = "box => [box, ...box.querySelectorAll('.stays-top')].map(x => x.getBoundingClientRect().top)"
    box, corner, header = page.locator("#map").evaluate(tops)
    assert corner == header == pytest.approx(box, abs=1)
    for button in ("#go-last", "#go-first"):  # the row of the step scrolls into view, below the header
        page.tap(button)
        visible = """box => {
            const mark = box.querySelector('.plot > rect:last-child').getBoundingClientRect();
            const header = box.querySelector('.stays-top').getBoundingClientRect();
            return mark.top >= header.bottom - 1 && mark.bottom <= box.getBoundingClientRect().bottom + 1;
        }"""
        assert page.locator("#map").evaluate(visible)
