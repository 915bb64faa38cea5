// What scrolls sideways can be reached and scrolled by the keyboard.
function reachable() {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .md-typeset table")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}
reachable();
window.addEventListener("load", reachable);
window.addEventListener("resize", reachable);
