"""The dashboard and the playground in a browser, before a fleet of real workers."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hash_fleet import HashFleet, hash_fleet

TOKEN = "an-admin-token-of-tests"


@pytest.fixture(scope="module")
def fleet() -> Iterator[HashFleet]:
    with hash_fleet() as fleet:
        yield fleet


def statuses(fleet: HashFleet, **headers: str) -> list[str]:
    workers = httpx.get(f"{fleet.pages}/workers", headers=headers).json()
    return [worker["status"] for worker in workers]


def test_the_first_page_shows_every_worker_and_asks_nobody_else(
    visit: Any, fleet: HashFleet
) -> None:
    opened = visit()
    opened.page.goto(fleet.pages)
    cards = opened.page.locator("#workers li")
    cards.nth(1).wait_for()
    assert opened.page.url == f"{fleet.pages}/dashboard"
    assert cards.locator(".pill").all_inner_texts() == ["up", "up"]
    assert opened.page.locator("#policy").inner_text() == "slo"
    assert opened.page.locator("#live").inner_text() == "Live"
    opened.assert_clean(fleet.pages)


def test_a_request_appears_and_opens_with_its_stages_and_scores(
    visit: Any, fleet: HashFleet
) -> None:
    opened = visit()
    page = opened.page
    page.goto(f"{fleet.pages}/dashboard")
    page.locator("#workers li").first.wait_for()
    fleet.chat("How are you? " * 30)
    row = page.locator("#decisions tr", has_text="done").first
    row.wait_for()
    row.get_by_role("button").press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.locator(".scores tbody tr").nth(1).wait_for()
    assert dialog.locator(".stage-list li").count() == 4
    assert dialog.locator(".scores tr.chosen").count() == 1
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    opened.assert_clean(fleet.pages)


def test_prompts_that_begin_alike_grow_a_tree_with_their_worker(
    visit: Any, fleet: HashFleet
) -> None:
    for end in "ab":
        fleet.chat("The same long beginning. " * 40 + end * 300)
    page = visit().page
    page.goto(f"{fleet.pages}/dashboard")
    page.locator(".prefix .holders .worker").first.wait_for()
    assert "tokens" in page.locator(".prefix b").first.inner_text()


def test_draining_asks_first_and_then_really_drains(visit: Any, fleet: HashFleet) -> None:
    opened = visit()
    page = opened.page
    page.goto(f"{fleet.pages}/dashboard")
    card = page.locator("#workers li").first
    button = card.locator("button")
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert statuses(fleet) == ["up", "up"]
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    card.locator(".pill", has_text="draining").wait_for()
    assert statuses(fleet) == ["draining", "up"]
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Undrain").click()
    card.locator(".pill", has_text="up").wait_for()
    assert statuses(fleet) == ["up", "up"]
    opened.assert_clean(fleet.pages)


def test_the_policy_can_be_changed_here(visit: Any, fleet: HashFleet) -> None:
    page = visit().page
    page.goto(f"{fleet.pages}/dashboard")
    for policy in ("round-robin", "slo"):
        page.locator("#change-policy").click()
        page.get_by_role("dialog").get_by_label(policy).check()
        page.get_by_role("dialog").get_by_role("button", name="Change").click()
        page.locator("#policy", has_text=policy).wait_for()
        stats = httpx.get(f"{fleet.pages}/stats").json()
        assert stats["policy"] == policy


def test_the_second_turn_of_a_chat_finds_the_first_one_cached(visit: Any, fleet: HashFleet) -> None:
    opened = visit()
    page = opened.page
    page.goto(f"{fleet.pages}/playground")
    page.locator("#model option").first.wait_for(state="attached")
    page.locator("#system").fill("Be brief. " * 30)
    page.locator("#tokens").fill("12")
    for place, text in enumerate(("Hello there", "And again")):
        page.locator("#message").fill(text)
        page.locator("#message").press("Enter")
        page.locator(".told").nth(place).wait_for()
    first, second = (
        int(each.get_attribute("data-cached")) for each in page.locator(".cached").all()
    )
    assert first == 0
    assert second > 300
    told = page.locator(".told").nth(1).inner_text()
    assert "longest-match" in told
    assert page.locator(".told .worker").all_inner_texts()[0] in told
    opened.assert_clean(fleet.pages)


def test_a_chat_that_fails_says_why_and_keeps_the_question(visit: Any, fleet: HashFleet) -> None:
    page = visit().page
    page.goto(f"{fleet.pages}/playground")
    page.locator("#model option").first.wait_for(state="attached")
    page.locator("#tokens").fill("99999999")
    page.locator("#message").fill("Too much")
    page.locator("#send").click()
    page.locator("#problem").wait_for()
    assert page.locator("#problem").inner_text()
    assert page.locator("#message").input_value() == "Too much"
    assert page.locator("#messages li").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["dashboard", "playground"])
def test_pages_fit_a_phone(visit: Any, fleet: HashFleet, path: str, scheme: str) -> None:
    opened = visit(width=390, height=844, color_scheme=scheme)
    opened.page.goto(f"{fleet.pages}/{path}")
    shown = "#workers li" if path == "dashboard" else "#suggestions button"
    opened.page.locator(shown).first.wait_for()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.assert_clean(fleet.pages)


def test_a_token_is_asked_for_once_and_kept_for_this_tab(visit: Any) -> None:
    with hash_fleet(f"--set=gateway.admin.token={TOKEN}", num_workers=1) as fleet:
        page = visit().page
        page.goto(f"{fleet.pages}/dashboard")
        page.get_by_label("Token", exact=True).fill("not-the-right-token")
        page.get_by_label("Token", exact=True).press("Enter")
        page.get_by_text("not the right one").wait_for()
        page.get_by_label("Token", exact=True).fill(TOKEN)
        page.get_by_label("Token", exact=True).press("Enter")
        page.locator("#workers li").first.wait_for()
        page.goto(f"{fleet.pages}/playground")
        page.locator("#model option").first.wait_for(state="attached")
        assert page.locator("dialog[open]").count() == 0
        page.goto(f"{fleet.pages}/dashboard")
        page.locator("#workers button").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
        page.locator(".pill", has_text="draining").wait_for()
        assert statuses(fleet, authorization=f"Bearer {TOKEN}") == ["draining"]


def test_the_lab_is_a_page_of_the_gateways_too(visit: Any, fleet: HashFleet) -> None:
    opened = visit()
    opened.page.goto(f"{fleet.pages}/dashboard")
    opened.page.get_by_role("link", name="Lab").click()
    opened.page.locator("[data-row=cache-aware]").wait_for()
    assert opened.page.url.startswith(f"{fleet.pages}/lab")
    opened.assert_clean(fleet.pages)
