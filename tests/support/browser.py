"""Chromium of the system, headless, by its own driver: nothing is downloaded, nothing outside is asked."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)
PROGRAMS = ("chromium", "chromedriver")
WAIT_S = 600.0  # seconds; a slow machine does not reach it
COLOURS = 128  # of pictures
DESKTOP, PHONE = (1360, 900), (360, 740)


class Browser:
    """One window; pages are found under ``base``."""

    def __init__(self, driver: Chrome, base: str) -> None:
        self.driver = driver
        self.base = base
        self.pictures: Path | None = None  # folder of pictures; None: none are taken

    def open(self, path: str = "/", size: tuple[int, int] = DESKTOP, theme: str = "light") -> None:
        """Load a page in a window of that size; the browser's user prefers ``theme``."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.cdp("Emulation.setEmulatedMedia", features=features)
        width, height = size
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.driver.get(self.base + path)

    def cdp(self, command: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function body in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, *arguments: Any, within: float = WAIT_S) -> Any:
        """The value of an expression in the page, once it is true."""
        wait = WebDriverWait(self.driver, within, poll_frequency=0.05)
        return wait.until(lambda _: self.run(f"return {script}", *arguments), message=script)

    def module(self, body: str) -> Any:
        """What a module's code returns that may ``await import`` modules of the page."""
        script = f"const done = arguments[0]; (async () => {{ {body} }})().then(done, (error) => done(String(error)))"
        return self.driver.execute_async_script(script)

    def find(self, selector: str) -> WebElement:
        """The first element of a selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """All elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Click in the middle of an element, once it is in sight."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def set(self, name: str, value: object) -> None:
        """Give the field with an id a value, as if it had been typed."""
        self.run("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))

    def fire(self, kind: str, element: WebElement, x: float = 0.0) -> None:
        """Send a mouse event to an element, of a picture too; ``x`` is in pixels of the window."""
        script = "arguments[1].dispatchEvent(new MouseEvent(arguments[0], {bubbles: true, clientX: arguments[2]}))"
        self.run(script, kind, element, x)

    def texts(self, selector: str) -> list[str]:
        """Texts of all elements of a selector."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        texts: list[str] = self.run(script, selector)
        return texts

    def keyboard(self) -> ActionChains:
        """Presses keys, wherever the focus is; ``perform`` does."""
        return ActionChains(self.driver)

    def text(self, selector: str) -> str:
        """All text of an element, as it is in the document."""
        text: str = self.run("return document.querySelector(arguments[0]).textContent", selector)
        return text

    def picture(self, name: str) -> None:
        """Write a picture of the whole page, if pictures are wanted."""
        if self.pictures is not None:
            self._fit()
            self._write(name, self.driver.get_screenshot_as_png())

    def picture_of(self, name: str, selector: str) -> None:
        """Write a picture of one element, likewise."""
        if self.pictures is not None:
            self._fit()
            self._write(name, self.find(selector).screenshot_as_png)

    def _fit(self) -> None:
        """Make the window as high as the page."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)

    def _write(self, name: str, png: bytes) -> None:
        assert self.pictures is not None
        few = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(self.pictures / f"playground-{name}.png", optimize=True)

    def logged(self) -> list[str]:
        """What the console has said of errors since this was last asked: exceptions, refusals of the policy."""
        entries: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


@contextmanager
def browsing(base: str) -> Iterator[Browser]:
    """A fresh browser without profile, cache or storage."""
    with tempfile.TemporaryDirectory(prefix="browser-") as profile:
        options = ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options=options, service=Service(executable_path=shutil.which("chromedriver")))
        driver.set_script_timeout(WAIT_S)
        try:
            yield Browser(driver, base)
        finally:
            driver.quit()
