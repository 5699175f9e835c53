"""The live page in a browser: its display of real clients, on a screen and on a phone, and its actions."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from wirespeed.engine import Connected, Engine
from wirespeed.sync import ClientConnection, connect

if os.environ.get("WIRESPEED_BROWSERS") != "all":
    pytest.importorskip("selenium", reason="there is no selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

if CHROMIUM is None or DRIVER is None:
    if os.environ.get("WIRESPEED_BROWSERS") == "all":
        pytest.fail("there is no chromium, or no chromedriver: apt-get install chromium chromium-driver", pytrace=False)
    pytest.skip("there is no chromium", allow_module_level=True)

from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

TOKEN = "the-token-of-the-page"
PATIENCE = 30.0

# The folder of screenshots for inspection.
PICTURES = os.environ.get("WIRESPEED_PICTURES")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine("127.0.0.1", workers=2, page=TOKEN) as engine:
        yield engine


@pytest.fixture
def stack(engine: Engine) -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def dial(engine: Engine, path: str) -> ClientConnection:
    host, port = engine.addresses[0]
    return connect(f"ws://{host}:{port}{path}", proxy=None)


def picture(browser: Any, name: str) -> None:
    if PICTURES:
        browser.save_screenshot(str(Path(PICTURES, f"{name}.png")))


def wait(browser: Any, condition: Any) -> Any:
    # The page may redraw itself at any time.
    return WebDriverWait(browser, PATIENCE, 0.05, [StaleElementReferenceException]).until(condition)


def text(browser: Any, name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


def enter(browser: Any, engine: Engine, token: str = TOKEN) -> None:
    host, port = engine.addresses[0]
    browser.get(f"http://{host}:{port}/_wirespeed/")
    browser.find_element(By.ID, "token").send_keys(token)
    browser.find_element(By.CSS_SELECTOR, "#enter button").click()


def dress(browser: Any, width: int, height: int, scheme: str) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_page_shows_events_and_disconnects(browser: Any, engine: Engine, stack: contextlib.ExitStack) -> None:
    dress(browser, 1280, 1000, "light")
    clients = [stack.enter_context(dial(engine, f"/room/{number}?token=secret")) for number in range(3)]
    connected = 0
    for batch in engine.batches():
        for event in batch:
            assert isinstance(event, Connected)
            connected += 1
            event.session.subscribe("prices.*")
            if event.session.path == "/room/1":
                event.session.subscribe("news&amp;co")
        if connected == 3:
            break
    enter(browser, engine)
    wait(browser, lambda browser: "/room/2" in text(browser, "sessions"))
    assert not browser.find_element(By.ID, "login").is_displayed()
    for _ in range(2000):
        engine.publish("prices.a", "tick")
    wait(browser, lambda browser: "3" in text(browser, "topics") and "prices.*" in text(browser, "topics"))
    # Client data is text, and no markup.
    assert "news&amp;co" in text(browser, "topics")
    wait(browser, lambda browser: browser.find_element(By.CSS_SELECTOR, "#messages polyline").get_attribute("points"))
    tiles = {name: value for value, name in (tile.split("\n") for tile in _texts(browser, "#tiles .tile"))}
    assert (tiles["Sessions"], tiles["Panics"]) == ("3", "0")
    assert len(_texts(browser, "#workers tr")) == 2
    assert "secret" not in browser.page_source
    wait(
        browser,
        lambda browser: (
            browser.find_element(By.CSS_SELECTOR, "#messages polyline").get_attribute("points").count(",") >= 2
        ),
    )
    picture(browser, "desktop-light")
    # One of them, and its end.
    browser.find_element(By.ID, "find").send_keys("room/1")
    browser.find_element(By.CSS_SELECTOR, "#search button").click()
    wait(browser, lambda browser: len(_texts(browser, "#sessions tr")) == 1)
    browser.find_element(By.CSS_SELECTOR, "#sessions tr").click()
    wait(browser, lambda browser: "/room/1" in text(browser, "about"))
    assert "prices.*" in text(browser, "about")
    picture(browser, "session")
    browser.find_element(By.ID, "disconnect").click()
    with pytest.raises(wirespeed.ConnectionClosed) as info:
        while True:
            clients[1].recv(PATIENCE)
    assert info.value.rcvd == wirespeed.Close(1008, "disconnected by the operator")
    wait(browser, lambda browser: not _texts(browser, "#sessions tr"))
    # Nothing was loaded from elsewhere, nothing failed, and the token is in no address.
    names = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    host, port = engine.addresses[0]
    for name in browser.execute_script(names):
        assert name.startswith((f"http://{host}:{port}/_wirespeed/", "data:"))
        assert TOKEN not in name
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


def _texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)"
    return list(browser.execute_script(script, selector))


def test_on_a_phone_in_the_dark(browser: Any, engine: Engine) -> None:
    dress(browser, 360, 740, "dark")
    with dial(engine, "/a-path-that-is-much-longer-than-a-phone-is-wide/" + "x" * 60):
        enter(browser, engine)
        wait(browser, lambda browser: "a-path" in text(browser, "sessions"))
        picture(browser, "phone-dark")
        # Nothing is cut off at the side; wide tables scroll by themselves.
        widths = "return [document.documentElement.scrollWidth, window.innerWidth]"
        page, window = browser.execute_script(widths)
        assert page <= window
        background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(15, 18, 22)"
        heights = "return [...document.querySelectorAll('button, input')].filter(one => one.offsetParent)\
            .map(one => one.offsetHeight)"
        assert min(browser.execute_script(heights)) >= 40


def test_a_wrong_token_shows_nothing(browser: Any, engine: Engine) -> None:
    dress(browser, 800, 600, "light")
    enter(browser, engine, "the-token-of-another-page")
    wait(browser, lambda browser: text(browser, "state") == "the token is wrong")
    assert browser.find_element(By.ID, "login").is_displayed()
    assert not browser.find_element(By.ID, "all").is_displayed()
    assert browser.execute_script("return sessionStorage.length") == 0
    browser.get_log("browser")
