"""The lab in a browser: what somebody sees, moves, shares and hears."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

TIMES = "\N{MULTIPLICATION SIGN}"
PANELS = ("routing", "transfer", "burst")


def figures(page: "Page") -> list[str]:
    """The headline's numbers."""
    return page.locator("#headline dl dd:not(.note)").all_inner_texts()


def settle(page: "Page", panel: str = "routing") -> None:
    """Wait until the panel has its last answer."""
    last = {"routing": "[data-row=slo]", "transfer": ".squares", "burst": "[data-class=C]"}
    page.locator(last[panel]).first.wait_for()


def other_than(page: "Page", before: list[str]) -> list[str]:
    """The headline once it says something else."""
    page.wait_for_function(
        "before => { const now = [...document.querySelectorAll('#headline dl dd:not(.note)')]"
        ".map(each => each.innerText); return !now.includes('…') && now.join() !== before; }",
        arg=",".join(before),
    )
    return figures(page)


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_loads_without_complaint_and_asks_nobody_else(
    visit: Any, lab: str, panel: str
) -> None:
    opened = visit()
    opened.page.goto(f"{lab}/lab?panel={panel}")
    settle(opened.page, panel)
    assert len(figures(opened.page)) == 3
    opened.assert_clean(lab)


def test_the_published_numbers_are_what_one_sees_first(visit: Any, lab: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab")
    settle(page)
    assert figures(page)[:2] == ["94.0 %", f"1.05{TIMES}"]
    for policy, hit_rate, imbalance in (
        ("random", "55.5 %", "1.03"),
        ("round-robin", "55.3 %", "1.02"),
        ("sticky", "96.8 %", "1.75"),
        ("cache-aware", "94.0 %", "1.05"),
    ):
        cells = page.locator(f"[data-row={policy}] td").all_inner_texts()
        assert [cells[0].strip(), cells[1]] == [hit_rate, imbalance + TIMES]


def test_a_slider_moves_the_numbers_and_the_address(visit: Any, lab: str) -> None:
    opened = visit()
    page = opened.page
    page.goto(f"{lab}/lab")
    settle(page)
    before = figures(page)
    page.get_by_label("Popularity skew").focus()
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/lab?skew=0")
    after = other_than(page, before)
    page.wait_for_function("() => document.querySelector('#headline dd').innerText.startsWith('5')")
    assert float(after[0].split()[0]) < float(before[0].split()[0])
    assert page.get_by_label("Popularity skew").get_attribute("aria-valuetext") == "0.0"
    opened.assert_clean(lab)


def test_an_address_brings_back_what_was_shared(visit: Any, lab: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab?policy=sticky&replicas=6&conversations=123")
    settle(page)
    assert page.get_by_label("Routing policy").input_value() == "sticky"
    assert page.get_by_label("Conversations").get_attribute("aria-valuetext") == "123"
    assert page.locator(".columns li").count() == 6
    seen = figures(page)
    page.reload()
    settle(page)
    assert figures(page) == seen


def test_back_and_forward_walk_through_what_was_tried(visit: Any, lab: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab")
    settle(page)
    first = figures(page)
    page.get_by_label("Routing policy").select_option("sticky")
    second = other_than(page, first)
    page.get_by_role("link", name="Disaggregation").click()
    settle(page, "transfer")
    page.go_back()
    settle(page)
    assert figures(page) == second
    page.go_back()
    assert other_than(page, second) == first
    page.go_forward()
    assert other_than(page, first) == second


def test_the_keyboard_alone_is_enough(visit: Any, lab: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab")
    settle(page)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the lab"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Hot prefix"
    page.keyboard.press("Enter")
    settle(page, "burst")
    assert page.locator(":focus").inner_text() == "Hot prefix"
    page.go_back()
    settle(page)
    page.locator("[data-policy=random]").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/lab?policy=random")
    assert page.locator(":focus").get_attribute("data-policy") == "random"


@pytest.mark.parametrize("panel", PANELS)
def test_every_control_says_what_it_is_and_what_it_does(visit: Any, lab: str, panel: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab?panel={panel}")
    settle(page, panel)
    for control in page.locator("#controls input, #controls select").all():
        name = control.get_attribute("id")
        assert page.locator(f"label[for={name}]").inner_text()
        hint = page.locator(f"#{control.get_attribute('aria-describedby')}")
        if control.is_visible():
            assert len(hint.inner_text()) > 10, name


def test_the_transfer_panel_does_the_worked_example(visit: Any, lab: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab?panel=transfer")
    settle(page, "transfer")
    assert figures(page) == ["2.62 GB", "6.55 ms", "0.82 %"]
    assert page.locator(".ratio").all_inner_texts() == ["6 : 3", "2 : 3"]
    page.get_by_label("Precision").select_option("fp8")
    assert other_than(page, ["2.62 GB", "6.55 ms", "0.82 %"]) == ["1.31 GB", "3.28 ms", "0.41 %"]


def test_a_burst_plays_pauses_and_is_scrubbed(visit: Any, lab: str) -> None:
    opened = visit()
    page = opened.page
    page.goto(f"{lab}/lab?panel=burst&seconds=6&at=0")
    settle(page, "burst")
    assert page.locator(".clock").inner_text() == "0.0 s"
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => parseFloat(document.querySelector('.clock').innerText) > 1")
    page.get_by_role("button", name="Pause").click()
    paused = page.locator(".clock").inner_text()
    assert f"{float(page.url.partition('at=')[2]):.1f} s" == paused
    page.get_by_label("Moment of the burst").fill("120")
    queues = page.locator(".how-many").all_inner_texts()
    assert sum(int(each.split()[0]) for each in queues[:1]) > 50
    assert queues[1:] == ["0 wait, 0 run"] * 7
    opened.assert_clean(lab)


def test_another_policy_ends_the_wait(visit: Any, lab: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab?panel=burst&seconds=6")
    settle(page, "burst")
    before = figures(page)
    page.get_by_label("Routing policy").select_option("cache-aware")
    assert float(other_than(page, before)[0].split()[0]) > 90
    assert float(before[0].split()[0]) < 60


def test_an_address_that_makes_no_sense_is_answered_in_words(visit: Any, lab: str) -> None:
    page = visit().page
    page.goto(f"{lab}/lab?replicas=900")
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "replicas: Expected `int` <= 32"
    page.get_by_role("button", name="Back to the defaults").click()
    settle(page)
    assert page.get_by_role("alert").count() == 0


@pytest.mark.parametrize("panel", PANELS)
def test_a_phone_is_wide_enough(visit: Any, lab: str, panel: str) -> None:
    page = visit(width=390, height=844).page
    page.goto(f"{lab}/lab?panel={panel}")
    settle(page, panel)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    tables = page.locator("table").evaluate_all(
        "all => all.map(each => each.scrollWidth - each.parentElement.clientWidth)"
    )
    assert all(excess <= 0 for excess in tables)


def test_it_is_dark_where_the_reader_likes_it_dark(visit: Any, lab: str) -> None:
    def background(color_scheme: str) -> str:
        page = visit(color_scheme=color_scheme).page
        page.goto(f"{lab}/lab?panel=transfer")
        settle(page, "transfer")
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert background("light") == "rgb(250, 249, 246)"
    assert background("dark") == "rgb(19, 21, 24)"
