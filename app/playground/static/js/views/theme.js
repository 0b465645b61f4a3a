// Light or dark, before anything is painted; a classic script, so that no page flashes in the other one.
"use strict";

(() => {
  const NAME = "spectra-theme";
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage may be forbidden
    }
  }

  function isDark() {
    const given = root.dataset.theme;
    return given ? given === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function label(button) {
    const other = isDark() ? "light" : "dark";
    button.setAttribute("aria-label", `Switch to the ${other} theme`);
    button.title = `Switch to the ${other} theme`;
  }

  const kept = stored();
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    label(button);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => label(button));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        localStorage.setItem(NAME, root.dataset.theme);
      } catch {
        // then it holds for this page alone
      }
      label(button);
    });
  });
})();
