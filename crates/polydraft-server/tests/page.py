"""The page in a real browser, also on a phone and in dark mode: streams an output, draws its trees and steps through
them, continues answers that were cut off, renders Markdown safely, reopens a conversation, and explains errors.

python3 page.py path/to/polydraft folder-for-screenshots [model]
    (needs the package playwright, and Chromium at /usr/bin/chromium or $CHROMIUM; without a model, the demo pair)
"""

import os
import re
import subprocess
import sys
import threading

from playwright.sync_api import sync_playwright

SIZES = {"wide": (1280, 860), "phone": (390, 844)}
# Elements that scroll vertically, by a scrollbar that is visible.
SCROLLERS = """() => [document.scrollingElement, ...document.querySelectorAll('body *')].filter(element =>
    element.scrollHeight > element.clientHeight + 1 && element.clientHeight > 0
    && (element === document.scrollingElement || ['auto', 'scroll'].includes(getComputedStyle(element).overflowY)))
    .map(element => element.id || element.tagName)"""
MARKDOWN = """# Title\n\nSome **bold** text and `code`.\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n
<img src=x onerror="window.attacked = 1"><script>window.attacked = 1</script><form action="/"><input></form>
<a href="javascript:window.attacked = 1" id="send">link</a> [real](https://example.org) <p style="position:fixed">x</p>"""


class Page:
    """A page that records its problems."""

    def __init__(self, browser, address, **options):
        self.page = page = browser.new_page(**options)
        self.problems, self.foreign = [], []
        page.on("request", lambda request: self.foreign.append(request.url) if not re.match("http://127.0.0.1|data:|blob:", request.url) else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("response", lambda response: self.problems.append(f"{response.status} {response.url}") if response.status >= 400 else None)
        page.goto(address)

    def set(self, **settings):
        self.page.evaluate("document.getElementById('settings').open = true")
        for name, value in settings.items():
            self.page.fill(f"[name={name}]", value)
        self.page.evaluate("document.getElementById('settings').open = false")

    def send(self, text):
        self.page.fill("#prompt", text)
        self.page.click("#send")
        self.wait()

    def wait(self):
        self.page.locator("#send", has_text="Send").wait_for(timeout=120000)

    def check(self):
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"the page is {wide} pixels too wide"
        assert not self.foreign, self.foreign
        assert not self.problems, self.problems


def use_page(view, shot, is_demo):
    page = view.page
    page.wait_for_selector("#sampling:not(:empty)")
    shown = page.inner_text("#sampling")
    props = page.evaluate("fetch('props').then(answer => answer.json())")["default_generation_settings"]
    assert f"temperature {props['params']['temperature']:g}" in shown, (shown, props)
    assert f"up to the end of the context of {props['n_ctx']} tokens" in shown, (shown, props)
    view.set(seed="5", tree="paths:3,4", max_tokens="12")
    assert "at most 12 tokens" in page.inner_text("#sampling")
    view.send("Returns the sum of two numbers." if is_demo else "List three fruits, and write hello world in Python.")
    page.wait_for_selector("#tree .node.accepted")
    # The limit ended the answer: it says so, and goes on where it ended.
    assert "cut off: after the limit of 12 tokens" in page.inner_text(".message.assistant .end")
    before = page.evaluate("state.messages.at(-1).content")
    view.set(max_tokens="" if not is_demo else "40")
    page.click(".end button")
    view.wait()
    content = page.evaluate("state.messages.at(-1).content")
    assert content.startswith(before) and len(content) > len(before), (before, content)
    assert page.evaluate("state.messages.length") == 2
    if not is_demo:
        # Without a limit the model ends its answer.
        assert page.locator(".end").count() == 0, page.inner_text(".end")
    assert page.inner_text(".message.assistant .formatted").strip()
    steps = int(page.get_attribute("#step", "max")) + 1
    assert steps > 2, steps
    # Step back or forth from the step that the page selected.
    step = lambda: int(re.match(rf"step (\d+) of {steps}", page.inner_text("#position"))[1])
    opened = step()
    page.click("#back" if opened > 1 else "#next")
    assert abs(step() - opened) == 1, (step(), opened)
    page.select_option("#view", "tokens")
    assert page.locator(".tokens span.shown").count() == 1
    page.select_option("#view", "formatted")
    page.locator("#tree .node[data-node='0']").click()
    assert page.locator("#distributions .bar.target i").count() > 0
    assert "share" in page.inner_text("#distributions-text")
    # With the default verifier three drafts have shares of [0, 1].
    assert page.locator("#shares rect:not(.rest)").count() >= 3
    assert page.locator("#shares-names span").count() > 2
    assert re.search(r"\d+ tokens, \d+ passes", page.inner_text("#efficiency"))
    page.screenshot(path=shot, full_page=True)
    scrollers = page.evaluate(SCROLLERS)
    assert len(scrollers) <= 1, scrollers
    # Controls beyond the left edge do not make the page wider.
    cut = page.evaluate("[...document.querySelectorAll('select, button, input, textarea')].filter(one => one.getBoundingClientRect().left < 0).length")
    assert cut == 0, f"{cut} controls are beyond the left edge"
    with page.expect_download() as download:
        page.click("#png")
    assert os.path.getsize(download.value.path()) > 1000
    # A reload reopens the conversation.
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert page.evaluate("state.messages.at(-1).content") == content
    view.check()


def show_markdown(view, shot):
    page = view.page
    page.evaluate("text => { open(''); const message = { role: 'assistant', content: text }; state.messages = [message]; addMessage(message); }", MARKDOWN)
    answer = page.locator(".message.assistant .formatted")
    assert answer.locator("h1, strong, pre code, td").count() == 5
    assert answer.locator("img, script, form, input, [style], [id]").count() == 0
    links = answer.locator("a").evaluate_all("links => links.map(link => [link.getAttribute('href'), link.rel])")
    assert links == [[None, "noopener noreferrer"], ["https://example.org", "noopener noreferrer"]], links
    assert page.evaluate("window.attacked") is None
    page.screenshot(path=shot, full_page=True)
    # The policy rejects HTML that was not cleaned, and scripts in the page.
    assert page.evaluate("(() => { try { document.body.innerHTML = '<p>'; return false; } catch { return true; } })()")
    # It reports the style of the attack as well, which is removed.
    view.problems = [problem for problem in view.problems if not re.search("TrustedHTML|Applying inline style", problem)]
    view.check()


def main():
    program, folder, *model = sys.argv[1:]
    server = subprocess.Popen([program, "--no-config", "serve", *model, "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[1] for line in server.stderr if (found := re.search(r"serving at (http\S+/) ", line)))
        threading.Thread(target=lambda: [sys.stderr.write(line) for line in server.stderr], daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"])
            for scheme in ["light", "dark"]:
                for name, (width, height) in SIZES.items():
                    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
                    view = Page(browser, address, **options)
                    view.page.wait_for_selector("#model:not(:empty)")
                    use_page(view, f"{folder}/{name}-{scheme}.png", not model)
                    show_markdown(view, f"{folder}/{name}-{scheme}-markdown.png")
                    view.page.close()
                    docs = Page(browser, address + "docs", **options)
                    docs.page.wait_for_selector("h2")
                    assert "/v1/completions" in docs.page.inner_text("main")
                    docs.page.screenshot(path=f"{folder}/{name}-{scheme}-docs.png")
                    docs.check()
                    docs.page.close()
            view = Page(browser, address)
            assert view.page.request.get(address + "favicon.ico").ok
            view.page.wait_for_selector("#model:not(:empty)")
            # Errors are explained, and the message can be sent again.
            view.page.evaluate("document.querySelector('[name=tree]').value = 'nonsense'")
            view.send("Hello")
            assert "tree" in view.page.inner_text(".message.error")
            server.terminate()
            server.wait(timeout=60)
            view.send("Hello")
            error = view.page.locator(".message.error").last.inner_text()
            assert "cannot be reached" in error, error
            assert view.page.input_value("#prompt") == "Hello"
            assert view.page.evaluate("state.messages.length") == 0
            browser.close()
    finally:
        server.kill()
    print("the page works")


main()
