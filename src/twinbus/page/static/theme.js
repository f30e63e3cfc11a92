// The colour theme, set before the first paint. A classic script: modules run too late for that.
"use strict";
(() => {
  const themes = ["auto", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      const theme = localStorage.getItem("twinbus-theme");
      return themes.includes(theme) ? theme : "auto";
    } catch {
      return "auto"; // The browser forbids storage.
    }
  }

  function apply(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    apply(stored());
    document.getElementById("theme").addEventListener("click", () => {
      const theme = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
      try {
        localStorage.setItem("twinbus-theme", theme);
      } catch {
        // The theme then lasts as long as the tab.
      }
      apply(theme);
    });
  });
})();
