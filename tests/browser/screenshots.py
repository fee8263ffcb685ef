"""Pictures of the pages for README and docs: `make screenshots`."""

import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conftest import find_chromium
from fleet_screenshots import take_fleet
from PIL import Image
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLOURS = 128  # of these pages; as palettes the files are a quarter as large


class Shot(NamedTuple):
    name: str
    query: str
    ready: str  # what is on the page once it can be taken
    width: int = 1280
    height: int = 960
    color_scheme: str = "light"
    scroll_to: str = "h1"


SHOTS = (
    Shot("lab-routing", "", "[data-row=slo]"),
    Shot("lab-disaggregation", "?panel=transfer", ".squares"),
    Shot("lab-hot-prefix", "?panel=burst", "[data-class=C]", color_scheme="dark"),
    Shot("lab-phone", "?policy=sticky", "[data-row=slo]", 390, 844, scroll_to="#results"),
)


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = find_chromium()
    if path is None:
        sys.exit("no chromium here; on Debian: apt-get install chromium")
    command = [sys.executable, "-m", "expediter", "lab", "--port", "0"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        sync_playwright() as playwright,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().partition("The lab is at ")[2].strip()
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            for shot in SHOTS:
                save(shot.name, take(browser, shot, address))
            take_fleet(browser, save)
        finally:
            browser.close()
            process.send_signal(signal.SIGINT)


def take(browser: "Browser", shot: Shot, address: str) -> bytes:
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.color_scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(address + shot.query)
    page.locator(shot.ready).first.wait_for()
    if shot.scroll_to != "h1":
        page.locator(shot.scroll_to).evaluate("each => each.scrollIntoView()")
    picture = page.screenshot()
    context.close()
    return picture


def save(name: str, picture: bytes) -> None:
    image = Image.open(BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
