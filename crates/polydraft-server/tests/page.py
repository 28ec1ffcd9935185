"""The page in a real browser: streams an output, draws its trees, and steps through them; also on a phone and in dark mode.

python3 page.py path/to/polydraft folder-for-screenshots     (needs the package playwright, and Chromium at /usr/bin/chromium or $CHROMIUM)
"""

import os
import re
import subprocess
import sys
import threading

from playwright.sync_api import sync_playwright

SIZES = {"wide": (1280, 860), "phone": (390, 844)}


def use_page(page, shot):
    foreign = []
    page.on("request", lambda request: foreign.append(request.url) if "127.0.0.1" not in request.url and not request.url.startswith("data:") else None)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.click("summary")
    page.fill("[name=max_tokens]", "48")
    page.fill("[name=seed]", "5")
    page.fill("[name=tree]", "paths:3,4")
    page.click("summary")
    page.fill("#prompt", "Returns the sum of two numbers.")
    page.click("#send")
    page.wait_for_selector("#tree .node.accepted")
    page.locator("#send", has_text="Send").wait_for(timeout=60000)
    assert page.inner_text(".message.assistant").strip()
    steps = int(page.get_attribute("#step", "max")) + 1
    assert steps > 2, steps
    # Step back or forth from the step that the page selected.
    step = lambda: int(re.match(rf"step (\d+) of {steps}", page.inner_text("#position"))[1])
    opened = step()
    page.click("#back" if opened > 1 else "#next")
    assert abs(step() - opened) == 1, (step(), opened)
    page.locator("#tree .node[data-node='0']").click()
    assert page.locator("#distributions .bar.target i").count() > 0
    assert "share" in page.inner_text("#distributions-text")
    # With the default verifier three drafts have shares of [0, 1].
    assert page.locator("#shares rect:not(.rest)").count() >= 3
    assert page.locator("#shares-names span").count() > 2
    assert re.search(r"\d+ tokens, \d+ passes", page.inner_text("#efficiency"))
    page.screenshot(path=shot, full_page=True)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"the page is {wide} pixels too wide"
    # Controls beyond the left edge do not make the page wider.
    cut = page.evaluate("[...document.querySelectorAll('select, button, input, textarea')].filter(one => one.getBoundingClientRect().left < 0).length")
    assert cut == 0, f"{cut} controls are beyond the left edge"
    assert not foreign, foreign
    assert not problems, problems


def main():
    folder = sys.argv[2]
    server = subprocess.Popen([sys.argv[1], "--no-config", "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[1] for line in server.stderr if (found := re.search(r"serving at (http\S+)/v1;", line)))
        threading.Thread(target=lambda: [sys.stderr.write(line) for line in server.stderr], daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"])
            for scheme in ["light", "dark"]:
                for name, (width, height) in SIZES.items():
                    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                    page.goto(address + "/")
                    page.wait_for_selector("#model:not(:empty)")
                    use_page(page, f"{folder}/{name}-{scheme}.png")
                    page.close()
            page = browser.new_page()
            page.goto(address + "/docs")
            page.wait_for_selector("h2")
            assert "/v1/completions" in page.inner_text("main")
            browser.close()
    finally:
        server.kill()
    print("the page works")


main()
