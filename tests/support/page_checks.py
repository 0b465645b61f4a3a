"""What can be checked of any page: that its controls have names, and that its texts can be read."""

from __future__ import annotations

from typing import Any

from benchmarks.support.browser import Browser

CONTROLS = {
    "button",
    "checkbox",
    "combobox",
    "image",
    "link",
    "listbox",
    "progressIndicator",
    "progressbar",
    "radio",
    "searchbox",
    "slider",
    "spinbutton",
    "switch",
    "textbox",
}
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3
FAINT = """
const [least] = arguments;
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const over = ([r, g, b, a], under) => [r, g, b].map((value, i) => (value * a + under[i] * (255 - a)) / 255);
const light = (rgb) => {
  const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  if (!element) return [255, 255, 255];
  const shape = element instanceof SVGTextElement ? element.previousElementSibling : null;
  if (shape) return over(rgba(getComputedStyle(shape).fill), behind(element.closest("div")));
  return over(rgba(getComputedStyle(element).backgroundColor), behind(element.parentElement));
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let n = 0;
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || element.closest("title, [hidden]") || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const under = behind(element);
  const ink = over(rgba(element instanceof SVGElement ? style.fill : style.color), under);
  const [dark, bright] = [light(ink), light(under)].sort((a, b) => a - b);
  const contrast = (bright + 0.05) / (dark + 0.05);
  n += 1;
  if (contrast < least) found.push(`${walker.currentNode.data.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
}
return [n, found];
"""


def faint_texts(page: Browser) -> list[str]:
    """Visible texts whose colour is too near to what is behind them, with their contrast."""
    n, found = page.run(FAINT, LEAST_CONTRAST)
    assert n > 20
    faint: list[str] = found
    return faint


def unnamed_controls(page: Browser) -> list[dict[str, Any]]:
    """Nodes of the accessibility tree that a user acts on, and pictures, without a name."""
    page.cdp("Accessibility.enable")
    nodes = page.cdp("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node["ignored"] and node.get("role", {}).get("value") in CONTROLS]
    assert len(shown) > 10
    return [node for node in shown if not node.get("name", {}).get("value", "").strip()]
