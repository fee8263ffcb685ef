"""How long the lab takes from a slider's move to the numbers on the page.

Start `expediter lab`, then: python benchmarks/lab_redraw.py http://127.0.0.1:8090
"""

import statistics
import sys
import time

from playwright.sync_api import sync_playwright

MOVES = 12
SLIDERS = ("Popularity skew", "Replicas", "Cache per replica", "Conversations")

# Move one step, then wait until the answer to it is shown.
MOVE = """async (label) => {
  const slider = [...document.querySelectorAll("label")]
    .find((each) => each.textContent === label).control;
  const results = document.getElementById("results");
  const begun = performance.now();
  slider.valueAsNumber = slider.valueAsNumber - 1;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  slider.dispatchEvent(new Event("change", { bubbles: true }));
  do await new Promise(requestAnimationFrame); while (results.hasAttribute("aria-busy"));
  return performance.now() - begun;
}"""


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page()
        taken = []
        for slider in SLIDERS:
            # Another seed each time: what was answered before is not computed again.
            seed = int(time.time()) % 1_000_000
            page.goto(f"{sys.argv[1]}/lab?replicas=16&skew=1.5&conversations=1000&seed={seed}")
            page.locator("[data-row=cache-aware]").wait_for()
            for _ in range(MOVES):
                taken.append(page.evaluate(MOVE, slider))
                page.wait_for_timeout(300)
        browser.close()
    deciles = statistics.quantiles(taken, n=10)
    print(
        f"{len(taken)} moves: median {statistics.median(taken):.0f} ms, 9 of 10 within "
        f"{deciles[-1]:.0f} ms, longest {max(taken):.0f} ms"
    )


if __name__ == "__main__":
    main()
