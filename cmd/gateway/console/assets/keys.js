// keys makes the page usable without a mouse.
export function keys() {
  const list = document.getElementById("keys");
  const theme = document.getElementById("theme");
  const help = document.getElementById("help");
  const hold = document.getElementById("pause");
  theme.hidden = help.hidden = hold.hidden = false;
  theme.addEventListener("click", turn);
  help.addEventListener("click", () => list.showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog[open]")) return;
    const page = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    const act = { "/": find, t: turn, p: () => hold.click(), "?": () => list.showModal(), j: () => step(1), k: () => step(-1) }[event.key] ?? (page && (() => page.click()));
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function turn() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("tandem-theme", root.dataset.theme); } catch { /* kept for this page alone */ }
  dispatchEvent(new Event("tandem-theme"));
}

function find() {
  const box = document.getElementById("id");
  if (box) box.focus();
  else location.href = "/console/requests";
}

function step(by) {
  const rows = [...document.querySelectorAll(".requests tbody a")];
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
}
