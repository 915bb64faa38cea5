"use strict";
const all = (query, within = document) => [...within.querySelectorAll(query)];
const lines = all(".of");
const of = line => line.dataset.of.split(" ");

function choose(line) {
  const wanted = line === null || line.classList.contains("chosen") ? null : new Set(of(line));
  for (const other of lines) {
    other.classList.toggle("on", wanted !== null && of(other).some(tag => wanted.has(tag)));
    other.classList.toggle("chosen", wanted !== null && other === line);
  }
  document.body.classList.toggle("chosen", wanted !== null);
  if (wanted === null) return;
  for (const pane of all(".pane:not([hidden])")) {
    const first = pane.querySelector(".on");
    if (first === null || pane.contains(line)) continue;
    const text = pane.querySelector(".text");
    text.scrollTo({ top: first.offsetTop - text.offsetTop - text.clientHeight / 3 });
  }
}

for (const pane of all(".pane")) {
  for (const [k, line] of all(".of", pane).entries()) line.tabIndex = k ? -1 : 0;
}
for (const line of lines) {
  line.setAttribute("role", "button");
  line.addEventListener("click", () => choose(line));
}
document.addEventListener("keydown", event => {
  const line = document.activeElement;
  if (event.key === "Escape") choose(null);
  if (!line.classList.contains("of")) return;
  if (event.key === "Enter" || event.key === " ") choose(line);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const near = all(document.body.classList.contains("chosen") ? ".of.on" : ".of", line.parentNode);
    const next = near[near.indexOf(line) + (event.key === "ArrowDown" ? 1 : -1)];
    if (next !== undefined) next.focus();
  } else return;
  event.preventDefault();
});
for (const button of all("nav button")) {
  button.addEventListener("click", () => {
    const pane = document.querySelector(`.pane[data-pane="${button.dataset.pane}"]`);
    pane.hidden = !pane.hidden;
    button.setAttribute("aria-pressed", String(!pane.hidden));
  });
}
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
